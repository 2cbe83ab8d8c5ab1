//! Goal: links are followed where a user made them and where a hub's cache has them, and lead from nothing that was
//! downloaded or unpacked to the user's other files. Method: every layout of a hub's cache, folders of links as users
//! make them, and links as an archive could bring them.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::{Folder, TINY};
use crate::malformed::gguf::split;
use crate::malformed::refused;
use store::format::{Checkpoint, open};
use store::synthetic::gguf::{F32, GgufFile};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What lies in a repository's snapshot: paths and bytes.
type Files = Vec<(String, Vec<u8>)>;

fn one_file(folder: &str) -> Files {
    vec![(format!("{folder}m-Q8_0.gguf"), GgufFile::tiny(F32).to_bytes())]
}

fn parts(folder: &str) -> Files {
    let named = |(index, bytes)| (format!("{folder}m-Q8_0-{:05}-of-00003.gguf", index + 1), bytes);
    split(3).into_iter().enumerate().map(named).collect()
}

fn checkpoint() -> Files {
    let folder = Folder::mlx();
    let names = ["config.json", "model.safetensors"];
    names.map(|name| (name.to_owned(), fs::read(folder.path().join(name)).unwrap())).into()
}

fn link(target: impl AsRef<Path>, place: &Path) {
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    symlink(target, place).unwrap();
}

/// A repository with `files` as blobs, linked from its snapshot: relatively, as hubs' programs do, or absolutely.
/// Gives the snapshot.
fn repository(root: &Path, name: &str, files: &Files, relative: bool) -> PathBuf {
    let repository = root.join(name);
    let snapshot = repository.join("snapshots").join(COMMIT);
    fs::create_dir_all(repository.join("blobs")).unwrap();
    for (number, (path, bytes)) in files.iter().enumerate() {
        let blob = repository.join("blobs").join(format!("{number:064x}"));
        fs::write(&blob, bytes).unwrap();
        let up = "../".repeat(2 + path.matches('/').count());
        let target = match relative {
            true => PathBuf::from(format!("{up}blobs/{number:064x}")),
            false => blob.canonicalize().unwrap(),
        };
        link(target, &snapshot.join(path));
    }
    snapshot
}

