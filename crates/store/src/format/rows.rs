//! Tables of rows, a few for each token: what the layers of hashed n-grams of Qwen3.8-Flash-Next look up.
//!
//! A table is no tensor of the trunk. It has hundreds of millions of rows, which are read one by one where they lie
//! ([`crate::rows`]), so that a checkpoint describes it by where its parts are and nothing of it is loaded.

use std::collections::BTreeMap;
use std::path::Path;

use kernels::format::{Encoding, FloatType};

use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::row_pages::RowPages;
use super::safetensors::RawTensor;
use super::{CheckpointFile, Extent, FileId, Tensor, files};
use crate::io::platform::FileExt;

/// The end of the canonical name of a table.
pub const NGRAM_TABLE: &str = "ple.ple_embedding.ngram_embedding";

/// What follows `layers.N.` in a canonical name of this family alone.
pub(crate) const LAYER_TENSORS: [&str; 22] = [
    "attn_hyper_connection.hc_norm",
    "attn_hyper_connection.input_mix_weight_down",
    "attn_hyper_connection.input_mix_weight_up",
    "attn_hyper_connection.block_inject_weight",
    "mlp_hyper_connection.hc_norm",
    "mlp_hyper_connection.input_mix_weight_down",
    "mlp_hyper_connection.input_mix_weight_up",
    "mlp_hyper_connection.block_inject_weight",
    "self_attn.indexer.index_qk_proj",
    // Its rows as GGUF files part them.
    "self_attn.indexer.q_proj",
    "self_attn.indexer.k_proj",
    "self_attn.indexer.q_layernorm",
    "self_attn.indexer.k_layernorm",
    "ple.key_proj",
    "ple.value_proj",
    "ple.norm_key",
    "ple.norm_query",
    "ple.norm_conv",
    "ple.conv1d",
    NUMBERS[0],
    NUMBERS[1],
    NUMBERS[2],
];

/// Those of them that are whole numbers: constants of the hash, which follow from the configuration.
pub(crate) const NUMBERS: [&str; 3] = [
    "ple.ple_embedding.layer_multipliers",
    "ple.ple_embedding.ngram_heads_vocab_sizes",
    "ple.ple_embedding.ngram_heads_offsets",
];

/// What lies outside of layers.
pub(crate) const MODEL_TENSORS: [&str; 3] = [
    "hyper_connection_mixer.hc_norm",
    "hyper_connection_mixer.input_mix_weight_down",
    "hyper_connection_mixer.input_mix_weight_up",
];

/// What a refusal of a table's type says.
const TYPES: &str = "rows are read in bf16, f16, f32, 8-bit floats with one scale, and GGUF's blocks or MLX's groups \
     that divide them";

/// The norm by which files tell whether the family's norms are stored around zero, and its name.
pub(crate) fn norm_that_tells(tensors: &BTreeMap<String, Tensor>) -> Option<(&str, &Tensor)> {
    let (name, norm) = tensors.get_key_value("layers.0.attn_hyper_connection.hc_norm")?;
    Some((name, norm))
}

/// A table whose rows are looked up by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowTable {
    /// Rows of all parts.
    pub rows: u64,
    /// Values of a row.
    pub columns: usize,
    /// Encoding of the values; a row is whole bytes of it.
    pub encoding: Encoding,
    /// The parts, in order of their rows.
    pub parts: Vec<RowPart>,
    /// What all rows share, in an encoding that has such: the scale of 8-bit floats.
    pub shared: Vec<u8>,
    /// Whether whole rows lie in pages, all pieces of a row one after the other, as packs have them.
    pub paged: bool,
}

/// Rows that lie one after the other in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPart {
    /// Number of the first of them.
    pub first: u64,
    /// Where they lie, or their packed values.
    pub extent: Extent,
    /// Their scales and biases, where those lie apart from the values.
    pub scales_biases: Option<(Extent, Extent)>,
}

impl RowPart {
    /// Where its planes lie.
    fn planes(&self) -> impl Iterator<Item = Extent> {
        let rest = self.scales_biases.map(|(scales, biases)| [scales, biases]);
        std::iter::once(self.extent).chain(rest.into_iter().flatten())
    }
}

