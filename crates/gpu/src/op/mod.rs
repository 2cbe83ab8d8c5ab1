//! The operations: for each a file with its text, its parameters and its launcher.

pub mod all;
pub mod attention;
pub mod attention_wide;
mod blocks;
pub mod chosen;
pub mod combine;
pub mod compressed_attention;
pub mod compressed_rows;
pub mod convolution;
pub mod delta;
pub mod delta_channels;
mod delta_text;
mod depth;
pub mod draw;
pub mod elementwise;
pub mod embedding;
pub mod experts;
pub mod fused;
pub mod gated_product;
pub mod group;
pub mod halves;
pub mod head_product;
pub mod heads;
pub mod latent;
pub mod norm;
pub mod packing;
pub mod plain;
pub mod product;
pub mod prompt;
pub mod q8;
pub mod rounded;
pub mod router;
pub mod router_scored;
pub mod row_choice;
pub mod row_index;
mod scales;
pub mod streams;
mod sums;
pub mod tile;

pub use crate::source::Form;
use crate::source::Source;
use packing::Packing;

/// A kernel: what it computes and the numbers that its text depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A matrix times each token's row.
    Product(product::Spec),
    /// Each head's rows of a matrix times its values.
    HeadProduct(head_product::Spec),
    /// One half of the experts of a layer.
    Experts(experts::Spec),
    /// The norm of a token and several matrices of one packing.
    Several {
        /// The matrices.
        spec: fused::Spec,
        /// How many.
        count: u32,
        /// Whether the normed row is wanted too.
        keep: bool,
    },
    /// The norm of a token and four matrices, the first one's product through a causal convolution.
    DeltaInputs {
        /// The matrices.
        spec: fused::Spec,
        /// Taps of the filter.
        taps: u32,
    },
    /// The gated norm of a token's heads and a matrix, added.
    GatedProduct {
        /// The matrix.
        spec: fused::Spec,
        /// The function of the gate.
        gate: norm::Gate,
    },
    /// The first half of an expert that is always used.
    Gated(fused::Spec),
    /// That, beside the choice of experts.
    Choose(fused::Spec),
    /// The second half of that, with the sum of a layer.
    Close(fused::Spec),
    /// Of one token the choice of experts and their first halves.
    ChosenGateUp(chosen::Spec),
    /// Of one token the second halves of experts and the sum of a layer.
    ChosenDown(chosen::Spec),
    /// Of one token the convolution, then the norms of the queries and keys of the delta rule.
    ConvolveHeads {
        /// Taps of the filter.
        taps: u32,
    },
    /// Of one token norm and rotation of queries and keys; keys and values to a cache.
    Prepare {
        /// The cache.
        cache: attention::Cache,
        /// Whether queries come with gates.
        gated: bool,
    },
    /// Rows as pairs of f16.
    Halves,
    /// A matrix times many tokens' rows in halves, by cooperative matrices.
    Tile(tile::Spec),
    /// One half of the experts of a layer for many pairs, by cooperative matrices.
    TileExperts(tile::ExpertsSpec),
    /// The weighted sum of a token's experts, added to its row; with a shared expert or without.
    Combine {
        /// Whether there is a shared expert.
        always: combine::Always,
        /// Whether the sum is added to what is there.
        add: bool,
    },
    /// Rows of a matrix, decoded.
    Embed(Packing),
    /// RMS norm of rows.
    Norm,
    /// RMS norm of rows in place.
    NormInPlace,
    /// RMS norm of rows, added.
    NormAdd,
    /// RMS norm of heads times a function of a gate.
    GatedNorm {
        /// The function.
        gate: norm::Gate,
    },
    /// RMS norm of heads, then rotation.
    Heads,
    /// Rotation of heads.
    Rotate,
    /// `x += bias` by row.
    AddBias,
    /// Rows of three parts.
    Join,
    /// Of one token biases, and rotation of queries and keys; keys and values to a cache.
    PreparePlain(attention::Cache),
    /// Parts queries from gates.
    Split,
    /// `x *= sigmoid(gate)`
    SigmoidGate,
    /// `x *= sigmoid(gate)`, a gate for each head.
    GateHeads,
    /// `x = sigmoid(x)`
    Sigmoid,
    /// `gate = gelu(gate) * up`
    GeGlu,
    /// `gate = silu(gate) * up` of clamped numbers
    Limited,
    /// `x *= factor`
    Scale,
    /// `x = cap tanh(x / cap)`
    Cap,
    /// Weights of chosen experts times a factor of each expert.
    WeighExperts,
    /// `gate = silu(gate) * up`
    SwiGlu,
    /// Writes keys and values to a cache.
    Append(attention::Cache),
    /// Norm and rotation of latent rows, to a cache.
    LatentAppend(attention::Cache),
    /// Rotation of the ends of queries that meet latent rows.
    LatentTurn,
    /// Attention of wide heads over a cache.
    AttendWide(attention::Cache),
    /// The choice of rows by an indexer, and attention to them.
    ChosenRows(row_index::Kernel),
    /// Attention over a cache.
    Attend {
        /// The cache.
        cache: attention::Cache,
        /// Whether the result is multiplied by the sigmoid of a gate.
        gated: bool,
        /// Whether keys are read as vectors.
        wide: bool,
        /// Whether heads have sinks, and see a window.
        sinks: bool,
    },
    /// Attention of one token, each block for itself.
    AttendSplit {
        /// The cache.
        cache: attention::Cache,
        /// Whether keys are read as vectors.
        wide: bool,
        /// As of [`Op::Attend`].
        sinks: bool,
    },
    /// The blocks of that, joined.
    AttendJoin {
        /// The cache.
        cache: attention::Cache,
        /// Whether the result is multiplied by the sigmoid of a gate.
        gated: bool,
        /// As of [`Op::Attend`].
        sinks: bool,
    },
    /// Attention of a prompt's tokens over a cache.
    AttendPrompt {
        /// The cache: f16 or of 8 bits.
        cache: attention::Cache,
        /// Values of a head.
        dim: u32,
        /// Whether the result is multiplied by the sigmoid of a gate.
        gated: bool,
    },
    /// The causal convolution of a run.
    Convolve {
        /// Taps of the filter.
        taps: u32,
    },
    /// Norms of the queries and keys of the delta rule.
    DeltaHeads,
    /// The gated delta rule over a run.
    Delta {
        /// Values of a key head.
        key_dim: u32,
        /// Whether queries and keys are read as vectors.
        wide: bool,
        /// Whether each channel of a key has a decay of its own.
        channels: bool,
    },
    /// Decays of the channels of the delta rule's keys.
    DeltaDecays,
    /// The same with a bound.
    BoundedDecays,
    /// The choice of experts.
    Router {
        /// Whether logits have a bias.
        biased: bool,
    },
    /// The choice of experts by scores.
    RouterScored {
        /// The function of the logits.
        score: router_scored::Score,
        /// What moves the choice.
        moved: router_scored::Moved,
    },
    /// Of residual streams.
    Streams(streams::Kernel),
    /// Of rows of compressed attention.
    CompressedRows(compressed_rows::Kernel),
    /// Of the choice of compressed rows, and of attention over them.
    Compressed(compressed_attention::Kernel),
    /// Pairs of tokens and experts by expert.
    Group,
    /// The most likely token of rows of logits.
    MostLikely {
        /// True for the pass over logits, false for that over what it gave.
        row: bool,
    },
    /// The most likely tokens of a row of logits, best first.
    Rank {
        /// True for the pass over logits, false for those over what it gave.
        row: bool,
    },
}

