//! Checkpoints: what a folder contains, where, and in which encoding.
//!
//! Every source (MLX, Hugging Face, GGUF, native pack, the ancestor's folders) is described by the same
//! [`Checkpoint`]: canonical tensor names, encodings, and byte extents. Nothing is read but headers;
//! every length and offset is checked against the file before it is believed.
//!
//! Canonical names are the Hugging Face names without prefix (`model.`, `model.language_model.`,
//! `language_model.model.`, `language_model.`) and without `.weight`: `embed_tokens`, `lm_head`, `norm`,
//! `layers.0.input_layernorm`, `layers.0.linear_attn.in_proj_qkv`, `layers.0.linear_attn.A_log`,
//! `layers.0.mlp.gate`, `layers.0.mlp.shared_expert.gate_proj`, ... Routed experts are not in the tensor
//! map: they are [`LayerExperts`]; nor are tables of rows: they are [`RowTable`]s. Convolution kernels are reported as
//! `[channels, kernel]` whatever the file's axis order, because `[C, 1, 4]` and `[C, 4, 1]` hold the same bytes.

mod ancestor;
mod assemble;
pub mod config;
mod contents;
pub mod deepseek_v4;
mod element;
mod error;
pub(crate) mod files;
mod gguf;
mod head;
mod hugging_face;
pub(crate) mod input_major;
mod json;
mod layer;
pub(crate) mod layout;
mod links;
pub(crate) mod manifest;
pub(crate) mod names;
pub(crate) mod native;
mod place;
mod published;
mod quantization;
mod range;
pub(crate) mod row_pages;
pub mod rows;
mod safetensors;
mod scaled;
mod shards;
pub(crate) mod sidecar;
mod source;
mod summary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kernels::format::Encoding;

pub use config::{Configuration, Family};
pub use element::{Element, Integer};
pub use error::FormatError;
pub use gguf::{Vocabulary, read_gguf_header, word_expressions};
pub use head::{DraftHead, Head};
pub use input_major::InputMajors;
pub use manifest::Requantised;
pub use rows::{RowPart, RowTable};
pub use safetensors::read_safetensors_header;
pub use sidecar::TokenizerSource;
pub use summary::{PartSum, record_checksum};

/// Index of a file in [`Checkpoint::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A run of bytes in a file. Offsets need no alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A file of a checkpoint as it was at open.
#[derive(Clone, Debug)]
pub struct CheckpointFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Its size at open, bytes.
    pub length: u64,
    /// Last modification at open, nanoseconds since 1970.
    pub modified_ns: i128,
    /// Last change at open, of content or of anything else, nanoseconds since 1970.
    pub changed_ns: i128,
    /// Checksum of what was read of it at open (a safetensors header); zero where nothing was.
    pub header_checksum: u64,
}

/// Which layout a checkpoint was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// Safetensors written by mlx-lm.
    Mlx,
    /// Safetensors with Hugging Face names.
    HuggingFace,
    /// The project's own pack.
    Native,
    /// `model_weights.bin` with `packed_experts/`.
    Ancestor,
    /// GGUF files.
    Gguf,
}

/// A matrix, vector or table of one type: its shape and where its parts lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Logical shape, outermost first; a vector has one dimension.
    pub shape: Vec<usize>,
    /// Type of the values.
    pub element: Element,
    /// Packed values.
    pub weight: Extent,
    /// Scales and biases of an affine encoding.
    pub scales_biases: Option<(Extent, Extent)>,
}

/// The three matrices of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Projection {
    /// `[intermediate, hidden]`
    Gate,
    /// `[intermediate, hidden]`
    Up,
    /// `[hidden, intermediate]`
    Down,
}

/// Encoding and shape of one projection; the same for all experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectionShape {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Encoding.
    pub encoding: Encoding,
}

/// Where the pieces of one expert lie: for each projection (gate, up, down) the weight and, in affine
/// encodings, scales and biases. A native record has them all inside one extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertExtents {
    /// Index by [`Projection`] as usize.
    pub weight: [Extent; 3],
    /// Index by [`Projection`] as usize.
    pub scales_biases: [Option<(Extent, Extent)>; 3],
}

