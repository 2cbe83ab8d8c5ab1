//! Sampling options: what was typed over what the model recommends.

use anyhow::{Context, Result};
use store::format::Checkpoint;
use text::sampling::SamplingOptions;

use crate::arguments::SamplingArguments;
use crate::failure::Failure;

/// The model's recommendation (generation_config.json; greedy when it has none), overridden by arguments.
pub(crate) fn sampling_options(
    arguments: &SamplingArguments,
    checkpoint: &Checkpoint,
) -> Result<SamplingOptions> {
    let mut options = match &checkpoint.generation_config {
        Some(config) => SamplingOptions::from_generation_config(config)
            .map_err(|error| Failure::model(error.into()))
            .context("generation_config.json")?,
        None => SamplingOptions::greedy(),
    };
    let set = |value: Option<f32>, target: &mut f32| {
        if let Some(value) = value {
            *target = value;
        }
    };
    set(arguments.temperature, &mut options.temperature);
    set(arguments.top_p, &mut options.top_p);
    set(arguments.min_p, &mut options.min_p);
    set(arguments.repetition_penalty, &mut options.repetition_penalty);
    set(arguments.presence_penalty, &mut options.presence_penalty);
    set(arguments.frequency_penalty, &mut options.frequency_penalty);
    arguments.repetition.apply(&mut options);
    if let Some(k) = arguments.top_k {
        options.top_k = k as usize;
    }
    if let Some(seed) = arguments.seed {
        options.seed = seed;
    }
    options.logit_bias.extend_from_slice(&arguments.logit_bias);
    options.validate().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(options)
}
