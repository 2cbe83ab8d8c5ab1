//! Dense weights in device memory, and the shapes and encodings that the kernels do not serve.

use std::ops::ControlFlow;

use cuda::launch;
use cuda::{Device, DeviceBuffer, Matrix};
use kernels::DeltaDecay;
use kernels::format::Encoding;
use store::format::ProjectionShape;
use store::trunk::LoadMode;

use super::buffers::shape_of;
use super::fuse::serves;
use super::{CudaOptions, latent, padded, requirements};
use crate::EngineError;
use crate::backend::check_layers;
use crate::model::config::ModelConfig;
use crate::model::program::{Op, Program, Refusal};
use crate::weights::Catalog;

/// Refuses shapes that the kernels do not serve.
pub(super) fn check_limits(config: &ModelConfig, options: &CudaOptions) -> Result<(), EngineError> {
    check_layers(&options.layers, config)?;
    check_last(config, options)?;
    let refuse = |key, found: usize, limit: usize| {
        let problem = format!("is {found}; the CUDA kernels serve up to {limit}: use --device cpu");
        Err(EngineError::Config { key, problem })
    };
    if options.top_k > launch::TOP_K_LIMIT {
        return refuse("num_experts_per_tok", options.top_k, launch::TOP_K_LIMIT);
    }
    if config.moe.experts > launch::EXPERTS_LIMIT {
        return refuse("num_experts", config.moe.experts, launch::EXPERTS_LIMIT);
    }
    if let Some(delta) = &config.delta {
        let (key, limit) = match delta.decay {
            DeltaDecay::Heads => ("linear_key_head_dim", launch::KEY_DIM_LIMIT),
            _ => ("linear_attn_config.head_dim", launch::CHANNELS_LIMIT),
        };
        if delta.key_dim > limit || !delta.key_dim.is_multiple_of(8) {
            return refuse(key, delta.key_dim, limit);
        }
    }
    if config.latent.is_some() {
        if let Some(index) = config.index.filter(|index| index.dim > launch::INDEX_DIM) {
            return refuse("index_head_dim", index.dim, launch::INDEX_DIM);
        }
        return latent::check_limits(config, options);
    }
    let dim_limit = match &config.compressed {
        Some(compressed) if compressed.index.dim > launch::INDEX_DIM => {
            return refuse("index_head_dim", compressed.index.dim, launch::INDEX_DIM);
        }
        Some(_) => launch::ROW_DIM,
        None if config.index.is_some() => launch::UNIT_DIM,
        None => launch::HEAD_DIM_LIMIT,
    };
    if let Some(index) = config.index.filter(|index| index.dim > launch::INDEX_DIM) {
        return refuse("indexer_head_dim", index.dim, launch::INDEX_DIM);
    }
    if let Some(gated) = config.gated.filter(|gated| gated.streams > launch::STREAMS_LIMIT) {
        return refuse("hc_count", gated.streams, launch::STREAMS_LIMIT);
    }
    for attention in config.attentions() {
        if attention.head_dim > dim_limit {
            return refuse("head_dim", attention.head_dim, dim_limit);
        }
        let shape = shape_of(attention);
        let rounded =
            config.compressed.is_some() && config.trained_kv_type() == Some(options.kv_type);
        if !rounded && !launch::serves_cache(&shape, options.kv_type) {
            let (dim, kind) = (shape.dim, options.kv_type);
            let problem =
                format!("is {dim}; on a GPU --kv-type {kind} needs a multiple of 32: use f16");
            return Err(EngineError::Config { key: "head_dim", problem });
        }
    }
    if let Some(hyper) = config.hyper.filter(|hyper| hyper.streams > launch::STREAMS_LIMIT) {
        return refuse("hc_mult", hyper.streams, launch::STREAMS_LIMIT);
    }
    if config.head && options.layers != (0..config.layers.len()) {
        let found = "a head is computed on one device: use --draft ngram";
        return Err(EngineError::Request(found.to_owned()));
    }
    Ok(())
}

