//! The mixture of experts: a router over many routed experts and, in some families, one shared expert
//! (reference: transformers `Qwen3_5MoeSparseMoeBlock`, `Qwen3MoeSparseMoeBlock`, `DeepseekV3MoE`).
//!
//! `y = sum_e w_e down_e(silu(gate_e x) * up_e x) + sigmoid(x . g) shared(x)`; routed experts are summed
//! by ascending expert id (docs/decisions.md), the shared expert last; in some families its weight is one. Other
//! activations and biases of experts are those that the configuration asks for; biases of experts stay in memory, so
//! that records are matrices alone.

use store::format::{Checkpoint, Projection, ProjectionShape};

use super::activation::{Activation, GateUpRows};
use super::config::ModelConfig;
use super::register::Register;
use super::router::Score;
use crate::EngineError;
use crate::weights::{Catalog, MatrixId, TableId, VectorId, VectorRole};

/// Weights of a mixture that stay in memory; the routed experts are in the expert store.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    /// `[experts, hidden]`
    pub router: MatrixId,
    /// `[experts]`
    pub router_bias: Option<VectorId>,
    /// `[vocabulary, top_k]`: the experts of each token, where the router only weighs them.
    pub table: Option<TableId>,
    /// Biases of the routed experts.
    pub biases: Option<ExpertBiases>,
    /// The shared expert.
    pub shared: Option<SharedExpert>,
    /// What routed experts compute between their matrices.
    pub activation: Activation,
    /// What the router reads; the experts read `Normed`.
    pub router_input: Register,
    /// `[experts]`: factors of the chosen experts' weights.
    pub expert_scales: Option<VectorId>,
    /// Where the output is written; without, it is added to the stream.
    pub to: Option<Register>,
}

/// What is added to the products of routed experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBiases {
    /// `[experts, intermediate]`
    pub gate: VectorId,
    /// `[experts, intermediate]`
    pub up: VectorId,
    /// `[experts, hidden]`
    pub down: VectorId,
}

/// The expert that every token uses.
#[derive(Clone, Copy, Debug)]
pub struct SharedExpert {
    /// `[1, hidden]`: its weight before the sigmoid; one without.
    pub gate_weight: Option<MatrixId>,
    /// `[intermediate, hidden]`
    pub gate: MatrixId,
    /// `[intermediate, hidden]`
    pub up: MatrixId,
    /// `[hidden, intermediate]`
    pub down: MatrixId,
}

impl Mixture {
    /// Declares the tensors below `prefix` (`layers.N.mlp`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare(
        config: &ModelConfig,
        layer: usize,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let hashed = layer < config.moe.hashed_layers;
        let hidden = config.hidden;
        let moe = &config.moe;
        let (short, long) = (format!("{prefix}.gate"), format!("{prefix}.router"));
        let name = if catalog.has(&long) { long } else { short };
        let router = catalog.matrix(&name, moe.experts, hidden)?;
        let plain = VectorRole::Plain;
        let router_bias = match moe.router.bias {
            false => None,
            true if hashed => None,
            true => {
                let part = match moe.router.score {
                    Score::Softmax => "bias",
                    Score::BalancedSoftmax { .. }
                    | Score::Sigmoid { .. }
                    | Score::SqrtSoftplus { .. } => "e_score_correction_bias",
                };
                Some(catalog.vector(&format!("{name}.{part}"), moe.experts, plain)?)
            }
        };
        let biases = match moe.biases {
            false => None,
            true => Some(ExpertBiases::declare(config, prefix, catalog)?),
        };
        let shared = match moe.shared_intermediate {
            None => None,
            Some(width) => Some(SharedExpert::declare(config, width, prefix, catalog)?),
        };
        let table = match hashed {
            false => None,
            true => {
                let (rows, name) = (config.vocabulary, format!("{name}.tid2eid"));
                Some(catalog.table(&name, (rows, moe.top_k), moe.experts)?)
            }
        };
        let expert_scales = match moe.router_norm {
            false => None,
            true => Some(catalog.vector(&format!("{name}.expert_scale"), moe.experts, plain)?),
        };
        Ok(Self {
            router,
            router_bias,
            table,
            biases,
            shared,
            activation: moe.activation,
            router_input: if moe.router_norm { Register::RouterInput } else { Register::Normed },
            expert_scales,
            to: None,
        })
    }
}

