//! A generated native pack: one job per trunk part and one per expert record, then the checksum table
//! and the manifest. The layout is that of [`crate::format::layout`], which the reader recomputes.

use serde_json::json;
use twox_hash::XxHash3_64;

use super::{
    Finish, GenerateError, GeneratedExperts, GeneratedModel, Job, Output, OutputFile, Owner,
    Segment,
};
use crate::format::layout::{self, MatrixSpans, RecordLayout, Span};
use crate::format::manifest::{
    self, Copied, FORMAT, Hex, Layer, Manifest, ProjectionEntry, Source, Table, TrunkTensor,
};
use crate::format::native::table_header;
use crate::format::{Projection, ProjectionShape};
use crate::record::Piece;

const PROJECTIONS: [Projection; 3] = [Projection::Gate, Projection::Up, Projection::Down];
const PIECES: [Piece; 3] = [Piece::Weight, Piece::Scales, Piece::Biases];

/// A layer whose experts have a file of their own.
#[derive(Clone, Copy)]
struct FileOwner {
    experts: GeneratedExperts,
    file: usize,
    first_job: usize,
}

fn impossible(name: &str, reason: String) -> GenerateError {
    GenerateError::Shape { name: name.to_owned(), reason }
}

pub(super) fn lay_out(model: &GeneratedModel) -> Result<Output, GenerateError> {
    for tensor in &model.tensors {
        let columns = tensor.shape.last().copied().unwrap_or(0);
        let checked = tensor.element.check(columns);
        checked.map_err(|error| impossible(&tensor.name, error.to_string()))?;
    }
    let shapes = model.tensors.iter().map(|tensor| (&tensor.shape[..], tensor.element));
    let (spans, trunk_bytes) = layout::trunk(shapes)
        .ok_or_else(|| impossible("trunk", "takes more bytes than a file can have".to_owned()))?;
    let mut files = vec![OutputFile::new(layout::TRUNK.to_owned(), trunk_bytes)];
    let mut jobs = trunk_jobs(&spans, trunk_bytes);
    let trunk_parts = jobs.len();
    let mut layers = Vec::with_capacity(model.layers.len());
    let mut owners: Vec<FileOwner> = Vec::new();
    for (layer, experts) in model.layers.iter().enumerate() {
        let Some(experts) = experts else {
            layers.push(None);
            continue;
        };
        let name = format!("layers.{layer}.mlp.experts");
        let record = layout::record(&experts.shapes).ok_or_else(|| {
            let ProjectionShape { rows, columns, encoding } = experts.shapes[2];
            impossible(&name, format!("a matrix like [{rows}, {columns}] cannot be {encoding:?}"))
        })?;
        let file = files.len();
        let first = model.distinct.and_then(|distinct| {
            let alike: Vec<&FileOwner> =
                owners.iter().filter(|it| it.experts == *experts).collect();
            (owners.len() >= distinct && !alike.is_empty()).then(|| *alike[layer % alike.len()])
        });
        let name = format!("{}/{}", layout::EXPERTS, layout::layer_file(layer));
        let output = OutputFile::new(name, record.bytes * experts.experts as u64);
        files.push(OutputFile { link_to: first.map(|first| first.file), ..output });
        if first.is_none() {
            owners.push(FileOwner { experts: *experts, file, first_job: jobs.len() });
        }
        let copied = first.map(|first| first.first_job);
        jobs.extend((0..experts.experts).map(|expert| {
            let copy_of = copied.map(|first_job| first_job + expert);
            expert_job(file, layer, expert, &record, copy_of)
        }));
        layers.push(Some(described(experts, &record)));
    }
    let tensors = model.tensors.iter().zip(&spans).map(|(tensor, spans)| TrunkTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        encoding: tensor.element.name(),
        at: spans.into(),
        error: None,
    });
    let tensors: Vec<TrunkTensor> = tensors.collect();
    let fingerprint = XxHash3_64::oneshot(format!("{}{}", model.config, model.recipe).as_bytes());
    let manifest = Manifest {
        format: FORMAT.to_owned(),
        version: manifest::version(&tensors, &layers, &[]),
        source: Source { kind: "synthetic".to_owned(), fingerprint: Hex(fingerprint) },
        norms_are_zero_centred: false,
        recipe: json!({ "synthetic": model.recipe }),
        trunk_bytes,
        layers,
        checksums: Table { bytes: 0, xxh3: Hex(0) },
        copied: copied(model)?,
        skipped: Vec::new(),
        unused: Vec::new(),
        config: model.config.clone(),
        tensors,
        row_tables: Vec::new(),
    };
    Ok(Output { files, jobs, finish: finish(manifest, trunk_parts) })
}

