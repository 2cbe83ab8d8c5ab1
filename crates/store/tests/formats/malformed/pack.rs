//! Malformed native packs: manifests whose checksum is right and whose content is not, manifests whose
//! checksum is wrong, files that are missing, cut, lengthened or replaced.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::refused;
use crate::common::Folder;
use serde_json::{Value, json};
use store::format::open;
use store::pack::{PackOptions, pack};
use twox_hash::XxHash3_64;

const MANIFEST: &str = "manifest.json";

/// A good pack inside a folder that goes away with the test.
pub(crate) struct Packed {
    folder: Folder,
}

impl Packed {
    pub(crate) fn new() -> Self {
        let folder = Folder::mlx();
        folder.write("tokenizer.json", "{}");
        let source = open(folder.path()).unwrap();
        let target = folder.path().join("pack");
        let go = &mut |_| ControlFlow::Continue(());
        pack(&source, &target, PackOptions::default(), go).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("pack")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Changes the manifest and signs it again.
    fn edit(&self, change: fn(&mut Value)) {
        let text = fs::read(self.file(MANIFEST)).unwrap();
        let mut manifest: Value = serde_json::from_slice(&text).unwrap();
        manifest.as_object_mut().unwrap().shift_remove("checksum");
        change(&mut manifest);
        let body = serde_json::to_string_pretty(&manifest).unwrap();
        self.sign(body.strip_suffix("\n}").unwrap());
    }

    fn sign(&self, body: &str) {
        let sum = XxHash3_64::oneshot(body.as_bytes());
        let text = format!("{body},\n  \"checksum\": \"{sum:016x}\"\n}}\n");
        fs::write(self.file(MANIFEST), text).unwrap();
    }
}

/// Name, words of the message, change to the manifest.
type ManifestCase = (&'static str, &'static [&'static str], fn(&mut Value));

#[test]
fn manifests() {
    let cases: &[ManifestCase] = &[
        ("another format", &["format", "zip"], |m| m["format"] = json!("zip")),
        ("format missing", &["format", "missing"], |m| drop(remove(m, "format"))),
        ("version 0", &["version", "0"], |m| m["version"] = json!(0)),
        ("a later version", &["version", "2", "version 1"], |m| m["version"] = json!(2)),
        ("version byte-swapped", &["version", "16777216"], |m| m["version"] = json!(1 << 24)),
        ("version as text", &["version"], |m| m["version"] = json!("1")),
        ("a member too many", &["manifest", "unknown field"], |m| m["extra"] = json!(1)),
        ("a member missing", &["manifest", "trunk_bytes"], |m| drop(remove(m, "trunk_bytes"))),
        ("configuration missing", &["manifest", "config"], |m| drop(remove(m, "config"))),
        ("configuration empty", &["model_type", "none"], |m| m["config"] = json!({})),
        ("top-k above the experts", &["num_experts_per_tok"], |m| {
            m["config"]["text_config"]["num_experts_per_tok"] = json!(9);
        }),
        ("a layer too few", &["layers", "3 for num_hidden_layers 4"], |m| {
            drop(m["layers"].as_array_mut().unwrap().pop());
        }),
        ("layers a number", &["manifest"], |m| m["layers"] = json!(4)),
        ("trunk shorter", &["trunk_bytes"], |m| m["trunk_bytes"] = json!(4096)),
        ("trunk of 2^64 - 1 bytes", &["trunk_bytes"], |m| m["trunk_bytes"] = json!(u64::MAX)),
        ("negative trunk", &["manifest"], |m| m["trunk_bytes"] = json!(-1)),
        ("a tensor of a strange name", &["tensors.x", "not the name"], |m| {
            m["tensors"][0]["name"] = json!("x")
        }),
        ("a tensor twice", &["tensors.layers.1.input_layernorm"], |m| {
            let list = m["tensors"].as_array_mut().unwrap();
            let second = list.iter_mut().find(|t| t["name"] == "layers.2.input_layernorm");
            second.unwrap()["name"] = json!("layers.1.input_layernorm");
        }),
        ("a tensor removed", &["trunk_bytes"], |m| {
            drop(m["tensors"].as_array_mut().unwrap().pop())
        }),
        ("no tensors", &["trunk_bytes"], |m| m["tensors"] = json!([])),
        ("a tensor of nine dimensions", &["tensors.", "limit of 8"], |m| {
            m["tensors"][0]["shape"] = json!([1, 1, 1, 1, 1, 1, 1, 1, 64]);
        }),
        ("a tensor that overflows", &["tensors.", "cannot be"], |m| {
            m["tensors"][0]["shape"] = json!([1_u64 << 40, 1_u64 << 40]);
        }),
        ("a tensor of another size", &["trunk_bytes"], |m| {
            m["tensors"][0]["shape"] = json!([960, 128])
        }),
        ("a tensor without shape", &["tensors.", "cannot be"], |m| {
            m["tensors"][0]["shape"] = json!([])
        }),
        ("rows that are no groups", &["tensors.", "cannot be"], |m| {
            m["tensors"][0]["shape"] = json!([96, 100])
        }),
        ("encoding unknown", &["tensors.", "encoding", "q9_k"], |m| {
            m["tensors"][0]["encoding"] = json!("q9_k")
        }),
        ("blocks in version 1", &["version", "1 for a pack of version 2"], |m| {
            m["tensors"][0]["encoding"] = json!("q4_k")
        }),
        ("encoding of seven bits", &["encoding", "affine:7:64:bf16"], |m| {
            m["tensors"][0]["encoding"] = json!("affine:7:64:bf16");
        }),
        ("encoding spelled differently", &["encoding", "affine:04:64:bf16"], |m| {
            m["tensors"][0]["encoding"] = json!("affine:04:64:bf16");
        }),
        ("encoding mxfp5", &["encoding", "mxfp5"], |m| {
            m["tensors"][0]["encoding"] = json!("mxfp5")
        }),
        ("a tensor elsewhere", &["tensors.", "at"], |m| {
            m["tensors"][1]["at"]["weight"] = json!([64, 1])
        }),
        ("scales without place", &["tensors.", "at"], |m| {
            drop(remove(&mut m["tensors"][0]["at"], "scales"))
        }),
        ("records too small", &["layers[0].record_bytes"], |m| {
            m["layers"][0]["record_bytes"] = json!(4096)
        }),
        ("records of nothing", &["layers[0].record_bytes"], |m| {
            m["layers"][0]["record_bytes"] = json!(0)
        }),
        ("records of 2^63 bytes", &["layers[0].record_bytes"], |m| {
            m["layers"][0]["record_bytes"] = json!(1_u64 << 63);
        }),
        ("another number of experts", &["layers[0].experts"], |m| {
            m["layers"][0]["experts"] = json!(3)
        }),
        ("2^40 experts", &["layers[0].experts"], |m| {
            m["layers"][0]["experts"] = json!(1_u64 << 40)
        }),
        ("experts of another shape", &["layers[0].gate.shape"], |m| {
            m["layers"][0]["gate"]["shape"] = json!([128, 64]);
        }),
        ("experts in an unknown encoding", &["layers[0].up.encoding"], |m| {
            m["layers"][0]["up"]["encoding"] = json!("fp8");
        }),
        ("experts elsewhere in the record", &["layers[0].down", "at"], |m| {
            m["layers"][0]["down"]["at"]["weight"][0] = json!(0);
        }),
        ("a layer dense that is not", &["checksums.bytes"], |m| m["layers"][0] = Value::Null),
        ("table of another size", &["checksums.bytes"], |m| m["checksums"]["bytes"] = json!(32)),
        ("checksum of the table too short", &["manifest", "hexadecimal"], |m| {
            m["checksums"]["xxh3"] = json!("12");
        }),
        ("a file copied that packs have not", &["copied.evil.sh"], |m| {
            m["copied"][0]["name"] = json!("evil.sh");
        }),
        ("a file copied from above", &["copied.../tokenizer.json"], |m| {
            m["copied"][0]["name"] = json!("../tokenizer.json");
        }),
        ("fingerprint of letters", &["manifest", "hexadecimal"], |m| {
            m["source"]["fingerprint"] = json!("zzzzzzzzzzzzzzzz");
        }),
    ];
    open(&Packed::new().path()).unwrap();
    for (name, words, change) in cases {
        let packed = Packed::new();
        packed.edit(*change);
        refused(name, &packed.path(), MANIFEST, words);
    }
}

fn remove(value: &mut Value, key: &str) -> Value {
    value.as_object_mut().unwrap().shift_remove(key).unwrap()
}

#[test]
fn manifests_without_a_valid_checksum() {
    let packed = Packed::new();
    let path = packed.file(MANIFEST);
    let good = fs::read_to_string(&path).unwrap();
    let body = good.rsplit_once(",\n  \"checksum\"").unwrap().0;
    let cases: &[(&str, String, &[&str])] = &[
        ("empty", String::new(), &["JSON"]),
        ("cut", good[..good.len() / 2].into(), &["JSON"]),
        ("no checksum", format!("{body}\n}}\n"), &["checksum", "does not end"]),
        ("a line more", format!("{good}\n"), &["checksum", "does not end"]),
        ("an edited number", good.replacen("4096", "4097", 1), &["checksum"]),
        ("upper-case spelling", good.replacen("\"bf16\"", "\"BF16\"", 1), &["checksum"]),
        ("a key twice", good.replacen("{\n", "{\n  \"version\": 1,\n", 1), &["twice"]),
        (
            "checksum of zeros",
            format!("{body},\n  \"checksum\": \"0000000000000000\"\n}}\n"),
            &["checksum"],
        ),
        (
            "checksum not hexadecimal",
            format!("{body},\n  \"checksum\": \"000000000000000g\"\n}}\n"),
            &["does not end"],
        ),
    ];
    for (name, text, words) in cases {
        fs::write(&path, text).unwrap();
        refused(name, &packed.path(), MANIFEST, words);
    }
    fs::write(&path, &good).unwrap();
    open(&packed.path()).unwrap();
}

/// Name, file to blame, words, damage to the folder.
type FileCase = (&'static str, &'static str, &'static [&'static str], fn(&Path));

fn cut(path: PathBuf, by: i64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length.checked_add_signed(by).unwrap()).unwrap();
}

#[test]
fn files() {
    let cases: &[FileCase] = &[
        ("trunk missing", MANIFEST, &["trunk.bin", "missing"], |p| {
            fs::remove_file(p.join("trunk.bin")).unwrap()
        }),
        ("trunk cut by a byte", "trunk.bin", &["needs a file"], |p| cut(p.join("trunk.bin"), -1)),
        ("trunk a byte longer", "trunk.bin", &["needs a file"], |p| cut(p.join("trunk.bin"), 1)),
        ("trunk a terabyte", "trunk.bin", &["needs a file"], |p| cut(p.join("trunk.bin"), 1 << 40)),
        ("a layer missing", MANIFEST, &["layer_002.bin", "missing"], |p| {
            fs::remove_file(p.join("experts/layer_002.bin")).unwrap();
        }),
        ("a layer cut", "layer_002.bin", &["needs a file"], |p| {
            cut(p.join("experts/layer_002.bin"), -4096)
        }),
        ("a layer a folder", "layer_002.bin", &["folder"], |p| {
            fs::remove_file(p.join("experts/layer_002.bin")).unwrap();
            fs::create_dir(p.join("experts/layer_002.bin")).unwrap();
        }),
        #[cfg(unix)]
        ("a layer linked from outside", "layer_002.bin", &["symbolic link", "leads out"], |p| {
            fs::rename(p.join("experts/layer_002.bin"), p.join("../layer")).unwrap();
            std::os::unix::fs::symlink("../../layer", p.join("experts/layer_002.bin")).unwrap();
        }),
        ("no experts folder", MANIFEST, &["layer_000.bin", "missing"], |p| {
            fs::remove_dir_all(p.join("experts")).unwrap();
        }),
        ("table missing", MANIFEST, &["checksums.bin", "missing"], |p| {
            fs::remove_file(p.join("checksums.bin")).unwrap();
        }),
        ("table cut", "checksums.bin", &["needs a file"], |p| cut(p.join("checksums.bin"), -8)),
        ("table of zeros", "checksums.bin", &["table", "checksum"], |p| {
            let length = fs::metadata(p.join("checksums.bin")).unwrap().len();
            fs::write(p.join("checksums.bin"), vec![0; length as usize]).unwrap();
        }),
        ("a copied file missing", MANIFEST, &["tokenizer.json", "missing"], |p| {
            fs::remove_file(p.join("tokenizer.json")).unwrap();
        }),
        ("a copied file longer", "tokenizer.json", &["needs a file"], |p| {
            fs::write(p.join("tokenizer.json"), "{}   ").unwrap();
        }),
    ];
    for (name, file, words, damage) in cases {
        let packed = Packed::new();
        damage(&packed.path());
        refused(name, &packed.path(), file, words);
    }
}

/// A table with a right checksum in the manifest and a wrong beginning.
#[test]
fn tables_of_another_kind() {
    for (name, at) in
        [("magic", 0), ("version", 8), ("reserved", 12), ("parts", 16), ("records", 24)]
    {
        let packed = Packed::new();
        let path = packed.file("checksums.bin");
        let mut table = fs::read(&path).unwrap();
        table[at] ^= 0x40;
        fs::write(&path, &table).unwrap();
        let sum = XxHash3_64::oneshot(&table);
        let text = fs::read(packed.file(MANIFEST)).unwrap();
        let mut manifest: Value = serde_json::from_slice(&text).unwrap();
        manifest.as_object_mut().unwrap().shift_remove("checksum");
        manifest["checksums"]["xxh3"] = json!(format!("{sum:016x}"));
        let body = serde_json::to_string_pretty(&manifest).unwrap();
        packed.sign(body.strip_suffix("\n}").unwrap());
        refused(name, &packed.path(), "checksums.bin", &["header", "another"]);
    }
}
