//! The sizes of a portable GPU's backend, the bytes of its memory that it will hold for them, and the models that it
//! computes: all known before anything is loaded.

use std::ops::Range;
use std::sync::Arc;

use gpu::op::attention as attention_kernels;
use gpu::op::attention_wide::VALUES_LIMIT;
use gpu::op::experts::Layout;
use gpu::op::halves::Halves;
use gpu::op::packing::Packing;
use gpu::op::{convolution, delta, draw, heads, q8, router};
use gpu::{Footprint, Gpu, MemoryClass, Trunk};
use kernels::KvType;
use kernels::format::Encoding;
use store::format::ProjectionShape;

use super::super::Register;
use super::compressed;
use super::constants::Constants;
use super::fuse::serves;
use super::step::STEP_TOKENS;
use super::{chosen_rows, given, latent, streams};
use crate::EngineError;
use crate::model::config::{AttentionConfig, FeedForward, ModelConfig};
use crate::model::program::Program;
use crate::residency::predictor::Prediction;
use crate::sequences::{Kept, Placement, RowForm, RowPlaces, SequenceLayout, WindowSizes};
use crate::weights::Catalog;

/// Sizes of a backend.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// The layers of the model that it computes; the others are other backends'.
    pub layers: Range<usize>,
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
    /// How keys and values are stored: f32, f16, q8, or as the model was trained.
    pub kv_type: KvType,
    /// Experts per token; the trained number unless the user asked for fewer.
    pub top_k: usize,
    /// How steps are handed over where an expert may be missing.
    pub pieces: Pieces,
    /// Whether steps guess what the next layer will choose.
    pub prediction: Prediction,
}

/// How many layers of a step are handed over at once where an expert may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// As many as the last step went without a miss, 1 to [`Pieces::LIMIT`].
    Adaptive,
    /// Always so many, at least one.
    Layers(usize),
}

impl Pieces {
    /// Most layers of a piece that follows the misses.
    pub const LIMIT: usize = 16;
}

/// GPU memory of a backend, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequirements {
    /// Dense weights.
    pub weights: u64,
    /// Keys and values of every sequence at its full context.
    pub key_values: u64,
    /// State of a fixed size of every sequence: recurrent states, convolution tails, windows.
    pub recurrent: u64,
    /// Activations, logits, tables.
    pub activations: u64,
    /// What is written and read through where the device's memory is the host's, and what blocks of small buffers
    /// leave unused.
    pub staging: u64,
}

/// Numbers of the buffers that a batch needs, in their order.
pub(super) struct Sizes {
    pub(super) registers: [usize; Register::COUNT],
    /// `[logit_rows, hidden]`, twice: rows whose logits are asked for, and normed.
    pub(super) selected: usize,
    pub(super) logits: usize,
    pub(super) router_logits: usize,
    /// Chosen experts of a batch, or of all layers of a step.
    pub(super) chosen: usize,
    /// Of each pair of a token and an expert.
    pub(super) pairs: usize,
    pub(super) pair_inner: usize,
    pub(super) pair_hidden: usize,
    /// What a step guesses of the next layer.
    pub(super) guesses: usize,
    /// Logits of all layers of a step in the place of its routers'.
    pub(super) replaced: usize,
    pub(super) shared_factor: usize,
    pub(super) shared_inner: usize,
    pub(super) shared_hidden: usize,
    /// Rows in halves for products by matrices, and their factors.
    pub(super) halves: [usize; 2],
    /// What blocks of a token's attention leave.
    pub(super) partial: usize,
    pub(super) tokens: usize,
    pub(super) angles: usize,
    pub(super) windowed_angles: usize,
    /// [`Constants`].
    pub(super) constants: Vec<usize>,
    /// Words of the table of experts.
    pub(super) table: usize,
    /// Words of each of the two buffers in which tokens are ranked, and most likely tokens at once.
    pub(super) ranking: usize,
    pub(super) drawn: usize,
    /// Values that a step leaves to the device behind.
    left: usize,
    /// Bytes of a sequence's keys in one layer that keeps all positions; its values take as many.
    pub(super) cache_bytes: u64,
    /// Queries that meet latent rows, and sums of rows.
    pub(super) latent: [usize; 2],
    /// Scores of rows, and rows that tokens choose.
    pub(super) choice: [usize; 2],
    /// [`compressed::sizes`], and [`streams::sizes`].
    pub(super) compressed: [usize; 4],
    pub(super) streams: [usize; 2],
    /// Words of tables that give experts.
    tables: Vec<usize>,
    /// What sequences keep of compressed attention.
    compressed_rows: RowPlaces,
    /// Tokens of a sequence.
    context: usize,
    /// What layers with a window keep.
    pub(super) windows: Option<WindowSizes>,
    /// What sequences carry.
    pub(super) layout: Arc<SequenceLayout>,
}

