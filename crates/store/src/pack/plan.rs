//! What a pack will consist of, byte for byte, before any of it is written.
//!
//! Every output file is a list of chunks; a chunk is a run of bytes filled by copies from the source, by matrices that
//! are turned (they lie inputs before outputs) and by matrices encoded anew, the rest zero. Checksums are taken over
//! covered runs: a record, or a trunk part with its padding.

use std::ops::Range;

use kernels::format::Encoding;

use super::PackError;
use super::finite::Plane;
use super::recipe::Recipe;
use super::rows;
use super::turn::ROWS_TOGETHER;
use crate::format::layout::{self, MatrixSpans, Span};
use crate::format::manifest::{self, Hex, Layer, Manifest, ProjectionEntry, Spans, TrunkTensor};
use crate::format::{Checkpoint, Extent, FileId, LayerExperts, ProjectionShape, Tensor};

/// Bytes of one chunk: a few large reads and one large write.
const CHUNK_BYTES: u64 = 32 << 20;
/// Values that one thread encodes at a time: 4 MiB of floats.
const ENCODE_VALUES: usize = 1 << 20;
/// Values that one thread turns at a time: 8 MiB of 4 bits. More rows are longer reads.
const TURN_VALUES: usize = 1 << 24;

/// Names of the projections, as in manifests.
pub(super) const PROJECTIONS: [&str; 3] = ["gate", "up", "down"];

/// A run of an output file.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) bytes: u64,
    /// Source bytes and where in the chunk they go.
    pub(super) copies: Vec<Copied>,
    /// Rows to be turned or encoded anew.
    pub(super) encodes: Vec<Encode>,
    /// Parameters of rows that earlier chunks of the file encoded, for the beginning of this one.
    pub(super) kept: Option<Kept>,
    /// Runs of the chunk to be summed, in order; `true` where the covered run ends.
    pub(super) sums: Vec<(u64, bool)>,
}

/// Bytes that stay as they are.
#[derive(Clone, Copy)]
pub(super) struct Copied {
    pub(super) from: Extent,
    /// What they are: whole units of it.
    pub(super) plane: Plane,
    /// Where in the chunk they go.
    pub(super) to: u64,
}

impl Copied {
    /// The order of the source.
    pub(super) fn place(&self) -> (FileId, u64) {
        (self.from.file, self.from.offset)
    }
}

/// Some rows of a matrix, from the source's encoding to another, or to the same where they are turned.
#[derive(Clone)]
pub(super) struct Encode {
    /// Number of the matrix in [`OutputFile::matrices`]; `None` where the encoding stays.
    pub(super) matrix: Option<usize>,
    /// Which rows, of a matrix that lies inputs before outputs: the extents are those of all of it.
    pub(super) turned: Option<Range<usize>>,
    /// The rows in the source.
    pub(super) weight: Extent,
    pub(super) scales_biases: Option<(Extent, Extent)>,
    pub(super) from: Encoding,
    pub(super) to: Encoding,
    pub(super) columns: usize,
    /// Where in the chunk the values go.
    pub(super) weight_to: u64,
    pub(super) parameters_to: Parameters,
}

/// Where scales and biases go.
#[derive(Clone, Copy)]
pub(super) enum Parameters {
    /// Into the chunk, at these places.
    Chunk { scales: u64, biases: u64 },
    /// Aside, for later chunks: in the trunk the scales of a tensor follow all its values.
    Aside { scales: usize, biases: usize },
}

/// A run of parameters kept aside.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    pub(super) biases: bool,
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// A matrix of an output file whose encoding changes.
#[derive(Clone)]
pub(super) struct EncodedMatrix {
    /// As in [`crate::format::Requantised`].
    pub(super) name: String,
    pub(super) from: Encoding,
    pub(super) to: Encoding,
}

pub(super) struct OutputFile {
    /// Relative to the pack.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) kind: Output,
    /// What is encoded anew in it.
    pub(super) matrices: Vec<EncodedMatrix>,
}

pub(super) enum Output {
    Trunk(Vec<TrunkPart>),
    Layer {
        index: usize,
        record_bytes: u64,
        spans: [MatrixSpans; 3],
        targets: [Encoding; 3],
    },
    /// The rows of the table of this name.
    Rows(String),
}

/// A tensor of the trunk, and where its parts end in the file, padding included.
pub(super) enum TrunkPart {
    Copy { extent: Extent, plane: Plane, end: u64 },
    Encode { tensor: Tensor, matrix: EncodedTensor, ends: [u64; 3] },
}

/// What becomes of a tensor that is not copied.
#[derive(Clone, Copy)]
pub(super) struct EncodedTensor {
    /// As in [`Encode`].
    matrix: Option<usize>,
    from: Encoding,
    to: Encoding,
    /// Whether it lies inputs before outputs.
    turned: bool,
}

