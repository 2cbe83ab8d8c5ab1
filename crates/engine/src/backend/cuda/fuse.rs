//! What operations become on an NVIDIA GPU: the table of those that run as one kernel in a step, and the lists of
//! launches that a model's program becomes when it is loaded.
//!
//! Between two kernels of a step the whole device waits for the slowest block, so a step is as fast as it has few of
//! them. A chunk of a prompt runs its operations one by one.

use std::ops::Range;

use cuda::launch::{self, GateMatrices, StepDevice};
use cuda::{ExpertShapes, Matrix};
use store::LayerId;
use store::format::ProjectionShape;

use super::super::prepared::Prepared;
use super::super::{Listing, Register};
use crate::model::activation::{Activation, GateUpRows};
use crate::model::config::{ModelConfig, OutputGate};
use crate::model::dense::Dense;
use crate::model::index::RowIndexer;
use crate::model::mixture::Mixture;
use crate::model::program::{Op, Product, Program, Refusal};
use crate::model::router::Score;
use crate::weights::{Catalog, MatrixId, VectorId};

/// Where a step computes the shared expert of a fused mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FusedShared {
    /// With the router and with the routed experts; or there is none.
    Within,
    /// By kernels of its own, because other ones read its matrices; it has no gate.
    Apart,
}

/// Batches that differ in their launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The next tokens of some answers.
    Step,
    /// Tokens of prompts.
    Chunk,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Step, Self::Chunk];

    fn name(self) -> &'static str {
        match self {
            Self::Step => "a step",
            Self::Chunk => "a chunk of a prompt",
        }
    }
}

/// What is launched for one operation or for several that follow each other.
#[derive(Clone, Debug)]
pub(super) enum Launch {
    /// An operation by itself.
    Plain(Op),
    /// The norm of `Residual`, and products of that.
    NormLinear { norm: VectorId, products: Vec<Product> },
    /// The norm of streams, the narrow products of that, and the gates that the wide one makes of them, to `Normed`.
    Gates { norm: VectorId, down: MatrixId, inject: Option<MatrixId>, up: MatrixId },
    /// The norm of `Residual`, or `Normed` as it is, products of that, the first one's convolution.
    DeltaInputs { norm: Option<VectorId>, products: Vec<Product>, convolution: VectorId },
    /// The gated norm of heads, and a product of that added to `Residual`.
    DeltaOutput { norm: VectorId, gate: OutputGate, matrix: MatrixId },
    /// The gated norm of heads where that is said, and a product of them that residual streams take.
    Inject { heads: Option<(VectorId, OutputGate)>, matrix: MatrixId },
    /// Norms and rotation of heads with what is appended to the cache; attention. `values` are the heads whose norms
    /// the values are, where they have one.
    Heads { norms: [VectorId; 2], values: Option<Register> },
    /// The same of heads with gates; the gated output's product added to `Residual`.
    GatedHeads { norms: [VectorId; 2], matrix: MatrixId },
    /// The same of heads with gates, whose output no fused kernel multiplies; the split and the gate.
    SplitHeads { norms: [VectorId; 2] },
    /// The norm of `Residual`, or `Normed` as it is, router and experts.
    NormMixture { norm: Option<VectorId>, mixture: Mixture, shared: FusedShared },
    /// The norm of `Residual`, and the network.
    NormDense { norm: VectorId, dense: Dense },
    /// A mixture next to a dense network that has run, with the norms before and behind.
    Sandwich { norms: SandwichNorms, mixture: Mixture },
}

/// Weights of what a step computes around a mixture that is next to a dense network.
#[derive(Clone, Copy, Debug)]
pub(super) struct SandwichNorms {
    /// Of what the dense network gave.
    pub(super) dense: VectorId,
    /// Of the stream, for the router and for the experts.
    pub(super) before: [VectorId; 2],
    /// Of what the mixture gave.
    pub(super) mixture: VectorId,
    /// Of the sum of both.
    pub(super) after: VectorId,
    /// What the stream is multiplied by then, one number.
    pub(super) factor: VectorId,
}

