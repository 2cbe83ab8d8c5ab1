//! What the numbers of a tensor are: values in an encoding that kernels compute with, or whole numbers.
//!
//! The two have nothing in common but bytes, so that no reader takes one for the other: who wants values asks for the
//! encoding and gets none of whole numbers.

use std::fmt;

use kernels::format::{Encoding, MatrixError};

/// Whole numbers in little-endian order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integer {
    /// 32 bits with a sign.
    I32,
    /// 64 bits with a sign.
    I64,
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Values.
    Value(Encoding),
    /// Whole numbers: a table, such as that of experts by token.
    Whole(Integer),
}

impl Integer {
    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// The name in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }
}

impl Element {
    /// The encoding of values; `None` for whole numbers.
    pub const fn encoding(self) -> Option<Encoding> {
        match self {
            Self::Value(encoding) => Some(encoding),
            Self::Whole(_) => None,
        }
    }

    /// The name in manifests.
    pub fn name(self) -> String {
        match self {
            Self::Value(encoding) => encoding.name(),
            Self::Whole(integer) => integer.name().to_owned(),
        }
    }

    /// By the name in manifests.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let whole = [Integer::I32, Integer::I64].into_iter().find(|known| known.name() == name);
        whole.map(Self::Whole).or_else(|| Encoding::parse(name).map(Self::Value))
    }

    /// Whether rows of so many columns can be.
    ///
    /// # Errors
    /// As [`Encoding::check`].
    pub fn check(self, columns: usize) -> Result<(), MatrixError> {
        self.encoding().map_or(Ok(()), |encoding| encoding.check(columns))
    }

    /// Bytes of the planes of rows: values, scales, biases.
    pub fn plane_bytes(self, rows: usize, columns: usize) -> [usize; 3] {
        match self {
            Self::Value(encoding) => encoding.plane_bytes(rows, columns),
            Self::Whole(integer) => [rows * columns * integer.bytes(), 0, 0],
        }
    }

    /// Planes of a matrix.
    pub(crate) const fn planes(self) -> usize {
        match self {
            Self::Value(encoding) => encoding.planes(),
            Self::Whole(_) => 1,
        }
    }
}

impl From<Encoding> for Element {
    fn from(encoding: Encoding) -> Self {
        Self::Value(encoding)
    }
}

/// Values look like their encoding: [`super::Checkpoint::contents`] is made of it, and names what was kept before.
impl fmt::Debug for Element {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(encoding) => encoding.fmt(formatter),
            Self::Whole(integer) => integer.fmt(formatter),
        }
    }
}