/// The routed experts of one layer.
#[derive(Clone, Debug)]
pub struct LayerExperts {
    /// Index by [`Projection`] as usize.
    pub shapes: [ProjectionShape; 3],
    /// One entry per expert.
    pub experts: Vec<ExpertExtents>,
}

/// An opened checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The layout found.
    pub kind: SourceKind,
    /// The folder.
    pub root: PathBuf,
    /// Every file that an extent can name.
    pub files: Vec<CheckpointFile>,
    /// What config.json, or the manifest's copy of it, says.
    pub config: Configuration,
    /// generation_config.json, when present.
    pub generation_config: Option<serde_json::Value>,
    /// The tokenizer, when present.
    pub tokenizer: Option<TokenizerSource>,
    /// tokenizer_config.json as parsed, when present.
    pub tokenizer_config: Option<serde_json::Value>,
    /// The chat template's text (chat_template.jinja, chat_template.json or tokenizer_config.json).
    pub chat_template: Option<String>,
    /// Every tensor outside the routed experts, by canonical name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Routed experts by layer; `None` for a dense layer.
    pub experts: Vec<Option<LayerExperts>>,
    /// Tables whose rows are read one by one, by canonical name.
    pub row_tables: BTreeMap<String, RowTable>,
    /// True when zero-centred norm weights are stored as `w`, so that `1 + w` is still to be formed
    /// (Hugging Face layout); false when the file holds `1 + w` (MLX and its descendants).
    pub norms_are_zero_centred: bool,
    /// What predicts further tokens, behind the last layer.
    pub head: Head,
    /// Names knowingly not used (vision tower, multi-token prediction), for `inspect`.
    pub skipped: Vec<String>,
    /// Names that no family has: their meaning is unknown, so nothing is done with them.
    pub unused: Vec<String>,
    /// Which matrices lie inputs before outputs, for the packer alone.
    pub input_majors: InputMajors,
    /// What only a native pack has.
    pub pack: Option<PackInfo>,
}

/// Origin and checksums of a native pack (XXH3, 64 bits).
#[derive(Clone, Debug)]
pub struct PackInfo {
    /// Version of the pack format.
    pub version: u32,
    /// Layout that the pack was made from.
    pub source_kind: String,
    /// [`Checkpoint::fingerprint`] of the source.
    pub source_fingerprint: u64,
    /// The quantisation recipe as recorded.
    pub recipe: serde_json::Value,
    /// Matrices that the recipe encoded anew, with their errors.
    pub requantised: Vec<Requantised>,
    /// Parts of the trunk (`lm_head.scales`): name, bytes covered (padding included), checksum.
    pub trunk: Vec<(String, Extent, u64)>,
    /// Checksum of every record, by layer and expert; empty for a dense layer.
    pub records: Vec<Vec<u64>>,
    /// Of each table of rows its name, and the checksum of every run of its pages.
    pub rows: Vec<(String, Vec<u64>)>,
    /// Copied files: name and checksum.
    pub copied: Vec<(String, u64)>,
}

/// Opens the checkpoint in the folder `path`, or the one whose file `path` is.
///
/// Only headers and small files are read. An error names the file and the field to blame.
///
/// # Errors
/// What is no checkpoint, damaged, not read, or lies inputs before outputs ([`FormatError::ToPack`]).
pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    open_to_pack(path)?.in_place()
}

/// Opens a checkpoint whose matrices may lie inputs before outputs (GPTQ, AWQ, AutoRound), as [`open`] does any other:
/// shapes, encodings and sizes are those of its pack, extents are only for the packer.
///
/// # Errors
/// What is no checkpoint, damaged, or not read.
pub fn open_to_pack(path: &Path) -> Result<Checkpoint, FormatError> {
    let metadata = path.metadata().map_err(|error| FormatError::io(path, "open", error))?;
    if metadata.is_dir() {
        return source::open(&place::Place { folder: path, file: None });
    }
    // A named pipe or device is refused before its name is looked at.
    files::open_regular(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    source::open(&place::Place { folder, file: Some(path) })
}

/// Present in a pack from its first byte written to its last.
pub(crate) const JOURNAL: &str = "journal";
