//! A committed model with some of its layers: an input's time is nearly all that of its JSON, which grows with them.

use std::fs;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::target::{folder, golden, golden_file};

pub(crate) const CASE: &str = "qwen35-calm-mlx-mixed";
/// A linear layer and one of attention.
pub(crate) const BOTH: &[usize] = &[0, 3];
/// A layer of attention.
pub(crate) const ONE: &[usize] = &[3];

/// The name that a tensor has in the slim model, if it is there.
fn renamed(name: &str, kept: &[usize]) -> Option<String> {
    let Some((before, after)) = name.split_once(".layers.") else { return Some(name.to_owned()) };
    let (layer, rest) = after.split_once('.')?;
    let layer = layer.parse::<usize>().ok()?;
    let place = kept.iter().position(|&kept| kept == layer)?;
    Some(format!("{before}.layers.{place}.{rest}"))
}

/// The folder of a model with the layers `kept`.
pub(crate) fn slim(kept: &[usize]) -> TempDir {
    let made = folder();
    let write = |name: &str, bytes: &[u8]| {
        fs::write(made.path().join(name), bytes).expect("a small file can be written");
    };
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(golden(CASE).join(name), made.path().join(name)).expect("a file can be copied");
    }
    write("config.json", &config(kept));
    write("model.safetensors", &weights(kept));
    made
}

fn config(kept: &[usize]) -> Vec<u8> {
    let mut config: Value =
        serde_json::from_slice(&golden_file(CASE, "config.json")).expect("a configuration is JSON");
    let text = &mut config["text_config"];
    text["num_hidden_layers"] = json!(kept.len());
    text["full_attention_interval"] = json!(kept.len());
    let kinds = text["layer_types"].take();
    text["layer_types"] = kept.iter().map(|&layer| kinds[layer].clone()).collect();
    for key in ["quantization", "quantization_config"] {
        let Some(Value::Object(layers)) = config.get_mut(key) else { continue };
        let all = std::mem::take(layers).into_iter();
        layers.extend(all.filter_map(|(name, value)| Some((renamed(&name, kept)?, value))));
    }
    config.to_string().into_bytes()
}

fn weights(kept: &[usize]) -> Vec<u8> {
    let whole = golden_file(CASE, "model.safetensors");
    let length = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let (header, data) = whole[8..].split_at(length);
    let header: Map<String, Value> = serde_json::from_slice(header).expect("a header is JSON");
    let (mut slim, mut bytes) = (Map::new(), Vec::new());
    for (name, mut entry) in header {
        let Some(name) = renamed(&name, kept) else { continue };
        if let Some(Value::Array(offsets)) = entry.get_mut("data_offsets") {
            let at = |index: usize| offsets[index].as_u64().unwrap_or(0) as usize;
            let (from, begin) = (at(0)..at(1), bytes.len());
            bytes.extend_from_slice(&data[from]);
            *offsets = vec![begin.into(), bytes.len().into()];
        }
        slim.insert(name, entry);
    }
    let header = Value::Object(slim).to_string().into_bytes();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend([header, bytes].concat());
    file
}
