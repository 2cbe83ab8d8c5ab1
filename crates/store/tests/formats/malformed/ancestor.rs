//! The ancestor's folders: opened with every byte in its place, and refused when damaged.

use std::fs;

use super::{FolderCase, run_folders};
use crate::common::{Folder, TINY};
use serde_json::{Map, Value, json};
use store::format::{Projection, SourceKind, open};
use store::{ExpertId, LayerId};

const INDEX: &str = "model_weights.json";

/// `model_weights.bin` and its index, and one file of records per layer, from the same tensors as an MLX
/// folder: trunk tensors sorted by name and padded to 64 bytes, records gate, up, down, each W, S, B.
pub(crate) fn ancestor(bits: usize) -> Folder {
    let (_, tensors) = TINY.mlx((bits, 64, "BF16"));
    let folder = Folder::new();
    let mut weights = Vec::new();
    let mut index = Map::new();
    let mut trunk: Vec<_> = tensors.0.iter().filter(|e| !e.name.contains("switch_mlp")).collect();
    trunk.sort_by_key(|entry| entry.name.clone());
    for entry in trunk {
        weights.resize(weights.len().next_multiple_of(64), 0);
        let name = entry.name.strip_prefix("language_model.").unwrap();
        let place = json!({"offset": weights.len(), "size": entry.data.len(),
            "shape": entry.shape, "dtype": entry.dtype});
        index.insert(name.to_owned(), place);
        weights.extend(&entry.data);
    }
    folder.write("model_weights.bin", &weights);
    let whole = json!({"model": "tiny", "num_tensors": index.len(), "tensors": index,
        "config": TINY.text_config()});
    folder.write(INDEX, whole.to_string());
    let packed = if bits == 4 { "packed_experts" } else { "packed_experts_2bit" };
    for layer in 0..TINY.layers {
        let mut records = Vec::new();
        for expert in 0..TINY.experts {
            for (projection, part) in ["gate", "up", "down"]
                .into_iter()
                .flat_map(|p| ["weight", "scales", "biases"].map(|part| (p, part)))
            {
                let name = format!(
                    "language_model.model.layers.{layer}.mlp.switch_mlp.{projection}_proj.{part}"
                );
                let entry = tensors.0.iter().find(|entry| entry.name == name).unwrap();
                let each = entry.data.len() / TINY.experts;
                records.extend(&entry.data[expert * each..][..each]);
            }
        }
        folder.write(&format!("{packed}/layer_{layer:02}.bin"), records);
    }
    folder
}

#[test]
fn every_byte_is_where_the_mlx_folder_has_it() {
    for bits in [4, 2] {
        let folder = ancestor(bits);
        let found = open(folder.path()).unwrap();
        let (config, tensors) = TINY.mlx((bits, 64, "BF16"));
        let mlx = Folder::checkpoint(&config, &tensors, "mlx");
        let expected = open(mlx.path()).unwrap();
        assert_eq!((found.kind, found.norms_are_zero_centred), (SourceKind::Ancestor, false));
        assert!(found.tensors.keys().eq(expected.tensors.keys()));
        let read = |checkpoint: &store::format::Checkpoint, extent: store::format::Extent| {
            let file = fs::read(&checkpoint.files[extent.file.0 as usize].path).unwrap();
            file[extent.offset as usize..][..extent.length as usize].to_vec()
        };
        for (name, tensor) in &found.tensors {
            let other = &expected.tensors[name];
            assert_eq!((tensor.element, &tensor.shape), (other.element, &other.shape), "{name}");
            let same = tensor.parts().map(|e| read(&found, e));
            assert!(same.eq(other.parts().map(|e| read(&expected, e))), "{name}");
        }
        for layer in 0..TINY.layers {
            let of =
                |checkpoint: &store::format::Checkpoint| checkpoint.experts[layer].clone().unwrap();
            let (found_layer, expected_layer) = (of(&found), of(&expected));
            assert_eq!(found_layer.shapes, expected_layer.shapes);
            for (a, b) in found_layer.experts.iter().zip(&expected_layer.experts) {
                for p in [Projection::Gate, Projection::Up, Projection::Down].map(|p| p as usize) {
                    assert_eq!(read(&found, a.weight[p]), read(&expected, b.weight[p]));
                    let (x, y) = (a.scales_biases[p].unwrap(), b.scales_biases[p].unwrap());
                    assert_eq!(read(&found, x.0), read(&expected, y.0));
                    assert_eq!(read(&found, x.1), read(&expected, y.1));
                }
            }
        }
        // Records follow one another without padding: expert e at e times the record.
        let record = found.record_bytes(LayerId(0)).unwrap();
        let third = &found.experts[0].as_ref().unwrap().experts[ExpertId(3).index()];
        assert_eq!(third.weight[0].offset, 3 * record);
    }
}

