//! Looking for numbers that are none in layouts that have no checksums.
//!
//! A block whose scale is not a number makes every answer not a number, or worse, only some. GGUF files have nothing
//! that says what their bytes should be, but this damage shows in the bytes themselves.

use std::fs::File;

use kernels::format::Encoding;

use super::{PackError, PackProgress, Progress};
use crate::format::{Checkpoint, Extent, files};
use crate::io::platform::FileExt;

/// About how many bytes are read at a time.
const READ_BYTES: usize = 4 << 20;
/// Most values of a block.
const VALUES_MAX: usize = 256;

/// Decodes every tensor; gives the bytes read, and adds to `damaged` what holds a value that is not finite.
pub(super) fn examine(
    checkpoint: &Checkpoint,
    damaged: &mut Vec<String>,
    progress: &mut Progress<'_>,
) -> Result<u64, PackError> {
    let opened = checkpoint.files.iter().map(|file| Ok(files::open_regular(&file.path)?.file));
    let opened = opened.collect::<Result<Vec<_>, PackError>>()?;
    let total_bytes = checkpoint.trunk_bytes() + checkpoint.expert_bytes();
    let mut done_bytes = 0;
    let mut look = |name: String, extent: Extent, encoding: Encoding| -> Result<(), PackError> {
        let file = extent.file.0 as usize;
        let path = &checkpoint.files[file].path;
        let found = first_wrong(&opened[file], extent, encoding, &mut |bytes| {
            done_bytes += bytes;
            progress(PackProgress { done_bytes, total_bytes })
        });
        let found = found.map_err(|error| match error {
            Stop::Io(error) => PackError::io(path, "read", error),
            Stop::Asked => PackError::Stopped,
        })?;
        if let Some(at) = found {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            damaged.push(format!("{file}: {name}: a value that is not finite at byte {at}"));
        }
        Ok(())
    };
    for (name, tensor) in &checkpoint.tensors {
        look(name.clone(), tensor.weight, tensor.encoding)?;
    }
    for (layer, experts) in checkpoint.experts.iter().enumerate() {
        let Some(experts) = experts else { continue };
        for (expert, extents) in experts.experts.iter().enumerate() {
            for (extent, shape) in extents.weight.iter().zip(&experts.shapes) {
                look(format!("layer {layer}, expert {expert}"), *extent, shape.encoding)?;
            }
        }
    }
    Ok(done_bytes)
}

enum Stop {
    Io(std::io::Error),
    Asked,
}

/// Where the first value lies that is not finite.
fn first_wrong(
    file: &File,
    extent: Extent,
    encoding: Encoding,
    step: &mut dyn FnMut(u64) -> std::ops::ControlFlow<()>,
) -> Result<Option<u64>, Stop> {
    let unit = match encoding {
        Encoding::Float(float) => float.bytes(),
        Encoding::Block(format) => format.bytes(),
        // Its scales lie apart; no layout without checksums that has them is examined.
        _ => return Ok(None),
    };
    let mut buffer = vec![0; (READ_BYTES / unit * unit).min(extent.length as usize)];
    let mut values = [0.0; VALUES_MAX];
    let (mut offset, end) = (extent.offset, extent.offset + extent.length);
    let mut found = None;
    while offset < end {
        let length = (buffer.len() as u64).min(end - offset) as usize;
        let part = &mut buffer[..length];
        file.read_exact_at(part, offset).map_err(Stop::Io)?;
        if found.is_none() {
            let wrong = part.chunks_exact(unit).position(|bytes| match encoding {
                Encoding::Float(float) => !float.decode(bytes, 0).is_finite(),
                Encoding::Block(format) => {
                    let values = &mut values[..format.values()];
                    format.decode(bytes, values);
                    values.iter().any(|value| !value.is_finite())
                }
                _ => false,
            });
            found = wrong.map(|index| offset + (index * unit) as u64);
        }
        offset += length as u64;
        if step(length as u64).is_break() {
            return Err(Stop::Asked);
        }
    }
    Ok(found)
}
