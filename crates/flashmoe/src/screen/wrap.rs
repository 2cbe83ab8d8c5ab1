//! Lines that end between words: text for a terminal of some width, as it comes.
//!
//! A word is held until it is over, and goes to the next line where it has no room. Between characters of two columns a
//! line may end anywhere, as it may in Chinese and Japanese. Without a width no line is broken and no word is held.

use unicode_width::UnicodeWidthChar;

/// Columns of a tabulator.
const TAB: usize = 4;

/// How text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) bold: bool,
    pub(crate) italic: bool,
    pub(crate) dim: bool,
    pub(crate) code: bool,
}

impl Style {
    pub(crate) const PLAIN: Self = Self { bold: false, italic: false, dim: false, code: false };
    pub(crate) const DIM: Self = Self { dim: true, ..Self::PLAIN };
    pub(crate) const BOLD: Self = Self { bold: true, ..Self::PLAIN };
    pub(crate) const CODE: Self = Self { code: true, ..Self::PLAIN };

    /// What is on in both and in either.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            bold: self.bold | other.bold,
            italic: self.italic | other.italic,
            dim: self.dim | other.dim,
            code: self.code | other.code,
        }
    }

    /// The escape sequences that begin it (ECMA-48, SGR).
    fn begin(self, out: &mut String) {
        for (on, code) in [(self.bold, 1), (self.dim, 2), (self.italic, 3), (self.code, 36)] {
            if on {
                out.push_str(&format!("\x1b[{code}m"));
            }
        }
    }
}

/// Text on its way to a terminal.
#[derive(Debug, Default)]
pub(crate) struct Wrap {
    width: Option<usize>,
    /// Styles are written.
    styled: bool,
    /// What can be written.
    out: String,
    /// The style that the terminal has after `out`.
    current: Style,
    column: usize,
    /// Written at the beginning of a line that goes on from the one before.
    hang: String,
    /// The line has something beside that.
    begun: bool,
    /// Blanks between what is written and the word.
    blanks: usize,
    word: Vec<(Style, char)>,
    word_columns: usize,
}

impl Wrap {
    pub(crate) fn new(width: Option<usize>, styled: bool) -> Self {
        Self { width, styled, ..Self::default() }
    }

    /// The terminal has another width from now on.
    pub(crate) fn set_width(&mut self, width: Option<usize>) {
        self.width = width;
    }

    /// Lines that go on begin with this.
    pub(crate) fn set_hang(&mut self, hang: &str) {
        self.hang.clear();
        self.hang.push_str(hang);
    }

    /// Takes text whose lines may end between words.
    pub(crate) fn text(&mut self, style: Style, text: &str) {
        for character in text.chars() {
            match character {
                '\n' => self.line_end(style),
                ' ' => {
                    self.end_word();
                    self.blanks += 1;
                }
                '\t' => {
                    self.end_word();
                    self.blanks += TAB;
                }
                other => self.character(style, other),
            }
        }
        if self.width.is_none() {
            self.end_word();
        }
    }

    /// Takes text whose lines stay as they are.
    pub(crate) fn verbatim(&mut self, style: Style, text: &str) {
        self.end_word();
        self.write_blanks();
        for line in text.split_inclusive('\n') {
            let (line, ends) = line.strip_suffix('\n').map_or((line, false), |line| (line, true));
            if !line.is_empty() {
                self.set_style(style);
                self.out.push_str(line);
                self.begun = true;
            }
            if ends {
                self.line_end(style);
            }
        }
    }

    /// What can be written by now.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// The text is over: nothing is held, and the terminal has its own style again.
    pub(crate) fn finish(&mut self) -> String {
        self.end_word();
        self.set_style(Style::PLAIN);
        self.take()
    }

    fn line_end(&mut self, style: Style) {
        self.end_word();
        self.blanks = 0;
        self.set_style(style);
        self.out.push('\n');
        (self.column, self.begun) = (0, false);
    }

    fn character(&mut self, style: Style, character: char) {
        let columns = character.width().unwrap_or(0);
        if let Some(&(_, last)) = self.word.last()
            && columns > 0
            && (columns > 1 || last.width() == Some(2))
            && !closes(character)
            && !opens(last)
        {
            self.end_word();
        }
        // A word that no line holds is broken where the line ends.
        let room = self.width.map(|width| width.saturating_sub(columns_of(&self.hang)).max(1));
        if room.is_some_and(|room| self.word_columns + columns > room) {
            self.end_word();
        }
        self.word.push((style, character));
        self.word_columns += columns;
    }

