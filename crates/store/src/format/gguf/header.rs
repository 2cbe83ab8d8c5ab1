//! The header of a GGUF file: its keys, its tensors, and where the data begins.
//!
//! Layout: `GGUF`, version (u32), number of tensors and of keys (i64), the keys, the tensors, zeros up to the
//! alignment, the tensors' bytes. A string is its length (u64) and its bytes; an array is its element type (u32),
//! its count (u64) and its elements. Values are not kept: a [`Metadata`] knows where each lies and reads it when it
//! is asked for. Tensors must follow each other in the order of the list, each padded to the alignment, to the end
//! of the file: so none overlaps another, and nothing lies between them.

use std::collections::HashSet;
use std::hash::Hasher;
use std::io::Read;
use std::path::Path;

use twox_hash::XxHash3_64;

use super::metadata::{Entry, Kind, Metadata};
use super::types::GgmlType;
use super::window::Window;
use crate::format::error::{DOWNLOAD_AGAIN, FormatError};
use crate::shown::quoted;

/// First bytes of the file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// Versions that are read; they differ in nothing that is read here.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// Real files have below a hundred.
const KEYS_MAX: u64 = 1 << 16;
/// Longest key.
const KEY_BYTES_MAX: u64 = 65_535;
/// Keys that anything here reads are shorter; of others only the digest is kept.
const KEY_BYTES_KEPT: usize = 256;
/// Longest string of a value.
const STRING_BYTES_MAX: u64 = 16 << 20;
/// Elements of one array: eight times the largest known list of merges.
const ARRAY_COUNT_MAX: u64 = 4 << 20;
/// Stacked experts keep real files below 2,000.
const TENSORS_MAX: u64 = 1 << 18;
/// A tensor's name has fewer bytes.
const NAME_BYTES_MAX: u64 = 64;
const DIMENSIONS_MAX: u32 = 4;
/// No file is larger: sums of offsets stay below it.
const FILE_BYTES_MAX: u64 = 1 << 60;
/// Alignment of tensors where the file does not say.
const ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// One tensor as the header describes it, checked against the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawTensor {
    pub(crate) name: String,
    pub(crate) ggml: GgmlType,
    /// Outermost first: the reverse of the file's order.
    pub(crate) shape: Vec<usize>,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A parsed header.
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<RawTensor>,
    /// Checksum of the header's bytes.
    pub(crate) checksum: u64,
}

/// Reads the header of the file `path` of `length` bytes from `reader`, which stands at its start.
pub(crate) fn read(path: &Path, reader: impl Read, length: u64) -> Result<Header, FormatError> {
    let mut window = Window::new(path, reader, length);
    let (tensors, keys) = counts(&mut window)?;
    let mut metadata = Metadata::new(path);
    let mut digests = HashSet::new();
    for index in 0..keys {
        key(&mut window, index, &mut metadata, &mut digests)?;
    }
    let alignment = alignment(&metadata)?;
    let mut raw: Vec<RawTensor> = Vec::new();
    let mut names = HashSet::new();
    // Relative to the start of the data until that is known.
    let mut end = 0;
    for index in 0..tensors {
        let tensor = tensor(&mut window, index, alignment, end)?;
        if !names.insert(tensor.name.clone()) {
            return Err(window.invalid(format_args!("{}", tensor.name), "occurs twice"));
        }
        // No overflow: both are below 2^63.
        end = (tensor.offset + tensor.length).next_multiple_of(alignment);
        raw.push(tensor);
    }
    place(&window, &mut raw, alignment)?;
    Ok(Header { metadata, tensors: raw, checksum: window.checksum() })
}

