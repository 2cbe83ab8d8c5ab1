//! What families have in common that mix attention with the delta rule, and that say a thing under two names: that of
//! the release, and that of transformers.

use kernels::DeltaDecay;
use store::format::config::keys;
use store::format::config::keys::Key;
use store::format::config::kind::Kind;
use store::format::{Configuration, FormatError};

use super::config::{DeltaConfig, HeadOrder, Mixer, OutputGate, Projections};

/// What mixes tokens in each of `layers` layers: as listed under names that are `known`, or else as `unlisted` says, by
/// the layer's number from one.
pub(super) fn mixers<F: Fn(usize) -> Mixer>(
    from: &Configuration,
    layers: usize,
    known: impl Fn(&str) -> Option<Mixer>,
    unlisted: impl FnOnce() -> Result<F, FormatError>,
) -> Result<Vec<Mixer>, FormatError> {
    let Some(kinds) = from.get(&keys::LAYER_TYPES)? else {
        return Ok((1..=layers).map(unlisted()?).collect());
    };
    let mixers = kinds.into_iter().map(|kind| {
        known(kind).ok_or_else(|| {
            let found = format!("{kind} is not known in this family");
            from.invalid(&keys::LAYER_TYPES, found)
        })
    });
    let mixers: Vec<Mixer> = mixers.collect::<Result<_, _>>()?;
    if mixers.len() != layers {
        let found = format!("has {} entries for {layers} layers", mixers.len());
        return Err(from.invalid(&keys::LAYER_TYPES, found));
    }
    Ok(mixers)
}

/// `attention` in every layer whose number is a multiple of `interval`, the delta rule in the others.
pub(super) fn every(interval: usize, attention: Mixer) -> impl Fn(usize) -> Mixer {
    move |number| if number.is_multiple_of(interval) { attention } else { Mixer::DeltaNet }
}

/// The delta rule whose channels have decays of their own: as many key heads as value heads, each of `dim` values, and
/// matrices for queries, keys and values apart.
pub(super) fn by_channel(
    heads: usize,
    dim: usize,
    taps: usize,
    decay: DeltaDecay,
    low_rank: Option<usize>,
) -> DeltaConfig {
    DeltaConfig {
        key_heads: heads,
        value_heads: heads,
        order: HeadOrder::Grouped,
        key_dim: dim,
        value_dim: dim,
        convolution_kernel: taps,
        gate: OutputGate::Sigmoid,
        decay,
        projections: Projections::Apart { low_rank },
    }
}

/// What the published key says, or else what transformers saves under another.
pub(super) fn either<'a, K: Kind>(
    from: &'a Configuration,
    published: &Key<K>,
    saved: &Key<K>,
) -> Result<K::Read<'a>, FormatError> {
    match from.stated(published)? {
        Some(value) => Ok(value),
        None => from.required(saved),
    }
}
