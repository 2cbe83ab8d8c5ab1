//! One function per operation: checks lengths, chooses kernel and grid, launches on a stream.
//!
//! Argument structures mirror those of `kernels/*.cu` field by field, which `abi.rs` checks. All activations are f32,
//! row-major.

pub use crate::abi::{
    BROKEN_TOKEN, COPYING, DEPTH_BUS, DEPTH_DISK, DEPTH_WORDS, EXPERTS_LIMIT, FAILED, FROM_COPY,
    GIVEN_UP, INDEX_DIM, JOBS, KEPT, LATENT_RANK, LATENT_ROW, PATIENCE, PREFETCH, ROUND_PLACES,
    ROW_DIM, STATUS_WORDS, STEP_JOBS, STREAMS_LIMIT, TILE_TOKENS, TOP_K_LIMIT, UNIT_DIM, WEIGHED,
};
use crate::abi::{STAGED_CHUNK, mirrors};
use crate::{CudaError, Device, Matrix, Span, Stream};

macro_rules! kernels {
    ($($unit:ident in $file:literal { $($variant:ident = $name:literal),* $(,)? })*) => {
        /// A unit of the kernels' sources (`kernels/units`): one image.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Unit { $($unit),* }

        impl Unit {
            /// Their images, in order: every kernel of a unit, for every supported architecture.
            pub(crate) const IMAGES: &'static [&'static [u8]] =
                &[$(include_bytes!(concat!("../../kernels/prebuilt/", $file, ".fatbin"))),*];

            /// All of them, in order.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$unit),*];

            /// The name of its files.
            #[cfg(test)]
            pub(crate) fn file(self) -> &'static str {
                match self { $(Self::$unit => $file),* }
            }
        }

        /// A kernel of the images.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Kernel { $($($variant),*),* }

        impl Kernel {
            /// All of them, in order.
            pub(crate) const ALL: &'static [Self] = &[$($(Self::$variant),*),*];

            /// Its name in its image.
            pub(crate) fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name),*),* }
            }

            /// The unit whose image has it.
            pub(crate) fn unit(self) -> Unit {
                match self { $($(Self::$variant => Unit::$unit),*),* }
            }
        }
    };
}

