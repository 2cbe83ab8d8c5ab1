//! The work room: jobs in, events out.
//!
//! [`job`] has the types that protocols and engine share. Nothing here knows HTTP, and nothing outside knows
//! sequences, snapshots or experts.

mod job;
mod status;

pub use job::{
    CallConstraint, Constraint, Conversation, Event, Experts, Finish, FinishReason, Job, JobError,
    ModelCard, OutputRules, Piece, PrepareError, Priority, Prompt, Refusal, Ticket, Timings,
    TokenLogprob, TopLogprob, Usage, Worker,
};
pub use status::{LatencyTotals, PrefixStatus, RunningJob, Stage, Status};
