//! Parts of models that not every device computes: asked when a model is loaded, so that a device which lacks one
//! refuses the model by name and never in the middle of a run.

use super::activation::{Activation, GateUpRows};
use super::config::ModelConfig;
use super::rope::Pairs;
use super::router::Score;

/// A part beyond what every device computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Several residual streams.
    HyperConnections,
    /// Attention over compressed rows.
    CompressedAttention,
    /// Experts that follow from the token.
    HashedExperts,
    /// Layers of attention that see the last tokens alone.
    Windows,
    /// Scores of attention that only take weight from the others.
    Sinks,
    /// Heads that are rotated without a norm.
    PlainHeads,
    /// Norms of all heads together.
    WholeNorms,
    /// Biases of the projections of attention.
    ProjectionBiases,
    /// Rotation that is stretched beyond the trained context.
    ScaledRotation,
    /// A bias of the router.
    RouterBias,
    /// A router whose scores are sigmoids.
    SigmoidRouter,
    /// Biases of the experts.
    ExpertBiases,
    /// Rows of gate and up in turns.
    RowsInTurns,
    /// Experts with clamped activations.
    ClampedActivation,
    /// Experts with clamped inputs of SwiGLU.
    LimitedActivation,
    /// Attention over latent rows.
    LatentAttention,
    /// Rotation of neighbours instead of halves.
    RotatedNeighbours,
    /// Layers without experts.
    DenseLayers,
    /// A shared expert without a weight of its own.
    PlainSharedExpert,
}

impl Part {
    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Self::HyperConnections => "several residual streams (hyper-connections)",
            Self::CompressedAttention => "compressed attention",
            Self::HashedExperts => "experts that follow from the token",
            Self::Windows => "sliding windows",
            Self::Sinks => "attention sinks",
            Self::PlainHeads => "attention heads without norms",
            Self::WholeNorms => "norms of whole projections",
            Self::ProjectionBiases => "biases of attention",
            Self::ScaledRotation => "scaled rotation (yarn)",
            Self::RouterBias => "a bias of the router",
            Self::SigmoidRouter => "a router of sigmoids",
            Self::ExpertBiases => "biases of experts",
            Self::RowsInTurns => "rows of gate and up in turns",
            Self::ClampedActivation => "clamped activations",
            Self::LimitedActivation => "clamped inputs of activations",
            Self::LatentAttention => "latent attention",
            Self::RotatedNeighbours => "rotation of neighbours",
            Self::DenseLayers => "layers without experts",
            Self::PlainSharedExpert => "a shared expert without a gate",
        }
    }
}

impl ModelConfig {
    /// The parts of this model that not every device computes.
    pub fn parts(&self) -> Vec<Part> {
        let (attention, moe) = (&self.attention, &self.moe);
        let parts = [
            (Part::HyperConnections, self.hyper.is_some()),
            (Part::CompressedAttention, self.compressed.is_some()),
            (Part::HashedExperts, moe.hashed_layers > 0),
            (Part::Windows, self.layers.iter().any(|layer| layer.window.is_some())),
            (Part::Sinks, attention.sinks),
            (Part::LatentAttention, self.latent.is_some()),
            (Part::RotatedNeighbours, attention.rope.pairs == Pairs::Neighbours),
            (Part::PlainHeads, !attention.head_norms && self.latent.is_none()),
            (Part::WholeNorms, attention.whole_norms),
            (Part::ProjectionBiases, attention.biases || attention.output_bias),
            (Part::ScaledRotation, attention.rope.yarn.is_some()),
            (Part::RouterBias, moe.router.bias),
            (Part::SigmoidRouter, moe.router.score != Score::Softmax),
            (Part::ExpertBiases, moe.biases),
            (Part::RowsInTurns, moe.rows != GateUpRows::Apart),
            (Part::ClampedActivation, matches!(moe.activation, Activation::Clamped { .. })),
            (Part::LimitedActivation, matches!(moe.activation, Activation::Limited { .. })),
            (Part::DenseLayers, self.mixtures() < self.layers.len()),
            (Part::PlainSharedExpert, moe.shared_intermediate.is_some() && !moe.shared_gate),
        ];
        parts.into_iter().filter(|(_, has)| *has).map(|(part, _)| part).collect()
    }
}
