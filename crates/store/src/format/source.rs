//! The layouts of checkpoints: one row each, asked in turn whether a path is theirs.
//!
//! A new layout is a file with two functions and a row in [`LAYOUTS`] (docs/adding/layout.md).

use super::error::FormatError;
use super::place::Place;
use super::{Checkpoint, ancestor, gguf, hugging_face, native};

/// A layout of checkpoints.
struct Layout {
    /// Whether a place is of this layout. Nothing but names and first bytes are looked at.
    probe: fn(&Place<'_>) -> Result<bool, FormatError>,
    /// Opens a place of this layout.
    open: fn(&Place<'_>) -> Result<Checkpoint, FormatError>,
}

/// Every layout, in the order in which they are asked: a folder may look like several.
const LAYOUTS: [Layout; 5] = [
    Layout { probe: native::probe, open: |place| native::open(place.folder) },
    Layout { probe: native::probe_unfinished, open: native::refuse_unfinished },
    Layout { probe: ancestor::probe, open: |place| ancestor::open(place.folder) },
    Layout { probe: hugging_face::probe, open: |place| hugging_face::open(place.folder) },
    Layout { probe: gguf::probe, open: gguf::open },
];

/// What can be given.
const SUPPORTED: &str = "give a GGUF file, or the folder of an MLX or Hugging Face checkpoint (config.json and \
     safetensors files)";

/// Opens the checkpoint of a place.
pub(super) fn open(place: &Place<'_>) -> Result<Checkpoint, FormatError> {
    for layout in &LAYOUTS {
        if (layout.probe)(place)? {
            return (layout.open)(place);
        }
    }
    let (path, what) = match place.alone() {
        Some(file) => (file, "not a file of a checkpoint"),
        None => (place.folder, "no config.json here"),
    };
    let reason = format!("{what}; {SUPPORTED}");
    Err(FormatError::NotACheckpoint { path: path.to_owned(), reason })
}
