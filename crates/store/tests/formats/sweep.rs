//! Goal: no cut and no flipped bit of a checkpoint passes unnoticed. Method: a pack of one layer cut at every
//! byte of its manifest and table and at a stride through its payload; bits flipped at random places of all
//! its files, `FLASHMOE_FLIPS` of them (100,000 in long runs, docs/experiments.tsv).

use std::fs::{self, OpenOptions};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{Folder, Noise, TINY, Tensors, Tiny, go};
use crate::malformed::ancestor::ancestor;
use serde_json::json;
use store::format::{Extent, Tensor, open};
use store::io::platform::FileExt;
use store::pack::{PackOptions, pack, verify};
use store::synthetic::gguf::{F32, GgufFile, Q8_0};
use store::trunk::{LoadMode, Trunk, TrunkError};

const SMALL: Tiny = Tiny { layers: 1, hidden: 64, experts: 2, vocabulary: 16, ..TINY };
const DEFAULT_FLIPS: usize = 5000;

fn packed() -> (Folder, PathBuf) {
    let (config, tensors) = SMALL.mlx((4, 64, "BF16"));
    let folder = Folder::checkpoint(&config, &tensors, "mlx");
    folder.write("tokenizer.json", r#"{"model": {}}"#);
    let target = folder.path().join("pack");
    let source = open(folder.path()).unwrap();
    pack(&source, &target, PackOptions::default(), &mut go).unwrap();
    (folder, target)
}

const FILES: [&str; 5] =
    ["manifest.json", "checksums.bin", "trunk.bin", "experts/layer_000.bin", "tokenizer.json"];

/// Refused, with the file named in one line.
fn refused(path: &Path, file: &str, context: &str) {
    let message = open(path).err().unwrap_or_else(|| panic!("{context}: accepted")).to_string();
    assert!(message.lines().count() == 1 && message.contains(file), "{context}: {message}");
}

#[test]
fn a_pack_cut_anywhere_does_not_open() {
    let (_folder, target) = packed();
    for name in FILES {
        let path = target.join(name);
        let good = fs::read(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        // Of payload only the length counts: a prime stride, and every byte near the ends of pages.
        let payload = name.ends_with("trunk.bin") || name.contains("layer");
        let near_page = |at: usize| at % 4096 < 2 || at % 4096 > 4093;
        for at in (0..good.len()).rev() {
            if !payload || at % 1009 == 0 || near_page(at) {
                file.set_len(at as u64).unwrap();
                refused(&target, name.rsplit('/').next().unwrap(), &format!("{name} cut at {at}"));
            }
        }
        fs::write(&path, &good).unwrap();
        let checked = verify(&open(&target).unwrap(), &mut go).unwrap();
        assert!(checked.damaged.is_empty());
    }
}

/// Cuts every file of a checkpoint at every byte, its payload at a stride and next to the ends of pages.
fn cut_everywhere(folder: &Path, files: &[&str], payload_from: impl Fn(&str, &[u8]) -> usize) {
    for name in files {
        let path = folder.join(name);
        let good = fs::read(&path).unwrap();
        let payload = payload_from(name, &good);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for at in (0..good.len()).rev() {
            if at <= payload || at % 1009 == 0 || at + 64 > good.len() {
                file.set_len(at as u64).unwrap();
                refused(folder, name.rsplit('/').next().unwrap(), &format!("{name} cut at {at}"));
            }
        }
        fs::write(&path, &good).unwrap();
        open(folder).unwrap();
    }
}

/// Where the tensors of a safetensors file begin; other files are read whole.
fn after_header(name: &str, bytes: &[u8]) -> usize {
    match name.ends_with(".safetensors") {
        true => 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize,
        false => bytes.len(),
    }
}

#[test]
fn safetensors_cut_anywhere_do_not_open() {
    let (config, tensors) = SMALL.hugging_face(true);
    let folder = Folder::checkpoint(&config, &tensors, "pt");
    cut_everywhere(folder.path(), &["config.json", "model.safetensors"], after_header);
    let (config, tensors) = SMALL.mlx((4, 64, "BF16"));
    let folder = Folder::checkpoint(&config, &tensors, "mlx");
    cut_everywhere(folder.path(), &["config.json", "model.safetensors"], after_header);
}

#[test]
fn shards_and_their_index_cut_anywhere_do_not_open() {
    let (config, tensors) = SMALL.hugging_face(false);
    let mut shards = [Tensors::default(), Tensors::default()];
    for (index, entry) in tensors.0.into_iter().enumerate() {
        shards[index % 2].0.push(entry);
    }
    let folder = Folder::new();
    folder.write("config.json", config.to_string());
    let mut map = serde_json::Map::new();
    let names = [1, 2].map(|number| format!("model-0000{number}-of-00002.safetensors"));
    for (shard, name) in shards.iter().zip(&names) {
        folder.write(name, shard.file("pt"));
        map.extend(shard.0.iter().map(|entry| (entry.name.clone(), json!(name))));
    }
    folder.write("model.safetensors.index.json", json!({"weight_map": map}).to_string());
    let index = "model.safetensors.index.json";
    cut_everywhere(folder.path(), &[index, &names[0], &names[1]], after_header);
}

#[test]
fn the_ancestors_folders_cut_anywhere_do_not_open() {
    let folder = ancestor(4);
    let read_whole = |name: &str, bytes: &[u8]| match name.ends_with(".json") {
        true => bytes.len(),
        false => 0,
    };
    let files = ["model_weights.json", "model_weights.bin", "packed_experts/layer_02.bin"];
    cut_everywhere(folder.path(), &files, read_whole);
}

/// Keys, tensors and data; every byte of the first two.
#[test]
fn gguf_files_cut_anywhere_do_not_open() {
    for encoding in [F32, Q8_0] {
        let file = GgufFile::tiny(encoding);
        let (good, header) = (file.to_bytes(), file.header().len());
        let folder = Folder::new();
        folder.write("m.gguf", &good);
        let path = folder.path().join("m.gguf");
        open(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for at in (0..good.len()).rev() {
            if at <= header || at % 1009 == 0 || at + 64 > good.len() {
                file.set_len(at as u64).unwrap();
                refused(&path, "m.gguf", &format!("cut at {at} of {}", good.len()));
            }
        }
    }
}

/// A trunk with any damaged byte is not loaded: one bit in every part, at its ends and inside.
#[test]
fn a_damaged_trunk_is_not_loaded() {
    let (_folder, target) = packed();
    let checkpoint = open(&target).unwrap();
    let parts: Vec<Extent> = checkpoint.tensors.values().flat_map(Tensor::parts).collect();
    let path = target.join("trunk.bin");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let load = |mode, checked| {
        let mut goes_on = |_| ControlFlow::Continue(());
        Trunk::load(&checkpoint, &parts, mode, checked, &mut goes_on)
    };
    load(LoadMode::Read, true).unwrap();
    let mut noise = Noise(3);
    for (index, part) in parts.iter().enumerate() {
        for at in [0, noise.below(part.length as usize) as u64, part.length - 1] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, part.offset + at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << noise.below(8))], part.offset + at).unwrap();
            let context = format!("part {index}, byte {at}");
            for mode in [LoadMode::Read, LoadMode::Mmap] {
                let error = load(mode, true).err().unwrap_or_else(|| panic!("{context}: loaded"));
                assert!(matches!(error, TrunkError::Damaged(_)), "{context}: {error}");
                let (name, ..) = &checkpoint.pack.as_ref().unwrap().trunk[index];
                let line = error.to_string();
                assert!(line.contains("trunk.bin") && line.contains(name), "{context}: {line}");
                load(mode, false).unwrap();
            }
            file.write_all_at(&byte, part.offset + at).unwrap();
        }
    }
    load(LoadMode::Read, true).unwrap();
}