/// The first lines of every kernel that a raised flag stops.
const STOP: &str = "if control[0] != 0u { return; }\n";

/// Stands in a text where a raised flag stops its kernel, behind reads that need not wait for the flag.
const STOP_HERE: &str = "// stop here";

impl Op {
    /// Declares the flag that stops the kernel, and asks it.
    fn behind_flag(self, source: Source, body: String) -> (Source, String) {
        // The router raises the flag, and experts run behind their own layer's.
        match self {
            Self::Router { .. }
            | Self::RouterScored { .. }
            | Self::Choose(_)
            | Self::ChosenGateUp(_) => (source.write("control", "u32"), body),
            Self::Experts(_) | Self::TileExperts(_) => (source.read("control", "u32"), body),
            _ if body.contains(STOP_HERE) => {
                let body = body.replace(STOP_HERE, "if stopped != 0u { return; }");
                (source.read("control", "u32"), format!("let stopped = control[0];\n{body}"))
            }
            _ => (source.read("control", "u32"), format!("{STOP}{body}")),
        }
    }

    /// The declarations and the whole text.
    pub(crate) fn source(self, form: Form) -> (Source, String) {
        let (source, body) = self.body(form);
        let (source, body) = self.behind_flag(source, body);
        // Those that run behind a flag have looked already.
        let body = body.replace(STOP_HERE, "");
        let text = source.text(&body);
        (source, text)
    }

