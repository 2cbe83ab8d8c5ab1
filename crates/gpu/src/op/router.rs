//! The choice of experts: softmax of a router's logits, the `k` greatest, their weights.
//!
//! An invocation counts for each of its experts how many come before it, of equal ones the lower id: those that fewer
//! than `k` precede are chosen. They are handed on by ascending id, the order in which they are added up. Each is
//! looked up in the table; one that is not there raises the flag, behind which only the experts of the same layer run.

use super::Op;
use crate::source::{Form, Source, tree_max, tree_sum};
use crate::{Buffer, Gpu, GpuError, Slabs, Span};

/// Most experts of a layer.
pub const EXPERTS_LIMIT: usize = 1024;
/// Most experts of a token.
pub const TOP_K_LIMIT: usize = 32;

/// Buffers and parameters of the choice.
pub(super) fn declare(source: Source) -> Source {
    source
        .read("logits", "f32")
        .read("table", "u32")
        .write("ids", "u32")
        .write("weights", "f32")
        .write("tiles", "u32")
        .parameters(&["experts", "k", "normalise", "first_id", "table_start", "flag"])
}

/// Workgroup memory of the choice, but that of its scores: 256 vectors of four.
pub(super) fn declare_shared(source: Source, form: Form) -> Source {
    source
        .shared("raised", "u32")
        .shared("chosen", "array<u32, 32>")
        .shared("best", "array<f32, 32>")
        .shared("red", "array<f32, 256>")
        .function(tree_sum(form))
        .function(tree_max(form))
}

/// Ends a kernel behind a flag that another layer has raised. A flag that another workgroup of this launch has raised
/// is this layer's; all that raise it write the same.
pub(super) const BEGIN: &str = "
        if lid == 0u { raised = control[0]; }
        let stopped = workgroupUniformLoad(&raised);
        if stopped != 0u && stopped != p.flag { return; }
";

pub(crate) fn source(biased: bool, form: Form) -> (Source, String) {
    let source = declare(Source::new());
    let (source, logit) = match biased {
        true => (source.read("bias", "f32"), "logits[at + e] + bias[e]"),
        false => (source, LOGIT),
    };
    let source = source.shared("score", "array<vec4<f32>, 256>");
    let source = declare_shared(source, form);
    (source, format!("{BEGIN}{}", body("score", logit)))
}

/// A logit without a bias.
pub(super) const LOGIT: &str = "logits[at + e]";

