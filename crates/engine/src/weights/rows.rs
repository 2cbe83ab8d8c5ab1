//! Tables whose rows are read one by one, and the constants by which they are looked up: declared here, and checked
//! against what the configuration says, because a wrong one would find other rows without an error.

use std::ops::ControlFlow;

use store::format::{Element, Extent, Integer, RowTable};
use store::rows::{RowOptions, RowStore};
use store::trunk::{LoadMode, Trunk};

use super::load::stopped;
use super::{Catalog, RowTableId};
use crate::EngineError;

/// Whole numbers as they lie in a file.
#[derive(Clone, Debug)]
pub(super) struct NumbersPlace {
    name: String,
    integer: Integer,
    extent: Extent,
}

impl Catalog<'_> {
    /// Declares the table `name` of `rows` rows of `columns` values, in `parts` tensors. It is not loaded.
    ///
    /// # Errors
    /// The table is missing or has another shape.
    pub fn row_table(
        &mut self,
        name: &str,
        (rows, columns): (u64, usize),
        parts: usize,
    ) -> Result<RowTableId, EngineError> {
        let Some(table) = self.checkpoint.row_tables.get(name) else {
            return Err(EngineError::tensor(name, "is missing from the checkpoint"));
        };
        if (table.rows, table.columns) != (rows, columns) {
            let found = format!(
                "has {} rows of {} values, the configuration asks for {rows} of {columns}: a part is missing, or it \
                 belongs to another model",
                table.rows, table.columns
            );
            return Err(EngineError::tensor(name, found));
        }
        if table.parts.len() != parts && table.parts.len() != 1 {
            let found = format!(
                "lies in {} tensors, the configuration says {parts} (split_ngram_parts)",
                table.parts.len()
            );
            return Err(EngineError::tensor(name, found));
        }
        self.used.insert(name.to_owned());
        self.row_tables.push((name.to_owned(), self.part));
        Ok(RowTableId(self.row_tables.len() as u32 - 1))
    }

    /// The tables declared of what is loaded, in order.
    fn row_tables(&self) -> impl Iterator<Item = &RowTable> {
        let loaded = self.row_tables.iter().filter(|(_, part)| self.loads(*part));
        loaded.map(|(name, _)| &self.checkpoint.row_tables[name])
    }

    /// Opens the tables declared of what is loaded, in order, each as `options` says.
    ///
    /// # Errors
    /// What [`RowStore::open`] reports.
    pub fn open_rows(
        &self,
        options: impl Fn(&RowTable) -> RowOptions,
    ) -> Result<Vec<RowStore>, EngineError> {
        let open = |table| RowStore::open(&self.checkpoint.files, table, options(table));
        Ok(self.row_tables().map(open).collect::<Result<_, _>>()?)
    }

    /// Declares that the tensor `name`, if there is one, holds these whole numbers. It is compared with them when the
    /// others are loaded, and not kept.
    ///
    /// # Errors
    /// The tensor has another shape, or holds no whole numbers.
    pub fn numbers(&mut self, name: &str, expected: &[u64]) -> Result<(), EngineError> {
        if !self.has(name) {
            return Ok(());
        }
        let tensor = self.tensor(name)?;
        let Element::Whole(integer) = tensor.element else {
            let found = format!("holds {}, expected whole numbers", tensor.element.name());
            return Err(EngineError::tensor(name, found));
        };
        if tensor.shape != [expected.len()] {
            let found = format!("has shape {:?}, expected [{}]", tensor.shape, expected.len());
            return Err(EngineError::tensor(name, found));
        }
        let place = NumbersPlace { name: name.to_owned(), integer, extent: tensor.weight };
        self.numbers.push((place, expected.to_vec()));
        Ok(())
    }

    /// Compares what was declared with [`Catalog::numbers`].
    pub(super) fn check_numbers(&self) -> Result<(), EngineError> {
        let extents: Vec<Extent> = self.numbers.iter().map(|(place, _)| place.extent).collect();
        let mut goes_on = |_| ControlFlow::Continue(());
        let small =
            Trunk::load(self.checkpoint, &extents, LoadMode::Read, self.checked, &mut goes_on);
        let small = small.map_err(stopped)?;
        for (NumbersPlace { name, integer, extent }, expected) in &self.numbers {
            let numbers = small.bytes(*extent).chunks_exact(integer.bytes()).map(|bytes| {
                let mut wide = [0; 8];
                wide[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(wide)
            });
            for (index, (found, expected)) in numbers.zip(expected).enumerate() {
                if found != *expected {
                    let found = format!(
                        "number {index} is {found}, the configuration gives {expected}: it belongs to another model"
                    );
                    return Err(EngineError::tensor(name, found));
                }
            }
        }
        Ok(())
    }
}
