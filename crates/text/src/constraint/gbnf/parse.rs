//! Reads GBNF, the notation of llama.cpp's grammars, into expressions.
//!
//! By llama.cpp's `grammars/README.md`: `name ::= alternatives`, one rule after another; literals in quotes, classes
//! in brackets, `.` for any character, names of rules, parentheses, and `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}` behind
//! an element. A rule ends with its line, except within parentheses and behind `|` and `::=`. `#` begins a comment.
//! The answer is what the rule `root` describes. Elements that name tokens of a vocabulary are refused.

use std::collections::HashMap;

use store::shown::quoted;

use super::characters::Characters;

/// Longest text of a grammar.
const BYTES_MAX: usize = 64 << 10;
/// Deepest nesting of parentheses.
const DEPTH_MAX: usize = 64;
/// Largest number of repetitions, as in llama.cpp.
const REPETITIONS_MAX: u32 = 2000;
/// Symbols of one rule with its repetitions written out.
const RULE_MAX: usize = 50_000;

/// A part of a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    /// One character of a set.
    Set(Characters),
    /// A text; empty for nothing.
    Text(String),
    /// What a rule describes, by its number.
    Rule(usize),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    /// From `least` to `most` times; `None` for any number.
    Repeat {
        of: Box<Expression>,
        least: u32,
        most: Option<u32>,
    },
}

/// A grammar as it was read.
#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) rules: Vec<Expression>,
    pub(super) root: usize,
}

/// Reads a grammar.
///
/// # Errors
/// What is wrong, with the number of the line.
pub(super) fn parse(text: &str) -> Result<Grammar, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("has {} bytes, more than {BYTES_MAX}", text.len()));
    }
    let mut reader = Reader {
        text,
        at: 0,
        depth: 0,
        numbers: HashMap::new(),
        names: Vec::new(),
        rules: Vec::new(),
    };
    reader.grammar().map_err(|problem| {
        let line = 1 + text[..reader.at].matches('\n').count();
        format!("line {line}: {problem}")
    })?;
    let Some(&root) = reader.numbers.get("root") else { return Err("has no rule root".to_owned()) };
    let mut rules = Vec::with_capacity(reader.rules.len());
    for (rule, name) in reader.rules.into_iter().zip(&reader.names) {
        rules.push(rule.ok_or_else(|| format!("there is no rule {}", quoted(name)))?);
    }
    Ok(Grammar { rules, root })
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    numbers: HashMap<String, usize>,
    names: Vec<String>,
    rules: Vec<Option<Expression>>,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn takes(&mut self, text: &str) -> bool {
        let is = self.rest().starts_with(text);
        self.at += if is { text.len() } else { 0 };
        is
    }

    /// Passes blanks and comments, and line breaks where they mean nothing.
    fn space(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                _ => return,
            }
        }
    }

    fn grammar(&mut self) -> Result<(), String> {
        self.space(true);
        while self.peek().is_some() {
            let name = self.name().ok_or_else(|| self.unexpected("the name of a rule"))?;
            self.space(false);
            if !self.takes("::=") {
                return Err(self.unexpected("::="));
            }
            self.space(true);
            let rule = self.choice()?;
            if size(&rule) > RULE_MAX {
                return Err(format!(
                    "a rule has more than {RULE_MAX} symbols with its repetitions"
                ));
            }
            let number = self.number(&name);
            if self.rules[number].replace(rule).is_some() {
                return Err(format!("the rule {} is there already", quoted(&name)));
            }
            if self.peek().is_some_and(|next| !matches!(next, '\r' | '\n')) {
                return Err(self.unexpected("the end of the rule"));
            }
            self.space(true);
        }
        Ok(())
    }

    fn unexpected(&self, wanted: &str) -> String {
        match self.peek() {
            Some(next) => format!("{} where {wanted} was expected", quoted(next.to_string())),
            None => format!("the end of the grammar where {wanted} was expected"),
        }
    }

    fn name(&mut self) -> Option<String> {
        let word = |next: char| next.is_ascii_alphanumeric() || matches!(next, '-' | '_');
        let length = self.rest().find(|next| !word(next)).unwrap_or(self.rest().len());
        let name = self.rest()[..length].to_owned();
        self.at += length;
        (!name.is_empty()).then_some(name)
    }

    fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.rules.len();
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        self.rules.push(None);
        number
    }

    fn choice(&mut self) -> Result<Expression, String> {
        let mut ways = vec![self.sequence()?];
        while self.takes("|") {
            self.space(true);
            ways.push(self.sequence()?);
        }
        Ok(if ways.len() == 1 { ways.remove(0) } else { Expression::Choice(ways) })
    }

    fn sequence(&mut self) -> Result<Expression, String> {
        let mut parts: Vec<Expression> = Vec::new();
        loop {
            let part = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Expression::Set(Characters::default().complement())
                }
                Some('(') => {
                    self.at += 1;
                    self.depth += 1;
                    if self.depth > DEPTH_MAX {
                        return Err(format!("more than {DEPTH_MAX} parentheses within each other"));
                    }
                    self.space(true);
                    let inner = self.choice()?;
                    if !self.takes(")") {
                        return Err(self.unexpected(")"));
                    }
                    self.depth -= 1;
                    inner
                }
                Some('<' | '!') => {
                    return Err("tokens (<...>) are not supported; write their text".to_owned());
                }
                Some(next) if next.is_ascii_alphanumeric() || matches!(next, '-' | '_') => {
                    let name = self.name().unwrap_or_default();
                    Expression::Rule(self.number(&name))
                }
                Some('*' | '+' | '?' | '{') => {
                    let Some(part) = parts.pop() else {
                        return Err(self.unexpected("an element before it"));
                    };
                    self.repeat(part)?
                }
                _ => break,
            };
            parts.push(part);
            self.space(self.depth > 0);
        }
        Ok(match parts.len() {
            0 => Expression::Text(String::new()),
            1 => parts.remove(0),
            _ => Expression::Sequence(parts),
        })
    }

    fn repeat(&mut self, of: Expression) -> Result<Expression, String> {
        let (least, most) = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => {
                self.space(false);
                let least = self.count()?;
                self.space(false);
                let most = if self.takes(",") {
                    self.space(false);
                    if self.peek() == Some('}') { None } else { Some(self.count()?) }
                } else {
                    Some(least)
                };
                self.space(false);
                if !self.takes("}") {
                    return Err(self.unexpected("}"));
                }
                (least, most)
            }
        };
        if most.is_some_and(|most| most < least) {
            return Err(format!("a repetition of at least {least} and fewer at most"));
        }
        if most == Some(0) {
            return Ok(Expression::Text(String::new()));
        }
        Ok(Expression::Repeat { of: Box::new(of), least, most })
    }

    fn count(&mut self) -> Result<u32, String> {
        let rest = self.rest();
        let length = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
        let count = rest[..length].parse::<u32>();
        let count = count.map_err(|_| self.unexpected("a number of repetitions"))?;
        if count > REPETITIONS_MAX {
            return Err(format!("{count} repetitions are more than {REPETITIONS_MAX}"));
        }
        self.at += length;
        Ok(count)
    }

    fn literal(&mut self) -> Result<Expression, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => break,
                Some(_) => text.push(self.character()?),
                None => return Err(self.unexpected("a quote")),
            }
        }
        self.at += 1;
        Ok(Expression::Text(text))
    }

    fn class(&mut self) -> Result<Expression, String> {
        self.at += 1;
        let turned = self.takes("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(']') => break,
                Some(_) => {}
                None => return Err(self.unexpected("]")),
            }
            let first = self.character()?;
            // A hyphen before the end is one of the characters.
            let last = if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err("a range of characters that ends before it begins".to_owned());
            }
            ranges.push((first, last));
        }
        self.at += 1;
        let set = Characters::of(ranges);
        let set = if turned { set.complement() } else { set };
        if set.is_empty() {
            return Err("a class without a character".to_owned());
        }
        Ok(Expression::Set(set))
    }

    /// A character of a literal or a class, with its escapes.
    fn character(&mut self) -> Result<char, String> {
        let next = self.next().ok_or_else(|| self.unexpected("a character"))?;
        if next != '\\' {
            return Ok(next);
        }
        let escape = self.next().ok_or_else(|| self.unexpected("a character"))?;
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            'n' => return Ok('\n'),
            '\\' | '"' | '[' | ']' => return Ok(escape),
            other => {
                return Err(format!("the escape {} is not known", quoted(format!("\\{other}"))));
            }
        };
        let found = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let found = found.and_then(char::from_u32);
        let found =
            found.ok_or_else(|| format!("\\{escape} needs {digits} digits of a character"))?;
        self.at += digits;
        Ok(found)
    }
}