impl Launch {
    fn describe(&self) -> String {
        match self {
            Self::Plain(op) => op.describe(),
            Self::NormLinear { products, .. } => {
                format!("norm and {} products at once", products.len())
            }
            Self::Gates { .. } => "norm and gates of streams in two".to_owned(),
            Self::DeltaInputs { norm: None, .. } => "products and convolution at once".to_owned(),
            Self::DeltaInputs { .. } => "norm, products and convolution at once".to_owned(),
            Self::DeltaOutput { .. } => "gated norm and product at once, added".to_owned(),
            Self::Inject { heads: None, .. } => "product to residual streams at once".to_owned(),
            Self::Inject { .. } => "gated norm and product to residual streams at once".to_owned(),
            Self::Heads { .. } => "norms and rotation of heads at once; attention".to_owned(),
            Self::GatedHeads { .. } => {
                let heads = "norms and rotation of heads at once; attention";
                format!("{heads}; gate and product at once, added")
            }
            Self::SplitHeads { .. } => {
                let heads = "norms and rotation of heads at once; attention";
                format!("{heads}; split of queries and gates; sigmoid gate")
            }
            Self::NormMixture { norm: None, shared: FusedShared::Within, .. } => {
                "router and shared expert at once; routing; experts in two".to_owned()
            }
            Self::NormMixture { shared: FusedShared::Within, .. } => {
                "norm, router and shared expert at once; routing; experts in two".to_owned()
            }
            Self::NormMixture { shared: FusedShared::Apart, .. } => {
                "norm and router at once; routing; experts in two; the shared expert apart"
                    .to_owned()
            }
            Self::NormDense { dense: Dense { to: None, .. }, .. } => {
                "norm, gate and up at once; down, added".to_owned()
            }
            Self::NormDense { .. } => "norm, gate and up at once; activation; down".to_owned(),
            Self::Sandwich { .. } => {
                "three norms at once; router; routing; experts in two; two norms and scale at once"
                    .to_owned()
            }
        }
    }
}

/// What the table asks of a model, in addition to its operations.
pub(super) struct Facts<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) device: &'a dyn StepDevice,
    pub(super) matrix: &'a dyn Fn(MatrixId) -> Matrix,
    /// Shapes of a layer's experts, where their pieces lie as fused kernels read them.
    pub(super) experts: &'a dyn Fn(LayerId) -> Option<ExpertShapes>,
    /// The router by which a step guesses the choice of the layer after this one.
    pub(super) guess: &'a dyn Fn(LayerId) -> Option<Matrix>,
}

