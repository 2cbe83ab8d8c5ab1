//! A folder of safetensors files: which files, and every tensor's name and place.
//!
//! With `model.safetensors.index.json` the index names the files; what it lists must be in them. Without
//! one, `model*.safetensors` are taken, or a single file of any name; a head that predicts further tokens may lie next
//! to them in a file of its own. Only headers are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::safetensors::{self, RawTensor};
use super::{CheckpointFile, FileId, files, json};

pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// A head next to files of a trunk.
const HEAD: &str = "mtp.safetensors";
/// Real checkpoints have a few hundred at most.
const SHARDS_MAX: usize = 4096;
/// Tensors over all files: 3.5 times the largest known checkpoint.
const TENSORS_MAX: usize = 1_000_000;

/// All tensors of a folder.
pub(crate) struct Shards {
    pub(crate) files: Vec<CheckpointFile>,
    pub(crate) tensors: Vec<(FileId, RawTensor)>,
    /// True when a file's metadata says that MLX wrote it.
    pub(crate) written_by_mlx: bool,
}

impl Shards {
    pub(crate) fn read(folder: &Path) -> Result<Self, FormatError> {
        let index = files::find(folder, INDEX)?;
        let (paths, listed) = match &index {
            Some(index) => from_index(folder, index)?,
            None => (from_listing(folder)?, BTreeMap::new()),
        };
        let mut shards = Self { files: Vec::new(), tensors: Vec::new(), written_by_mlx: false };
        for path in paths {
            shards.add(path)?;
        }
        if let Some(head) = files::find(folder, HEAD)?
            && shards.files.iter().all(|file| file.path != head)
        {
            shards.add(head)?;
        }
        shards.refuse_repeats()?;
        if let Some(index) = &index {
            shards.compare(index, &listed)?;
        }
        Ok(shards)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), FormatError> {
        let opened = files::open_regular(&path)?;
        let header = safetensors::read_header(&path, &opened.file, opened.length)?;
        let total = self.tensors.len() + header.tensors.len();
        if total > TENSORS_MAX {
            let limit = TENSORS_MAX as u64;
            return Err(FormatError::limit(&path, "tensors of all files", total as u64, limit));
        }
        let file = FileId(self.files.len() as u32);
        self.tensors.extend(header.tensors.into_iter().map(|tensor| (file, tensor)));
        self.written_by_mlx |= header.format.as_deref() == Some("mlx");
        self.files.push(CheckpointFile {
            path,
            length: opened.length,
            modified_ns: opened.modified_ns,
            changed_ns: opened.changed_ns,
            header_checksum: header.checksum,
        });
        Ok(())
    }

    fn refuse_repeats(&mut self) -> Result<(), FormatError> {
        self.tensors.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        let Some(pair) = self.tensors.windows(2).find(|pair| pair[0].1.name == pair[1].1.name)
        else {
            return Ok(());
        };
        let [first, second] = [0, 1].map(|i| &self.files[pair[i].0.0 as usize].path);
        let found = format!("is also in {}", first.display());
        Err(FormatError::invalid(
            second,
            &pair[1].1.name,
            found,
            "remove the file that is too many",
        ))
    }

    /// Every tensor of the index must be in the file that it names.
    fn compare(&self, index: &Path, listed: &BTreeMap<String, PathBuf>) -> Result<(), FormatError> {
        for (name, path) in listed {
            let at = self.tensors.binary_search_by(|(_, tensor)| tensor.name.cmp(name));
            let found = at.ok().map(|at| &self.files[self.tensors[at].0.0 as usize].path);
            if found != Some(path) {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let found = format!("is not in {file}");
                return Err(FormatError::invalid(index, name, found, DOWNLOAD_AGAIN));
            }
        }
        Ok(())
    }
}

type Listed = (BTreeSet<PathBuf>, BTreeMap<String, PathBuf>);

fn from_index(folder: &Path, index: &Path) -> Result<Listed, FormatError> {
    let value = json::read(index, json::INDEX_BYTES_MAX)?;
    let Some(map) = value.get("weight_map").and_then(Value::as_object) else {
        let found = "missing or not an object";
        return Err(FormatError::invalid(index, "weight_map", found, DOWNLOAD_AGAIN));
    };
    if map.is_empty() {
        return Err(FormatError::invalid(index, "weight_map", "is empty", DOWNLOAD_AGAIN));
    }
    let mut paths = BTreeMap::new();
    let mut listed = BTreeMap::new();
    for (tensor, file) in map {
        let field = format!("weight_map.{tensor}");
        let Some(name) = file.as_str() else {
            let found = file.to_string();
            return Err(FormatError::invalid(index, field, found, "it must be a file name"));
        };
        if !paths.contains_key(name) {
            if paths.len() == SHARDS_MAX {
                let limit = SHARDS_MAX as u64;
                return Err(FormatError::limit(index, "weight_map: files", limit + 1, limit));
            }
            let path = files::find_named(folder, index, &field, name)?;
            paths.insert(name.to_owned(), path);
        }
        listed.insert(tensor.clone(), paths[name].clone());
    }
    Ok((paths.into_values().collect(), listed))
}

fn from_listing(folder: &Path) -> Result<BTreeSet<PathBuf>, FormatError> {
    let mut names = BTreeSet::new();
    let listing =
        fs::read_dir(folder).map_err(|error| FormatError::io(folder, "list the folder", error))?;
    for entry in listing {
        let entry = entry.map_err(|error| FormatError::io(folder, "list the folder", error))?;
        let name = entry.file_name();
        if let Some(name) = name.to_str().filter(|name| name.ends_with(".safetensors")) {
            names.insert(name.to_owned());
            if names.len() > SHARDS_MAX {
                let (found, limit) = (names.len() as u64, SHARDS_MAX as u64);
                return Err(FormatError::limit(folder, "safetensors files", found, limit));
            }
        }
    }
    if names.iter().any(|name| name.starts_with("model")) {
        names.retain(|name| name.starts_with("model"));
    } else if names.len() != 1 {
        return Err(FormatError::NotACheckpoint {
            path: folder.to_owned(),
            reason: format!(
                "{} safetensors files and no {INDEX}; download the missing file",
                names.len()
            ),
        });
    }
    refuse_missing_shard(folder, &names)?;
    let mut paths = BTreeSet::new();
    for name in &names {
        // Listed a moment ago; gone is an error when it is opened.
        paths.insert(files::find(folder, name)?.unwrap_or_else(|| folder.join(name)));
    }
    Ok(paths)
}

/// `model-00002-of-00003.safetensors` says how many there are.
fn refuse_missing_shard(folder: &Path, names: &BTreeSet<String>) -> Result<(), FormatError> {
    for name in names {
        let total = name
            .strip_suffix(".safetensors")
            .and_then(|stem| stem.rsplit_once("-of-"))
            .and_then(|(_, total)| total.parse::<usize>().ok());
        if total.is_some_and(|total| total != names.len()) {
            return Err(FormatError::invalid(
                &folder.join(name),
                "file name",
                format!("announces another number of files than the {} found", names.len()),
                "download the missing files and the index",
            ));
        }
    }
    Ok(())
}
