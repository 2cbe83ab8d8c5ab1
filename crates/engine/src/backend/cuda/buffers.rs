//! Device and pinned memory of a CUDA backend, sized once from the model's shapes and the options.
//!
//! [`Sizes`] computes every length; [`Buffers`] allocates exactly that, so that a plan made from the sizes is what
//! will be held.

use std::ops::Range;
use std::sync::Arc;

use cuda::launch::{self, AttentionShape, LatentShape, SplitForm, SplitTokens, TILE_TOKENS};
use cuda::{CudaError, Device, DeviceBuffer, PinnedBuffer, Span};
use store::LayerId;

use super::super::Register;
use super::compressed_scratch::CompressedSizes;
use super::head::HeadSizes;
use super::rounds::RoundSizes;
use super::side_buffers::SideSizes;
use super::{CudaOptions, STEP_TOKENS, latent};
use crate::model::config::{AttentionConfig, ModelConfig};
use crate::sequences::{
    Kept, PlaceBuffer, Placement, RowForm, RowPlaces, SequenceLayout, WindowSizes,
};

/// Most tokens of a prompt that a layer without experts computes at once.
pub(super) const DENSE_TOKENS: usize = 512;

/// Lengths, in values of four bytes unless said otherwise.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) registers: [usize; Register::COUNT],
    /// Tokens of a batch.
    pub(super) tokens: usize,
    pub(super) pairs: usize,
    pub(super) experts: usize,
    /// Layers of the model, with that of a head: records, uses and replaced logits are found by its numbers.
    pub(super) layers: usize,
    /// Those that a batch passes.
    pub(super) trunk: usize,
    /// Those of them that the device computes.
    pub(super) computed: Range<usize>,
    /// Those of them that have experts.
    pub(super) mixtures: usize,
    pub(super) hidden: usize,
    pub(super) inner: usize,
    pub(super) shared: usize,
    /// Width of the widest network of a layer without experts.
    pub(super) dense: usize,
    /// None where another device has the model's last layer.
    pub(super) logit_rows: usize,
    pub(super) vocabulary: usize,
    pub(super) attention: AttentionShape,
    /// Attention over a window, where it has another shape.
    pub(super) windowed: Option<AttentionShape>,
    /// Attention over latent rows, where the model has that kind.
    pub(super) latent: Option<LatentShape>,
    /// Tokens whose queries meet latent rows together.
    pub(super) latent_tokens: usize,
    /// Bytes of one position's keys (or values, or latent row) in one attention layer.
    pub(super) cache_row: usize,
    /// Bytes of keys (or values, or latent rows) of one attention layer, all sequences.
    pub(super) cache_layer: usize,
    /// Rows of a position in one attention layer: a key and a value, or a latent row.
    pub(super) cache_sides: usize,
    /// Attention layers that keep all positions.
    pub(super) attention_layers: usize,
    /// Recurrent state of one delta layer and sequence.
    pub(super) state: usize,
    /// Convolution tail of one delta layer and sequence.
    pub(super) tail: usize,
    pub(super) delta_layers: usize,
    /// Of models with delta layers, where there are rounds.
    pub(super) rounds: Option<RoundSizes>,
    /// Where the model's head is here.
    pub(super) head: Option<HeadSizes>,
    pub(super) sequences: usize,
    /// Words of the request ring.
    pub(super) ring: usize,
    /// Values of the widest input of products of a batch, and of the inner values of its experts.
    pub(super) split: [usize; 2],
    /// Of models with compressed attention.
    pub(super) compressed: Option<CompressedSizes>,
    /// Of models with layers of n-grams or of attention to chosen keys.
    pub(super) side: Option<SideSizes>,
    /// Of models with layers that keep a window of keys and values alone.
    pub(super) windows: Option<WindowSizes>,
    /// What sequences carry.
    pub(super) layout: Arc<SequenceLayout>,
    /// Where it lies in buffers of all sequences.
    pub(super) placement: Placement,
    /// What compressed attention keeps of all sequences.
    pub(super) compressed_rows: RowPlaces,
    /// What layers keep in addition. It is put aside before rounds, but of a head: a row that is read was kept.
    pub(super) side_rows: RowPlaces,
}

