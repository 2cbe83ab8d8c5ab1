//! Unicode's composed form (NFC), and how much shorter it can make a text.
//!
//! The tables are those of the `tokenizers` crate, so that ids do not depend on who composes.

use super::TextError;
use std::borrow::Cow;
use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// A text has at most this many times the bytes of its composed form. The worst is the iota of three bytes
/// (U+1FBE) with two marks, which become U+0390: 3.5.
pub(super) const SHRINK_MAX: usize = 4;

/// Most combining marks in a row. They must be sorted together, at 18 bytes of memory for each of theirs; writing has
/// a handful, and Unicode's stream-safe form 30.
const MARKS_MAX: usize = 1 << 16;

/// The composed form of a text.
///
/// # Errors
/// More marks in a row than any writing has.
pub(super) fn composed(text: &str) -> Result<Cow<'_, str>, TextError> {
    if is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return Ok(Cow::Borrowed(text));
    }
    let mut marks = 0;
    for c in text.chars() {
        marks = if canonical_combining_class(c) == 0 { 0 } else { marks + 1 };
        if marks > MARKS_MAX {
            let problem = format!("more than {MARKS_MAX} combining marks follow each other");
            return Err(TextError::Encode { bytes: text.len(), problem });
        }
    }
    let mut composed = String::with_capacity(text.len());
    composed.extend(text.nfc().map(|(c, _)| c));
    Ok(Cow::Owned(composed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// For every composed character: the longest spelling of each part of its decomposition, together.
    #[test]
    fn no_text_shrinks_by_more() {
        let all = || (0..=0x10_ffff).filter_map(char::from_u32);
        let apart = |c: char| -> Vec<char> { c.to_string().nfd().map(|(c, _)| c).collect() };
        // The longest single character that stands for a part alone.
        let mut longest: HashMap<char, usize> = HashMap::new();
        // The most bytes by which characters stand for several parts at once, per part.
        for c in all() {
            let parts = apart(c);
            let share = c.len_utf8().div_ceil(parts.len());
            for part in parts {
                let length = longest.entry(part).or_insert(part.len_utf8());
                *length = share.max(*length);
            }
        }
        let mut worst = 0.0f64;
        for c in all() {
            let spelled: usize = apart(c).iter().map(|part| longest[part]).sum();
            worst = worst.max(spelled as f64 / c.len_utf8() as f64);
        }
        assert!(worst <= SHRINK_MAX as f64, "{worst}");
    }
}