/// Magic, version and counts.
fn counts<R: Read>(window: &mut Window<'_, R>) -> Result<(u64, u64), FormatError> {
    let magic: [u8; 4] = window.take(format_args!("magic"))?;
    if magic != MAGIC {
        let found = format!("{}, not GGUF", quoted(&String::from_utf8_lossy(&magic)));
        return Err(window.invalid(format_args!("magic"), found));
    }
    let version = window.u32(format_args!("version"))?;
    if !VERSIONS.contains(&version) {
        let found = match version {
            _ if version & 0xffff == 0 && version != 0 => {
                format!("{} in the byte order of another kind of processor", version.swap_bytes())
            }
            _ => version.to_string(),
        };
        let remedy = "GGUF of versions 2 and 3, little-endian, is read; convert the model again";
        return Err(FormatError::unsupported(window.path(), "version", found, remedy));
    }
    let mut count = |what: &str, limit: u64| {
        let found = window.u64(format_args!("{what}"))?;
        match found {
            negative if negative > i64::MAX as u64 => {
                Err(window.invalid(format_args!("{what}"), format!("{}", negative.cast_signed())))
            }
            found if found > limit => Err(window.limit(format_args!("{what}"), found, limit)),
            found => Ok(found),
        }
    };
    Ok((count("number of tensors", TENSORS_MAX)?, count("number of keys", KEYS_MAX)?))
}

/// One key: its name, and where its value lies.
fn key<R: Read>(
    window: &mut Window<'_, R>,
    index: u64,
    metadata: &mut Metadata,
    digests: &mut HashSet<u64>,
) -> Result<(), FormatError> {
    let field = format!("key {index}");
    let bytes = window.u64(format_args!("{field}"))?;
    let name = window.bytes(format_args!("{field}"), bytes, KEY_BYTES_MAX)?;
    if name.is_empty() {
        return Err(window.invalid(format_args!("{field}"), "has no name"));
    }
    let mut digest = XxHash3_64::new();
    digest.write(&name);
    let name = String::from_utf8(name)
        .map_err(|_| window.invalid(format_args!("{field}"), "its name is not UTF-8"))?;
    if !digests.insert(digest.finish()) {
        return Err(window.invalid(format_args!("{name}"), "occurs twice"));
    }
    let kind = kind(window, &name)?;
    let entry = match kind {
        Kind::Array => array(window, &name)?,
        Kind::Text => {
            let offset = window.position();
            let bytes = string(window, &name)?;
            Entry { kind, element: None, count: 1, offset: offset + 8, bytes }
        }
        scalar => {
            let offset = window.position();
            let bytes = scalar.bytes().unwrap_or(0);
            window.skip(format_args!("{name}"), bytes)?;
            Entry { kind, element: None, count: 1, offset, bytes }
        }
    };
    if name.len() <= KEY_BYTES_KEPT {
        metadata.insert(name, entry);
    }
    Ok(())
}

fn kind<R: Read>(window: &mut Window<'_, R>, name: &str) -> Result<Kind, FormatError> {
    let id = window.u32(format_args!("{name}: type"))?;
    Kind::of(id).ok_or_else(|| window.invalid(format_args!("{name}: type"), id.to_string()))
}

/// Passes over a string; gives its length.
fn string<R: Read>(window: &mut Window<'_, R>, name: &str) -> Result<u64, FormatError> {
    let bytes = window.u64(format_args!("{name}: length"))?;
    if bytes > STRING_BYTES_MAX {
        return Err(window.limit(format_args!("{name}: length"), bytes, STRING_BYTES_MAX));
    }
    window.skip(format_args!("{name}"), bytes)?;
    Ok(bytes)
}

/// Passes over an array.
fn array<R: Read>(window: &mut Window<'_, R>, name: &str) -> Result<Entry, FormatError> {
    let element = kind(window, name)?;
    let count = window.u64(format_args!("{name}: count"))?;
    if count > ARRAY_COUNT_MAX {
        return Err(window.limit(format_args!("{name}: count"), count, ARRAY_COUNT_MAX));
    }
    let offset = window.position();
    match element {
        Kind::Array => {
            return Err(window.invalid(format_args!("{name}: type"), "an array of arrays"));
        }
        Kind::Text => {
            // A length at least for each, before the first is looked at.
            window.need(format_args!("{name}"), 8 * count)?;
            for _ in 0..count {
                string(window, name)?;
            }
        }
        scalar => {
            let bytes = scalar.bytes().unwrap_or(0);
            window.skip(format_args!("{name}"), count * bytes)?;
        }
    }
    let bytes = window.position() - offset;
    Ok(Entry { kind: Kind::Array, element: Some(element), count, offset, bytes })
}