/// How many experts precede expert `e`, whose score is `mine`: its rank.
pub(super) const RANK: &str = "
            // Those that are greater, and of equal ones those before.
            var before = vec4<u32>(0u);
            for (var other = 0u; other < fours; other = other + 1u) {
                let theirs = score[other];
                let numbers = vec4<u32>(other * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
                let same = select(vec4<u32>(0u), vec4<u32>(1u), theirs == vec4<f32>(mine))
                    * select(vec4<u32>(0u), vec4<u32>(1u), numbers < vec4<u32>(e));
                before = before + same + select(vec4<u32>(0u), vec4<u32>(1u), theirs > vec4<f32>(mine));
            }
            let rank = (before.x + before.y) + (before.z + before.w);
";

/// The place of the chosen expert `e` among those of its token.
pub(super) const PLACE: &str = "
            var place = 0u;
            for (var other = 0u; other < p.k; other = other + 1u) {
                if chosen[other] < e { place = place + 1u; }
            }
            let pair = wid.x * p.k + place;
";

/// Hands a choice on, and raises the flag where its record has no slot.
pub(super) const WRITE: &str = "
            ids[p.first_id + pair] = e;
            if table[p.table_start + e] == 0u { control[0] = p.flag; }
            tiles[pair * 3u] = e;
            tiles[pair * 3u + 1u] = pair;
            tiles[pair * 3u + 2u] = 1u;
";

/// The choice, with workgroup memory `score` for its scores and an expression for the logit of expert `e`.
pub(super) fn body(score: &str, logit: &str) -> String {
    let body = "
        let at = wid.x * p.experts;
        var greatest = -3.0e38;
        // Behind the last expert nothing precedes: what is there is less than any score. So `k` experts have ranks
        // below `k`, and every place of `chosen` is written.
        score[lid] = vec4<f32>(-3.4e38);
        workgroupBarrier();
        for (var e = lid; e < p.experts; e = e + 256u) {
            var value = LOGIT;
            if (bitcast<u32>(value) & 0x7fffffffu) >= 0x7f800000u {
                control[1] = wid.x + 1u;
                value = -3.0e38;
            }
            value = max(value, -3.3e38);
            score[e >> 2u][e & 3u] = value;
            greatest = max(greatest, value);
        }
        red[lid] = greatest;
        greatest = tree_max(lid);
        var sum = 0.0;
        let fours = (p.experts + 3u) >> 2u;
        for (var e = lid; e < p.experts; e = e + 256u) {
            let mine = score[e >> 2u][e & 3u];
            RANK
            if rank < p.k { chosen[rank] = e; }
            sum = sum + exp(mine - greatest);
        }
        red[lid] = sum;
        sum = tree_sum(lid);
        if lid < p.k {
            let e = chosen[lid];
            PLACE
            best[place] = exp(score[e >> 2u][e & 3u] - greatest);
            WRITE
        }
        workgroupBarrier();
        if lid < p.k {
            var all = sum;
            if p.normalise != 0u {
                all = 0.0;
                for (var place = 0u; place < p.k; place = place + 1u) { all = all + best[place]; }
            }
            weights[wid.x * p.k + lid] = best[lid] / all;
        }
        ";
    let body = body.replace("RANK", RANK).replace("PLACE", PLACE).replace("WRITE", WRITE);
    body.replace("score[", &format!("{score}[")).replace("LOGIT", logit)
}

/// What the choice is written to.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    /// `[tokens, k]` from number `first_id` on, ascending for each token.
    pub ids: &'a Buffer,
    /// See above.
    pub first_id: usize,
    /// `[tokens, k]`
    pub weights: &'a Buffer,
    /// `[tokens * k, 3]`: each pair as a tile of its own ([`super::experts::Work`]).
    pub tiles: &'a Buffer,
    /// First word of the layer in the table.
    pub table_start: usize,
    /// What the flag becomes where an expert has no slot; 0 where nothing is to stop.
    pub flag: u32,
}

impl<'a> Choice<'a> {
    pub(super) fn parameters(&self, experts: usize, k: usize, normalise: bool) -> [u32; 6] {
        assert!(experts <= EXPERTS_LIMIT && k <= TOP_K_LIMIT && k <= experts, "{k} of {experts}");
        let (first_id, table_start) = (self.first_id as u32, self.table_start as u32);
        [experts as u32, k as u32, u32::from(normalise), first_id, table_start, self.flag]
    }

    pub(super) fn spans(&self, logits: Span<'a>, slabs: &'a Slabs) -> [Span<'a>; 5] {
        let [table, ids, weights, tiles] =
            [slabs.table(), self.ids, self.weights, self.tiles].map(Buffer::all);
        [logits, table, ids, weights, tiles]
    }
}

/// How many are chosen, of how many, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// Rows of logits.
    pub tokens: usize,
    /// Logits of a row.
    pub experts: usize,
    /// Experts of a token.
    pub k: usize,
}

/// Chooses `k` of `experts` for each token of `logits[tokens, experts]` and, if there is one, `bias[experts]`; with
/// `normalise` their weights sum to one. A
/// token whose logits are not all finite is named by the second word of [`Gpu::control`].
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    logits: Span<'_>,
    bias: Option<&Buffer>,
    slabs: &Slabs,
    choice: Choice<'_>,
    Chosen { tokens, experts, k }: Chosen,
    normalise: bool,
) -> Result<(), GpuError> {
    let parameters = choice.parameters(experts, k, normalise);
    let mut spans = choice.spans(logits, slabs).to_vec();
    spans.extend(bias.map(Buffer::all));
    gpu.dispatch(Op::Router { biased: bias.is_some() }, &spans, &parameters, [tokens as u32, 1, 1])
}
