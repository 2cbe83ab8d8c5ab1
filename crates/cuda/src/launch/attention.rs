//! Launches of attention over a cache of keys and values, and of what fills the cache.

use kernels::KvType;

use super::{HEAD_DIM_LIMIT, Kernel, TokenPlaces, expect};
use crate::abi::{
    ATTENTION_SPLITS, CHUNK_PART, CacheType, PLAIN_KEYS, Q8_GROUP, STEP_KEYS, mirrors,
};
use crate::{CudaError, Span, Stream};

/// Keys and values of a layer for all sequences: each `[sequences, context, key_value_heads]` rows of
/// [`KvType::bytes_of_head`] bytes.
#[derive(Clone, Copy)]
pub struct KeyValueCache {
    /// Keys.
    pub keys: Span<u8>,
    /// Values.
    pub values: Span<u8>,
    /// Most tokens of a sequence; 0 where all tokens are of one.
    pub context: usize,
    /// How they are stored.
    pub kv_type: KvType,
}

/// Shape of attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Heads of queries.
    pub query_heads: usize,
    /// Heads of keys and values.
    pub key_value_heads: usize,
    /// Values per head.
    pub dim: usize,
    /// Factor of the scores; without, one over the root of `dim`.
    pub scale: Option<f32>,
}

impl AttentionShape {
    /// Parts that the context of a token that is a run of its own is cut into: by the shape and the token's position
    /// alone, so that its bits do not depend on the batch. Together they are about a wave of blocks on a large device.
    fn splits(&self) -> usize {
        (WAVE_BLOCKS / self.key_value_heads).clamp(8, ATTENTION_SPLITS)
    }

    fn group(&self) -> usize {
        self.query_heads / self.key_value_heads
    }
}

/// Blocks that a large device works on at once, rounded to a power of two.
const WAVE_BLOCKS: usize = 128;
/// Heads of one product of a step (`attend_step` in `kernels/attention.cu`).
const STEP_HEADS: usize = 8;

/// The code by which kernels know a type.
pub(super) fn cache_type(kv_type: KvType) -> u32 {
    let code = match kv_type {
        KvType::F32 => CacheType::F32,
        KvType::F16 => CacheType::F16,
        KvType::Bf16 => CacheType::Bf16,
        KvType::Q8 => CacheType::Q8,
        KvType::Fp8 { .. } => CacheType::Fp8,
    };
    code as u32
}