impl Sizes {
    pub(super) fn new(config: &ModelConfig, options: &GpuOptions) -> Self {
        let (tokens, hidden, moe) = (options.batch_tokens, config.hidden, &config.moe);
        let pairs = tokens * options.top_k;
        let shared = moe.shared_intermediate.map_or(0, |_| tokens);
        let inner = network_width(config);
        let attention = &config.attention;
        let layout =
            SequenceLayout::of_layers(config, &options.layers, options.kv_type, RowForm::Words);
        let layout = Arc::new(layout.with_keys_by_layer());
        let values = config.delta.as_ref().map_or(0, |shape| shape.value_width());
        let widest = hidden
            .max(values)
            .max(config.attentions().map(AttentionConfig::query_width).max().unwrap_or(0));
        let widest = widest.max(inner);
        let widest = widest.max(latent::widest(config)).max(compressed::widest(config));
        let widths = [(tokens, widest), (pairs, moe.intermediate)];
        let halves = widths.map(|(rows, width)| Halves::sizes(rows, width)[0]);
        let context = options.context;
        // Another device has the head behind the model's last layer.
        let ends = options.layers.end == config.layers.len();
        let logit_rows = if ends { options.logit_rows } else { 0 };
        Self {
            registers: Register::widths(config).map(|width| tokens * width),
            halves: [halves.into_iter().max().unwrap_or(0), pairs],
            partial: match config.latent {
                Some(_) => 0,
                None => attention_kernels::partial_len(attention.query_heads, context),
            },
            selected: logit_rows * hidden,
            logits: logit_rows * config.vocabulary,
            router_logits: tokens * moe.experts,
            chosen: pairs.max(config.layers.len() * tokens.min(STEP_TOKENS) * options.top_k),
            pairs,
            // Behind a token's pairs lies the expert that is always used (`op::chosen`).
            pair_inner: (pairs + 1) * moe.intermediate,
            pair_hidden: pairs * hidden,
            guesses: match options.prediction {
                Prediction::Off => 0,
                Prediction::On | Prediction::Auto => tokens.min(STEP_TOKENS) * moe.experts,
            },
            replaced: config.layers.len() * replaced_row(tokens.min(STEP_TOKENS), moe.experts),
            shared_factor: shared,
            shared_inner: tokens * inner,
            shared_hidden: shared * hidden,
            tokens,
            angles: tokens * attention.rope.dims,
            windowed_angles: tokens * config.windowed.as_ref().map_or(0, |it| it.rope.dims),
            constants: Constants::sizes(config),
            table: config.layers.len() * moe.experts,
            ranking: match logit_rows.min(STEP_TOKENS) {
                0 => 0,
                rows => draw::scratch_words(config.vocabulary, rows),
            },
            drawn: logit_rows.min(STEP_TOKENS),
            left: if ends { 0 } else { tokens.min(STEP_TOKENS) * config.streams() * hidden },
            cache_bytes: (options.context * layout.row()) as u64,
            latent: latent::sizes(config, tokens),
            choice: chosen_rows::sizes(config, options),
            compressed: compressed::sizes(config, options, &layout),
            streams: streams::sizes(config, tokens),
            tables: given::sizes(config, options),
            compressed_rows: Placement::new(&layout, options.sequences, context).compressed(false),
            context,
            windows: WindowSizes::new(&layout, options.batch_tokens),
            layout,
        }
    }

