//! Which parts of a grammar cannot be lexemes, because a lexer that takes as much as it can would take too much.
//!
//! Of two lexemes A and B, A is at fault where it can go on behind a text that is all of B, with a character that may
//! follow B: the lexer goes on with A and cannot come back. That two lexemes are never possible at the same place is
//! not looked into, so more are taken apart than need be.

use std::collections::BTreeSet;

use super::automaton::Automaton;
use super::characters::Characters;
use super::flat::Flat;
use super::parse::Expression;

/// Steps of the comparison, about a second of work.
const WORK_MAX: usize = 20_000_000;

/// A lexeme, with what may come behind it.
struct Lexeme {
    /// Its rule; a single character has none, and cannot be taken apart.
    rule: Option<usize>,
    expression: Expression,
    automaton: Automaton,
    first: Characters,
    follow: Characters,
}

/// Rules without recursion that must not be lexemes.
///
/// # Errors
/// A grammar that is too large to be looked at.
pub(super) fn split(grammar: &Flat) -> Result<BTreeSet<usize>, String> {
    let mut split = BTreeSet::new();
    if !grammar.recursive[grammar.root] {
        return Ok(split);
    }
    let mut work = 0;
    loop {
        let (mut lexemes, large) = lexemes(grammar, &split);
        if large.is_empty() {
            follow(grammar, &split, &mut lexemes);
            let before = split.len();
            for one in &lexemes {
                let Some(rule) = one.rule else { continue };
                let mut at_fault = false;
                for other in &lexemes {
                    at_fault |= !at_fault && goes_on(one, other, &mut work);
                }
                if at_fault {
                    split.insert(rule);
                }
            }
            if split.len() == before {
                return Ok(split);
            }
        }
        split.extend(large);
        if work > WORK_MAX {
            return Err("has too many parts that can begin and go on alike".to_owned());
        }
    }
}

/// The operands of a rule.
fn operands(rule: &Expression) -> Vec<Expression> {
    match rule {
        Expression::Sequence(parts) | Expression::Choice(parts) => parts.clone(),
        Expression::Repeat { of, .. } => vec![(**of).clone()],
        Expression::Text(text) => text.chars().map(|it| Expression::Text(it.to_string())).collect(),
        other => vec![other.clone()],
    }
}

/// Whether an operand is a rule and no lexeme.
fn apart(operand: &Expression, grammar: &Flat, split: &BTreeSet<usize>) -> Option<usize> {
    match operand {
        Expression::Rule(rule) if grammar.recursive[*rule] || split.contains(rule) => Some(*rule),
        _ => None,
    }
}

/// Rules that are no lexemes and that an answer can use.
fn rules(grammar: &Flat, split: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut found = BTreeSet::from([grammar.root]);
    let mut waiting = vec![grammar.root];
    while let Some(rule) = waiting.pop() {
        for operand in operands(&grammar.rules[rule]) {
            waiting.extend(apart(&operand, grammar, split).filter(|&rule| found.insert(rule)));
        }
    }
    found
}

/// The lexemes, and rules that are too large to be one.
fn lexemes(grammar: &Flat, split: &BTreeSet<usize>) -> (Vec<Lexeme>, Vec<usize>) {
    let (mut found, mut large): (Vec<Lexeme>, Vec<usize>) = (Vec::new(), Vec::new());
    for rule in rules(grammar, split) {
        for expression in operands(&grammar.rules[rule]) {
            let known = found.iter().any(|lexeme| lexeme.expression == expression);
            if known || apart(&expression, grammar, split).is_some() {
                continue;
            }
            let rule = match expression {
                Expression::Rule(rule) => Some(rule),
                _ => None,
            };
            let Some(automaton) = Automaton::of(&expression, grammar) else {
                large.extend(rule);
                continue;
            };
            let mut first = Characters::default();
            automaton.first.iter().for_each(|&at| _ = first.add(&automaton.sets[at]));
            let follow = Characters::default();
            found.push(Lexeme { rule, expression, automaton, first, follow });
        }
    }
    (found, large)
}

/// What a rule may begin with, and whether it may be empty.
type First = (Characters, bool);

