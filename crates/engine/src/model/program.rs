//! The forward pass of a model as data: for each layer a list of operations, made once when the model is declared.
//!
//! An operation reads and writes [`Register`]s and names its weights; that is all that a device has to know of a model.
//! A device says for each operation whether it computes it ([`Program::check`]), and turns the list into its own
//! launches when the model is loaded: one for each operation, or one for several that follow each other.

use kernels::DeltaDecay;
use store::LayerId;

use super::compressed_attention::CompressedAttention;
use super::config::{LayerSpec, Mixer, ModelConfig, OutputGate};
use super::dense::Dense;
use super::head::Head;
use super::hyper_connections::Site;
use super::index::{Indexer, RowIndexer};
use super::latent::LatentAttention;
use super::mixture::Mixture;
use super::ngram::NgramMixing;
use super::register::Register;
use crate::EngineError;
use crate::weights::{MatrixId, RowTableId, TableId, VectorId};

/// A product of an operation's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// `[width of to, width of the input]`
    pub matrix: MatrixId,
    /// Where it goes.
    pub to: Register,
}

impl From<(MatrixId, Register)> for Product {
    fn from((matrix, to): (MatrixId, Register)) -> Self {
        Self { matrix, to }
    }
}

/// One operation of a layer, for every token of a batch.
#[derive(Clone, Debug)]
pub enum Op {
    /// `to` = `from / rms(from) * weight`.
    Norm {
        /// The input.
        from: Register,
        /// As wide as the input.
        weight: VectorId,
        /// The output.
        to: Register,
    },
    /// RMS norm of each token's row in place, of latents and of heads together.
    NormRow {
        /// The rows.
        register: Register,
        /// As wide as a row.
        weight: VectorId,
    },
    /// `to += from / rms(from) * weight`.
    NormAdd {
        /// The input.
        from: Register,
        /// As wide as the input.
        weight: VectorId,
        /// What is added to.
        to: Register,
    },
    /// `Value` = RMS norm of each head of `from` (`Key` or `Value`), without a weight.
    NormValues {
        /// The heads.
        from: Register,
    },
    /// `register *= factor`.
    Scale {
        /// What is scaled.
        register: Register,
        /// One number.
        factor: VectorId,
    },
    /// Several products of the same input: `to = matrix from`.
    Linear {
        /// The input.
        from: Register,
        /// At least one.
        products: Vec<Product>,
    },
    /// `to += matrix from`.
    LinearAdd {
        /// The input.
        from: Register,
        /// `[width of to, width of from]`
        matrix: MatrixId,
        /// What is added to.
        to: Register,
    },
    /// `to` = products of the parts of `from` with as many parts of the rows of `matrix`.
    GroupedLinear {
        /// The input.
        from: Register,
        /// `[width of to, width of a part]`
        matrix: MatrixId,
        /// The output.
        to: Register,
    },
    /// `register += bias`.
    AddBias {
        /// What is added to.
        register: Register,
        /// As wide as the register.
        bias: VectorId,
    },
    /// `Query`, `Gate` = the halves of each head in `QueryGate`.
    SplitQueryGate,
    /// RMS norm over each head of `heads` (`Query` or `Key`), then rotation by position.
    NormRotate {
        /// The heads.
        heads: Register,
        /// `[head_dim]`
        weight: VectorId,
    },
    /// RMS norm over each head of `heads` (`Query` or `Key`), in layers that do not rotate.
    NormHeads {
        /// The heads.
        heads: Register,
        /// `[head_dim]`
        weight: VectorId,
    },
    /// Rotation of `heads` (`Query` or `Key`) by position.
    Rotate {
        /// The heads.
        heads: Register,
    },
    /// `Pair` = RMS norm of its first half, a token's embedding, and of its second, the output of the layers before.
    NormPair {
        /// `[hidden]`
        embedding: VectorId,
        /// `[hidden]`
        hidden: VectorId,
    },
    /// Appends `Key`, `Value` to the layer's cache.
    KeepKeys,
    /// Appends `Key`, `Value` to the layer's cache; `Context` = causal attention of `Query` over the layer's window.
    Attend {
        /// `[query_heads]`: scores that only take weight from the others.
        sinks: Option<VectorId>,
    },
    /// Norms and rotates the row in `Key` and appends it to the layer's cache; `Context` = causal attention of `Query`
    /// over the rows, per head the values of the weighted sum.
    AttendLatent(LatentAttention),
    /// From the products of the layer's matrices to `Context`: norms, rotations, compressed rows, their choice,
    /// attention and the rotation back.
    AttendCompressed(CompressedAttention),
    /// As [`Op::Attend`], to the keys that the layer's indexer chooses by `IndexQuery`, whose own key is the last part
    /// of that register.
    AttendIndexed(Indexer),
    /// As [`Op::AttendLatent`], to the rows that the layer's indexer chooses by `IndexQuery` and `IndexWeights`, after
    /// the token's own index key in `IndexValues` has joined the others; or, without one, to those that the last
    /// indexer chose.
    AttendRows {
        /// The rows.
        rows: LatentAttention,
        /// What chooses.
        indexer: Option<RowIndexer>,
    },
    /// `x *= sigmoid(gate)`.
    SigmoidGate {
        /// What is scaled.
        x: Register,
        /// As wide.
        gate: Register,
    },
    /// Each head of `x` times the sigmoid of its gate.
    GateHeads {
        /// What is scaled, the heads of latent attention.
        x: Register,
        /// One number per head.
        gate: Register,
    },
    /// `Convolved` = SiLU of the causal convolution of `Mixed`; the layer's tail is carried in the sequence.
    Convolve {
        /// `[channels, kernel]`
        weight: VectorId,
    },
    /// `to` = the rows of several registers, one behind the other.
    Join {
        /// In this order.
        from: [Register; 3],
        /// As wide as all of them.
        to: Register,
    },
    /// `Context` = gated delta rule of `Convolved`, `Beta`, `Decay`; updates the layer's state.
    DeltaRule {
        /// `[value_heads]`
        decay_rate: VectorId,
        /// `[value_heads]`, or `[value_heads, key_dim]` where channels have decays of their own.
        decay_bias: VectorId,
        /// What decays are of.
        decay: DeltaDecay,
    },
    /// `Context` = RMS norm of each head of `Context`, times a function of `Z`.
    GatedNorm {
        /// `[value_dim]`
        weight: VectorId,
        /// The function.
        gate: OutputGate,
    },
    /// `Rows` = the rows of a table that the last n-grams of each token have.
    GatherRows {
        /// The table.
        table: RowTableId,
    },
    /// Each stream of `Residual` takes its part of the value in `Normed`, as it agrees with its key in `StreamValues`,
    /// and a convolution of that over the tokens before; the convolution's tail is carried in the sequence.
    MixNgrams(NgramMixing),
    /// `StreamsNormed` = RMS norm of each stream by itself.
    NormStreams {
        /// `[streams * hidden]`
        weight: VectorId,
    },
    /// `to` = mean over the streams of `StreamsNormed`, each value times the sigmoid of
    /// `up silu(GateLow / streams)`.
    GateStreams {
        /// `[streams * hidden, rank]`
        up: MatrixId,
        /// `Normed`, or `Residual`, whose first stream it then is: the last operation of a batch.
        to: Register,
    },
    /// Stream `j` of `Residual` takes `from` times twice the sigmoid of `Inject_j / streams`.
    InjectStreams {
        /// A block's output.
        from: Register,
    },
    /// `Normed` = the normed sum of the streams that a block reads; the weights of its output are remembered until
    /// [`Op::CloseStreams`].
    OpenStreams {
        /// Where the streams are read.
        site: Site,
        /// Norm of the sum, `[hidden]`.
        norm: VectorId,
    },
    /// `Residual` = the streams, mixed, with `from` added to each as [`Op::OpenStreams`] weighed it.
    CloseStreams {
        /// A block's output.
        from: Register,
    },
    /// The streams of each token become one, which the output head reads; the last operation of a batch.
    MergeStreams {
        /// Where the streams are read; without, their mean is.
        site: Option<Site>,
    },
    /// `Residual += mixture(Normed)`: routing, shared expert and routed experts; closes the streams where there are
    /// several. With a register of its own for the output, that is written and nothing is added.
    Mixture(Mixture),
    /// `Residual += down(activation(gate x, up x))` with `x` in `Normed`; with a register of its own for the output,
    /// that is written and nothing is added.
    Dense(Dense),
}

