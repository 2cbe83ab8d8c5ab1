//! The work room: jobs in, events out.
//!
//! `job` has the types that protocols and engine share; [`EngineWorker`] takes jobs and runs `scheduler` on a thread
//! of its own, which keeps what was computed in `prefix`. Nothing here knows HTTP, and nothing outside knows
//! sequences, snapshots or experts.

mod active;
mod answer;
mod blame;
mod card;
mod disk;
mod guide;
mod histogram;
mod job;
mod keeping;
mod lifecycle;
mod loading;
mod lock;
mod outbox;
mod owner;
mod panics;
mod parts;
mod prefix;
mod queue;
mod scheduler;
mod shared;
mod slots;
mod status;
mod step;
mod under_way;
mod worker;

pub use card::{Example, ModelCard};
pub use disk::{DiskOptions, DiskStatus, SharedOptions, kept};
pub use histogram::{Histogram, Measures};
pub use job::{
    CallConstraint, Constraint, Conversation, Event, Experts, Finish, FinishReason, Job, JobError,
    OutputRules, Piece, PrepareError, Preparing, Priority, Prompt, Refusal, SlotReply, Ticket,
    Timings, TokenLogprob, TopLogprob, Usage, Worker,
};
pub use loading::Loading;
pub use owner::Owner;
pub use slots::{SlotAction, SlotDone, SlotError, SlotName, SlotOptions};
pub use status::{Failing, PrefixStatus, RunningJob, Stage, Status};
pub use worker::{EngineWorker, WorkerOptions};
