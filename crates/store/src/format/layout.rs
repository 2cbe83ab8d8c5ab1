//! The native pack's byte layout: a function of shapes and encodings alone.
//!
//! Writer and reader both compute it here; the offsets in a manifest are for other readers and are
//! refused when they differ. Offsets and sizes are bytes; docs/formats.md has a worked example.
//!
//! - `trunk.bin`: the parts (weight, scales, biases) of every tensor one after another in manifest
//!   order, each at the next multiple of [`PAGE`]; the file ends at one.
//! - `experts/layer_NNN.bin`: one record per expert, back to back. In a record gate, up and down, of
//!   each weight, scales, biases, each at the next multiple of [`LINE`]; a record ends at a multiple of
//!   [`PAGE`].
//!
//! Everything between parts is zero.

use super::{Element, ProjectionShape};

/// Version of the checksum table, and of the manifest of a pack that any version of this program can read.
pub(crate) const VERSION: u32 = 1;
/// Version of the manifest of a pack that holds what GGUF files brought: blocks, or decays stored as they are used.
pub(crate) const VERSION_BLOCKS: u32 = 2;
/// Version of packs with 4-bit floats in two planes.
pub(crate) const VERSION_PLANES: u32 = 3;
/// Version of packs with 8-bit floats whose scales are those of tiles, and with symmetric groups.
pub(crate) const VERSION_TILES: u32 = 4;
/// Version of packs with tables of whole numbers, whose types it names.
pub(crate) const VERSION_TABLES: u32 = 5;
/// Version of packs with 4-bit floats in groups of 16, integers with zero points, and 8-bit floats with a scale for
/// each row or one for all.
pub(crate) const VERSION_GLOBAL: u32 = 6;
/// Version of packs with tables of rows.
pub(crate) const VERSION_ROWS: u32 = 7;
/// Alignment of records and trunk parts: what direct I/O may ask for.
pub(crate) const PAGE: u64 = 4096;
/// Alignment of the parts of a record: a cache line.
pub(crate) const LINE: u64 = 64;

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const TRUNK: &str = "trunk.bin";
pub(crate) const EXPERTS: &str = "experts";
pub(crate) const CHECKSUMS: &str = "checksums.bin";

/// Name of a layer's file inside [`EXPERTS`].
pub(crate) fn layer_file(layer: usize) -> String {
    format!("layer_{layer:03}.bin")
}

/// A run of bytes inside a file or a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Weight and, in affine encodings, scales and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixSpans {
    pub(crate) weight: Span,
    pub(crate) scales_biases: Option<(Span, Span)>,
}

impl MatrixSpans {
    /// The spans in file order; an encoding without biases has none of them.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Span> {
        let rest = self.scales_biases.map(|(scales, biases)| [scales, biases]);
        let rest = rest.into_iter().flatten().filter(|span| span.bytes > 0);
        std::iter::once(self.weight).chain(rest)
    }
}

/// Where the parts of a record lie, and its size with padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLayout {
    pub(crate) projections: [MatrixSpans; 3],
    pub(crate) bytes: u64,
}

/// Hands out places in increasing order.
struct Cursor {
    at: u64,
    align: u64,
}

impl Cursor {
    fn take(&mut self, bytes: u64) -> Option<Span> {
        let offset = self.at.checked_next_multiple_of(self.align)?;
        self.at = offset.checked_add(bytes)?;
        Some(Span { offset, bytes })
    }

    fn matrix(&mut self, rows: usize, columns: usize, element: Element) -> Option<MatrixSpans> {
        let [weight, scales, biases] = plane_bytes(rows, columns, element)?;
        let weight = self.take(weight)?;
        let scales_biases = match element.planes() {
            1 => None,
            _ => Some((self.take(scales)?, self.take(biases)?)),
        };
        Some(MatrixSpans { weight, scales_biases })
    }
}

/// Bytes of the planes of a matrix; `None` when it cannot exist.
pub(crate) fn plane_bytes(rows: usize, columns: usize, element: Element) -> Option<[u64; 3]> {
    element.check(columns).ok()?;
    // No plane reaches 2^63 bytes when this product is below 2^60.
    let values = (rows as u64).checked_mul(columns as u64).filter(|&values| values < 1 << 60)?;
    if values == 0 {
        return None;
    }
    Some(element.plane_bytes(rows, columns).map(|bytes| bytes as u64))
}

/// Layout of one record; `None` when a matrix cannot exist.
pub(crate) fn record(shapes: &[ProjectionShape; 3]) -> Option<RecordLayout> {
    let mut cursor = Cursor { at: 0, align: LINE };
    let mut place = |index: usize| {
        let ProjectionShape { rows, columns, encoding } = shapes[index];
        cursor.matrix(rows, columns, encoding.into())
    };
    let projections = [place(0)?, place(1)?, place(2)?];
    Some(RecordLayout { projections, bytes: cursor.at.checked_next_multiple_of(PAGE)? })
}

/// Layout of the trunk: spans of each tensor, and the file's size.
pub(crate) fn trunk<'a>(
    tensors: impl IntoIterator<Item = (&'a [usize], Element)>,
) -> Option<(Vec<MatrixSpans>, u64)> {
    let mut cursor = Cursor { at: 0, align: PAGE };
    let mut spans = Vec::new();
    for (shape, element) in tensors {
        let (rows, columns) = flat(shape)?;
        spans.push(cursor.matrix(rows, columns, element)?);
    }
    Some((spans, cursor.at.checked_next_multiple_of(PAGE)?))
}

/// A shape as rows and columns: the last dimension is the row.
pub(crate) fn flat(shape: &[usize]) -> Option<(usize, usize)> {
    let (&columns, outer) = shape.split_last()?;
    let rows = outer.iter().try_fold(1_usize, |rows, &size| rows.checked_mul(size))?;
    Some((rows, columns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::format::{Encoding, FloatType, ScaleType};

    /// The record of the 35B shape at 4 bits is as large as the ancestor's: no padding is needed.
    #[test]
    fn record_of_the_35b_shape() {
        let encoding = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
        let wide = ProjectionShape { rows: 512, columns: 2048, encoding };
        let tall = ProjectionShape { rows: 2048, columns: 512, encoding };
        let layout = record(&[wide, wide, tall]).unwrap();
        assert_eq!(layout.bytes, 1_769_472);
        let down = layout.projections[2];
        assert_eq!(down.weight, Span { offset: 1_179_648, bytes: 524_288 });
        assert_eq!(down.scales_biases.unwrap().1, Span { offset: 1_736_704, bytes: 32_768 });
    }

    /// The record of DeepSeek-V3's experts as published: 42 MiB of values and their scales.
    #[test]
    fn record_of_tiles() {
        let encoding = Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) };
        let wide = ProjectionShape { rows: 2048, columns: 7168, encoding };
        let tall = ProjectionShape { rows: 7168, columns: 2048, encoding };
        let layout = record(&[wide, wide, tall]).unwrap();
        let scales = 16_u64 * 56 * 4;
        assert_eq!(layout.bytes, (3 * (2048 * 7168 + scales)).next_multiple_of(PAGE));
        let (span, none) = layout.projections[1].scales_biases.unwrap();
        assert_eq!((span.bytes, none.bytes), (scales, 0));
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        let float = Encoding::Float(FloatType::F32).into();
        assert_eq!(trunk([(&[usize::MAX, 2][..], float)]), None);
        assert_eq!(trunk([(&[1 << 40, 1 << 30][..], float)]), None);
        assert_eq!(trunk([(&[0, 4][..], float)]), None);
    }
}