    /// The declarations but for the flag's, and what is computed.
    fn body(self, form: Form) -> (Source, String) {
        match self {
            Self::Product(spec) => product::source(spec, form),
            Self::HeadProduct(spec) => head_product::source(spec, form),
            Self::Experts(spec) => experts::source(spec, form),
            Self::Several { spec, count, keep } => {
                fused::several(spec, count as usize, keep, 0, form)
            }
            Self::DeltaInputs { spec, taps } => {
                fused::several(spec, fused::MATRICES, false, taps, form)
            }
            Self::GatedProduct { spec, gate } => gated_product::source(spec, gate, form),
            Self::Gated(spec) => fused::gated(spec, form),
            Self::Choose(spec) => fused::choose(spec, form),
            Self::Close(spec) => fused::close(spec, form),
            Self::ChosenGateUp(spec) => chosen::gate_up(spec, form),
            Self::ChosenDown(spec) => chosen::down(spec, form),
            Self::ConvolveHeads { taps } => convolution::with_heads(taps, form),
            Self::Prepare { cache, gated } => heads::prepare(cache, gated, form),
            Self::Halves => halves::source(form),
            Self::Tile(spec) => tile::source(spec),
            Self::TileExperts(spec) => tile::experts(spec),
            Self::Combine { always, add } => combine::source(always, add),
            Self::Embed(packing) => embedding::source(packing),
            Self::Heads => heads::source(form),
            Self::Rotate => plain::rotate(),
            Self::AddBias => plain::add_bias(),
            Self::Join => plain::join(),
            Self::PreparePlain(cache) => plain::prepare(cache),
            Self::Split => heads::split(),
            Self::Append(cache) => attention::append(cache),
            Self::LatentAppend(cache) => latent::append(cache, form),
            Self::LatentTurn => latent::turn(),
            Self::AttendWide(cache) => attention_wide::source(cache, false),
            Self::ChosenRows(kernel) => kernel.source(form),
            Self::Attend { cache, gated, wide, sinks } => {
                attention::source(cache, gated, wide, sinks)
            }
            Self::AttendSplit { cache, wide, sinks } => attention::split(cache, wide, sinks),
            Self::AttendJoin { cache, gated, sinks } => attention::join(cache, gated, sinks),
            Self::AttendPrompt { cache, dim, gated } => prompt::source(cache, dim, gated),
            Self::Convolve { taps } => convolution::source(taps),
            Self::DeltaHeads => delta::heads(form),
            Self::Delta { key_dim, wide, channels } => {
                delta_text::source(key_dim, wide, channels, form)
            }
            Self::DeltaDecays | Self::BoundedDecays => delta_channels::source(self),
            Self::Router { biased } => router::source(biased, form),
            Self::RouterScored { score, moved } => router_scored::source(score, moved, form),
            Self::Norm | Self::NormAdd | Self::NormInPlace | Self::GatedNorm { .. } => {
                norm::source(self, form)
            }
            Self::SigmoidGate
            | Self::GateHeads
            | Self::Sigmoid
            | Self::SwiGlu
            | Self::GeGlu
            | Self::Limited
            | Self::Scale
            | Self::Cap
            | Self::WeighExperts => elementwise::source(self),
            Self::Streams(kernel) => streams::source(kernel, form),
            Self::CompressedRows(kernel) => compressed_rows::source(kernel, form),
            Self::Compressed(kernel) => compressed_attention::source(kernel),
            Self::Group => group::source(),
            Self::MostLikely { row } => draw::most_likely(row),
            Self::Rank { row } => draw::rank(row),
        }
    }

    /// Whether it runs only where matrices of f16 are multiplied ([`crate::Adapter::matrices`]).
    pub fn uses_matrices(self) -> bool {
        matches!(
            self,
            Self::Halves | Self::Tile(_) | Self::TileExperts(_) | Self::AttendPrompt { .. }
        )
    }

    /// The text of the kernel, in WGSL.
    pub fn text(self, form: Form) -> String {
        self.source(form).1
    }
}