impl Facts<'_> {
    /// Whether one fused kernel serves products of these matrices.
    fn fuses(&self, ids: &[MatrixId]) -> bool {
        let matrices: Vec<Matrix> = ids.iter().map(|&id| (self.matrix)(id)).collect();
        launch::step_serves(self.device, &matrices)
    }

    /// The narrow matrices of a site of streams, where the kernels of a step serve it.
    fn site(&self, products: &[Product], up: MatrixId) -> Option<(MatrixId, Option<MatrixId>)> {
        let streams = self.config.gated?.streams;
        let down = products.iter().find(|it| it.to == Register::GateLow)?.matrix;
        let inject = products.iter().find(|it| it.to == Register::Inject).map(|it| it.matrix);
        let matrices = GateMatrices {
            down: (self.matrix)(down),
            inject: inject.map(|id| (self.matrix)(id)),
            up: (self.matrix)(up),
        };
        launch::step_serves_gates(&matrices, streams).then_some((down, inject))
    }

    fn linear(&self, products: &[Product]) -> bool {
        self.fuses(&products.iter().map(|product| product.matrix).collect::<Vec<_>>())
    }

    /// Whether keys and values of all positions are kept.
    fn pages(&self, layer: LayerId) -> bool {
        self.config.layers[layer.index()].kept_window().is_none()
    }

    fn gates(&self, matrix: MatrixId) -> bool {
        self.fuses(&[matrix]) && self.config.attention.head_dim.is_multiple_of(8)
    }

    fn norms_heads(&self, matrix: MatrixId) -> bool {
        let dim = self.config.delta.as_ref().map_or(0, |delta| delta.value_dim);
        self.fuses(&[matrix]) && launch::step_serves_head(dim)
    }

    fn dense(&self, dense: &Dense) -> bool {
        let [gate, up] = [dense.gate, dense.up].map(self.matrix);
        // With another function the halves are products of their own.
        let first = match dense.activation {
            Activation::SwiGlu => launch::step_serves_pair(self.device, &gate, &up),
            _ => self.fuses(&[dense.gate, dense.up]),
        };
        // An output that is normed may be any product: Gemma-4's has half a unit of columns too many.
        first && (dense.to.is_some() || self.fuses(&[dense.down]))
    }

    /// How norm, router and shared expert of a step's mixture run as one kernel and the experts as two; `None` where
    /// they do not.
    fn mixture(&self, layer: LayerId, mixture: &Mixture) -> Option<FusedShared> {
        let moe = &self.config.moe;
        let biased_logits = mixture.router_bias.is_some() && moe.router.score == Score::Softmax;
        let plain = mixture.biases.is_none()
            && moe.activation == Activation::SwiGlu
            && moe.rows == GateUpRows::Apart
            && mixture.router_input == Register::Normed
            && mixture.to.is_none();
        if biased_logits || !plain {
            return None;
        }
        let shapes = (self.experts)(layer)?;
        let mut routers = vec![(self.matrix)(mixture.router)];
        routers.extend((self.guess)(layer));
        let served = |products: &[Matrix], down| {
            launch::step_serves(self.device, products)
                && launch::step_serves_experts(self.device, &shapes, down)
        };
        let Some(shared) = &mixture.shared else {
            return served(&routers, None).then_some(FusedShared::Within);
        };
        let [gate, up, down] = [shared.gate, shared.up, shared.down].map(self.matrix);
        if !launch::step_serves_pair(self.device, &gate, &up) {
            return None;
        }
        let factor = shared.gate_weight.map(self.matrix);
        let all: Vec<Matrix> = routers.iter().copied().chain(factor).chain([gate, up]).collect();
        if served(&all, Some(&down)) {
            return Some(FusedShared::Within);
        }
        let apart = factor.is_none() && launch::step_serves(self.device, [&down]);
        (apart && served(&routers, None)).then_some(FusedShared::Apart)
    }
}