impl Op {
    /// What it does, in a few words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Norm { .. } => "norm",
            Self::NormRow { .. } => "norm of whole rows",
            Self::NormAdd { .. } => "norm, added",
            Self::NormValues { .. } => "norm of values",
            Self::Scale { .. } => "scale",
            Self::Linear { .. } => "products",
            Self::LinearAdd { .. } => "product, added",
            Self::GroupedLinear { .. } => "product in groups",
            Self::AddBias { .. } => "bias",
            Self::SplitQueryGate => "split of queries and gates",
            Self::NormRotate { .. } => "norm and rotation of heads",
            Self::NormHeads { .. } => "norm of heads without rotation",
            Self::Rotate { .. } => "rotation of heads",
            Self::NormPair { .. } => "norms of a pair",
            Self::KeepKeys => "keeping of keys and values",
            Self::Attend { .. } => "attention",
            Self::AttendLatent(_) => "latent attention",
            Self::AttendCompressed(_) => "compressed attention",
            Self::AttendIndexed(_) => "attention to chosen keys",
            Self::AttendRows { .. } => "latent attention to chosen rows",
            Self::SigmoidGate { .. } => "sigmoid gate",
            Self::GateHeads { .. } => "sigmoid gate of heads",
            Self::Convolve { .. } => "convolution",
            Self::Join { .. } => "joining of rows",
            Self::DeltaRule { decay: DeltaDecay::Heads, .. } => "delta rule",
            Self::DeltaRule { decay: DeltaDecay::Channels, .. } => {
                "delta rule with decays by channel"
            }
            Self::DeltaRule { .. } => "delta rule with bounded decays by channel",
            Self::GatedNorm { .. } => "gated norm of heads",
            Self::GatherRows { .. } => "rows of n-grams",
            Self::MixNgrams(_) => "mixing of n-grams into residual streams",
            Self::NormStreams { .. } => "norm of residual streams",
            Self::GateStreams { .. } => "gating of residual streams",
            Self::InjectStreams { .. } => "output to gated residual streams",
            Self::OpenStreams { .. } => "opening of residual streams",
            Self::CloseStreams { .. } => "closing of residual streams",
            Self::MergeStreams { .. } => "merging of residual streams",
            Self::Mixture(_) => "mixture of experts",
            Self::Dense(_) => "dense network",
        }
    }

    /// The operation with the registers that it reads and writes.
    pub fn describe(&self) -> String {
        let name = self.name();
        let products = |products: &[Product]| {
            let to = products.iter().map(|product| format!("{:?}", product.to));
            to.collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Norm { from, to, .. } => format!("{name} {from:?} -> {to:?}"),
            Self::NormRow { register, .. } | Self::Scale { register, .. } => {
                format!("{name} {register:?}")
            }
            Self::NormAdd { from, to, .. } => format!("{name} {from:?} -> {to:?}"),
            Self::NormValues { from } => format!("{name} {from:?}"),
            Self::Linear { from, products: all } => {
                format!("{name} {from:?} -> {}", products(all))
            }
            Self::LinearAdd { from, to, .. } | Self::GroupedLinear { from, to, .. } => {
                format!("{name} {from:?} -> {to:?}")
            }
            Self::AddBias { register, .. } => format!("{name} {register:?}"),
            Self::Join { from, to } => format!("{name} {from:?} -> {to:?}"),
            Self::NormRotate { heads, .. }
            | Self::NormHeads { heads, .. }
            | Self::Rotate { heads } => format!("{name} {heads:?}"),
            Self::Attend { sinks: Some(_) } => format!("{name} with sinks"),
            Self::AttendRows { indexer: None, .. } => format!("{name}, as the layer before"),
            Self::SigmoidGate { x, gate } | Self::GateHeads { x, gate } => {
                format!("{name} {x:?}, {gate:?}")
            }
            Self::CloseStreams { from } | Self::InjectStreams { from } => {
                format!("{name} {from:?}")
            }
            Self::GateStreams { to, .. } => format!("{name} -> {to:?}"),
            Self::GatedNorm { gate: OutputGate::Sigmoid, .. } => format!("{name}, by a sigmoid"),
            Self::Mixture(mixture) => {
                let shared = if mixture.shared.is_some() { ", a shared expert" } else { "" };
                let table = if mixture.table.is_some() { ", chosen by a table" } else { "" };
                let to = mixture.to.map_or_else(String::new, |to| format!(" -> {to:?}"));
                format!("{name}{shared}{table}{to}")
            }
            Self::Dense(Dense { to: Some(to), .. }) => format!("{name} -> {to:?}"),
            _ => name.to_owned(),
        }
    }
}

