//! Numbers of a model that kernels read from buffers, as they read weights.

use gpu::{Buffer, Gpu};

use crate::EngineError;
use crate::model::config::{AttentionConfig, ModelConfig, Values};

/// Such numbers; buffers of what a model has not are empty.
pub(super) struct Constants {
    /// What embeddings are multiplied by, where that is not one.
    pub(super) embedding_scale: Option<Buffer>,
    /// Weights of norms that have none.
    pub(super) ones: Buffer,
}

impl Constants {
    /// Numbers of the buffers.
    pub(super) fn sizes(config: &ModelConfig) -> [usize; 2] {
        let normed = |it: &&AttentionConfig| it.values != Values::Projected;
        let ones = config.attentions().filter(normed).map(|it| it.head_dim).max().unwrap_or(0);
        [usize::from(config.stream.embedding_scale != 1.0), ones]
    }

    pub(super) fn new(gpu: &mut Gpu, config: &ModelConfig) -> Result<Self, EngineError> {
        let [scale, ones] = Self::sizes(config).map(|count| vec![1.0; count]);
        let mut held = |values: &[f32]| -> Result<Buffer, EngineError> {
            let buffer = gpu.buffer("constants", 4 * values.len() as u64)?;
            if !values.is_empty() {
                gpu.write_floats(&buffer, 0, values)?;
            }
            Ok(buffer)
        };
        let factor: Vec<f32> =
            scale.iter().map(|one| one * config.stream.embedding_scale).collect();
        let (scale, ones) = (held(&factor)?, held(&ones)?);
        Ok(Self { embedding_scale: (!factor.is_empty()).then_some(scale), ones })
    }
}