pub(super) struct Plan {
    pub(super) manifest: Manifest,
    pub(super) files: Vec<OutputFile>,
}

impl Plan {
    /// # Errors
    /// A shape that has no place in a pack, or that the recipe cannot encode.
    pub(super) fn new(source: &Checkpoint, recipe: &Recipe) -> Result<Self, PackError> {
        let (trunk, tensors) = plan_trunk(source, recipe)?;
        let trunk_bytes = trunk.bytes;
        let mut files = vec![trunk];
        let mut layers = Vec::new();
        for (index, layer) in source.experts.iter().enumerate() {
            let Some(layer) = layer else {
                layers.push(None);
                continue;
            };
            let (file, described) = plan_layer(index, layer, recipe)?;
            files.push(file);
            layers.push(Some(described));
        }
        let (tables, row_tables) = rows::plan_tables(source)?;
        files.extend(tables);
        let manifest = Manifest {
            format: manifest::FORMAT.to_owned(),
            version: manifest::version(&tensors, &layers, &row_tables),
            source: manifest::Source {
                kind: source.kind.name().to_owned(),
                fingerprint: Hex(source.fingerprint()),
            },
            norms_are_zero_centred: source.norms_are_zero_centred,
            recipe: recipe.to_json(),
            trunk_bytes,
            layers,
            checksums: manifest::Table { bytes: 0, xxh3: Hex(0) },
            copied: Vec::new(),
            skipped: source.skipped.clone(),
            unused: source.unused.clone(),
            config: source.config.json().clone(),
            tensors,
            row_tables,
        };
        Ok(Self { manifest, files })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// The trunk's file and its tensors, each in the source's encoding or in that of the recipe.
fn plan_trunk(
    source: &Checkpoint,
    recipe: &Recipe,
) -> Result<(OutputFile, Vec<TrunkTensor>), PackError> {
    let change = |(name, tensor): (&String, &Tensor)| {
        let from = tensor.element.encoding()?;
        let to = recipe.trunk(name, &tensor.shape, from);
        (to != from).then_some((from, to))
    };
    let changes: Vec<Option<(Encoding, Encoding)>> = source.tensors.iter().map(change).collect();
    let changed = source.tensors.values().zip(&changes);
    let elements = changed.map(|(tensor, change)| {
        (&tensor.shape[..], change.map_or(tensor.element, |(_, to)| to.into()))
    });
    let (spans, trunk_bytes) = layout::trunk(elements.clone()).ok_or(PackError::Shape)?;
    let mut parts = Vec::new();
    let mut tensors = Vec::new();
    let mut matrices = Vec::new();
    let each = source.tensors.iter().zip(&spans).zip(&changes).zip(elements);
    for ((((name, tensor), spans), &change), (_, element)) in each {
        let mut ends = spans.parts().map(|span| span.offset + span.bytes);
        // A plane that the encoding lacks ends where the one before does.
        let mut last = 0;
        let mut end = || {
            last = ends.next().map_or(last, |end| end.next_multiple_of(layout::PAGE));
            last
        };
        let turned = source.input_major(tensor.weight).map(|matrix| matrix.encoding);
        match (change, turned) {
            (None, None) => {
                let copy = |(extent, plane)| TrunkPart::Copy { extent, plane, end: end() };
                parts.extend(tensor.parts().zip(Plane::of(tensor.element)).map(copy));
            }
            (change, turned) => {
                let ends = [end(), end(), end()];
                let matrix = change.map(|(from, to)| {
                    matrices.push(EncodedMatrix { name: name.clone(), from, to });
                    matrices.len() - 1
                });
                let same = turned.map(|encoding| (encoding, encoding));
                if let Some((from, to)) = change.or(same) {
                    let matrix = EncodedTensor { matrix, from, to, turned: turned.is_some() };
                    parts.push(TrunkPart::Encode { tensor: tensor.clone(), matrix, ends });
                }
            }
        }
        tensors.push(TrunkTensor {
            name: name.clone(),
            shape: tensor.shape.clone(),
            encoding: element.name(),
            at: Spans::from(spans),
            error: None,
        });
    }
    let file = OutputFile {
        name: layout::TRUNK.to_owned(),
        bytes: trunk_bytes,
        kind: Output::Trunk(parts),
        matrices,
    };
    Ok((file, tensors))
}

fn plan_layer(
    index: usize,
    layer: &LayerExperts,
    recipe: &Recipe,
) -> Result<(OutputFile, Layer), PackError> {
    let targets = layer.shapes.map(|shape| recipe.expert(shape.encoding));
    let mut shapes = layer.shapes;
    let mut matrices = Vec::new();
    for ((shape, &to), projection) in shapes.iter_mut().zip(&targets).zip(PROJECTIONS) {
        let name = format!("layers.{index}.experts.{projection}");
        if shape.encoding != to {
            to.check(shape.columns).map_err(|problem| PackError::Recipe {
                name: name.clone(),
                problem: problem.to_string(),
            })?;
            matrices.push(EncodedMatrix { name, from: shape.encoding, to });
        }
        shape.encoding = to;
    }
    let record = layout::record(&shapes).ok_or(PackError::Shape)?;
    let (record_bytes, spans) = (record.bytes, record.projections);
    let file = OutputFile {
        name: format!("{}/{}", layout::EXPERTS, layout::layer_file(index)),
        bytes: record_bytes * layer.experts.len() as u64,
        kind: Output::Layer { index, record_bytes, spans, targets },
        matrices,
    };
    let entry = |index: usize| {
        let ProjectionShape { rows, columns, encoding } = shapes[index];
        let encoding = encoding.name();
        let at = Spans::from(&spans[index]);
        ProjectionEntry { shape: [rows, columns], encoding, at, error: None }
    };
    let experts = layer.experts.len();
    let described = Layer { experts, record_bytes, gate: entry(0), up: entry(1), down: entry(2) };
    Ok((file, described))
}

impl OutputFile {
    /// The chunks of this file, in order.
    pub(super) fn chunks<'a>(
        &'a self,
        source: &'a Checkpoint,
    ) -> Box<dyn Iterator<Item = Chunk> + 'a> {
        match &self.kind {
            Output::Trunk(parts) => Box::new(merged(trunk_chunks(parts)).into_iter()),
            Output::Layer { index, record_bytes, spans, targets } => {
                let layer = source.experts[*index].as_ref();
                let chunks = layer.map_or_else(Vec::new, |layer| {
                    layer_chunks(source, layer, *record_bytes, spans, targets)
                });
                Box::new(chunks.into_iter())
            }
            Output::Rows(name) => {
                Box::new(source.row_tables.get(name).into_iter().flat_map(rows::chunks))
            }
        }
    }
}

