//! What operations become on a GPU of any maker: the table of those that are launched together, and the lists of
//! launches that a model's program becomes when it is loaded.
//!
//! Kernels of one token are too short to be launched one by one. A launch of several operations gives the bits of the
//! operations one by one.

use std::ops::Range;

use gpu::Planes;
use gpu::op::heads::HEAD_DIM_LIMIT;
use gpu::op::packing::Packing;
use gpu::op::{fused, gated_product};
use kernels::DeltaDecay;

use super::super::prepared::Prepared;
use super::super::{Listing, Register};
use crate::model::activation::{Activation, GateUpRows};
use crate::model::config::{LayerSpec, ModelConfig, OutputGate};
use crate::model::index::IndexForm;
use crate::model::mixture::Mixture;
use crate::model::program::{Op, Product, Program, Refusal};
use crate::model::router::Score;
use crate::weights::{Catalog, MatrixId, VectorId};
use store::LayerId;

/// Batches that differ in their launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One token, whose products are sums of their own.
    Token,
    /// One token of a prompt, on a GPU that multiplies prompts by matrices.
    PromptToken,
    /// Several tokens.
    Tokens,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Token, Self::PromptToken, Self::Tokens];

    fn name(self) -> &'static str {
        match self {
            Self::Token => "one token",
            Self::PromptToken => "one token of a prompt, by matrices",
            Self::Tokens => "several tokens",
        }
    }
}

/// What is launched for one operation or for several that follow each other.
#[derive(Clone, Debug)]
pub(super) enum Launch {
    /// An operation by itself.
    Plain(Op),
    /// The norm of `Residual`, and products of that; with each of several launches the norm.
    Several { norm: VectorId, products: Vec<Product> },
    /// The norm of `Residual`, products of that, the first one's convolution.
    DeltaInputs { norm: VectorId, products: Vec<Product>, convolution: VectorId },
    /// The convolution with the norms of its heads; the delta rule.
    ConvolvedRule { convolution: VectorId, rule: [VectorId; 2], decay: DeltaDecay },
    /// The gated norm of heads, and a product of that added to `Residual`.
    GatedProduct { norm: VectorId, gate: OutputGate, matrix: MatrixId },
    /// Norms and rotation of heads, attention, and its gate where there is one.
    AttendNormed { gated: bool, norms: [VectorId; 2] },
    /// Biases and rotation of heads, attention.
    AttendBiased { biases: [VectorId; 3], sinks: Option<VectorId> },
    /// The norm of `Residual`, and the mixture.
    NormMixture { norm: VectorId, mixture: Mixture },
}

impl Launch {
    fn describe(&self) -> String {
        match self {
            Self::Plain(op) => op.describe(),
            Self::Several { products, .. } => {
                let launches = match products.len().div_ceil(fused::MATRICES) {
                    1 => String::new(),
                    several => format!(", in {several} launches"),
                };
                format!("norm and {} products at once{launches}", products.len())
            }
            Self::DeltaInputs { .. } => "norm, products and convolution at once".to_owned(),
            Self::ConvolvedRule { .. } => "convolution with norms of heads; delta rule".to_owned(),
            Self::GatedProduct { .. } => "gated norm and product at once, added".to_owned(),
            Self::AttendNormed { gated, .. } => {
                let gate = if *gated { ", with its gate" } else { "" };
                format!("norms and rotation of heads at once; attention{gate}")
            }
            Self::AttendBiased { .. } => {
                "biases and rotation of heads at once; attention".to_owned()
            }
            Self::NormMixture { .. } => "norm and mixture of experts".to_owned(),
        }
    }
}

/// What the kernels of one token ask of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    packing: Packing,
    columns: usize,
}

impl From<&Planes> for Shape {
    fn from(planes: &Planes) -> Self {
        Self { packing: planes.packing, columns: planes.columns }
    }
}

/// True where the kernels of one token compute matrices of these shapes together.
pub(super) fn alike(shapes: &[Shape]) -> bool {
    let first = shapes[0];
    shapes.len() <= fused::MATRICES
        && fused::serves(first.packing, first.columns)
        && shapes.iter().all(|shape| *shape == first)
}

/// What the table asks of a model, in addition to its operations.
pub(super) struct Facts<'a> {
    pub(super) config: &'a ModelConfig,
    /// The shape of each matrix.
    pub(super) shape: &'a dyn Fn(MatrixId) -> Shape,
}