#[derive(Clone, Copy)]
#[repr(C)]
struct AppendArguments {
    keys: u64,
    values: u64,
    cache_keys: u64,
    cache_values: u64,
    positions: u64,
    sequences: u64,
    heads: u32,
    dim: u32,
    context: u32,
    kv_type: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct AttendArguments {
    query: u64,
    cache_keys: u64,
    cache_values: u64,
    out: u64,
    partial: u64,
    positions: u64,
    sequences: u64,
    starts: u64,
    sinks: u64,
    query_heads: u32,
    key_value_heads: u32,
    dim: u32,
    context: u32,
    splits: u32,
    tokens: u32,
    scale: f32,
    tokens_per_block: u32,
    kv_type: u32,
    stages: u32,
    window: u32,
    part: u32,
}

/// What a token sees of the keys before it.
#[derive(Clone, Copy, Default)]
pub struct Visible {
    /// The last keys alone, as many as this, its own among them.
    pub window: Option<usize>,
    /// Scores that only take weight from the others, `[query_heads]`.
    pub sinks: Option<Span<f32>>,
}

/// True when heads of this shape can be stored in this type: in eight bits, whole groups share a scale.
pub fn serves_cache(shape: &AttentionShape, kv_type: KvType) -> bool {
    match kv_type {
        KvType::Fp8 { .. } => false,
        KvType::Q8 => shape.dim.is_multiple_of(Q8_GROUP),
        KvType::F32 | KvType::F16 | KvType::Bf16 => true,
    }
}

/// Values of the scratch of [`attend`] for `tokens` tokens that are runs of their own.
pub fn attend_scratch(shape: &AttentionShape, tokens: usize) -> usize {
    tokens * shape.query_heads * shape.splits() * (shape.dim + 2)
}

/// Values of the scratch with which [`attend`] shares out the context of short prompts, in a context of so many tokens:
/// 32 MiB at the most. Without it, or with more tokens, a block walks over all of it, to the same bits.
pub fn chunk_scratch(shape: &AttentionShape, context: usize) -> usize {
    let tokens = 64;
    (context.div_ceil(CHUNK_PART) * tokens * shape.query_heads * (shape.dim + 2)).min(8 << 20)
}

/// Appends keys and values of the tokens to the cache.
///
/// # Errors
/// The device failed.
pub fn append(
    stream: &Stream,
    shape: &AttentionShape,
    places: &TokenPlaces,
    cache: &KeyValueCache,
    keys: Span<f32>,
    values: Span<f32>,
) -> Result<(), CudaError> {
    let tokens = places.positions.len();
    let width = shape.key_value_heads * shape.dim;
    assert!(serves_cache(shape, cache.kv_type), "heads of whole groups of {Q8_GROUP} values");
    expect("sequences of tokens", places.sequences.len(), tokens);
    expect("keys", keys.len(), tokens * width);
    expect("values", values.len(), tokens * width);
    let append = AppendArguments {
        keys: keys.address,
        values: values.address,
        cache_keys: cache.keys.address,
        cache_values: cache.values.address,
        positions: places.positions.address,
        sequences: places.sequences.address,
        heads: shape.key_value_heads as u32,
        dim: shape.dim as u32,
        context: cache.context as u32,
        kv_type: cache_type(cache.kv_type),
    };
    // SAFETY: the structure is the kernel's; lengths were checked above; positions lie within the context by the
    // caller's batch.
    unsafe { stream.launch_overlapping(Kernel::Append, (tokens, 1, 1), 256, 0, &append) }
}

/// How a launch of attention is shared out.
struct Division {
    kernel: Kernel,
    grid: (usize, usize, usize),
    threads: usize,
    shared: usize,
    tokens_per_block: usize,
    stages: usize,
    /// Of a step, on tensor cores.
    tensor_step: bool,
    /// Of a prompt, by a kernel that adds up the context in parts.
    in_parts: bool,
}

impl Division {
    /// For tensor cores; `None` where the plain kernel has to serve: by device, type and width of heads.
    fn tensor_cores(
        stream: &Stream,
        shape: &AttentionShape,
        kv_type: KvType,
        tokens: usize,
        single: bool,
    ) -> Option<Self> {
        let bf16 = match kv_type {
            KvType::F16 => false,
            KvType::Bf16 => true,
            KvType::Q8 => return Self::eight_bits(stream, shape, tokens, single),
            KvType::F32 | KvType::Fp8 { .. } => return None,
        };
        let capable = stream.device().info().capability.0 >= 8;
        if !capable || !shape.dim.is_multiple_of(8) {
            return None;
        }
        // Heads are padded with zeros to the next width that has a kernel.
        let dim = [64, 128, 256, 512].into_iter().find(|&dim| shape.dim <= dim)?;
        let limit = stream.device().shared_limit();
        let choose = |f16, other| if bf16 { other } else { f16 };
        if single {
            let kernel = match dim {
                64 => choose(Kernel::AttendStepF16Dim64, Kernel::AttendStepBf16Dim64),
                128 => choose(Kernel::AttendStepF16Dim128, Kernel::AttendStepBf16Dim128),
                256 => choose(Kernel::AttendStepF16Dim256, Kernel::AttendStepBf16Dim256),
                _ => choose(Kernel::AttendStepF16Dim512, Kernel::AttendStepBf16Dim512),
            };
            let stage = 2 * STEP_KEYS * dim * 2;
            if 2 * stage + STEP_FIXED_BYTES > limit {
                return None;
            }
            let grid = (
                shape.group().div_ceil(STEP_HEADS),
                shape.key_value_heads * shape.splits(),
                tokens,
            );
            // Blocks that run at the same time have as many tiles under way as there is room for; of more blocks, those
            // that share a multiprocessor have.
            let alone = grid.0 * grid.1 * grid.2 <= stream.device().info().multiprocessors;
            let stages = if alone && 4 * stage + STEP_FIXED_BYTES <= limit { 4 } else { 2 };
            return Some(Self {
                kernel,
                grid,
                threads: 256,
                shared: stages * stage,
                tokens_per_block: 1,
                stages,
                tensor_step: true,
                in_parts: false,
            });
        }
        // Of wide heads a block adds up half the columns of the values.
        let parts = if dim == 512 { 2 } else { 1 };
        let bytes = |warps: usize, keys: usize| (64 * warps + 2 * keys + 2 * keys / parts) * dim;
        let (kernel, warps, keys) = match dim {
            64 => (choose(Kernel::AttendChunkF16Dim64, Kernel::AttendChunkBf16Dim64), 8, 64),
            128 => (choose(Kernel::AttendChunkF16Dim128, Kernel::AttendChunkBf16Dim128), 8, 64),
            512 if bytes(4, 32) <= limit => {
                (choose(Kernel::AttendChunkF16Dim512, Kernel::AttendChunkBf16Dim512), 4, 32)
            }
            512 => {
                let small = Kernel::AttendChunkBf16Dim512Small;
                (choose(Kernel::AttendChunkF16Dim512Small, small), 2, 32)
            }
            _ if bytes(8, 64) <= limit => {
                (choose(Kernel::AttendChunkF16Dim256, Kernel::AttendChunkBf16Dim256), 8, 64)
            }
            _ => {
                let small = choose(Kernel::AttendChunkF16Small, Kernel::AttendChunkBf16Small);
                (small, 4, 32)
            }
        };
        let tokens_per_block = 16 * warps / shape.group();
        if tokens_per_block == 0 || bytes(warps, keys) > limit {
            return None;
        }
        Some(Self {
            kernel,
            grid: (tokens.div_ceil(tokens_per_block), shape.key_value_heads, parts),
            threads: 32 * warps,
            shared: bytes(warps, keys),
            tokens_per_block,
            stages: 1,
            tensor_step: false,
            in_parts: true,
        })
    }

