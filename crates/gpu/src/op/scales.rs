//! Where the scales of a matrix lie, and what else its values meet: biases or zero points.
//!
//! Scales are a plane of numbers, counted from the matrix's first. Kernels know where those of a row begin; the group
//! of a column adds to that.

use kernels::format::{FP8_TILE, GlobalScale, ScaleType};

use super::blocks;
use super::packing::{Float, Packing, Share};

/// What a third plane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Third {
    /// A bias for each scale, stored as it is.
    Biases,
    /// A zero point for each scale, in words that hold those of consecutive rows.
    Zeros,
    /// One number that all scales meet.
    Shared,
}

impl Packing {
    /// True where values are multiplied by scales of a plane.
    pub(crate) fn is_scaled(self) -> bool {
        self.planes() > 1
    }

    /// Values of a row that share a scale; 0 without scales in a plane, or where all values of a row do.
    pub(crate) fn group(self) -> u32 {
        match self {
            Self::Float(_) | Self::Block(_) => 0,
            Self::Affine { group, .. } | Self::Integer { group, .. } => u32::from(group),
            Self::Fp8 { share: Share::Tile, .. } => FP8_TILE as u32,
            Self::Fp8 { .. } => 0,
            Self::Mxfp4 => 32,
            Self::Nvfp4 { .. } => 16,
        }
    }

    /// What the third plane has; `None` without.
    pub(crate) fn third(self) -> Option<Third> {
        match self {
            Self::Affine { .. } => Some(Third::Biases),
            Self::Integer { zeros: true, .. } => Some(Third::Zeros),
            Self::Nvfp4 { .. } => Some(Third::Shared),
            Self::Float(_)
            | Self::Block(_)
            | Self::Integer { .. }
            | Self::Fp8 { .. }
            | Self::Mxfp4 => None,
        }
    }

    /// Planes of weights, scales, and biases or what else there is.
    pub(crate) fn planes(self) -> usize {
        match self {
            Self::Float(_) | Self::Block(_) => 1,
            _ => 2 + usize::from(self.third().is_some()),
        }
    }

    /// True where groups have biases.
    pub(crate) fn is_biased(self) -> bool {
        self.third() == Some(Third::Biases)
    }

    /// The step from a row's scales to the next's, or from those of 128 rows, in numbers; 0 without.
    pub(crate) fn row_groups(self, columns: usize) -> u32 {
        match self {
            Self::Fp8 { share: Share::Tile, .. } => columns.div_ceil(FP8_TILE) as u32,
            Self::Fp8 { share: Share::Row, .. } => 1,
            _ => (columns as u32).checked_div(self.group()).unwrap_or(0),
        }
    }

    /// The number of a row's first scale.
    pub(crate) fn row_scales(self, row: &str) -> String {
        match self {
            Self::Fp8 { share: Share::Tile, .. } => format!("({row} / {FP8_TILE}u) * p.row_groups"),
            _ => format!("{row} * p.row_groups"),
        }
    }

    /// The number of the scale of a column in a row whose first is `start`.
    pub(crate) fn scale_index(self, start: &str, column: &str) -> String {
        match self {
            Self::Fp8 { share: Share::Row | Share::Matrix, .. } => start.to_owned(),
            _ => format!("{start} + {column} / {}u", self.group()),
        }
    }

    /// The word of the third plane that a column of a row needs; `word` is that of the scale.
    pub(crate) fn third_word(self, row: &str, column: &str, word: &str) -> String {
        match self {
            Self::Integer { bits, group, zeros: true, .. } => {
                format!("({row} / {}u * p.row_groups + {column} / {group}u)", 32 / bits)
            }
            Self::Nvfp4 { .. } => "0u".to_owned(),
            _ => word.to_owned(),
        }
    }

    /// Statements that declare `scale{suffix}` of scale number `index` of a row, and `bias{suffix}` or `zero{suffix}`
    /// where there is one, from the words of both planes.
    pub(crate) fn scaling(
        self,
        suffix: &str,
        row: &str,
        index: &str,
        [scale, third]: [&str; 2],
    ) -> String {
        let own = format!("number({scale}, {index})");
        let scale = match self {
            // Half of the scale, as values are doubled.
            Self::Nvfp4 { global } => {
                let meets = if global == GlobalScale::Multiplies { '*' } else { '/' };
                format!("0.5 * ({own} {meets} bitcast<f32>({third}))")
            }
            _ => own,
        };
        let scale = format!("let scale{suffix} = {scale};\n");
        let other = match (self.third(), self) {
            (Some(Third::Biases), _) => format!("let bias{suffix} = number({third}, {index});\n"),
            (Some(Third::Zeros), Self::Integer { bits, .. }) => {
                let shift = format!("({row} % {}u * {bits}u)", 32 / bits);
                let field = format!("({third} >> {shift}) & {}u", (1u32 << bits) - 1);
                format!("let zero{suffix} = {};\n", blocks::exact(&field, 0))
            }
            _ => String::new(),
        };
        scale + &other
    }

    /// A function `number(word, index)` that gives the scale or bias of `index` from the word that holds it, and the
    /// shift that turns an index into that of its word.
    pub(crate) fn number(self) -> (&'static str, u32) {
        match self {
            Self::Float(_) | Self::Block(_) => ("", 0),
            Self::Affine { scale, .. } | Self::Integer { scale, .. } => float(scale),
            Self::Fp8 { scale: ScaleType::Float(scale), .. } => float(scale.into()),
            // Below 2^-126 the exponent is a bit of the mantissa; 255 is no finite number.
            Self::Fp8 { scale: ScaleType::E8m0, .. } => (
                "fn number(word: u32, index: u32) -> f32 {
    let e = (word >> ((index & 3u) * 8u)) & 255u;
    return bitcast<f32>(select(e << 23u, 0x00400000u, e == 0u));
}
",
                2,
            ),
            Self::Nvfp4 { .. } => (
                "fn number(word: u32, index: u32) -> f32 {
    let code = word >> ((index & 3u) * 8u);
    return float8(code << 20u, code << 24u);
}
",
                2,
            ),
            // Half of the power of two, as values are doubled. Below 2^-126 the exponent is a bit of the mantissa.
            Self::Mxfp4 => (
                "fn number(word: u32, index: u32) -> f32 {
    let e = (word >> ((index & 3u) * 8u)) & 255u;
    return bitcast<f32>(select((e - 1u) << 23u, 2097152u << e, e < 2u));
}
",
                2,
            ),
        }
    }
}

/// [`Packing::number`] of floats.
fn float(scale: Float) -> (&'static str, u32) {
    match scale {
        Float::F32 => {
            ("fn number(word: u32, index: u32) -> f32 { return bitcast<f32>(word); }\n", 0)
        }
        Float::F16 => (
            "fn number(word: u32, index: u32) -> f32 {
    return unpack2x16float(word >> ((index & 1u) * 16u)).x;
}
",
            1,
        ),
        Float::Bf16 => (
            "fn number(word: u32, index: u32) -> f32 {
    return bitcast<f32>((word >> ((index & 1u) * 16u)) << 16u);
}
",
            1,
        ),
    }
}
