//! What a user's path leads to: a folder, or a file in it.

use std::path::Path;

use super::error::FormatError;
use super::{files, layout, shards};

/// The configuration's file.
pub(super) const CONFIG: &str = "config.json";

/// The folder of a checkpoint, and the file of it that was named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The folder, or the one in which the file lies.
    pub(super) folder: &'a Path,
    /// The file that was given by name; `None` for a folder.
    pub(super) file: Option<&'a Path>,
}

impl<'a> Place<'a> {
    /// The file, unless it stands for its folder, as those do that a folder has only for all of its content.
    pub(super) fn alone(&self) -> Option<&'a Path> {
        let file = self.file?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let part = name.ends_with(".safetensors")
            || [shards::INDEX, CONFIG, layout::MANIFEST].contains(&&*name);
        (!part).then_some(file)
    }

    /// True when the folder is meant and holds the file `name`.
    pub(super) fn has(&self, name: &str) -> Result<bool, FormatError> {
        Ok(self.alone().is_none() && files::find(self.folder, name)?.is_some())
    }
}
