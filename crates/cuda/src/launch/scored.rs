//! Routers with a bias of the choice alone (`kernels/route_scored.cu`): what [`super::route`] takes of them.

use super::experts::RouteArguments;
use super::{TOP_K_LIMIT, expect};
use crate::Span;
use crate::abi::{ScoreKind, mirrors};

/// What experts are chosen and weighed by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Score {
    /// The softmax over all experts' logits.
    Softmax {
        /// The least sum that weights are divided by.
        least_sum: f32,
    },
    /// The sigmoid of each logit.
    Sigmoid,
    /// The square root of the softplus of each logit.
    SqrtSoftplus,
}

/// Experts that a table gives each token.
#[derive(Clone, Copy)]
pub struct Given {
    /// Rows of 16-bit numbers by token id, `[vocabulary, columns]`: bytes.
    pub table: Span<u8>,
    /// Numbers of a row, at least as many as experts per token.
    pub columns: usize,
    /// Id of each token.
    pub tokens: Span<u32>,
}

/// How experts are chosen and weighed by such scores.
#[derive(Clone, Copy)]
pub struct Scored {
    /// The scores.
    pub score: Score,
    /// Added to the scores for the choice alone, `[experts]`.
    pub bias: Option<Span<f32>>,
    /// The same of the next layer, whose choices are guessed.
    pub next_bias: Option<Span<f32>>,
    /// Groups of experts of one size, 1 to 64; they divide the experts.
    pub groups: usize,
    /// Groups that stay: those whose best two experts together score most. They hold `k` experts at least.
    pub kept: usize,
    /// What weights are multiplied by in the end.
    pub scale: f32,
    /// Of these alone the best are chosen.
    pub given: Option<Given>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ScoredRouteArguments {
    route: RouteArguments,
    bias: u64,
    next_bias: u64,
    given: u64,
    tokens: u64,
    score: u32,
    groups: u32,
    kept: u32,
    scale: f32,
    columns: u32,
    least_sum: f32,
}

impl ScoredRouteArguments {
    pub(super) fn new(route: RouteArguments, scored: &Scored, experts: usize, k: usize) -> Self {
        let Scored { groups, kept, .. } = *scored;
        assert!((1..=64).contains(&groups) && experts.is_multiple_of(groups), "groups of experts");
        assert!(kept <= groups && k <= kept * (experts / groups), "enough experts in groups");
        for bias in [scored.bias, scored.next_bias].into_iter().flatten() {
            expect("bias of the choice", bias.len(), experts);
        }
        if let Some(Given { columns, .. }) = scored.given {
            assert!((k..=TOP_K_LIMIT).contains(&columns), "enough experts given, and no more");
        }
        let (kind, least_sum) = match scored.score {
            Score::Sigmoid => (ScoreKind::Sigmoid, 0.0),
            Score::SqrtSoftplus => (ScoreKind::SqrtSoftplus, 0.0),
            Score::Softmax { least_sum } => (ScoreKind::Softmax, least_sum),
        };
        Self {
            route,
            bias: scored.bias.map_or(0, |bias| bias.address),
            next_bias: scored.next_bias.map_or(0, |bias| bias.address),
            given: scored.given.map_or(0, |given| given.table.address),
            tokens: scored.given.map_or(0, |given| given.tokens.address),
            score: kind as u32,
            groups: groups as u32,
            kept: kept as u32,
            scale: scored.scale,
            columns: scored.given.map_or(0, |given| given.columns as u32),
            least_sum,
        }
    }
}

mirrors! {
    ScoredRouteArguments as ScoredRouteArguments {
        route, bias, next_bias, given, tokens, score, groups, kept, scale, columns, least_sum
    } for RouteScored;
}
