//! Numbers, texts and lists as bytes of a message, and back: little-endian, lengths before contents, every length
//! compared with what is left before anything is allocated, and no byte left over.

use std::time::Duration;

/// A message that is none of this protocol, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// Longest text of a message.
pub(super) const TEXT_BYTES_MAX: usize = 4096;

/// Appends to a message.
#[derive(Debug, Default)]
pub(super) struct Writing {
    pub(super) bytes: Vec<u8>,
}

impl Writing {
    pub(super) fn byte(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn flag(&mut self, value: bool) {
        self.byte(u8::from(value));
    }

    pub(super) fn word(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn long(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A number that is in memory; all that are written fit.
    pub(super) fn size(&mut self, value: usize) {
        self.long(value as u64);
    }

    /// The length of a list.
    pub(super) fn count(&mut self, value: usize) {
        self.word(u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub(super) fn time(&mut self, value: Duration) {
        self.long(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A text, its end left out where it is too long.
    pub(super) fn text(&mut self, value: &str) {
        let end = value.floor_char_boundary(TEXT_BYTES_MAX);
        self.count(end);
        self.bytes.extend_from_slice(&value.as_bytes()[..end]);
    }

    pub(super) fn words(&mut self, values: &[u32]) {
        self.count(values.len());
        self.bytes.reserve(size_of_val(values));
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// Numbers to the bit.
    pub(super) fn floats(&mut self, values: &[f32]) {
        self.count(values.len());
        self.bytes.reserve(size_of_val(values));
        // As on disk; on the machines that there are this is a copy.
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

/// Takes a message apart.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    rest: &'a [u8],
}

impl<'a> Reading<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Malformed("cut short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed("cut short"))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag that is neither")),
        }
    }

    pub(super) fn word(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn long(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn size(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.long()?).map_err(|_| Malformed("a size beyond this machine's"))
    }

    pub(super) fn time(&mut self) -> Result<Duration, Malformed> {
        self.long().map(Duration::from_nanos)
    }

    /// The length of a list whose items take `bytes` each at least, `most` of them at the most.
    pub(super) fn count(&mut self, bytes: usize, most: usize) -> Result<usize, Malformed> {
        let count = self.word()? as usize;
        if count > most {
            return Err(Malformed("a list that is too long"));
        }
        match count.checked_mul(bytes.max(1)) {
            Some(all) if all <= self.rest.len() => Ok(count),
            _ => Err(Malformed("cut short")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let count = self.count(1, TEXT_BYTES_MAX)?;
        let text = std::str::from_utf8(self.take(count)?);
        text.map(str::to_owned).map_err(|_| Malformed("a text that is none"))
    }

    pub(super) fn words(&mut self, most: usize) -> Result<Vec<u32>, Malformed> {
        let count = self.count(4, most)?;
        let words = self.take(4 * count)?.as_chunks::<4>().0;
        Ok(words.iter().map(|&word| u32::from_le_bytes(word)).collect())
    }

    /// Numbers to the bit, into a buffer of an earlier message.
    pub(super) fn floats(&mut self, most: usize, into: &mut Vec<f32>) -> Result<(), Malformed> {
        let count = self.count(4, most)?;
        let words = self.take(4 * count)?.as_chunks::<4>().0;
        into.clear();
        into.extend(words.iter().map(|&word| f32::from_le_bytes(word)));
        Ok(())
    }

    /// Nothing may be left.
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes behind its end")) }
    }
}