/// Writes an expert's record; `copy_of` is the job that writes the same bytes.
fn expert_job(
    file: usize,
    layer: usize,
    expert: usize,
    record: &RecordLayout,
    copy_of: Option<usize>,
) -> Job {
    let segments = PROJECTIONS.iter().zip(&record.projections).flat_map(|(&projection, spans)| {
        segments(Owner::Expert { layer, expert, projection }, spans)
    });
    let offset = expert as u64 * record.bytes;
    Job { file, offset, bytes: record.bytes, segments: segments.collect(), copy_of }
}

/// A layer's experts as the manifest has them.
fn described(experts: &GeneratedExperts, record: &RecordLayout) -> Layer {
    let entry = |index: usize| {
        let ProjectionShape { rows, columns, encoding } = experts.shapes[index];
        let at = (&record.projections[index]).into();
        ProjectionEntry { shape: [rows, columns], encoding: encoding.name(), at, error: None }
    };
    Layer {
        experts: experts.experts,
        record_bytes: record.bytes,
        gate: entry(0),
        up: entry(1),
        down: entry(2),
    }
}

/// One job per part of the trunk; each covers the padding up to the next.
fn trunk_jobs(spans: &[MatrixSpans], trunk_bytes: u64) -> Vec<Job> {
    let tensors = spans.iter().enumerate();
    let parts: Vec<Segment> =
        tensors.flat_map(|(index, spans)| segments(Owner::Tensor(index), spans)).collect();
    let ends = parts.iter().skip(1).map(|part| part.at).chain([trunk_bytes]);
    let job = |(part, end): (&Segment, u64)| Job {
        file: 0,
        offset: part.at,
        bytes: end - part.at,
        segments: vec![Segment { at: 0, ..*part }],
        copy_of: None,
    };
    parts.iter().zip(ends).map(job).collect()
}

fn segments(owner: Owner, spans: &MatrixSpans) -> impl Iterator<Item = Segment> {
    let parts: Vec<Span> = spans.parts().collect();
    PIECES.into_iter().zip(parts).map(move |(piece, span)| Segment {
        owner,
        piece,
        at: span.offset,
        bytes: span.bytes,
    })
}

fn copied(model: &GeneratedModel) -> Result<Vec<Copied>, GenerateError> {
    let Some(path) = &model.tokenizer else { return Ok(Vec::new()) };
    let bytes = super::tokenizer_bytes(path)?;
    Ok(vec![Copied {
        name: "tokenizer.json".to_owned(),
        bytes: bytes.len() as u64,
        xxh3: Hex(XxHash3_64::oneshot(&bytes)),
    }])
}

fn finish(mut manifest: Manifest, trunk_parts: usize) -> Finish {
    Box::new(move |checksums| {
        let mut table = table_header(trunk_parts, checksums.len() - trunk_parts).to_vec();
        table.extend(checksums.iter().flat_map(|checksum| checksum.to_le_bytes()));
        manifest.checksums =
            Table { bytes: table.len() as u64, xxh3: Hex(XxHash3_64::oneshot(&table)) };
        vec![
            (layout::CHECKSUMS.to_owned(), table),
            (layout::MANIFEST.to_owned(), manifest.to_bytes()),
        ]
    })
}
