//! Models of the families that have no committed one: their files but for the data, written by a list of tensors
//! (config_families.txt). What a configuration means is seen from headers.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// The tensors of a line: one, or one for each of its layers.
fn names(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once("layers.") else { return vec![name.to_owned()] };
    let (layers, after) = rest.split_once('.').unwrap();
    layers.split(',').map(|layer| format!("{before}layers.{layer}.{after}")).collect()
}

/// Writes a model's file of tensors, which has no blocks of data.
fn write(folder: &Path, tensors: &[(String, String, Vec<u64>)]) {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, kind, shape) in tensors {
        let bytes = match kind.as_str() {
            "BF16" => 2,
            "F32" => 4,
            other => panic!("{other}"),
        };
        let begin = end;
        end += shape.iter().product::<u64>() * bytes;
        header.insert(
            name.clone(),
            json!({ "dtype": kind, "shape": shape, "data_offsets": [begin, end] }),
        );
    }
    let mut header = Value::Object(header).to_string();
    // The data begins at a multiple of eight.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
}

/// A folder below `root` for each family of the list.
pub(crate) fn write_all(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for family in include_str!("config_families.txt").split("\nfamily ").skip(1) {
        let (name, lines) = family.split_once('\n').unwrap();
        let folder = root.join(name);
        fs::create_dir(&folder).unwrap();
        let mut tensors = Vec::new();
        for line in lines.lines() {
            if let Some(config) = line.strip_prefix("config ") {
                fs::write(folder.join("config.json"), config).unwrap();
                continue;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let [kind, name, shape] = words[..] else { panic!("{line}") };
            let shape: Vec<u64> = shape.split('x').map(|it| it.parse().unwrap()).collect();
            let named = names(name).into_iter();
            tensors.extend(named.map(|name| (name, kind.to_owned(), shape.clone())));
        }
        write(&folder, &tensors);
        folders.push(folder);
    }
    folders
}