/// Joins neighbouring chunks that only copy, so that many small tensors are read at once.
fn merged(chunks: Vec<Chunk>) -> Vec<Chunk> {
    let copies_only = |chunk: &Chunk| chunk.encodes.is_empty() && chunk.kept.is_none();
    let mut merged: Vec<Chunk> = Vec::new();
    for chunk in chunks {
        match merged.last_mut() {
            Some(last)
                if last.bytes + chunk.bytes <= CHUNK_BYTES
                    && copies_only(last)
                    && copies_only(&chunk) =>
            {
                let base = last.bytes;
                let moved = |it: &Copied| Copied { to: base + it.to, ..*it };
                last.copies.extend(chunk.copies.iter().map(moved));
                last.sums.extend(chunk.sums);
                last.bytes += chunk.bytes;
            }
            _ => merged.push(chunk),
        }
    }
    for chunk in &mut merged {
        chunk.copies.sort_by_key(Copied::place);
    }
    merged
}

fn trunk_chunks(parts: &[TrunkPart]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut start = 0;
    for part in parts {
        match part {
            &TrunkPart::Copy { extent, plane, end } => {
                run(&mut chunks, end - start, plane.unit(), |chunk, done| {
                    let length = extent.length.saturating_sub(done).min(chunk.bytes);
                    let from = Extent { offset: extent.offset + done, length, ..extent };
                    chunk.copies = vec![Copied { from, plane, to: 0 }];
                });
                start = end;
            }
            TrunkPart::Encode { tensor, matrix, ends } => {
                encoded_tensor(&mut chunks, tensor, *matrix, ends[0] - start);
                let (rows, columns) = layout::flat(&tensor.shape).unwrap_or_default();
                let planes = matrix.to.plane_bytes(rows, columns);
                for (biases, covered) in [(false, ends[1] - ends[0]), (true, ends[2] - ends[1])] {
                    let parameters = planes[1 + usize::from(biases)] as u64;
                    run(&mut chunks, covered, 1, |chunk, done| {
                        let length = parameters.saturating_sub(done).min(chunk.bytes) as usize;
                        chunk.kept = Some(Kept { biases, offset: done as usize, length });
                    });
                }
                start = ends[2];
            }
        }
    }
    chunks
}

/// Chunks over a covered run, whole units of so many bytes each; `fill` gets each with its place in the run.
fn run(chunks: &mut Vec<Chunk>, covered: u64, unit: usize, fill: impl Fn(&mut Chunk, u64)) {
    let mut done = 0;
    // A multiple of both: the alignment is a power of two.
    let even = (unit as u64) << (layout::PAGE.trailing_zeros() - unit.trailing_zeros());
    let most = CHUNK_BYTES / even * even;
    while done < covered {
        let bytes = (covered - done).min(most);
        let mut chunk =
            Chunk { bytes, sums: vec![(bytes, done + bytes == covered)], ..Chunk::default() };
        fill(&mut chunk, done);
        done += bytes;
        chunks.push(chunk);
    }
}

