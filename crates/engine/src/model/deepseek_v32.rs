//! DeepSeek-V3.2 and GLM-5: the parts of DeepSeek-V3, and an indexer that chooses the latent rows which a token sees;
//! in GLM-5 some layers see what an earlier one chose (reference: transformers `modeling_deepseek_v32.py`,
//! `modeling_glm_moe_dsa.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{LayerSpec, Mixer, ModelConfig, Sees};
use super::deepseek_v3;
use super::index::IndexConfig;

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let mut config = deepseek_v3::config(from)?;
    let mut kinds = from.get(&keys::LAYER_TYPES)?.unwrap_or_default().into_iter();
    if let Some(kind) = kinds.find(|&kind| kind != "indexed_attention") {
        let found = format!("{kind} is not known in this family");
        return Err(from.invalid(&keys::LAYER_TYPES, found));
    }
    config.index = Some(IndexConfig::of_rows(from)?);
    choose(from, &mut config.layers)?;
    Ok(config)
}

/// Gives layers of latent attention their choice of rows: their own, or that of the layer before.
pub(super) fn choose(from: &Configuration, layers: &mut [LayerSpec]) -> Result<(), FormatError> {
    if from.get(&keys::Q_LORA_RANK)?.is_none() {
        let found = "missing, but queries of the indexer are made of the row that it describes";
        return Err(from.invalid(&keys::Q_LORA_RANK, found));
    }
    for (owner, layer) in owners(from, layers)?.into_iter().zip(layers) {
        if layer.mixer == Mixer::Latent {
            layer.sees = if owner { Sees::Chosen } else { Sees::AsBefore };
        }
    }
    Ok(())
}

/// Which layers have an indexer: as listed, or else by the interval, whose first layers all do.
fn owners(from: &Configuration, specs: &[LayerSpec]) -> Result<Vec<bool>, FormatError> {
    let layers = specs.len();
    let attends = |layer: usize| specs[layer].mixer == Mixer::Latent;
    let lost = |&(layer, owner): &(usize, &bool)| {
        !owner && layer < layers && attends(layer) && (layer == 0 || !attends(layer - 1))
    };
    let drafts = from.get(&keys::NUM_NEXTN_PREDICT_LAYERS)?.unwrap_or(0);
    let checked = |owners: Vec<bool>| match owners.len() {
        // Layers that predict further tokens may be listed as well.
        count if count < layers || count > layers + drafts => {
            Err(format!("has {count} entries for {layers} layers"))
        }
        _ => match owners.iter().enumerate().find(lost) {
            None => Ok(owners),
            Some((0, _)) => {
                Err("begins with a layer that sees what the one before it chose".to_owned())
            }
            Some((layer, _)) => {
                Err(format!("has layer {layer} see what the one before chose, which does not"))
            }
        },
    };
    if let Some(kinds) = from.get(&keys::INDEXER_TYPES)? {
        let owners = kinds.into_iter().map(|kind| kind == "full").collect();
        return checked(owners).map_err(|found| from.invalid(&keys::INDEXER_TYPES, found));
    }
    if let Some(owners) = from.get(&keys::INDEX_TOPK_PATTERN)? {
        return checked(owners).map_err(|found| from.invalid(&keys::INDEX_TOPK_PATTERN, found));
    }
    let every = from.required(&keys::INDEX_TOPK_FREQ)?;
    let first = from.required(&keys::INDEX_SKIP_TOPK_OFFSET)?;
    let owner = |layer: usize| (layer + 1).saturating_sub(first).is_multiple_of(every);
    checked((0..layers).map(owner).collect())
        .map_err(|found| from.invalid(&keys::INDEX_SKIP_TOPK_OFFSET, found))
}
