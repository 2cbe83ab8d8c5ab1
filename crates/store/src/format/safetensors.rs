//! The header of a safetensors file.
//!
//! Layout: `u64` header length N, N bytes of JSON `{name: {dtype, shape, data_offsets}}`, then the
//! tensors' bytes; offsets count from the end of the header. Files written by MLX do not pad the
//! header, so tensors begin at any byte address.
//!
//! An own reader rather than the `safetensors` crate: that one wants the header in one slice, takes
//! the last of two equal names, and cannot say which tensor of which file is wrong. This one streams,
//! bounds everything, and accepts only headers whose tensors tile the data exactly: no hole, no
//! overlap, nothing past the end.

use std::fmt;
use std::hash::Hasher;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use kernels::format::{Encoding, FloatType};
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use twox_hash::XxHash3_64;

use super::Integer;
use super::error::{DOWNLOAD_AGAIN, FormatError};

/// Header limit of the safetensors format itself.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Far above the 141,312 expert matrices of the largest known model.
const TENSORS_MAX: usize = 1_000_000;
const NAME_BYTES_MAX: usize = 512;
const DIMENSIONS_MAX: usize = 8;

/// One tensor as the header describes it, checked against the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawTensor {
    pub(crate) name: String,
    pub(crate) dtype: RawType,
    pub(crate) shape: Vec<usize>,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) tensors: Vec<RawTensor>,
    /// `__metadata__.format`: "mlx" or "pt".
    pub(crate) format: Option<String>,
    /// Checksum of the header's bytes.
    pub(crate) checksum: u64,
}

/// Element types of safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawType {
    F32,
    F16,
    Bf16,
    U32,
    U8,
    /// Whole numbers that tables have.
    Whole(Integer),
    /// Float types of 8 bits or fewer, and 6-bit and 4-bit floats.
    Float8(&'static str),
    /// Types that no part of a model that we read has.
    Other(&'static str),
    /// What another layout says in full.
    Encoded(Encoding),
}

impl RawType {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "U32" => Self::U32,
            "U8" => Self::U8,
            "F8_E4M3" => Self::Float8("F8_E4M3"),
            "F8_E5M2" => Self::Float8("F8_E5M2"),
            "F8_E8M0" => Self::Float8("F8_E8M0"),
            "BOOL" => Self::Other("BOOL"),
            "I8" => Self::Other("I8"),
            "I16" => Self::Other("I16"),
            "U16" => Self::Other("U16"),
            "I32" => Self::Whole(Integer::I32),
            "I64" => Self::Whole(Integer::I64),
            "U64" => Self::Other("U64"),
            "F64" => Self::Other("F64"),
            "C64" => Self::Other("C64"),
            _ => return None,
        })
    }

    /// The name as written in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::U32 => "U32",
            Self::U8 => "U8",
            Self::Whole(Integer::I32) => "I32",
            Self::Whole(Integer::I64) => "I64",
            Self::Float8(name) | Self::Other(name) => name,
            Self::Encoded(_) => "encoded",
        }
    }

    /// The type as kernels have it; `None` for other than floats of 16 and 32 bits.
    pub(crate) fn float(self) -> Option<FloatType> {
        match self {
            Self::F32 => Some(FloatType::F32),
            Self::F16 => Some(FloatType::F16),
            Self::Bf16 => Some(FloatType::Bf16),
            _ => None,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 | Self::Float8(_) => 1,
            Self::Other("BOOL" | "I8") => 1,
            Self::Other("I16" | "U16") => 2,
            Self::Whole(integer) => integer.bytes() as u64,
            Self::Other(_) => 8,
            // Its bytes are counted where it is read.
            Self::Encoded(_) => 0,
        }
    }
}

/// Reads the header of a safetensors file of `length` bytes from `reader`: where the tensors lie, in order. `path` is
/// what errors call the file.
///
/// # Errors
/// What `reader` reports, and a header that breaks a rule.
pub fn read_safetensors_header(
    path: &Path,
    reader: impl Read,
    length: u64,
) -> Result<Vec<Range<u64>>, FormatError> {
    let header = read_header(path, reader, length)?;
    Ok(header.tensors.iter().map(|tensor| tensor.offset..tensor.offset + tensor.length).collect())
}

/// Reads the header of the file `path` of `length` bytes from `reader`, which stands at its start.
pub(crate) fn read_header(
    path: &Path,
    mut reader: impl Read,
    length: u64,
) -> Result<Header, FormatError> {
    if length < 8 {
        return Err(FormatError::length(path, "header length", 8, length));
    }
    let mut prefix = [0_u8; 8];
    reader.read_exact(&mut prefix).map_err(|error| FormatError::io(path, "read", error))?;
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(FormatError::limit(path, "header length", header_bytes, HEADER_BYTES_MAX));
    }
    let data_start = 8 + header_bytes;
    if data_start > length {
        return Err(FormatError::length(path, "header", data_start, length));
    }
    let mut hashing = Hashing { inner: reader.take(header_bytes), hasher: XxHash3_64::new() };
    let parsed = parse_json(BufReader::with_capacity(64 << 10, &mut hashing));
    let (entries, format) = parsed.map_err(|error| {
        if error.is_io() {
            return FormatError::io(path, "read", error.into());
        }
        FormatError::invalid(path, "safetensors header", error.to_string(), DOWNLOAD_AGAIN)
    })?;
    let checksum = hashing.hasher.finish();
    let tensors = place(path, entries, data_start, length)?;
    Ok(Header { tensors, format, checksum })
}

