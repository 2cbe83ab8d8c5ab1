//! Frames between the program and the process of a chat template: a head of 25 bytes, then the bytes it announces.

use std::io::{self, Read, Write};

/// Parent to child: compile this source.
pub(super) const COMPILE: u8 = b'C';
/// Parent to child: render with this context, a JSON object.
pub(super) const RENDER: u8 = b'R';
/// Child to parent: done; the bytes are what was rendered.
pub(super) const OUTPUT: u8 = b'O';
/// Child to parent: the template does not parse.
pub(super) const SYNTAX: u8 = b'S';
/// Child to parent: the template has called `raise_exception`.
pub(super) const REFUSED: u8 = b'X';
/// Child to parent: the template failed or passed a limit.
pub(super) const FAILED: u8 = b'F';

/// Child to parent: the output is longer than it may be.
pub(super) const LONG: u8 = b'L';

/// What is said, and within which limits it is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// One of the constants above.
    pub(super) kind: u8,
    /// Address space that the child may use for it, in bytes; 0 in an answer.
    pub(super) memory_bytes: u64,
    /// Longest output, in bytes; 0 in an answer.
    pub(super) output_bytes: u64,
    /// Bytes that follow.
    pub(super) length: u64,
}

impl Head {
    const BYTES: usize = 25;

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut bytes = [self.kind; Self::BYTES];
        let words = [self.memory_bytes, self.output_bytes, self.length];
        for (place, word) in bytes[1..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out.write_all(&bytes)
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        from.read_exact(&mut bytes)?;
        let mut words = bytes[1..].chunks_exact(8).map(|word| {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            u64::from_le_bytes(value)
        });
        let mut next = || words.next().unwrap_or_default();
        let (memory_bytes, output_bytes, length) = (next(), next(), next());
        Ok(Self { kind: bytes[0], memory_bytes, output_bytes, length })
    }
}

/// The `length` bytes that follow a head.
pub(super) fn read_body(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidData);
    let mut bytes = vec![0; usize::try_from(length).map_err(too_long)?];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives_the_wire() {
        let head =
            Head { kind: RENDER, memory_bytes: 1 << 40, output_bytes: 77, length: u64::MAX - 3 };
        let mut bytes = Vec::new();
        head.write(&mut bytes).expect("memory takes all");
        assert_eq!(Head::read(&mut bytes.as_slice()).expect("it was written"), head);
        assert!(Head::read(&mut &bytes[..24]).is_err());
    }
}
