//! Downloads that were begun and have not ended: what they want, so that a stopped one can be seen and removed.
//!
//! A record lies with a repository's locks from the first byte of a download to its last, in the form of the hub's own
//! listing. It is read as that listing is: nothing in it is believed. Other programs write none; what they left shows
//! by its bytes alone.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use store::io::platform::{Links, open_regular};

use crate::cache::{ENTRIES_MAX, replace};
use crate::error::HubError;
use crate::name::{Quant, is_quant};
use crate::repository::{BlobId, Repository, RepositoryFile};
use crate::select::Selection;
use crate::writer::Places;

/// Names of records: `pull.json`, of a quantisation `pull.Q4_K_M.json`.
const BEGINNING: &str = "pull.";
const ENDING: &str = "json";
/// Most bytes of a record that is believed.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// What every program of the hub calls a blob that is not whole.
pub(crate) const INCOMPLETE: &str = ".incomplete";

/// A download that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    /// The quantisation that is wanted, of a GGUF repository.
    pub(crate) quant: Option<Quant>,
    /// The files that are wanted.
    pub(crate) files: Vec<RepositoryFile>,
    /// When it was begun.
    pub(crate) begun: Option<SystemTime>,
    record: PathBuf,
}

impl Unfinished {
    /// Bytes that are there, and bytes in all.
    pub(crate) fn bytes(&self, places: &Places) -> (u64, u64) {
        let present = self.files.iter().map(|file| places.present(file)).sum();
        (present, self.files.iter().map(|file| file.size).sum())
    }

    /// The first file that is not whole; the last where only the end of the download was missing.
    pub(crate) fn missing(&self, places: &Places) -> String {
        let file = self.files.iter().find(|file| !places.has(file)).or(self.files.last());
        file.map(|file| file.path.clone()).unwrap_or_default()
    }

    /// Removes what has arrived, and the record.
    pub(crate) fn remove(&self, places: &Places) -> Result<(), HubError> {
        let blobs = self
            .files
            .iter()
            .flat_map(|file| [places.incomplete(&file.blob), places.blob(&file.blob)]);
        for path in blobs.chain([self.record.clone()]) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(HubError::io(&path, "remove", error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Writes down that `selection` is being downloaded.
pub(crate) fn begin(places: &Places, selection: &Selection) -> Result<(), HubError> {
    let siblings: Vec<Value> = selection.files.iter().map(sibling).collect();
    let listing = json!({"sha": selection.commit, "siblings": siblings}).to_string();
    replace(&record(places, selection.quant.as_deref()), listing.as_bytes())
}

/// The download of `selection` has ended.
pub(crate) fn end(places: &Places, selection: &Selection) {
    // One that stays names a model that is whole, and does not count.
    let _stale = fs::remove_file(record(places, selection.quant.as_deref()));
}

/// Every download of a repository that has not ended.
pub(crate) fn of_repository(places: &Places) -> Vec<Unfinished> {
    let entries = fs::read_dir(&places.locks).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let mut found: Vec<Unfinished> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let quant = name.to_str()?.strip_prefix(BEGINNING)?.strip_suffix(ENDING)?;
            let quant = match quant.strip_suffix('.') {
                Some(quant) if is_quant(quant) => Some(Quant(quant.to_owned())),
                None if quant.is_empty() => None,
                _ => return None,
            };
            read(&entry.path(), quant)
        })
        .collect();
    found.sort_by_key(|it| it.quant.as_ref().map(|quant| quant.0.clone()));
    found
}

/// Bytes of blobs that are not whole, whichever program left them.
pub(crate) fn incomplete_bytes(places: &Places) -> u64 {
    let blobs = fs::read_dir(places.repository.join("blobs")).into_iter().flatten().flatten();
    let begun = blobs
        .take(ENTRIES_MAX)
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.ends_with(INCOMPLETE)));
    // Of the entry itself: a link has no bytes.
    begun
        .filter_map(|entry| entry.metadata().ok())
        .filter(|it| it.is_file())
        .map(|it| it.len())
        .sum()
}

fn record(places: &Places, quant: Option<&str>) -> PathBuf {
    let quant = quant.map(|quant| format!("{quant}.")).unwrap_or_default();
    places.locks.join(format!("{BEGINNING}{quant}{ENDING}"))
}

/// A file as the hub lists it.
fn sibling(file: &RepositoryFile) -> Value {
    let RepositoryFile { path, size, blob } = file;
    match blob {
        BlobId::Git(digits) => json!({"rfilename": path, "size": size, "blobId": digits}),
        BlobId::Sha256(digits) => {
            json!({"rfilename": path, "lfs": {"sha256": digits, "size": size}})
        }
    }
}

/// A record; `None` for what is none.
fn read(path: &Path, quant: Option<Quant>) -> Option<Unfinished> {
    let file = open_regular(path, Links::Refused).ok()?;
    let begun = file.metadata().and_then(|it| it.modified()).ok();
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let Repository { files, .. } = Repository::parse("", &bytes).ok()?;
    Some(Unfinished { quant, files, begun, record: path.to_owned() })
}
