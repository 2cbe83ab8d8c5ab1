//! Matrices of two tensors, values and scales: which encoding their types and shapes amount to.
//!
//! The layouts are those of publishers: 8-bit floats with a scale for each tile (DeepSeek-V3, GLM, MiniMax, Qwen with
//! floats as scales, DeepSeek-V4 with powers of two), and 4-bit floats with a power of two for each 32 values, as bytes
//! (gpt-oss in groups of sixteen, DeepSeek-V4 in rows) or as words (mlx-lm); integers of 4 and 8 bits with a float for
//! each group (Kimi-K2, in words by compressed-tensors); 4-bit floats in groups of 16 with 8-bit floats as scales and
//! one number for the matrix (NVFP4 of ModelOpt and of compressed-tensors).

use std::path::Path;

use kernels::format::{Encoding, FP8_TILE, GlobalScale, ScaleType};

use super::Integer;
use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::names::{GLOBAL_DIVISOR, GLOBAL_FACTOR, ZERO_POINT};
use super::published::Published;
use super::quantization::Scheme;
use super::safetensors::{RawTensor, RawType};

/// Why two tensors make no matrix.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// They contradict each other.
    Invalid(String),
    /// They follow a scheme that is not read.
    Unsupported(String),
}

impl Refusal {
    /// The error about the matrix `name` of a file.
    pub(super) fn of(self, path: &Path, name: &str) -> FormatError {
        match self {
            Self::Invalid(found) => FormatError::invalid(path, name, found, DOWNLOAD_AGAIN),
            Self::Unsupported(found) => FormatError::unsupported(path, name, found, READ),
        }
    }
}

/// What is read of this kind, for messages.
pub(super) const READ: &str = "fp8 is read with a scale for each tile of 128 x 128 (by row or matrix where config.json \
     says so), 4-bit floats with one of 8 bits for each 32 values, or for 16 and a number; else use the bf16 release \
     or an MLX affine quantisation";

/// Values of 4-bit floats that share a scale.
const GROUP: usize = 32;

/// Shape and encoding of the matrix of `weight` and `scales`; `published` is what config.json says of them.
/// `None` where the values have a type that comes with biases
/// as well.
pub(super) fn scaled(
    weight: &RawTensor,
    scales: &RawTensor,
    published: &Published,
) -> Option<Result<(Vec<usize>, Encoding), Refusal>> {
    match (weight.dtype, scales.dtype) {
        (RawType::U8, RawType::Float8("F8_E4M3")) => {
            let found = format!(
                "4-bit floats with 8-bit floats as scales, but without {GLOBAL_FACTOR} or {GLOBAL_DIVISOR}"
            );
            Some(Err(Refusal::Invalid(found)))
        }
        (RawType::Whole(Integer::I32), _) => Some(integers(weight, scales, None, published)),
        (RawType::Float8("F8_E4M3"), _) => Some(fp8(weight, scales, published)),
        (RawType::U8 | RawType::U32, RawType::U8)
        | (RawType::U8 | RawType::Other("I8"), RawType::Float8("F8_E8M0")) => {
            Some(mxfp4(weight, scales))
        }
        _ => None,
    }
}

