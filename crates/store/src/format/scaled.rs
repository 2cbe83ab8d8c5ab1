//! Matrices of two tensors, values and scales: which encoding their types and shapes amount to.
//!
//! The layouts are those of publishers: 8-bit floats with a scale for each tile (DeepSeek-V3, GLM, MiniMax, Qwen with
//! floats as scales, DeepSeek-V4 with powers of two), and 4-bit floats with a power of two for each 32 values, as bytes
//! (gpt-oss in groups of sixteen, DeepSeek-V4 in rows) or as words (mlx-lm); integers of 4 and 8 bits with a float for
//! each group (Kimi-K2, in words by compressed-tensors).

use kernels::format::{Encoding, FP8_TILE, ScaleType};

use super::Integer;
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

/// What is read of this kind, for messages.
pub(super) const READ: &str = "fp8 is read with a scale for each tile of 128 x 128, 4-bit floats with one of 8 bits \
     for each 32 values; else use the bf16 release or an MLX affine quantisation";

/// Values of 4-bit floats that share a scale.
const GROUP: usize = 32;

/// Shape and encoding of the matrix of `weight` and `scales`; `packed` is what config.json says of packed integers.
/// `None` where the values have a type that comes with biases
/// as well.
pub(super) fn scaled(
    weight: &RawTensor,
    scales: &RawTensor,
    packed: Option<Scheme>,
) -> Option<Result<(Vec<usize>, Encoding), Refusal>> {
    match (weight.dtype, scales.dtype) {
        (RawType::Whole(Integer::I32), _) => Some(symmetric(weight, scales, packed)),
        (RawType::Float8("F8_E4M3"), _) => Some(fp8(weight, scales)),
        (RawType::U8 | RawType::U32, RawType::U8)
        | (RawType::U8 | RawType::Other("I8"), RawType::Float8("F8_E8M0")) => {
            Some(mxfp4(weight, scales))
        }
        _ => None,
    }
}

fn fp8(weight: &RawTensor, scales: &RawTensor) -> Result<(Vec<usize>, Encoding), Refusal> {
    let scale = match scales.dtype {
        RawType::Float8("F8_E8M0") => ScaleType::E8m0,
        dtype => match dtype.float() {
            Some(float) => ScaleType::Float(float),
            None => {
                return Err(Refusal::Unsupported(format!("fp8 with scales of {}", dtype.name())));
            }
        },
    };
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

fn symmetric(
    weight: &RawTensor,
    scales: &RawTensor,
    packed: Option<Scheme>,
) -> Result<(Vec<usize>, Encoding), Refusal> {
    let Some(Scheme { bits, group, .. }) = packed else {
        let found =
            "packed integers, but config.json has no quantization_config of compressed-tensors";
        return Err(Refusal::Invalid(found.to_owned()));
    };
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
