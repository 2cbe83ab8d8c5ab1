//! Goal: no cut and no flipped bit of a checkpoint passes unnoticed. Method: a pack of one layer cut at every
//! byte of its manifest and table and at a stride through its payload; bits flipped at random places of all
//! its files, `FLASHMOE_FLIPS` of them (100,000 in long runs, docs/experiments.tsv).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{Folder, Noise, TINY, Tiny, go};
use store::format::open;
use store::pack::{PackOptions, pack, verify};

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

#[test]
fn safetensors_cut_anywhere_do_not_open() {
    let (config, tensors) = SMALL.hugging_face(true);
    let folder = Folder::checkpoint(&config, &tensors, "pt");
    for name in ["config.json", "model.safetensors"] {
        let path = folder.path().join(name);
        let good = fs::read(&path).unwrap();
        let header = if name == "config.json" {
            good.len()
        } else {
            8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize
        };
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for at in (0..good.len()).rev() {
            if at <= header || at % 1009 == 0 || at + 1 == good.len() {
                file.set_len(at as u64).unwrap();
                refused(folder.path(), name, &format!("{name} cut at {at}"));
            }
        }
        fs::write(&path, &good).unwrap();
        open(folder.path()).unwrap();
    }
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
