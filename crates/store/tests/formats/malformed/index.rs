//! Malformed `model.safetensors.index.json`, shard names and sets of shards.

use super::{FolderCase, refused, run_folders};
use crate::common::{Folder, TINY, Tensors};
use serde_json::{Map, json};

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

/// A good checkpoint of two shards with an index.
fn sharded() -> Folder {
    let (config, tensors) = TINY.hugging_face(true);
    let folder = Folder::new();
    folder.write("config.json", config.to_string());
    let mut map = Map::new();
    let mut shards = [Tensors::default(), Tensors::default()];
    for (at, entry) in tensors.0.into_iter().enumerate() {
        map.insert(entry.name.clone(), json!([FIRST, SECOND][at % 2]));
        shards[at % 2].0.push(entry);
    }
    folder.write(FIRST, shards[0].file("pt"));
    folder.write(SECOND, shards[1].file("pt"));
    folder.write(INDEX, json!({"metadata": {}, "weight_map": map}).to_string());
    folder
}

fn edit(folder: &Folder, change: impl FnOnce(&mut serde_json::Value)) {
    let text = std::fs::read(folder.path().join(INDEX)).unwrap();
    let mut index = serde_json::from_slice(&text).unwrap();
    change(&mut index);
    folder.write(INDEX, index.to_string());
}

#[test]
fn indexes() {
    let cases: &[FolderCase] = &[
        ("empty file", INDEX, &["JSON"], |f| drop(f.write(INDEX, ""))),
        ("not JSON", INDEX, &["JSON"], |f| drop(f.write(INDEX, "no"))),
        ("a list", INDEX, &["weight_map"], |f| drop(f.write(INDEX, "[]"))),
        ("no weight map", INDEX, &["weight_map", "missing"], |f| drop(f.write(INDEX, "{}"))),
        ("weight map a list", INDEX, &["weight_map"], |f| edit(f, |i| i["weight_map"] = json!([]))),
        ("weight map empty", INDEX, &["weight_map", "empty"], |f| {
            edit(f, |i| i["weight_map"] = json!({}));
        }),
        ("a file twice in the map", INDEX, &["JSON", "twice"], |f| {
            drop(f.write(INDEX, format!(r#"{{"weight_map":{{"a":"{FIRST}","a":"{FIRST}"}}}}"#)));
        }),
        ("a number as file", INDEX, &["weight_map.lm_head.weight"], |f| {
            edit(f, |i| i["weight_map"]["lm_head.weight"] = json!(3));
        }),
        ("a tensor that the shard lacks", INDEX, &["absent.weight", FIRST], |f| {
            edit(f, |i| i["weight_map"]["absent.weight"] = json!(FIRST));
        }),
        ("a tensor in the other shard", INDEX, &["lm_head.weight", "is not in"], |f| {
            edit(f, |i| {
                let at = &mut i["weight_map"]["lm_head.weight"];
                *at = json!(if *at == FIRST { SECOND } else { FIRST });
            });
        }),
        ("nesting", INDEX, &["JSON"], |f| drop(f.write(INDEX, "[".repeat(50_000)))),
        ("bytes that are no text", INDEX, &["JSON"], |f| {
            drop(f.write(INDEX, b"{\"weight_map\":{\"\xff\":\"a\"}}"));
        }),
        ("the second shard is missing", INDEX, &["weight_map", SECOND, "missing"], |f| {
            std::fs::remove_file(f.path().join(SECOND)).unwrap();
        }),
        ("both shards hold the same tensors", SECOND, &["is also in"], |f| {
            std::fs::copy(f.path().join(FIRST), f.path().join(SECOND)).unwrap();
        }),
        ("the second shard is cut", SECOND, &["needs a file"], |f| {
            let bytes = std::fs::read(f.path().join(SECOND)).unwrap();
            drop(f.write(SECOND, &bytes[..bytes.len() - 1]));
        }),
        ("no index and a shard missing", FIRST, &["file name", "announces"], |f| {
            std::fs::remove_file(f.path().join(SECOND)).unwrap();
            std::fs::remove_file(f.path().join(INDEX)).unwrap();
        }),
    ];
    run_folders(sharded, cases);
}

#[test]
fn names_that_lead_elsewhere() {
    for name in [
        "../model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "back\\slash",
        "",
        ".",
        "..",
        "nul\0byte",
        "line\nbreak",
        "escape\u{1b}[2J",
        "absent.safetensors",
    ] {
        let folder = sharded();
        edit(&folder, |index| index["weight_map"]["lm_head.weight"] = json!(name));
        let what = format!("shard name {name:?}");
        refused(&what, folder.path(), INDEX, &["weight_map.lm_head.weight"]);
    }
    let folder = sharded();
    edit(&folder, |index| index["weight_map"]["lm_head.weight"] = json!("x".repeat(300)));
    refused("shard name of 300 bytes", folder.path(), INDEX, &["weight_map.lm_head.weight"]);
    let folder = sharded();
    edit(&folder, |index| {
        index["weight_map"] =
            (0..5000).map(|n| (format!("t{n}"), json!(format!("f{n}")))).collect();
    });
    refused("five thousand shards", folder.path(), INDEX, &["weight_map.t0", "missing"]);
}

#[cfg(unix)]
#[test]
fn links() {
    use std::os::unix::fs::symlink;
    let folder = sharded();
    std::fs::remove_file(folder.path().join(SECOND)).unwrap();
    symlink("/etc/hostname", folder.path().join(SECOND)).unwrap();
    refused("a shard that is none", folder.path(), SECOND, &["symbolic link", "leads out"]);

    let folder = Folder::mlx();
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    symlink("/etc/hostname", folder.path().join("config.json")).unwrap();
    refused("config outside the folder", folder.path(), "config.json", &["symbolic link"]);

    let folder = Folder::mlx();
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    symlink("model.safetensors", folder.path().join("model.safetensors")).unwrap();
    refused("a link to itself", folder.path(), "model.safetensors", &["link"]);

    let folder = Folder::mlx();
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    symlink("gone", folder.path().join("model.safetensors")).unwrap();
    refused("a link to nothing", folder.path(), "model.safetensors", &["link"]);
}
