//! Model families: configuration, tensor names and the forward pass, each written once and independent
//! of the device it runs on.
//!
//! A model is a list of layers, each a token mixer ([`attention`], [`latent`], [`delta_net`]) and a [`mixture`] of
//! experts, or in some layers a [`dense`] network, around one residual stream. One file per family says which parts it
//! has and how its configuration is read; each part gives its operations, and all of them are the model's [`Program`].
//! Nothing here knows a device.

pub mod activation;
pub mod attention;
mod clock;
pub mod compressed_attention;
pub mod config;
mod deepseek_v3;
mod deepseek_v4;
pub mod delta_net;
pub mod dense;
mod gemma4;
mod glm4_moe;
mod gptoss;
pub mod hyper_connections;
pub mod latent;
mod minimax_m2;
pub mod mixture;
pub mod program;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
pub mod register;
pub mod rope;
pub mod router;
mod sandwich;

use std::sync::Arc;

use crate::EngineError;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};
use attention::Attention;
pub(crate) use clock::Clock;
pub use clock::StageTimes;
use compressed_attention::CompressedAttention;
use config::{FeedForward, Mixer, ModelConfig};
use delta_net::DeltaNet;
use dense::Dense;
use hyper_connections::{HyperConfig, Site};
use latent::LatentAttention;
use mixture::Mixture;
use program::{LayerProgram, Op, Program};
use register::Register;

/// A model as declared in a [`Catalog`].
pub struct Model {
    /// Token embedding `[vocabulary, hidden]`.
    pub embedding: MatrixId,
    /// The layers.
    pub program: Arc<Program>,
    /// Norm before the output head.
    pub final_norm: VectorId,
    /// Output head `[vocabulary, hidden]`.
    pub head: MatrixId,
}

impl Model {
    /// Declares the tensors of `config`'s family in `catalog`.
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare(config: &ModelConfig, catalog: &mut Catalog<'_>) -> Result<Self, EngineError> {
        catalog.refuse_unknown()?;
        let (hidden, vocabulary) = (config.hidden, config.vocabulary);
        let embedding = catalog.matrix("embed_tokens", vocabulary, hidden)?;
        let layers = (0..config.layers.len()).map(|layer| declare_layer(config, layer, catalog));
        let mut layers = layers.collect::<Result<Vec<_>, _>>()?;
        let site = |it: &HyperConfig| it.declare_head(hidden, catalog);
        let merged = config.hyper.as_ref().map(site).transpose()?;
        if let (Some(site), Some(last)) = (merged, layers.last_mut()) {
            last.feed_forward.push(Op::MergeStreams { site });
        }
        let final_norm = catalog.vector("norm", hidden, VectorRole::Norm)?;
        let head = if config.tied_head {
            catalog.copy("lm_head", "embed_tokens");
            embedding
        } else {
            catalog.matrix("lm_head", vocabulary, hidden)?
        };
        catalog.refuse_undeclared()?;
        Ok(Self { embedding, program: Arc::new(Program { layers }), final_norm, head })
    }
}

/// One layer: `x += mixer(norm(x)); x += feed_forward(norm(x))`; where outputs of blocks are normed as well, as
/// [`sandwich`] has it.
fn declare_layer(
    config: &ModelConfig,
    index: usize,
    catalog: &mut Catalog<'_>,
) -> Result<LayerProgram, EngineError> {
    let name = |part: &str| format!("layers.{index}.{part}");
    let (hidden, role) = (config.hidden, VectorRole::Norm);
    let norm = catalog.vector(&name("input_layernorm"), hidden, role)?;
    let spec = config.layers[index];
    let mixer = match (spec.mixer, &config.delta, &config.latent) {
        (Mixer::Compressed(compression), ..) => {
            let hyper = config.hyper.as_ref().expect("compressed attention reads streams");
            let shape = config.compressed.as_ref().expect("such a layer has a shape");
            let site = hyper.declare(&name("attn_hc"), hidden, catalog)?;
            let (shape, prefix) = ((shape, compression), name("self_attn"));
            CompressedAttention::declare(config, shape, &prefix, catalog)?.ops(site, norm)
        }
        (Mixer::DeltaNet, Some(shape), _) => {
            DeltaNet::declare(config, shape, &name("linear_attn"), catalog)?.ops(norm)
        }
        (Mixer::Latent, _, Some(shape)) => {
            LatentAttention::declare(config, shape, &name("self_attn"), catalog)?.ops(norm)
        }
        _ => {
            let after = match config.stream.sandwich {
                false => None,
                true => Some(catalog.vector(&name("post_attention_layernorm"), hidden, role)?),
            };
            Attention::declare(config, index, &name("self_attn"), catalog)?.ops(norm, after)
        }
    };
    let feed_forward = match spec.feed_forward {
        FeedForward::Both { inner } => sandwich::declare(config, index, inner, catalog)?,
        FeedForward::Mixture => {
            let mixture = Mixture::declare(config, index, &name("mlp"), catalog)?;
            feed_forward(config, index, Op::Mixture(mixture), catalog)?
        }
        FeedForward::Dense { inner } => {
            let dense = Dense::declare(config, inner, &name("mlp"), catalog)?;
            feed_forward(config, index, Op::Dense(dense), catalog)?
        }
    };
    Ok(LayerProgram { spec, mixer, feed_forward })
}

/// `x += network(norm(x))`.
fn feed_forward(
    config: &ModelConfig,
    index: usize,
    network: Op,
    catalog: &mut Catalog<'_>,
) -> Result<Vec<Op>, EngineError> {
    let (hidden, role) = (config.hidden, VectorRole::Norm);
    let name = |part: &str| format!("layers.{index}.{part}");
    let norm = catalog.vector(&name("post_attention_layernorm"), hidden, role)?;
    let site = |it: &HyperConfig| it.declare(&name("ffn_hc"), hidden, catalog);
    let site: Option<Site> = config.hyper.as_ref().map(site).transpose()?;
    let (from, to) = (Register::Residual, Register::Normed);
    let input = match site {
        None => Op::Norm { from, weight: norm, to },
        Some(site) => Op::OpenStreams { site, norm },
    };
    Ok(vec![input, network])
}
