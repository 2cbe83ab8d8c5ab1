//! What a sequence carries from token to token: key-value blocks, recurrent states, convolution tails.
//!
//! Keys and values lie in blocks of `BLOCK_TOKENS` positions per attention layer, `[key_value_heads,
//! BLOCK_TOKENS, head_dim]`, so that a head's keys are contiguous. Blocks come from one pool: allocated
//! ahead ([`KvGrowth::Ahead`]: nothing grows while generating) or as a sequence reaches them
//! ([`KvGrowth::Grow`]: a short answer never pays for the whole context; the plan counts the whole).
//! Recurrent states are f32 and of fixed size.

use kernels::{
    AttentionShape, BLOCK_TOKENS, KeyValueBlock, KeyValueBlockMut, KeyValues, KeyValuesMut,
    store_keys_values,
};
use store::LayerId;

use super::super::{SequenceId, Snapshot};
use super::CpuOptions;
use crate::EngineError;
use crate::model::config::{Mixer, ModelConfig};

/// When key-value blocks are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvGrowth {
    /// Block by block, as sequences grow.
    #[default]
    Grow,
    /// All at once, before the first token.
    Ahead,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    #[default]
    F32,
    /// Rounded to half precision: half the memory, lossy.
    F16,
}

/// Sizes of a sequence's state.
#[derive(Clone, Debug)]
pub(super) struct StateLayout {
    kv_type: KvType,
    /// For each layer, its index among the layers of its kind.
    index: Vec<usize>,
    attention_layers: usize,
    delta_layers: usize,
    /// Values of one block's keys (its values take as many).
    block_values: usize,
    /// Values of one recurrent state.
    recurrent_values: usize,
    /// Values of one convolution tail.
    tail_values: usize,
}

impl StateLayout {
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Self {
        let (mut attention_layers, mut delta_layers) = (0, 0);
        let index = config.layers.iter().map(|mixer| {
            let counter = match mixer {
                Mixer::Attention => &mut attention_layers,
                Mixer::DeltaNet => &mut delta_layers,
            };
            *counter += 1;
            *counter - 1
        });
        let index = index.collect();
        let (recurrent_values, tail_values) = match &config.delta {
            Some(delta) => (
                super::delta_shape(delta).state_len(),
                (delta.convolution_kernel - 1) * delta.channels(),
            ),
            None => (0, 0),
        };
        let attention = &config.attention;
        Self {
            kv_type: options.kv_type,
            index,
            attention_layers,
            delta_layers,
            block_values: attention.key_value_heads * BLOCK_TOKENS * attention.head_dim,
            recurrent_values,
            tail_values,
        }
    }

    /// Bytes of the recurrent part of one sequence.
    pub(super) fn fixed_bytes(&self) -> usize {
        self.delta_layers * (self.recurrent_values + self.tail_values) * size_of::<f32>()
    }

    /// Bytes of one block over all attention layers.
    pub(super) fn block_bytes(&self) -> usize {
        let value = match self.kv_type {
            KvType::F32 => 4,
            KvType::F16 => 2,
        };
        2 * self.attention_layers * self.block_values * value
    }

    fn new_block(&self) -> Block {
        let values = 2 * self.attention_layers * self.block_values;
        match self.kv_type {
            KvType::F32 => Block::F32(vec![0.0; values]),
            KvType::F16 => Block::F16(vec![0; values]),
        }
    }
}

/// `BLOCK_TOKENS` positions of every attention layer: per layer keys, then values.
enum Block {
    F32(Vec<f32>),
    F16(Vec<u16>),
}

/// State of one sequence.
struct Sequence {
    length: usize,
    blocks: Vec<Block>,
    recurrent: Vec<f32>,
    tails: Vec<f32>,
}

/// All sequences of a backend.
pub(super) struct Sequences {
    layout: StateLayout,
    context: usize,
    slots: Vec<Option<Sequence>>,
    free_blocks: Vec<Block>,
}

impl Sequences {
    pub(super) fn new(layout: StateLayout, options: &CpuOptions) -> Self {
        let blocks = options.sequences * options.context.div_ceil(BLOCK_TOKENS);
        let free_blocks = match options.kv_growth {
            KvGrowth::Ahead => (0..blocks).map(|_| layout.new_block()).collect(),
            KvGrowth::Grow => Vec::with_capacity(blocks),
        };
        let slots = (0..options.sequences).map(|_| None).collect();
        Self { layout, context: options.context, slots, free_blocks }
    }

    pub(super) fn create(&mut self) -> Result<SequenceId, EngineError> {
        let Some(free) = self.slots.iter().position(Option::is_none) else {
            let count = self.slots.len();
            let found = format!("all {count} sequences of the plan are in use");
            return Err(EngineError::Request(found));
        };
        let layout = &self.layout;
        self.slots[free] = Some(Sequence {
            length: 0,
            blocks: Vec::with_capacity(self.context.div_ceil(BLOCK_TOKENS)),
            recurrent: vec![0.0; layout.delta_layers * layout.recurrent_values],
            tails: vec![0.0; layout.delta_layers * layout.tail_values],
        });
        Ok(SequenceId(free as u32))
    }

