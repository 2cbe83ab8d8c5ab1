//! GBNF (llama.cpp's grammars) in the notation of llguidance.
//!
//! GBNF has characters and rules; llguidance reads an answer in lexemes, each as long as it can be, without taking
//! one back. A grammar whose root needs no recursion is one regular expression, and that is exact. In any other,
//! the largest parts without recursion are lexemes, and those whose greed could take what belongs to the next part
//! (`lexemes`) are taken apart, at the worst into single characters. So the answers of the translation are those of
//! the grammar.

mod automaton;
mod characters;
mod flat;
mod lexemes;
mod parse;

use std::collections::BTreeSet;
use std::fmt::Write;

use flat::Flat;
use parse::Expression;

use super::spelling::quoted;

/// What the answer is by, among the rules that are made.
pub(super) const NAME: &str = "gbnf";

/// Rules of llguidance for a grammar.
///
/// # Errors
/// What is wrong with the grammar, with the number of the line where there is one.
pub(super) fn translated(text: &str) -> Result<String, String> {
    let grammar = Flat::of(parse::parse(text)?)?;
    let split = lexemes::split(&grammar)?;
    let mut out = String::new();
    let _ = writeln!(out, "{NAME}: {}", name(grammar.root, &grammar, &split));
    for number in grammar.reached() {
        let rule = &grammar.rules[number];
        if !grammar.recursive[number] {
            let lexeme = |other: usize| format!("G-{other}");
            let _ = writeln!(out, "G-{number}: {}", written(rule, false, &lexeme));
        }
        if grammar.recursive[number] || split.contains(&number) {
            let either = |other: usize| name(other, &grammar, &split);
            let _ = writeln!(out, "g-{number}: {}", written(rule, true, &either));
        }
    }
    Ok(out)
}

/// What a rule is called among rules: a lexeme if it can be one.
fn name(rule: usize, grammar: &Flat, split: &BTreeSet<usize>) -> String {
    let apart = grammar.recursive[rule] || split.contains(&rule);
    format!("{}-{rule}", if apart { "g" } else { "G" })
}

/// An expression; `letters` has each character of a text apart.
fn written(expression: &Expression, letters: bool, name: &dyn Fn(usize) -> String) -> String {
    let each = |parts: &[Expression], between: &str| {
        let parts: Vec<_> = parts.iter().map(|part| written(part, letters, name)).collect();
        format!("({})", parts.join(between))
    };
    match expression {
        Expression::Set(set) => format!("/{}/", set.class()),
        Expression::Text(text) if letters && !text.is_empty() => {
            let each: Vec<_> = text.chars().map(|letter| quoted(&letter.to_string())).collect();
            each.join(" ")
        }
        Expression::Text(text) => quoted(text),
        Expression::Rule(number) => name(*number),
        Expression::Sequence(parts) => each(parts, " "),
        Expression::Choice(parts) => each(parts, " | "),
        Expression::Repeat { of, least, most } => {
            let of = written(of, letters, name);
            match (*least, *most) {
                (0, None) => format!("{of}*"),
                (1, None) => format!("{of}+"),
                (0, Some(1)) => format!("{of}?"),
                (least, None) => format!("{of}{{{least},}}"),
                (least, Some(most)) => format!("{of}{{{least},{most}}}"),
            }
        }
    }
}