/// `general.alignment`: a power of two.
fn alignment(metadata: &Metadata) -> Result<u64, FormatError> {
    let Some(kind) = metadata.kind(ALIGNMENT_KEY) else { return Ok(ALIGNMENT) };
    if kind != Kind::U32 {
        return Err(metadata.invalid(ALIGNMENT_KEY, "is not of type u32"));
    }
    let found = metadata.unsigned(ALIGNMENT_KEY)?.unwrap_or(ALIGNMENT);
    if found.is_power_of_two() {
        return Ok(found);
    }
    Err(metadata.invalid(ALIGNMENT_KEY, format!("{found} is not a power of two")))
}

/// One tensor; `expected` is where the one before it ends.
fn tensor<R: Read>(
    window: &mut Window<'_, R>,
    index: u64,
    alignment: u64,
    expected: u64,
) -> Result<RawTensor, FormatError> {
    let field = format!("tensor {index}");
    let bytes = window.u64(format_args!("{field}: length of its name"))?;
    let name = window.bytes(format_args!("{field}: name"), bytes, NAME_BYTES_MAX - 1)?;
    let plain = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
    let Some(name) = String::from_utf8(name).ok().filter(|_| plain) else {
        return Err(window.invalid(format_args!("{field}: name"), "is not plain text"));
    };
    let dimensions = window.u32(format_args!("{name}: dimensions"))?;
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        let found = format!("{dimensions}, not 1 to {DIMENSIONS_MAX}");
        return Err(window.invalid(format_args!("{name}: dimensions"), found));
    }
    let mut shape = Vec::with_capacity(DIMENSIONS_MAX as usize);
    let mut values = 1_u64;
    for _ in 0..dimensions {
        let size = window.u64(format_args!("{name}: shape"))?;
        if size == 0 || size > i64::MAX as u64 {
            let found = format!("a dimension of {}", size.cast_signed());
            return Err(window.invalid(format_args!("{name}: shape"), found));
        }
        let product = values.checked_mul(size).filter(|&product| product <= i64::MAX as u64);
        let overflows = || window.invalid(format_args!("{name}: shape"), "overflows");
        values = product.ok_or_else(overflows)?;
        shape.push(usize::try_from(size).map_err(|_| overflows())?);
    }
    let id = window.u32(format_args!("{name}: type"))?;
    let Some(ggml) = GgmlType::of(id) else {
        let remedy = "update this program, or convert the model to another type";
        let found = format!("number {id}");
        return Err(FormatError::unsupported(
            window.path(),
            format!("{name}: type"),
            found,
            remedy,
        ));
    };
    let columns = shape[0] as u64;
    if !columns.is_multiple_of(ggml.values) {
        let found = format!("rows of {columns} are no whole blocks of {}", ggml.name);
        return Err(window.invalid(format_args!("{name}: shape"), found));
    }
    let length = (values / ggml.values).checked_mul(ggml.bytes);
    let length = length.filter(|&length| length <= i64::MAX as u64 - alignment);
    let Some(length) = length else {
        return Err(window.invalid(format_args!("{name}: shape"), "overflows"));
    };
    let offset = window.u64(format_args!("{name}: offset"))?;
    if offset != expected {
        let found = format!("{offset}, but the tensor before it ends at {expected}");
        return Err(window.invalid(format_args!("{name}: offset"), found));
    }
    // Compared with the file's length in `place`, once the last tensor is known.
    if offset.checked_add(length).is_none_or(|end| end > FILE_BYTES_MAX) {
        return Err(window.invalid(format_args!("{name}: offset"), "overflows"));
    }
    shape.reverse();
    Ok(RawTensor { name, ggml, shape, offset, length })
}

/// Turns offsets into places in the file, and compares the last with the file's end.
fn place<R: Read>(
    window: &Window<'_, R>,
    tensors: &mut [RawTensor],
    alignment: u64,
) -> Result<(), FormatError> {
    let start = window.position().next_multiple_of(alignment);
    let mut end = window.position();
    for tensor in tensors.iter_mut() {
        tensor.offset += start;
        end = tensor.offset + tensor.length;
    }
    if let Some(last) = tensors.last().filter(|_| end > window.length()) {
        return Err(FormatError::length(window.path(), &last.name, end, window.length()));
    }
    if window.length() > end.next_multiple_of(alignment) {
        let found = format!("the file goes on for {} bytes", window.length() - end);
        let field = "end of the last tensor";
        return Err(FormatError::invalid(window.path(), field, found, DOWNLOAD_AGAIN));
    }
    Ok(())
}
