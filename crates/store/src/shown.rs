//! Text from outside in messages: cut to a length and escaped, so that a message stays one short line.
//!
//! Configuration files, tokenizers, templates and requests come from strangers. A message that repeats a value
//! of theirs must neither be as long as the value nor bring line breaks, escape sequences of a terminal or marks that
//! turn the direction of writing. Every crate builds its messages with the functions of this module.

use std::fmt::{self, Display, Write};
use std::path::Path;

/// Characters of a value that a message repeats.
pub const VALUE_CHARACTERS: usize = 100;
/// Characters of a whole message whose words are somebody else's: a parser's, a template's, a system's.
pub const MESSAGE_CHARACTERS: usize = 400;
/// Characters of a line that is put together of several messages.
pub const LINE_CHARACTERS: usize = 4000;

/// A value in a message, as it is but for its length and what must not reach a terminal; by [`shown`] and its
/// like.
#[derive(Clone, Copy, Debug)]
pub struct Shown<T> {
    value: T,
    characters: usize,
    quotes: bool,
}

/// A value without quotes: a number, JSON, a path of fields. At most [`VALUE_CHARACTERS`] of it.
pub fn shown<T: Display>(value: T) -> Shown<T> {
    Shown { value, characters: VALUE_CHARACTERS, quotes: false }
}

/// A text in quotes, those inside it escaped. At most [`VALUE_CHARACTERS`] of it.
pub fn quoted<T: Display>(text: T) -> Shown<T> {
    Shown { value: text, characters: VALUE_CHARACTERS, quotes: true }
}

/// A message in the words of somebody else, on one line. At most [`MESSAGE_CHARACTERS`] of it.
pub fn message<T: Display>(text: T) -> Shown<T> {
    Shown { value: text, characters: MESSAGE_CHARACTERS, quotes: false }
}

/// A whole line of a log or of a terminal. At most [`LINE_CHARACTERS`] of it.
pub fn line<T: Display>(text: T) -> Shown<T> {
    Shown { value: text, characters: LINE_CHARACTERS, quotes: false }
}

/// A path, whole, on one line.
pub fn path(path: &Path) -> Shown<std::path::Display<'_>> {
    Shown { value: path.display(), characters: usize::MAX, quotes: false }
}

/// A text for a terminal, whole and on as many lines as it has: what is no character, tab or end of a line is escaped.
/// What a model writes is somebody else's words, and must not set a title, a clipboard or colours.
pub fn for_terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            other if is_unprintable(other) => out.extend(other.escape_default()),
            other => out.push(other),
        }
    }
    out
}

/// JSON on one line whose strings have no character that must not reach a terminal: each is written as its number.
pub fn json(value: &impl Display) -> String {
    let text = value.to_string();
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unprintable(character) {
            // As JSON writes them: characters beyond 16 bits in two halves.
            let mut halves = [0; 2];
            for half in character.encode_utf16(&mut halves) {
                out.push_str(&format!("\\u{half:04x}"));
            }
        } else {
            out.push(character);
        }
    }
    out
}

/// Whether a text has characters that must not reach a terminal.
pub fn is_printable(text: &str) -> bool {
    !text.chars().any(is_unprintable)
}

impl<T: Display> Display for Shown<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotes = self.quotes;
        if quotes {
            formatter.write_char('"')?;
        }
        let mut cut = Cut { out: formatter, quotes, left: self.characters, over: false, bytes: 0 };
        write!(cut, "{}", self.value)?;
        let (over, bytes) = (cut.over, cut.bytes);
        if over {
            formatter.write_str("...")?;
        }
        if quotes {
            formatter.write_char('"')?;
        }
        if over { write!(formatter, " ({bytes} bytes)") } else { Ok(()) }
    }
}

/// Passes on the first characters, escaped, and counts the bytes of all.
struct Cut<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    quotes: bool,
    left: usize,
    over: bool,
    bytes: u64,
}

impl Write for Cut<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes += text.len() as u64;
        for character in text.chars() {
            if self.left == 0 {
                self.over = true;
                return Ok(());
            }
            self.left -= 1;
            if is_unprintable(character) || (self.quotes && matches!(character, '"' | '\\')) {
                write!(self.out, "{}", character.escape_default())?;
            } else {
                self.out.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// Control characters, line and paragraph separators, marks of direction, and characters without a shape.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_short_and_on_one_line() {
        assert_eq!(quoted("plain ünïcode").to_string(), "\"plain ünïcode\"");
        assert_eq!(quoted("a\"b\\").to_string(), r#""a\"b\\""#);
        assert_eq!(shown("a\"b\\").to_string(), "a\"b\\");
        assert_eq!(
            shown("a\nb\u{1b}[31m\u{9b}\u{202e}").to_string(),
            r"a\nb\u{1b}[31m\u{9b}\u{202e}"
        );
        assert_eq!(path(Path::new("a\nb")).to_string(), r"a\nb");
        let exact = "é".repeat(VALUE_CHARACTERS);
        assert_eq!(shown(&exact).to_string(), exact);
        let long = "é".repeat(50_000);
        assert_eq!(shown(&long).to_string(), format!("{exact}... (100000 bytes)"));
        assert_eq!(quoted(&long).to_string(), format!("\"{exact}...\" (100000 bytes)"));
        assert!(message("\u{1b}".repeat(1 << 20)).to_string().len() < 10 * MESSAGE_CHARACTERS);
    }

    #[test]
    fn an_answer_cannot_command_a_terminal() {
        let hostile = "a\tb\nc\u{1b}]52;c;aGk=\u{7}\u{9b}31m\u{202e}\u{61c}\r\u{7f}é";
        let shown = for_terminal(hostile);
        let escaped = r"\u{1b}]52;c;aGk=\u{7}\u{9b}31m\u{202e}\u{61c}\r\u{7f}";
        assert_eq!(shown, format!("a\tb\nc{escaped}é"));
        assert!(!is_printable(hostile) && is_printable("é"));
        let value = serde_json::json!({ "name": "x\u{202e}\u{e0001}\u{9b}\u{1b}" });
        let written = json(&value);
        assert!(is_printable(&written), "{written}");
        let read: serde_json::Value = serde_json::from_str(&written).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn a_value_written_in_pieces_is_cut_as_one() {
        let list: Vec<u32> = (0..10_000).collect();
        let text = format!("{list:?}");
        let cut: String = text.chars().take(VALUE_CHARACTERS).collect();
        let expected = format!("{cut}... ({} bytes)", text.len());
        assert_eq!(shown(format_args!("{list:?}")).to_string(), expected);
    }
}
