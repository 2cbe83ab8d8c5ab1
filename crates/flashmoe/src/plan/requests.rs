//! The memory of a server's requests: how large they may be, and how many at once, so that all stay in the plan.
//!
//! Every limit that the server enforces is taken from the budget here, and the bytes that the limits allow are one
//! part of the plan. Sizes of parsed JSON and of connections are measured (bench/serve/hostile.py).

use engine::backend::cpu::CpuOptions;
use server::Limits;

/// A request's body is never larger; Anthropic's own limit is half of this.
const BODY_BYTES_MAX: u64 = 64 << 20;
/// A body without its prompt: tools, schemas, white space.
const BODY_BYTES_MIN: u64 = 1 << 20;
/// Bytes of a body for each token of context: a token has about four bytes of text, each up to six as JSON escapes it,
/// and rare ones have ten times as many.
const BODY_BYTES_PER_TOKEN: u64 = 256;
/// Share of the budget that a body may take, as a divisor, and what it may take of any budget.
const BODY_SHARE: u64 = 256;
const BODY_BYTES_ALWAYS: u64 = 2 << 20;
/// Share of the budget for bodies being read and what is kept of requests, as a divisor, and its bounds.
const ROOM_SHARE: u64 = 64;
const ROOM_BYTES: (u64, u64) = (16 << 20, 256 << 20);
/// JSON values of a body: one for so many bytes of budget, within these bounds.
const VALUE_SHARE: u64 = 64 << 10;
const VALUES: (u64, u64) = (20_000, 100_000);
/// Memory of a JSON value while a request is read, its copies for the template included.
const VALUE_BYTES: u64 = 600;
/// Copies of a body's text while it is read, rendered and tokenised.
const TEXT_COPIES: u64 = 6;
/// What tokenising one word in windows takes, and the interpreter of templates.
const PIECE_BYTES: u64 = 12 << 20;
/// Connections: what one takes when it sends as fast as it can, their share of the budget, and their number.
const CONNECTION_BYTES: u64 = 48 << 10;
const CONNECTION_SHARE: u64 = 128;
const CONNECTIONS: (u64, u64) = (256, 4096);
/// Answers with calls that are kept as they were sampled, and compiled grammars with what compiles them.
const KEPT_BYTES: u64 = (16 << 20) + (32 << 20);

/// How much state a run keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seats {
    /// Conversations computed at once; `None` for as many as long contexts leave room for.
    pub(crate) sequences: Option<usize>,
    /// Points to return to; `None` takes what a small part of the budget holds.
    pub(crate) snapshots: Option<usize>,
    /// Requests of a server that may wait; `None` where there is no server.
    pub(crate) waiting: Option<usize>,
}

impl Seats {
    /// One sequence that is never returned to.
    pub(crate) const MEASUREMENT: Self =
        Self { sequences: Some(1), snapshots: Some(0), waiting: None };
    /// One conversation, which returns to the end of its last turn.
    pub(crate) const CONVERSATION: Self =
        Self { sequences: Some(1), snapshots: Some(1), waiting: None };
}

/// Limits of a server's requests and what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestPlan {
    pub(crate) limits: Limits,
    /// Memory of all requests together, at most.
    pub(crate) bytes: u64,
}

impl RequestPlan {
    /// Of what has seats for waiting requests: a server; `None` for others.
    pub(super) fn of(seats: Seats, budget: u64, options: &CpuOptions) -> Option<Self> {
        let waiting = seats.waiting?;
        Some(Self::new(budget, options.context, options.sequences + waiting))
    }

    /// For a server with `budget` bytes whose conversations have `context` tokens; `at_once` are computed or wait.
    pub(crate) fn new(budget: u64, context: usize, at_once: usize) -> Self {
        let by_context = BODY_BYTES_MIN + BODY_BYTES_PER_TOKEN * context as u64;
        let by_budget = (budget / BODY_SHARE).max(BODY_BYTES_ALWAYS);
        let body = BODY_BYTES_MAX.min(by_context).min(by_budget);
        let body_reason = match body {
            BODY_BYTES_MAX => "",
            _ if body == by_context => ", more than the context can need: see --context",
            _ => ", more than the memory allows: see --memory",
        };
        let (low, high) = ROOM_BYTES;
        let room = (budget / ROOM_SHARE).clamp(low, high).max(2 * body);
        let values = (budget / VALUE_SHARE).clamp(VALUES.0, VALUES.1);
        let (low, high) = CONNECTIONS;
        let connections = (budget / CONNECTION_SHARE / CONNECTION_BYTES).clamp(low, high);
        let preparing = TEXT_COPIES * body + values * VALUE_BYTES + PIECE_BYTES;
        // Token ids, where a job waits and where it is computed.
        let prompts = 2 * size_of::<u32>() as u64 * (at_once * context) as u64;
        let limits = Limits {
            body_bytes: body as usize,
            body_reason,
            body_values: values as usize,
            requests_bytes: room as usize,
            connections: connections as usize,
            ..Limits::default()
        };
        let bytes = room + preparing + connections * CONNECTION_BYTES + prompts + KEPT_BYTES;
        Self { limits, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_context_and_budget() {
        let plan = |budget: u64, context| RequestPlan::new(budget, context, 12);
        let small = plan(300 << 20, 2048);
        assert_eq!(small.limits.body_bytes, (1 << 20) + 256 * 2048);
        assert!(small.limits.body_reason.contains("--context"));
        assert!(small.bytes < 150 << 20, "{}", small.bytes);
        let short = plan(300 << 20, 262_144);
        assert!(short.limits.body_reason.contains("--memory"));
        let large = plan(64 << 30, 300_000);
        assert_eq!((large.limits.body_bytes, large.limits.body_reason), (64 << 20, ""));
        for context in [2048, 32_768, 262_144] {
            let mut last = 0;
            for budget in (0..200).map(|step| step << 28) {
                let plan = plan(budget, context);
                assert!(plan.bytes >= last, "more memory never allows less");
                assert!(plan.limits.requests_bytes >= 2 * plan.limits.body_bytes);
                last = plan.bytes;
            }
            let share = plan(6 << 30, context).bytes as f64 / (6u64 << 30) as f64;
            assert!(share < 0.1, "{share}");
        }
    }
}