kernels! {
    Attention in "attention" {
        Append = "append_key_values", AttendPlain1 = "attend_plain_1", AttendPlain4 = "attend_plain_4",
        AttendJoin = "attend_join", AttendJoinChunk = "attend_join_chunk", AttendPlainWide1 = "attend_plain_wide_1",
        AttendPlainWide2 = "attend_plain_wide_2", AttendStepF16Dim512 = "attend_step_f16_512",
        AttendStepBf16Dim512 = "attend_step_bf16_512", AttendChunkF16Dim512 = "attend_chunk_f16_512",
        AttendChunkBf16Dim512 = "attend_chunk_bf16_512", AttendChunkF16Dim512Small = "attend_chunk_f16_512_small",
        AttendChunkBf16Dim512Small = "attend_chunk_bf16_512_small", AttendStepF16Dim64 = "attend_step_f16_64",
        AttendStepF16Dim128 = "attend_step_f16_128", AttendStepF16Dim256 = "attend_step_f16_256",
        AttendStepBf16Dim64 = "attend_step_bf16_64", AttendStepBf16Dim128 = "attend_step_bf16_128",
        AttendStepBf16Dim256 = "attend_step_bf16_256", AttendChunkF16Dim64 = "attend_chunk_f16_64",
        AttendChunkF16Dim128 = "attend_chunk_f16_128", AttendChunkF16Dim256 = "attend_chunk_f16_256",
        AttendChunkF16Small = "attend_chunk_f16_256_small", AttendChunkBf16Dim64 = "attend_chunk_bf16_64",
        AttendChunkBf16Dim128 = "attend_chunk_bf16_128", AttendChunkBf16Dim256 = "attend_chunk_bf16_256",
        AttendChunkBf16Small = "attend_chunk_bf16_256_small", AttendStepQ8Dim128 = "attend_step_q8_128",
        AttendStepQ8Dim256 = "attend_step_q8_256", AttendChunkQ8Dim128 = "attend_chunk_q8_128",
        AttendChunkQ8Dim256 = "attend_chunk_q8_256", AttendChunkQ8Small = "attend_chunk_q8_256_small",
    }
    Compressed in "compressed" {
        WeighStreams = "weigh_streams", CollapseStreams = "collapse_streams", SpreadStreams = "spread_streams",
        MixStreams = "mix_streams", TurnHeads = "turn_heads", StoreWindowRows = "store_window_rows",
        KeepWindowRows = "keep_window_rows", PoolRows = "pool_rows", KeepGates = "keep_gates",
        TransposeRows = "transpose_rows", ScoreRows = "score_rows", ChooseRows = "choose_rows",
        ChooseParts = "choose_parts", AttendRows = "attend_rows", JoinRowParts = "join_row_parts",
    }
    Indexed in "indexed" {
        GateNarrow = "gate_narrow", GateWide = "gate_wide", StreamProducts = "stream_products",
        NormStreams = "norm_streams", ActivateGates = "activate_gates", MergeGated = "merge_gated",
        InjectStreams = "inject_streams", GatherRows = "gather_rows", GateValues = "gate_values",
        MixNgrams = "mix_ngrams", KeepNgrams = "keep_ngrams", TurnIndexQueries = "turn_index_queries",
        MakeIndexKeys = "make_index_keys", KeepIndexKeys = "keep_index_keys", ScoreUnits = "score_units",
        AttendUnits = "attend_units", JoinUnitParts = "join_unit_parts",
    }
    Latent in "latent" {
        AppendLatent = "append_latent", RotateLatent = "rotate_latent", LatentHeads = "latent_heads",
        LatentHeadsBlocks = "latent_heads_blocks", AttendLatent2 = "attend_latent_2",
        AttendLatent4 = "attend_latent_4", JoinLatent = "join_latent", AttendLatentF16 = "attend_latent_f16",
        AttendLatentBf16 = "attend_latent_bf16", AttendChosen2 = "attend_chosen_2",
        AttendChosenF16 = "attend_chosen_f16", AttendChosenBf16 = "attend_chosen_bf16",
        MakeRowIndex = "make_row_index", ScoreSplit64 = "score_split_64", ScoreSplit128 = "score_split_128",
    }
    Mixer in "mixer" {
        RmsNorm = "rms_norm", SigmoidGate = "sigmoid_gate", SplitQueryGate = "split_query_gate",
        NormAndRotate = "norm_and_rotate", Convolve = "convolve", ConvolveTail = "convolve_tail",
        ConvolveRun = "convolve_run", NormaliseQueryKey = "normalise_query_key", DeltaRule16 = "delta_rule_16",
        DeltaRule32 = "delta_rule_32", DeltaStep16 = "delta_step_16", DeltaStep32 = "delta_step_32",
        DeltaRound16 = "delta_round_16", DeltaRound32 = "delta_round_32", DeltaRuleChannels = "delta_rule_channels",
        DeltaStepChannels = "delta_step_channels", DeltaRoundChannels = "delta_round_channels",
        DeltaChunkChannels = "delta_chunk_channels", JoinRows = "join_rows", GateHeads = "gate_heads",
        DeltaPrepare = "delta_prepare",
        DeltaChunk16 = "delta_chunk_16", DeltaChunk32 = "delta_chunk_32", GatedNorm = "gated_norm",
        AttentionHeads = "attention_heads", RankPartial = "rank_partial", RankFinal = "rank_final", Weigh = "weigh",
        NormRows = "norm_rows", NormBetween = "norm_between", NormJoin = "norm_join", Scale = "scale_values",
        Cap = "cap_values", PairRows = "pair_rows", LeaveOutAbsent = "leave_out_absent", TakeDraft = "take_draft",
    }
    Mixture in "mixture" {
        Linear1 = "linear_1", Linear2 = "linear_2", Linear4 = "linear_4", Embed = "embed",
        ArgMaxPartial = "arg_max_partial", ArgMaxFinal = "arg_max_final", Route256 = "route_256",
        Route512 = "route_512", Route1024 = "route_1024", RouteScored = "route_scored", ExpertInner = "expert_inner",
        ExpertOuter = "expert_outer", GroupPairs = "group_pairs", ListTiles = "list_tiles", Swiglu = "swiglu",
        Combine = "combine", Tile2 = "tile_2", Tile3 = "tile_3", Tile4 = "tile_4", Tile5 = "tile_5", Tile6 = "tile_6",
        Tile8 = "tile_8", TileAny = "tile_any", AddBias = "add_bias", PreparePairs = "prepare_pairs",
        Limit = "limit_pairs", GeluPairs = "gelu_pairs", Geglu = "geglu", ExpertInnerParts = "expert_inner_parts",
        ExpertOuterParts = "expert_outer_parts", ExpertInnerPartsPlanes = "expert_inner_parts_planes",
        ExpertOuterPartsPlanes = "expert_outer_parts_planes", LinearBlocks = "linear_blocks",
        EmbedBlocks = "embed_blocks", ExpertInnerBlocks = "expert_inner_blocks",
        ExpertOuterBlocks = "expert_outer_blocks", TileAnyBlocks = "tile_any_blocks",
    }
    Tiles in "tiles" {
        SplitTokens = "split_tokens", TileSplit2 = "tile_split_2", TileSplit2Narrow = "tile_split_2_narrow",
        TileSplit2Fine = "tile_split_2_fine", TileSplit2Small = "tile_split_2_small", TileSplit4 = "tile_split_4",
        TileSplit4Narrow = "tile_split_4_narrow", TileSplit4Fine = "tile_split_4_fine",
        TileSplit4Small = "tile_split_4_small", TileSplit8 = "tile_split_8", TileSplit8Narrow = "tile_split_8_narrow",
        FewColumns2x8 = "few_columns_2_8", FewColumns2x16 = "few_columns_2_16",
        FewColumns2Finex8 = "few_columns_2_fine_8", FewColumns2Finex16 = "few_columns_2_fine_16",
        FewColumns4x8 = "few_columns_4_8", FewColumns4x16 = "few_columns_4_16",
        FewColumns4Finex8 = "few_columns_4_fine_8", FewColumns4Finex16 = "few_columns_4_fine_16",
        FewColumns8x8 = "few_columns_8_8", FewColumns8x16 = "few_columns_8_16",
        FewColumns8Finex8 = "few_columns_8_fine_8", FewColumns8Finex16 = "few_columns_8_fine_16",
        FewRows2x8 = "few_rows_2_8", FewRows2x16 = "few_rows_2_16", FewRows2Finex8 = "few_rows_2_fine_8",
        FewRows2Finex16 = "few_rows_2_fine_16", FewRows4x8 = "few_rows_4_8", FewRows4x16 = "few_rows_4_16",
        FewRows4Finex8 = "few_rows_4_fine_8", FewRows4Finex16 = "few_rows_4_fine_16", FewRows8x8 = "few_rows_8_8",
        FewRows8x16 = "few_rows_8_16", FewRows8Finex8 = "few_rows_8_fine_8", FewRows8Finex16 = "few_rows_8_fine_16",
        TileSplit8Fine = "tile_split_8_fine", TileSplit8Small = "tile_split_8_small",
        TileBlocksQ40 = "tile_blocks_Q4_0", TileBlocksQ41 = "tile_blocks_Q4_1", TileBlocksQ50 = "tile_blocks_Q5_0",
        TileBlocksQ51 = "tile_blocks_Q5_1", TileBlocksQ80 = "tile_blocks_Q8_0", TileBlocksQ2K = "tile_blocks_Q2_K",
        TileBlocksQ3K = "tile_blocks_Q3_K", TileBlocksQ4K = "tile_blocks_Q4_K", TileBlocksQ5K = "tile_blocks_Q5_K",
        TileBlocksQ6K = "tile_blocks_Q6_K", TileBlocksIq4Nl = "tile_blocks_IQ4_NL",
        TileBlocksIq4Xs = "tile_blocks_IQ4_XS", TileBlocksMxfp4 = "tile_blocks_MXFP4",
        TileBlocksIq2Xxs = "tile_blocks_IQ2_XXS", TileBlocksIq2Xs = "tile_blocks_IQ2_XS",
        TileBlocksIq2S = "tile_blocks_IQ2_S", TileBlocksIq3Xxs = "tile_blocks_IQ3_XXS",
        TileBlocksIq3S = "tile_blocks_IQ3_S", TileBlocksIq1S = "tile_blocks_IQ1_S",
        TileBlocksIq1M = "tile_blocks_IQ1_M", TileBlocksTq10 = "tile_blocks_TQ1_0",
        TileBlocksTq20 = "tile_blocks_TQ2_0", TileBlocksNvfp4 = "tile_blocks_NVFP4",
        TileBlocksMxfp4Planes = "tile_blocks_MXFP4_PLANES", TileBlocksFp8 = "tile_blocks_FP8",
        TileBlocksF32 = "tile_blocks_F32", TileBlocksF16 = "tile_blocks_F16", TileBlocksBf16 = "tile_blocks_BF16",
        SplitTokensBlocks = "split_tokens_blocks",
    }
    Steps in "steps" {
        StepLinear = "step_linear", StepLinearAny = "step_linear_any", StepInner = "step_inner",
        StepInnerNarrow = "step_inner_narrow", StepOuter = "step_outer", SeveralLinear1 = "several_linear_1",
        SeveralLinear2 = "several_linear_2", SeveralLinear4 = "several_linear_4", SeveralNormed1 = "several_normed_1",
        SeveralNormed2 = "several_normed_2", SeveralNormed4 = "several_normed_4", SeveralInner = "several_inner",
        SeveralInnerNarrow = "several_inner_narrow", SeveralInnerFour = "several_inner_four",
        SeveralInnerFourNarrow = "several_inner_four_narrow", StepInnerRouted = "step_inner_routed",
        StepInnerNarrowRouted = "step_inner_narrow_routed", SeveralInnerRouted = "several_inner_routed",
        SeveralInnerNarrowRouted = "several_inner_narrow_routed",
        SeveralInnerFourRouted = "several_inner_four_routed",
        SeveralInnerFourNarrowRouted = "several_inner_four_narrow_routed", SeveralOuter = "several_outer",
    }
    StepBlocks in "step_blocks" {
        StepLinearBlocks = "step_linear_blocks", StepInnerBlocks = "step_inner_blocks",
        StepOuterBlocks = "step_outer_blocks", StepLinearGrids = "step_linear_grids",
        StepInnerGrids = "step_inner_grids", StepOuterGrids = "step_outer_grids",
        StepLinearUsual = "step_linear_usual", StepInnerUsual = "step_inner_usual",
        StepOuterUsual = "step_outer_usual", StepLinearPlanes = "step_linear_planes",
        StepInnerPlanes = "step_inner_planes",
        StepOuterPlanes = "step_outer_planes", StepInnerLimited = "step_inner_limited",
    }
    SeveralBlocks in "several_blocks" {
        SeveralLinearQ4K2 = "several_linear_Q4_K_2", SeveralLinearQ4K4 = "several_linear_Q4_K_4",
        SeveralLinearQ5K2 = "several_linear_Q5_K_2", SeveralLinearQ5K4 = "several_linear_Q5_K_4",
        SeveralLinearQ6K2 = "several_linear_Q6_K_2", SeveralLinearQ6K4 = "several_linear_Q6_K_4",
        SeveralLinearQ802 = "several_linear_Q8_0_2", SeveralLinearQ804 = "several_linear_Q8_0_4",
        SeveralLinearUsual4 = "several_linear_usual_4", SeveralOuterUsual = "several_outer_usual",
    }
}

