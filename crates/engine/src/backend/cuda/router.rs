//! What routing has in common in steps and chunks: the products that it reads and where its results go.

use cuda::launch::{self, ExpertActivation, Routing, STATUS_WORDS, Scored};
use cuda::{CudaError, Matrix, Span};
use store::LayerId;

use super::CudaBackend;
use crate::model::activation::{Activation, GateUpRows};
use crate::model::mixture::Mixture;
use crate::model::router::{Groups, Score};

/// All experts are eligible.
const ONE_GROUP: Groups = Groups { count: 1, kept: 1 };

impl CudaBackend {
    /// The router's logits of the batch, `[tokens, experts]`.
    pub(super) fn router_logits(&self) -> Span<f32> {
        self.buffers.router_logits.part(0, self.tokens * self.sizes.experts)
    }

    /// The shared expert's gate before the sigmoid, one per token of the batch.
    pub(super) fn shared_factor(&self) -> Span<f32> {
        self.buffers.shared_factor.part(0, self.tokens)
    }

    /// Products of the normed stream that decide a mixture: the router, and the gate of a shared expert.
    pub(super) fn router_products(&self, mixture: &Mixture) -> Vec<(Matrix, Span<f32>)> {
        let mut products = vec![(self.matrix(mixture.router), self.router_logits())];
        let gate = mixture.shared.as_ref().and_then(|shared| shared.gate_weight);
        products.extend(gate.map(|gate| (self.matrix(gate), self.shared_factor())));
        products
    }

    /// The product of the normed stream from which a step guesses the choice of the layer after `layer`.
    pub(super) fn guess_product(&self, layer: LayerId) -> Option<(Matrix, Span<f32>)> {
        let prefetch = self.prefetch.as_ref().filter(|_| self.single)?;
        let (router, to) = prefetch.next_router(layer, self.tokens * self.sizes.experts)?;
        Some((self.matrix(router), to))
    }

    /// Adds the router's bias to its logits, and the next layer's to those from which a step guesses its choice, where
    /// it is one of logits and not of the choice alone.
    pub(super) fn add_router_biases(
        &self,
        layer: LayerId,
        mixture: &Mixture,
    ) -> Result<(), CudaError> {
        let softmax = self.config.moe.router.score == Score::Softmax;
        let Some(bias) = mixture.router_bias.filter(|_| softmax) else { return Ok(()) };
        launch::add_bias(&self.stream, self.router_logits(), self.vector(bias))?;
        match (self.guess_product(layer), self.routing.next_router_bias(layer)) {
            (Some((_, logits)), Some(bias)) => {
                launch::add_bias(&self.stream, logits, self.vector(bias))
            }
            _ => Ok(()),
        }
    }

    /// Factor of the gate within the sigmoid, 0 without, and what gate and up are clamped to.
    pub(super) fn clamped(&self) -> Option<(f32, f32)> {
        match self.config.moe.activation {
            Activation::SwiGlu | Activation::GeGlu => None,
            Activation::Clamped { alpha, limit } => Some((alpha, limit)),
            Activation::Limited { limit } => Some((0.0, limit)),
        }
    }

    /// Whether the shared expert is clamped as well.
    pub(super) fn clamps_shared(&self) -> bool {
        matches!(self.config.moe.activation, Activation::Limited { .. })
    }

    /// What the routed experts compute between their matrices, where it is not SwiGLU alone.
    pub(super) fn activation(&self, mixture: &Mixture) -> Option<ExpertActivation> {
        let moe = &self.config.moe;
        let activation = ExpertActivation {
            biases: mixture
                .biases
                .as_ref()
                .map(|it| [it.gate, it.up, it.down].map(|bias| self.vector(bias))),
            clamped: self.clamped(),
            in_turns: moe.rows == GateUpRows::InTurns,
            shared: self.clamps_shared(),
            gelu: mixture.activation == Activation::GeGlu,
        };
        let ExpertActivation { biases, clamped, in_turns, gelu, .. } = &activation;
        (biases.is_some() || clamped.is_some() || *in_turns || *gelu).then_some(activation)
    }

    /// Scores with a bias of the choice alone: all but the softmax of the logits.
    fn scored(&self, layer: LayerId, mixture: &Mixture) -> Option<Scored> {
        let (score, groups, scale) = match self.config.moe.router.score {
            Score::Softmax => return None,
            Score::BalancedSoftmax { least_sum } => {
                (launch::Score::Softmax { least_sum }, ONE_GROUP, 1.0)
            }
            Score::Sigmoid { groups, scale } => (launch::Score::Sigmoid, groups, scale),
            Score::SqrtSoftplus { scale } => (launch::Score::SqrtSoftplus, ONE_GROUP, scale),
        };
        Some(Scored {
            score,
            bias: mixture.router_bias.map(|bias| self.vector(bias)),
            given: mixture.table.map(|table| self.given(table)),
            next_bias: self.routing.next_router_bias(layer).map(|bias| self.vector(bias)),
            groups: groups.count,
            kept: groups.kept,
            scale,
        })
    }

    /// Routing of a layer: `replaced` logits count instead of the router's, uses are told from byte `uses` on, and what
    /// has no address is asked for in a step only.
    pub(super) fn routing_of(
        &self,
        layer: LayerId,
        mixture: &Mixture,
        replaced: Option<Span<f32>>,
        uses: usize,
        ask: bool,
    ) -> Routing {
        let (buffers, k) = (&self.buffers, self.options.top_k);
        let pairs = self.tokens * k;
        // Guesses of a step lie behind its uses, those of the next layer at its place.
        let guesses = uses + (self.sizes.layers + 1) * pairs * 4;
        Routing {
            logits: self.router_logits(),
            replaced,
            table: self.table_row(layer),
            chosen: buffers.chosen.span(0, pairs),
            weights: buffers.weights.part(0, pairs),
            addresses: buffers.addresses.span(0, pairs),
            uses: buffers.uses.span(uses, pairs),
            ring: buffers.pinned.ring.span(0, self.sizes.ring),
            posted: buffers.posted.span(0, 1),
            status: buffers.pinned.status.span(0, STATUS_WORDS),
            copies: self.prefetch.as_ref().filter(|_| ask).map(|prefetch| prefetch.copies(layer)),
            expert_scales: mixture.expert_scales.map(|scales| self.vector(scales)),
            guess: if ask { self.guess_of(layer, guesses) } else { None },
            ahead: if ask { self.read_next(layer) } else { None },
            first_key: (layer.index() * self.sizes.experts) as u32,
            k,
            normalise: self.config.moe.router.normalise,
            scored: self.scored(layer, mixture),
            ask,
        }
    }
}
