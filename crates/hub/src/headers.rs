//! A checkpoint without its weights: small files whole, of large ones the header, as sparse files of the full size.
//!
//! Whatever opens a checkpoint from its headers opens this as well, and sees every tensor's shape and place. The
//! weights read as zeros.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::client::{Hub, Request};
use crate::error::HubError;
use crate::name::ModelName;
use crate::pull::check_range;
use crate::repository::RepositoryFile;
use crate::select::Selection;

/// Most bytes of a file that is fetched whole.
const WHOLE_BYTES_MAX: u64 = 32 << 20;
/// First request to a safetensors file: most headers are shorter.
const FIRST_BYTES: u64 = 256 << 10;
/// Longest header of a safetensors file.
const HEADER_BYTES_MAX: u64 = 100 << 20;
/// What is fetched of a GGUF file, whose header says nowhere how long it is: a vocabulary takes some ten megabytes.
const GGUF_BYTES: u64 = 24 << 20;

/// All that is fetched of a model: some hundred megabytes for the largest.
const ALL_BYTES_MAX: u64 = 4 << 30;

impl Hub {
    /// Writes sparse copies of the files of `selection` into `folder`; gives the bytes that were fetched.
    ///
    /// # Errors
    ///
    /// As for a download; a header longer than any file has.
    pub fn headers(
        &self,
        name: &ModelName,
        selection: &Selection,
        folder: &Path,
        stop: &AtomicBool,
    ) -> Result<u64, HubError> {
        let mut fetched = 0;
        for file in &selection.files {
            let target = folder.join(&file.path);
            if let Some(parent) = target.parent() {
                let made = std::fs::create_dir_all(parent);
                made.map_err(|error| HubError::io(parent, "create", error))?;
            }
            let created = File::create(&target);
            let sparse = created.map_err(|error| HubError::io(&target, "create", error))?;
            let sized = sparse.set_len(file.size);
            sized.map_err(|error| HubError::io(&target, "create", error))?;
            // A tokenizer's size matters to a plan, not its content.
            let wanted = match file.path.as_str() {
                "tokenizer.json" | "vocab.json" | "merges.txt" | "tokenizer.model" => 0,
                path if path.ends_with(".safetensors") => FIRST_BYTES.min(file.size),
                path if path.ends_with(".gguf") => GGUF_BYTES.min(file.size),
                _ if file.size > WHOLE_BYTES_MAX => 0,
                _ => file.size,
            };
            if fetched + wanted > ALL_BYTES_MAX {
                let url = self.page(name);
                let reason = format!("its headers have more than {ALL_BYTES_MAX} bytes");
                return Err(HubError::answer(&url, reason));
            }
            let mut bytes = self.range(name, selection, file, (0, wanted), stop)?;
            if file.path.ends_with(".safetensors")
                && let Some(prefix) = bytes.first_chunk::<8>()
            {
                let header = u64::from_le_bytes(*prefix);
                if header > HEADER_BYTES_MAX || header + 8 > file.size {
                    let url = self.file_url(name, &selection.commit, &file.path);
                    return Err(HubError::answer(&url, format!("a header of {header} bytes")));
                }
                if let Some(more) = (header + 8).checked_sub(wanted).filter(|more| *more > 0) {
                    bytes.extend(self.range(name, selection, file, (wanted, more), stop)?);
                }
            }
            let written = sparse.write_all_at(&bytes, 0);
            written.map_err(|error| HubError::io(&target, "write", error))?;
            fetched += bytes.len() as u64;
        }
        Ok(fetched)
    }

    fn range(
        &self,
        name: &ModelName,
        selection: &Selection,
        file: &RepositoryFile,
        (first, count): (u64, u64),
        stop: &AtomicBool,
    ) -> Result<Vec<u8>, HubError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let url = self.file_url(name, &selection.commit, &file.path);
        self.retrying(stop, || {
            let answer = self.once(&Request { name, url: &url, range: Some((first, count)) })?;
            check_range(&answer, first, count, file.size)?;
            let mut bytes = Vec::new();
            self.read_into(answer, count, stop, &mut bytes)?;
            if bytes.len() as u64 != count {
                let reason = format!("{} of {count} bytes", bytes.len());
                let error = HubError::Network { url: crate::error::shown_url(&url), reason };
                return Err(crate::client::Trouble::Passing(error, None));
            }
            Ok(bytes)
        })
    }
}
