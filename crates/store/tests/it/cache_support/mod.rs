//! Synthetic checkpoints for the tests of the store: known bytes at known places.
//!
//! Every byte of every file is a function of its file and position, so that a test can tell what any
//! record must contain without keeping a copy.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use kernels::format::{Encoding, FloatType};
use store::cache::ExpertBytes;
use store::format::{
    Checkpoint, CheckpointFile, ExpertExtents, Extent, FileId, LayerExperts, PackInfo, Projection,
    ProjectionShape, SourceKind, record_checksum,
};
use store::{ExpertId, LayerId};

/// Rows and columns of the test experts: a weight of 64 x 128 at 4 bits is one block.
const ROWS: usize = 64;
const COLUMNS: usize = 128;

/// How records lie in their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub(crate) enum Layout {
    /// One aligned record per expert, one file per layer.
    Native,
    /// Nine arrays per layer in one file, starting at odd offsets.
    Stacked,
}

/// The byte at a position of a file.
pub(crate) fn byte_at(file: u32, position: u64) -> u8 {
    let mixed = (position ^ (u64::from(file) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

fn piece_bytes() -> [u64; 3] {
    let weight = ROWS * COLUMNS / 2;
    let scales = ROWS * (COLUMNS / 64) * 2;
    [weight as u64, scales as u64, scales as u64]
}

/// A checkpoint of `layers` layers with `experts` experts each, written under `root`.
pub(crate) fn checkpoint(
    root: &Path,
    layers: usize,
    experts: usize,
    layout: Layout,
) -> Arc<Checkpoint> {
    Arc::new(plain_checkpoint(root, layers, experts, layout))
}

/// A native one with the checksum of every record, as packs have them.
#[allow(dead_code)]
pub(crate) fn checkpoint_with_checksums(
    root: &Path,
    layers: usize,
    experts: usize,
) -> Arc<Checkpoint> {
    let mut checkpoint = plain_checkpoint(root, layers, experts, Layout::Native);
    let record = native_record_bytes();
    let sums = |layer: usize| {
        let sum = |expert: u64| {
            let places = expert * record..(expert + 1) * record;
            let bytes: Vec<u8> = places.map(|at| byte_at(layer as u32, at)).collect();
            record_checksum(&bytes)
        };
        (0..experts as u64).map(sum).collect()
    };
    checkpoint.pack = Some(PackInfo {
        version: 1,
        source_kind: "mlx".to_owned(),
        source_fingerprint: 0,
        recipe: serde_json::Value::Null,
        requantised: Vec::new(),
        trunk: Vec::new(),
        rows: Vec::new(),
        records: (0..layers).map(sums).collect(),
        copied: Vec::new(),
    });
    Arc::new(checkpoint)
}

fn plain_checkpoint(root: &Path, layers: usize, experts: usize, layout: Layout) -> Checkpoint {
    let layer = |layer| match layout {
        Layout::Native => native_layer(FileId(layer as u32), experts),
        Layout::Stacked => stacked_layer(FileId(layer as u32), experts),
    };
    let kind = if layout == Layout::Native { SourceKind::Native } else { SourceKind::Mlx };
    Checkpoint { kind, ..described(root, (0..layers).map(layer).collect()) }
}

/// A native checkpoint of the given experts, a file with as many bytes for each layer.
pub(crate) fn described(root: &Path, layers: Vec<(Vec<ExpertExtents>, u64)>) -> Checkpoint {
    let mut files = Vec::new();
    let mut described = Vec::new();
    for (layer, (extents, length)) in layers.into_iter().enumerate() {
        let path = root.join(format!("layer_{layer:02}.bin"));
        let bytes: Vec<u8> = (0..length).map(|position| byte_at(layer as u32, position)).collect();
        std::fs::write(&path, bytes).unwrap();
        files.push(CheckpointFile {
            path,
            length,
            modified_ns: 0,
            changed_ns: 0,
            header_checksum: 0,
        });
        let encoding = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
        let shapes = [ProjectionShape { rows: ROWS, columns: COLUMNS, encoding }; 3];
        described.push(Some(LayerExperts { shapes, experts: extents }));
    }
    Checkpoint {
        kind: SourceKind::Native,
        root: root.to_path_buf(),
        files,
        config: store::format::Configuration::default(),
        generation_config: None,
        tokenizer: None,
        tokenizer_config: None,
        chat_template: None,
        tensors: BTreeMap::new(),
        experts: described,
        row_tables: BTreeMap::new(),
        norms_are_zero_centred: false,
        head: store::format::Head::Absent,
        skipped: Vec::new(),
        unused: Vec::new(),
        input_majors: Default::default(),
        pack: None,
    }
}

fn expert_at(file: FileId, mut place: impl FnMut(usize, u64) -> u64) -> ExpertExtents {
    let sizes = piece_bytes();
    let mut at = |piece: usize| {
        let length = sizes[piece % 3];
        Extent { file, offset: place(piece, length), length }
    };
    let whole: [Extent; 9] = std::array::from_fn(&mut at);
    ExpertExtents {
        weight: [whole[0], whole[3], whole[6]],
        scales_biases: [
            Some((whole[1], whole[2])),
            Some((whole[4], whole[5])),
            Some((whole[7], whole[8])),
        ],
    }
}

/// Bytes of a record of [`Layout::Native`], with padding.
pub(crate) fn native_record_bytes() -> u64 {
    (3 * piece_bytes().iter().sum::<u64>()).next_multiple_of(4096)
}

fn native_layer(file: FileId, experts: usize) -> (Vec<ExpertExtents>, u64) {
    let record = native_record_bytes();
    let extents = (0..experts as u64).map(|expert| {
        let mut cursor = expert * record;
        expert_at(file, |_, length| {
            cursor += length;
            cursor - length
        })
    });
    (extents.collect(), experts as u64 * record)
}

fn stacked_layer(file: FileId, experts: usize) -> (Vec<ExpertExtents>, u64) {
    let sizes = piece_bytes();
    let mut starts = [0u64; 9];
    let mut cursor = 4097;
    for (piece, start) in starts.iter_mut().enumerate() {
        *start = cursor;
        cursor += sizes[piece % 3] * experts as u64 + 13;
    }
    let extents = (0..experts as u64)
        .map(|expert| expert_at(file, |piece, length| starts[piece] + expert * length));
    (extents.collect(), cursor)
}

/// True when the bytes handed out are those of the files.
pub(crate) fn is_right(
    checkpoint: &Checkpoint,
    layer: LayerId,
    expert: ExpertId,
    bytes: &ExpertBytes<'_>,
) -> bool {
    let extents = &checkpoint.experts[layer.index()].as_ref().unwrap().experts[expert.index()];
    let same = |extent: Extent, found: &[u8]| {
        found.len() as u64 == extent.length
            && found.iter().zip(extent.offset..).all(|(&b, at)| b == byte_at(extent.file.0, at))
    };
    [Projection::Gate, Projection::Up, Projection::Down].into_iter().all(|projection| {
        let (scales, biases) = extents.scales_biases[projection as usize].unwrap();
        same(extents.weight[projection as usize], bytes.weight(projection))
            && same(scales, bytes.scales(projection))
            && same(biases, bytes.biases(projection))
    })
}

/// Expert ids.
pub(crate) fn ids(experts: &[u16]) -> Vec<ExpertId> {
    experts.iter().copied().map(ExpertId).collect()
}
