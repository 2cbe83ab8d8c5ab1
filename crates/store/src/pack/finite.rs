//! Looking for numbers that are none: damage, or malice, that shows in the bytes themselves.
//!
//! A scale that is not a number makes every answer not a number, or worse, only some. Layouts without checksums have
//! nothing else that says what their bytes should be, and a pack must not vouch with its checksums for such a number.

use std::fs::File;

use kernels::format::{BlockFormat, Encoding, FloatType, GlobalScale, ScaleType};

use super::{PackError, PackProgress, Progress};
use crate::format::{Checkpoint, Element, Extent, FileId, RowTable, files};
use crate::io::platform::FileExt;

/// About how many bytes are read at a time.
const READ_BYTES: usize = 4 << 20;

/// What the bytes of a plane of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plane {
    Float(FloatType),
    Block(BlockFormat),
    /// 8-bit floats: 4 bits of exponent, 3 of mantissa, no infinities.
    E4m3,
    /// Powers of two.
    E8m0,
    /// A binary32 number that others are divided by.
    Divisor,
    /// Whole numbers: all of them are numbers.
    Whole,
}

impl Plane {
    /// The planes of a tensor: values, scales, biases.
    pub(super) fn of(element: Element) -> [Self; 3] {
        let Some(encoding) = element.encoding() else { return [Self::Whole; 3] };
        match encoding {
            Encoding::Float(float) => [Self::Float(float), Self::Whole, Self::Whole],
            Encoding::Block(format) => [Self::Block(format), Self::Whole, Self::Whole],
            Encoding::Affine { scale, .. } => [Self::Whole, Self::Float(scale), Self::Float(scale)],
            Encoding::Symmetric { scale, .. } | Encoding::Zeroed { scale, .. } => {
                [Self::Whole, Self::Float(scale), Self::Whole]
            }
            Encoding::Mxfp4 => [Self::Whole, Self::E8m0, Self::Whole],
            Encoding::Fp8Rows { scale, .. } => [Self::E4m3, Self::Float(scale), Self::Whole],
            Encoding::Nvfp4 { global: GlobalScale::Multiplies } => {
                [Self::Whole, Self::E4m3, Self::Float(FloatType::F32)]
            }
            Encoding::Nvfp4 { global: GlobalScale::Divides } => {
                [Self::Whole, Self::E4m3, Self::Divisor]
            }
            Encoding::Fp8 { scale } => {
                let scales = match scale {
                    ScaleType::Float(float) => Self::Float(float),
                    ScaleType::E8m0 => Self::E8m0,
                };
                [Self::E4m3, scales, Self::Whole]
            }
        }
    }

    /// Bytes that are judged together.
    pub(super) fn unit(self) -> usize {
        match self {
            Self::Float(float) => float.bytes(),
            Self::Block(format) => format.bytes(),
            Self::Divisor => FloatType::F32.bytes(),
            Self::E4m3 | Self::E8m0 | Self::Whole => 1,
        }
    }

    /// The first byte of the first unit that holds a number that is none. `bytes` are whole units.
    pub(super) fn first_wrong(self, bytes: &[u8]) -> Option<usize> {
        let mut units = bytes.chunks_exact(self.unit());
        let found = match self {
            Self::Whole => None,
            Self::Float(float) => units.position(|unit| !float.decode(unit, 0).is_finite()),
            Self::Divisor => units.position(|unit| !FloatType::F32.decode(unit, 0).is_normal()),
            Self::Block(format) => units.position(|unit| !format.is_finite(unit)),
            Self::E4m3 => bytes.iter().position(|byte| byte & 0x7f == 0x7f),
            Self::E8m0 => bytes.iter().position(|&byte| byte == 0xff),
        };
        found.map(|index| index * self.unit())
    }
}