    /// Writes the word, on the next line if this one has no room.
    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let needed = self.column + self.blanks + self.word_columns;
        if self.begun && self.width.is_some_and(|width| needed > width) {
            self.blanks = 0;
            self.out.push('\n');
            self.set_style(Style::PLAIN);
            self.out.push_str(&self.hang);
            self.column = columns_of(&self.hang);
        }
        self.write_blanks();
        for (style, character) in std::mem::take(&mut self.word) {
            self.set_style(style);
            self.out.push(character);
        }
        self.column += std::mem::take(&mut self.word_columns);
        self.begun = true;
    }

    fn write_blanks(&mut self) {
        let blanks = std::mem::take(&mut self.blanks);
        let next = self.word.first().map_or(Style::PLAIN, |&(style, _)| style);
        if blanks > 0 && next != self.current {
            self.set_style(Style::PLAIN);
        }
        self.out.extend(std::iter::repeat_n(' ', blanks));
        self.column += blanks;
    }

    fn set_style(&mut self, style: Style) {
        if !self.styled || style == self.current {
            return;
        }
        if self.current != Style::PLAIN {
            self.out.push_str("\x1b[0m");
        }
        style.begin(&mut self.out);
        self.current = style;
    }
}

/// A line of our own for a terminal of this width; what goes on begins below column `hang`.
pub(crate) fn wrapped(line: &str, width: Option<usize>, hang: usize) -> String {
    let mut wrap = Wrap::new(width, false);
    wrap.set_hang(&" ".repeat(hang));
    wrap.text(Style::PLAIN, line);
    wrap.finish()
}

fn columns_of(text: &str) -> usize {
    text.chars().map(|character| character.width().unwrap_or(0)).sum()
}

/// Punctuation that no line begins with.
fn closes(character: char) -> bool {
    ",.;:!?)]}、。，．；：！？」』）】》〉…ー".contains(character)
}

/// Punctuation that no line ends with.
fn opens(character: char) -> bool {
    "([{「『（【《〈".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text becomes in pieces of `size` characters.
    fn pieces(text: &str, width: usize, size: usize) -> String {
        let mut wrap = Wrap::new(Some(width), true);
        wrap.set_hang("  ");
        let characters: Vec<char> = text.chars().collect();
        let mut out = String::new();
        for piece in characters.chunks(size) {
            wrap.text(Style::PLAIN, &piece.iter().collect::<String>());
            out.push_str(&wrap.take());
        }
        out + &wrap.finish()
    }

    #[test]
    fn lines_end_between_words() {
        for size in 1..30 {
            let out = pieces("One day a turtle met a purple lantern.\nIt  shone.\n", 16, size);
            assert_eq!(out, "One day a turtle\n  met a purple\n  lantern.\nIt  shone.\n");
        }
    }

    #[test]
    fn long_words_and_wide_characters_stay_within_the_width() {
        for (text, width) in [
            ("see https://example.org/a/very/long/path/that/no/line/holds now", 20),
            ("東京は日本の首都です。人口は約千四百万人、世界最大の都市圏です。", 13),
            ("naïve cafe\u{301} 🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂 end", 10),
            ("a b c d e f g h i j k l m n o p", 1),
        ] {
            let out = pieces(text, width, 3);
            for line in out.lines() {
                // Below three columns there is no room beside the indentation.
                assert!(columns_of(line) <= width.max(3), "{line:?} of {out:?}");
            }
            let bare = |text: &str| text.replace([' ', '\n'], "");
            assert_eq!(bare(&out), bare(text));
        }
        // No line begins with a full stop.
        assert!(!pieces("東京は日本の首都です。", 12, 1).contains("\n  。"));
    }

    #[test]
    fn without_a_width_no_word_is_held() {
        let mut wrap = Wrap::new(None, false);
        wrap.text(Style::BOLD, "a  b");
        assert_eq!(wrap.take(), "a  b");
        wrap.text(Style::PLAIN, "c \n");
        assert_eq!(wrap.finish(), "c\n");
    }

    #[test]
    fn styles_change_where_they_differ_and_end() {
        let mut wrap = Wrap::new(Some(80), true);
        wrap.text(Style::DIM, "Thinking\nof ");
        wrap.text(Style::DIM, "it");
        wrap.text(Style::PLAIN, "\n\nDone");
        wrap.text(Style::BOLD, "!");
        assert_eq!(wrap.finish(), "\x1b[2mThinking\nof it\x1b[0m\n\nDone\x1b[1m!\x1b[0m");
        wrap.verbatim(Style::CODE, "x = 1  \n  y\n");
        assert_eq!(wrap.finish(), "\x1b[36mx = 1  \n  y\n\x1b[0m");
    }
}