impl Sizes {
    pub(super) fn new(config: &ModelConfig, options: &CudaOptions) -> Self {
        let moe = &config.moe;
        let pairs = options.batch_tokens * options.top_k;
        let layout = Arc::new(SequenceLayout::of_layers(
            config,
            &options.layers,
            options.kv_type,
            RowForm::Rows,
        ));
        let placement = Placement::new(&layout, options.sequences, options.context);
        let (rounds, own) =
            (options.round_tokens > 1, config.index.is_some() || config.ngrams.is_some());
        let layers = config.layers.len();
        let step_pairs = STEP_TOKENS * options.top_k;
        let cache_row = layout.row();
        let trunk = config.trunk_layers();
        let computed = options.layers.start..options.layers.end.min(trunk);
        let ends = computed.end == trunk;
        let mixtures = config.layers[computed.clone()].iter();
        Self {
            registers: Register::widths(config).map(|width| width * options.batch_tokens),
            tokens: options.batch_tokens,
            pairs,
            experts: moe.experts,
            layers,
            trunk,
            computed,
            mixtures: mixtures.filter(|layer| layer.feed_forward.has_mixture()).count(),
            hidden: config.hidden,
            inner: moe.intermediate,
            shared: moe.shared_intermediate.unwrap_or(0),
            dense: config.dense_width(),
            logit_rows: if ends { options.logit_rows.max(STEP_TOKENS) } else { 0 },
            vocabulary: config.vocabulary,
            attention: shape_of(&config.attention),
            windowed: config.windowed.as_ref().map(shape_of),
            latent: latent::shape(config),
            latent_tokens: latent::tokens_together(config, options.batch_tokens),
            cache_row,
            cache_layer: placement.bytes(PlaceBuffer::Rows { layer: 0, side: 0 }),
            cache_sides: layout.sides(),
            attention_layers: layout.count(Kept::Paged),
            state: layout.state(),
            tail: layout.tail(),
            delta_layers: layout.count(Kept::State),
            rounds: RoundSizes::new(config, options),
            head: HeadSizes::new(config, options),
            sequences: options.sequences,
            // Each expert of each token may be asked for twice: when it is prefetched and when it is chosen.
            ring: (2 * layers * step_pairs).next_power_of_two(),
            split: [
                options.batch_tokens * widest_input(config),
                (pairs * moe.intermediate)
                    .max(options.batch_tokens * moe.shared_intermediate.unwrap_or(0))
                    .max(options.batch_tokens.min(DENSE_TOKENS) * config.dense_width()),
            ],
            compressed: CompressedSizes::new(config, options, &layout),
            side: SideSizes::new(config, options, &layout),
            windows: WindowSizes::new(&layout, options.batch_tokens),
            compressed_rows: placement.compressed(rounds),
            side_rows: placement.side(rounds && own),
            placement,
            layout,
        }
    }

    /// Inner values of a shared expert, or of a network without experts, of a batch.
    fn wide(&self) -> usize {
        (self.tokens * self.shared).max(self.tokens.min(DENSE_TOKENS) * self.dense)
    }

    fn attention_scratch(&self) -> usize {
        if self.compressed.is_some() {
            return 0;
        }
        let side = self.side.as_ref();
        if let Some(scratch) = side.and_then(|side| side.attention_scratch(&self.attention)) {
            return scratch;
        }
        let tokens = STEP_TOKENS.min(self.tokens);
        match &self.latent {
            None => {
                let shapes = std::iter::once(&self.attention).chain(&self.windowed);
                let steps = shapes.map(|shape| launch::attend_scratch(shape, tokens));
                let context = self.cache_layer / (self.sequences * self.cache_row).max(1);
                let prompts = launch::chunk_scratch(&self.attention, context);
                steps.chain([prompts]).max().unwrap_or(0)
            }
            Some(latent) => launch::latent_scratch(latent, tokens),
        }
    }

