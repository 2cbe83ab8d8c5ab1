//! Model families: configuration, tensor names and the forward pass, each written once and independent
//! of the device it runs on.
//!
//! A model is a list of layers, each a token mixer ([`attention`], [`latent`], [`delta_net`]) and a [`mixture`] of
//! experts, or in some layers a [`dense`] network, around one residual stream or several ([`hyper_connections`],
//! [`gated_streams`]). One file per family says which parts it
//! has and how its configuration is read; each part gives its operations, and all of them are the model's [`Program`].
//! Nothing here knows a device.

pub mod activation;
pub mod attention;
mod bailing_hybrid;
mod clock;
pub mod compressed_attention;
pub mod config;
mod deepseek_v3;
mod deepseek_v32;
mod deepseek_v4;
pub mod delta_net;
pub mod dense;
mod dots1;
mod ernie4_5_moe;
mod exaone_moe;
pub mod gated_streams;
mod gemma4;
mod glm4_moe;
mod glm5_next;
mod gptoss;
pub mod head;
mod hy_v3;
pub mod hyper_connections;
pub mod index;
mod kimi_linear;
pub mod latent;
mod minimax_m2;
mod mixed;
pub mod mixture;
pub mod ngram;
mod olmoe;
mod plain;
pub mod program;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen4exp;
pub mod register;
pub mod rope;
pub mod router;
mod sandwich;

use std::sync::Arc;

use crate::EngineError;
use crate::weights::{Catalog, MatrixId, Part, VectorId, VectorRole};
use attention::Attention;
pub(crate) use clock::Clock;
pub use clock::StageTimes;
use compressed_attention::CompressedAttention;
use config::{FeedForward, Mixer, ModelConfig, Projections, Sees};
use delta_net::DeltaNet;
use dense::Dense;
use gated_streams::GatedSite;
use head::Head;
use hyper_connections::Site;
use index::{Choice, RowIndexer};
use latent::LatentAttention;
use mixture::Mixture;
use ngram::NgramLayer;
use program::{LayerProgram, Op, Product, Program};
use register::Register;

/// A model as declared in a [`Catalog`].
pub struct Model {
    /// Token embedding `[vocabulary, hidden]`.
    pub embedding: MatrixId,
    /// The layers.
    pub program: Arc<Program>,
    /// Norm before the output head; models whose streams gates read have none.
    pub final_norm: Option<VectorId>,
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
        let last = config.trunk_layers().saturating_sub(1);
        catalog.begin(if config.tied_head { Part::Both(last) } else { Part::Before });
        let embedding = catalog.matrix("embed_tokens", vocabulary, hidden)?;
        let layers = (0..config.trunk_layers()).map(|layer| {
            catalog.begin(Part::Layer(layer));
            declare_layer(config, layer, catalog)
        });
        let mut layers = layers.collect::<Result<Vec<_>, _>>()?;
        // The last layer's operations, also where the head is another device's.
        catalog.begin(Part::Layer(last));
        if let (Some(hyper), Some(last)) = (&config.hyper, layers.last_mut()) {
            let site = hyper.declare_head(hidden, catalog)?;
            last.feed_forward.push(Op::MergeStreams { site });
        }
        if let (Some(gated), Some(last)) = (&config.gated, layers.last_mut()) {
            let site = gated.declare_reading("hyper_connection_mixer", hidden, catalog)?;
            last.feed_forward.extend(site.read(Register::Residual));
        }
        catalog.begin(Part::Behind(last));
        let final_norm = match config.gated {
            Some(_) => None,
            None => Some(catalog.vector("norm", hidden, VectorRole::Norm)?),
        };
        let head = if config.tied_head {
            catalog.copy("lm_head", "embed_tokens");
            embedding
        } else {
            catalog.matrix("lm_head", vocabulary, hidden)?
        };
        let of_drafts = match (config.head, final_norm) {
            (true, Some(norm)) => {
                catalog.begin(Part::Layer(config.trunk_layers()));
                layers.push(declare_layer(config, config.trunk_layers(), catalog)?);
                let shared = head::Shared { embedding, norm, output: head };
                Some(Head::declare(config, &layers[layers.len() - 1], shared, catalog)?)
            }
            _ => None,
        };
        catalog.refuse_undeclared()?;
        let program = Arc::new(Program { layers, head: of_drafts });
        Ok(Self { embedding, program, final_norm, head })
    }
}

/// How a block reads the residual streams and gives its output back.
enum Around {
    /// From the one stream, normed, and added to it.
    Norm(VectorId),
    /// The same, and what is added is normed.
    Both {
        /// Of the input.
        norm: VectorId,
        /// Of the output.
        after: VectorId,
    },
    /// From streams that gates read, and to each by a weight of its own.
    Gated(GatedSite),
    /// From a weighed sum of streams, normed, and to streams that are mixed.
    Balanced {
        /// Where the streams are read.
        site: Site,
        /// Of the sum.
        norm: VectorId,
    },
}

