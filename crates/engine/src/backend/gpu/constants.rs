//! Numbers of a model that kernels read from buffers, as they read weights.

use gpu::op::attention::NO_SINK;
use gpu::{Buffer, Gpu};

use crate::EngineError;
use crate::model::config::{AttentionConfig, ModelConfig, Values};

/// Such numbers; buffers of what a model has not are empty.
pub(super) struct Constants {
    /// What embeddings are multiplied by, where that is not one.
    pub(super) embedding_scale: Option<Buffer>,
    /// Weights of norms that have none.
    pub(super) ones: Buffer,
    /// Sinks that take no weight: kernels with windows have sinks.
    pub(super) no_sinks: Option<Buffer>,
}

impl Constants {
    /// Numbers of the buffers; the last is of models that have layers with a window.
    pub(super) fn sizes(config: &ModelConfig) -> Vec<usize> {
        let normed = |it: &&AttentionConfig| it.values != Values::Projected;
        let ones = config.attentions().filter(normed).map(|it| it.head_dim);
        // Queries of compressed attention are normed without a weight.
        let queries = config.compressed.map(|_| config.attention.head_dim);
        let ones = ones.chain(queries).max().unwrap_or(0);
        let windows = config.layers.iter().any(|layer| layer.kept_window().is_some());
        let sinks = windows.then_some(config.attention.query_heads);
        let scale = usize::from(config.stream.embedding_scale != 1.0);
        [scale, ones].into_iter().chain(sinks).collect()
    }

    pub(super) fn new(gpu: &mut Gpu, config: &ModelConfig) -> Result<Self, EngineError> {
        let values = [config.stream.embedding_scale, 1.0, NO_SINK];
        let mut held = Vec::with_capacity(values.len());
        for (count, value) in Self::sizes(config).into_iter().zip(values) {
            let buffer = gpu.buffer("constants", 4 * count as u64)?;
            if count > 0 {
                gpu.write_floats(&buffer, 0, &vec![value; count])?;
            }
            held.push((buffer, count));
        }
        let mut held = held.into_iter();
        let mut next = || held.next().expect("a buffer for each size");
        let ((scale, scaled), (ones, _)) = (next(), next());
        let no_sinks = held.next().map(|(buffer, _)| buffer);
        Ok(Self { embedding_scale: (scaled > 0).then_some(scale), ones, no_sinks })
    }
}