    /// Queries that meet latent rows, and sums of latents.
    fn latent_values(&self) -> [usize; 2] {
        let widths = self.latent.map_or([0; 2], |latent| [latent.row(), latent.rank]);
        widths.map(|width| self.latent_tokens * self.attention.query_heads * width)
    }

    /// Words of ranking a row of logits: scratch and result.
    fn ranked(&self) -> usize {
        if self.ends() {
            launch::draw_scratch(self.vocabulary) + launch::draw_words(self.vocabulary)
        } else {
            0
        }
    }

    /// True where the device has the model's first layer, before which tokens are embedded.
    pub(super) fn starts(&self) -> bool {
        self.computed.start == 0
    }

    /// True where the device has the model's last layer, behind which the head is.
    pub(super) fn ends(&self) -> bool {
        self.computed.end == self.trunk
    }

    /// True for the last layer that the device computes of a batch.
    pub(super) fn is_last(&self, layer: LayerId) -> bool {
        layer.index() + 1 == self.computed.end
    }

    /// Values of a step's residual stream, which other devices leave here or take from here.
    pub(super) fn crossing(&self) -> usize {
        let row = self.registers[Register::Residual as usize] / self.tokens.max(1);
        if self.starts() && self.ends() { 0 } else { STEP_TOKENS.min(self.tokens) * row }
    }

    fn tiles(&self) -> usize {
        3 * launch::tile_limit(self.pairs.max(TILE_TOKENS), self.experts)
    }

    /// Bytes of keys and values.
    pub(super) fn key_value_bytes(&self) -> u64 {
        let rows = self.cache_sides * self.attention_layers * self.cache_layer;
        (rows + self.compressed_rows.bytes_of_pages()) as u64
    }

    /// Bytes of recurrent states and tails, of windows, and of what layers keep in addition.
    pub(super) fn recurrent_bytes(&self) -> u64 {
        let of = |buffer| self.placement.bytes(buffer);
        let states = of(PlaceBuffer::States) + of(PlaceBuffer::Tails);
        let windows = 2 * self.placement.bytes_of_windows();
        let side = self.side_rows.bytes_of_states() + self.side_rows.bytes_of_pages();
        let compressed = self.compressed_rows.bytes_of_states();
        (states + 4 * self.round_values() + compressed + windows + side) as u64
    }

    /// Values of what delta layers are fed in rounds, of all sequences.
    fn round_values(&self) -> usize {
        let ring = self.rounds.map_or(0, |rounds| rounds.ring());
        self.sequences * self.delta_layers * ring
    }

    /// Words that say of each token of a batch what it is.
    pub(super) fn input_rows(&self) -> usize {
        Input::WindowPosition as usize + usize::from(self.windows.is_some())
    }

    /// Bytes of everything else in device memory but weights and slots.
    pub(super) fn activation_bytes(&self) -> u64 {
        let floats = self.registers.iter().sum::<usize>()
            + self.attention_scratch()
            + self.latent_values().iter().sum::<usize>()
            + self.tokens * (self.experts + 1 + self.hidden)
            + 2 * self.wide()
            + self.pairs * (2 * self.inner + self.hidden + 1)
            + self.logit_rows * (self.vocabulary + self.hidden)
            + self.layers * STEP_TOKENS * self.experts
            + self.split.iter().map(|values| values + values / 32).sum::<usize>();
        let words = self.input_rows() * self.tokens
            + self.pairs * 4
            + self.experts
            + self.tiles()
            + self.layers * self.experts * 9;
        let long = self.pairs
            + 2 * self.layers * self.experts
            + self.logit_rows * launch::ARG_MAX_BLOCKS
            + self.ranked();
        let compressed = self.compressed.as_ref().map_or(0, CompressedSizes::scratch_bytes);
        let windows = self.windows.map_or(0, |windows| 2 * windows.run_bytes());
        let side = self.side.as_ref().map_or(0, SideSizes::scratch_bytes);
        let drafts = self.head.map_or(0, |head| head.bytes(self.input_rows()));
        (4 * (floats + words) + 8 * long + compressed + windows + side + drafts) as u64
    }
}

