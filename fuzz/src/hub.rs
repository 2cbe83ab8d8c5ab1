//! What a model hub says of a repository, and what lies in the hub's cache: names that stay in their folders and can be
//! shown, choices that are files of the list.

use std::fs;
use std::path::{Component, Path};

use hub::{Cache, Found, ModelName, Repository, Selection, quants};
use serde_json::json;

use crate::mutate;
use crate::target::Target;

const WORDS: &[&str] = &[
    "sha",
    "siblings",
    "rfilename",
    "size",
    "blobId",
    "lfs",
    "sha256",
    "weight_map",
    "../x",
    "/etc/passwd",
    "a/../b",
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "M-Q4_K_M.gguf",
    "M-Q4_K_M-00001-of-00002.gguf",
    "-00001-of-99999.gguf",
    "UD-Q2_K_XL.gguf",
    "config.json",
    "\u{1b}[31m.gguf",
    "-\u{202e}fugg.gguf",
    "mmproj",
    "-of-",
    "00000",
];

/// One line that a terminal only shows.
fn showable(text: &str) -> bool {
    !text.chars().any(char::is_control) && text.len() < 4096
}

/// The answer to a question about a repository.
pub(crate) fn listing() -> Target {
    let file = |name: &str| json!({"rfilename": name, "size": 7, "blobId": "a".repeat(40)});
    let large = |name: &str| {
        let lfs = json!({"sha256": "b".repeat(64), "size": 1_u64 << 33});
        json!({"rfilename": name, "size": 130, "blobId": "a".repeat(40), "lfs": lfs})
    };
    let listing = |files: Vec<serde_json::Value>| {
        json!({"sha": "0".repeat(40), "siblings": files}).to_string().into_bytes()
    };
    let names = ["a/b", "a/b:q4_k_m", "a/b:Q8_0"].map(|name| name.parse::<ModelName>());
    Target {
        seeds: vec![
            listing(vec![file("config.json"), large("model-00001-of-00002.safetensors")]),
            listing(vec![
                large("Q8_0/M-Q8_0-00001-of-00002.gguf"),
                large("M-Q4_K_M.gguf"),
                file("x.json"),
            ]),
        ],
        mutate: |random, input| mutate::json(random, input, WORDS),
        run: Box::new(move |input| {
            let repository = match Repository::parse("http://hub/api", input) {
                Ok(repository) => repository,
                Err(error) => return assert!(showable(&error.to_string()), "{error}"),
            };
            for file in &repository.files {
                let plain = |part| matches!(part, Component::Normal(_));
                assert!(Path::new(&file.path).components().all(plain), "{:?}", file.path);
                assert!(file.blob.digits().bytes().all(|digit| digit.is_ascii_hexdigit()));
            }
            for quant in quants(&repository).keys() {
                let asked = format!("a/b:{quant}").parse::<ModelName>();
                assert!(asked.is_ok(), "a quantisation that cannot be asked for: {quant:?}");
            }
            for name in names.iter().flatten() {
                match Selection::choose(name, &repository) {
                    Ok(selection) => {
                        assert!(!selection.files.is_empty());
                        assert!(selection.files.iter().all(|file| repository.files.contains(file)));
                        let _ = selection.bytes();
                    }
                    Err(error) => assert!(showable(&error.to_string()), "{error}"),
                }
            }
        }),
    }
}

/// A snapshot whose index, names and reference are the input's lines.
pub(crate) fn cache() -> Target {
    let shared_memory = Path::new("/dev/shm");
    let made = if shared_memory.is_dir() {
        tempfile::TempDir::new_in(shared_memory)
    } else {
        tempfile::TempDir::new()
    };
    let folder = made.expect("a folder for inputs can be made");
    let repository = folder.path().join("models--a--b");
    let names = ["a/b", "a/b:Q4_K_M"].map(|name| name.parse::<ModelName>());
    let commit = "0".repeat(40);
    let seed = |lines: &[&str]| lines.join("\n").into_bytes();
    Target {
        seeds: vec![
            seed(&[
                &commit,
                "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}",
                "config.json",
                "model-00001-of-00002.safetensors",
            ]),
            seed(&[
                &commit,
                "{}",
                "M-Q4_K_M-00001-of-00002.gguf",
                "M-Q4_K_M-00002-of-00002.gguf",
                "M-Q8_0.gguf",
            ]),
        ],
        mutate: |random, input| mutate::bytes(random, input, WORDS),
        run: Box::new(move |input| {
            let text = String::from_utf8_lossy(input);
            let mut lines = text.split('\n');
            let snapshot = repository.join("snapshots").join("0".repeat(40));
            fs::create_dir_all(&snapshot).expect("a folder can be made");
            fs::create_dir_all(repository.join("refs")).expect("a folder can be made");
            let reference = lines.next().unwrap_or_default();
            fs::write(repository.join("refs/main"), reference).expect("a file can be written");
            let index = snapshot.join("model.safetensors.index.json");
            fs::write(index, lines.next().unwrap_or_default()).expect("a file can be written");
            for name in lines.take(8) {
                let path = Path::new(name);
                if path.components().all(|part| matches!(part, Component::Normal(_))) {
                    // Some names are none, or too long.
                    let _ = fs::write(snapshot.join(path), "x");
                }
            }
            let cache = Cache::new(folder.path());
            for model in cache.list().expect("the folder can be read") {
                assert!(model.path.starts_with(&repository), "{:?}", model.path);
                let name = model.name.to_string();
                assert!(
                    name.parse::<ModelName>().is_ok_and(|again| again == model.name),
                    "{name:?}"
                );
            }
            for name in names.iter().flatten() {
                match cache.find(name) {
                    Found::Whole(path) => assert!(path.starts_with(&repository), "{path:?}"),
                    Found::Several(quants) => assert!(quants.iter().all(|quant| showable(quant))),
                    Found::Part(_) | Found::Nothing => {}
                }
                let _ = cache.files(name);
            }
            fs::remove_dir_all(&repository).expect("the folder can be removed");
        }),
    }
}
