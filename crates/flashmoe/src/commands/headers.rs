//! Headers of a model of the hub as sparse files in a folder of their own: `plan` plans from them, and `pull` opens
//! them before it downloads a model that this program may not know.

use std::path::PathBuf;

use anyhow::Result;
use hub::{Hub, ModelName, Scratch, Selection};

use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// The files of a selection with their headers alone.
pub(crate) struct Headers {
    /// What to open; it lives as long as this.
    pub(crate) path: PathBuf,
    /// Bytes that were fetched.
    pub(crate) fetched: u64,
    _folder: Scratch,
}

impl Headers {
    /// Fetches the headers of `selection`.
    pub(crate) fn fetch(
        hub: &Hub,
        name: &ModelName,
        selection: &Selection,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let folder = hub.cache().scratch().map_err(Failure::hub)?;
        let fetched = hub.headers(name, selection, folder.path(), interrupt.flag());
        let fetched = fetched.map_err(Failure::hub)?;
        let first = selection.files.first().filter(|_| selection.quant.is_some());
        let path = match first {
            Some(file) => folder.path().join(&file.path),
            None => folder.path().to_owned(),
        };
        Ok(Self { path, fetched, _folder: folder })
    }
}