/// What is said of each token of a batch, row after row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Its id.
    Token,
    /// Its position in its sequence.
    Position,
    /// Its sequence.
    Sequence,
    /// The first token of its run.
    Start,
    /// Tokens that the states of its sequence do not have yet.
    Lag,
    /// Its position from the base of its sequence's windows.
    WindowPosition,
}

/// The shape of attention as the kernels take it.
pub(super) fn shape_of(attention: &AttentionConfig) -> AttentionShape {
    AttentionShape {
        query_heads: attention.query_heads,
        key_value_heads: attention.key_value_heads,
        dim: attention.head_dim,
        scale: attention.scale,
    }
}

/// Columns of the widest matrix that multiplies a register of a batch.
fn widest_input(config: &ModelConfig) -> usize {
    let heads = config.attention.query_heads;
    let attention = match &config.latent {
        None => config.attentions().map(AttentionConfig::query_width).max().unwrap_or(0),
        Some(latent) => (heads * latent.value_dim).max(latent.query_rank.unwrap_or(0)),
    };
    let delta = config.delta.as_ref().map_or(0, |delta| delta.value_width());
    let low = config.compressed.as_ref().map_or(0, |it| it.output_groups * it.output_rank);
    let streams = config.streams();
    let pair = if config.head { 2 * config.hidden } else { 0 };
    (streams * config.hidden).max(attention).max(delta).max(low).max(pair)
}

/// A device buffer of f32 values.
pub(super) struct Floats {
    buffer: DeviceBuffer,
    length: usize,
}

impl Floats {
    pub(super) fn new(device: &Device, length: usize) -> Result<Self, CudaError> {
        Ok(Self { buffer: DeviceBuffer::new(device, length * 4)?, length })
    }

    pub(super) fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    pub(super) fn all(&self) -> Span<f32> {
        self.buffer.span(0, self.length)
    }

    pub(super) fn part(&self, start: usize, length: usize) -> Span<f32> {
        self.all().part(start, length)
    }

    pub(super) fn write(&self, offset: usize, values: &[f32]) -> Result<(), CudaError> {
        self.buffer.write_values(offset, values)
    }

    pub(super) fn read(&self, offset: usize, values: &mut [f32]) -> Result<(), CudaError> {
        self.buffer.read(offset, values)
    }
}

