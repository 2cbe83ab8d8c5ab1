//! The sizes of a portable GPU's backend, the bytes of its memory that it will hold for them, and the models that it
//! computes: all known before anything is loaded.

use gpu::op::experts::Layout;
use gpu::op::packing::Packing;
use gpu::op::{convolution, delta, heads, router};
use gpu::{Gpu, Trunk};
use kernels::KvType;
use kernels::format::Encoding;
use store::format::ProjectionShape;

use super::super::Register;
use crate::EngineError;
use crate::model::config::{Mixer, ModelConfig};
use crate::model::part::Part;
use crate::weights::Catalog;

/// Sizes of a backend.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// Most tokens of one batch.
    pub batch_tokens: usize,
    /// Most tokens of one batch whose logits are asked for at once.
    pub logit_rows: usize,
    /// Most sequences at a time.
    pub sequences: usize,
    /// Most recurrent states kept by snapshots, in the process's memory.
    pub snapshots: usize,
    /// Most pages of keys and values kept by snapshots, in the process's memory.
    pub snapshot_pages: usize,
    /// Most tokens of one sequence.
    pub context: usize,
    /// How keys and values are stored: f32 or f16.
    pub kv_type: KvType,
    /// Experts per token; the trained number unless the user asked for fewer.
    pub top_k: usize,
}

/// GPU memory of a backend, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequirements {
    /// Dense weights.
    pub weights: u64,
    /// Keys and values of every sequence at its full context.
    pub key_values: u64,
    /// Recurrent states and convolution tails of every sequence.
    pub recurrent: u64,
    /// Activations, logits, tables.
    pub activations: u64,
}

/// Numbers of the buffers that a batch needs, in their order.
pub(super) struct Sizes {
    pub(super) registers: [usize; Register::COUNT],
    /// `[logit_rows, hidden]`, twice: rows whose logits are asked for, and normed.
    pub(super) selected: usize,
    pub(super) logits: usize,
    pub(super) router_logits: usize,
    /// Of each pair of a token and an expert.
    pub(super) pairs: usize,
    pub(super) pair_inner: usize,
    pub(super) pair_hidden: usize,
    pub(super) shared_factor: usize,
    pub(super) shared_inner: usize,
    pub(super) shared_hidden: usize,
    pub(super) tokens: usize,
    pub(super) angles: usize,
    /// Words of the table of experts.
    pub(super) table: usize,
    /// Bytes of a sequence's keys in one layer; its values take as many.
    pub(super) cache_bytes: u64,
    /// Numbers of a recurrent state, and of a convolution's tail.
    pub(super) state: usize,
    pub(super) tail: usize,
}

impl Sizes {
    pub(super) fn new(config: &ModelConfig, options: &GpuOptions) -> Self {
        let (tokens, hidden, moe) = (options.batch_tokens, config.hidden, &config.moe);
        let pairs = tokens * options.top_k;
        let shared = moe.shared_intermediate.map_or(0, |_| tokens);
        let inner = shared * moe.shared_intermediate.unwrap_or(0);
        let attention = &config.attention;
        let row = attention.key_value_heads * options.kv_type.bytes_of_head(attention.head_dim);
        let (state, tail) = config.delta.as_ref().map_or((0, 0), |shape| {
            (
                super::delta_shape(shape).state_len(),
                (shape.convolution_kernel - 1) * shape.channels(),
            )
        });
        Self {
            registers: Register::widths(config).map(|width| tokens * width),
            selected: options.logit_rows * hidden,
            logits: options.logit_rows * config.vocabulary,
            router_logits: tokens * moe.experts,
            pairs,
            pair_inner: pairs * moe.intermediate,
            pair_hidden: pairs * hidden,
            shared_factor: shared,
            shared_inner: inner,
            shared_hidden: shared * hidden,
            tokens,
            angles: tokens * attention.rope.dims,
            table: config.layers.len() * moe.experts,
            cache_bytes: (options.context * row) as u64,
            state,
            tail,
        }
    }

    /// Bytes of all buffers of a batch, each rounded up as it is allocated.
    fn batch_bytes(&self) -> u64 {
        let once = [
            self.logits,
            self.router_logits,
            self.pair_inner,
            self.pair_hidden,
            self.shared_factor,
            self.shared_hidden,
            self.tokens,
            self.angles,
            self.table,
            1,
        ];
        let twice = [self.selected, self.shared_inner];
        // Ids, weights, and order twice; tiles of three words twice.
        let pairs = 4 * padded(4 * self.pairs as u64) + 2 * padded(12 * self.pairs as u64);
        let bytes = |numbers: &usize| padded(4 * *numbers as u64);
        self.registers.iter().chain(&once).map(bytes).sum::<u64>()
            + 2 * twice.iter().map(bytes).sum::<u64>()
            + pairs
    }
}

/// Bytes that a buffer takes.
fn padded(bytes: u64) -> u64 {
    bytes.max(4).next_multiple_of(Gpu::ALIGNMENT)
}

