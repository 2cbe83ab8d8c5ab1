//! The keys of a GGUF file and their values, read when they are asked for.
//!
//! A value may have been written with any type that holds it: converters disagree about the width of integers, and
//! about one value where another writes a list of equal ones. Every error names the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::format::error::{DOWNLOAD_AGAIN, FormatError};
use crate::format::files;
use crate::io::platform::FileExt;
use crate::shown::shown;

/// Entries of a list of numbers: one per layer is the longest that is read.
const LIST_COUNT_MAX: u64 = 65_536;

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    /// By its number in files.
    pub(super) fn of(id: u32) -> Option<Self> {
        use Kind::{Array, Bool, F32, F64, I8, I16, I32, I64, Text, U8, U16, U32, U64};
        let all = [U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64];
        all.get(id as usize).copied()
    }

    /// Bytes of a value; `None` where they vary.
    pub(super) fn bytes(self) -> Option<u64> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Text | Self::Array => return None,
        })
    }
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    /// Of an array.
    pub(super) element: Option<Kind>,
    /// Elements of an array, else one.
    pub(super) count: u64,
    /// First byte of the value.
    pub(super) offset: u64,
    /// Bytes of the value.
    pub(super) bytes: u64,
}

/// A number, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scalar {
    Integer(i128),
    Float(f64),
    Flag(bool),
}

/// The keys of a file.
#[derive(Clone, Debug)]
pub(crate) struct Metadata {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
}

impl Metadata {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), entries: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, key: String, entry: Entry) {
        self.entries.insert(key, entry);
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn kind(&self, key: &str) -> Option<Kind> {
        self.entries.get(key).map(|entry| entry.kind)
    }

    /// An error about a key.
    pub(super) fn invalid(&self, key: &str, found: impl AsRef<str>) -> FormatError {
        FormatError::invalid(&self.path, key, found, DOWNLOAD_AGAIN)
    }

    /// A value that is not read.
    pub(super) fn unsupported(
        &self,
        key: &str,
        found: impl AsRef<str>,
        remedy: &'static str,
    ) -> FormatError {
        FormatError::unsupported(&self.path, key, found, remedy)
    }