fn fp8(
    weight: &RawTensor,
    scales: &RawTensor,
    published: &Published,
) -> Result<(Vec<usize>, Encoding), Refusal> {
    let scale = match scales.dtype {
        RawType::Float8("F8_E8M0") => ScaleType::E8m0,
        dtype => match dtype.float() {
            Some(float) => ScaleType::Float(float),
            None => {
                return Err(Refusal::Unsupported(format!("fp8 with scales of {}", dtype.name())));
            }
        },
    };
    if let ([outer @ .., _], ScaleType::Float(scale)) = (&weight.shape[..], scale)
        && let [stack @ .., _] = outer
    {
        let count = |shape: &[usize]| shape.iter().product::<usize>();
        let by_row = outer == scales.shape || scales.shape == [outer, &[1]].concat();
        let found = match count(&scales.shape) {
            _ if published.fp8_rows && by_row => Some(false),
            found if published.fp8_whole && found == count(stack) => Some(true),
            _ => None,
        };
        if let Some(shared) = found {
            return Ok((weight.shape.clone(), Encoding::Fp8Rows { scale, shared }));
        }
    }
    let tiled = match (&weight.shape[..], &scales.shape[..]) {
        ([outer @ .., rows, columns], [scale_outer @ .., tile_rows, tile_columns]) => {
            outer == scale_outer
                && (*tile_rows, *tile_columns)
                    == (rows.div_ceil(FP8_TILE), columns.div_ceil(FP8_TILE))
        }
        _ => false,
    };
    if !tiled {
        let shapes = format!("fp8 {:?} with scales {:?}", weight.shape, scales.shape);
        return Err(Refusal::Unsupported(shapes));
    }
    Ok((weight.shape.clone(), Encoding::Fp8 { scale }))
}

/// A matrix of packed integers: `[.., rows, columns * bits / 32]` words with scales `[.., rows, columns / group]` and,
/// if there are any, zero points in words `[.., rows * bits / 32, columns / group]`.
pub(super) fn integers(
    weight: &RawTensor,
    scales: &RawTensor,
    zeros: Option<&RawTensor>,
    published: &Published,
) -> Result<(Vec<usize>, Encoding), Refusal> {
    let Some(Scheme { bits, group, .. }) = published.integers else {
        let found =
            "packed integers, but config.json has no quantization_config of compressed-tensors";
        return Err(Refusal::Invalid(found.to_owned()));
    };
    if published.zeros != zeros.is_some() {
        let (has, says) = match published.zeros {
            true => ("no", "has"),
            false => ("a", "has no"),
        };
        let found = format!("{has} {ZERO_POINT}, but config.json says that it {says} zero points");
        return Err(Refusal::Invalid(found));
    }
    let Some(scale) = scales.dtype.float() else {
        let found = format!("packed integers with scales of {}", scales.dtype.name());
        return Err(Refusal::Unsupported(found));
    };
    let columns = match (&weight.shape[..], &scales.shape[..]) {
        ([outer @ .., words], [scale_outer @ .., groups])
            if outer == scale_outer && !outer.is_empty() =>
        {
            let columns = groups.checked_mul(group.into());
            let bits = |columns: &usize| columns.checked_mul(bits.into());
            columns.filter(|columns| {
                bits(columns).is_some_and(|bits| words.checked_mul(32) == Some(bits))
            })
        }
        _ => None,
    };
    let Some(columns) = columns else {
        let shapes = format!("packed {:?} and scales {:?}", weight.shape, scales.shape);
        let said = format!("{bits} bits in groups of {group} as config.json has it");
        return Err(Refusal::Invalid(format!("{shapes} contradict {said}")));
    };
    let mut shape = weight.shape.clone();
    shape.pop();
    if let Some(zeros) = zeros {
        let mut expected = scales.shape.clone();
        let at = expected.len() - 2;
        expected[at] = (expected[at].saturating_mul(bits.into())).div_ceil(32);
        if zeros.dtype != RawType::Whole(Integer::I32) || zeros.shape != expected {
            let found = format!("{} as {} {:?}", zeros.name, zeros.dtype.name(), zeros.shape);
            return Err(Refusal::Invalid(format!("{found}, not I32 {expected:?}")));
        }
        shape.push(columns);
        return Ok((shape, Encoding::Zeroed { bits, group, scale }));
    }
    shape.push(columns);
    Ok((shape, Encoding::Symmetric { bits, group, scale }))
}