    /// For tensor cores over eight bits, whose kernels serve heads of 128 and 256 values.
    fn eight_bits(
        stream: &Stream,
        shape: &AttentionShape,
        tokens: usize,
        single: bool,
    ) -> Option<Self> {
        let (dim, limit) = (shape.dim, stream.device().shared_limit());
        let wide = match dim {
            128 => false,
            256 => true,
            _ => return None,
        };
        if stream.device().info().capability.0 < 8 {
            return None;
        }
        let raw = |keys: usize| 2 * keys * (dim + Q8_GROUP);
        if single {
            // Each half of a block has its own tiles.
            let stages = if 8 * raw(STEP_KEYS) + 2 * STEP_FIXED_BYTES <= limit { 4 } else { 2 };
            let blocks = shape.group().div_ceil(STEP_HEADS);
            return Some(Self {
                kernel: if wide { Kernel::AttendStepQ8Dim256 } else { Kernel::AttendStepQ8Dim128 },
                grid: (blocks, shape.key_value_heads * shape.splits(), tokens),
                threads: 512,
                shared: 2 * stages * raw(STEP_KEYS),
                tokens_per_block: 1,
                stages,
                tensor_step: true,
                in_parts: false,
            });
        }
        let bytes = |warps: usize| (64 * warps + 4 * Q8_KEYS + Q8_KEYS / 4) * dim + raw(Q8_KEYS);
        let (kernel, warps) = match wide {
            false => (Kernel::AttendChunkQ8Dim128, 8),
            true if bytes(8) <= limit => (Kernel::AttendChunkQ8Dim256, 8),
            true => (Kernel::AttendChunkQ8Small, 4),
        };
        let tokens_per_block = 16 * warps / shape.group();
        if tokens_per_block == 0 || bytes(warps) > limit {
            return None;
        }
        Some(Self {
            kernel,
            grid: (tokens.div_ceil(tokens_per_block), shape.key_value_heads, 1),
            threads: 32 * warps,
            shared: bytes(warps),
            tokens_per_block,
            stages: 1,
            tensor_step: false,
            in_parts: false,
        })
    }

