//! Tables of rows in a pack: which bytes of the source go where, a run of pages at a time.
//!
//! A table has hundreds of millions of rows, so that the chunks of its file are made one after the other, each when it
//! is filled.

use super::finite::Plane;
use super::plan::{Chunk, Copied, Output, OutputFile};
use super::{PackError, plan};
use crate::format::row_pages::{self, RowEntry, RowPages};
use crate::format::{Checkpoint, Extent, RowTable, names};

/// The files of a source's tables, and what its manifest will say of them.
pub(super) fn plan_tables(
    source: &Checkpoint,
) -> Result<(Vec<OutputFile>, Vec<RowEntry>), PackError> {
    let plan = |(name, table): (&String, &RowTable)| {
        let entry = RowEntry::of(name, table).ok_or(PackError::Shape)?;
        let (layer, _) = names::layer(name).ok_or(PackError::Shape)?;
        let file = OutputFile {
            name: row_pages::rows_file(layer),
            bytes: entry.bytes,
            kind: Output::Rows(name.clone()),
            matrices: Vec::new(),
        };
        Ok((file, entry))
    };
    source.row_tables.iter().map(plan).collect()
}

/// What the pieces of a row are.
fn planes(table: &RowTable) -> [Plane; 3] {
    let joined = table.pieces() == 1 && table.encoding.scale_row_bytes(table.columns) > 0;
    // Rows of a pack were looked at when it was made.
    match joined && table.shared.is_empty() {
        true => [Plane::Whole; 3],
        false => Plane::of(table.encoding.into()),
    }
}

/// The chunks of a table's file: each is one run of pages.
pub(super) fn chunks(table: &RowTable) -> impl Iterator<Item = Chunk> {
    let row_bytes = table.row_bytes();
    let pages = RowPages::of(table.rows, row_bytes).into_iter();
    pages.flat_map(move |pages| {
        (0..pages.runs()).map(move |run| chunk(table, &pages, row_bytes, run))
    })
}

fn chunk(table: &RowTable, pages: &RowPages, row_bytes: usize, run: u64) -> Chunk {
    let first = run * pages.run_rows();
    let rows = first..(first + pages.run_rows()).min(table.rows);
    let begin = pages.offset(first, row_bytes);
    let planes = planes(table);
    let mut copies: Vec<Copied> = Vec::new();
    for row in rows {
        let mut to = pages.offset(row, row_bytes) - begin;
        let places = table.places(row).into_iter().flatten();
        for (from, plane) in places.zip(planes) {
            match copies.last_mut() {
                Some(last) if follows(last, from, plane, to) => last.from.length += from.length,
                _ => copies.push(Copied { from, plane, to }),
            }
            to += from.length;
        }
    }
    copies.sort_by_key(plan::Copied::place);
    let bytes = pages.run(run, crate::format::FileId(0)).length;
    Chunk { bytes, copies, sums: vec![(bytes, true)], ..Chunk::default() }
}

/// Whether bytes lie behind those of a piece, in the source and in the chunk.
fn follows(last: &Copied, from: Extent, plane: Plane, to: u64) -> bool {
    let end = last.from.offset + last.from.length;
    (last.from.file, end) == (from.file, from.offset)
        && last.plane == plane
        && last.to + last.from.length == to
}

#[cfg(test)]
mod tests {
    use kernels::format::{Encoding, FloatType};

    use super::*;
    use crate::format::{FileId, RowPart};

    /// Each byte of each row has its place, over the borders of pages, runs and parts, whether its planes lie in one
    /// place or in three.
    #[test]
    fn chunks_bring_every_row_to_its_place() {
        let extent = |offset, length| Extent { file: FileId(0), offset, length };
        let rows = 150_000;
        let affine = Encoding::Affine { bits: 4, group: 32, scale: FloatType::Bf16 };
        for encoding in [Encoding::Float(FloatType::F16), affine] {
            let [weight, scales, biases] = encoding.plane_bytes(1, 32).map(|it| it as u64);
            let half = rows / 2;
            let part = |first: u64, at: u64| RowPart {
                first,
                extent: extent(at, half * weight),
                scales_biases: (scales > 0).then(|| {
                    (extent(at + (1 << 30), half * scales), extent(at + (2 << 30), half * biases))
                }),
            };
            // The second part lies before the first.
            let parts = vec![part(0, 1 << 25), part(half, 77)];
            let (shared, paged) = (Vec::new(), false);
            let table = RowTable { rows, columns: 32, encoding, parts, shared, paged };
            let pages = RowPages::of(rows, table.row_bytes()).unwrap();
            // Where each byte of a row comes from, by its place in the file.
            let mut found = std::collections::BTreeMap::new();
            let (mut at, mut count) = (0, 0);
            for chunk in chunks(&table) {
                let sorted = chunk.copies.is_sorted_by_key(Copied::place);
                assert!(sorted && chunk.sums == [(chunk.bytes, true)]);
                for Copied { from, to, .. } in chunk.copies {
                    assert!(to + from.length <= chunk.bytes);
                    found.insert(at + to, from);
                }
                at += chunk.bytes;
                count += 1;
            }
            assert_eq!((at, count), (pages.bytes, pages.runs()));
            assert!(count > 1 || scales > 0);
            for row in [0, 1, pages.page_rows - 1, pages.page_rows, half - 1, half, rows - 1] {
                let mut to = pages.offset(row, table.row_bytes());
                for place in table.places(row).unwrap() {
                    let (begin, from) = found.range(..=to).next_back().unwrap();
                    assert_eq!(from.offset + (to - begin), place.offset, "row {row}");
                    assert!(to - begin + place.length <= from.length, "row {row}");
                    to += place.length;
                }
            }
            let copied: u64 = found.values().map(|from| from.length).sum();
            assert_eq!(copied, table.bytes());
        }
    }
}