impl Around {
    /// Declares what is around a block: the norm of its input, and the site of the streams, by the name that it has
    /// where gates read them or where they are mixed.
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    fn declare(
        config: &ModelConfig,
        names: &[String; 3],
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let ([norm, gated_site, site], hidden) = (names, config.hidden);
        if let Some(gated) = &config.gated {
            return Ok(Self::Gated(gated.declare(gated_site, hidden, catalog)?));
        }
        let norm = catalog.vector(norm, hidden, VectorRole::Norm)?;
        Ok(match &config.hyper {
            None => Self::Norm(norm),
            Some(hyper) => Self::Balanced { site: hyper.declare(site, hidden, catalog)?, norm },
        })
    }

    /// `Normed` = the block's input.
    fn open(&self) -> Vec<Op> {
        let (from, to) = (Register::Residual, Register::Normed);
        match self {
            &(Self::Norm(weight) | Self::Both { norm: weight, .. }) => {
                vec![Op::Norm { from, weight, to }]
            }
            Self::Gated(site) => site.read(to),
            &Self::Balanced { site, norm } => vec![Op::OpenStreams { site, norm }],
        }
    }

    /// Gives `matrix from` to the streams.
    fn close(&self, from: Register, matrix: MatrixId) -> Vec<Op> {
        let (residual, output) = (Register::Residual, Register::Normed);
        match self {
            Self::Norm(_) => vec![Op::LinearAdd { from, matrix, to: residual }],
            &Self::Both { after: weight, .. } => vec![
                Op::Linear { from, products: vec![Product { matrix, to: output }] },
                Op::NormAdd { from: output, weight, to: residual },
            ],
            Self::Gated(_) => vec![
                Op::Linear { from, products: vec![Product { matrix, to: output }] },
                Op::InjectStreams { from: output },
            ],
            Self::Balanced { .. } => vec![
                Op::Linear { from, products: vec![Product { matrix, to: output }] },
                Op::CloseStreams { from: output },
            ],
        }
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
    let hidden = config.hidden;
    let mut mixer = Vec::new();
    if let Some(ngrams) = config.ngrams.as_ref().filter(|it| it.place(index).is_some()) {
        let place = (index, &*format!("layers.{index}"));
        mixer = NgramLayer::declare(config, ngrams, place, catalog)?.ops();
    }
    let names = ["input_layernorm", "attn_hyper_connection", "attn_hc"].map(name);
    let mut around = Around::declare(config, &names, catalog)?;
    if let (true, &Around::Norm(norm)) = (config.stream.sandwich, &around) {
        let after = name("post_attention_layernorm");
        let after = catalog.vector(&after, hidden, VectorRole::Norm)?;
        around = Around::Both { norm, after };
    }
    let spec = config.layers[index];
    mixer.extend(match (spec.mixer, &config.delta, &config.latent) {
        (Mixer::Compressed(compression), ..) => {
            let shape = config.compressed.as_ref().expect("such a layer has a shape");
            let (shape, prefix) = ((shape, compression), name("self_attn"));
            CompressedAttention::declare(config, shape, &prefix, catalog)?.ops(&around)
        }
        (Mixer::DeltaNet, Some(shape), _) => {
            let delta = match shape.projections {
                Projections::Joined => {
                    DeltaNet::declare(config, shape, &name("linear_attn"), catalog)?
                }
                Projections::Apart { low_rank } => {
                    let shape = (shape, low_rank);
                    DeltaNet::declare_apart(config, shape, &name("self_attn"), catalog)?
                }
            };
            delta.ops(&around)
        }
        (Mixer::Latent, _, Some(shape)) => {
            let prefix = name("self_attn");
            let rows = LatentAttention::declare(config, shape, &prefix, catalog)?;
            let prefix = format!("{prefix}.indexer");
            let choice = match (spec.sees, &config.index, shape.query_rank) {
                (Sees::Chosen, Some(index), Some(rank)) => {
                    Choice::Own(RowIndexer::declare(index, [hidden, rank], &prefix, catalog)?)
                }
                (Sees::AsBefore, ..) => Choice::AsBefore,
                _ => Choice::None,
            };
            rows.ops(&around, choice)
        }
        _ => {
            let attention = Attention::declare(config, index, &name("self_attn"), catalog)?;
            attention.ops(&around, spec.rotates)
        }
    });
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
    let names = ["post_attention_layernorm", "mlp_hyper_connection", "ffn_hc"];
    let names = names.map(|part| format!("layers.{index}.{part}"));
    let around = Around::declare(config, &names, catalog)?;
    let mut ops = around.open();
    match (network, around) {
        // A mixture gives its output to the streams itself.
        (Op::Dense(dense), Around::Balanced { .. }) => {
            let to = Register::Normed;
            let closing = Op::CloseStreams { from: to };
            ops.extend([Op::Dense(Dense { to: Some(to), ..dense }), closing]);
        }
        (network, _) => ops.push(network),
    }
    Ok(ops)
}