    /// Of the layer with number `index` among those that keep all positions: bytes of a sequence's keys, and of its
    /// values. Where rows are both, index keys are in the place of values.
    pub(super) fn sides_bytes(&self, index: usize) -> [u64; 2] {
        let others = match self.layout.sides() {
            2 => self.cache_bytes,
            _ => self.layout.index_bytes(index, self.context) as u64,
        };
        [self.cache_bytes, others]
    }

    /// Bytes of a sequence's recurrent state and convolution tail in one delta layer.
    pub(super) fn recurrent_bytes(&self) -> [u64; 2] {
        [self.layout.state(), self.layout.tail()].map(|values| 4 * values as u64)
    }

    /// Places of a sequence in which compressed attention keeps what it keeps: one, or none.
    pub(super) fn compressed_places(&self) -> usize {
        usize::from(self.compressed_rows.state_values > 0)
    }

    /// Bytes of a sequence's state and pages of compressed attention.
    pub(super) fn compressed_bytes(&self) -> [u64; 2] {
        let rows = &self.compressed_rows;
        [4 * rows.state_values, rows.sequence_bytes()].map(|bytes| bytes as u64)
    }

    /// Bytes of all buffers of a batch.
    fn batch(&self) -> impl Iterator<Item = u64> {
        let mixture = [
            self.router_logits,
            self.guesses,
            self.replaced,
            self.pair_inner,
            self.pair_hidden,
            self.shared_factor,
            self.shared_inner,
            self.shared_inner,
            self.shared_hidden,
        ];
        // Weights, and order twice; tiles of three words twice.
        let pairs = [self.pairs; 3].into_iter().chain([3 * self.pairs; 2]);
        let batch = [
            self.tokens,
            self.angles,
            self.windowed_angles,
            self.partial,
            self.selected,
            self.selected,
            self.logits,
            self.table,
            self.chosen,
            self.ranking,
            self.ranking,
            self.drawn,
            Gpu::CONTROL_WORDS as usize,
        ];
        let registers =
            self.registers.into_iter().chain(self.halves).chain(self.latent).chain(self.choice);
        let registers = registers.chain(self.constants.iter().copied());
        let registers = registers.chain(self.compressed).chain(self.streams);
        let registers = registers.chain(self.tables.iter().copied());
        let numbers = registers.chain(batch).chain(mixture).chain(pairs);
        numbers.map(|numbers| 4 * numbers as u64).chain(Gpu::grid_bytes())
    }

    /// Most bytes that are read at once: logits of a call with the choices of a step, a page of a snapshot, a state,
    /// the residual of a chunk, rows that its tokens have chosen.
    fn read(&self, config: &ModelConfig) -> u64 {
        let (page, states) = (self.layout.page_bytes() as u64, self.layout.state_values());
        let control = Gpu::CONTROL_WORDS as usize;
        let step = control + self.chosen + self.guesses + self.logits + self.left;
        let chosen = if config.shares_choices() { self.choice[1] } else { 0 };
        let aside = chosen.max(control + self.tokens * config.streams() * config.hidden);
        page.max(4 * step.max(states).max(aside) as u64)
    }
}