/// What an operand begins with, as far as it is known.
fn begins(
    operand: &Expression,
    grammar: &Flat,
    split: &BTreeSet<usize>,
    first: &[First],
    lexemes: &[Lexeme],
) -> First {
    match apart(operand, grammar, split) {
        Some(rule) => first[rule].clone(),
        None => lexemes
            .iter()
            .find(|lexeme| lexeme.expression == *operand)
            .map(|lexeme| (lexeme.first.clone(), lexeme.automaton.nullable))
            .unwrap_or_default(),
    }
}

/// The usual sets `first` of the rules above lexemes, by rule: added to until nothing changes.
fn first(
    grammar: &Flat,
    split: &BTreeSet<usize>,
    rules: &BTreeSet<usize>,
    lexemes: &[Lexeme],
) -> Vec<First> {
    let mut first = vec![First::default(); grammar.rules.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for &rule in rules {
            let expression = &grammar.rules[rule];
            let (mut set, mut nullable) = First::default();
            match expression {
                Expression::Choice(_) => {
                    for operand in operands(expression) {
                        let (begin, empty) = begins(&operand, grammar, split, &first, lexemes);
                        set.add(&begin);
                        nullable |= empty;
                    }
                }
                _ => {
                    nullable = true;
                    for operand in operands(expression) {
                        let (begin, empty) = begins(&operand, grammar, split, &first, lexemes);
                        if nullable {
                            set.add(&begin);
                        }
                        nullable &= empty;
                    }
                    nullable |= matches!(expression, Expression::Repeat { least: 0, .. });
                }
            }
            changed |= first[rule].0.add(&set) || first[rule].1 != nullable;
            first[rule].1 = nullable;
        }
    }
    first
}

/// Finds what may come behind each lexeme: the usual sets `follow`, added to until nothing changes.
fn follow(grammar: &Flat, split: &BTreeSet<usize>, lexemes: &mut [Lexeme]) {
    let rules = rules(grammar, split);
    let first = first(grammar, split, &rules, lexemes);
    let mut behind = vec![Characters::default(); grammar.rules.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for &rule in &rules {
            let expression = &grammar.rules[rule];
            let mut after = behind[rule].clone();
            let repeats = matches!(expression, Expression::Repeat { most, .. } if *most != Some(1));
            if repeats {
                after.add(&first[rule].0);
            }
            for operand in operands(expression).iter().rev() {
                if let Some(rule) = apart(operand, grammar, split) {
                    changed |= behind[rule].add(&after);
                } else if let Some(lexeme) =
                    lexemes.iter_mut().find(|lexeme| lexeme.expression == *operand)
                {
                    changed |= lexeme.follow.add(&after);
                }
                if !matches!(expression, Expression::Choice(_)) {
                    let (begin, nullable) = begins(operand, grammar, split, &first, lexemes);
                    if !nullable {
                        after = Characters::default();
                    }
                    after.add(&begin);
                }
            }
        }
    }
}

/// Whether `one` can go on behind a text that is all of `other`, with what may follow `other`.
fn goes_on(one: &Lexeme, other: &Lexeme, work: &mut usize) -> bool {
    *work += 1;
    if !one.first.meets(&other.first) {
        return false;
    }
    let (a, b) = (&one.automaton, &other.automaton);
    let meet = |p: usize, q: usize| a.sets[p].meets(&b.sets[q]);
    let mut seen = BTreeSet::new();
    let mut waiting: Vec<(usize, usize)> = Vec::new();
    let pairs = |from: &[usize], to: &[usize], waiting: &mut Vec<(usize, usize)>| {
        for &p in from {
            waiting.extend(to.iter().filter(|&&q| meet(p, q)).map(|&q| (p, q)));
        }
    };
    pairs(&a.first, &b.first, &mut waiting);
    while let Some((p, q)) = waiting.pop() {
        if *work > WORK_MAX {
            return false;
        }
        if !seen.insert((p, q)) {
            continue;
        }
        *work += 1 + a.follow[p].len() * b.follow[q].len();
        if b.last[q] && a.follow[p].iter().any(|&next| a.sets[next].meets(&other.follow)) {
            return true;
        }
        pairs(&a.follow[p], &b.follow[q], &mut waiting);
    }
    false
}
