//! A head that predicts further tokens (`synth --head`): one layer more, under its canonical names.

use anyhow::Result;
use engine::model::config::ModelConfig;
use serde_json::Value;

use super::tensors::{Add, Stored};
use crate::arguments::SynthArguments;
use crate::failure::Failure;

/// The model with the head that the arguments ask for; `config` then says that there is one.
pub(super) fn asked(
    arguments: &SynthArguments,
    model: ModelConfig,
    config: &mut Value,
) -> Result<ModelConfig> {
    let nested = config.get("text_config").is_some_and(Value::is_object);
    let text = if nested { &mut config["text_config"] } else { config };
    if !arguments.head {
        return Ok(model);
    }
    let model = model.with_head().map_err(|error| Failure::usage(format!("--head: {error}")))?;
    text["num_nextn_predict_layers"] = 1.into();
    Ok(model)
}

/// What a head has around its layer. Its matrix is stored as router gates are: it decides more than it weighs.
pub(super) fn tensors(model: &ModelConfig, stored: Stored, add: &mut Add<'_>) {
    let (layer, hidden) = (model.trunk_layers(), model.hidden);
    let name = |part: &str| format!("layers.{layer}.{part}");
    add(name("eh_proj"), &[hidden, 2 * hidden], stored.gates);
    for norm in ["enorm", "hnorm", "shared_head.norm"] {
        add(name(norm), &[hidden], stored.plain);
    }
}
