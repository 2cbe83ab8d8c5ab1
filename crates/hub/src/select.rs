//! Which files of a repository make a model that can be run: the safetensors checkpoint, or one quantisation of GGUF.

use std::collections::BTreeMap;

use crate::error::HubError;
use crate::name::{ModelName, is_quant};
use crate::repository::{Repository, RepositoryFile};

/// The quantisations that are taken where none is asked for, best first: what llama.cpp takes.
const DEFAULT_QUANTS: [&str; 4] = ["Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "Q4_0"];
/// Small files at the top of a repository that belong to a checkpoint.
const SIDE_ENDINGS: [&str; 4] = [".json", ".jinja", ".txt", ".model"];

/// The files to download, small ones first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The commit.
    pub commit: String,
    /// The files.
    pub files: Vec<RepositoryFile>,
    /// The quantisation taken, of a GGUF repository.
    pub quant: Option<String>,
}

impl Selection {
    /// Chooses for `name` among the files of `repository`.
    ///
    /// # Errors
    ///
    /// [`HubError::Content`] when nothing there can be run, or the quantisation is not there.
    pub fn choose(name: &ModelName, repository: &Repository) -> Result<Self, HubError> {
        let commit = repository.commit.clone();
        let quants = quants(repository);
        let top = |file: &&RepositoryFile| !file.path.contains('/');
        let checkpoint = || -> Vec<RepositoryFile> {
            let wanted = |file: &&RepositoryFile| {
                file.path.ends_with(".safetensors") && !file.path.starts_with("consolidated")
                    || SIDE_ENDINGS.iter().any(|ending| file.path.ends_with(ending))
            };
            repository.files.iter().filter(top).filter(wanted).cloned().collect()
        };
        let weights = |file: &RepositoryFile| file.path.ends_with(".safetensors");
        let named: Vec<&str> = quants.keys().map(String::as_str).collect();
        let mut files = checkpoint();
        let chosen = match &name.quant {
            None if files.iter().any(weights) => None,
            None if named.is_empty() => {
                let reason = "has neither safetensors nor GGUF files; flashmoe runs those two";
                return Err(HubError::content(name, reason));
            }
            None => Some(default_quant(&named)),
            Some(_) if named.is_empty() => {
                let reason = format!(
                    "has no GGUF files to choose among; write {} without the colon",
                    name.repository()
                );
                return Err(HubError::content(name, reason));
            }
            Some(asked) => {
                let found = named.iter().find(|quant| asked.is(quant));
                Some(*found.ok_or_else(|| {
                    let reason =
                        format!("has no such quantisation; there are {}", named.join(", "));
                    HubError::content(name, reason)
                })?)
            }
        };
        let quant = chosen.map(str::to_owned);
        if let Some(quant) = &quant {
            files = quants.get(quant).cloned().unwrap_or_default();
        }
        files.sort_by_key(|file| (file.path.ends_with(".safetensors"), file.path.clone()));
        Ok(Self { commit, files, quant })
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

fn default_quant<'a>(named: &[&'a str]) -> &'a str {
    let find =
        |wanted: &&str| named.iter().find(|quant| quant.eq_ignore_ascii_case(wanted)).copied();
    DEFAULT_QUANTS.iter().find_map(find).unwrap_or(named[0])
}

/// The quantisations of a repository's GGUF files, each with its parts in order.
#[must_use]
pub fn quants(repository: &Repository) -> BTreeMap<String, Vec<RepositoryFile>> {
    let mut quants: BTreeMap<String, Vec<RepositoryFile>> = BTreeMap::new();
    for file in &repository.files {
        if let Some(quant) = quant_of(&file.path) {
            quants.entry(quant).or_default().push(file.clone());
        }
    }
    quants
}

/// The quantisation that a GGUF file's name ends in: `Q4_K_M` of `x/Model-Q4_K_M-00001-of-00003.gguf`. `None` for
/// anything else, for what could not be asked for by name, and for projectors of images and importance matrices, which
/// are no models.
#[must_use]
pub fn quant_of(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let stem = file.strip_suffix(".gguf")?;
    let lower = stem.to_ascii_lowercase();
    if lower.contains("mmproj") || lower.contains("imatrix") {
        return None;
    }
    let stem = part_of(stem).map_or(stem, |(stem, _, _)| stem);
    let mut start = stem.rfind(['-', '.']).map_or(0, |at| at + 1);
    // Unsloth's dynamic mixes are named `UD-Q4_K_XL`.
    if stem[..start].ends_with("UD-") {
        start -= 3;
    }
    let quant = &stem[start..];
    is_quant(quant).then(|| quant.to_owned())
}

/// A split file's name without its number, the number and the count: `-00001-of-00003`.
pub(crate) fn part_of(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (rest, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(count) || !digits(number) {
        return None;
    }
    Some((rest, number.parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::repository::BlobId;

    fn repository(paths: &[&str]) -> Repository {
        let blob = BlobId::Git("a".repeat(40));
        let file =
            |path: &&str| RepositoryFile { path: (*path).to_owned(), size: 1, blob: blob.clone() };
        Repository { commit: "0".repeat(40), files: paths.iter().map(file).collect() }
    }

    fn chosen(name: &str, paths: &[&str]) -> Result<Vec<String>, HubError> {
        let selection = Selection::choose(&name.parse().unwrap(), &repository(paths))?;
        Ok(selection.files.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn a_checkpoint_leaves_other_formats_behind() {
        let paths = [
            ".gitattributes",
            "README.md",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "original/x.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "consolidated.safetensors",
            "chat_template.jinja",
        ];
        let expected = [
            "chat_template.jinja",
            "config.json",
            "model.safetensors.index.json",
            "tokenizer.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(chosen("a/b", &paths).unwrap(), expected);
        let told = chosen("a/b:Q4_K_M", &paths).unwrap_err().to_string();
        assert!(told.contains("without the colon"), "{told}");
    }

    #[test]
    fn a_quantisation_is_found_with_all_its_parts() {
        let paths = [
            "Q8_0/M-Q8_0-00001-of-00002.gguf",
            "Q8_0/M-Q8_0-00002-of-00002.gguf",
            "M-Q4_K_M.gguf",
            "M-UD-Q2_K_XL.gguf",
            "mmproj-F16.gguf",
            "README.md",
            "config.json",
        ];
        assert_eq!(chosen("a/b", &paths).unwrap(), ["M-Q4_K_M.gguf"]);
        assert_eq!(chosen("a/b:q8_0", &paths).unwrap(), &paths[..2]);
        assert_eq!(chosen("a/b:UD-Q2_K_XL", &paths).unwrap(), ["M-UD-Q2_K_XL.gguf"]);
        let told = chosen("a/b:Q3_K", &paths).unwrap_err().to_string();
        assert!(told.contains("Q4_K_M, Q8_0, UD-Q2_K_XL"), "{told}");
        assert!(chosen("a/b", &["pytorch_model.bin"]).is_err());
    }
}