/// The planes of every tensor and expert, with their names.
fn planes(checkpoint: &Checkpoint) -> impl Iterator<Item = (String, Extent, Plane)> {
    let pairs = |element, weight, pair: Option<(Extent, Extent)>| {
        let rest = pair.into_iter().flat_map(|(scales, biases)| [scales, biases]);
        std::iter::once(weight).chain(rest).zip(Plane::of(element))
    };
    let trunk = checkpoint.tensors.iter().flat_map(move |(name, tensor)| {
        let planes = pairs(tensor.element, tensor.weight, tensor.scales_biases);
        planes.map(|(extent, plane)| (name.clone(), extent, plane))
    });
    let layers = checkpoint.experts.iter().enumerate();
    let layers = layers.filter_map(|(layer, experts)| Some((layer, experts.as_ref()?)));
    let experts = layers.flat_map(move |(layer, experts)| {
        experts.experts.iter().enumerate().flat_map(move |(expert, extents)| {
            let matrices = extents.weight.iter().zip(&extents.scales_biases).zip(&experts.shapes);
            matrices.flat_map(move |((&weight, &pair), shape)| {
                let planes = pairs(shape.encoding.into(), weight, pair);
                let name = move || format!("layer {layer}, expert {expert}");
                planes.map(move |(extent, plane)| (name(), extent, plane))
            })
        })
    });
    let tables = checkpoint.row_tables.iter().flat_map(move |(name, table)| {
        table.parts.iter().flat_map(move |part| {
            let planes = pairs(table.encoding.into(), part.extent, part.scales_biases);
            planes.map(move |(extent, plane)| (name.clone(), extent, plane))
        })
    });
    trunk.chain(experts).chain(tables)
}

/// Whose byte that is, for messages.
pub(super) fn owner(checkpoint: &Checkpoint, file: FileId, offset: u64) -> String {
    let holds = |extent: &Extent| {
        extent.file == file && (extent.offset..extent.offset + extent.length).contains(&offset)
    };
    let found = planes(checkpoint).find(|(_, extent, _)| holds(extent));
    found.map_or_else(|| "no tensor".to_owned(), |(name, ..)| name)
}

/// Looks at every tensor; gives the bytes read, and adds to `damaged` what holds a value that is not finite.
pub(super) fn examine(
    checkpoint: &Checkpoint,
    damaged: &mut Vec<String>,
    progress: &mut Progress<'_>,
) -> Result<u64, PackError> {
    let opened = checkpoint.files.iter().map(|file| Ok(files::open_regular(&file.path)?.file));
    let opened = opened.collect::<Result<Vec<_>, PackError>>()?;
    let rows = checkpoint.row_tables.values().map(RowTable::bytes).sum::<u64>();
    let total_bytes = checkpoint.trunk_bytes() + checkpoint.expert_bytes() + rows;
    let mut done_bytes = 0;
    for (name, extent, plane) in planes(checkpoint) {
        let file = extent.file.0 as usize;
        let path = &checkpoint.files[file].path;
        let found = first_wrong(&opened[file], extent, plane, &mut |bytes| {
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
    }
    Ok(done_bytes)
}

enum Stop {
    Io(std::io::Error),
    Asked,
}

/// Where the first value lies that is not finite. What has only numbers is not read.
fn first_wrong(
    file: &File,
    extent: Extent,
    plane: Plane,
    step: &mut dyn FnMut(u64) -> std::ops::ControlFlow<()>,
) -> Result<Option<u64>, Stop> {
    let unit = plane.unit();
    let most = (READ_BYTES / unit * unit) as u64;
    let mut buffer = vec![0; most.min(extent.length) as usize];
    let (mut offset, end) = (extent.offset, extent.offset + extent.length);
    let mut found = None;
    while offset < end {
        let length = most.min(end - offset);
        if found.is_none() && plane != Plane::Whole {
            let part = &mut buffer[..length as usize];
            file.read_exact_at(part, offset).map_err(Stop::Io)?;
            found = plane.first_wrong(part).map(|index| offset + index as u64);
        }
        offset += length;
        if step(length).is_break() {
            return Err(Stop::Asked);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_found_in_every_kind_of_plane() {
        let bf16 = Plane::Float(FloatType::Bf16);
        assert_eq!(bf16.first_wrong(&[0, 0, 0x80, 0x7f, 0, 0]), Some(2));
        assert_eq!(bf16.first_wrong(&[0xff, 0x7f]), Some(0));
        assert_eq!(bf16.first_wrong(&[0x7f, 0x7f, 0x80, 0xff]), Some(2));
        assert_eq!(Plane::E8m0.first_wrong(&[0, 127, 254]), None);
        assert_eq!(Plane::E8m0.first_wrong(&[0, 255, 255]), Some(1));
        assert_eq!(Plane::E4m3.first_wrong(&[0x7e, 0xfe, 0x80]), None);
        assert_eq!(Plane::E4m3.first_wrong(&[0x7e, 0xff]), Some(1));
        assert_eq!(Plane::Whole.first_wrong(&[0xff; 64]), None);
    }
}