/// Everything but weights and slots.
pub(super) struct Buffers {
    pub(super) registers: Vec<Floats>,
    pub(super) attention: Floats,
    /// Queries that meet latent rows.
    pub(super) latent_query: Floats,
    /// Sums of latents.
    pub(super) latent_context: Floats,
    pub(super) router_logits: Floats,
    pub(super) shared_factor: Floats,
    pub(super) shared_gate: Floats,
    pub(super) shared_up: Floats,
    pub(super) shared_out: Floats,
    pub(super) pair_gate: Floats,
    pub(super) pair_up: Floats,
    pub(super) pair_out: Floats,
    pub(super) weights: Floats,
    pub(super) normed_rows: Floats,
    /// Parts and sums of split activations: of an input of products, and of the inner values of experts.
    pub(super) split: [(DeviceBuffer, Floats); 2],
    pub(super) logits: Floats,
    /// Replaced router logits of a step, `[layers, tokens, experts]`.
    pub(super) replaced: Floats,
    /// Per attention layer that keeps all positions `[sequences, context]` rows of `Sizes::cache_row` bytes: keys, or
    /// latent rows.
    pub(super) keys: Vec<DeviceBuffer>,
    /// As `keys`; none for latent rows, whose values are part of them.
    pub(super) values: Vec<DeviceBuffer>,
    /// `[sequences, delta_layers, state]`
    pub(super) states: Floats,
    /// `[sequences, delta_layers, tail]`
    pub(super) tails: Floats,
    /// `[sequences, delta_layers, ring]`: what delta layers were fed in rounds.
    pub(super) rounds: Floats,
    /// What is said of the batch's tokens ([`Input`]): `[Sizes::input_rows, batch]`, packed.
    pub(super) inputs: DeviceBuffer,
    pub(super) chosen: DeviceBuffer,
    /// `[layers, step pairs]`, or of one layer `[pairs]`.
    pub(super) uses: DeviceBuffer,
    pub(super) pair_token: DeviceBuffer,
    pub(super) place: DeviceBuffer,
    pub(super) starts: DeviceBuffer,
    pub(super) tiles: DeviceBuffer,
    pub(super) tile_count: DeviceBuffer,
    pub(super) addresses: DeviceBuffer,
    pub(super) table: DeviceBuffer,
    /// Addresses of one wave of a prefill.
    pub(super) wave: DeviceBuffer,
    pub(super) places: DeviceBuffer,
    pub(super) posted: DeviceBuffer,
    pub(super) arg_max: DeviceBuffer,
    /// Scratch of ranking a row of logits, then what it gives.
    pub(super) ranked: DeviceBuffer,
    pub(super) pinned: Pinned,
}

/// Pinned host memory: the words of docs/device-protocol.md.
pub(super) struct Pinned {
    pub(super) inputs: PinnedBuffer<u32>,
    /// Rows whose logits are wanted.
    pub(super) rows: PinnedBuffer<u32>,
    /// Most likely tokens.
    pub(super) tokens: PinnedBuffer<u32>,
    pub(super) ranked: PinnedBuffer<u64>,
    pub(super) status: PinnedBuffer<u32>,
    /// `[layers, step pairs]`, or of one layer `[pairs]`.
    pub(super) uses: PinnedBuffer<u32>,
    pub(super) ring: PinnedBuffer<u64>,
    /// By key.
    pub(super) answers: PinnedBuffer<u64>,
    pub(super) table: PinnedBuffer<u64>,
    pub(super) wave: PinnedBuffer<u64>,
    /// Two steps of replaced logits, `[2, layers, tokens, experts]`, or a chunk of one layer.
    pub(super) replaced: PinnedBuffer<f32>,
    /// A step's residual stream on its way from the device before; none where there is one.
    pub(super) residual: PinnedBuffer<f32>,
}

impl Buffers {
    /// Memory for split activations: 0 for inputs of products, 1 for inner values of experts.
    pub(super) fn split_tokens(&self, index: usize, form: SplitForm, sizes: &Sizes) -> SplitTokens {
        let (parts, sums) = &self.split[index];
        SplitTokens { parts: parts.span(0, sizes.split[index] * 4), sums: sums.all(), form }
    }

