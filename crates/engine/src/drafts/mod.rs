//! Drafts: tokens that an answer may go on with, computed together with its next one.
//!
//! A round runs the last token and its drafts at once; its rows are drawn in order, with the sampler and the rules as
//! ever, until one differs from its draft. What is drawn then is the answer's, whatever was drafted: drafts decide how
//! fast an answer comes, never what it is. [`suffix`] drafts from what was written before, a model's head from the
//! trunk's output ([`crate::model::head`]); [`depth`] says how many.

mod depth;
pub mod suffix;

use std::fmt;
use std::sync::Arc;

pub(crate) use self::depth::StepTimes;
use self::depth::{Acceptance, ROWS};
use self::suffix::SuffixIndex;

/// Most tokens of a round: the last token, and its drafts.
pub const ROUND_TOKENS: usize = ROWS;

/// Drafts of at most so many tokens after a text.
pub type GivenDrafts = Arc<dyn Fn(&[u32], usize) -> Vec<u32> + Send + Sync>;

/// Where drafts come from.
#[derive(Clone)]
pub enum DraftSource {
    /// What followed the longest suffix of prompt and answer where it occurred before.
    Suffix,
    /// The model's head.
    Head,
    /// What followed such a suffix, and where there is none the model's head.
    SuffixOrHead,
    /// The caller: to measure with forced rates, and to test.
    Given(GivenDrafts),
}

impl fmt::Debug for DraftSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Suffix => "Suffix",
            Self::Head => "Head",
            Self::SuffixOrHead => "SuffixOrHead",
            Self::Given(_) => "Given",
        })
    }
}

/// How answers are drafted.
#[derive(Clone, Debug)]
pub struct Drafting {
    /// Where drafts come from.
    pub source: DraftSource,
    /// Whether no more are computed than pays, by what was measured; else as many as there are.
    pub measured: bool,
}

/// What became of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounters {
    /// Steps of answers that had drafts.
    pub rounds: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Of those, the tokens that were drawn.
    pub accepted: u64,
    /// Of all three, what the model's head drafted.
    pub by_head: HeadCounters,
}

/// What became of the drafts of a model's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadCounters {
    /// Steps of answers that had some.
    pub rounds: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Of those, the tokens that were drawn.
    pub accepted: u64,
}

impl DraftCounters {
    /// What came since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            rounds: self.rounds - earlier.rounds,
            drafted: self.drafted - earlier.drafted,
            accepted: self.accepted - earlier.accepted,
            by_head: HeadCounters {
                rounds: self.by_head.rounds - earlier.by_head.rounds,
                drafted: self.by_head.drafted - earlier.by_head.drafted,
                accepted: self.by_head.accepted - earlier.by_head.accepted,
            },
        }
    }

    /// A round of `drafted` tokens, the first `accepted` of which were drawn.
    pub(crate) fn note(&mut self, by_head: bool, drafted: usize, accepted: usize) {
        if drafted == 0 {
            return;
        }
        let (drafted, accepted) = (drafted as u64, accepted as u64);
        self.rounds += 1;
        self.drafted += drafted;
        self.accepted += accepted;
        if by_head {
            self.by_head.rounds += 1;
            self.by_head.drafted += drafted;
            self.by_head.accepted += accepted;
        }
    }
}

/// Room for the drafts of one answer in a step.
#[derive(Clone, Copy, Debug)]
pub struct DraftRoom {
    /// Most drafts.
    pub most: usize,
    /// Rows of other answers in the same step.
    pub others: usize,
}

/// Drafts one answer.
#[derive(Debug)]
pub struct Drafter {
    drafting: Drafting,
    index: SuffixIndex,
    /// Of tokens found in the text, or given.
    acceptance: Acceptance,
    /// Of the head's.
    of_head: Acceptance,
    /// Whether the last drafts were the head's.
    by_head: bool,
}

impl Drafter {
    /// Before the first token.
    pub fn new(drafting: &Drafting) -> Self {
        let drafting = drafting.clone();
        Self {
            drafting,
            index: SuffixIndex::default(),
            acceptance: Acceptance::default(),
            of_head: Acceptance::default(),
            by_head: false,
        }
    }

    /// Drafts of what follows `text`, all tokens of prompt and answer, which only grows; but for those of a head.
    pub(crate) fn propose(&mut self, text: &[u32], room: DraftRoom, times: &StepTimes) -> Vec<u32> {
        let most = room.most.min(ROUND_TOKENS - 1);
        self.by_head = false;
        if most == 0 {
            return Vec::new();
        }
        let mut drafts = match &self.drafting.source {
            DraftSource::Suffix | DraftSource::SuffixOrHead => self.index.propose(text, most),
            DraftSource::Head => Vec::new(),
            DraftSource::Given(given) => given(text, most),
        };
        drafts.truncate(most);
        if self.drafting.measured && !drafts.is_empty() {
            drafts.truncate(self.acceptance.depth(times, 0.0, room.others, drafts.len()));
        }
        drafts
    }

    /// How many tokens the model's head is to draft where nothing else did.
    pub(crate) fn ask_head(&mut self, room: DraftRoom, times: &StepTimes) -> usize {
        let most = room.most.min(ROUND_TOKENS - 1);
        self.by_head =
            matches!(self.drafting.source, DraftSource::Head | DraftSource::SuffixOrHead);
        match self.drafting.measured {
            _ if !self.by_head || most == 0 => 0,
            true => self.of_head.depth(times, times.of_draft(), room.others, most),
            false => most,
        }
    }

    /// Of `drafted` tokens the first `accepted` were drawn. True where they were the head's.
    pub(crate) fn note(&mut self, drafted: usize, accepted: usize) -> bool {
        let acceptance = if self.by_head { &mut self.of_head } else { &mut self.acceptance };
        acceptance.note(drafted, accepted);
        self.by_head
    }
}