/// Symbols with repetitions written out.
fn size(expression: &Expression) -> usize {
    match expression {
        Expression::Set(_) | Expression::Rule(_) => 1,
        Expression::Text(text) => text.len().max(1),
        Expression::Sequence(parts) | Expression::Choice(parts) => {
            parts.iter().fold(0, |sum, part| sum.saturating_add(size(part)))
        }
        Expression::Repeat { of, least, most } => {
            size(of).saturating_mul(most.unwrap_or(*least).max(1) as usize)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn lines_comments_and_escapes_are_read() {
        let text = "# all\nroot ::= (\n  \"a\\n\\x41\\u00e9\" | # one\n  [^\\]a-c-]{2,3} b )+\n\n\
                    b ::= |\n  \"x\"? .\r\n";
        let grammar = parse(text).unwrap();
        assert_eq!(grammar.rules.len(), 2);
        let Expression::Repeat { of, least: 1, most: None } = &grammar.rules[grammar.root] else {
            panic!("{grammar:?}")
        };
        let Expression::Choice(ways) = &**of else { panic!("{of:?}") };
        assert_eq!(ways[0], Expression::Text("a\nA\u{e9}".to_owned()));
        let Expression::Choice(ways) = &grammar.rules[1 - grammar.root] else {
            panic!("{grammar:?}")
        };
        assert_eq!(ways[0], Expression::Text(String::new()));
    }

    #[test]
    fn mistakes_name_their_line() {
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(70), ")".repeat(70));
        for (text, words) in [
            ("", "no rule root"),
            ("a ::= \"x\"", "no rule root"),
            ("root ::= b", "there is no rule \"b\""),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule \"root\" is there already"),
            ("root = \"a\"", "line 1"),
            ("root ::= \"a", "line 1: the end of the grammar where a quote"),
            ("root ::= \"a\"\n  )", "line 2"),
            ("root ::= *", "an element before it"),
            ("root ::= \"a\"{3,2}", "at least 3"),
            ("root ::= \"a\"{9999}", "more than 2000"),
            ("root ::= ((\"a\"{1000}){1000})", "symbols"),
            ("root ::= [z-a]", "ends before"),
            ("root ::= []", "without a character"),
            ("root ::= \"\\q\"", "escape"),
            ("root ::= \"\\ud800\"", "needs 4 digits"),
            ("root ::= <[42]>", "tokens"),
            (&deep, "parentheses"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
        }
        assert!(parse(&"#".repeat(BYTES_MAX + 1)).is_err());
    }
}
