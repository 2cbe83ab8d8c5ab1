//! Model families: configuration, tensor names and the forward pass, each written once and independent
//! of the device it runs on.
//!
//! A model is a list of layers, each a token mixer ([`attention`], [`latent`], [`delta_net`]) and a [`mixture`] of
//! experts, or in some layers a [`dense`] network, around one residual stream. One file per family says which parts it
//! has and how its configuration is read; [`Model::forward`] runs any of them on a [`Backend`].

pub mod activation;
pub mod attention;
mod clock;
pub mod compressed_attention;
pub mod config;
mod deepseek_v3;
mod deepseek_v4;
pub mod delta_net;
pub mod dense;
mod glm4_moe;
mod glm4_moe_lite;
mod gptoss;
pub mod hyper_connections;
pub mod latent;
mod minimax_m2;
pub mod mixture;
pub mod part;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
pub mod rope;
pub mod router;

use std::time::Instant;

use store::{LayerId, timeline};

use crate::EngineError;
use crate::backend::{Backend, Cancel};
use crate::weights::{Catalog, MatrixId, TableId, VectorId, VectorRole};
use attention::Attention;
use clock::Clock;
pub use clock::StageTimes;
use compressed_attention::CompressedAttention;
use config::{FeedForward, Mixer, ModelConfig};
use delta_net::DeltaNet;
use dense::Dense;
use hyper_connections::{HyperConfig, Site};
use latent::LatentAttention;
use mixture::Mixture;

/// The token mixer of a layer.
pub enum MixerWeights {
    /// Softmax attention.
    Attention(Attention),
    /// Softmax attention over latent rows.
    Latent(LatentAttention),
    /// Gated delta rule.
    DeltaNet(DeltaNet),
    /// Attention over a window and compressed rows, with the place where it reads the streams.
    Compressed(Site, CompressedAttention),
}

impl MixerWeights {
    /// As timelines call it.
    fn name(&self) -> &'static str {
        match self {
            Self::Attention(_) => "attention",
            Self::Latent(_) => "latent attention",
            Self::DeltaNet(_) => "delta net",
            Self::Compressed(..) => "compressed attention",
        }
    }
}

/// What follows the mixer of a layer.
pub enum FeedForwardWeights {
    /// A mixture of experts.
    Mixture(Mixture),
    /// One network for all tokens.
    Dense(Dense),
}

impl FeedForwardWeights {
    /// The mixture, where it is one.
    fn mixture(&self) -> Option<&Mixture> {
        match self {
            Self::Mixture(mixture) => Some(mixture),
            Self::Dense(_) => None,
        }
    }
}

/// One layer: `x += mixer(norm(x)); x += feed_forward(norm(x))`.
pub struct Layer {
    /// Norm before the mixer.
    pub input_norm: VectorId,
    /// The mixer.
    pub mixer: MixerWeights,
    /// Norm before the experts.
    pub post_norm: VectorId,
    /// Where the experts read the streams, if there are several.
    pub feed_forward_site: Option<Site>,
    /// The experts, or what is in their place.
    pub feed_forward: FeedForwardWeights,
}

impl Layer {
    fn declare(
        config: &ModelConfig,
        index: usize,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let name = |part: &str| format!("layers.{index}.{part}");
        let (hidden, norm) = (config.hidden, VectorRole::Norm);
        let input_norm = catalog.vector(&name("input_layernorm"), hidden, norm)?;
        let spec = &config.layers[index];
        let mixer = match (spec.mixer, &config.delta, &config.latent) {
            (Mixer::Compressed(compression), ..) => {
                let hyper = config.hyper.as_ref().expect("compressed attention reads streams");
                let shape = config.compressed.as_ref().expect("such a layer has a shape");
                let site = hyper.declare(&name("attn_hc"), hidden, catalog)?;
                let (shape, prefix) = ((shape, compression), name("self_attn"));
                let mixer = CompressedAttention::declare(config, shape, &prefix, catalog)?;
                MixerWeights::Compressed(site, mixer)
            }
            (Mixer::DeltaNet, Some(shape), _) => {
                let prefix = name("linear_attn");
                MixerWeights::DeltaNet(DeltaNet::declare(config, shape, &prefix, catalog)?)
            }
            (Mixer::Latent, _, Some(shape)) => {
                let prefix = name("self_attn");
                MixerWeights::Latent(LatentAttention::declare(config, shape, &prefix, catalog)?)
            }
            _ => {
                let prefix = name("self_attn");
                MixerWeights::Attention(Attention::declare(config, &prefix, catalog)?)
            }
        };
        let post_norm = catalog.vector(&name("post_attention_layernorm"), hidden, norm)?;
        let site = |it: &HyperConfig| it.declare(&name("ffn_hc"), hidden, catalog);
        let feed_forward_site = config.hyper.as_ref().map(site).transpose()?;
        let prefix = name("mlp");
        let feed_forward = match spec.feed_forward {
            FeedForward::Mixture => {
                FeedForwardWeights::Mixture(Mixture::declare(config, index, &prefix, catalog)?)
            }
            FeedForward::Dense { inner } => {
                FeedForwardWeights::Dense(Dense::declare(config, inner, &prefix, catalog)?)
            }
        };
        Ok(Self { input_norm, mixer, post_norm, feed_forward_site, feed_forward })
    }
}

