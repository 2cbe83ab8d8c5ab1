//! Encodes floats as affine group quantisation: three methods, and the measures of their error.
//!
//! [`Method::MinMax`] is what MLX does, [`Method::SeedMinMax`] what the first streaming engines did, and
//! [`Method::Search`] minimises the squared error of each group. All write the same format
//! (`format/`): packed values, scales, biases. A group depends on its own values alone, so rows may
//! be encoded in any order by any number of threads; this module starts none.

mod group;

use crate::float::{bf16_from_f32, f16_from_f32, f32_from_bf16, f32_from_f16};
use crate::format::{Encoding, FloatType, MatrixError, pack};
use thiserror::Error;

/// How scale and bias of a group are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// MLX: the extreme of larger magnitude becomes the bias and is exact, and the scale is adjusted so that
    /// zero is a multiple of it; the scale is negative when that extreme is the maximum.
    MinMax,
    /// `scale = (max - min) / levels`, `bias = min`, both then rounded to nearest.
    SeedMinMax,
    /// Scale and bias of least squared error among shrunken ranges, each refined by alternating
    /// assignment and least squares with rounded parameters.
    Search,
}

/// Why values cannot be encoded.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum QuantizeError {
    /// Shape and encoding do not fit.
    #[error(transparent)]
    Shape(#[from] MatrixError),
    /// A value has no place on any scale.
    #[error("value {value} at index {index} is not finite; the source tensor is damaged")]
    NotFinite {
        /// Index into the values given.
        index: usize,
        /// The value.
        value: f32,
    },
    /// There is no way to write the encoding, only to read it.
    #[error("nothing is encoded as {encoding}: take an affine encoding or a float type")]
    Unsupported {
        /// The encoding's name.
        encoding: &'static str,
    },
}

/// Destination of encoded rows; lengths as in [`Matrix`](crate::format::Matrix).
#[derive(Debug)]
pub struct Encoded<'a> {
    /// Packed values.
    pub weight: &'a mut [u8],
    /// Scales; empty for float encodings.
    pub scales: &'a mut [u8],
    /// Biases; empty for float encodings.
    pub biases: &'a mut [u8],
}

/// Encodes `values [rows, columns]`.
///
/// # Errors
///
/// If a length does not fit the encoding, a value is infinite or NaN, or the encoding is one of blocks.
pub fn encode(
    values: &[f32],
    columns: usize,
    encoding: Encoding,
    method: Method,
    out: &mut Encoded<'_>,
) -> Result<(), QuantizeError> {
    encoding.check(columns)?;
    let rows = values.len() / columns.max(1);
    let expect = |what, expected, found| {
        if expected == found { Ok(()) } else { Err(MatrixError { what, expected, found }) }
    };
    expect("values", rows * columns, values.len())?;
    let planes = encoding.plane_bytes(rows, columns);
    expect("weight bytes", planes[0], out.weight.len())?;
    expect("scale bytes", planes[1], out.scales.len())?;
    expect("bias bytes", planes[2], out.biases.len())?;
    if let Some((index, &value)) = values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        return Err(QuantizeError::NotFinite { index, value });
    }
    let (bits, group, float) = match encoding {
        Encoding::Float(float) => {
            for (&value, place) in values.iter().zip(out.weight.chunks_exact_mut(float.bytes())) {
                write(float, value, place);
            }
            return Ok(());
        }
        Encoding::Block(format) => {
            return Err(QuantizeError::Unsupported { encoding: format.name() });
        }
        Encoding::Mxfp4 => return Err(QuantizeError::Unsupported { encoding: "mxfp4" }),
        Encoding::Symmetric { .. } => {
            return Err(QuantizeError::Unsupported { encoding: "symmetric" });
        }
        Encoding::Nvfp4 { .. } => return Err(QuantizeError::Unsupported { encoding: "nvfp4" }),
        Encoding::Zeroed { .. } => return Err(QuantizeError::Unsupported { encoding: "zeroed" }),
        Encoding::Fp8 { .. } | Encoding::Fp8Rows { .. } => {
            return Err(QuantizeError::Unsupported { encoding: "fp8" });
        }
        Encoding::Affine { bits, group, scale } => (bits, usize::from(group), scale),
    };
    let packed = out.weight.chunks_exact_mut(group * usize::from(bits) / 8);
    let scales = out.scales.chunks_exact_mut(float.bytes());
    let biases = out.biases.chunks_exact_mut(float.bytes());
    let mut quantised = [0u8; 128];
    let quantised = &mut quantised[..group];
    for (((values, packed), scale), bias) in
        values.chunks_exact(group).zip(packed).zip(scales).zip(biases)
    {
        let (s, b) = group::encode(values, bits, method, float, quantised);
        pack(quantised, bits, packed);
        write(float, s, scale);
        write(float, b, bias);
    }
    Ok(())
}

/// Writes one float, rounded to nearest even.
fn write(float: FloatType, value: f32, place: &mut [u8]) {
    match float {
        FloatType::F32 => place.copy_from_slice(&value.to_le_bytes()),
        FloatType::F16 => place.copy_from_slice(&f16_from_f32(value).to_le_bytes()),
        FloatType::Bf16 => place.copy_from_slice(&bf16_from_f32(value).to_le_bytes()),
    }
}

/// What `value` becomes when stored as `float`.
fn rounded(float: FloatType, value: f32) -> f32 {
    match float {
        FloatType::F32 => value,
        FloatType::F16 => f32_from_f16(f16_from_f32(value)),
        FloatType::Bf16 => f32_from_bf16(bf16_from_f32(value)),
    }
}

/// Error of decoded values against the original.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Error {
    /// Values compared.
    pub count: usize,
    /// Sum of squared differences.
    pub squared_difference: f64,
    /// Sum of squared originals.
    pub squared_original: f64,
    /// Largest absolute difference.
    pub largest: f64,
}

impl Error {
    /// Adds the error of some decoded values.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn add(&mut self, original: &[f32], decoded: &[f32]) {
        assert_eq!(original.len(), decoded.len(), "values to compare");
        self.count += original.len();
        for (&x, &y) in original.iter().zip(decoded) {
            let difference = f64::from(x) - f64::from(y);
            self.squared_difference += difference * difference;
            self.squared_original += f64::from(x).powi(2);
            self.largest = self.largest.max(difference.abs());
        }
    }

    /// Adds what was measured elsewhere.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.squared_difference += other.squared_difference;
        self.squared_original += other.squared_original;
        self.largest = self.largest.max(other.largest);
    }

    /// Root mean square difference; 0 when nothing was compared.
    pub fn rmse(&self) -> f64 {
        (self.squared_difference / self.count.max(1) as f64).sqrt()
    }

    /// Root of the squared difference over the squared original; 0 when the original is zero
    /// and so is the difference.
    pub fn relative(&self) -> f64 {
        if self.squared_difference == 0.0 {
            return 0.0;
        }
        (self.squared_difference / self.squared_original).sqrt()
    }
}