    /// `grows`: keys and values get addresses alone, their memory comes in pages.
    pub(super) fn new(
        device: &Device,
        sizes: &Sizes,
        replaced: bool,
        grows: bool,
    ) -> Result<Self, CudaError> {
        let floats = |length| Floats::new(device, length);
        let words = |length: usize| DeviceBuffer::new(device, length * 4);
        let long = |length: usize| DeviceBuffer::new(device, length * 8);
        let keys = sizes.layers * sizes.experts;
        let per_layer = |layers: usize| {
            let layer = |_| match grows {
                true => DeviceBuffer::reserve(device, sizes.cache_layer, 0),
                false => DeviceBuffer::new(device, sizes.cache_layer),
            };
            (0..layers).map(layer).collect::<Result<Vec<_>, _>>()
        };
        // Uses, and as many guesses of them.
        let step_pairs = 2 * sizes.layers * STEP_TOKENS * (sizes.pairs / sizes.tokens.max(1));
        let pinned = |length| PinnedBuffer::<u32>::new(device, length);
        let pinned_long = |length| PinnedBuffer::<u64>::new(device, length);
        let step_logits = sizes.layers * STEP_TOKENS * sizes.experts;
        let replaced_values =
            if replaced { (2 * step_logits).max(sizes.tokens * sizes.experts) } else { 0 };
        Ok(Self {
            registers: sizes
                .registers
                .iter()
                .map(|&length| floats(length))
                .collect::<Result<_, _>>()?,
            attention: floats(sizes.attention_scratch())?,
            latent_query: floats(sizes.latent_values()[0])?,
            latent_context: floats(sizes.latent_values()[1])?,
            router_logits: floats(sizes.tokens * sizes.experts)?,
            shared_factor: floats(sizes.tokens)?,
            shared_gate: floats(sizes.wide())?,
            shared_up: floats(sizes.wide())?,
            shared_out: floats(sizes.tokens * sizes.hidden)?,
            pair_gate: floats(sizes.pairs * sizes.inner)?,
            pair_up: floats(sizes.pairs * sizes.inner)?,
            pair_out: floats(sizes.pairs * sizes.hidden)?,
            weights: floats(sizes.pairs)?,
            normed_rows: floats(sizes.logit_rows * sizes.hidden)?,
            split: {
                let memory = |values: usize| {
                    Ok((DeviceBuffer::new(device, values * 4)?, floats(values / 32)?))
                };
                [memory(sizes.split[0])?, memory(sizes.split[1])?]
            },
            logits: floats(sizes.logit_rows * sizes.vocabulary)?,
            replaced: floats(step_logits.max(if replaced {
                sizes.tokens * sizes.experts
            } else {
                0
            }))?,
            keys: per_layer(sizes.attention_layers)?,
            values: per_layer((sizes.cache_sides - 1) * sizes.attention_layers)?,
            states: floats(sizes.placement.bytes(PlaceBuffer::States) / size_of::<f32>())?,
            tails: floats(sizes.placement.bytes(PlaceBuffer::Tails) / size_of::<f32>())?,
            rounds: floats(sizes.round_values())?,
            inputs: words(sizes.input_rows() * sizes.tokens)?,
            chosen: words(sizes.pairs)?,
            uses: words(step_pairs.max(sizes.pairs))?,
            pair_token: words(sizes.pairs)?,
            place: words(sizes.pairs)?,
            starts: words(sizes.experts + 1)?,
            tiles: words(sizes.tiles())?,
            tile_count: words(1)?,
            addresses: long(sizes.pairs)?,
            table: long(keys)?,
            wave: long(sizes.experts)?,
            places: words(keys * 9)?,
            posted: words(1)?,
            arg_max: long(sizes.logit_rows * launch::ARG_MAX_BLOCKS)?,
            ranked: long(sizes.ranked())?,
            pinned: Pinned {
                inputs: pinned(sizes.input_rows() * sizes.tokens)?,
                rows: pinned(sizes.logit_rows)?,
                tokens: pinned(sizes.logit_rows)?,
                ranked: pinned_long(if sizes.ends() {
                    launch::draw_words(sizes.vocabulary)
                } else {
                    0
                })?,
                status: pinned(launch::STATUS_WORDS)?,
                uses: pinned(step_pairs.max(sizes.pairs))?,
                ring: pinned_long(sizes.ring)?,
                answers: pinned_long(keys)?,
                table: pinned_long(keys)?,
                wave: pinned_long(super::WAVES * sizes.experts)?,
                replaced: PinnedBuffer::new(device, replaced_values)?,
                residual: PinnedBuffer::new(device, sizes.crossing())?,
            },
        })
    }
}