impl RowTable {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.encoding.matrix_bytes(1, self.columns) - self.shared.len()
    }

    /// Bytes of all rows, without the padding of pages.
    pub fn bytes(&self) -> u64 {
        self.rows * self.row_bytes() as u64
    }

    /// The files that rows lie in, some of them several times.
    pub fn files(&self) -> impl Iterator<Item = FileId> {
        self.parts.iter().flat_map(RowPart::planes).map(|extent| extent.file)
    }

    /// Reads that a row takes where it lies: one for each plane.
    pub fn pieces(&self) -> usize {
        self.parts.first().map_or(1, |part| part.planes().count())
    }

    /// Runs of pages that have a checksum each, in order: the first row, and where the run lies. None where rows lie in
    /// no pages.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, Extent)> {
        let pages = RowPages::of(self.rows, self.row_bytes()).filter(|_| self.paged);
        let file = self.parts.first().map_or(FileId(0), |part| part.extent.file);
        let runs = move |pages: RowPages| {
            (0..pages.runs()).map(move |run| (run * pages.run_rows(), pages.run(run, file)))
        };
        pages.into_iter().flat_map(runs)
    }

    /// Where the pieces of a row lie, whose bytes one after the other are the row; `None` for one that does not exist.
    pub fn places(&self, row: u64) -> Option<impl Iterator<Item = Extent>> {
        let next = self.parts.partition_point(|part| part.first <= row);
        let part = *self.parts[..next].last().filter(|_| row < self.rows)?;
        let row_bytes = self.row_bytes();
        let lengths = match part.scales_biases {
            None => [row_bytes, 0, 0],
            Some(_) => self.encoding.plane_bytes(1, self.columns),
        };
        let pages = RowPages::of(self.rows, row_bytes).filter(|_| self.paged);
        let number = row - part.first;
        let extents = [
            Some(part.extent),
            part.scales_biases.map(|it| it.0),
            part.scales_biases.map(|it| it.1),
        ];
        let places = extents.into_iter().flatten().zip(lengths).map(move |(extent, length)| {
            let length = length as u64;
            let place = pages.map_or(number * length, |pages| pages.offset(number, row_bytes));
            Extent { offset: extent.offset + place, length, ..extent }
        });
        Some(places)
    }
}

/// The part that a canonical name below a layer means: its number, or none where the table is one tensor. `None` for
/// another name.
pub(crate) fn part(rest: &str) -> Option<Option<usize>> {
    let rest = rest.strip_prefix(NGRAM_TABLE)?;
    if rest.is_empty() {
        return Some(None);
    }
    let number = rest.strip_prefix(".shard_").or_else(|| rest.strip_prefix(".shards."))?;
    super::names::number(number).map(Some)
}

/// Whether rows in this encoding are read.
pub(crate) fn is_read(encoding: Encoding) -> bool {
    match encoding {
        Encoding::Float(_) | Encoding::Block(_) | Encoding::Affine { .. } => true,
        Encoding::Fp8Rows { shared, .. } => shared,
        _ => false,
    }
}

/// The scale that all rows of a table share.
pub(crate) struct SharedScale {
    float: FloatType,
    bytes: Vec<u8>,
}

impl SharedScale {
    /// Reads it: one number, in whose place a matrix has scales.
    pub(crate) fn read(path: &Path, tensor: &RawTensor) -> Result<Self, FormatError> {
        let invalid =
            |found: String| FormatError::invalid(path, &tensor.name, found, DOWNLOAD_AGAIN);
        let float = tensor.dtype.float().filter(|_| tensor.shape.iter().all(|&size| size == 1));
        let Some(float) = float else {
            let found = format!("{} {:?}, not one number", tensor.dtype.name(), tensor.shape);
            return Err(invalid(found));
        };
        let mut bytes = vec![0; float.bytes()];
        let read = files::open_regular(path)?.file.read_exact_at(&mut bytes, tensor.offset);
        read.map_err(|error| FormatError::io(path, "read", error))?;
        let value = float.decode(&bytes, 0);
        match value.is_finite() {
            true => Ok(Self { float, bytes }),
            false => Err(invalid(format!("is {value}"))),
        }
    }

    /// A part of the table, whose rows are 8-bit floats without scales of their own.
    pub(crate) fn part(&self, file: FileId, raw: &RawTensor) -> Tensor {
        let encoding = Encoding::Fp8Rows { scale: self.float, shared: true };
        Tensor {
            shape: raw.shape.clone(),
            element: encoding.into(),
            weight: Extent { file, offset: raw.offset, length: raw.length },
            scales_biases: None,
        }
    }
}

