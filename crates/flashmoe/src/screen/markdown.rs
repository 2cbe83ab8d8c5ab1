//! Markdown as a terminal shows it, while it comes: headings and bold text bold, lists with bullets, code coloured,
//! quotations behind a bar.
//!
//! What a marker means may depend on what follows: a star begins bold text only if another one ends it. So text is held
//! from a marker to its end, but no longer than to the end of the line or [`HELD_MAX`] bytes; a marker without its end
//! is text. Whatever pieces a text comes in, the same is shown. Tables and formulas stay as they are.

use super::ends::{End, HELD_MAX, code_end, emphasis_end};
use super::wrap::{Style, Wrap};

/// Characters of a line's indentation that are looked at.
const INDENT_MAX: usize = 40;
/// What a backslash takes its meaning from.
const ESCAPED: &str = "*_`#~.+-";

/// Where in the text the next character is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the beginning of a line, or behind the bar of a quotation.
    Start,
    /// In a line of text.
    Line,
    /// In a line that stays as it is.
    Raw,
    /// At the beginning of a line of code.
    CodeStart,
    /// In a line of code.
    Code,
}

/// Text so far.
#[derive(Debug)]
pub(crate) struct Markdown {
    place: Place,
    /// Of the line, if it is a heading; of what is around, within bold text.
    base: Style,
    /// The character before the next one, in its line.
    before: Option<char>,
    /// The mark that ends the code: its character and its length.
    fence: (char, usize),
    /// Bars of quotations that the line has.
    bars: String,
    held: String,
}

/// What becomes of the held text.
enum Step {
    /// So many bytes are done.
    Done(usize),
    /// It depends on what follows.
    Wait,
}
use Step::{Done, Wait};

impl Default for Markdown {
    fn default() -> Self {
        Self::at(Place::Start, Style::PLAIN)
    }
}

impl Markdown {
    fn at(place: Place, base: Style) -> Self {
        let (fence, bars, held) = (('`', 3), String::new(), String::new());
        Self { place, base, before: None, fence, bars, held }
    }

    /// Takes text and shows what is certain.
    pub(crate) fn push(&mut self, text: &str, out: &mut Wrap) {
        self.held.push_str(text);
        self.run(false, out);
    }

    /// The text is over.
    pub(crate) fn finish(&mut self, out: &mut Wrap) {
        self.run(true, out);
    }

    fn run(&mut self, ended: bool, out: &mut Wrap) {
        let held = std::mem::take(&mut self.held);
        let mut at = 0;
        while at < held.len() {
            let rest = &held[at..];
            let step = match self.place {
                Place::Start => self.start(rest, ended, out),
                Place::Line => self.line(rest, ended, out),
                Place::Raw => self.verbatim(rest, Style::PLAIN, Place::Start, out),
                Place::CodeStart => self.code_start(rest, ended),
                Place::Code => self.verbatim(rest, Style::CODE, Place::CodeStart, out),
            };
            match step {
                Done(bytes) => at += bytes,
                Wait => break,
            }
        }
        self.held.push_str(&held[at..]);
    }