/// Checks shapes and offsets and turns them into places in the file.
fn place(
    path: &Path,
    entries: Vec<(String, Entry)>,
    data_start: u64,
    length: u64,
) -> Result<Vec<RawTensor>, FormatError> {
    // Of a file that was cut the size that it should have is said, and not where its first missing tensor ends.
    let last = entries.iter().max_by_key(|(_, entry)| entry.data_offsets[1]);
    if let Some((name, entry)) = last.filter(|(_, it)| it.data_offsets[1] > length - data_start) {
        let needed = data_start.saturating_add(entry.data_offsets[1]);
        return Err(FormatError::length(path, name, needed, length));
    }
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        tensors.push(place_one(path, name, entry, data_start)?);
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(FormatError::invalid(path, &pair[0].name, "occurs twice", DOWNLOAD_AGAIN));
    }
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.length));
    let mut end = data_start;
    for tensor in &tensors {
        if tensor.offset != end {
            let what =
                if tensor.offset < end { "overlaps the tensor before it" } else { "leaves a hole" };
            let found = format!("begins at byte {}, {what}, which ends at {end}", tensor.offset);
            return Err(FormatError::invalid(path, &tensor.name, found, DOWNLOAD_AGAIN));
        }
        end += tensor.length;
    }
    if end != length {
        return Err(FormatError::length(path, "end of the last tensor", end, length));
    }
    Ok(tensors)
}

fn place_one(
    path: &Path,
    name: String,
    entry: Entry,
    data_start: u64,
) -> Result<RawTensor, FormatError> {
    let invalid = |found: String| FormatError::invalid(path, &name, found, DOWNLOAD_AGAIN);
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(FormatError::invalid(
            path,
            "tensor name",
            format!("{} bytes long: {name}", name.len()),
            "names have 1 to 512 bytes",
        ));
    }
    if entry.shape.len() > DIMENSIONS_MAX {
        let (found, limit) = (entry.shape.len() as u64, DIMENSIONS_MAX as u64);
        return Err(FormatError::limit(path, format!("{name}: dimensions"), found, limit));
    }
    let Some(dtype) = RawType::parse(&entry.dtype) else {
        return Err(FormatError::unsupported(
            path,
            format!("{name}: dtype"),
            entry.dtype,
            "known are F32, F16, BF16, U32 and the other types of safetensors 0.5",
        ));
    };
    let mut bytes = dtype.bytes();
    for dimension in &entry.shape {
        bytes = bytes
            .checked_mul(*dimension)
            .ok_or_else(|| invalid(format!("shape {:?} overflows", entry.shape)))?;
    }
    let [begin, end] = entry.data_offsets;
    if begin > end {
        return Err(invalid(format!("data_offsets [{begin}, {end}] run backwards")));
    }
    if end - begin != bytes {
        return Err(invalid(format!(
            "{} of shape {:?} takes {bytes} bytes but data_offsets span {}",
            entry.dtype,
            entry.shape,
            end - begin
        )));
    }
    let shape: Result<Vec<usize>, _> = entry.shape.iter().map(|&n| usize::try_from(n)).collect();
    let shape = shape.map_err(|_| invalid(format!("shape {:?} overflows", entry.shape)))?;
    Ok(RawTensor { name, dtype, shape, offset: data_start + begin, length: end - begin })
}

/// Passes bytes through and keeps their checksum.
struct Hashing<R> {
    inner: R,
    hasher: XxHash3_64,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.write(&buffer[..count]);
        Ok(count)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

type Entries = (Vec<(String, Entry)>, Option<String>);

fn parse_json(reader: impl Read) -> Result<Entries, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let entries = deserializer.deserialize_map(HeaderVisitor)?;
    deserializer.end()?;
    Ok(entries)
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Entries;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        let mut format = None;
        let mut metadata_seen = false;
        while let Some(name) = access.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut metadata_seen, true) {
                    return Err(de::Error::custom("__metadata__ occurs twice"));
                }
                format = access.next_value_seed(MetadataFormat)?;
                continue;
            }
            if entries.len() == TENSORS_MAX {
                return Err(de::Error::custom(format!("more than {TENSORS_MAX} tensors")));
            }
            let entry = access
                .next_value::<Entry>()
                .map_err(|error| de::Error::custom(format!("tensor {name:?}: {error}")))?;
            entries.push((name, entry));
        }
        Ok((entries, format))
    }
}

/// Takes `format` out of `__metadata__` and lets the rest go by unstored.
struct MetadataFormat;

impl<'de> DeserializeSeed<'de> for MetadataFormat {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetadataFormat {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of texts under __metadata__")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut format = None;
        while let Some(key) = access.next_key::<String>()? {
            if key == "format" {
                format = Some(access.next_value()?);
            } else {
                access.next_value::<IgnoredAny>()?;
            }
        }
        Ok(format)
    }
}
