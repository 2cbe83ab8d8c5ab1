//! Checking every byte of a checkpoint against its checksums.

use std::ops::ControlFlow;

use super::{PackError, PackProgress, Progress, finite};
use crate::format::{Checkpoint, Extent, FormatError, files, record_checksum, sidecar};
use crate::io::platform::FileExt;

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Bytes compared with checksums; zero where the layout has none and only structure was checked.
    pub checked_bytes: u64,
    /// Bytes looked at to see whether all values are finite, in layouts without checksums.
    pub examined_bytes: u64,
    /// Everything found damaged: file and tensor part, or file, layer and expert.
    pub damaged: Vec<String>,
}

/// Reads all that has a checksum and compares. The structure was checked when the checkpoint was opened;
/// layouts without checksums have nothing more to compare, which `checked_bytes` of zero says. Of those every scale
/// and every value is looked at, since they can be numbers that are none; the packer did so for its packs.
pub fn verify(
    checkpoint: &Checkpoint,
    progress: &mut Progress<'_>,
) -> Result<VerifyReport, PackError> {
    let whole = checkpoint.clone().with_any_head();
    let checkpoint = &whole;
    let mut report = VerifyReport::default();
    if checkpoint.pack.is_none() {
        report.examined_bytes = finite::examine(checkpoint, &mut report.damaged, progress)?;
    }
    let Some(pack) = &checkpoint.pack else { return Ok(report) };
    let total_bytes = checkpoint.file_bytes();
    let mut opened = Vec::new();
    for file in &checkpoint.files {
        opened.push(files::open_regular(&file.path)?.file);
    }
    let mut buffer = Vec::new();
    let mut check = |what: String, extent: Extent, expected: u64| -> Result<(), PackError> {
        let file = extent.file.0 as usize;
        let path = &checkpoint.files[file].path;
        buffer.resize(extent.length as usize, 0);
        opened[file]
            .read_exact_at(&mut buffer, extent.offset)
            .map_err(|error| PackError::io(path, "read", error))?;
        if record_checksum(&buffer) != expected {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            report.damaged.push(format!("{file}: {what}"));
        }
        report.checked_bytes += extent.length;
        let state = PackProgress { done_bytes: report.checked_bytes, total_bytes };
        match progress(state) {
            ControlFlow::Break(()) => Err(PackError::Stopped),
            ControlFlow::Continue(()) => Ok(()),
        }
    };
    for (name, extent, expected) in &pack.trunk {
        check(name.clone(), *extent, *expected)?;
    }
    for (layer, sums) in pack.records.iter().enumerate() {
        let Some(table) = &checkpoint.experts[layer] else { continue };
        for (expert, (extents, &expected)) in table.experts.iter().zip(sums).enumerate() {
            let file = extents.weight[0].file;
            let length = checkpoint.files[file.0 as usize].length / sums.len() as u64;
            let extent = Extent { file, offset: expert as u64 * length, length };
            check(format!("layer {layer}, expert {expert}"), extent, expected)?;
        }
    }
    for (name, sums) in &pack.rows {
        let Some(table) = checkpoint.row_tables.get(name) else { continue };
        for ((first, extent), &expected) in table.runs().zip(sums) {
            check(format!("{name}, rows from {first} on"), extent, expected)?;
        }
    }
    for (name, expected) in &pack.copied {
        let path = files::find(&checkpoint.root, name)?;
        let path = path.unwrap_or_else(|| checkpoint.root.join(name));
        let bytes = files::read_small(&path, sidecar::COPIED_BYTES_MAX)?;
        report.checked_bytes += bytes.len() as u64;
        let found = record_checksum(&bytes);
        if found != *expected {
            let (file, field) = (path, "file".to_owned());
            let error = FormatError::Checksum { file, field, expected: *expected, found };
            report.damaged.push(error.to_string());
        }
    }
    Ok(report)
}
