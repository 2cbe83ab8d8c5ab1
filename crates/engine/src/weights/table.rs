//! Tables of whole numbers, such as the experts of each token: stored as words of 32 bits, one or two for a number.

use std::collections::BTreeSet;

use kernels::format::{Encoding, FloatType};
use store::format::{Extent, Tensor};

use crate::EngineError;

/// A table as it lies in a file.
#[derive(Clone, Debug)]
pub(super) struct TablePlace {
    name: String,
    columns: usize,
    /// Words of a number.
    words: usize,
    below: usize,
    pub(super) extent: Extent,
}

impl TablePlace {
    /// The table `name` of `[rows, columns]` numbers below `below`, which is at most 65,536.
    pub(super) fn new(
        name: &str,
        tensor: &Tensor,
        (rows, columns): (usize, usize),
        below: usize,
    ) -> Result<Self, EngineError> {
        assert!(below <= 1 << 16, "{name}: numbers below {below}");
        let words = match (&tensor.shape[..], tensor.encoding) {
            (&[found, words], Encoding::Float(FloatType::F32))
                if found == rows && (words == columns || words == 2 * columns) =>
            {
                words / columns
            }
            _ => {
                let found = format!("is no table of [{rows}, {columns}] whole numbers");
                return Err(EngineError::tensor(name, found));
            }
        };
        Ok(Self { name: name.to_owned(), columns, words, below, extent: tensor.weight })
    }

    /// Bytes that the table will hold in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.extent.length / (2 * self.words as u64)
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Table, EngineError> {
        let mut numbers = Vec::with_capacity(bytes.len() / (4 * self.words));
        for words in bytes.as_chunks::<4>().0.chunks_exact(self.words) {
            let number = u32::from_le_bytes(words[0]);
            let whole = words[1..].iter().all(|word| *word == [0; 4]);
            if !whole || number as usize >= self.below {
                let found = format!("holds a number that is not below {}", self.below);
                return Err(EngineError::tensor(&self.name, found));
            }
            numbers.push(number as u16);
        }
        Ok(Table { columns: self.columns, numbers })
    }
}

/// A table of whole numbers.
pub struct Table {
    columns: usize,
    numbers: Vec<u16>,
}

impl Table {
    /// One row.
    pub fn row(&self, index: usize) -> &[u16] {
        &self.numbers[index * self.columns..(index + 1) * self.columns]
    }

    /// The numbers in some rows, distinct and ascending.
    pub fn numbers_of(&self, rows: &[u32]) -> Vec<u16> {
        let all = rows.iter().flat_map(|&row| self.row(row as usize));
        let distinct: BTreeSet<u16> = all.copied().collect();
        distinct.into_iter().collect()
    }

    /// All rows, one after the other.
    pub(crate) fn numbers(&self) -> &[u16] {
        &self.numbers
    }

    /// Numbers of a row.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_several_rows_are_distinct_and_ascending() {
        let table = Table { columns: 2, numbers: vec![5, 1, 3, 3, 1, 9] };
        assert_eq!(table.numbers_of(&[2, 0]), [1, 5, 9]);
        assert_eq!(table.numbers_of(&[1, 1]), [3]);
        assert_eq!(table.numbers_of(&[]), [0; 0]);
    }
}
