//! What the hub says about a repository: its commit, and each file's name, size and checksum.
//!
//! All of it is untrusted. A name must be a plain relative path, a checksum must be one, a list has a limit; a
//! repository that breaks a rule is refused whole, because its other entries deserve no more trust.

use serde::Deserialize;

use crate::error::HubError;

/// Most files of a repository.
const FILES_MAX: usize = 20_000;
/// Most bytes of a file name, and of folders in one.
const PATH_BYTES_MAX: usize = 1024;
const PATH_PARTS_MAX: usize = 8;
/// Largest size that is believed.
const FILE_BYTES_MAX: u64 = 1 << 44;

/// The checksum by which a file lies in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BlobId {
    /// SHA-256 of a large file.
    Sha256(String),
    /// The id that git gives a small one: SHA-1 of a header and the bytes.
    Git(String),
}

impl BlobId {
    /// Its lower-case hexadecimal digits, which are the blob's file name.
    #[must_use]
    pub fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryFile {
    /// Relative path with forward slashes, checked.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Its checksum.
    pub blob: BlobId,
}

/// A repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// Its files.
    pub files: Vec<RepositoryFile>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(rename = "blobId", default)]
    blob: Option<String>,
    #[serde(default)]
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    sha256: String,
    size: u64,
}

impl Repository {
    /// Reads the hub's answer to `/api/models/OWNER/NAME/revision/main?blobs=true` at `url`.
    ///
    /// # Errors
    ///
    /// [`HubError::Answer`] for a listing that breaks a rule.
    pub fn parse(url: &str, body: &[u8]) -> Result<Self, HubError> {
        let answer: Answer =
            serde_json::from_slice(body).map_err(|error| HubError::answer(url, error))?;
        if !is_hexadecimal(&answer.sha, 40) {
            return Err(HubError::answer(url, "the commit is not 40 hexadecimal digits"));
        }
        if answer.siblings.len() > FILES_MAX {
            let count = answer.siblings.len();
            return Err(HubError::answer(url, format!("{count} files, more than {FILES_MAX}")));
        }
        let mut files = Vec::with_capacity(answer.siblings.len());
        for sibling in answer.siblings {
            files.push(file(sibling).map_err(|reason| HubError::answer(url, reason))?);
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        if let Some(pair) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
            let reason =
                format!("the file {} is listed twice", store::shown::quoted(&pair[0].path));
            return Err(HubError::answer(url, reason));
        }
        Ok(Self { commit: answer.sha, files })
    }
}

fn file(sibling: Sibling) -> Result<RepositoryFile, String> {
    let named = store::shown::quoted(&sibling.rfilename).to_string();
    check_path(&sibling.rfilename).map_err(|reason| format!("the file name {named} {reason}"))?;
    let (size, blob) = match (sibling.lfs, sibling.size, sibling.blob) {
        (Some(large), _, _) if is_hexadecimal(&large.sha256, 64) => {
            (large.size, BlobId::Sha256(large.sha256))
        }
        (None, Some(size), Some(blob)) if is_hexadecimal(&blob, 40) => (size, BlobId::Git(blob)),
        _ => return Err(format!("the file {named} comes without a size or a checksum")),
    };
    if size > FILE_BYTES_MAX {
        return Err(format!("the file {named} is said to have {size} bytes"));
    }
    Ok(RepositoryFile { path: sibling.rfilename, size, blob })
}

/// A path that stays below the folder that it is joined to, on any file system.
fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() || path.len() > PATH_BYTES_MAX {
        return Err("has no or too many bytes");
    }
    if path.contains(|c: char| c.is_control() || c == '\\' || c == ':') {
        return Err("has characters that file names must not have");
    }
    if path.split('/').count() > PATH_PARTS_MAX {
        return Err("has too many folders");
    }
    for part in path.split('/') {
        if part.is_empty() || part == "." || part == ".." || part.len() > 255 {
            return Err("leads out of its folder");
        }
    }
    Ok(())
}

/// Lower-case hexadecimal digits, so many of them.
fn is_hexadecimal(text: &str, digits: usize) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == digits && text.bytes().all(digit)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &serde_json::Value) -> Result<Repository, HubError> {
        Repository::parse("http://hub/api", value.to_string().as_bytes())
    }

    fn listing(name: &str) -> serde_json::Value {
        let file = json!({"rfilename": name, "size": 1, "blobId": "a".repeat(40)});
        json!({"sha": "0".repeat(40), "siblings": [file]})
    }

    #[test]
    fn names_that_leave_their_folder_are_refused() {
        assert_eq!(parse(&listing("a/b.json")).unwrap().files[0].path, "a/b.json");
        for name in [
            "../a",
            "a/../../b",
            "/etc/passwd",
            "a//b",
            "",
            ".",
            "a/./b",
            "a\\..\\b",
            "C:x",
            "a\nb",
            "a/b/c/d/e/f/g/h/i",
        ] {
            let told = parse(&listing(name)).unwrap_err().to_string();
            assert!(told.contains("refused"), "{name:?}: {told}");
            assert!(!told.contains('\n'));
        }
        assert!(parse(&listing(&"x".repeat(300))).is_err());
    }

    #[test]
    fn checksums_commits_and_sizes_are_checked() {
        let mut value = listing("a");
        value["sha"] = "../../x".into();
        assert!(parse(&value).is_err());
        let mut value = listing("a");
        value["siblings"][0]["blobId"] = "../../../x".into();
        assert!(parse(&value).is_err());
        let mut value = listing("a");
        value["siblings"][0]["lfs"] = json!({"sha256": "b".repeat(64), "size": 1_u64 << 60});
        assert!(parse(&value).is_err());
        let mut value = listing("a");
        value["siblings"] = json!([value["siblings"][0], value["siblings"][0]]);
        assert!(parse(&value).unwrap_err().to_string().contains("twice"));
    }
}
