//! A checkpoint without its weights: small files whole, of large ones the header, as sparse files of the full size.
//!
//! Whatever opens a checkpoint from its headers opens this as well, and sees every tensor's shape and place. The
//! weights read as zeros.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use store::io::platform::FileExt;

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
/// What is fetched of a GGUF file at a time: its header says nowhere how long it is, and takes 6 to 20 MB in most.
const GGUF_PIECE_BYTES: u64 = 4 << 20;

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
            if file.path.ends_with(".gguf") {
                fetched += self.gguf_header(name, selection, file, (&target, &sparse), stop)?;
                continue;
            }
            // A tokenizer's size matters to a plan, not its content.
            let wanted = match file.path.as_str() {
                "tokenizer.json" | "vocab.json" | "merges.txt" | "tokenizer.model" => 0,
                path if path.ends_with(".safetensors") => FIRST_BYTES.min(file.size),
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

    /// Fetches the header of a GGUF file, piece by piece as it is read, into the sparse file `target`. A header that
    /// breaks a rule is fetched up to there: who opens the file is told.
    fn gguf_header(
        &self,
        name: &ModelName,
        selection: &Selection,
        file: &RepositoryFile,
        (target, sparse): (&Path, &File),
        stop: &AtomicBool,
    ) -> Result<u64, HubError> {
        let next = |first: u64| {
            let count = GGUF_PIECE_BYTES.min(file.size - first);
            let bytes = self.range(name, selection, file, (first, count), stop)?;
            let written = sparse.write_all_at(&bytes, first);
            written.map_err(|error| HubError::io(target, "write", error))?;
            Ok(bytes)
        };
        let mut pieces =
            Pieces { next, size: file.size, fetched: 0, piece: Cursor::default(), failure: None };
        let _ = store::format::read_gguf_header(target, &mut pieces, file.size);
        pieces.failure.map_or(Ok(pieces.fetched), Err)
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

/// A remote file, read from its start; `next` fetches the piece that begins at a position.
struct Pieces<F> {
    next: F,
    /// Bytes of the file.
    size: u64,
    fetched: u64,
    /// The piece that is being read.
    piece: Cursor<Vec<u8>>,
    /// Why nothing more could be fetched.
    failure: Option<HubError>,
}

impl<F: FnMut(u64) -> Result<Vec<u8>, HubError>> Read for Pieces<F> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.piece.read(buffer)?;
        if read > 0 || buffer.is_empty() || self.fetched == self.size {
            return Ok(read);
        }
        match (self.next)(self.fetched) {
            Ok(bytes) => {
                self.fetched += bytes.len() as u64;
                self.piece = Cursor::new(bytes);
                self.piece.read(buffer)
            }
            Err(error) => {
                self.failure = Some(error);
                Err(std::io::Error::other("no more could be fetched"))
            }
        }
    }
}