    /// The value of a key that must be there.
    pub(super) fn required<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Self, &str) -> Result<Option<T>, FormatError>,
    ) -> Result<T, FormatError> {
        read(self, key)?.ok_or_else(|| self.invalid(key, "missing"))
    }

    /// A number without sign, or the number that all entries of a list are.
    pub(super) fn unsigned(&self, key: &str) -> Result<Option<u64>, FormatError> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        let found = match value {
            Scalar::Integer(value) => u64::try_from(value).ok(),
            Scalar::Float(_) | Scalar::Flag(_) => None,
        };
        found.map(Some).ok_or_else(|| self.invalid(key, format!("{} is no count", value.text())))
    }

    /// A finite number, or the number that all entries of a list are.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, FormatError> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        let found = match value {
            Scalar::Float(value) => Some(value).filter(|value| value.is_finite()),
            Scalar::Integer(value) => Some(value as f64),
            Scalar::Flag(_) => None,
        };
        found.map(Some).ok_or_else(|| self.invalid(key, format!("{} is no number", value.text())))
    }

    /// True or false.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, FormatError> {
        match self.one(key)? {
            None => Ok(None),
            Some(Scalar::Flag(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.invalid(key, format!("{} is not true or false", other.text()))),
        }
    }

    /// A list of true and false.
    pub(super) fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, FormatError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let flag = |value: Scalar| match value {
            Scalar::Flag(flag) => Ok(flag),
            other => Err(self.invalid(key, format!("{} is not true or false", other.text()))),
        };
        list.into_iter().map(flag).collect::<Result<_, _>>().map(Some)
    }

    /// A list of at most `most` integers, such as the types of tokens.
    pub(super) fn integers(&self, key: &str, most: u64) -> Result<Option<Vec<i128>>, FormatError> {
        let Some(list) = self.scalars(key, most)? else { return Ok(None) };
        let integer = |value: Scalar| match value {
            Scalar::Integer(value) => Ok(value),
            other => Err(self.invalid(key, format!("{} is no integer", other.text()))),
        };
        list.into_iter().map(integer).collect::<Result<_, _>>().map(Some)
    }

    /// A text of at most `limit` bytes.
    pub(super) fn text(&self, key: &str, limit: u64) -> Result<Option<String>, FormatError> {
        let Some(entry) = self.entries.get(key) else { return Ok(None) };
        if entry.kind != Kind::Text {
            return Err(self.invalid(key, "is not a text"));
        }
        let bytes = self.read(key, entry, limit)?;
        let text = String::from_utf8(bytes).map_err(|_| self.invalid(key, "is not UTF-8"))?;
        Ok(Some(text))
    }

    /// True where the file has this key, whatever its value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Bytes and number of the texts of a list; zero where there is none.
    pub(super) fn texts_size(&self, key: &str) -> (u64, u64) {
        self.entries.get(key).map_or((0, 0), |entry| (entry.bytes, entry.count))
    }

    /// A list of at most `most` texts, of at most `limit` bytes in all.
    pub(super) fn texts(
        &self,
        key: &str,
        limit: u64,
        most: u64,
    ) -> Result<Option<Vec<String>>, FormatError> {
        let Some(entry) = self.entries.get(key) else { return Ok(None) };
        if entry.element != Some(Kind::Text) {
            return Err(self.invalid(key, "is not a list of texts"));
        }
        if entry.count > most {
            return Err(FormatError::limit(&self.path, key, entry.count, most));
        }
        let bytes = self.read(key, entry, limit)?;
        let mut rest = &bytes[..];
        let mut texts = Vec::new();
        for index in 0..entry.count {
            let cut = || self.invalid(key, "changed while it was read");
            let (length, after) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
            let (text, after) = after.split_at_checked(length).ok_or_else(cut)?;
            let text = std::str::from_utf8(text)
                .map_err(|_| self.invalid(key, format!("entry {index} is not UTF-8")))?;
            texts.push(text.to_owned());
            rest = after;
        }
        Ok(Some(texts))
    }

    /// The value, or the one that a list repeats.
    fn one(&self, key: &str) -> Result<Option<Scalar>, FormatError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let Some(&first) = list.first() else {
            return Err(self.invalid(key, "is an empty list"));
        };
        match list.iter().find(|&&other| other != first) {
            None => Ok(Some(first)),
            Some(other) => {
                let found = format!("differs by layer ({} and {})", first.text(), other.text());
                let remedy = "one value for all layers is read";
                Err(self.unsupported(key, found, remedy))
            }
        }
    }

    fn list(&self, key: &str) -> Result<Option<Vec<Scalar>>, FormatError> {
        self.scalars(key, LIST_COUNT_MAX)
    }

    fn scalars(&self, key: &str, limit: u64) -> Result<Option<Vec<Scalar>>, FormatError> {
        let Some(entry) = self.entries.get(key) else { return Ok(None) };
        if entry.count > limit {
            return Err(FormatError::limit(&self.path, key, entry.count, limit));
        }
        let kind = entry.element.unwrap_or(entry.kind);
        let Some(width) = kind.bytes() else {
            return Err(self.invalid(key, "is a text, not a number"));
        };
        let bytes = self.read(key, entry, u64::MAX)?;
        let scalar = |bytes: &[u8]| {
            Scalar::of(kind, bytes).ok_or_else(|| {
                self.invalid(key, format!("{} is not true or false", shown(&bytes[0])))
            })
        };
        bytes.chunks_exact(width as usize).map(scalar).collect::<Result<_, _>>().map(Some)
    }

    /// The bytes of a value. What the header was found to hold bounds them.
    fn read(&self, key: &str, entry: &Entry, limit: u64) -> Result<Vec<u8>, FormatError> {
        if entry.bytes > limit {
            return Err(FormatError::limit(
                &self.path,
                format!("{key}: bytes"),
                entry.bytes,
                limit,
            ));
        }
        let file = files::open_regular(&self.path)?.file;
        let mut bytes = vec![0; entry.bytes as usize];
        let read = file.read_exact_at(&mut bytes, entry.offset);
        read.map_err(|error| FormatError::io(&self.path, "read", error))?;
        Ok(bytes)
    }
}

impl Scalar {
    /// The value of `bytes`; `None` for a flag that is neither true nor false.
    fn of(kind: Kind, bytes: &[u8]) -> Option<Self> {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        // The sign is that of the value's own width.
        let unused = 64 - 8 * bytes.len() as u32;
        let signed = (unsigned << unused).cast_signed() >> unused;
        Some(match kind {
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => Self::Integer(unsigned.into()),
            Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => Self::Integer(signed.into()),
            Kind::F32 => Self::Float(f32::from_bits(unsigned as u32).into()),
            Kind::F64 => Self::Float(f64::from_bits(unsigned)),
            Kind::Bool => match unsigned {
                0 => Self::Flag(false),
                1 => Self::Flag(true),
                _ => return None,
            },
            Kind::Text | Kind::Array => return None,
        })
    }

    fn text(self) -> String {
        match self {
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Flag(value) => value.to_string(),
        }
    }
}
