//! Models in several GGUF files: from any part to all of them, checked against each other.
//!
//! Parts are named `PREFIX-00001-of-00003.gguf`; each says in its keys which part it is (`split.no`, from zero) and
//! of how many (`split.count`), and how many tensors all have (`split.tensors.count`). The model's keys are in the
//! first part.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::header::{self, Header, RawTensor};
use super::metadata::Metadata;
use crate::format::error::FormatError;
use crate::format::{CheckpointFile, FileId, files};

/// Ending of the files' names.
pub(super) const EXTENSION: &str = ".gguf";
/// Real sets have below a hundred parts.
const PARTS_MAX: u64 = 4096;
/// Digits of a part's number.
const DIGITS: usize = 5;
const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// Tensors over all parts: as of safetensors folders.
const TENSORS_MAX: usize = 1_000_000;
const REMEDY: &str = "download all parts of one model into one folder, under their own names";

/// Every part of a model, in order.
pub(super) struct Parts {
    pub(super) files: Vec<CheckpointFile>,
    /// The keys of the first part.
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<(FileId, RawTensor)>,
}

/// What a file's name says about its set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartName {
    prefix: String,
    /// From one.
    number: u64,
    count: u64,
}

impl PartName {
    /// Reads `PREFIX-00001-of-00003.gguf`; `None` for any other name.
    pub(super) fn of(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(EXTENSION)?;
        let (stem, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = stem.rsplit_once('-')?;
        let digits = |text: &str| {
            let all = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
            all.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (number, count) = (digits(number)?, digits(count)?);
        let sane = (1..=count).contains(&number);
        sane.then(|| Self { prefix: prefix.to_owned(), number, count })
    }

    /// What all names of the set have in common.
    pub(super) fn set(&self) -> (String, u64) {
        (self.prefix.clone(), self.count)
    }

    fn name(&self, number: u64) -> String {
        format!("{}-{number:0DIGITS$}-of-{:0DIGITS$}{EXTENSION}", self.prefix, self.count)
    }
}

impl Parts {
    /// Reads the headers of the file `path` and of every other part of its set.
    pub(super) fn read(path: &Path) -> Result<Self, FormatError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let part = PartName::of(&name);
        let paths = match &part {
            Some(part) => part_paths(path, part)?,
            None => vec![path.to_owned()],
        };
        let (mut files, mut tensors): (Vec<CheckpointFile>, Vec<_>) = (Vec::new(), Vec::new());
        let mut first: Option<Metadata> = None;
        let mut known: HashMap<String, FileId> = HashMap::new();
        for (index, path) in paths.iter().enumerate() {
            let opened = files::open_regular(path)?;
            let found = header::read(path, &opened.file, opened.length)?;
            check_part(&found.metadata, index as u64, paths.len() as u64)?;
            let Header { metadata, tensors: found, checksum } = found;
            if tensors.len() + found.len() > TENSORS_MAX {
                let (found, limit) = ((tensors.len() + found.len()) as u64, TENSORS_MAX as u64);
                return Err(FormatError::limit(path, "tensors of all parts", found, limit));
            }
            let file = FileId(index as u32);
            for tensor in found {
                if let Some(other) = known.insert(tensor.name.clone(), file) {
                    let other = files.get(other.0 as usize).map_or(path, |file| &file.path);
                    let found = format!("is also in {}", other.display());
                    return Err(FormatError::invalid(path, &tensor.name, found, REMEDY));
                }
                tensors.push((file, tensor));
            }
            first.get_or_insert(metadata);
            files.push(CheckpointFile {
                path: path.clone(),
                length: opened.length,
                modified_ns: opened.modified_ns,
                changed_ns: opened.changed_ns,
                header_checksum: checksum,
            });
        }
        let metadata = first.unwrap_or_else(|| Metadata::new(path));
        if paths.len() > 1 {
            let all = metadata.required(TENSORS, Metadata::unsigned)?;
            if all != tensors.len() as u64 {
                let found = format!("{all}, but the parts hold {}", tensors.len());
                return Err(FormatError::invalid(metadata.path(), TENSORS, found, REMEDY));
            }
        }
        Ok(Self { files, metadata, tensors })
    }
}

/// The paths of all parts; the one that was given stays as it was given.
fn part_paths(path: &Path, part: &PartName) -> Result<Vec<PathBuf>, FormatError> {
    if part.count > PARTS_MAX {
        return Err(FormatError::limit(path, "file name: parts", part.count, PARTS_MAX));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let other = |number: u64| {
        if number == part.number {
            return Ok(path.to_owned());
        }
        let name = part.name(number);
        files::find(folder, &name)?.ok_or_else(|| {
            let found = format!("part {number} of {} is missing", part.count);
            FormatError::invalid(&folder.join(name), "file name", found, REMEDY)
        })
    };
    (1..=part.count).map(other).collect()
}

/// A part's keys must say what its name says.
fn check_part(metadata: &Metadata, index: u64, count: u64) -> Result<(), FormatError> {
    let invalid =
        |key: &str, found: String| Err(FormatError::invalid(metadata.path(), key, found, REMEDY));
    // Zero and one both mean a file that is whole.
    let told = metadata.unsigned(COUNT)?.unwrap_or(0).max(1);
    if told != count {
        return invalid(COUNT, format!("{told}, but its name says {count}"));
    }
    let number = metadata.unsigned(NUMBER)?.unwrap_or(0);
    if number != index {
        return invalid(NUMBER, format!("{number} (from zero), but its name says {index}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::PartName;

    #[test]
    fn names_of_parts() {
        let part = PartName::of("a-of-b-00002-of-00003.gguf").unwrap();
        assert_eq!((part.number, part.count), (2, 3));
        assert_eq!(part.name(1), "a-of-b-00001-of-00003.gguf");
        for name in ["a.gguf", "a-2-of-3.gguf", "a-00000-of-00003.gguf", "a-00004-of-00003.gguf"] {
            assert_eq!(PartName::of(name), None, "{name}");
        }
    }
}
