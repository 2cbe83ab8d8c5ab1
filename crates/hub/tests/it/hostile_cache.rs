//! Goal: whatever lies in the hub's cache, names that are shown are plain, nothing outside it is removed or written,
//! and looking at it costs no more than it has files. Method: caches as other programs and strangers may leave them.
#![cfg(unix)]

use crate::support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use hub::{Cache, Found, Hub, HubError, ModelName, Repository, Selection, Settings};
use serde_json::json;
use support::{COMMIT, NAME, TestHub};

const ESCAPES: [&str; 4] =
    ["M-\u{1b}[31mQ4.gguf", "M-Q4\u{202e}fugg.gguf", "M-Q4\nQ8.gguf", "M-Q4 K M.gguf"];

fn snapshot(root: &Path) -> PathBuf {
    let folder = root.join("models--acme--tiny/snapshots").join(COMMIT);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

#[test]
fn names_of_files_do_not_reach_a_terminal_as_they_are() {
    let root = tempfile::tempdir().unwrap();
    let folder = snapshot(root.path());
    for file in ESCAPES.iter().chain(&["M-Q8_0.gguf"]) {
        fs::write(folder.join(file), "x").unwrap();
    }
    let cache = Cache::new(root.path());
    let names: Vec<String> =
        cache.list().unwrap().iter().map(|model| model.name.to_string()).collect();
    assert_eq!(names, ["acme/tiny:Q8_0"]);
    assert_eq!(cache.find(&name("acme/tiny")), Found::Whole(folder.join("M-Q8_0.gguf")));
}

#[test]
fn a_hub_with_many_quantisations_makes_no_long_message() {
    let file = |number: u32| json!({"rfilename": format!("M-Q{number}.gguf"), "size": 1, "blobId": "a".repeat(40)});
    let files: Vec<_> = (0..20_000).map(file).collect();
    let listing = json!({"sha": COMMIT, "siblings": files}).to_string();
    let repository = Repository::parse("http://hub/api", listing.as_bytes()).unwrap();
    let error = Selection::choose(&name("acme/tiny:F16"), &repository).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, HubError::Content { .. }) && told.len() < 5000, "{} bytes", told.len());
}

#[test]
fn removing_a_quantisation_follows_no_snapshot_that_is_a_link() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let victim = elsewhere.path().join("Mine-Q4_K_M.gguf");
    fs::write(&victim, "mine").unwrap();
    let folder = snapshot(root.path());
    for file in ["M-Q4_K_M.gguf", "M-Q8_0.gguf"] {
        fs::write(folder.join(file), "x").unwrap();
    }
    symlink(elsewhere.path(), folder.parent().unwrap().join("0123")).unwrap();
    let cache = Cache::new(root.path());
    cache.remove(&name("acme/tiny:Q4_K_M")).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
    assert!(!folder.join("M-Q4_K_M.gguf").exists() && folder.join("M-Q8_0.gguf").exists());
}

fn pull(test: &TestHub, cache: &Path) -> Result<(), HubError> {
    let stop = AtomicBool::new(false);
    let settings = Settings {
        endpoint: test.endpoint.clone(),
        cache: cache.to_owned(),
        token: None,
        offline: false,
        certificates: None,
        limits: hub::Limits::default(),
    };
    let hub = Hub::new(settings)?;
    let repository = hub.describe(&name(NAME), &stop)?;
    let selection = Selection::choose(&name(NAME), &repository)?;
    hub.pull(&name(NAME), &selection, &stop, &mut |_| {}).map(drop)
}

fn tiny() -> TestHub {
    let files = [("config.json", "{}"), ("model.safetensors", "weights")];
    TestHub::start(files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).into())
}

#[test]
fn a_link_in_the_place_of_the_reference_is_replaced_and_not_written_through() {
    let test = tiny();
    let root = tempfile::tempdir().unwrap();
    let victim = root.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    let refs = root.path().join("models--acme--tiny/refs");
    fs::create_dir_all(&refs).unwrap();
    symlink(&victim, refs.join("main")).unwrap();
    pull(&test, root.path()).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
    assert_eq!(fs::read_to_string(refs.join("main")).unwrap(), COMMIT);
    assert_eq!(fs::read_dir(&refs).unwrap().count(), 1, "nothing is left aside");
}

#[test]
fn a_pipe_in_the_place_of_a_blob_is_not_waited_at() {
    let test = tiny();
    let root = tempfile::tempdir().unwrap();
    let blobs = root.path().join("models--acme--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let stop = AtomicBool::new(false);
    let settings = Settings {
        endpoint: test.endpoint.clone(),
        cache: root.path().to_owned(),
        token: None,
        offline: false,
        certificates: None,
        limits: hub::Limits::default(),
    };
    let repository = Hub::new(settings).unwrap().describe(&name(NAME), &stop).unwrap();
    for file in &repository.files {
        let path = blobs.join(format!("{}.incomplete", file.blob.digits()));
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
    }
    let told = pull(&test, root.path()).unwrap_err().to_string();
    assert!(told.contains("it is no file"), "{told}");
}

#[test]
fn a_pipe_in_the_place_of_the_reference_or_an_index_is_not_waited_at() {
    let root = tempfile::tempdir().unwrap();
    let folder = snapshot(root.path());
    fs::write(folder.join("config.json"), "{}").unwrap();
    let refs = root.path().join("models--acme--tiny/refs");
    fs::create_dir_all(&refs).unwrap();
    let index = folder.join("model.safetensors.index.json");
    for pipe in [refs.join("main"), index] {
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
    }
    fs::write(folder.join("model-00001-of-00002.safetensors"), "x").unwrap();
    let cache = Cache::new(root.path());
    assert_eq!(cache.list().unwrap().len(), 1);
    assert!(matches!(cache.find(&name("acme/tiny")), Found::Part(_)));
    assert!(!cache.files(&name("acme/tiny")).is_empty());
}