/// The table: what the first operations of a step's list become, and how many they are.
#[rustfmt::skip]
fn first(ops: &[Op], layer: LayerId, facts: &Facts<'_>) -> (Launch, usize) {
    use Op::{
        Attend, Convolve, GatedNorm, Linear, LinearAdd, Norm, NormAdd, NormRotate, NormRow,
        NormValues, Scale, SigmoidGate, SplitQueryGate,
    };
    use Register::{Branch, Context, Gate, Key, Normed, Query, Residual, RouterInput};
    match *ops {
        [Norm { from: Residual, weight: norm, to: Normed }, Linear { from: Normed, ref products },
            Convolve { weight }, ..]
            if facts.linear(products) =>
            (Launch::DeltaInputs { norm: Some(norm), products: products.clone(), convolution: weight }, 3),
        [Linear { from: Normed, ref products }, Convolve { weight }, ..] if facts.linear(products) =>
            (Launch::DeltaInputs { norm: None, products: products.clone(), convolution: weight }, 2),
        [Op::NormStreams { weight: norm }, Linear { from: Register::StreamsNormed, ref products },
            Op::GateStreams { up, to: Normed }, ..]
            if let Some((down, inject)) = facts.site(products, up) =>
            (Launch::Gates { norm, down, inject, up }, 3),
        [Norm { from: Residual, weight: norm, to: Normed }, Linear { from: Normed, ref products }, ..]
            if facts.linear(products) =>
            (Launch::NormLinear { norm, products: products.clone() }, 2),
        [GatedNorm { weight, gate }, LinearAdd { from: Context, matrix, to: Residual }, ..]
            if facts.norms_heads(matrix) =>
            (Launch::DeltaOutput { norm: weight, gate, matrix }, 2),
        [GatedNorm { weight, gate }, Linear { from: Context, ref products },
            Op::InjectStreams { from: Normed }, ..]
            if let &[Product { matrix, to: Normed }] = products.as_slice() && facts.norms_heads(matrix) =>
            (Launch::Inject { heads: Some((weight, gate)), matrix }, 3),
        [Linear { from: Context, ref products }, Op::InjectStreams { from: Normed }, ..]
            if let &[Product { matrix, to: Normed }] = products.as_slice() && facts.fuses(&[matrix]) =>
            (Launch::Inject { heads: None, matrix }, 2),
        [SplitQueryGate, NormRotate { heads: Query, weight: query }, NormRotate { heads: Key, weight: key },
            Attend { sinks: None }, SigmoidGate { x: Context, gate: Gate },
            LinearAdd { from: Context, matrix, to: Residual }, ..]
            if facts.pages(layer) && facts.gates(matrix) =>
            (Launch::GatedHeads { norms: [query, key], matrix }, 6),
        [SplitQueryGate, NormRotate { heads: Query, weight: query }, NormRotate { heads: Key, weight: key },
            Attend { sinks: None }, SigmoidGate { x: Context, gate: Gate }, ..]
            if facts.pages(layer) =>
            (Launch::SplitHeads { norms: [query, key] }, 5),
        [NormRotate { heads: Query, weight: query }, NormRotate { heads: Key, weight: key },
            Attend { sinks: None }, ..] =>
            (Launch::Heads { norms: [query, key], values: None }, 3),
        [NormValues { from }, NormRotate { heads: Query, weight: query }, NormRotate { heads: Key, weight: key },
            Attend { sinks: None }, ..] =>
            (Launch::Heads { norms: [query, key], values: Some(from) }, 4),
        [NormRow { register: Branch, weight: dense }, Norm { from: Residual, weight: router, to: RouterInput },
            Norm { from: Residual, weight: experts, to: Normed },
            Op::Mixture(mixture @ Mixture { to: Some(Normed), router_input: RouterInput, .. }),
            NormAdd { from: Normed, weight: of_mixture, to: Branch },
            NormAdd { from: Branch, weight: after, to: Residual }, Scale { register: Residual, factor }, ..] => {
            let before = [router, experts];
            let norms = SandwichNorms { dense, before, mixture: of_mixture, after, factor };
            (Launch::Sandwich { norms, mixture }, 7)
        }
        [Norm { from: Residual, weight: norm, to: Normed }, Op::Dense(dense), ..]
            if facts.dense(&dense) =>
            (Launch::NormDense { norm, dense }, 2),
        [Norm { from: Residual, weight: norm, to: Normed }, Op::Mixture(mixture), ..]
            if let Some(shared) = facts.mixture(layer, &mixture) =>
            (Launch::NormMixture { norm: Some(norm), mixture, shared }, 2),
        [Op::Mixture(mixture), ..]
            if facts.config.gated.is_some() && let Some(shared) = facts.mixture(layer, &mixture) =>
            (Launch::NormMixture { norm: None, mixture, shared }, 1),
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
    Prepared::new(program, computed, &Kind::ALL, |kind, layer, ops| match kind {
        Kind::Step => first(ops, layer, facts),
        Kind::Chunk => (Launch::Plain(ops[0].clone()), 1),
    })
}

/// The launches of each layer in words, by kind of batch, on a device with fused kernels, where experts' pieces are
/// aligned and nothing is guessed; of a model that the kernels serve.
pub fn describe(
    config: &ModelConfig,
    catalog: &Catalog<'_>,
    experts: &[Option<[ProjectionShape; 3]>],
    program: &Program,
) -> Vec<Listing> {
    let matrices = catalog.matrices();
    let matrices = matrices.map(|(rows, columns, encoding)| Matrix::shape(encoding, rows, columns));
    let matrices: Vec<_> = matrices.collect();
    let of_experts = |layer: LayerId| {
        let shapes = experts.get(layer.index())?.as_ref()?;
        let [gate, up, down] =
            shapes.each_ref().map(|it| Matrix::shape(it.encoding, it.rows, it.columns));
        Some(ExpertShapes::without_places(gate, up, down))
    };
    let facts = Facts {
        config,
        device: &launch::RecentDevice,
        matrix: &|id| matrices[id.index()],
        experts: &of_experts,
        guess: &|_| None,
    };
    prepare(program, &(0..program.layers.len()), &facts)
        .listings(&Kind::ALL.map(Kind::name), Launch::describe)
}

/// Whether the kernels compute an operation of a layer, as the model has it. An operation that is added is decided
/// here.
///
/// # Errors
/// The operation, or the form of it, that they do not compute.
pub(super) fn serves(op: &Op) -> Result<(), Refusal> {
    match op {
        // Kernels of shared experts know SwiGLU, read what the router reads, and add to the stream.
        Op::Mixture(Mixture { shared: Some(_), activation: Activation::GeGlu, .. }) => {
            Err(Refusal::form(op, Refusal::GELU))
        }
        Op::Mixture(Mixture { shared: Some(_), router_input, .. })
            if *router_input != Register::Normed =>
        {
            Err(Refusal::form(op, Refusal::OTHER_INPUT))
        }
        Op::Mixture(Mixture { shared: Some(_), to: Some(_), .. }) => {
            Err(Refusal::form(op, "with a shared expert and an output of its own"))
        }
        Op::Dense(Dense { activation: Activation::Limited { .. }, .. }) => {
            Err(Refusal::form(op, Refusal::CLAMPED))
        }
        Op::MergeStreams { site: None } => Err(Refusal::form(op, Refusal::MEAN)),
        Op::AttendRows { indexer: Some(RowIndexer { pool: Some(_), .. }), .. } => {
            Err(Refusal::form(op, "of pools"))
        }
        Op::Norm { .. }
        | Op::NormAdd { .. }
        | Op::NormValues { .. }
        | Op::NormHeads { .. }
        | Op::Scale { .. }
        | Op::NormRow { .. }
        | Op::Linear { .. }
        | Op::LinearAdd { .. }
        | Op::GroupedLinear { .. }
        | Op::AddBias { .. }
        | Op::SplitQueryGate
        | Op::NormRotate { .. }
        | Op::Rotate { .. }
        | Op::Attend { .. }
        | Op::AttendLatent(_)
        | Op::AttendCompressed(_)
        | Op::NormPair { .. }
        | Op::KeepKeys
        | Op::SigmoidGate { .. }
        | Op::GateHeads { .. }
        | Op::Convolve { .. }
        | Op::DeltaRule { .. }
        | Op::Join { .. }
        | Op::GatedNorm { .. }
        | Op::AttendIndexed(_)
        | Op::AttendRows { .. }
        | Op::GatherRows { .. }
        | Op::MixNgrams(_)
        | Op::NormStreams { .. }
        | Op::GateStreams { .. }
        | Op::InjectStreams { .. }
        | Op::OpenStreams { .. }
        | Op::CloseStreams { .. }
        | Op::MergeStreams { .. }
        | Op::Mixture(_)
        | Op::Dense(_) => Ok(()),
    }
}