fn mxfp4(weight: &RawTensor, scales: &RawTensor) -> Result<(Vec<usize>, Encoding), Refusal> {
    let (outer, groups) = match (&weight.shape[..], &scales.shape[..]) {
        // Groups of sixteen bytes.
        ([outer @ .., groups, 16], [scale_outer @ .., scale_groups])
            if weight.dtype == RawType::U8 && (outer, groups) == (scale_outer, scale_groups) =>
        {
            (outer, *groups)
        }
        // Rows of bytes, or of words of eight values.
        ([outer @ .., units], [scale_outer @ .., groups])
            if outer == scale_outer && !outer.is_empty() =>
        {
            let per_group = if weight.dtype == RawType::U32 { GROUP / 8 } else { GROUP / 2 };
            if units.checked_div(per_group) != Some(*groups) || units % per_group != 0 {
                let shapes = format!("values {:?} with scales {:?}", weight.shape, scales.shape);
                let found = format!("8-bit scales, no mxfp4: {shapes} (nvfp4 and mxfp8 have such)");
                return Err(Refusal::Unsupported(found));
            }
            (outer, *groups)
        }
        _ => {
            let shapes = format!("mxfp4 {:?} and scales {:?}", weight.shape, scales.shape);
            return Err(Refusal::Invalid(format!("{shapes} do not belong together")));
        }
    };
    let columns = groups.checked_mul(GROUP);
    let columns = columns.ok_or_else(|| Refusal::Invalid("more columns than can be".to_owned()))?;
    Ok((outer.iter().copied().chain([columns]).collect(), Encoding::Mxfp4))
}

/// Values of NVFP4 that share a scale.
const NVFP4_GROUP: usize = 16;

/// Whether a tensor is the number that all scales of a matrix share.
pub(super) fn is_global(tensor: &RawTensor) -> bool {
    [GLOBAL_FACTOR, GLOBAL_DIVISOR].iter().any(|name| tensor.name.ends_with(name))
}

/// Shape of the matrix of 4-bit floats `weight`, and what `shared` does to `scales`: `[.., rows, columns / 2]` bytes,
/// `[.., rows, columns / 16]` 8-bit floats, and one binary32 number, or one for each matrix of a stack.
pub(super) fn nvfp4(
    weight: &RawTensor,
    scales: &RawTensor,
    shared: &RawTensor,
) -> Result<(Vec<usize>, GlobalScale), Refusal> {
    let types = (weight.dtype, scales.dtype, shared.dtype);
    if types != (RawType::U8, RawType::Float8("F8_E4M3"), RawType::F32) {
        let names = [weight, scales, shared].map(|tensor| tensor.dtype.name()).join(", ");
        let found = format!("nvfp4 as {names}, not U8, F8_E4M3, F32");
        return Err(Refusal::Unsupported(found));
    }
    let (rows, bytes) = match (&weight.shape[..], &scales.shape[..]) {
        ([outer @ .., bytes], [scale_outer @ .., groups])
            if outer == scale_outer
                && !outer.is_empty()
                && groups.checked_mul(NVFP4_GROUP / 2) == Some(*bytes) =>
        {
            (outer, *bytes)
        }
        _ => {
            let shapes = format!("nvfp4 {:?} with scales {:?}", weight.shape, scales.shape);
            let found = format!("{shapes}: a scale is for eight bytes of a row");
            return Err(Refusal::Invalid(found));
        }
    };
    let matrices: usize = rows[..rows.len() - 1].iter().product();
    if shared.shape.iter().product::<usize>() != matrices {
        let found = format!("{} has shape {:?} for {matrices} matrices", shared.name, shared.shape);
        return Err(Refusal::Invalid(found));
    }
    let columns = bytes.checked_mul(2);
    let columns = columns.ok_or_else(|| Refusal::Invalid("more columns than can be".to_owned()))?;
    let global = match shared.name.ends_with(GLOBAL_FACTOR) {
        true => GlobalScale::Multiplies,
        false => GlobalScale::Divides,
    };
    Ok((rows.iter().copied().chain([columns]).collect(), global))
}