/// Chunks over the values of a tensor that is turned or encoded anew: whole rows, the padding in the last.
fn encoded_tensor(
    chunks: &mut Vec<Chunk>,
    tensor: &Tensor,
    EncodedTensor { matrix, from, to, turned }: EncodedTensor,
    covered: u64,
) {
    let (rows, columns) = layout::flat(&tensor.shape).unwrap_or_default();
    let row_bytes = to.weight_row_bytes(columns) as u64;
    // Rows that share scales stay together.
    let (shared, values) = match turned {
        true => (ROWS_TOGETHER, if from == to { TURN_VALUES } else { ENCODE_VALUES }),
        false => (from.rows_per_scale(), ENCODE_VALUES),
    };
    let whole = |rows: usize| (rows / shared).max(1) * shared;
    let chunk_rows = whole((CHUNK_BYTES / row_bytes) as usize);
    let task_rows = whole(values / columns);
    for first in (0..rows).step_by(chunk_rows) {
        let last = (first + chunk_rows).min(rows);
        let ends = last == rows;
        let bytes = if ends { covered } else { last as u64 * row_bytes } - first as u64 * row_bytes;
        let encodes = (first..last).step_by(task_rows).map(|row| {
            let count = task_rows.min(last - row);
            let places = from.part_bytes(row, count, columns);
            let part = |extent: Extent, plane: usize| match turned {
                true => extent,
                false => Extent {
                    offset: extent.offset + places[plane].0 as u64,
                    length: (places[plane].1 - places[plane].0) as u64,
                    ..extent
                },
            };
            let [_, (scales, _), (biases, _)] = to.part_bytes(row, count, columns);
            Encode {
                matrix,
                turned: turned.then_some(row..row + count),
                weight: part(tensor.weight, 0),
                scales_biases: tensor
                    .scales_biases
                    .map(|(scales, biases)| (part(scales, 1), part(biases, 2))),
                from,
                to,
                columns,
                weight_to: (row - first) as u64 * row_bytes,
                parameters_to: Parameters::Aside { scales, biases },
            }
        });
        let encodes = encodes.collect();
        chunks.push(Chunk { bytes, encodes, sums: vec![(bytes, ends)], ..Chunk::default() });
    }
}

fn layer_chunks(
    source: &Checkpoint,
    layer: &LayerExperts,
    record_bytes: u64,
    spans: &[MatrixSpans; 3],
    targets: &[Encoding; 3],
) -> Vec<Chunk> {
    let batch = (CHUNK_BYTES / record_bytes).max(1) as usize;
    let mut chunks = Vec::new();
    for experts in layer.experts.chunks(batch) {
        let mut chunk = Chunk {
            bytes: experts.len() as u64 * record_bytes,
            sums: vec![(record_bytes, true); experts.len()],
            ..Chunk::default()
        };
        for (index, expert) in experts.iter().enumerate() {
            let base = index as u64 * record_bytes;
            let mut matrix = 0;
            for (projection, spans) in spans.iter().enumerate() {
                let shape = &layer.shapes[projection];
                let (weight, pair) = (expert.weight[projection], expert.scales_biases[projection]);
                let turned = source.input_major(weight).is_some();
                let changes = shape.encoding != targets[projection];
                if changes || turned {
                    let (scales, biases) = spans.scales_biases.unwrap_or_default();
                    chunk.encodes.push(Encode {
                        matrix: changes.then_some(matrix),
                        turned: turned.then_some(0..shape.rows),
                        weight,
                        scales_biases: pair,
                        from: shape.encoding,
                        to: targets[projection],
                        columns: shape.columns,
                        weight_to: base + spans.weight.offset,
                        parameters_to: Parameters::Chunk {
                            scales: base + scales.offset,
                            biases: base + biases.offset,
                        },
                    });
                    matrix += usize::from(changes);
                    continue;
                }
                let planes = Plane::of(shape.encoding.into());
                let mut copy = |from: Extent, to: Span, plane| {
                    chunk.copies.push(Copied { from, plane, to: base + to.offset });
                };
                copy(weight, spans.weight, planes[0]);
                if let Some(((scales, biases), (to_scales, to_biases))) =
                    pair.zip(spans.scales_biases)
                {
                    copy(scales, to_scales, planes[1]);
                    copy(biases, to_biases, planes[2]);
                }
            }
        }
        // In source order, so that neighbours are read together.
        chunk.copies.sort_by_key(Copied::place);
        chunks.push(chunk);
    }
    chunks
}