    /// What kind of line begins.
    fn start(&mut self, rest: &str, ended: bool, out: &mut Wrap) -> Step {
        let indent = blanks(rest);
        let body = &rest[indent..];
        if indent > INDENT_MAX {
            return self.plain(indent, out);
        }
        let Some(first) = body.chars().next() else {
            return if ended { self.plain(indent, out) } else { Wait };
        };
        if first == '\n' {
            return self.end_line(indent + 1, out);
        }
        let run = body.len() - body.trim_start_matches(first).len();
        // How the run goes on decides, unless it is too long for any mark.
        let open = run == body.len() && !ended && run <= INDENT_MAX;
        match first {
            '#' if open => Wait,
            '#' if run <= 6 && body[run..].starts_with(' ') => {
                let length = indent + run;
                let Some(blanks) = settled(&rest[length..], ended) else { return Wait };
                self.base = Style::BOLD;
                (self.place, self.before) = (Place::Line, None);
                Done(length + blanks)
            }
            '`' | '~' if open => Wait,
            '`' | '~' if run >= 3 && self.bars.is_empty() => {
                self.fence(rest, indent, (first, run), ended, out)
            }
            '-' | '*' | '_' if open => Wait,
            '-' | '*' | '_' if run >= 3 && is_over(&body[run..], ended) => {
                out.text(Style::DIM, &"─".repeat(24));
                (self.place, self.before) = (Place::Line, None);
                Done(indent + run)
            }
            '-' | '*' | '_'
                if run >= 3 && body[run..].trim_start_matches(' ').is_empty() && !ended =>
            {
                Wait
            }
            '+' if open => Wait,
            '-' | '*' | '+' if run == 1 && body[run..].starts_with(' ') => {
                self.item("•", rest, indent, run, ended, out)
            }
            '0'..='9' => self.number(rest, indent, ended, out),
            '>' if self.bars.len() <= INDENT_MAX => {
                if body.len() == 1 && !ended {
                    return Wait;
                }
                out.text(Style::PLAIN, &rest[..indent]);
                out.text(Style::DIM, "│");
                out.text(Style::PLAIN, " ");
                self.bars.push_str(&rest[..indent]);
                self.bars.push_str("│ ");
                out.set_hang(&self.bars);
                Done(indent + 1 + usize::from(body[1..].starts_with(' ')))
            }
            '|' => {
                out.verbatim(Style::PLAIN, &rest[..indent]);
                self.place = Place::Raw;
                Done(indent)
            }
            _ => self.plain(indent, out),
        }
    }

    /// A point of a numbered list, or a line that begins with a number.
    fn number(&mut self, rest: &str, indent: usize, ended: bool, out: &mut Wrap) -> Step {
        let body = &rest[indent..];
        let digits = body.len() - body.trim_start_matches(|it: char| it.is_ascii_digit()).len();
        let mut behind = body[digits..].chars();
        match (behind.next(), behind.next()) {
            _ if digits > 9 => self.plain(indent, out),
            (None, _) | (Some('.' | ')'), None) if !ended => Wait,
            (Some('.' | ')'), Some(' ')) => {
                self.item(&body[..=digits], rest, indent, digits + 1, ended, out)
            }
            _ => self.plain(indent, out),
        }
    }

    /// A line of text begins behind its indentation.
    fn plain(&mut self, indent: usize, out: &mut Wrap) -> Step {
        let blanks = " ".repeat(indent);
        out.text(Style::PLAIN, &blanks);
        out.set_hang(&format!("{}{blanks}", self.bars));
        (self.place, self.before) = (Place::Line, None);
        Done(indent)
    }

    /// A point of a list: `mark` in the place of the first `length` bytes behind the indentation.
    fn item(
        &mut self,
        mark: &str,
        rest: &str,
        indent: usize,
        length: usize,
        ended: bool,
        out: &mut Wrap,
    ) -> Step {
        let Some(blanks) = settled(&rest[indent + length..], ended) else { return Wait };
        let begin = format!("{}{mark}", " ".repeat(indent));
        out.text(Style::PLAIN, &begin);
        out.text(Style::PLAIN, " ");
        let columns = begin.chars().count() + 1;
        out.set_hang(&format!("{}{}", self.bars, " ".repeat(columns)));
        (self.place, self.before) = (Place::Line, None);
        Done(indent + length + blanks)
    }

    /// Code begins, if the line has nothing but its mark and a language.
    fn fence(
        &mut self,
        rest: &str,
        indent: usize,
        mark: (char, usize),
        ended: bool,
        out: &mut Wrap,
    ) -> Step {
        let end = rest.find('\n').map(|end| end + 1);
        let Some(end) = end.or_else(|| ended.then_some(rest.len())) else {
            return if rest.len() > HELD_MAX { self.plain(indent, out) } else { Wait };
        };
        if end > HELD_MAX || (mark.0 == '`' && rest[indent + mark.1..end].contains('`')) {
            return self.plain(indent, out);
        }
        (self.place, self.fence) = (Place::CodeStart, mark);
        Done(end)
    }

    /// Whether the code ends here.
    fn code_start(&mut self, rest: &str, ended: bool) -> Step {
        let body = rest.trim_start_matches(' ');
        let (mark, length) = self.fence;
        let run = body.len() - body.trim_start_matches(mark).len();
        let behind = body[run..].trim_start_matches(' ');
        let looked = rest.len() - behind.len();
        if behind.is_empty() && !ended && looked <= HELD_MAX {
            return Wait;
        }
        if run >= length && is_over(behind, ended) && looked <= HELD_MAX {
            self.place = Place::Start;
            return Done(looked + usize::from(!behind.is_empty()));
        }
        self.place = Place::Code;
        Done(0)
    }