#[test]
fn every_flipped_bit_is_found_and_its_file_named() {
    let flips = std::env::var("FLASHMOE_FLIPS").ok().map_or(DEFAULT_FLIPS, |n| n.parse().unwrap());
    let (_folder, target) = packed();
    let mut noise = Noise(std::process::id().into());
    let seed = noise.0;
    let (mut at_open, mut at_verify) = (0, 0);
    for round in 0..flips {
        // Every file as often as every other: by size the manifest would hardly be met.
        let name = FILES[noise.below(FILES.len())];
        let file = OpenOptions::new().read(true).write(true).open(target.join(name)).unwrap();
        let length = file.metadata().unwrap().len();
        let at = noise.next() % length;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << noise.below(8))], at).unwrap();
        let context = format!("seed {seed}, round {round}: byte {at} of {name}");
        match open(&target) {
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.lines().count() == 1 && message.contains(".json")
                        || message.contains(".bin"),
                    "{context}: {message}"
                );
                at_open += 1;
            }
            Ok(checkpoint) => {
                let report = verify(&checkpoint, &mut go).unwrap();
                assert!(!report.damaged.is_empty(), "{context}: not found");
                let file = name.rsplit('/').next().unwrap();
                let all_named = report.damaged.iter().all(|what| what.contains(file));
                assert!(all_named, "{context}: {:?}", report.damaged);
                let header = ["manifest.json", "checksums.bin"].contains(&name);
                assert!(!header, "{context}: a damaged header was believed");
                at_verify += 1;
            }
        }
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(verify(&open(&target).unwrap(), &mut go).unwrap().damaged.is_empty());
    assert!(
        at_open > flips / 4 && at_verify > flips / 4,
        "{at_open} at open, {at_verify} at verify"
    );
}