    /// In f32.
    fn plain(shape: &AttentionShape, tokens: usize, single: bool) -> Self {
        let (kernel, rows) = match (single, shape.dim <= PLAIN_DIM) {
            (true, true) => (Kernel::AttendPlain1, 1),
            (false, true) => (Kernel::AttendPlain4, 4),
            (true, false) => (Kernel::AttendPlainWide1, 1),
            (false, false) => (Kernel::AttendPlainWide2, 2),
        };
        let tokens_per_block = if single { 1 } else { (8 * rows / shape.group()).max(1) };
        let splits = if single { shape.splits() } else { 1 };
        Self {
            kernel,
            grid: (tokens.div_ceil(tokens_per_block), shape.key_value_heads, splits),
            threads: 256,
            shared: 2 * PLAIN_KEYS * shape.dim * 4,
            tokens_per_block,
            stages: 1,
            tensor_step: false,
            in_parts: false,
        }
    }
}

/// Largest heads for the plain kernels whose lanes hold fewest values; for larger ones a lane holds twice as many.
const PLAIN_DIM: usize = 256;
/// Keys of a tile of `attend_chunk_q8`.
const Q8_KEYS: usize = 32;
/// Shared memory of a step's kernels that does not depend on the stages, of 256 threads, rounded up.
const STEP_FIXED_BYTES: usize = 4096;

/// Tokens of a prompt whose attention is launched together. A run of few tokens has too few blocks for the device.
/// Where each part of the context is a block of its own, as many tokens as `scratch` has room for are launched
/// together, to the same bits. A prompt of 128 tokens after 30,000 takes 29 ms instead of 53, one of 500 takes 67.5
/// instead of 76.7 (H200).
fn tokens_at_once(
    stream: &Stream,
    shape: &AttentionShape,
    kv_type: KvType,
    places: &TokenPlaces,
    scratch: usize,
) -> usize {
    let tokens = places.positions.len();
    let division = Division::tensor_cores(stream, shape, kv_type, tokens, false);
    let Some(division) = division.filter(|division| division.in_parts) else { return tokens };
    let (parts, step) = (places.end.div_ceil(CHUNK_PART), division.tokens_per_block);
    let fits = scratch / (shape.query_heads * parts * (shape.dim + 2)).max(1);
    let group = if fits < step { fits } else { fits / step * step };
    if group == 0 || group >= tokens {
        return tokens;
    }
    let waves = |tokens: usize, parts: usize| {
        let blocks = tokens.div_ceil(step) * division.grid.1 * division.grid.2 * parts;
        blocks.div_ceil(stream.device().info().multiprocessors)
    };
    // A wave of whole contexts lasts as long as one wave for each part. Parts are written and joined in addition: 720
    // tokens by a fifth fewer waves took longer.
    let apart = tokens.div_ceil(group) * waves(group, parts);
    if 4 * apart < 3 * waves(tokens, 1) * parts { group } else { tokens }
}

/// `out` = causal attention of `query` over what is visible of the cache, which holds the tokens' own keys and values.
/// `scratch` has [`attend_scratch`] values when tokens are runs of their own, [`chunk_scratch`] for short prompts.
///
/// # Errors
/// The device failed.
#[allow(clippy::too_many_arguments, reason = "what the kernel is told, in its order")]
pub fn attend(
    stream: &Stream,
    shape: &AttentionShape,
    places: &TokenPlaces,
    cache: &KeyValueCache,
    query: Span<f32>,
    out: Span<f32>,
    scratch: Span<f32>,
    visible: Visible,
) -> Result<(), CudaError> {
    let (tokens, width) = (places.positions.len(), shape.query_heads * shape.dim);
    let at_once = match places.single || visible.window.is_some() {
        true => tokens,
        false => tokens_at_once(stream, shape, cache.kv_type, places, scratch.len()),
    };
    for start in (0..tokens).step_by(at_once.max(1)) {
        let count = at_once.min(tokens - start);
        let part = |span: &Span<f32>| span.part(start * width, count * width);
        let mut of = places.part(start, count);
        of.end = places.end.saturating_sub(tokens - start - count);
        attend_run(stream, shape, &of, cache, part(&query), part(&out), scratch, visible)?;
    }
    Ok(())
}

/// [`attend`] of tokens that are launched together.
#[allow(clippy::too_many_arguments, reason = "as of `attend`")]
fn attend_run(
    stream: &Stream,
    shape: &AttentionShape,
    places: &TokenPlaces,
    cache: &KeyValueCache,
    query: Span<f32>,
    out: Span<f32>,
    scratch: Span<f32>,
    visible: Visible,
) -> Result<(), CudaError> {
    let tokens = places.positions.len();
    let window =
        visible.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX));
    assert!(window > 0, "a token sees itself");
    expect("sinks", visible.sinks.map_or(shape.query_heads, |it| it.len()), shape.query_heads);
    assert!(shape.dim <= HEAD_DIM_LIMIT, "heads within the kernels' limit");
    expect("sequences of tokens", places.sequences.len(), tokens);
    expect("starts of runs", places.runs.map_or(tokens, |runs| runs.starts.len()), tokens);
    expect("queries", query.len(), tokens * shape.query_heads * shape.dim);
    expect("attention", out.len(), tokens * shape.query_heads * shape.dim);
    if places.single && shape.splits() > 1 {
        expect("scratch of attention", scratch.len(), attend_scratch(shape, tokens));
    }
    // The kernels over eight bits see all keys and know no sinks.
    let limited = visible.window.is_some() || visible.sinks.is_some();
    let division = (cache.kv_type != KvType::Q8 || !limited)
        .then(|| Division::tensor_cores(stream, shape, cache.kv_type, tokens, places.single))
        .flatten()
        .unwrap_or_else(|| Division::plain(shape, tokens, places.single));
    let in_parts = division.in_parts && visible.window.is_none();
    let mut grid = division.grid;
    let splits = match places.single {
        true => shape.splits(),
        false if in_parts => {
            let parts = places.end.div_ceil(CHUNK_PART);
            // Blocks of their own where those of the tokens leave most of the device idle.
            let idle = grid.0 * grid.1 * grid.2 < stream.device().info().multiprocessors;
            let fits = tokens * shape.query_heads * parts * (shape.dim + 2) <= scratch.len();
            if idle && fits { parts.max(1) } else { 1 }
        }
        false => 1,
    };
    let join = if places.single { Kernel::AttendJoin } else { Kernel::AttendJoinChunk };
    if !places.single {
        grid.2 *= splits;
    } else if places.runs.is_some() && division.tensor_step {
        grid = (grid.0 * grid.2, grid.1, 1);
    }
    let arguments = AttendArguments {
        query: query.address,
        cache_keys: cache.keys.address,
        cache_values: cache.values.address,
        out: out.address,
        partial: scratch.address,
        positions: places.positions.address,
        sequences: places.sequences.address,
        // A token alone is its own run.
        starts: places.runs.filter(|_| tokens > 1).map_or(0, |runs| runs.starts.address),
        sinks: visible.sinks.map_or(0, |sinks| sinks.address),
        query_heads: shape.query_heads as u32,
        key_value_heads: shape.key_value_heads as u32,
        dim: shape.dim as u32,
        context: cache.context as u32,
        splits: splits as u32,
        tokens: tokens as u32,
        scale: shape.scale.unwrap_or_else(|| (shape.dim as f32).powf(-0.5))
            * std::f32::consts::LOG2_E,
        tokens_per_block: division.tokens_per_block as u32,
        kv_type: cache_type(cache.kv_type),
        stages: division.stages as u32,
        window,
        part: if in_parts { CHUNK_PART as u32 } else { u32::MAX },
    };
    let Division { kernel, threads, shared, .. } = division;
    // SAFETY: the structures are the kernels'; lengths were checked above; positions lie within the context by
    // the caller's batch.
    unsafe {
        stream.launch_overlapping(kernel, grid, threads, shared, &arguments)?;
        if splits > 1 {
            let slices = if places.single { shape.dim.div_ceil(64) } else { 1 };
            let grid = (shape.query_heads, tokens, slices);
            stream.launch_overlapping(join, grid, 256, 0, &arguments)?;
        }
    }
    Ok(())
}

