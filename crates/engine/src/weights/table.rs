//! Tables of whole numbers whose rows are sets, such as the experts of each token.

use std::collections::BTreeSet;

use store::format::{Element, Extent, Integer, Tensor};

use crate::EngineError;

/// A table as it lies in a file.
#[derive(Clone, Debug)]
pub(super) struct TablePlace {
    pub(super) name: String,
    columns: usize,
    integer: Integer,
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
        let Element::Whole(integer) = tensor.element else {
            let found =
                format!("holds {}, expected whole numbers (I32, I64)", tensor.element.name());
            return Err(EngineError::tensor(name, found));
        };
        if tensor.shape != [rows, columns] {
            let found = format!("has shape {:?}, expected [{rows}, {columns}]", tensor.shape);
            return Err(EngineError::tensor(name, found));
        }
        Ok(Self { name: name.to_owned(), columns, integer, below, extent: tensor.weight })
    }

    /// Bytes that the table will hold in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.extent.length / self.integer.bytes() as u64 * size_of::<u16>() as u64
    }

    /// The numbers; an error is what is wrong with one.
    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Table, String> {
        let size = self.integer.bytes();
        let mut numbers = Vec::with_capacity(bytes.len() / size);
        // By number, one more than the last row that had it.
        let mut seen = vec![0; self.below];
        for (index, bytes) in bytes.chunks_exact(size).enumerate() {
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(bytes);
            let row = index / self.columns;
            let number = u64::from_le_bytes(wide);
            let Some(last) = usize::try_from(number).ok().and_then(|it| seen.get_mut(it)) else {
                return Err(format!("row {row} has a number that is not below {}", self.below));
            };
            if std::mem::replace(last, row + 1) == row + 1 {
                return Err(format!("row {row} has {number} twice"));
            }
            numbers.push(number as u16);
        }
        Ok(Table { columns: self.columns, numbers })
    }
}

/// A table of whole numbers. No row has a number twice.
#[derive(Default)]
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
    use store::format::FileId;

    fn place(integer: Integer, shape: [usize; 2]) -> Result<TablePlace, EngineError> {
        let extent = Extent { file: FileId(0), offset: 0, length: 0 };
        let (shape, element) = (shape.to_vec(), Element::Whole(integer));
        let tensor = Tensor { shape, element, weight: extent, scales_biases: None };
        TablePlace::new("table", &tensor, (2, 2), 5)
    }

    #[test]
    fn numbers_have_the_width_of_their_type_whatever_the_shape() {
        let long = |numbers: [i64; 4]| numbers.map(i64::to_le_bytes).concat();
        let short = |numbers: [i32; 4]| numbers.map(i32::to_le_bytes).concat();
        let (longs, shorts) =
            (place(Integer::I64, [2, 2]).unwrap(), place(Integer::I32, [2, 2]).unwrap());
        assert_eq!(longs.decode(&long([4, 0, 1, 2])).unwrap().numbers, [4, 0, 1, 2]);
        assert_eq!(shorts.decode(&short([4, 0, 1, 2])).unwrap().numbers, [4, 0, 1, 2]);
        for shape in [[2, 1], [2, 4], [1, 4]] {
            assert!(place(Integer::I64, shape).is_err() && place(Integer::I32, shape).is_err());
        }
        for (numbers, named) in [
            ([4, 0, 1, 1], "row 1 has 1 twice"),
            ([0, 0, 1, 2], "row 0 has 0 twice"),
            ([0, 5, 1, 2], "row 0 has a number that is not below 5"),
            ([0, 1, -1, 2], "row 1 has a number that is not below 5"),
            ([0, 1 << 32, 1, 2], "row 0 has a number that is not below 5"),
        ] {
            assert_eq!(longs.decode(&long(numbers)).err().as_deref(), Some(named), "{numbers:?}");
        }
        assert!(shorts.decode(&short([0, 1, -1, 2])).is_err());
    }

    /// Every place of a table with every number at and beyond the ends of its range, in both widths: what is read is
    /// what is written, or the row is named.
    #[test]
    fn no_number_of_a_table_is_taken_for_another() {
        const BELOW: usize = 9;
        const COLUMNS: usize = 3;
        let right: Vec<i64> = (0..24).map(|at| (at * 4 + at / 3) % BELOW as i64).collect();
        let shape = (right.len() / COLUMNS, COLUMNS);
        let ends = [8, 9, 10, 255, 256, 1 << 16, i64::from(i32::MAX), -1, -8, i64::from(i32::MIN)];
        let wide = [1 << 32, (1 << 32) + 1, 1 << 40, i64::MAX, i64::MIN, i64::MIN + 1];
        let (mut kept, mut refused) = (0, 0);
        for integer in [Integer::I32, Integer::I64] {
            let extent = Extent { file: FileId(0), offset: 0, length: 0 };
            let (shape_there, element) = (vec![shape.0, shape.1], Element::Whole(integer));
            let tensor =
                Tensor { shape: shape_there, element, weight: extent, scales_biases: None };
            let place = TablePlace::new("table", &tensor, shape, BELOW).unwrap();
            let values = (0..BELOW as i64).chain(ends).chain(wide);
            let fits = |&value: &i64| integer == Integer::I64 || i32::try_from(value).is_ok();
            for (at, value) in
                values.filter(fits).flat_map(|it| (0..right.len()).map(move |at| (at, it)))
            {
                let mut table = right.clone();
                table[at] = value;
                let bytes: Vec<u8> = match integer {
                    Integer::I32 => {
                        table.iter().flat_map(|&it| (it as i32).to_le_bytes()).collect()
                    }
                    _ => table.iter().flat_map(|it| it.to_le_bytes()).collect(),
                };
                let row = &table[at / COLUMNS * COLUMNS..][..COLUMNS];
                let twice = row.iter().filter(|it| **it == value).count() > 1;
                match place.decode(&bytes) {
                    Ok(read) => {
                        let same = read.numbers.iter().map(|&it| i64::from(it)).eq(table);
                        assert!(same && !twice, "{integer:?}: {value} at {at}");
                        kept += 1;
                    }
                    Err(line) => {
                        let wrong = twice || !(0..BELOW as i64).contains(&value);
                        let named = line.starts_with(&format!("row {} ", at / COLUMNS));
                        assert!(wrong && named, "{integer:?}: {value} at {at}: {line}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(kept > 200 && refused > 600, "{kept} kept, {refused} refused");
    }

    #[test]
    fn numbers_of_several_rows_are_distinct_and_ascending() {
        let table = Table { columns: 2, numbers: vec![5, 1, 3, 3, 1, 9] };
        assert_eq!(table.numbers_of(&[2, 0]), [1, 5, 9]);
        assert_eq!(table.numbers_of(&[1, 1]), [3]);
        assert_eq!(table.numbers_of(&[]), [0; 0]);
    }
}
