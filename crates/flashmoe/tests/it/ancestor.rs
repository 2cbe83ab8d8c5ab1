//! The ancestor's folders from end to end: a model in their layout (4-bit and 2-bit records) gives the logits
//! of the same weights in MLX layout, to the bit, and survives being packed.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};
use support::flashmoe;

fn run(arguments: &[&str]) {
    let output = flashmoe(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The bytes of the one file that `score` writes: logits and a greedy continuation.
fn score(folder: &Path, model: &Path) -> Vec<u8> {
    let (ids, out) = (folder.join("ids.json"), folder.join("logits.safetensors"));
    fs::write(&ids, "[1, 50, 501, 7, 7, 300, 12, 400, 3, 511, 90, 91, 92, 17]").unwrap();
    let [model, ids, file] = [model, &ids, &out].map(|path| path.to_str().unwrap());
    run(&["score", model, "--ids", ids, "--logits", file, "--greedy", "12"]);
    fs::read(out).unwrap()
}

/// The safetensors files of a folder.
fn shards(model: &Path) -> Vec<Vec<u8>> {
    let files = fs::read_dir(model).unwrap().map(|entry| entry.unwrap().path());
    let is_shard = |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors");
    files.filter(is_shard).map(|path| fs::read(path).unwrap()).collect()
}

/// Writes the model of an MLX folder as the ancestor's tools did: the trunk sorted by name at multiples of 64
/// in one file, and the records of each layer back to back without header or padding (docs/formats.md).
fn convert(mlx: &Path, target: &Path, packed: &str) {
    let files = shards(mlx);
    let parsed: Vec<_> = files.iter().map(|file| SafeTensors::deserialize(file).unwrap()).collect();
    let mut tensors: Vec<(String, TensorView<'_>)> =
        parsed.iter().flat_map(SafeTensors::tensors).collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let config: Value =
        serde_json::from_slice(&fs::read(mlx.join("config.json")).unwrap()).unwrap();
    let text = &config["text_config"];
    fs::create_dir_all(target.join(packed)).unwrap();

    let (mut weights, mut index) = (Vec::new(), Map::new());
    for (name, view) in tensors.iter().filter(|(name, _)| !name.contains(".switch_mlp.")) {
        weights.resize(weights.len().next_multiple_of(64), 0);
        let short = name.strip_prefix("language_model.").unwrap();
        let place = json!({"offset": weights.len(), "size": view.data().len(),
            "shape": view.shape(), "dtype": format!("{:?}", view.dtype())});
        index.insert(short.to_owned(), place);
        weights.extend(view.data());
    }
    fs::write(target.join("model_weights.bin"), weights).unwrap();
    let whole =
        json!({"model": "tiny", "num_tensors": index.len(), "tensors": index, "config": text});
    fs::write(target.join("model_weights.json"), whole.to_string()).unwrap();

    let experts = text["num_experts"].as_u64().unwrap() as usize;
    for layer in 0..text["num_hidden_layers"].as_u64().unwrap() {
        let mut records = Vec::new();
        for expert in 0..experts {
            for projection in ["gate_proj", "up_proj", "down_proj"] {
                for part in ["weight", "scales", "biases"] {
                    let end = format!("layers.{layer}.mlp.switch_mlp.{projection}.{part}");
                    let (_, view) = tensors.iter().find(|(name, _)| name.ends_with(&end)).unwrap();
                    let each = view.data().len() / experts;
                    records.extend(&view.data()[expert * each..][..each]);
                }
            }
        }
        fs::write(target.join(packed).join(format!("layer_{layer:02}.bin")), records).unwrap();
    }
}

#[test]
fn logits_are_those_of_the_same_weights_in_mlx_layout() {
    for (bits, packed) in [("4bit", "packed_experts"), ("2bit", "packed_experts_2bit")] {
        let folder = tempfile::tempdir().unwrap();
        let [mlx, old, pack] = ["mlx", "old", "pack"].map(|name| folder.path().join(name));
        run(&["synth", "tiny", mlx.to_str().unwrap(), "--experts", bits, "--seed", "3"]);
        convert(&mlx, &old, packed);
        let expected = score(folder.path(), &mlx);
        assert!(score(folder.path(), &old) == expected, "{bits}: the ancestor's folder");
        run(&["pack", old.to_str().unwrap(), pack.to_str().unwrap()]);
        assert!(score(folder.path(), &pack) == expected, "{bits}: packed from it");
        run(&["inspect", old.to_str().unwrap()]);

        // The test can fail: other values at the beginning of each record are another model.
        let first = old.join(packed).join("layer_00.bin");
        let mut bytes = fs::read(&first).unwrap();
        let record = bytes.len() / 16;
        bytes.chunks_exact_mut(record).for_each(|record| record[..256].fill(0x77));
        fs::write(&first, bytes).unwrap();
        assert!(score(folder.path(), &old) != expected, "{bits}: other weights");
    }
}
