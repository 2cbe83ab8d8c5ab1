//! The structures of a step's kernels, field by field, as [`crate::abi`] checks them.

use super::limited::StepLimitedArguments;
use super::routed::StepRoutedArguments;
use super::{HeadsArguments, JobArguments, Source, StepExpertArguments, StepLinearArguments};
use crate::abi::mirrors;

mirrors! {
    Source as Source { x, norm, gate, columns, mode, dim, epsilon };
    JobArguments as StepJob { matrix, second, out, first_block, kind };
    StepLinearArguments as StepLinearArguments {
        source, taps, tail, sequences, tail_stride, ring, positions, lags, ring_stride, ring_row, padding, kernel, jobs,
        tiles_shift, rounds, tokens, per_pass, job
    } for StepLinear, StepLinearAny, StepLinearBlocks, StepLinearGrids, StepLinearPlanes, SeveralLinear1,
    SeveralLinear2, SeveralLinear4, SeveralNormed1, SeveralNormed2, SeveralNormed4, StepLinearUsual,
    SeveralLinearQ4K2, SeveralLinearQ4K4, SeveralLinearQ5K2, SeveralLinearQ5K4, SeveralLinearQ6K2, SeveralLinearQ6K4,
    SeveralLinearQ802, SeveralLinearQ804, SeveralLinearUsual4;
    HeadsArguments as HeadsArguments {
        query, key, value, query_norm, key_norm, frequencies, out, cache_keys, cache_values, positions, places,
        sequences, query_heads, key_value_heads, dim, rotary, context, query_stride, epsilon, kv_type,
        magnitude, norm_values
    } for AttentionHeads;
    StepExpertArguments as StepExpertArguments {
        source, chosen, weights, addresses, answers, status, inner, shared_inner, shared_gate, out, copies, experts,
        down, ended, k, first_key, rounds, tiles_shift, tokens, per_pass
    } for StepInner, StepInnerNarrow, StepOuter, StepInnerBlocks, StepInnerGrids, StepOuterBlocks, StepOuterGrids,
    StepInnerPlanes, StepOuterPlanes, SeveralInner, SeveralInnerNarrow, SeveralInnerFour, SeveralInnerFourNarrow,
    SeveralOuter, StepInnerUsual, StepOuterUsual, SeveralOuterUsual;
    StepLimitedArguments as StepLimitedArguments { step, gate, up, shared_inner, limit, padding }
        for StepInnerLimited;
    StepRoutedArguments as StepRoutedArguments { step, route } for StepInnerRouted, StepInnerNarrowRouted,
    SeveralInnerRouted, SeveralInnerNarrowRouted, SeveralInnerFourRouted, SeveralInnerFourNarrowRouted;
}
