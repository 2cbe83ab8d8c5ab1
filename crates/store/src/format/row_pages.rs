//! Tables of rows in a native pack: whole rows in pages, so that a row is one read and lies in no two of them.

use serde::{Deserialize, Serialize};

use super::error::FormatError;
use super::layout::{self, PAGE};
use super::names::{self, Meaning};
use super::rows::{self, RowPart, RowTable};
use super::{Extent, FileId};
use kernels::format::Encoding;

/// Bytes that have a checksum together, where pages are not larger.
const RUN_BYTES: u64 = 4 << 20;

/// Name of the file of a layer's rows.
pub(crate) fn rows_file(layer: usize) -> String {
    format!("rows_{layer:03}.bin")
}

/// How the rows of a table lie in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowPages {
    /// Rows of a page.
    pub(crate) page_rows: u64,
    /// Bytes of a page: zeros behind its rows.
    pub(crate) page_bytes: u64,
    /// Pages that have a checksum together.
    pub(crate) run_pages: u64,
    /// Bytes of the file.
    pub(crate) bytes: u64,
}

impl RowPages {
    /// The pages of `rows` rows of `row_bytes`; `None` where there can be no such file.
    pub(crate) fn of(rows: u64, row_bytes: usize) -> Option<Self> {
        let row_bytes = row_bytes as u64;
        let page_rows = PAGE.checked_div(row_bytes)?.max(1);
        let page_bytes = page_rows.checked_mul(row_bytes)?.checked_next_multiple_of(PAGE)?;
        let bytes = rows.div_ceil(page_rows).checked_mul(page_bytes);
        let bytes = bytes.filter(|bytes| (1..1 << 60).contains(bytes))?;
        Some(Self { page_rows, page_bytes, run_pages: (RUN_BYTES / page_bytes).max(1), bytes })
    }

    /// Where a row begins.
    pub(crate) fn offset(&self, row: u64, row_bytes: usize) -> u64 {
        row / self.page_rows * self.page_bytes + row % self.page_rows * row_bytes as u64
    }

    /// Rows that have a checksum together.
    pub(crate) fn run_rows(&self) -> u64 {
        self.run_pages * self.page_rows
    }

    /// Runs of pages of the file.
    pub(crate) fn runs(&self) -> u64 {
        self.bytes.div_ceil(self.run_pages * self.page_bytes)
    }

    /// Where a run of pages lies.
    pub(crate) fn run(&self, number: u64, file: FileId) -> Extent {
        let most = self.run_pages * self.page_bytes;
        let offset = number * most;
        Extent { file, offset, length: most.min(self.bytes - offset) }
    }
}

/// A table as a manifest has it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowEntry {
    pub(crate) name: String,
    pub(crate) rows: u64,
    pub(crate) columns: usize,
    pub(crate) encoding: String,
    /// What all rows share, two digits a byte.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) shared: String,
    pub(crate) page_rows: u64,
    pub(crate) page_bytes: u64,
    pub(crate) run_pages: u64,
    pub(crate) bytes: u64,
}

impl RowEntry {
    /// A table as it will lie in a pack; `None` where there can be no such file.
    pub(crate) fn of(name: &str, table: &RowTable) -> Option<Self> {
        let pages = RowPages::of(table.rows, table.row_bytes())?;
        let RowPages { page_rows, page_bytes, run_pages, bytes } = pages;
        Some(Self {
            name: name.to_owned(),
            rows: table.rows,
            columns: table.columns,
            encoding: table.encoding.name(),
            shared: table.shared.iter().map(|byte| format!("{byte:02x}")).collect(),
            page_rows,
            page_bytes,
            run_pages,
            bytes,
        })
    }

    /// The layer that has the table, of `layers`, and the table in the file with this number. `invalid` makes the error
    /// about a field.
    pub(crate) fn table(
        &self,
        layers: usize,
        file: FileId,
        invalid: impl Fn(String, String) -> FormatError,
    ) -> Result<(usize, RowTable), FormatError> {
        let field = |part: &str| format!("row_tables.{}{part}", self.name);
        let Meaning::Rows { layer, part: None } = names::meaning(&self.name, layers, 0) else {
            return Err(invalid(field(""), "is not the name of a table of rows".to_owned()));
        };
        let encoding = Encoding::parse(&self.encoding).filter(|encoding| {
            let planes = layout::plane_bytes(1, self.columns, (*encoding).into());
            planes.is_some() && rows::is_read(*encoding)
        });
        let Some(encoding) = encoding else {
            let found =
                format!("{} for {} columns", crate::shown::shown(&self.encoding), self.columns);
            return Err(invalid(field(".encoding"), found));
        };
        let digits = self.shared.as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| {
            let text = std::str::from_utf8(pair).ok().filter(|text| !text.starts_with('+'))?;
            u8::from_str_radix(text, 16).ok()
        };
        let shared: Option<Vec<u8>> = digits.0.iter().map(byte).collect();
        let bytes = encoding.shared_bytes().iter().sum::<usize>();
        let shared = shared.filter(|it| digits.1.is_empty() && it.len() == bytes);
        let Some(shared) = shared else {
            return Err(invalid(field(".shared"), format!("not {bytes} bytes")));
        };
        let extent = Extent { file, offset: 0, length: self.bytes };
        let part = RowPart { first: 0, extent, scales_biases: None };
        let (rows, columns, parts) = (self.rows, self.columns, vec![part]);
        let table = RowTable { rows, columns, encoding, parts, shared, paged: true };
        if Self::of(&self.name, &table).as_ref() != Some(self) {
            let found = "pages and bytes are not those of its rows".to_owned();
            return Err(invalid(field(".bytes"), found));
        }
        Ok((layer, table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of the release: in 8 bits, as MLX has them, and in GGUF's q4_0.
    #[test]
    fn pages_of_the_release_hold_whole_rows() {
        for (row, rows, bytes) in
            [(160, 25, 52_429_053_952), (100, 40, 32_768_159_744), (90, 45, 29_127_254_016)]
        {
            let pages = RowPages::of(320_001_536, row).unwrap();
            assert_eq!((pages.page_rows, pages.page_bytes, pages.run_pages), (rows, 4096, 1024));
            assert_eq!(pages.bytes, bytes, "{row}");
            assert_eq!(pages.offset(rows, row), 4096);
            assert_eq!(pages.offset(rows - 1, row), (rows - 1) * row as u64);
        }
    }

    #[test]
    fn rows_longer_than_a_page_have_pages_of_their_own() {
        let pages = RowPages::of(3, 5000).unwrap();
        assert_eq!((pages.page_rows, pages.page_bytes, pages.bytes), (1, 8192, 24_576));
        assert_eq!(pages.offset(2, 5000), 16_384);
        assert_eq!((pages.runs(), pages.run(0, FileId(7)).length), (1, 24_576));
        assert_eq!(RowPages::of(0, 5000), None);
        assert_eq!(RowPages::of(5, 0), None);
        assert_eq!(RowPages::of(u64::MAX, 5000), None);
    }
}
