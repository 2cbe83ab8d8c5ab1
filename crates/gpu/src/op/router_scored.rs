//! The choice of experts by scores that a bias moves for the choice alone, within the groups whose experts score most.
//!
//! As [`super::router`], with these differences: scores are sigmoids, roots of softplus or a softmax, weights are
//! scores without the bias, and of a token's groups of experts only those stay whose two best together score most.
//! Where a table gives each token its experts, only those are eligible.

use super::Op;
use super::router::{self, BEGIN, Choice, Chosen, EXPERTS_LIMIT, PLACE, RANK, WRITE};
use crate::source::{Form, Source};
use crate::{Buffer, Gpu, GpuError, Slabs, Span};

/// What experts are chosen and weighed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Score {
    /// The softmax over all experts' logits.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// The square root of the softplus of each logit.
    SqrtSoftplus,
}

/// How scores become a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The function of the logits.
    pub score: Score,
    /// Groups of experts, at most [`GROUPS_LIMIT`]; they divide the experts.
    pub groups: usize,
    /// Groups that stay.
    pub kept: usize,
    /// True where weights are divided by their sum, which then is at least `least`.
    pub normalise: bool,
    /// See above.
    pub least: f32,
    /// What weights are multiplied by in the end.
    pub scale: f32,
}

/// Most groups of a layer.
pub const GROUPS_LIMIT: usize = 64;

/// What may move the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moved {
    /// Nothing.
    No,
    /// A bias of each expert.
    ByBias,
    /// Only experts that a table has for the token are eligible.
    Given,
}

impl Moved {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::No, Self::ByBias, Self::Given];
}

/// The experts of each token, where they are given.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// `[vocabulary, columns]` distinct experts, two in a word.
    pub table: &'a Buffer,
    /// Experts of a token of the vocabulary.
    pub columns: usize,
    /// `[tokens]`
    pub ids: &'a Buffer,
}

/// What moves a choice.
#[derive(Clone, Copy)]
pub enum Moves<'a> {
    /// As [`Moved::No`].
    No,
    /// As [`Moved::ByBias`]: `[experts]`.
    ByBias(&'a Buffer),
    /// As [`Moved::Given`].
    Given(Given<'a>),
}

impl<'a> From<Option<&'a Buffer>> for Moves<'a> {
    fn from(bias: Option<&'a Buffer>) -> Self {
        bias.map_or(Self::No, Self::ByBias)
    }
}

pub(crate) fn source(score: Score, by: Moved, form: Form) -> (Source, String) {
    let source = router::declare(Source::new()).parameters(&["groups", "kept", "least", "scale"]);
    let (source, moved) = match by {
        Moved::ByBias => (source.read("bias", "f32"), "value + bias[e]"),
        Moved::No => (source, "value"),
        Moved::Given => {
            let source = source.read("given", "u32").read("tokens", "u32").parameters(&["columns"]);
            (source.function(IS_GIVEN), "select(-3.2e38, value, is_given(e, wid.x))")
        }
    };
    let source = source
        .shared("score", "array<vec4<f32>, 256>")
        .shared("own", "array<vec4<f32>, 256>")
        .shared("of_group", "array<f32, 64>")
        .shared("stays", "array<u32, 64>");
    let source = router::declare_shared(source, form);
    let source = match score {
        Score::SqrtSoftplus => source.function(SQRT_SOFTPLUS),
        _ => source,
    };
    let (before, value) = match score {
        Score::SqrtSoftplus => ("", "sqrt_softplus(LOGIT)"),
        Score::Sigmoid => ("", "1.0 / (1.0 + exp(-LOGIT))"),
        Score::Softmax => (SUM, "exp(LOGIT - greatest) / sum"),
    };
    let value = value.replace("LOGIT", "own[e >> 2u][e & 3u]");
    let body = BODY.replace("SUM", before).replace("RANK", RANK).replace("PLACE", PLACE);
    let body = body.replace("WRITE", WRITE).replace("VALUE", &value).replace("MOVED", moved);
    (source, format!("{BEGIN}{body}"))
}