/// The parts of a layer: a cancelled batch stops between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What mixes tokens.
    Mixer,
    /// A mixture of experts, or a dense network.
    FeedForward,
}

impl Stage {
    /// All of a layer, in order.
    pub const ALL: [Self; 2] = [Self::Mixer, Self::FeedForward];
}

/// The operations of a layer.
#[derive(Clone, Debug)]
pub struct LayerProgram {
    /// What the layer is.
    pub spec: LayerSpec,
    /// The operations of [`Stage::Mixer`].
    pub mixer: Vec<Op>,
    /// The operations of [`Stage::FeedForward`].
    pub feed_forward: Vec<Op>,
}

impl LayerProgram {
    /// The operations of a stage.
    pub fn stage(&self, stage: Stage) -> &[Op] {
        match stage {
            Stage::Mixer => &self.mixer,
            Stage::FeedForward => &self.feed_forward,
        }
    }

    /// All operations, in order.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.mixer.iter().chain(&self.feed_forward)
    }

    /// The mixture of experts, where there is one.
    pub fn mixture(&self) -> Option<&Mixture> {
        self.feed_forward.iter().find_map(|op| match op {
            Op::Mixture(mixture) => Some(mixture),
            _ => None,
        })
    }

    /// The mixer as timelines call it.
    pub fn mixer_name(&self) -> &'static str {
        match self.spec.mixer {
            Mixer::Attention => "attention",
            Mixer::Latent => "latent attention",
            Mixer::DeltaNet => "delta net",
            Mixer::Compressed(_) => "compressed attention",
        }
    }
}

