//! Whether a model's head drafts: `--draft head` asks for it, `--draft auto` takes it where it is there and computed.

use anyhow::Result;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use store::format::{Checkpoint, Head};

use crate::arguments::{DraftChoice, ModelArguments};
use crate::failure::Failure;

/// The model with its head.
///
/// # Errors
/// Why there is none, or why it is not computed.
pub(super) fn add(
    arguments: &ModelArguments,
    checkpoint: Checkpoint,
    config: ModelConfig,
) -> Result<(Checkpoint, ModelConfig)> {
    if arguments.is_spread() {
        let reason = "--draft head: a head is computed on one device; leave out --device with several, or --stages";
        return Err(Failure::usage(reason).into());
    }
    let named = |why: String| {
        let model = crate::models::short_name(&arguments.model);
        Failure::usage(format!("--draft head: {model} {why}; --draft ngram needs none"))
    };
    let checkpoint = checkpoint.with_head().map_err(named)?;
    let config = config.with_head().map_err(|error| named(error.to_string()))?;
    Ok((checkpoint, config))
}

/// Whether `--draft auto` takes the head of a model, on a device that computes heads.
pub(super) fn is_used(
    arguments: &ModelArguments,
    checkpoint: &Checkpoint,
    config: &ModelConfig,
) -> bool {
    arguments.draft == DraftChoice::Auto
        && !arguments.is_spread()
        && matches!(checkpoint.head, Head::Apart(_))
        && is_whole(checkpoint, config)
}

/// Whether a head has the shapes that its model asks for. A head is no part of any answer: `auto` does without.
fn is_whole(checkpoint: &Checkpoint, config: &ModelConfig) -> bool {
    let Ok(config) = config.clone().with_head() else { return false };
    let Ok(checkpoint) = checkpoint.clone().with_head() else { return false };
    let declared = Model::declare(&config, &mut Catalog::new(&checkpoint));
    declared.is_ok() && expert_shapes(&checkpoint, &config).is_ok()
}