/// Joins the parts of a layer's table, by number; `shared` is the scale of all its rows, where there is one. Gives the
/// table's name as well.
pub(crate) fn join(
    config: &Path,
    files: &[CheckpointFile],
    layer: usize,
    parts: BTreeMap<Option<usize>, (FileId, Tensor)>,
    mut shared: Option<SharedScale>,
) -> Result<(String, RowTable), FormatError> {
    let name = format!("layers.{layer}.{NGRAM_TABLE}");
    let path = |file: FileId| files[file.0 as usize].path.as_path();
    let numbered = parts.len() > 1 || !parts.contains_key(&None);
    let mut table: Option<RowTable> = None;
    for (expected, (number, (file, tensor))) in parts.into_iter().enumerate() {
        let own = number.map_or_else(|| name.clone(), |it| format!("{name}.shard_{it}"));
        if numbered && number != Some(expected) {
            let missing = format!("{name}.shard_{expected}");
            let found = format!("missing, but {own} is there");
            return Err(FormatError::invalid(config, missing, found, DOWNLOAD_AGAIN));
        }
        let refused = |why: String| {
            let (element, shape) = (tensor.element.name(), &tensor.shape);
            let found = format!("rows of n-grams as {element} in shape {shape:?}{why}");
            FormatError::unsupported(path(file), &own, found, TYPES)
        };
        let known = |encoding: &Encoding| {
            let one = matches!(encoding, Encoding::Fp8Rows { .. });
            is_read(*encoding) && !(one && tensor.scales_biases.is_some())
        };
        let encoding = tensor.element.encoding().filter(known);
        let (&[rows, columns], Some(encoding)) = (&tensor.shape[..], encoding) else {
            return Err(refused(String::new()));
        };
        encoding.check(columns).map_err(|why| refused(format!(": {why}")))?;
        let known = table.get_or_insert_with(|| {
            let of_all = encoding.shared_bytes() != [0; 3];
            let shared = shared.take_if(|_| of_all).map(|it| it.bytes).unwrap_or_default();
            RowTable { rows: 0, columns, encoding, parts: Vec::new(), shared, paged: false }
        });
        if (known.columns, known.encoding) != (columns, encoding) {
            let found = format!(
                "rows of {columns} values as {}, those before have {} as {}",
                encoding.name(),
                known.columns,
                known.encoding.name()
            );
            return Err(FormatError::invalid(path(file), own, found, DOWNLOAD_AGAIN));
        }
        let Tensor { weight: extent, scales_biases, .. } = tensor;
        known.parts.push(RowPart { first: known.rows, extent, scales_biases });
        known.rows += rows as u64;
    }
    if shared.is_some() {
        let (field, found) = (format!("{name}.weight_scale"), "a scale of rows that have none");
        return Err(FormatError::invalid(config, field, found, DOWNLOAD_AGAIN));
    }
    Ok((name, table.expect("a name is only met with a part")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_in_their_parts() {
        let part = |first, file, offset, rows: u64| RowPart {
            first,
            extent: Extent { file: FileId(file), offset, length: 6 * rows },
            scales_biases: None,
        };
        let table = RowTable {
            shared: Vec::new(),
            paged: false,
            rows: 9,
            columns: 3,
            encoding: Encoding::Float(FloatType::Bf16),
            parts: vec![part(0, 4, 11, 4), part(4, 2, 100, 4), part(8, 4, 50, 1)],
        };
        let place = |row| {
            let mut places = table.places(row)?.map(|it| (it.file.0, it.offset, it.length));
            let first = places.next();
            assert_eq!(places.next(), None);
            first
        };
        assert_eq!(place(0), Some((4, 11, 6)));
        assert_eq!(place(3), Some((4, 29, 6)));
        assert_eq!(place(4), Some((2, 100, 6)));
        assert_eq!(place(8), Some((4, 50, 6)));
        assert_eq!(place(9), None);
        assert_eq!(table.bytes(), 54);
        // Six hundred and eighty-two rows of six bytes are a page.
        let paged = RowTable { rows: 2000, parts: vec![part(0, 3, 0, 0)], paged: true, ..table };
        let place = |row| paged.places(row).unwrap().next().unwrap();
        assert_eq!([681, 682, 1999].map(|row| place(row).offset), [4086, 4096, 8192 + 635 * 6]);
        assert_eq!((place(682).length, paged.bytes()), (6, 12_000));
    }

    /// Sixty-four values of four bits in two groups, with scales and biases in places of their own.
    #[test]
    fn rows_of_planes_are_found_in_each() {
        let extent = |file, offset, length| Extent { file: FileId(file), offset, length };
        let part = |first, at: u64, rows: u64| RowPart {
            first,
            extent: extent(0, at, 32 * rows),
            scales_biases: Some((extent(1, at + 5, 4 * rows), extent(0, at + 7, 4 * rows))),
        };
        let encoding = Encoding::Affine { bits: 4, group: 32, scale: FloatType::Bf16 };
        let parts = vec![part(0, 1000, 10), part(10, 9000, 3)];
        let table =
            RowTable { rows: 13, columns: 64, encoding, parts, shared: Vec::new(), paged: false };
        let places = |row| {
            let places = table.places(row).unwrap();
            places.map(|it| (it.file.0, it.offset, it.length)).collect::<Vec<_>>()
        };
        assert_eq!(places(9), [(0, 1288, 32), (1, 1041, 4), (0, 1043, 4)]);
        assert_eq!(places(12), [(0, 9064, 32), (1, 9013, 4), (0, 9015, 4)]);
        assert!(table.places(13).is_none());
        assert_eq!((table.row_bytes(), table.pieces(), table.bytes()), (40, 3, 520));
    }

    #[test]
    fn parts_have_numbers_of_one_form() {
        assert_eq!(super::part(NGRAM_TABLE), Some(None));
        assert_eq!(super::part(&format!("{NGRAM_TABLE}.shard_12")), Some(Some(12)));
        assert_eq!(super::part(&format!("{NGRAM_TABLE}.shards.3")), Some(Some(3)));
        for other in [".shard_01", ".shard_", ".shard_-1", ".shard_1.x", "x"] {
            assert_eq!(super::part(&format!("{NGRAM_TABLE}{other}")), None, "{other}");
        }
    }
}