    pub(super) fn remove(&mut self, sequence: SequenceId) {
        if let Some(gone) = self.slots[sequence.0 as usize].take() {
            self.free_blocks.extend(gone.blocks);
        }
    }

    fn get(&mut self, sequence: SequenceId) -> &mut Sequence {
        self.slots[sequence.0 as usize].as_mut().expect("the caller holds a live sequence")
    }

    pub(super) fn snapshot(&self, sequence: SequenceId) -> Snapshot {
        let sequence = self.slots[sequence.0 as usize].as_ref().expect("a live sequence");
        Snapshot {
            length: sequence.length,
            recurrent: sequence.recurrent.clone(),
            tails: sequence.tails.clone(),
        }
    }

    /// Blocks past the snapshot's length stay with the sequence: it is about to need them again.
    pub(super) fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) {
        let sequence = self.get(sequence);
        sequence.length = snapshot.length;
        sequence.recurrent.copy_from_slice(&snapshot.recurrent);
        sequence.tails.copy_from_slice(&snapshot.tails);
    }

    pub(super) fn length(&self, sequence: SequenceId) -> usize {
        self.slots[sequence.0 as usize].as_ref().map_or(0, |sequence| sequence.length)
    }

    /// Makes room for `tokens` more; gives the position of the first.
    pub(super) fn reserve(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
    ) -> Result<usize, EngineError> {
        let length = self.length(sequence);
        if length + tokens > self.context {
            let context = self.context;
            let found = format!("{length} + {tokens} tokens exceed the context of {context}");
            return Err(EngineError::Request(found));
        }
        while self.get(sequence).blocks.len() * BLOCK_TOKENS < length + tokens {
            let block = match self.free_blocks.pop() {
                Some(block) => block,
                None => self.layout.new_block(),
            };
            self.get(sequence).blocks.push(block);
        }
        Ok(length)
    }

    pub(super) fn advance(&mut self, sequence: SequenceId, tokens: usize) {
        self.get(sequence).length += tokens;
    }

    /// Writes `[tokens, key_value_heads, head_dim]` keys and values at `position` onwards.
    pub(super) fn append(
        &mut self,
        sequence: SequenceId,
        layer: LayerId,
        shape: &AttentionShape,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let block_values = self.layout.block_values;
        let start = 2 * self.layout.index[layer.index()] * block_values;
        let width = shape.key_value_heads * shape.head_dim;
        let tokens = keys.len() / width;
        let sequence = self.get(sequence);
        let mut done = 0;
        while done < tokens {
            let first = (position + done) % BLOCK_TOKENS;
            let count = (BLOCK_TOKENS - first).min(tokens - done);
            let block = &mut sequence.blocks[(position + done) / BLOCK_TOKENS];
            let rows = done * width..(done + count) * width;
            let mut block = block.layer_mut(start, block_values);
            store_keys_values(shape, first, &keys[rows.clone()], &values[rows], &mut block);
            done += count;
        }
    }

    /// The blocks of a layer that hold the first `length` positions.
    pub(super) fn blocks(
        &self,
        sequence: SequenceId,
        layer: LayerId,
        length: usize,
    ) -> Vec<KeyValueBlock<'_>> {
        let values = self.layout.block_values;
        let start = 2 * self.layout.index[layer.index()] * values;
        let sequence = self.slots[sequence.0 as usize].as_ref().expect("a live sequence");
        let blocks = sequence.blocks[..length.div_ceil(BLOCK_TOKENS)].iter();
        blocks
            .map(|block| KeyValueBlock {
                keys: block.slice(start..start + values),
                values: block.slice(start + values..start + 2 * values),
            })
            .collect()
    }

    /// `[kernel - 1, channels]` raw inputs before the next token.
    pub(super) fn convolution_tail(&mut self, sequence: SequenceId, layer: LayerId) -> &mut [f32] {
        let values = self.layout.tail_values;
        let start = self.layout.index[layer.index()] * values;
        &mut self.get(sequence).tails[start..start + values]
    }

    /// The recurrent state of a layer, in the layout of `kernels::delta`.
    pub(super) fn recurrent_state(&mut self, sequence: SequenceId, layer: LayerId) -> &mut [f32] {
        let values = self.layout.recurrent_values;
        let start = self.layout.index[layer.index()] * values;
        &mut self.get(sequence).recurrent[start..start + values]
    }
}

impl Block {
    /// One layer's part, which starts at value `start`.
    fn layer_mut(&mut self, start: usize, values: usize) -> KeyValueBlockMut<'_> {
        let end = start + 2 * values;
        match self {
            Self::F32(data) => {
                let (keys, values) = data[start..end].split_at_mut(values);
                KeyValueBlockMut {
                    keys: KeyValuesMut::F32(keys),
                    values: KeyValuesMut::F32(values),
                }
            }
            Self::F16(data) => {
                let (keys, values) = data[start..end].split_at_mut(values);
                KeyValueBlockMut {
                    keys: KeyValuesMut::F16(keys),
                    values: KeyValuesMut::F16(values),
                }
            }
        }
    }

    fn slice(&self, range: std::ops::Range<usize>) -> KeyValues<'_> {
        match self {
            Self::F32(data) => KeyValues::F32(&data[range]),
            Self::F16(data) => KeyValues::F16(&data[range]),
        }
    }
}