fn edit(folder: &Folder, change: fn(&mut Value)) {
    let text = fs::read(folder.path().join(INDEX)).unwrap();
    let mut index = serde_json::from_slice(&text).unwrap();
    change(&mut index);
    folder.write(INDEX, index.to_string());
}

fn cut(folder: &Folder, name: &str, by: u64) {
    let file = fs::OpenOptions::new().write(true).open(folder.path().join(name)).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - by).unwrap();
}

const NORM: &str = "model.norm.weight";

#[test]
fn damaged_folders() {
    let cases: &[FolderCase] = &[
        ("index empty", INDEX, &["JSON"], |f| drop(f.write(INDEX, ""))),
        ("index a list", INDEX, &["config"], |f| drop(f.write(INDEX, "[]"))),
        ("no configuration", INDEX, &["config"], |f| edit(f, |i| i["config"] = Value::Null)),
        ("no tensors", INDEX, &["tensors", "missing"], |f| edit(f, |i| i["tensors"] = Value::Null)),
        ("tensors a list", INDEX, &["tensors"], |f| edit(f, |i| i["tensors"] = json!([]))),
        ("a tensor twice", INDEX, &["JSON", "twice"], |f| {
            drop(f.write(INDEX, r#"{"config":{},"tensors":{"a":{},"a":{}}}"#));
        }),
        ("half floats", INDEX, &["model.norm.weight.dtype", "U32, F32 or BF16"], |f| {
            edit(f, |i| i["tensors"][NORM]["dtype"] = json!("F16"));
        }),
        ("no dtype", INDEX, &["model.norm.weight.dtype"], |f| {
            edit(f, |i| i["tensors"][NORM]["dtype"] = Value::Null);
        }),
        ("no shape", INDEX, &["model.norm.weight.shape"], |f| {
            edit(f, |i| i["tensors"][NORM]["shape"] = Value::Null);
        }),
        ("negative shape", INDEX, &["model.norm.weight.shape"], |f| {
            edit(f, |i| i["tensors"][NORM]["shape"] = json!([-128]));
        }),
        ("nine dimensions", INDEX, &["model.norm.weight.shape"], |f| {
            edit(f, |i| i["tensors"][NORM]["shape"] = json!([1, 1, 1, 1, 1, 1, 1, 1, 128]));
        }),
        ("shape that overflows", INDEX, &["model.norm.weight.size"], |f| {
            edit(f, |i| i["tensors"][NORM]["shape"] = json!([1_u64 << 40, 1_u64 << 40]));
        }),
        ("size of another shape", INDEX, &["model.norm.weight.size"], |f| {
            edit(f, |i| i["tensors"][NORM]["size"] = json!(255));
        }),
        ("no offset", INDEX, &["model.norm.weight", "offset"], |f| {
            edit(f, |i| i["tensors"][NORM]["offset"] = Value::Null);
        }),
        ("offset past the end", "model_weights.bin", &["model.norm.weight", "needs a file"], |f| {
            edit(f, |i| i["tensors"][NORM]["offset"] = json!(1_u64 << 40));
        }),
        ("offset near 2^64", "model_weights.bin", &["model.norm.weight"], |f| {
            edit(f, |i| i["tensors"][NORM]["offset"] = json!(u64::MAX));
        }),
        ("an offset of one", INDEX, &["model.norm.weight.offset", "1, but", "lies at"], |f| {
            edit(f, |i| i["tensors"][NORM]["offset"] = json!(1));
        }),
        ("a tensor in the place of another", INDEX, &[".offset", "0, but"], |f| {
            edit(f, |i| i["tensors"][NORM]["offset"] = json!(0));
        }),
        ("a tensor 64 bytes later", INDEX, &["model.norm.weight.offset", "lies at"], |f| {
            let weights = fs::read(f.path().join("model_weights.bin")).unwrap();
            f.write("model_weights.bin", [weights, vec![0; 64]].concat());
            edit(f, |i| {
                let offset = i["tensors"][NORM]["offset"].as_u64().unwrap();
                i["tensors"][NORM]["offset"] = json!(offset + 64);
            });
        }),
        ("two tensors of one size exchanged", INDEX, &[".offset", "lies at"], |f| {
            edit(f, |i| {
                let names = [0, 1].map(|n| format!("model.layers.{n}.input_layernorm.weight"));
                let [a, b] = names.each_ref().map(|name| i["tensors"][name]["offset"].clone());
                i["tensors"][&names[0]]["offset"] = b;
                i["tensors"][&names[1]]["offset"] = a;
            });
        }),
        ("a tensor under another name", INDEX, &[".offset", "lies at"], |f| {
            edit(f, |i| {
                let norm = i["tensors"].as_object_mut().unwrap().shift_remove(NORM).unwrap();
                i["tensors"]["a.first.name"] = norm;
            });
        }),
        ("bytes behind the last tensor", "model_weights.bin", &["end of the last tensor"], |f| {
            let weights = fs::read(f.path().join("model_weights.bin")).unwrap();
            f.write("model_weights.bin", [weights, vec![0; 65]].concat());
        }),
        ("one tensor announced", INDEX, &["num_tensors", "1, but"], |f| {
            edit(f, |i| i["num_tensors"] = json!(1));
        }),
        ("tensors announced as text", INDEX, &["num_tensors", "x"], |f| {
            edit(f, |i| i["num_tensors"] = json!("x"));
        }),
        ("no number of tensors", INDEX, &["num_tensors", "null"], |f| {
            edit(f, |i| drop(i.as_object_mut().unwrap().shift_remove("num_tensors")));
        }),
        ("top-k above the experts", INDEX, &["num_experts_per_tok"], |f| {
            edit(f, |i| i["config"]["num_experts_per_tok"] = json!(5));
        }),
        ("experts of another width", "layer_00.bin", &["groups of 64"], |f| {
            edit(f, |i| i["config"]["moe_intermediate_size"] = json!(65));
        }),
        ("an expert too many", "layer_00.bin", &["expert records", "needs a file"], |f| {
            edit(f, |i| i["config"]["num_experts"] = json!(5));
        }),
        ("weights missing", "model_weights.bin", &["cannot open"], |f| {
            fs::remove_file(f.path().join("model_weights.bin")).unwrap();
        }),
        ("weights cut", "model_weights.bin", &["needs a file"], |f| {
            cut(f, "model_weights.bin", 64)
        }),
        ("no experts", "layer_00.bin", &["cannot open"], |f| {
            fs::remove_dir_all(f.path().join("packed_experts")).unwrap();
        }),
        ("a layer missing", "layer_03.bin", &["cannot open"], |f| {
            fs::remove_file(f.path().join("packed_experts/layer_03.bin")).unwrap();
        }),
        ("a layer cut by a byte", "layer_02.bin", &["expert records", "needs a file"], |f| {
            cut(f, "packed_experts/layer_02.bin", 1);
        }),
        ("2-bit records under the name of 4-bit ones", "layer_00.bin", &["expert records"], |f| {
            let small = ancestor(2);
            fs::remove_dir_all(f.path().join("packed_experts")).unwrap();
            let from = small.path().join("packed_experts_2bit");
            fs::rename(from, f.path().join("packed_experts")).unwrap();
        }),
    ];
    run_folders(|| ancestor(4), cases);
}