const IS_GIVEN: &str = "
fn is_given(e: u32, token: u32) -> bool {
    let first = tokens[token] * p.columns;
    var found = false;
    for (var at = first; at < first + p.columns; at = at + 1u) {
        if ((given[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu) == e { found = true; }
    }
    return found;
}
";

/// The logarithm of one and a small number as twice an inverse hyperbolic tangent, by its series up to a third: that of
/// a driver may have no correct digit near one.
const SQRT_SOFTPLUS: &str = "
fn sqrt_softplus(x: f32) -> f32 {
    let e = exp(-abs(x));
    let t = e / (2.0 + e);
    let s = t * t;
    let high = 0.2 + s * (0.14285715 + s * (0.11111111 + s * (0.09090909 + s * (0.07692308 + s * 0.06666667))));
    return sqrt(max(x, 0.0) + 2.0 * t * (1.0 + s * (0.33333334 + s * high)));
}
";

/// The greatest logit, and the sum of all exponentials.
const SUM: &str = "
        var greatest = -3.0e38;
        for (var e = lid; e < p.experts; e = e + 256u) {
            greatest = max(greatest, own[e >> 2u][e & 3u]);
        }
        red[lid] = greatest;
        greatest = tree_max(lid);
        var sum = 0.0;
        for (var e = lid; e < p.experts; e = e + 256u) {
            sum = sum + exp(own[e >> 2u][e & 3u] - greatest);
        }
        red[lid] = sum;
        sum = tree_sum(lid);
";

const BODY: &str = "
        let at = wid.x * p.experts;
        // As in the choice by logits: behind the last expert nothing precedes.
        score[lid] = vec4<f32>(-3.4e38);
        workgroupBarrier();
        for (var e = lid; e < p.experts; e = e + 256u) {
            var logit = logits[at + e];
            if (bitcast<u32>(logit) & 0x7fffffffu) >= 0x7f800000u {
                control[1] = wid.x + 1u;
                logit = 0.0;
            }
            own[e >> 2u][e & 3u] = logit;
        }
        SUM
        for (var e = lid; e < p.experts; e = e + 256u) {
            let value = VALUE;
            own[e >> 2u][e & 3u] = value;
            score[e >> 2u][e & 3u] = max(MOVED, -3.2e38);
        }
        workgroupBarrier();
        let size = p.experts / p.groups;
        if lid < p.groups {
            var first = -3.3e38;
            var second = 0.0;
            for (var place = 0u; place < size; place = place + 1u) {
                let e = lid * size + place;
                let theirs = score[e >> 2u][e & 3u];
                if place == 0u {
                    first = theirs;
                } else if place == 1u {
                    second = min(first, theirs);
                    first = max(first, theirs);
                } else {
                    second = max(second, min(first, theirs));
                    first = max(first, theirs);
                }
            }
            of_group[lid] = first + second;
        }
        workgroupBarrier();
        if lid < p.groups {
            var before = 0u;
            for (var other = 0u; other < p.groups; other = other + 1u) {
                let theirs = of_group[other];
                if theirs > of_group[lid] || (theirs == of_group[lid] && other < lid) { before = before + 1u; }
            }
            stays[lid] = select(0u, 1u, before < p.kept);
        }
        workgroupBarrier();
        for (var e = lid; e < p.experts; e = e + 256u) {
            if stays[e / size] == 0u { score[e >> 2u][e & 3u] = -3.3e38; }
        }
        workgroupBarrier();
        let fours = (p.experts + 3u) >> 2u;
        for (var e = lid; e < p.experts; e = e + 256u) {
            let mine = score[e >> 2u][e & 3u];
            RANK
            if rank < p.k { chosen[rank] = e; }
        }
        workgroupBarrier();
        if lid < p.k {
            let e = chosen[lid];
            PLACE
            best[place] = own[e >> 2u][e & 3u];
            WRITE
        }
        workgroupBarrier();
        if lid < p.k {
            var all = 1.0;
            if p.normalise != 0u {
                all = 0.0;
                for (var place = 0u; place < p.k; place = place + 1u) { all = all + best[place]; }
                all = max(all, bitcast<f32>(p.least));
            }
            weights[wid.x * p.k + lid] = best[lid] / all * bitcast<f32>(p.scale);
        }
        ";

/// As [`router::launch`], by scores; a bias or a table moves the choice alone.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    of: Scored,
    (logits, moves): (Span<'_>, Moves<'_>),
    slabs: &Slabs,
    choice: Choice<'_>,
    Chosen { tokens, experts, k }: Chosen,
) -> Result<(), GpuError> {
    let Scored { score, groups, kept, normalise, least, scale } = of;
    assert!((1..=GROUPS_LIMIT).contains(&groups) && experts.is_multiple_of(groups), "{groups}");
    assert!(experts <= EXPERTS_LIMIT && k <= kept * (experts / groups), "{k} of {kept} groups");
    let mut parameters = choice.parameters(experts, k, normalise).to_vec();
    parameters.extend([groups as u32, kept as u32, least.to_bits(), scale.to_bits()]);
    let mut spans = choice.spans(logits, slabs).to_vec();
    let moved = match moves {
        Moves::No => Moved::No,
        Moves::ByBias(bias) => {
            spans.push(bias.all());
            Moved::ByBias
        }
        Moves::Given(Given { table, columns, ids }) => {
            assert!(k <= columns && groups == 1, "{k} of {columns} that are given");
            spans.extend([table.all(), ids.all()]);
            parameters.push(columns as u32);
            Moved::Given
        }
    };
    let op = Op::RouterScored { score, moved };
    gpu.dispatch(op, &spans, &parameters, [tokens as u32, 1, 1])
}
