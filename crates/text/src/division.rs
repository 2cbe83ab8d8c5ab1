//! How text becomes words: the steps of a tokenizer.json's pre-tokenizer, with the meaning that the `tokenizers` crate
//! gives them (its `NormalizedString::split`, and `ByteLevel` and `Digits`).
//!
//! A step divides each part that the step before it left. One part is in work at a time, from left to right, so that
//! encoding ends as soon as there are more tokens than anybody can use. The crate divides the whole text first, and
//! keeps about 150 bytes for each byte of it.
//!
//! Where an expression's engine gives up, the crate finds nothing more and does not say so. Here the text is refused.

use super::TextError;
use super::effort::{Count, Effort};
use fancy_regex::Regex;
use serde::Deserialize;
use std::borrow::Cow;
use std::ops::Range;

/// Longest part that a step takes which has to know what comes before or behind a match: its matches are listed.
const LISTED_BYTES_MAX: usize = 1 << 20;

/// What becomes of the matches of a step.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(super) enum Behavior {
    /// They are left out.
    Removed,
    /// Each is a part.
    Isolated,
    /// One ends the part before it, unless that is a match.
    MergedWithPrevious,
    /// One begins the part behind it, unless that is a match.
    MergedWithNext,
    /// Matches that follow each other are one part.
    Contiguous,
}

/// What a step finds.
pub(super) enum Matcher {
    Expression(Box<Expression>),
    /// A character that is a digit or another number.
    Digit,
}

/// An expression, and what finding it reads where that is counted.
pub(super) struct Expression {
    pub(super) regex: Regex,
    pub(super) effort: Option<Effort>,
}

/// A step that divides.
pub(super) struct Divider {
    pub(super) matcher: Matcher,
    pub(super) behavior: Behavior,
    /// What lies between matches counts as the matches.
    pub(super) invert: bool,
}

impl Matcher {
    pub(super) fn expression(regex: Regex, effort: Option<Effort>) -> Self {
        Self::Expression(Box::new(Expression { regex, effort }))
    }
}

/// All steps. Without any, a text is one word.
#[derive(Default)]
pub(super) struct Division {
    pub(super) dividers: Vec<Divider>,
    /// Each part that the dividers leave is to begin with a space.
    pub(super) prefix_space: bool,
    /// The step behind that.
    pub(super) last: Option<Divider>,
}

type Visit<'v> = dyn FnMut(&str) -> Result<(), TextError> + 'v;

impl Division {
    /// The words of a text, in order; none is empty.
    pub(super) fn each(&self, text: &str, visit: &mut Visit<'_>) -> Result<(), TextError> {
        self.divide(&self.dividers, text, visit)
    }

    fn divide(
        &self,
        dividers: &[Divider],
        text: &str,
        visit: &mut Visit<'_>,
    ) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        match dividers.split_first() {
            Some((divider, others)) => {
                divider.each_part(text, &mut |part| self.divide(others, part, visit))
            }
            None => self.end(text, visit),
        }
    }

    fn end(&self, text: &str, visit: &mut Visit<'_>) -> Result<(), TextError> {
        let text = match self.prefix_space && !text.starts_with(' ') {
            true => Cow::Owned(format!(" {text}")),
            false => Cow::Borrowed(text),
        };
        let Some(last) = &self.last else { return visit(&text) };
        last.each_part(&text, &mut |part| if part.is_empty() { Ok(()) } else { visit(part) })
    }
}

impl Divider {
    /// Visits the parts of a text; some may be empty.
    fn each_part(&self, text: &str, visit: &mut Visit<'_>) -> Result<(), TextError> {
        match self.behavior {
            Behavior::Isolated => self.each_range(text, |range, _| visit(&text[range])),
            Behavior::Removed => self.each_range(text, |range, is_match| match is_match {
                true => Ok(()),
                false => visit(&text[range]),
            }),
            behavior => {
                if text.len() > LISTED_BYTES_MAX {
                    let problem =
                        format!("this tokenizer takes texts of at most {LISTED_BYTES_MAX} bytes");
                    return Err(TextError::Encode { bytes: text.len(), problem });
                }
                let mut ranges = Vec::new();
                self.each_range(text, |range, is_match| {
                    ranges.push((range, is_match));
                    Ok(())
                })?;
                merged(ranges, behavior).into_iter().try_for_each(|range| visit(&text[range]))
            }
        }
    }

    /// Visits what counts as a match and what lies between, together the whole text.
    fn each_range(
        &self,
        text: &str,
        mut visit: impl FnMut(Range<usize>, bool) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut last = 0;
        self.each_match(text, |start, end| {
            if last < start {
                visit(last..start, self.invert)?;
            }
            last = end;
            visit(start..end, !self.invert)
        })?;
        if last < text.len() { visit(last..text.len(), self.invert) } else { Ok(()) }
    }

    /// Visits what is found, unless finding it reads too much or the expression's engine gives up.
    fn each_match(
        &self,
        text: &str,
        mut visit: impl FnMut(usize, usize) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let Matcher::Expression(expression) = &self.matcher else {
            let mut digits = text.char_indices().filter(|(_, c)| c.is_numeric());
            return digits.try_for_each(|(start, c)| visit(start, start + c.len_utf8()));
        };
        let mut count = expression.effort.as_ref().map(|effort| effort.count(text));
        let mut matches = expression.regex.find_iter(text);
        loop {
            count.as_mut().map_or(Ok(()), Count::before_next)?;
            let Some(found) = matches.next() else { return Ok(()) };
            let found = found.map_err(|error| TextError::Encode {
                bytes: text.len(),
                problem: error.to_string(),
            })?;
            let (start, end) = (found.start(), found.end());
            if let Some(count) = &mut count {
                count.found(end, start == end);
            }
            visit(start, end)?;
        }
    }
}

/// The parts of a text by its matches and what lies between.
fn merged(mut ranges: Vec<(Range<usize>, bool)>, behavior: Behavior) -> Vec<Range<usize>> {
    let from_the_right = behavior == Behavior::MergedWithNext;
    if from_the_right {
        ranges.reverse();
    }
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut before = false;
    for (range, is_match) in ranges {
        let joins = match behavior {
            Behavior::Contiguous => is_match == before,
            _ => is_match && !before,
        };
        match parts.last_mut().filter(|_| joins) {
            Some(part) if from_the_right => part.start = range.start,
            Some(part) => part.end = range.end,
            None => parts.push(range),
        }
        before = is_match;
    }
    if from_the_right {
        parts.reverse();
    }
    parts
}
