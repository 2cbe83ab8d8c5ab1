//! Writers that know what they write to: "no storage space" alone does not say where.

use std::fmt;
use std::io::{self, Write};

/// A writer whose errors begin with its name.
pub(crate) struct Named<W> {
    name: String,
    writer: W,
}

impl<W: Write> Named<W> {
    /// `name` is a path or what the shell calls the stream.
    pub(crate) fn new(name: impl fmt::Display, writer: W) -> Self {
        Self { name: name.to_string(), writer }
    }

    fn named<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            // The kind says it in words; the number of the error would say no more.
            let kind = error.kind();
            let reason = match kind {
                io::ErrorKind::Other => error.to_string(),
                kind => kind.to_string(),
            };
            io::Error::new(kind, format!("{}: {reason}", self.name))
        })
    }
}

impl<W: Write> Write for Named<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes);
        self.named(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.writer.flush();
        self.named(flushed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_and_keep_their_kind() {
        let mut buffer = [0; 4];
        let mut out = Named::new("standard output", &mut buffer[..]);
        assert_eq!(out.write(b"abcdef").unwrap(), 4);
        let error = out.write_all(b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let mut full = Named::new("a/b.jsonl", Full);
        assert_eq!(full.write(b"x").unwrap_err().to_string(), "a/b.jsonl: no storage space");
        assert_eq!(full.flush().unwrap_err().to_string(), "a/b.jsonl: broken pipe");
    }
}