/// Refuses layers that a step cannot end with.
fn check_last(config: &ModelConfig, options: &CudaOptions) -> Result<(), EngineError> {
    let last = options.layers.end - 1;
    if last + 1 < config.layers.len() && !config.layers[last].feed_forward.has_mixture() {
        let found = format!(
            "layer {last}, the last of a stage, has no experts, with which the CUDA backend ends a step: cut behind a \
             layer with experts"
        );
        return Err(EngineError::Request(found));
    }
    let last = config.trunk_layers() - 1;
    if options.layers.contains(&last) && !config.layers[last].feed_forward.has_mixture() {
        let problem = "has a last layer without experts, with which the CUDA backend cannot end a \
                       step: use --device cpu";
        return Err(EngineError::Config { key: "mlp_layer_types", problem: problem.to_owned() });
    }
    Ok(())
}

/// Whether the kernels compute a model as its checkpoint stores it. Asked before anything is loaded, so that the
/// processor can be taken instead.
///
/// # Errors
/// The operations that they do not compute, or the first tensor whose encoding they do not read.
pub fn check_model(
    config: &ModelConfig,
    program: &Program,
    catalog: &Catalog<'_>,
    experts: &[Option<[ProjectionShape; 3]>],
) -> Result<(), EngineError> {
    program.check(config, "CUDA kernels", |_, op| serves(op), &[])?;
    check_encodings(catalog, experts)
}

/// Whether steps compute several tokens of an answer and keep the first ones. Asked before anything is loaded, of a
/// model that [`check_model`] serves.
///
/// # Errors
/// The operations that do not.
pub fn check_rounds(config: &ModelConfig, program: &Program) -> Result<(), EngineError> {
    program.check(
        config,
        "CUDA kernels",
        |_, op| match op {
            Op::AttendCompressed(_) => {
                Err(Refusal::form(op, "of several tokens of an answer (--draft)"))
            }
            _ => Ok(()),
        },
        &[],
    )
}

/// Refuses the first tensor whose encoding the kernels do not read.
pub(super) fn check_encodings(
    catalog: &Catalog<'_>,
    experts: &[Option<[ProjectionShape; 3]>],
) -> Result<(), EngineError> {
    let refuse = |name: &str, encoding: Encoding| {
        let label = encoding.label();
        let problem =
            format!("is stored as {label}, which the CUDA kernels do not read: use --device cpu");
        Err(EngineError::tensor(name, problem))
    };
    if let Some((name, encoding)) = catalog.encodings().find(|&(_, e)| !Matrix::serves(e)) {
        return refuse(name, encoding);
    }
    for (layer, shapes) in experts.iter().enumerate() {
        for (shape, projection) in shapes.iter().flatten().zip(["gate", "up", "down"]) {
            if !Matrix::serves(shape.encoding) {
                return refuse(&format!("layers.{layer}.experts.{projection}"), shape.encoding);
            }
        }
    }
    Ok(())
}

/// The matrices' memory, the matrices, and the decoded vectors.
pub(super) type LoadedTrunk = (DeviceBuffer, Vec<Matrix>, Vec<Vec<f32>>);

/// Uploads every matrix of the catalogue's layers a part at a time. Gives their memory, the matrices and the decoded
/// vectors.
pub(super) fn load_trunk(
    device: &Device,
    catalog: &Catalog<'_>,
    mode: LoadMode,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<LoadedTrunk, EngineError> {
    let bytes: usize = catalog.loaded().map(requirements::matrix_bytes).sum();
    let buffer = DeviceBuffer::new(device, bytes)?;
    // Those of other devices have no memory here, and nothing is launched with them.
    let shape = |(rows, columns, encoding)| Matrix::shape(encoding, rows, columns);
    let mut matrices: Vec<Matrix> = catalog.matrices().map(shape).collect();
    let mut at = 0;
    let vectors = catalog.load_parts(mode, progress, &mut |id, matrix| {
        let mut spans = [matrix.weight, matrix.scales, matrix.biases].map(|piece| (piece, 0));
        for (piece, offset) in &mut spans {
            buffer.write(at, piece)?;
            *offset = at;
            at += padded(piece.len());
        }
        let [weight, scales, biases] =
            spans.map(|(piece, offset)| buffer.span::<u8>(offset, piece.len()));
        let (rows, columns) = (matrix.rows, matrix.columns);
        matrices[id.index()] = Matrix::new(matrix.encoding, rows, columns, weight, scales, biases);
        Ok(())
    })?;
    Ok((buffer, matrices, vectors))
}