/// What a model's first file is opened by: its folder or itself.
fn opened(snapshot: &Path, files: &Files) -> Checkpoint {
    let first = snapshot.join(&files[0].0);
    let path = if files[0].0.ends_with(".gguf") { &first } else { snapshot };
    open(path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_layout_of_a_hub_s_cache_opens() {
    let layouts =
        [checkpoint(), one_file(""), one_file("Q8_0/"), parts(""), parts("Q8_0/"), parts("a/b/")];
    for files in layouts {
        // The last is a repository that was moved to another place, under another name.
        for name in ["models--acme--tiny", "tiny"] {
            for relative in [true, false] {
                let root = Folder::new();
                let snapshot = repository(root.path(), name, &files, relative);
                let found = opened(&snapshot, &files);
                if files.len() == 3 {
                    assert_eq!(found.files.len(), 3);
                    let second = open(&snapshot.join(&files[1].0)).unwrap();
                    assert_eq!(second.fingerprint(), found.fingerprint());
                }
                // The whole repository lies on another disk.
                let elsewhere = Folder::new();
                link(root.path().join(name), &elsewhere.path().join("hub/models--acme--tiny"));
                let inside = elsewhere.path().join("hub/models--acme--tiny/snapshots");
                opened(&inside.join(COMMIT), &files);
            }
        }
    }
}

/// A folder of links, as `ln -s MODEL/* FOLDER` makes it.
fn linked(files: &[PathBuf]) -> Folder {
    let folder = Folder::new();
    for file in files {
        link(file, &folder.path().join(file.file_name().unwrap()));
    }
    folder
}

fn contents(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn written(files: &Files) -> Folder {
    let folder = Folder::new();
    for (name, bytes) in files {
        folder.write(name, bytes);
    }
    folder
}

#[test]
fn folders_of_links_that_a_user_made_open() {
    let (config, tensors) = TINY.hugging_face(true);
    let sharded = Folder::checkpoint(&config, &tensors, "pt");
    for name in ["tokenizer.json", "generation_config.json"] {
        sharded.write(name, "{}");
    }
    for source in [sharded, written(&one_file("")), written(&parts("")), written(&checkpoint())] {
        let found = open(linked(&contents(source.path())).path()).unwrap();
        assert_eq!(found.fingerprint(), open(source.path()).unwrap().fingerprint());
        // Some files here, some on the other disk.
        let some = linked(&contents(source.path())[1..]);
        let first = contents(source.path())[0].clone();
        fs::copy(&first, some.path().join(first.file_name().unwrap())).unwrap();
        open(some.path()).unwrap();
    }
    // Weights under another name.
    let source = written(&one_file(""));
    let folder = Folder::new();
    link(source.path().join("m-Q8_0.gguf"), &folder.path().join("mine.gguf"));
    open(folder.path()).unwrap();
    open(&folder.path().join("mine.gguf")).unwrap();
}

#[test]
fn folders_of_links_into_a_hub_s_cache_open() {
    for files in [checkpoint(), one_file("Q8_0/"), parts("Q8_0/")] {
        let root = Folder::new();
        let snapshot = repository(root.path(), "models--acme--tiny", &files, true);
        let folder = snapshot.join(&files[0].0);
        open(linked(&contents(folder.parent().unwrap())).path()).unwrap();
    }
}

/// What an archive of a model, once unpacked, could bring: each name with where it leads.
#[test]
fn links_that_were_unpacked_lead_to_no_other_file_of_the_user() {
    let home = Folder::new();
    let secrets = ["id_rsa", "token", "passwords.json", "notes.jinja", "data.bin"];
    for name in secrets {
        home.write(name, "{\"chat_template\": \"secret\"}");
    }
    for name in ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"] {
        for secret in secrets {
            let folder = Folder::mlx();
            let place = folder.path().join(name);
            let _ = fs::remove_file(&place);
            // Directly, and by a link that has the right name.
            let detour = folder.path().join("sub").join(name);
            link(home.path().join(secret), &detour);
            for target in [home.path().join(secret), detour] {
                let _ = fs::remove_file(&place);
                link(target, &place);
                refused(name, folder.path(), name, &["symbolic link", "leads out"]);
            }
        }
    }
    let folder = Folder::mlx();
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    link(home.path().join("data.bin"), &folder.path().join("model.safetensors"));
    refused("weights", folder.path(), "model.safetensors", &["symbolic link", "leads out"]);
}

#[test]
fn links_that_were_downloaded_stay_in_their_repository() {
    let outside = Folder::mlx();
    let other = Folder::new();
    let foreign = repository(other.path(), "models--acme--other", &checkpoint(), false);
    for name in ["config.json", "model.safetensors"] {
        for source in [outside.path().join(name), foreign.join(name)] {
            let root = Folder::new();
            let snapshot = repository(root.path(), "models--acme--tiny", &checkpoint(), true);
            fs::remove_file(snapshot.join(name)).unwrap();
            link(source, &snapshot.join(name));
            refused(name, &snapshot, name, &["symbolic link", "leads out", "download"]);
        }
    }
    // In a subfolder, too.
    let files = parts("Q8_0/");
    let root = Folder::new();
    let snapshot = repository(root.path(), "models--acme--tiny", &files, true);
    let second = snapshot.join(&files[1].0);
    fs::remove_file(&second).unwrap();
    let elsewhere = written(&parts(""));
    link(elsewhere.path().join(second.file_name().unwrap()), &second);
    let blamed = second.file_name().unwrap().to_str().unwrap();
    refused("a part", &snapshot.join("Q8_0"), blamed, &["symbolic link", "leads out"]);
}