/// The forward pass of a model, from the embedding to the input of the output head.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The layers, in order; that of a head is the last.
    pub layers: Vec<LayerProgram>,
    /// What predicts further tokens, where it was loaded.
    pub head: Option<Head>,
}

/// Why a device does not compute an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl Refusal {
    /// A form: the function of gate and input.
    pub const GELU: &'static str = "with GELU";
    /// A form: what gates and inputs are clamped to.
    pub const CLAMPED: &'static str = "with clamped inputs";
    /// A form: streams are not weighed at the end.
    pub const MEAN: &'static str = "by their mean";
    /// A form: the router does not read what the experts read.
    pub const OTHER_INPUT: &'static str = "with a router that reads a norm of its own";

    /// The operation is not computed at all.
    pub fn operation(op: &Op) -> Self {
        Self(op.name().to_owned())
    }

    /// The operation is not computed in this form.
    pub fn form(op: &Op, form: &str) -> Self {
        Self(format!("{} {form}", op.name()))
    }
}

impl Program {
    /// The router of each layer that has one.
    pub fn routers(&self) -> Vec<Option<MatrixId>> {
        self.layers.iter().map(|layer| Some(layer.mixture()?.router)).collect()
    }

    /// The bias of each layer's router.
    pub fn router_biases(&self) -> Vec<Option<VectorId>> {
        self.layers.iter().map(|layer| layer.mixture()?.router_bias).collect()
    }

    /// The layers whose experts a table gives each token, and the tables.
    pub fn given_layers(&self) -> Vec<(LayerId, TableId)> {
        let tables = self.layers.iter().map(|layer| layer.mixture()?.table).enumerate();
        tables.filter_map(|(layer, table)| Some((LayerId(layer as u16), table?))).collect()
    }

    /// The tables whose rows token ids decide, each with the layer that looks rows up in it.
    pub fn row_tables(&self) -> Vec<(LayerId, RowTableId)> {
        let layers = self.layers.iter().enumerate();
        let tables = layers.flat_map(|(layer, program)| {
            program.ops().filter_map(move |op| match op {
                &Op::GatherRows { table } => Some((LayerId(layer as u16), table)),
                _ => None,
            })
        });
        tables.collect()
    }

    /// Asks a device for every operation whether it `serves` it. `ends` are those of
    /// [`super::config::StreamConfig::ends`] that it does not compute.
    ///
    /// # Errors
    /// What it refuses, by name, each operation with the first layer that has it.
    pub fn check(
        &self,
        config: &ModelConfig,
        kernels: &str,
        serves: impl Fn(&LayerSpec, &Op) -> Result<(), Refusal>,
        ends: &[&str],
    ) -> Result<(), EngineError> {
        let mut refused: Vec<(String, usize)> = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            for Refusal(what) in layer.ops().filter_map(|op| serves(&layer.spec, op).err()) {
                if refused.iter().all(|(other, _)| *other != what) {
                    refused.push((what, index));
                }
            }
        }
        if let (Some(head), Some(layer)) = (&self.head, self.layers.last()) {
            for op in head.enter.iter().chain(&head.fill) {
                if let Err(Refusal(what)) = serves(&layer.spec, op)
                    && refused.iter().all(|(other, _)| *other != what)
                {
                    refused.push((what, head.layer.index()));
                }
            }
        }
        refused.extend(ends.iter().map(|&what| (what.to_owned(), 0)));
        if refused.is_empty() {
            return Ok(());
        }
        let all = refused.into_iter().map(|(what, layer)| format!("{what} (layer {layer})"));
        let (name, all) = (config.family.name(), all.collect::<Vec<_>>().join(", "));
        let problem = format!("is {name}: the {kernels} do not compute {all}: use --device cpu");
        Err(EngineError::Config { key: "model_type", problem })
    }
}