    /// The rest of a line as it is.
    fn verbatim(&mut self, rest: &str, style: Style, next: Place, out: &mut Wrap) -> Step {
        let end = rest.find('\n').map(|end| end + 1);
        out.verbatim(style, &rest[..end.unwrap_or(rest.len())]);
        if end.is_some() {
            self.place = next;
            self.bars.clear();
            out.set_hang("");
        }
        Done(end.unwrap_or(rest.len()))
    }

    fn end_line(&mut self, bytes: usize, out: &mut Wrap) -> Step {
        out.text(Style::PLAIN, "\n");
        self.bars.clear();
        out.set_hang("");
        (self.place, self.base, self.before) = (Place::Start, Style::PLAIN, None);
        Done(bytes)
    }

    /// The next part of a line of text.
    fn line(&mut self, rest: &str, ended: bool, out: &mut Wrap) -> Step {
        let first = rest.chars().next().unwrap_or('\n');
        match first {
            '\n' => self.end_line(1, out),
            '\\' => match rest.chars().nth(1) {
                None if !ended => Wait,
                Some(next) if ESCAPED.contains(next) => self.show(&rest[1..2], 2, out),
                _ => self.show("\\", 1, out),
            },
            '`' | '*' => {
                let run = rest.len() - rest.trim_start_matches(first).len();
                if run == rest.len() && !ended && run <= HELD_MAX {
                    return Wait;
                }
                let end = match first {
                    '`' => code_end(rest, run, ended),
                    _ => emphasis_end(self.before, rest, run, ended),
                };
                match end {
                    End::At(end) => {
                        let content = &rest[run..end];
                        if first == '`' {
                            out.text(self.base.and(Style::CODE), trimmed(content));
                        } else {
                            let style = self.base.and(Style {
                                italic: run != 2,
                                bold: run != 1,
                                ..Style::PLAIN
                            });
                            let mut inner = Self::at(Place::Line, style);
                            inner.held.push_str(content);
                            inner.finish(out);
                        }
                        self.before = Some(first);
                        Done(end + run)
                    }
                    End::None => self.show(&rest[..run], run, out),
                    End::Unknown => Wait,
                }
            }
            _ => {
                let end = rest.find(['\n', '\\', '`', '*']).unwrap_or(rest.len());
                self.show(&rest[..end], end, out)
            }
        }
    }

    /// Shows text in place of the next bytes.
    fn show(&mut self, text: &str, bytes: usize, out: &mut Wrap) -> Step {
        out.text(self.base, text);
        self.before = text.chars().next_back();
        Done(bytes)
    }
}

/// Blanks that a text begins with, as far as they are looked at.
fn blanks(text: &str) -> usize {
    text.bytes().take(INDENT_MAX + 1).take_while(|&byte| byte == b' ').count()
}

/// The same, once more text cannot make them more.
fn settled(text: &str, ended: bool) -> Option<usize> {
    let blanks = blanks(text);
    (ended || blanks < text.len() || blanks > INDENT_MAX).then_some(blanks)
}

/// Code without the blank on each side that sets it apart from its marks.
fn trimmed(code: &str) -> &str {
    let inner = code.strip_prefix(' ').and_then(|it| it.strip_suffix(' '));
    inner.filter(|it| !it.trim().is_empty()).unwrap_or(code)
}