/// Shapes and encodings of the routed experts of every layer, checked against the configuration; `None` for layers
/// without.
///
/// # Errors
/// The layer whose experts are missing, too few, of another shape, or where none belong.
pub fn expert_shapes(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
) -> Result<Vec<Option<[ProjectionShape; 3]>>, EngineError> {
    let layer_shapes = |layer: usize| {
        let name = format!("layers.{layer}.mlp.experts");
        if !config.layers[layer].feed_forward.has_mixture() {
            return match checkpoint.experts.get(layer) {
                Some(Some(_)) => {
                    Err(EngineError::tensor(&name, "are in a layer that is to have none"))
                }
                _ => Ok(None),
            };
        }
        let missing = || EngineError::tensor(&name, "are missing from the checkpoint");
        let experts = checkpoint.experts.get(layer).and_then(Option::as_ref).ok_or_else(missing)?;
        if experts.experts.len() != config.moe.experts {
            let (found, expected) = (experts.experts.len(), config.moe.experts);
            let found = format!("are {found}, config.json says num_experts {expected}");
            return Err(EngineError::tensor(&name, found));
        }
        let (inner, hidden) = (config.moe.intermediate, config.hidden);
        for (projection, rows, columns) in [
            (Projection::Gate, inner, hidden),
            (Projection::Up, inner, hidden),
            (Projection::Down, hidden, inner),
        ] {
            let shape = &experts.shapes[projection as usize];
            if (shape.rows, shape.columns) != (rows, columns) {
                let found = format!(
                    "have {projection:?} matrices of [{}, {}], expected [{rows}, {columns}]",
                    shape.rows, shape.columns
                );
                return Err(EngineError::tensor(&name, found));
            }
            shape.encoding.check(columns).map_err(|e| EngineError::tensor(&name, e.to_string()))?;
        }
        Ok(Some(experts.shapes))
    };
    (0..config.layers.len()).map(layer_shapes).collect()
}

impl ExpertBiases {
    fn declare(
        config: &ModelConfig,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let (moe, plain) = (&config.moe, VectorRole::Plain);
        let name = |part: &str| format!("{prefix}.experts.{part}_bias");
        let width = moe.experts * moe.intermediate;
        let [gate, up] = match moe.rows {
            GateUpRows::InTurns => catalog.vectors_in_turns(&name("gate_up_proj"), width, plain)?,
            GateUpRows::Apart => [
                catalog.vector(&name("gate_proj"), width, plain)?,
                catalog.vector(&name("up_proj"), width, plain)?,
            ],
        };
        catalog.join(up);
        let down = catalog.vector(&name("down_proj"), moe.experts * config.hidden, plain)?;
        Ok(Self { gate, up, down })
    }
}

impl SharedExpert {
    fn declare(
        config: &ModelConfig,
        width: usize,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let hidden = config.hidden;
        // Its name where the configuration counts such experts, though they are one.
        let counted = catalog.has(&format!("{prefix}.shared_experts.gate_proj"));
        let module = if counted { "shared_experts" } else { "shared_expert" };
        let name = |part: &str| format!("{prefix}.{module}.{part}");
        let gate_weight = match config.moe.shared_gate {
            false => None,
            true => Some(catalog.matrix(&format!("{prefix}.shared_expert_gate"), 1, hidden)?),
        };
        Ok(Self {
            gate_weight,
            gate: catalog.matrix(&name("gate_proj"), width, hidden)?,
            up: catalog.matrix(&name("up_proj"), width, hidden)?,
            down: catalog.matrix(&name("down_proj"), hidden, width)?,
        })
    }
}