impl Facts<'_> {
    /// Whether kernels of several matrices compute these products, as many at once as they take.
    fn serves_several(&self, products: &[Product]) -> bool {
        products.chunks(fused::MATRICES).all(|some| self.alike(some))
    }

    fn alike(&self, products: &[Product]) -> bool {
        let shapes = products.iter().map(|product| (self.shape)(product.matrix));
        alike(&shapes.collect::<Vec<_>>())
    }

    /// Whether one kernel computes these products and the convolution of the first.
    fn convolves(&self, products: &[Product]) -> bool {
        let taps = self.config.delta.as_ref().map_or(0, |delta| delta.convolution_kernel);
        products.len() == fused::MATRICES && taps > 1 && self.alike(products)
    }

    /// Whether one kernel computes the gated norm of the delta rule's heads and a product of that.
    fn gates(&self, matrix: MatrixId) -> bool {
        let (shape, width) = ((self.shape)(matrix), &self.config.delta);
        let serves = |width| gated_product::serves(shape.packing, shape.columns, width);
        width.as_ref().is_some_and(|delta| serves(delta.value_dim))
    }
}

/// The table: what the first operations of a list become, and how many they are.
#[rustfmt::skip]
fn first(ops: &[Op], (kind, layer): (Kind, LayerId), facts: &Facts<'_>) -> (Launch, usize) {
    use Op::{
        AddBias, Attend, Convolve, DeltaRule, GatedNorm, Linear, LinearAdd, Norm, NormRotate,
        Rotate, SigmoidGate, SplitQueryGate,
    };
    use Register::{Context, Gate, Key, Normed, Query, Residual, Value};
    let token = kind == Kind::Token;
    let one = kind != Kind::Tokens;
    // The launch of norms and attention knows no windows, and no other factor of scores.
    let (config, attention) = (facts.config, &facts.config.attention);
    let common = config.windowed.is_none()
        && attention.scale.is_none()
        && attention.head_dim <= HEAD_DIM_LIMIT;
    let whole = common && config.layers[layer.index()].window.is_none();
    match *ops {
        [Norm { from: Residual, weight: norm, to: Normed }, Linear { from: Normed, ref products },
            Convolve { weight }, ..]
            if token && facts.convolves(products) =>
            (Launch::DeltaInputs { norm, products: products.clone(), convolution: weight }, 3),
        [Norm { from: Residual, weight: norm, to: Normed }, Linear { from: Normed, ref products }, ..]
            if token && facts.serves_several(products) =>
            (Launch::Several { norm, products: products.clone() }, 2),
        [Convolve { weight }, DeltaRule { decay_rate, decay_bias, decay }, ..]
            if token =>
            (Launch::ConvolvedRule { convolution: weight, rule: [decay_rate, decay_bias], decay }, 2),
        [GatedNorm { weight, gate }, LinearAdd { from: Context, matrix, to: Residual }, ..]
            if token && facts.gates(matrix) =>
            (Launch::GatedProduct { norm: weight, gate, matrix }, 2),
        [AddBias { register: Query, bias: query }, AddBias { register: Key, bias: key },
            AddBias { register: Value, bias: value },
            Rotate { heads: Query }, Rotate { heads: Key }, Attend { sinks }, ..]
            if one && common =>
            (Launch::AttendBiased { biases: [query, key, value], sinks }, 6),
        [SplitQueryGate, NormRotate { heads: Query, weight: query }, NormRotate { heads: Key, weight: key },
            Attend { sinks: None }, SigmoidGate { x: Context, gate: Gate }, ..]
            if whole =>
            (Launch::AttendNormed { gated: true, norms: [query, key] }, 5),
        [NormRotate { heads: Query, weight: query }, NormRotate { heads: Key, weight: key },
            Attend { sinks: None }, ..]
            if whole =>
            (Launch::AttendNormed { gated: false, norms: [query, key] }, 3),
        [Norm { from: Residual, weight: norm, to: Normed }, Op::Mixture(mixture), ..] =>
            (Launch::NormMixture { norm, mixture }, 2),
        [ref op, ..] => (Launch::Plain(op.clone()), 1),
        [] => unreachable!("a list that is left has an operation"),
    }
}

/// The launches of the layers that a device computes.
pub(super) fn prepare(
    program: &Program,
    computed: &Range<usize>,
    facts: &Facts<'_>,
) -> Prepared<Launch> {
    Prepared::new(program, computed, &Kind::ALL, |kind, layer, ops| {
        first(ops, (kind, layer), facts)
    })
}

