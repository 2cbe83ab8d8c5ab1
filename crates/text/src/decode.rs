//! Token ids to text: a flat table of bytes by id, and a decoder that never splits a character.
//!
//! Byte-level BPE spells every byte as one printable character (GPT-2's alphabet: the printable
//! Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and up). The table undoes that once,
//! at load, so that decoding one token is a copy and `DecodeStream::push` allocates only the returned text.

use std::sync::Arc;

/// The bytes of every token, by id.
#[derive(Debug, Default)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// `[vocabulary size + 1]`: token i is `bytes[starts[i]..starts[i + 1]]`.
    starts: Vec<u32>,
    /// `[vocabulary size]`.
    control: Vec<bool>,
}

impl TokenTable {
    /// From `(bytes, is control)` in order of ids; an id without a token has no bytes.
    pub(crate) fn new<'a>(tokens: impl Iterator<Item = (&'a [u8], bool)>) -> Self {
        let mut table = Self { starts: vec![0], ..Self::default() };
        for (bytes, control) in tokens {
            table.bytes.extend_from_slice(bytes);
            let end = u32::try_from(table.bytes.len())
                .expect("the file length limit keeps all tokens under 4 GiB");
            table.starts.push(end);
            table.control.push(control);
        }
        table
    }

    pub(crate) fn len(&self) -> usize {
        self.control.len()
    }

    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.starts.get(id), self.starts.get(id + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }
}

/// The texts of all tokens. Cloning shares them.
#[derive(Debug, Clone)]
pub struct TokenTexts(Arc<TokenTable>);

impl TokenTexts {
    pub(crate) fn new(table: Arc<TokenTable>) -> Self {
        Self(table)
    }

    /// Of a vocabulary made for a test, by id.
    #[cfg(test)]
    pub(crate) fn of(texts: &[Vec<u8>]) -> Self {
        Self::new(Arc::new(TokenTable::new(texts.iter().map(|text| (text.as_slice(), false)))))
    }

    /// The bytes of one token; empty for an id without text.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        self.0.bytes(id)
    }
}

/// The character that stands for a byte in GPT-2's alphabet.
#[cfg(test)]
pub(crate) fn byte_to_char(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => byte as char,
        // The rest are numbered in order of their value from U+0100: 0..=32, 127..=160, 173.
        0..=32 => shifted(u32::from(byte)),
        127..=160 => shifted(u32::from(byte) - 127 + 33),
        173 => shifted(67),
    }
}

#[cfg(test)]
fn shifted(index: u32) -> char {
    char::from_u32(0x100 + index).expect("U+0100..U+0143 are characters")
}

/// The byte that a character of the alphabet stands for.
pub(crate) fn char_to_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 127).ok(),
        0x143 => Some(173),
        _ => None,
    }
}

/// Decodes one sequence token by token.
///
/// The pieces it returns are whole characters, and joined they equal `Tokenizer::decode` of all ids.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    table: Arc<TokenTable>,
    /// The beginning of a character: at most three bytes between calls.
    pending: Vec<u8>,
}

impl DecodeStream {
    pub(crate) fn new(table: Arc<TokenTable>) -> Self {
        Self { table, pending: Vec::with_capacity(64) }
    }

    /// Takes one token; returns the characters that are now complete, if any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        self.pending.extend_from_slice(self.table.bytes(id));
        let mut text = String::new();
        let mut start = 0;
        loop {
            match std::str::from_utf8(&self.pending[start..]) {
                Ok(valid) => {
                    text.push_str(valid);
                    start = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = &self.pending[start..start + error.valid_up_to()];
                    text.push_str(&String::from_utf8_lossy(valid));
                    start += error.valid_up_to();
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    start += invalid;
                }
            }
        }
        self.pending.drain(..start);
        (!text.is_empty()).then_some(text)
    }

    /// Ends the sequence: an incomplete character becomes U+FFFD. The stream can be used again afterwards.
    pub fn flush(&mut self) -> Option<String> {
        if self.pending.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255u8 {
            let c = byte_to_char(byte);
            assert!(seen.insert(c), "byte {byte} shares its character");
            assert_eq!(char_to_byte(c), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        let others = (0..0x1000).filter_map(char::from_u32).filter(|c| !seen.contains(c));
        assert!(others.into_iter().all(|c| char_to_byte(c).is_none()));
    }
}
