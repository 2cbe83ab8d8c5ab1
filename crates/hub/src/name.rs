//! Names of models as users type and paste them: `OWNER/NAME`, `OWNER/NAME:QUANT`, with or without a prefix.

use std::fmt;
use std::str::FromStr;

use store::shown::quoted;

use crate::error::HubError;

/// Characters of an owner or name that the hub allows at most.
const PART_MAX: usize = 96;
/// What may stand before a name: links and the schemes of other programs.
const PREFIXES: [&str; 7] = [
    "https://huggingface.co/",
    "http://huggingface.co/",
    "https://hf.co/",
    "huggingface.co/",
    "hf.co/",
    "hf://",
    "hf:",
];

/// The quantisation after the colon, as it stands in file names: `Q4_K_M`. Compared without case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quant(pub String);

impl Quant {
    /// Whether `other` names the same.
    #[must_use]
    pub fn is(&self, other: &str) -> bool {
        self.0.eq_ignore_ascii_case(other)
    }
}

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// The user or organisation.
    pub owner: String,
    /// The repository.
    pub name: String,
    /// Which of the repository's GGUF files.
    pub quant: Option<Quant>,
}

impl ModelName {
    /// The folder of the cache: `models--OWNER--NAME`.
    #[must_use]
    pub fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }

    /// Reads the name of a cache's folder.
    #[must_use]
    pub fn from_folder(folder: &str) -> Option<Self> {
        let (owner, name) = folder.strip_prefix("models--")?.split_once("--")?;
        format!("{owner}/{name}").parse().ok()
    }

    /// `OWNER/NAME`, without the quantisation.
    #[must_use]
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The text without a known prefix, and whether there was one: then it cannot be a path.
    #[must_use]
    pub fn without_prefix(text: &str) -> (&str, bool) {
        let found = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
        found.map_or((text, false), |rest| (rest, true))
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.owner, self.name)?;
        match &self.quant {
            Some(quant) => write!(out, ":{}", quant.0),
            None => Ok(()),
        }
    }
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let wrong = |reason| HubError::Name { text: quoted(text).to_string(), reason };
        let (bare, _) = Self::without_prefix(text.trim());
        let bare = bare.strip_suffix("/tree/main").unwrap_or(bare).trim_end_matches('/');
        let (repository, quant) = match bare.split_once(':') {
            Some((repository, quant)) => (repository, Some(quant)),
            None => (bare, None),
        };
        let (owner, name) =
            repository.split_once('/').ok_or_else(|| wrong("it has no owner before a slash"))?;
        for part in [owner, name] {
            check_part(part).map_err(wrong)?;
        }
        if let Some(quant) = quant
            && !is_quant(quant)
        {
            return Err(wrong("the quantisation after the colon is not like Q4_K_M"));
        }
        let quant = quant.map(|quant| Quant(quant.to_owned()));
        Ok(Self { owner: owner.to_owned(), name: name.to_owned(), quant })
    }
}

/// Whether a text can be a quantisation after a colon. File names of strangers become names that are shown.
pub(crate) fn is_quant(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !text.is_empty() && text.len() <= PART_MAX && text.chars().all(plain)
}

/// The hub's rules, which keep a name from being a path.
fn check_part(part: &str) -> Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if part.is_empty() || part.len() > PART_MAX {
        return Err("owner and name have 1 to 96 characters");
    }
    if !part.chars().all(allowed) {
        return Err("owner and name have letters, digits, dots, dashes and underscores only");
    }
    if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
        return Err("owner and name neither begin nor end with a dot or a dash");
    }
    if part.contains("--") || part.contains("..") {
        return Err("owner and name have no two dots or dashes in a row");
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_users_type_and_paste_them() {
        for text in [
            "Qwen/Qwen3-30B-A3B",
            "hf:Qwen/Qwen3-30B-A3B",
            "hf.co/Qwen/Qwen3-30B-A3B",
            "https://huggingface.co/Qwen/Qwen3-30B-A3B/tree/main",
            "https://huggingface.co/Qwen/Qwen3-30B-A3B/",
        ] {
            assert_eq!(text.parse::<ModelName>().unwrap().to_string(), "Qwen/Qwen3-30B-A3B");
        }
        let name: ModelName = "unsloth/Qwen3-30B-A3B-GGUF:q4_k_m".parse().unwrap();
        assert!(name.quant.as_ref().unwrap().is("Q4_K_M"));
        assert_eq!(name.folder(), "models--unsloth--Qwen3-30B-A3B-GGUF");
        assert_eq!(ModelName::from_folder(&name.folder()).unwrap().repository(), name.repository());
    }

    #[test]
    fn what_could_be_a_path_is_no_name() {
        for text in [
            "", "name", "a/b/c", "../b", "a/..", "/a/b", "a/.b", "a/b-", "a--b/c", "a/b c",
            "a/b\n", "a/b:", "a/b:x/y", "a\\b/c", "hf:", "./a",
        ] {
            let trimmed = text.trim() != text;
            assert!(trimmed || text.parse::<ModelName>().is_err(), "{text:?}");
        }
        assert!(format!("a/{}", "x".repeat(97)).parse::<ModelName>().is_err());
    }
}
