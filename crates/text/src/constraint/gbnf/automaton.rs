//! What a lexeme can begin with, how it can go on, and where it can end, character by character.
//!
//! Positions are the characters of the expression (V. M. Glushkov, The abstract theory of automata, 1961). Numbers of
//! repetitions are not counted, so that it may say that a lexeme can go on where it cannot, never the reverse.

use super::characters::Characters;
use super::flat::Flat;
use super::parse::Expression;

/// Characters of a lexeme; one with more is taken apart.
const POSITIONS_MAX: usize = 1500;
/// Ways from one to another.
const WAYS_MAX: usize = 20_000;

/// The positions of a lexeme.
#[derive(Default)]
pub(super) struct Automaton {
    pub(super) sets: Vec<Characters>,
    pub(super) first: Vec<usize>,
    /// Whether the lexeme may end behind it.
    pub(super) last: Vec<bool>,
    pub(super) follow: Vec<Vec<usize>>,
    pub(super) nullable: bool,
    ways: usize,
}

/// A part of it.
struct Part {
    first: Vec<usize>,
    last: Vec<usize>,
    nullable: bool,
}

impl Automaton {
    /// Of an expression without recursion; `None` where it is too large.
    pub(super) fn of(expression: &Expression, grammar: &Flat) -> Option<Self> {
        let mut automaton = Self::default();
        let whole = automaton.part(expression, grammar)?;
        automaton.last = vec![false; automaton.sets.len()];
        whole.last.into_iter().for_each(|position| automaton.last[position] = true);
        (automaton.first, automaton.nullable) = (whole.first, whole.nullable);
        Some(automaton)
    }

    fn character(&mut self, set: Characters) -> Option<Part> {
        let position = self.sets.len();
        if position == POSITIONS_MAX {
            return None;
        }
        self.sets.push(set);
        self.follow.push(Vec::new());
        Some(Part { first: vec![position], last: vec![position], nullable: false })
    }

    fn join(&mut self, last: &[usize], first: &[usize]) -> Option<()> {
        self.ways += last.len() * first.len();
        for &position in last {
            self.follow[position].extend(first);
        }
        (self.ways <= WAYS_MAX).then_some(())
    }

    fn after(&mut self, before: Part, then: Part) -> Option<Part> {
        self.join(&before.last, &then.first)?;
        let mut part = Part {
            first: before.first,
            last: then.last,
            nullable: before.nullable && then.nullable,
        };
        if before.nullable {
            part.first.extend(then.first);
        }
        if then.nullable {
            part.last.extend(before.last);
        }
        Some(part)
    }

    fn part(&mut self, expression: &Expression, grammar: &Flat) -> Option<Part> {
        let nothing = || Part { first: Vec::new(), last: Vec::new(), nullable: true };
        match expression {
            Expression::Set(set) => self.character(set.clone()),
            Expression::Text(text) => text.chars().try_fold(nothing(), |before, letter| {
                let then = self.character(Characters::one(letter))?;
                self.after(before, then)
            }),
            Expression::Rule(number) => self.part(&grammar.rules[*number], grammar),
            Expression::Sequence(parts) => parts.iter().try_fold(nothing(), |before, part| {
                let then = self.part(part, grammar)?;
                self.after(before, then)
            }),
            Expression::Choice(parts) => {
                let mut whole = Part { first: Vec::new(), last: Vec::new(), nullable: false };
                for part in parts {
                    let part = self.part(part, grammar)?;
                    whole.first.extend(part.first);
                    whole.last.extend(part.last);
                    whole.nullable |= part.nullable;
                }
                Some(whole)
            }
            Expression::Repeat { of, least, most } => {
                let mut part = self.part(of, grammar)?;
                if *most != Some(1) {
                    self.join(&part.last, &part.first)?;
                }
                part.nullable |= *least == 0;
                Some(part)
            }
        }
    }
}