/// A model as declared in a [`Catalog`].
pub struct Model {
    /// Token embedding `[vocabulary, hidden]`.
    pub embedding: MatrixId,
    /// The layers, in order.
    pub layers: Vec<Layer>,
    /// Where the head reads the streams, if there are several.
    pub head_site: Option<Site>,
    /// Norm before the output head.
    pub final_norm: VectorId,
    /// Output head `[vocabulary, hidden]`.
    pub head: MatrixId,
    /// Where the time of passes went.
    pub(crate) clock: Clock,
}

impl Model {
    /// The router of each layer that has one.
    pub fn routers(&self) -> Vec<Option<MatrixId>> {
        let router = |layer: &Layer| Some(layer.feed_forward.mixture()?.router);
        self.layers.iter().map(router).collect()
    }

    /// The bias of each layer's router.
    pub fn router_biases(&self) -> Vec<Option<VectorId>> {
        let bias = |layer: &Layer| layer.feed_forward.mixture()?.router_bias;
        self.layers.iter().map(bias).collect()
    }

    /// The layers whose experts a table gives each token, and the tables.
    pub fn given_layers(&self) -> Vec<(LayerId, TableId)> {
        let tables = self.layers.iter().map(|layer| layer.feed_forward.mixture()?.table);
        let tables = tables.enumerate();
        tables.filter_map(|(layer, table)| Some((LayerId(layer as u16), table?))).collect()
    }

    /// Declares the tensors of `config`'s family in `catalog`.
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare(config: &ModelConfig, catalog: &mut Catalog<'_>) -> Result<Self, EngineError> {
        catalog.refuse_unknown()?;
        let (hidden, vocabulary) = (config.hidden, config.vocabulary);
        let embedding = catalog.matrix("embed_tokens", vocabulary, hidden)?;
        let layers = (0..config.layers.len()).map(|layer| Layer::declare(config, layer, catalog));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let site = |it: &HyperConfig| it.declare_head(hidden, catalog);
        let head_site = config.hyper.as_ref().map(site).transpose()?;
        let final_norm = catalog.vector("norm", hidden, VectorRole::Norm)?;
        let head = if config.tied_head {
            embedding
        } else {
            catalog.matrix("lm_head", vocabulary, hidden)?
        };
        catalog.refuse_undeclared()?;
        Ok(Self { embedding, layers, head_site, final_norm, head, clock: Clock::default() })
    }

    /// Runs the batch that `backend` has begun through every layer; the residual stream of each token is
    /// then ready for [`Backend::logits`].
    ///
    /// # Errors
    /// A failed expert read, or [`EngineError::Cancelled`]: between two layers or while experts are read.
    pub fn forward(
        &self,
        backend: &mut dyn Backend,
        cancel: &dyn Cancel,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), EngineError> {
        backend.embed(self.embedding);
        for index in 0..self.layers.len() {
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            self.forward_layer(index, backend, cancel)?;
            progress(index + 1);
        }
        Ok(())
    }

    /// Runs the batch through one layer.
    ///
    /// # Errors
    /// A failed expert read, or [`EngineError::Cancelled`]: before the experts or while they were awaited.
    pub fn forward_layer(
        &self,
        index: usize,
        backend: &mut dyn Backend,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let (id, layer) = (LayerId(index as u16), &self.layers[index]);
        let number = [("layer", index as u64), ("", 0), ("", 0)];
        let span = timeline::span(layer.mixer.name(), number);
        let begun = Instant::now();
        let sum = match &layer.mixer {
            MixerWeights::Attention(mixer) => {
                mixer.forward(id, layer.input_norm, backend);
                &self.clock.attention
            }
            MixerWeights::Latent(mixer) => {
                mixer.forward(id, layer.input_norm, backend);
                &self.clock.attention
            }
            MixerWeights::DeltaNet(mixer) => {
                mixer.forward(id, layer.input_norm, backend);
                &self.clock.delta_net
            }
            MixerWeights::Compressed(site, mixer) => {
                mixer.forward(id, (site, layer.input_norm), backend);
                &self.clock.attention
            }
        };
        let begun = Clock::add(sum, begun);
        drop(span);
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let done = match &layer.feed_forward {
            FeedForwardWeights::Mixture(mixture) => {
                let _span = timeline::span("mixture", number);
                let done = match &layer.feed_forward_site {
                    None => backend.norm_mixture(id, layer.post_norm, mixture, cancel),
                    Some(site) => {
                        backend.open_streams(site, layer.post_norm);
                        backend.mixture(id, mixture, cancel)
                    }
                };
                Clock::add(&self.clock.mixture, begun);
                done
            }
            FeedForwardWeights::Dense(dense) => {
                let _span = timeline::span("dense", number);
                backend.norm_dense(layer.post_norm, dense);
                Clock::add(&self.clock.mixture, begun);
                Ok(())
            }
        };
        if let Some(site) = self.head_site.as_ref().filter(|_| index + 1 == self.layers.len()) {
            done?;
            return backend.merge_streams(site);
        }
        done
    }
}