impl GpuRequirements {
    /// What `GpuBackend::new` with these options will hold on a device of this class, slots for experts not counted.
    pub fn of(
        config: &ModelConfig,
        catalog: &Catalog<'_>,
        options: &GpuOptions,
        class: MemoryClass,
    ) -> Self {
        let sizes = Sizes::new(config, options);
        let mut footprint = Footprint::default();
        let mut sum = |buffers: &mut dyn Iterator<Item = u64>| -> u64 {
            let add = |bytes| {
                footprint.add(bytes);
                Footprint::padded(bytes)
            };
            buffers.map(add).sum()
        };
        let matrices = catalog.loaded();
        let matrices =
            matrices.map(|(rows, columns, it)| Trunk::bytes(it.plane_bytes(rows, columns)));
        let vectors = held_runs(catalog).filter(|(.., held)| *held);
        let vectors = vectors.map(|(_, values, _)| 4 * values as u64);
        let weights = sum(&mut matrices.chain(vectors));
        let activations = sum(&mut sizes.batch());
        let layers = |kept| sizes.layout.count(kept) * options.sequences;
        let (windows, caches) = (layers(Kept::Window), sizes.layout.count(Kept::Paged));
        let rows = sizes.compressed_places() * options.sequences;
        let [of_rows, of_pages] = sizes.compressed_bytes().map(|it| std::iter::repeat_n(it, rows));
        let key_values = (0..options.sequences).flat_map(|_| 0..caches);
        let key_values = key_values.map(|index| sizes.sides_bytes(index));
        let key_values = sum(&mut key_values.flatten().chain(of_pages));
        let kept = sizes.windows.iter().flat_map(|it| {
            let place = sizes.layout.window_place_bytes();
            let bytes = [(place, 2 * windows), (it.run_bytes(), 2)];
            bytes.into_iter().flat_map(|(bytes, count)| std::iter::repeat_n(bytes as u64, count))
        });
        let kept = sum(&mut { kept.chain(of_rows) });
        let states =
            sizes.recurrent_bytes().map(|bytes| std::iter::repeat_n(bytes, layers(Kept::State)));
        let recurrent = kept + sum(&mut states.into_iter().flatten());
        let used = weights + activations + key_values + recurrent;
        let staging = footprint.bytes() - used + Footprint::staging(class, sizes.read(config));
        Self { weights, key_values, recurrent, activations, staging }
    }

    /// A page and a state of a snapshot, in the process's memory.
    pub fn snapshot_bytes(config: &ModelConfig, kv_type: KvType) -> [u64; 2] {
        let layers = 0..config.layers.len();
        let layout = SequenceLayout::of_layers(config, &layers, kv_type, RowForm::Words);
        [layout.page_bytes(), layout.state_bytes()].map(|bytes| bytes as u64)
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.key_values + self.recurrent + self.activations + self.staging
    }
}

/// The runs of [`Catalog::vector_runs`], and whether each has a buffer of its own: all that are loaded have; the first
/// of the others has an empty one, which stands for all of them.
pub(super) fn held_runs(
    catalog: &Catalog<'_>,
) -> impl Iterator<Item = (Range<usize>, usize, bool)> {
    let mut empty = false;
    catalog.vector_runs().map(move |(run, values)| {
        let held = values > 0 || !std::mem::replace(&mut empty, true);
        (run, values, held)
    })
}

/// Inner width of the widest network that all tokens use: those of layers without experts, and next to them, use the
/// room of the shared expert.
fn network_width(config: &ModelConfig) -> usize {
    let dense = config.layers.iter().filter_map(|layer| match layer.feed_forward {
        FeedForward::Dense { inner } | FeedForward::Both { inner } => Some(inner),
        FeedForward::Mixture => None,
    });
    dense.chain(config.moe.shared_intermediate).max().unwrap_or(0)
}

