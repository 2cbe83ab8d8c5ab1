//! Models that no hub brought: in folders of the user (`--models-dir`, the working folder), of LM Studio and of ollama.
//!
//! A folder is looked through to a small depth for GGUF files and checkpoints; each is opened, which reads headers
//! alone, so that only what can be run is offered. Models are found again by what is shown: a path, a file's name
//! without its ending, a folder's name, or ollama's `NAME:TAG`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Value;
use store::format::Checkpoint;
use store::io::platform::{HOME, Links, open_regular};

/// Depth to which a folder is looked through, entries of it that are, and models that are opened.
const DEPTH_MAX: usize = 3;
const DEPTH_HERE: usize = 2;
const ENTRIES_MAX: usize = 4000;
const OPENED_MAX: usize = 200;
/// Most bytes of a manifest of ollama.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Where ollama's models lie when it runs as a service.
const OLLAMA_SERVICE: &str = "/usr/share/ollama/.ollama/models";
/// What ollama calls the weights of a model.
const OLLAMA_WEIGHTS: &str = "application/vnd.ollama.image.model";

/// A model that can be run.
#[derive(Clone, Debug)]
pub(crate) struct Shelved {
    /// What to type: a path, or ollama's name.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Bytes of its files.
    pub(crate) bytes: u64,
    pub(crate) modified: Option<SystemTime>,
    /// Whose folder it lies in.
    pub(crate) place: &'static str,
}

/// What was found in some folders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) models: Vec<Shelved>,
    /// Further models there, which this program does not run.
    pub(crate) others: usize,
}

static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Sets the folders of `--models-dir`.
pub(crate) fn set_folders(folders: Vec<PathBuf>) {
    // Once, before any command runs.
    let _first = FOLDERS.set(folders);
}

/// The models of all folders.
pub(crate) fn all() -> Shelf {
    let mut shelf = here();
    for folder in FOLDERS.get().into_iter().flatten() {
        shelf.add_folder(folder, "models-dir", DEPTH_MAX);
    }
    let home = std::env::var_os(HOME).map(PathBuf::from);
    for inside in [".lmstudio/models", ".cache/lm-studio/models"] {
        if let Some(folder) = home.as_ref().map(|home| home.join(inside)) {
            shelf.add_folder(&folder, "LM Studio", DEPTH_MAX);
        }
    }
    let ollama = match std::env::var_os("OLLAMA_MODELS") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => {
            let own = home.map(|home| home.join(".ollama/models"));
            own.into_iter().chain([PathBuf::from(OLLAMA_SERVICE)]).collect()
        }
    };
    for folder in ollama {
        shelf.add_ollama(&folder);
    }
    shelf
}

/// The models of the working folder.
pub(crate) fn here() -> Shelf {
    let mut shelf = Shelf::default();
    shelf.add_folder(Path::new("."), "here", DEPTH_HERE);
    shelf
}

/// The models of all folders that `text` means.
pub(crate) fn named(text: &str) -> Vec<Shelved> {
    let wanted = text.to_lowercase();
    let is = |model: &Shelved| {
        let stem = match model.path.is_dir() {
            true => model.path.file_name(),
            false => model.path.file_stem(),
        };
        let stem = stem.map(|stem| stem.to_string_lossy().to_lowercase());
        let name = model.name.to_lowercase();
        name == wanted
            || name.strip_suffix(":latest") == Some(&wanted)
            || stem.as_ref() == Some(&wanted)
    };
    all().models.into_iter().filter(is).collect()
}

impl Shelf {
    /// Adds what can be run below `folder`.
    fn add_folder(&mut self, folder: &Path, place: &'static str, depth: usize) {
        let mut found = Vec::new();
        let mut entries = 0;
        let mut folders = vec![(folder.to_owned(), 0)];
        while let Some((folder, level)) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                entries += 1;
                if entries > ENTRIES_MAX {
                    break;
                }
                let path = entry.path();
                let name = entry.file_name().to_string_lossy().into_owned();
                // What is hidden, and what a hub keeps in its own order, is not of a shelf.
                if name.starts_with('.') || name.starts_with("models--") {
                    continue;
                }
                if is_model(&path, &name) {
                    found.push(path);
                } else if level + 1 < depth && path.is_dir() {
                    folders.push((path, level + 1));
                }
            }
        }
        found.sort();
        for path in found {
            let path = path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
            self.add(path.display().to_string(), path, place);
        }
    }

    /// Adds what can be run of a folder of ollama: `manifests/HOST/OWNER/NAME/TAG` names blobs.
    fn add_ollama(&mut self, folder: &Path) {
        let manifests = folder.join("manifests");
        let inside = |folder: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX);
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            paths.sort();
            paths
        };
        let mut tags = inside(&manifests);
        for _ in 0..3 {
            tags = tags.iter().flat_map(|folder| inside(folder)).take(ENTRIES_MAX).collect();
        }
        for tag in tags {
            let words: Vec<String> = tag
                .strip_prefix(&manifests)
                .map(|path| path.iter().map(|it| it.to_string_lossy().into_owned()).collect())
                .unwrap_or_default();
            let [_, owner, name, tag_name] = words.as_slice() else { continue };
            let Some(digest) = weights_of(&tag) else { continue };
            let blob = folder.join("blobs").join(format!("sha256-{digest}"));
            let name = match owner.as_str() {
                "library" => format!("{name}:{tag_name}"),
                owner => format!("{owner}/{name}:{tag_name}"),
            };
            self.add(name, blob, "ollama");
        }
    }

    fn add(&mut self, name: String, path: PathBuf, place: &'static str) {
        // The working folder may lie in one of the others.
        let same = |model: &Shelved| model.path.canonicalize().ok() == path.canonicalize().ok();
        if self.models.len() + self.others >= OPENED_MAX || self.models.iter().any(same) {
            return;
        }
        match store::format::open(&path) {
            Ok(checkpoint) if is_mixture(&checkpoint) => {
                let bytes = checkpoint.files.iter().map(|file| file.length).sum();
                let modified = path.metadata().and_then(|it| it.modified()).ok();
                self.models.push(Shelved { name, path, bytes, modified, place });
            }
            _ => self.others += 1,
        }
    }
}

fn is_mixture(checkpoint: &Checkpoint) -> bool {
    checkpoint.experts.iter().any(Option::is_some)
}

/// A GGUF file, of a set its first part, or a folder of a checkpoint.
fn is_model(path: &Path, name: &str) -> bool {
    if let Some(stem) = name.strip_suffix(".gguf") {
        let later = stem.rsplit_once("-of-").and_then(|(stem, _)| stem.rsplit_once('-'));
        let later = later.is_some_and(|(_, number)| number.len() == 5 && number != "00001");
        return !later && !name.contains("mmproj") && path.is_file();
    }
    let has = |file: &str| path.join(file).is_file();
    has("manifest.json") && has("trunk.bin")
        || has("config.json") && (has("model.safetensors") || has("model.safetensors.index.json"))
        || has("model_weights.json")
}

/// The digest of the weights that a manifest names.
fn weights_of(manifest: &Path) -> Option<String> {
    let mut text = String::new();
    let file = open_regular(manifest, Links::Followed).ok()?;
    file.take(MANIFEST_BYTES_MAX).read_to_string(&mut text).ok()?;
    let manifest: Value = serde_json::from_str(&text).ok()?;
    let layers = manifest.get("layers")?.as_array()?;
    let layer = layers.iter().find(|layer| layer["mediaType"] == OLLAMA_WEIGHTS)?;
    let digest = layer.get("digest")?.as_str()?.strip_prefix("sha256:")?;
    let plain = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| digest.to_owned())
}