mirrors! {
    AppendArguments as AppendArguments {
        keys, values, cache_keys, cache_values, positions, sequences, heads, dim, context, kv_type
    } for Append;
    AttendArguments as AttendArguments {
        query, cache_keys, cache_values, out, partial, positions, sequences, starts, sinks, query_heads,
        key_value_heads, dim, context, splits, tokens, scale, tokens_per_block, kv_type, stages, window, part
    } for AttendPlain1, AttendPlain4, AttendPlainWide1, AttendPlainWide2, AttendStepF16Dim512, AttendStepBf16Dim512,
        AttendChunkF16Dim512, AttendChunkBf16Dim512, AttendChunkF16Dim512Small, AttendChunkBf16Dim512Small, AttendJoin,
        AttendJoinChunk,
        AttendStepF16Dim64, AttendStepF16Dim128, AttendStepF16Dim256,
        AttendStepBf16Dim64, AttendStepBf16Dim128, AttendStepBf16Dim256, AttendChunkF16Dim64, AttendChunkF16Dim128,
        AttendChunkF16Dim256, AttendChunkF16Small, AttendChunkBf16Dim64, AttendChunkBf16Dim128,
        AttendChunkBf16Dim256, AttendChunkBf16Small, AttendStepQ8Dim128, AttendStepQ8Dim256, AttendChunkQ8Dim128,
        AttendChunkQ8Dim256, AttendChunkQ8Small;
}