/// Numbers from one layer's replaced logits to the next one's: as kernels bind them.
pub(super) fn replaced_row(tokens: usize, experts: usize) -> usize {
    (tokens * experts).next_multiple_of(Gpu::ALIGNMENT as usize / 4)
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
/// The operations that they do not compute, a shape beyond their limits, or the first tensor whose rows they do not
/// read.
pub fn check_model(
    config: &ModelConfig,
    program: &Program,
    catalog: &Catalog<'_>,
    experts: &[Option<[ProjectionShape; 3]>],
) -> Result<(), EngineError> {
    let config_error = |key, problem| Err(EngineError::Config { key, problem });
    program.check(config, "GPU kernels", |layer, op| serves(config, layer, op), &[])?;
    if let Some(found) = latent::unserved(config) {
        return config_error("kv_lora_rank", format!("{found}: use --device cpu"));
    }
    if let Some(found) = chosen_rows::unserved(config) {
        return config_error("index_head_dim", format!("{found}: use --device cpu"));
    }
    if let Some((key, found)) = compressed::unserved(config) {
        return config_error(key, format!("{found}: use --device cpu"));
    }
    let (delta, latent) = (config.delta.as_ref(), config.latent.is_some());
    let window = |layer: usize| config.layers[layer].window.is_some();
    let windowed = (0..config.layers.len()).filter(|&layer| window(layer));
    let windowed = windowed.map(|layer| config.attention_of(layer).head_dim).max().unwrap_or(0);
    for (key, found, limit) in [
        ("num_experts_per_tok", config.moe.top_k, router::TOP_K_LIMIT),
        ("num_experts", config.moe.experts, router::EXPERTS_LIMIT),
        ("head_dim", if latent { 0 } else { config.attention.head_dim }, VALUES_LIMIT),
        ("head_dim", windowed, heads::HEAD_DIM_LIMIT),
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
    check_encodings(config, catalog, experts)
}

/// # Errors
/// The first tensor whose rows the kernels do not read.
fn check_encodings(
    config: &ModelConfig,
    catalog: &Catalog<'_>,
    experts: &[Option<[ProjectionShape; 3]>],
) -> Result<(), EngineError> {
    let check = |name: &str, encoding: Encoding, columns: usize| {
        if Packing::of(encoding).serves(columns) {
            return Ok(());
        }
        let label = encoding.label();
        let problem = format!(
            "is stored as {label} in rows of {columns}, which are no whole words; the GPU kernels do not read them: \
             use --device cpu"
        );
        Err(EngineError::tensor(name, problem))
    };
    for ((name, encoding), (_, columns, _)) in catalog.encodings().zip(catalog.matrices()) {
        check(name, encoding, columns)?;
    }
    for (layer, shapes) in experts.iter().enumerate() {
        let Some(shapes) = shapes else { continue };
        for (shape, projection) in shapes.iter().zip(["gate", "up", "down"]) {
            check(&format!("layers.{layer}.experts.{projection}"), shape.encoding, shape.columns)?;
        }
        let of_grid = |shape: &ProjectionShape| match shape.encoding {
            Encoding::Block(format) => format.grid().is_some(),
            _ => false,
        };
        if config.moe.biases
            && let Some(shape) = shapes.iter().find(|shape| of_grid(shape))
        {
            let label = shape.encoding.label();
            let problem = format!(
                "is stored as {label}, which the GPU kernels do not read: use --device cpu"
            );
            let name = format!("layers.{layer}.experts, which have biases,");
            return Err(EngineError::tensor(&name, problem));
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
/// Any but f32, f16, q8 and that of training; q8 of a model whose rows of a token are not whole words of whole groups,
/// or stand for several tokens.
pub fn check_kv_type(kv_type: KvType, config: &ModelConfig) -> Result<(), EngineError> {
    match kv_type {
        KvType::F32 | KvType::F16 => Ok(()),
        KvType::Fp8 { .. } if config.trained_kv_type() == Some(kv_type) => Ok(()),
        KvType::Q8 if config.compressed.is_some() => Err(EngineError::Request(format!(
            "--kv-type {kv_type}: the GPU kernels store rows of compressed attention as f16, f32 or fp8"
        ))),
        KvType::Q8 => {
            let mut rows = config.attentions().map(|it| (it.key_value_heads, it.head_dim));
            let Some((heads, dim)) = rows.find(|&(heads, dim)| !q8::serves(heads, dim)) else {
                return Ok(());
            };
            let key = if config.latent.is_some() { "kv_lora_rank" } else { "head_dim" };
            let problem = format!(
                "makes {heads} x {dim} values for each token; to append in 8 bits the GPU kernels need groups \
                 of {}, an even number of them for each token: use --kv-type f16 or --device cpu",
                kernels::Q8_GROUP
            );
            Err(EngineError::Config { key, problem })
        }
        other => Err(EngineError::Request(format!(
            "--kv-type {other}: the GPU kernels store keys and values as f16, f32 or q8"
        ))),
    }
}
