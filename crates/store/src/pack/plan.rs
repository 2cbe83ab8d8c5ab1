//! What a pack will consist of, byte for byte, before any of it is written.
//!
//! Every output file is a list of chunks; a chunk is a run of bytes filled by copies from the source, the
//! rest zero. Checksums are taken over covered runs: a record, or a trunk part with its padding.

use crate::format::layout::{self, MatrixSpans, Span};
use crate::format::manifest::{self, Hex, Layer, Manifest, ProjectionEntry, Spans, TrunkTensor};
use crate::format::{Checkpoint, Extent, LayerExperts, ProjectionShape};

/// Bytes of one chunk: a few large reads and one large write.
const CHUNK_BYTES: u64 = 32 << 20;

/// A run of an output file.
pub(super) struct Chunk {
    pub(super) bytes: u64,
    /// Source bytes and where in the chunk they go.
    pub(super) copies: Vec<(Extent, u64)>,
    /// Runs of the chunk to be summed, in order; `true` where the covered run ends.
    pub(super) sums: Vec<(u64, bool)>,
}

pub(super) struct OutputFile {
    /// Relative to the pack.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) kind: Output,
}

pub(super) enum Output {
    Trunk(Vec<(Extent, u64)>),
    Layer { index: usize, record_bytes: u64, spans: [MatrixSpans; 3] },
}

pub(super) struct Plan {
    pub(super) manifest: Manifest,
    pub(super) files: Vec<OutputFile>,
}

impl Plan {
    /// `None` when a shape has no place in a pack (an opened checkpoint has none such).
    pub(super) fn new(source: &Checkpoint) -> Option<Self> {
        let shapes = source.tensors.values().map(|tensor| (&tensor.shape[..], tensor.encoding));
        let (spans, trunk_bytes) = layout::trunk(shapes)?;
        let mut parts = Vec::new();
        let mut tensors = Vec::new();
        for ((name, tensor), spans) in source.tensors.iter().zip(&spans) {
            let ends = spans.parts().map(|span| span.offset + span.bytes);
            for (extent, end) in tensor.parts().zip(ends) {
                parts.push((extent, end.next_multiple_of(layout::PAGE)));
            }
            tensors.push(TrunkTensor {
                name: name.clone(),
                shape: tensor.shape.clone(),
                encoding: manifest::encoding_name(tensor.encoding),
                at: Spans::from(spans),
            });
        }
        let mut files = vec![OutputFile {
            name: layout::TRUNK.to_owned(),
            bytes: trunk_bytes,
            kind: Output::Trunk(parts),
        }];
        let mut layers = Vec::new();
        for (index, layer) in source.experts.iter().enumerate() {
            let Some(layer) = layer else {
                layers.push(None);
                continue;
            };
            let record = layout::record(&layer.shapes)?;
            let (record_bytes, spans) = (record.bytes, record.projections);
            files.push(OutputFile {
                name: format!("{}/{}", layout::EXPERTS, layout::layer_file(index)),
                bytes: record_bytes * layer.experts.len() as u64,
                kind: Output::Layer { index, record_bytes, spans },
            });
            layers.push(Some(describe(layer, record_bytes, &spans)));
        }
        let manifest = Manifest {
            format: manifest::FORMAT.to_owned(),
            version: layout::VERSION,
            source: manifest::Source {
                kind: source.kind.name().to_owned(),
                fingerprint: Hex(source.fingerprint()),
            },
            norms_are_zero_centred: source.norms_are_zero_centred,
            recipe: serde_json::json!({"experts": "keep", "trunk": "keep"}),
            trunk_bytes,
            layers,
            checksums: manifest::Table { bytes: 0, xxh3: Hex(0) },
            copied: Vec::new(),
            skipped: source.skipped.clone(),
            unused: source.unused.clone(),
            config: source.config.clone(),
            tensors,
        };
        Some(Self { manifest, files })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn describe(layer: &LayerExperts, record_bytes: u64, spans: &[MatrixSpans; 3]) -> Layer {
    let entry = |index: usize| {
        let ProjectionShape { rows, columns, encoding } = layer.shapes[index];
        let encoding = manifest::encoding_name(encoding);
        ProjectionEntry { shape: [rows, columns], encoding, at: Spans::from(&spans[index]) }
    };
    let experts = layer.experts.len();
    Layer { experts, record_bytes, gate: entry(0), up: entry(1), down: entry(2) }
}

impl OutputFile {
    /// The chunks of this file, in order.
    pub(super) fn chunks(&self, source: &Checkpoint) -> Vec<Chunk> {
        match &self.kind {
            Output::Trunk(parts) => trunk_chunks(parts),
            Output::Layer { index, record_bytes, spans } => {
                let layer = source.experts[*index].as_ref();
                layer.map_or_else(Vec::new, |layer| layer_chunks(layer, *record_bytes, spans))
            }
        }
    }
}

fn trunk_chunks(parts: &[(Extent, u64)]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut start = 0;
    for &(extent, end) in parts {
        let (mut done, covered) = (0, end - start);
        while done < covered {
            let bytes = (covered - done).min(CHUNK_BYTES);
            let length = extent.length.saturating_sub(done).min(bytes);
            let piece = Extent { offset: extent.offset + done, length, ..extent };
            done += bytes;
            let sums = vec![(bytes, done == covered)];
            chunks.push(Chunk { bytes, copies: vec![(piece, 0)], sums });
        }
        start = end;
    }
    chunks
}

fn layer_chunks(layer: &LayerExperts, record_bytes: u64, spans: &[MatrixSpans; 3]) -> Vec<Chunk> {
    let batch = (CHUNK_BYTES / record_bytes).max(1) as usize;
    let mut chunks = Vec::new();
    for experts in layer.experts.chunks(batch) {
        let mut copies = Vec::new();
        for (index, expert) in experts.iter().enumerate() {
            let base = index as u64 * record_bytes;
            let mut copy = |from: Extent, to: Span| copies.push((from, base + to.offset));
            for (projection, spans) in spans.iter().enumerate() {
                copy(expert.weight[projection], spans.weight);
                let pair = expert.scales_biases[projection].zip(spans.scales_biases);
                if let Some(((scales, biases), (to_scales, to_biases))) = pair {
                    copy(scales, to_scales);
                    copy(biases, to_biases);
                }
            }
        }
        // In source order, so that neighbours are read together.
        copies.sort_by_key(|(extent, _)| (extent.file, extent.offset));
        let bytes = experts.len() as u64 * record_bytes;
        chunks.push(Chunk { bytes, copies, sums: vec![(record_bytes, true); experts.len()] });
    }
    chunks
}