/// The launches of each layer in words, by kind of batch; of a model that the kernels serve.
pub fn describe(config: &ModelConfig, catalog: &Catalog<'_>, program: &Program) -> Vec<Listing> {
    let shape = |(_, columns, encoding)| Shape { packing: Packing::of(encoding), columns };
    let shapes: Vec<_> = catalog.matrices().map(shape).collect();
    let facts = Facts { config, shape: &|id| shapes[id.index()] };
    let prepared = prepare(program, &(0..program.layers.len()), &facts);
    prepared.listings(&Kind::ALL.map(Kind::name), Launch::describe)
}

/// Whether the kernels compute an operation of a layer, as the model has it.
///
/// # Errors
/// The operation, or the form of it, that they do not compute.
pub(super) fn serves(config: &ModelConfig, layer: &LayerSpec, op: &Op) -> Result<(), Refusal> {
    let (attention, rope) = (&config.attention, &config.attention.rope);
    match op {
        Op::NormRotate { .. } if rope.yarn.is_some() => {
            Err(Refusal::form(op, "with scaled frequencies (yarn)"))
        }
        Op::Attend { sinks: Some(_) } if attention.head_norms || attention.output_gate => {
            Err(Refusal::form(op, "with sinks and with norms or gates of heads"))
        }
        Op::Attend { .. } if layer.window != layer.kept_window() => {
            Err(Refusal::form(op, "over a sliding window of so many tokens"))
        }
        Op::Mixture(mixture) => serves_mixture(config, mixture).map_err(|it| Refusal::form(op, it)),
        Op::AttendRows { .. }
            if config.index.is_some_and(|index| index.form == IndexForm::Pooled) =>
        {
            Err(Refusal::form(op, "of pools"))
        }
        Op::Norm { .. }
        | Op::NormRow { .. }
        | Op::NormHeads { .. }
        | Op::NormAdd { .. }
        | Op::NormValues { .. }
        | Op::Scale { .. }
        | Op::Linear { .. }
        | Op::LinearAdd { .. }
        | Op::AddBias { .. }
        | Op::SplitQueryGate
        | Op::NormRotate { .. }
        | Op::Rotate { .. }
        | Op::Attend { .. }
        | Op::AttendLatent(_)
        | Op::AttendRows { .. }
        | Op::SigmoidGate { .. }
        | Op::Convolve { .. }
        | Op::Join { .. }
        | Op::DeltaRule { .. }
        | Op::GateHeads { .. }
        | Op::Dense(_)
        | Op::GroupedLinear { .. }
        | Op::AttendCompressed(_)
        | Op::OpenStreams { .. }
        | Op::CloseStreams { .. }
        | Op::MergeStreams { .. }
        | Op::GatedNorm { .. } => Ok(()),
        Op::AttendIndexed(_)
        | Op::GatherRows { .. }
        | Op::NormPair { .. }
        | Op::KeepKeys
        | Op::MixNgrams(_)
        | Op::NormStreams { .. }
        | Op::GateStreams { .. }
        | Op::InjectStreams { .. } => Err(Refusal::operation(op)),
    }
}

/// The form of a mixture that the kernels do not compute.
fn serves_mixture(config: &ModelConfig, mixture: &Mixture) -> Result<(), &'static str> {
    let moe = &config.moe;
    let clamped = matches!(moe.activation, Activation::Clamped { .. });
    let in_turns = moe.rows != GateUpRows::Apart;
    // Kernels have biases of experts and clamped activations only with each other, and with no shared expert.
    let of_experts = moe.biases && clamped;
    if mixture.table.is_some() && moe.router.score == Score::Softmax {
        return Err("chosen by a table");
    }
    if mixture.shared.is_some() {
        // Kernels of shared experts know SwiGLU, read what the router reads, and add to the stream.
        if mixture.router_input != Register::Normed {
            return Err(Refusal::OTHER_INPUT);
        }
        if mixture.activation == Activation::GeGlu {
            return Err(Refusal::GELU);
        }
        if mixture.to.is_some() {
            return Err("with a shared expert and an output of its own");
        }
    }
    let biased_logits = moe.router.bias && moe.router.score == Score::Softmax;
    if mixture.shared.is_some() && (biased_logits || moe.biases || clamped) {
        return Err("with a shared expert and biases or clamped activations");
    }
    if (moe.biases || clamped) && !of_experts {
        return Err("with biases without clamped activations, or the other way round");
    }
    if in_turns && !(of_experts && moe.intermediate.is_multiple_of(2)) {
        return Err("with interleaved rows of gate and up");
    }
    Ok(())
}