/// Whether the line ends here but for blanks.
fn is_over(rest: &str, ended: bool) -> bool {
    let rest = rest.trim_start_matches(' ');
    rest.starts_with('\n') || (ended && rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text becomes in pieces, in columns or without wrapping.
    fn shown<'a>(pieces: impl IntoIterator<Item = &'a str>, width: Option<usize>) -> String {
        let (mut markdown, mut wrap) = (Markdown::default(), Wrap::new(width, true));
        let mut out = String::new();
        for piece in pieces {
            markdown.push(piece, &mut wrap);
            out.push_str(&wrap.take());
        }
        markdown.finish(&mut wrap);
        out + &wrap.finish()
    }

    fn plain(text: &str) -> String {
        shown([text], None)
            .replace("\x1b[0m", "/")
            .replace("\x1b[1m", "b")
            .replace("\x1b[3m", "i")
            .replace("\x1b[36m", "c")
            .replace("\x1b[2m", "d")
    }

    #[test]
    fn marks_become_styles() {
        for (text, expected) in [
            ("A **bold** word", "A bbold/ word"),
            ("*it* and", "iit/ and"),
            ("***both***", "biboth/"),
            ("**a *b* c**", "ba/ bib/ bc/"),
            ("**a *b***", "ba/ bib/"),
            ("**Use `f(x)` now**", "bUse/ bcf(x)/ bnow/"),
            ("call `a*b*c` ", "call ca*b*c/"),
            ("`` a`b ``", "ca`b/"),
            ("# Head *it*\nText", "bHead/ biit/\nText"),
            ("##\tno", "##    no"),
            ("- one\n  * two\n+ three\n12. four", "• one\n  • two\n• three\n12. four"),
            ("> said\n> **so**", "d│/ said\nd│/ bso/"),
            ("a\n---\nb", "a\nd────────────────────────/\nb"),
            ("```rust\nlet *a = `b`;\n\n  # no\n```\nout", "clet *a = `b`;\n\n  # no\n/out"),
            ("~~~\n```\n~~~~\nout", "c```\n/out"),
            ("```\nopen", "copen/"),
            ("| a | **b** |\n|---|---|", "| a | **b** |\n|---|---|"),
            ("中文**粗体**中文", "中文b粗体/中文"),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
    }

    #[test]
    fn what_marks_nothing_is_text() {
        let long = format!("**{}**", "long ".repeat(100));
        for text in [
            "2 * 3 * 4",
            "2**3**4 and a*b*c",
            "pass **kwargs or *args",
            "snake_case_name and __init__",
            "an `open mark",
            "5 ** 2",
            "#hashtag",
            "-5 and -x",
            "1.5 or 1)x",
            "``` inline `` code? no",
            "\\( x \\)",
            "* ",
            long.trim_end(),
        ] {
            let found = plain(text);
            let expected = if text == "* " { "• " } else { text };
            assert_eq!(found.trim_end(), expected.trim_end(), "{text}");
        }
        assert_eq!(plain("\\*no\\* \\# \\_"), "*no* # _");
    }

    const EVERYTHING: &str = "# Title with `code`\n\nSome **bold text**, *italic*, ***both*** and `code` in a rather \
        long line that goes on.\n\n- one **two**\n  - three `x**y`\n10. ten\n\n> quoted **so** and more words here\n\n\
        ```python\ndef f(*a, **k):\n    return \"\"\"`x`\"\"\"\n```\n\n| a | b |\n|--|--|\n***\n\
        5*3, 2**8, **open and `open\n\
        中文**粗体**字\\*。`";

    #[test]
    fn the_pieces_of_a_text_do_not_matter() {
        for width in [None, Some(20), Some(80)] {
            let whole = shown([EVERYTHING], width);
            for (at, _) in EVERYTHING.char_indices() {
                let (first, second) = EVERYTHING.split_at(at);
                assert_eq!(shown([first, second], width), whole, "cut at {at}");
            }
            for size in 1..9 {
                let characters: Vec<char> = EVERYTHING.chars().collect();
                let pieces: Vec<String> =
                    characters.chunks(size).map(|it| it.iter().collect()).collect();
                assert_eq!(shown(pieces.iter().map(String::as_str), width), whole, "{size} each");
            }
        }
    }

    #[test]
    fn the_pieces_of_short_texts_do_not_matter_either() {
        const LETTERS: [char; 8] = ['*', '`', 'a', ' ', '\n', '#', '-', '1'];
        for length in 1..=5u32 {
            for number in 0..LETTERS.len().pow(length) {
                let text: String =
                    (0..length).map(|place| LETTERS[number >> (3 * place) & 7]).collect();
                let whole = shown([text.as_str()], None);
                let singly = shown(text.split_inclusive(|_: char| true), None);
                assert_eq!(singly, whole, "{text:?}");
                let doubled = text.repeat(3);
                let whole = shown([doubled.as_str()], Some(7));
                assert_eq!(
                    shown(
                        [&doubled[..3], &doubled[3..]].into_iter().filter(|it| !it.is_empty()),
                        Some(7)
                    ),
                    whole,
                    "{doubled:?}"
                )
            }
        }
    }
}
