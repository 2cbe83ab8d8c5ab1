//! A grammar with one operator in a rule: what is within another expression becomes a rule of its own, so that a part
//! of a grammar is always a rule, and can be taken apart step by step.

use std::collections::BTreeSet;

use super::parse::{Expression, Grammar};

/// Rules with those that were added.
const RULES_MAX: usize = 4000;
/// Rules that lead to each other in a row: compiling them costs stack.
const CHAIN_MAX: usize = 200;

/// A grammar whose rules have characters, texts of one character and names of rules as operands.
pub(super) struct Flat {
    pub(super) rules: Vec<Expression>,
    pub(super) root: usize,
    /// Rules that lead back to themselves, or to a rule that does.
    pub(super) recursive: Vec<bool>,
}

impl Flat {
    /// # Errors
    /// Too many rules.
    pub(super) fn of(grammar: Grammar) -> Result<Self, String> {
        let Grammar { rules: given, root } = grammar;
        let mut rules = vec![Expression::Text(String::new()); given.len()];
        for (number, rule) in given.into_iter().enumerate() {
            let flat = body(rule, &mut rules);
            rules[number] = flat;
        }
        if rules.len() > RULES_MAX {
            return Err(format!("has {} parts, more than {RULES_MAX}", rules.len()));
        }
        let recursive = recursive(&rules);
        let flat = Self { rules, root, recursive };
        let chain = flat.chain();
        if chain > CHAIN_MAX {
            return Err(format!(
                "has {chain} rules that lead to each other, more than {CHAIN_MAX}"
            ));
        }
        Ok(flat)
    }

    /// Rules that an answer can use.
    pub(super) fn reached(&self) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([self.root]);
        let mut waiting = vec![self.root];
        while let Some(rule) = waiting.pop() {
            waiting.extend(named(&self.rules[rule]).filter(|&rule| reached.insert(rule)));
        }
        reached
    }

    /// The longest way of a search in depth, which is how grammars are compiled.
    fn chain(&self) -> usize {
        let mut seen = BTreeSet::from([self.root]);
        let mut way: Vec<Vec<usize>> = vec![named(&self.rules[self.root]).collect()];
        let mut longest = 1;
        while let Some(next) = way.last_mut() {
            match next.pop() {
                None => _ = way.pop(),
                Some(rule) if seen.insert(rule) => {
                    way.push(named(&self.rules[rule]).collect());
                    longest = longest.max(way.len());
                }
                Some(_) => {}
            }
        }
        longest
    }
}

/// A rule's own expression with operands that are no expressions; what they were is added to `rules`.
fn body(expression: Expression, rules: &mut Vec<Expression>) -> Expression {
    let mut all = |parts: Vec<Expression>| parts.into_iter().map(|it| operand(it, rules)).collect();
    match expression {
        Expression::Sequence(parts) => Expression::Sequence(all(parts)),
        Expression::Choice(parts) => Expression::Choice(all(parts)),
        Expression::Repeat { of, least, most } => {
            Expression::Repeat { of: Box::new(operand(*of, rules)), least, most }
        }
        other => other,
    }
}

fn operand(expression: Expression, rules: &mut Vec<Expression>) -> Expression {
    match expression {
        Expression::Set(_) | Expression::Rule(_) => expression,
        Expression::Text(ref text) if text.chars().count() < 2 => expression,
        other => {
            let other = body(other, rules);
            rules.push(other);
            Expression::Rule(rules.len() - 1)
        }
    }
}

/// Rules that a rule names.
fn named(rule: &Expression) -> impl Iterator<Item = usize> + '_ {
    let parts = match rule {
        Expression::Sequence(parts) | Expression::Choice(parts) => parts.as_slice(),
        Expression::Repeat { of, .. } => std::slice::from_ref(&**of),
        other => std::slice::from_ref(other),
    };
    parts.iter().filter_map(|part| match part {
        Expression::Rule(number) => Some(*number),
        _ => None,
    })
}

fn recursive(rules: &[Expression]) -> Vec<bool> {
    // A rule is not recursive once all that it names are not.
    let mut recursive = vec![true; rules.len()];
    loop {
        let is_free =
            |&rule: &usize| recursive[rule] && !named(&rules[rule]).any(|it| recursive[it]);
        let free: Vec<usize> = (0..rules.len()).filter(is_free).collect();
        if free.is_empty() {
            return recursive;
        }
        free.into_iter().for_each(|rule| recursive[rule] = false);
    }
}
