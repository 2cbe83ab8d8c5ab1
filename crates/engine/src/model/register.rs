//! The buffers that the operations of a layer read and write, and how wide a model makes them.

use super::config::{AttentionConfig, DeltaConfig, Mixer, ModelConfig, Projections};
use super::index::IndexForm;

/// An activation buffer of the running batch, one row per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// The residual streams, `hidden` wide each; most models have one.
    Residual,
    /// The normed stream, `hidden`.
    Normed,
    /// Queries and gates as projected, per head query then gate: `2 * query_heads * head_dim`.
    QueryGate,
    /// Queries, `query_heads * head_dim`; in latent attention per head plain and rotated values. Before they are joined
    /// in `Mixed`, queries, keys and values of the delta rule by channel are in this register and the two like it.
    Query,
    /// Output gates, as wide as the queries; in latent attention one per query head.
    Gate,
    /// Keys, `key_value_heads * head_dim`; in latent attention the row that is cached.
    Key,
    /// Values, as wide as the keys.
    Value,
    /// Output of a mixer before its projection: attention's or the delta rule's width.
    Context,
    /// Delta rule: queries, keys and values before the convolution.
    Mixed,
    /// Delta rule: queries, keys and values after it.
    Convolved,
    /// Delta rule: the output gate.
    Z,
    /// Delta rule: write strengths before the sigmoid, one per value head.
    Beta,
    /// Delta rule: decays before their function, one per value head or per channel of its keys.
    Decay,
    /// Delta rule: the row between the two matrices of decays.
    DecayLow,
    /// Compressed attention: queries between their two matrices.
    QueryLow,
    /// Latent and compressed attention: the row from which queries are made.
    QueryLatent,
    /// Compressed attention: a token's values for compressed rows.
    CompressedValues,
    /// Their gates.
    CompressedGates,
    /// A token's values for keys of the indexer; over latent rows its key before the norm.
    IndexValues,
    /// Gates of those values, or of those keys.
    IndexGates,
    /// Queries of the indexer; in attention to chosen keys its own key is behind them.
    IndexQuery,
    /// What each of its heads weighs.
    IndexWeights,
    /// Compressed attention: the output between its two matrices.
    OutputLow,
    /// Rows of a token's n-grams, one after the other.
    Rows,
    /// Gated streams: each normed by itself, as wide as all of them.
    StreamsNormed,
    /// A value for each value of the streams: gates, keys of n-grams, what a convolution sees.
    StreamValues,
    /// Gated streams, and output gates of the delta rule by channel: the row between the two matrices of a gate.
    GateLow,
    /// Gated streams: what each takes of a block's output, before the sigmoid.
    Inject,
    /// Where blocks' outputs are normed: the sum of what a layer's networks give, `hidden`.
    Branch,
    /// What the router reads where that is not what experts read, `hidden`.
    RouterInput,
    /// Of a head: a token's embedding and the output of the layers before, `2 * hidden`.
    Pair,
    /// Of a head: what its layer reads where nothing but keys and values is made of it, `hidden`.
    Entered,
}

impl Register {
    /// How many registers there are.
    pub const COUNT: usize = Self::Entered as usize + 1;

    /// Values per token of every register.
    pub(crate) fn widths(config: &ModelConfig) -> [usize; Self::COUNT] {
        let attention = &config.attention;
        let widest = |width: fn(&AttentionConfig) -> usize| {
            config.attentions().map(width).max().unwrap_or(0)
        };
        let keys = widest(AttentionConfig::key_width);
        let (queries, latent_values, query_latent) = match &config.latent {
            None => (widest(AttentionConfig::query_width), None, 0),
            Some(latent) => (
                attention.query_heads * (latent.plain_dim + attention.rope.dims),
                Some(attention.query_heads * latent.value_dim),
                latent.query_rank.unwrap_or(0),
            ),
        };
        let (channels, values, heads, decays) = match &config.delta {
            Some(delta) => {
                (delta.channels(), delta.value_width(), delta.value_heads, delta.decays())
            }
            None => (0, 0, 0, 0),
        };
        // Where they come from matrices of their own.
        let (low, apart) = match &config.delta {
            Some(DeltaConfig {
                projections: Projections::Apart { low_rank },
                key_heads,
                key_dim,
                ..
            }) => (low_rank.unwrap_or(0), [key_heads * key_dim, values]),
            _ => (0, [0; 2]),
        };
        let gate = match &config.latent {
            Some(latent) if latent.head_gates => attention.query_heads,
            _ if attention.output_gate => queries,
            _ => 0,
        };
        let optional = |used: bool| if used { config.hidden } else { 0 };
        let streams = config.streams();
        let mut widths = [0; Self::COUNT];
        for (register, width) in [
            (Self::Residual, streams * config.hidden),
            (Self::Normed, config.hidden),
            (Self::QueryGate, if attention.output_gate { 2 * queries } else { 0 }),
            (Self::Query, queries.max(apart[0])),
            (Self::Gate, gate),
            (Self::Key, keys.max(apart[0])),
            (Self::Value, if latent_values.is_some() { apart[1] } else { keys.max(apart[1]) }),
            (Self::Context, latent_values.unwrap_or(queries).max(values)),
            (Self::Mixed, channels),
            (Self::Convolved, channels),
            (Self::Z, values),
            (Self::Beta, heads),
            (Self::Decay, decays),
            (Self::DecayLow, low),
            (Self::GateLow, low),
            (Self::QueryLatent, query_latent),
            (Self::Branch, optional(config.stream.sandwich)),
            (Self::RouterInput, optional(config.moe.router_norm)),
            (Self::Pair, 2 * optional(config.head)),
            (Self::Entered, optional(config.head)),
        ] {
            widths[register as usize] = width;
        }
        if let Some(gated) = &config.gated {
            for (register, width) in [
                (Self::StreamsNormed, streams * config.hidden),
                (Self::StreamValues, streams * config.hidden),
                (Self::GateLow, gated.rank),
                (Self::Inject, streams),
            ] {
                widths[register as usize] = width;
            }
        }
        widths[Self::Rows as usize] = config.ngrams.as_ref().map_or(0, |ngrams| ngrams.width);
        if let Some(index) = &config.index {
            widths[Self::IndexQuery as usize] = index.width();
            if index.form != IndexForm::Joined {
                widths[Self::IndexValues as usize] = index.dim;
                widths[Self::IndexWeights as usize] = index.heads;
            }
            if index.form == IndexForm::Pooled {
                widths[Self::IndexGates as usize] = index.dim;
            }
        }
        if let Some(compressed) = &config.compressed {
            let (dim, index) = (attention.head_dim, &compressed.index);
            let kinds = config.layers.iter().filter_map(|layer| match layer.mixer {
                Mixer::Compressed(compression) => compression,
                _ => None,
            });
            let (mut rows, mut keys) = (0, 0);
            for kind in kinds {
                rows = rows.max(kind.width(dim));
                keys = keys.max(if kind.overlap { kind.width(index.dim) } else { 0 });
            }
            let heads = if keys > 0 { index.heads } else { 0 };
            for (register, width) in [
                (Self::QueryLow, compressed.query_rank),
                (Self::QueryLatent, compressed.query_rank),
                (Self::CompressedValues, rows),
                (Self::CompressedGates, rows),
                (Self::IndexValues, keys),
                (Self::IndexGates, keys),
                (Self::IndexQuery, heads * index.dim),
                (Self::IndexWeights, heads),
                (Self::OutputLow, compressed.output_groups * compressed.output_rank),
            ] {
                widths[register as usize] = width;
            }
        }
        widths
    }
}
