//! Paths that are no files: pipes, devices, folders, sparse terabytes, and folders that are no checkpoints.

use std::fs::{self, File};
#[cfg(unix)]
use std::path::Path;

use super::refused;
use crate::common::{Folder, TINY};

#[cfg(unix)]
fn pipe(path: &Path) {
    // The command: macOS has no `mknodat`.
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success(), "mkfifo {}", path.display());
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_folders() {
    // Opening a pipe for reading would wait for a writer for ever.
    for name in ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"] {
        let folder = Folder::mlx();
        let path = folder.path().join(name);
        let _ = fs::remove_file(&path);
        pipe(&path);
        refused(&format!("{name} a pipe"), folder.path(), name, &["named pipe"]);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused(&format!("{name} a folder"), folder.path(), name, &["folder"]);
    }
    let folder = Folder::new();
    let path = folder.path().join("model.safetensors");
    pipe(&path);
    refused("a pipe as model", &path, "model.safetensors", &["named pipe"]);
    for device in ["/dev/zero", "/dev/null", "/dev/full"] {
        refused("a device as model", Path::new(device), device, &["device"]);
    }
    let folder = Folder::mlx();
    let socket = folder.path().join("tokenizer.json");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused("a socket", folder.path(), "tokenizer.json", &["socket"]);
}

/// A terabyte that takes no room on disk must take none in memory either.
#[test]
fn sparse_terabytes() {
    let sparse = |folder: &Folder, name: &str| {
        File::create(folder.path().join(name)).unwrap().set_len(1 << 40).unwrap();
    };
    for (name, words) in [
        ("config.json", &["file size", "limit"][..]),
        ("tokenizer.json", &["file size", "limit"]),
        ("tokenizer_config.json", &["file size", "limit"]),
        ("generation_config.json", &["file size", "limit"]),
        ("chat_template.jinja", &["file size", "limit"]),
        ("chat_template.json", &["file size", "limit"]),
        ("model.safetensors.index.json", &["file size", "limit"]),
        ("manifest.json", &["file size", "limit"]),
        ("model_weights.json", &["file size", "limit"]),
        ("model.safetensors", &["header"]),
    ] {
        let folder = Folder::mlx();
        sparse(&folder, name);
        refused(&format!("{name} of a terabyte"), folder.path(), name, words);
    }
    // A header that is honest about its length, and a terabyte behind it.
    let folder = Folder::mlx();
    let path = folder.path().join("model.safetensors");
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
    let words = &["end of the last tensor", "1099511627776"];
    refused("a terabyte behind the tensors", folder.path(), "model.safetensors", words);
}

#[test]
fn folders_and_files_that_are_no_checkpoints() {
    let folder = Folder::new();
    let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    refused("an empty folder", folder.path(), &name, &["config.json"]);
    refused("nothing there", &folder.path().join("absent"), "absent", &["cannot open"]);
    folder.write("config.json", TINY.config().to_string());
    refused("configuration only", folder.path(), &name, &["0 safetensors files"]);
    folder.write("a.safetensors", "");
    folder.write("b.safetensors", "");
    refused("two files of any name", folder.path(), &name, &["2 safetensors files"]);
    let gguf = folder.write("model.gguf", "GGUF\x03\0\0\0");
    refused(
        "half a GGUF header",
        &gguf,
        "model.gguf",
        &["number of tensors", "needs a file of 16 bytes, found 8"],
    );
    let text = folder.write("notes.txt", "hello");
    refused("some text", &text, "notes.txt", &["not a file of a checkpoint"]);
    let folder = Folder::new();
    folder.write("journal", "");
    let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    refused("a pack in progress", folder.path(), &name, &["unfinished"]);
    let long = folder.path().join("n".repeat(300));
    refused("a name that no file can have", &long, &"n".repeat(300), &["cannot open"]);
}