impl GpuRequirements {
    /// What `GpuBackend::new` with these options will hold, slots for experts not counted.
    pub fn of(config: &ModelConfig, catalog: &Catalog<'_>, options: &GpuOptions) -> Self {
        let sizes = Sizes::new(config, options);
        let matrices = catalog.matrices();
        let matrices =
            matrices.map(|(rows, columns, it)| Trunk::bytes(it.plane_bytes(rows, columns)));
        let vectors = catalog.vector_lengths().map(|length| padded(4 * length as u64));
        let sequences = options.sequences as u64;
        let layers = |mixer| config.count(mixer) as u64 * sequences;
        let recurrent = padded(4 * sizes.state as u64) + padded(4 * sizes.tail as u64);
        Self {
            weights: matrices.sum::<u64>() + vectors.sum::<u64>(),
            key_values: 2 * layers(Mixer::Attention) * padded(sizes.cache_bytes),
            recurrent: layers(Mixer::DeltaNet) * recurrent,
            activations: sizes.batch_bytes(),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.key_values + self.recurrent + self.activations
    }
}

/// How the records of a layer lie in slots; `None` where the kernels do not read them.
pub(super) fn layout(shapes: &[ProjectionShape; 3]) -> Option<Layout> {
    Layout::new(
        shapes.each_ref().map(|shape| shape.encoding),
        shapes.each_ref().map(|shape| (shape.rows, shape.columns)),
    )
}

/// Bytes of a slot for the records of any layer.
pub fn slot_bytes(experts: &[Option<[ProjectionShape; 3]>]) -> usize {
    let bytes = experts.iter().flatten().filter_map(layout).map(|layout| layout.bytes());
    bytes.max().unwrap_or(4).next_multiple_of(Gpu::ALIGNMENT as usize)
}

/// Whether the kernels compute a model as its checkpoint stores it, with these options. Asked before anything is
/// loaded.
///
/// # Errors
/// The parts that they do not compute, a shape beyond their limits, or the first tensor whose encoding they do not
/// read.
pub fn check_model(
    config: &ModelConfig,
    catalog: &Catalog<'_>,
    experts: &[Option<[ProjectionShape; 3]>],
) -> Result<(), EngineError> {
    let config_error = |key, problem| Err(EngineError::Config { key, problem });
    let parts: Vec<_> = config.parts().into_iter().map(Part::name).collect();
    if !parts.is_empty() {
        let (name, parts) = (config.family.name(), parts.join(", "));
        let problem =
            format!("is {name}: the GPU kernels do not compute {parts}: use --device cpu");
        return config_error("model_type", problem);
    }
    let delta = config.delta.as_ref();
    for (key, found, limit) in [
        ("num_experts_per_tok", config.moe.top_k, router::TOP_K_LIMIT),
        ("num_experts", config.moe.experts, router::EXPERTS_LIMIT),
        ("head_dim", config.attention.head_dim, heads::HEAD_DIM_LIMIT),
        ("linear_key_head_dim", delta.map_or(0, |delta| delta.key_dim), delta::KEY_DIM_LIMIT),
        (
            "linear_conv_kernel_dim",
            delta.map_or(0, |delta| delta.convolution_kernel),
            convolution::TAPS_LIMIT,
        ),
    ] {
        if found > limit {
            let problem =
                format!("is {found}; the GPU kernels serve up to {limit}: use --device cpu");
            return config_error(key, problem);
        }
    }
    if !config.attention.head_dim.is_multiple_of(2) {
        let found = config.attention.head_dim;
        let problem = format!("is {found}; the GPU kernels serve even numbers: use --device cpu");
        return config_error("head_dim", problem);
    }
    let refuse = |name: &str, encoding: Encoding| {
        let label = encoding.label();
        let problem =
            format!("is stored as {label}, which the GPU kernels do not read: use --device cpu");
        Err(EngineError::tensor(name, problem))
    };
    let serves = |encoding: Encoding, columns: usize| {
        Packing::of(encoding).is_some_and(|packing| packing.serves(columns))
    };
    for ((name, encoding), (_, columns, _)) in catalog.encodings().zip(catalog.matrices()) {
        if !serves(encoding, columns) {
            return refuse(name, encoding);
        }
    }
    for (layer, shapes) in experts.iter().enumerate() {
        let Some(shapes) = shapes else { continue };
        for (shape, projection) in shapes.iter().zip(["gate", "up", "down"]) {
            if !serves(shape.encoding, shape.columns) {
                return refuse(&format!("layers.{layer}.experts.{projection}"), shape.encoding);
            }
        }
        if layout(shapes).is_none() {
            let problem = "are stored in two ways; the GPU kernels read one: use --device cpu";
            return Err(EngineError::tensor(
                &format!("layers.{layer}.experts.gate and up"),
                problem,
            ));
        }
    }
    Ok(())
}

/// Refuses types of keys and values that the kernels do not store.
///
/// # Errors
/// Any but f32 and f16.
pub fn check_kv_type(kv_type: KvType) -> Result<(), EngineError> {
    match kv_type {
        KvType::F32 | KvType::F16 => Ok(()),
        other => Err(EngineError::Request(format!(
            "--kv-type {other}: the GPU kernels store keys and values as f16 or f32"
        ))),
    }
}