/// Largest head of attention that the kernels serve.
pub const HEAD_DIM_LIMIT: usize = 512;
/// Largest key head of the delta rule that the kernels serve.
pub const KEY_DIM_LIMIT: usize = 256;
/// Most values of a key head whose channels have decays of their own.
pub const CHANNELS_LIMIT: usize = 128;
/// Blocks of the first pass of [`arg_max`]: words of its scratch per row.
pub const ARG_MAX_BLOCKS: usize = 64;

/// Bytes of a staged vector.
fn staged(columns: usize) -> usize {
    columns.div_ceil(32) * STAGED_CHUNK * 4
}

fn expect(what: &str, found: usize, needed: usize) {
    assert!(found >= needed, "{what}: {found} values where {needed} are used");
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LinearJob {
    matrix: Matrix,
    out: u64,
    first_block: u32,
    padding: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LinearArguments {
    x: u64,
    columns: u32,
    jobs: u32,
    add: u32,
    padding: u32,
    job: [LinearJob; JOBS],
}

/// `out = matrix x` (or `out +=`) for each job, in f32, for few tokens. `x` is `[tokens, columns]`.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When lengths do not fit the shapes.
pub fn linear(
    stream: &Stream,
    x: Span<f32>,
    tokens: usize,
    jobs: &[(Matrix, Span<f32>)],
    add: bool,
) -> Result<(), CudaError> {
    assert!((1..=JOBS).contains(&jobs.len()), "1 to {JOBS} matrices");
    let columns = jobs[0].0.columns();
    expect("input of a product", x.len(), tokens * columns);
    let total: usize = jobs.iter().map(|(matrix, _)| matrix.rows()).sum();
    // Several rows per warp share the load of x; with few rows more blocks matter more.
    let wide = stream.device().info().multiprocessors * 8;
    let (kernel, rows) = match total {
        _ if jobs.iter().any(|(matrix, _)| matrix.has_blocks()) => (Kernel::LinearBlocks, 1),
        _ if total >= 8 * wide => (Kernel::Linear4, 4),
        _ if total >= 3 * wide => (Kernel::Linear2, 2),
        _ => (Kernel::Linear1, 1),
    };
    let empty = LinearJob { matrix: jobs[0].0, out: 0, first_block: 0, padding: 0 };
    let mut job = [empty; JOBS];
    let mut blocks = 0;
    for (place, (matrix, out)) in job.iter_mut().zip(jobs) {
        assert_eq!(matrix.columns(), columns, "products share their input");
        expect("output of a product", out.len(), tokens * matrix.rows());
        *place =
            LinearJob { matrix: *matrix, out: out.address, first_block: blocks as u32, padding: 0 };
        blocks += matrix.rows().div_ceil(8 * rows);
    }
    let arguments = LinearArguments {
        x: x.address,
        columns: columns as u32,
        jobs: jobs.len() as u32,
        add: u32::from(add),
        padding: 0,
        job,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe {
        stream.launch_overlapping(kernel, (blocks, tokens, 1), 256, staged(columns), &arguments)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct EmbedArguments {
    table: Matrix,
    tokens: u64,
    out: u64,
}

/// Whether [`linear`] serves inputs of this width: they are staged in shared memory.
pub fn serves_columns(device: &Device, columns: usize) -> bool {
    staged(columns) <= device.shared_limit()
}

/// Rows of `table` for `tokens`.
///
/// # Errors
/// The device failed.
pub fn embed(
    stream: &Stream,
    table: Matrix,
    tokens: Span<u32>,
    out: Span<f32>,
) -> Result<(), CudaError> {
    expect("embedded tokens", out.len(), tokens.len() * table.columns());
    let arguments = EmbedArguments { table, tokens: tokens.address, out: out.address };
    let kernel = if table.has_blocks() { Kernel::EmbedBlocks } else { Kernel::Embed };
    // SAFETY: the structure is the kernels'; lengths were checked above, token ids by the caller's batch.
    unsafe { stream.launch(kernel, (tokens.len(), 1, 1), 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ArgMaxArguments {
    logits: u64,
    partial: u64,
    token: u64,
    columns: u32,
    blocks: u32,
}

/// The index of the largest value of each row of `logits` `[tokens.len(), columns]`, ties to the lowest;
/// `u32::MAX` for a row with a value that is no number. `scratch` has [`ARG_MAX_BLOCKS`] words per row.
///
/// # Errors
/// The device failed.
pub fn arg_max(
    stream: &Stream,
    logits: Span<f32>,
    columns: usize,
    scratch: Span<u64>,
    tokens: Span<u32>,
) -> Result<(), CudaError> {
    let rows = tokens.len();
    expect("logits", logits.len(), rows * columns);
    expect("scratch of the largest", scratch.len(), rows * ARG_MAX_BLOCKS);
    let arguments = ArgMaxArguments {
        logits: logits.address,
        partial: scratch.address,
        token: tokens.address,
        columns: columns as u32,
        blocks: ARG_MAX_BLOCKS as u32,
    };
    // SAFETY: the structure is both kernels'; lengths were checked above.
    unsafe {
        stream.launch(Kernel::ArgMaxPartial, (ARG_MAX_BLOCKS, rows, 1), 256, 0, &arguments)?;
        stream.launch(Kernel::ArgMaxFinal, (rows, 1, 1), 256, 0, &arguments)
    }
}

mirrors! {
    LinearJob as LinearJob { matrix, out, first_block, padding };
    LinearArguments as LinearArguments { x, columns, jobs, add, padding, job } for Linear1, Linear2, Linear4,
        LinearBlocks;
    EmbedArguments as EmbedArguments { table, tokens, out } for Embed, EmbedBlocks;
    ArgMaxArguments as ArgMaxArguments { logits, partial, token, columns, blocks } for ArgMaxPartial, ArgMaxFinal;
}

mod attention;
mod compressed;
mod compressed_attention;
mod delta;
mod draw;
mod expert_tiles;
mod experts;
mod gated_streams;
mod gates_step;
mod head;
mod indexed;
mod latent;
mod mixer;
mod ngrams;
mod parts;
mod rounds;
mod row_index;
mod sandwich;
mod scored;
mod step;
mod streams;
mod tile_blocks;
mod tile_few;
mod tiles;
pub use attention::*;
pub use compressed::*;
pub use compressed_attention::*;
pub use delta::*;
pub use draw::*;
pub use expert_tiles::*;
pub use experts::*;
pub use gated_streams::*;
pub use gates_step::*;
pub use head::*;
pub use indexed::*;
pub use latent::*;
pub use mixer::*;
pub use ngrams::*;
pub use parts::*;
pub use rounds::*;
pub use row_index::*;
pub use sandwich::*;
pub use scored::*;
pub use step::*;
pub use streams::*;
pub use tile_few::*;
pub use tiles::*;

/// Every structure that a kernel is launched with.
#[cfg(test)]
pub(crate) fn layouts() -> impl Iterator<Item = &'static crate::abi::Layout> {
    [
        LAYOUTS,
        attention::LAYOUTS,
        compressed::LAYOUTS,
        compressed_attention::LAYOUTS,
        delta::LAYOUTS,
        draw::LAYOUTS,
        expert_tiles::LAYOUTS,
        experts::LAYOUTS,
        head::LAYOUTS,
        gated_streams::LAYOUTS,
        gates_step::LAYOUTS,
        indexed::LAYOUTS,
        latent::LAYOUTS,
        mixer::LAYOUTS,
        ngrams::LAYOUTS,
        parts::LAYOUTS,
        rounds::LAYOUTS,
        row_index::LAYOUTS,
        sandwich::LAYOUTS,
        scored::LAYOUTS,
        step::LAYOUTS,
        streams::LAYOUTS,
        tile_few::LAYOUTS,
        tiles::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}
