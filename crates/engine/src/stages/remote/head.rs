//! What is asked of a stage that has the head: tokens and their logits, as they are written.

use text::sampling::{Ranked, Wanted};

use super::bytes::{Malformed, Reading, Writing};
use super::terms::Limits;
use crate::stages::command::{HeadCommand, HeadPlace};

/// Most logits in a row that are asked for by their place, and most that are ranked.
const RANKED_MAX: usize = 1 << 16;

/// [`HeadCommand`] as it is written: the stage knows where its head is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HeadOrder {
    Expect(Vec<usize>),
    Logits(Vec<usize>, bool),
    MostLikely(usize),
    Rank(usize, Wanted),
    RankedLogits(usize, usize),
}

impl HeadOrder {
    pub(super) fn of(command: HeadCommand) -> Self {
        match command {
            HeadCommand::Expect(rows) => Self::Expect(rows),
            HeadCommand::Logits { tokens, last, .. } => Self::Logits(tokens, last),
            HeadCommand::MostLikely { token, .. } => Self::MostLikely(token),
            HeadCommand::Rank { token, wanted, .. } => Self::Rank(token, wanted),
            HeadCommand::RankedLogits { start, count } => Self::RankedLogits(start, count),
        }
    }

    pub(super) fn command(self, place: HeadPlace) -> HeadCommand {
        match self {
            Self::Expect(rows) => HeadCommand::Expect(rows),
            Self::Logits(tokens, last) => {
                HeadCommand::Logits { place, tokens, last, into: Vec::new() }
            }
            Self::MostLikely(token) => HeadCommand::MostLikely { place, token },
            Self::Rank(token, wanted) => {
                HeadCommand::Rank { place, token, wanted, into: Ranked::default() }
            }
            Self::RankedLogits(start, count) => HeadCommand::RankedLogits { start, count },
        }
    }

    pub(super) fn write(&self, to: &mut Writing) {
        let rows = |rows: &[usize], to: &mut Writing| {
            to.count(rows.len());
            rows.iter().for_each(|&row| to.size(row));
        };
        match self {
            Self::Expect(all) => {
                to.byte(0);
                rows(all, to);
            }
            Self::Logits(all, last) => {
                to.byte(1);
                rows(all, to);
                to.flag(*last);
            }
            Self::MostLikely(token) => {
                to.byte(2);
                to.size(*token);
            }
            Self::Rank(token, wanted) => {
                to.byte(3);
                to.size(*token);
                let (weights, temperature, least) = match *wanted {
                    Wanted::Top => (false, 0.0, 0),
                    Wanted::Weights { temperature, least } => (true, temperature, least),
                };
                to.flag(weights);
                to.word(temperature.to_bits());
                to.long(least);
            }
            Self::RankedLogits(start, count) => {
                to.byte(4);
                to.size(*start);
                to.size(*count);
            }
        }
    }

    /// A question of tokens that a batch can have.
    pub(super) fn read(from: &mut Reading<'_>, limits: &Limits) -> Result<Self, Malformed> {
        let token = |from: &mut Reading<'_>| match from.size()? {
            token if token < limits.batch_tokens => Ok(token),
            _ => Err(Malformed("a token that a batch has not")),
        };
        let rows = |from: &mut Reading<'_>| {
            let count = from.count(8, limits.batch_tokens)?;
            (0..count).map(|_| token(from)).collect::<Result<Vec<_>, _>>()
        };
        Ok(match from.byte()? {
            0 => Self::Expect(rows(from)?),
            1 => Self::Logits(rows(from)?, from.flag()?),
            2 => Self::MostLikely(token(from)?),
            3 => {
                let (token, weights) = (token(from)?, from.flag()?);
                let (temperature, least) = (f32::from_bits(from.word()?), from.long()?);
                let wanted = match weights {
                    false => Wanted::Top,
                    true if temperature > 0.0 => Wanted::Weights { temperature, least },
                    true => return Err(Malformed("a temperature that is none")),
                };
                Self::Rank(token, wanted)
            }
            4 => match (from.size()?, from.size()?) {
                (start, count)
                    if count <= RANKED_MAX && start.saturating_add(count) <= limits.vocabulary =>
                {
                    Self::RankedLogits(start, count)
                }
                _ => return Err(Malformed("logits that there are not")),
            },
            _ => return Err(Malformed("a question of no kind")),
        })
    }
}

pub(super) fn write_ranked(ranked: Option<&Ranked>, to: &mut Writing) {
    to.flag(ranked.is_some());
    if let Some(Ranked { top, sums }) = ranked {
        to.count(top.len());
        for &(token, logit) in top {
            to.word(token);
            to.word(logit.to_bits());
        }
        to.count(sums.len());
        sums.iter().for_each(|&sum| to.long(sum));
    }
}

pub(super) fn read_ranked(from: &mut Reading<'_>) -> Result<Option<Ranked>, Malformed> {
    if !from.flag()? {
        return Ok(None);
    }
    let count = from.count(8, RANKED_MAX)?;
    let top = (0..count).map(|_| Ok((from.word()?, f32::from_bits(from.word()?))));
    let top = top.collect::<Result<_, _>>()?;
    let count = from.count(8, RANKED_MAX)?;
    let sums = (0..count).map(|_| from.long()).collect::<Result<_, _>>()?;
    Ok(Some(Ranked { top, sums }))
}
