//! Headers of a model of the hub as sparse files in a folder of their own: `plan` plans from them, and `pull` opens
//! them before it downloads a model that this program may not know.

use std::path::PathBuf;

use anyhow::Result;
use engine::EngineError;
use engine::model::config::ModelConfig;
use hub::{Hub, ModelName, Scratch, Selection};
use store::format::{Checkpoint, FormatError};
use store::shown;

use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// The files of a selection with their headers alone.
pub(crate) struct Headers {
    /// What to open; it lives as long as this.
    pub(crate) path: PathBuf,
    /// Bytes that were fetched.
    pub(crate) fetched: u64,
    folder: Scratch,
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
        Ok(Self { path, fetched, folder })
    }

    /// Refuses what cannot be run as it is, nor from a pack of it, in one sentence that names the model: the headers'
    /// place means nothing to anybody.
    ///
    /// # Errors
    /// A family, an encoding or a layout that is not read.
    pub(crate) fn check(&self, name: &ModelName) -> Result<()> {
        self.check_opened(name, store::format::open_to_pack(&self.path))
    }

    /// As [`Headers::check`], and refuses what only a pack of it runs.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn check_in_place(&self, name: &ModelName) -> Result<()> {
        self.check_opened(name, store::format::open(&self.path))
    }

    fn check_opened(
        &self,
        name: &ModelName,
        opened: Result<Checkpoint, FormatError>,
    ) -> Result<()> {
        let refused = match opened {
            Ok(checkpoint) => match ModelConfig::read(&checkpoint.config) {
                Ok(_) => return Ok(()),
                Err(EngineError::Format(error)) => error,
                Err(error) => return Err(Failure::engine(error).into()),
            },
            Err(error) => error,
        };
        let reason = match &refused {
            FormatError::Unsupported { field, found, remedy, .. } if is_family(field, found) => {
                format!(
                    "{name} is a {found} model; flashmoe runs Mixture-of-Experts models, {remedy}; llama.cpp runs many \
                     others"
                )
            }
            other => {
                let place = format!("{}/", shown::path(self.folder.path()));
                format!("{name}: {}", other.to_string().replace(&place, ""))
            }
        };
        Err(Failure::model(anyhow::anyhow!(reason)).into())
    }
}

/// Whether a field that is not supported is the model's family, and names one.
fn is_family(field: &str, found: &str) -> bool {
    ["general.architecture", "model_type"].contains(&field) && found.starts_with('"')
}
