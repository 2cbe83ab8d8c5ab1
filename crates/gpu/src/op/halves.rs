//! Rows as pairs of f16, for products by matrices of f16: a value is the sum of both, times its row's power of two.
//!
//! The power of two brings a row's greatest value to 2^13, so that neither half is too large for f16 and 22 bits of
//! every value within 2^-15 of the greatest are kept.
//!
//! Behind a row's values are the sums of 32 of them each, in halves too: what is added to all weights of a group is
//! multiplied by these instead of by every value.

use super::Op;
use crate::source::{Form, Source, tree_max};
use crate::{Buffer, Gpu, GpuError};

/// What weights are multiplied by before they become f16; rows' factors undo it.
pub(crate) const WEIGHT_SCALE: &str = "16.0";

/// Values of a sum.
pub(crate) const SUM_COLUMNS: u32 = 32;
/// What sums are multiplied by before they become f16, as 32 values may be 32 times the greatest.
pub(crate) const SUM_SCALE: &str = "0.0625";

/// Rows in halves, and what each row's products are multiplied by.
#[derive(Clone, Debug)]
pub struct Halves {
    /// `[rows, 2, stride]` of f16: values, then sums, then zeros ([`Halves::stride`]).
    pub values: Buffer,
    /// `[rows]` of f32.
    pub factors: Buffer,
}

impl Halves {
    /// Numbers of f16 of one half of a row: of each 1,024 values, or fewer, 32 sums.
    pub fn stride(width: usize) -> usize {
        width + width.div_ceil(1024) * 32
    }

    /// Numbers of 32 bits of `values` and `factors`.
    pub fn sizes(rows: usize, width: usize) -> [usize; 2] {
        [rows * Self::stride(width), rows]
    }
}

pub(crate) fn source(form: Form) -> (Source, String) {
    let source = Source::new()
        .extension("f16")
        .read("x", "vec4<f32>")
        .write("halves", "vec4<f16>")
        .write("factors", "f32")
        .parameters(&["quads"])
        .shared("red", "array<f32, 256>")
        .shared("sums", "array<vec4<f32>, 8>")
        .function(tree_max(form));
    let text = "
        let row = wid.y * 32768u + wid.x;
        let at = row * p.quads;
        let rounds = (p.quads + 255u) >> 8u;
        let stride = p.quads + rounds * 8u;
        let to = row * 2u * stride;
        var greatest = 0.0;
        for (var i = lid; i < p.quads; i = i + 256u) {
            let a = abs(x[at + i]);
            greatest = max(greatest, max(max(a.x, a.y), max(a.z, a.w)));
        }
        red[lid] = greatest;
        let exponent = clamp(267u - min(bitcast<u32>(tree_max(lid)) >> 23u, 254u), 1u, 249u);
        let scale = bitcast<f32>(exponent << 23u);
        for (var round = 0u; round < rounds; round = round + 1u) {
            let i = round * 256u + lid;
            var sum = 0.0;
            if i < p.quads {
                let value = x[at + i] * scale;
                // By its bits: a driver may take a value that became f16 and f32 again to be the value.
                let high = bitcast<vec4<f32>>(bitcast<vec4<u32>>(value) & vec4<u32>(0xffffe000u));
                halves[to + i] = vec4<f16>(high);
                halves[to + stride + i] = vec4<f16>(value - high);
                sum = (value.x + value.y) + (value.z + value.w);
            }
            red[lid] = sum;
            workgroupBarrier();
            if lid < 32u {
                let first = lid * 8u;
                sums[lid >> 2u][lid & 3u] = SCALE
                    * (((red[first] + red[first + 1u]) + (red[first + 2u] + red[first + 3u]))
                    + ((red[first + 4u] + red[first + 5u]) + (red[first + 6u] + red[first + 7u])));
            }
            workgroupBarrier();
            if lid < 8u {
                let value = sums[lid];
                let high = bitcast<vec4<f32>>(bitcast<vec4<u32>>(value) & vec4<u32>(0xffffe000u));
                let place = to + p.quads + round * 8u + lid;
                halves[place] = vec4<f16>(high);
                halves[place + stride] = vec4<f16>(value - high);
            }
        }
        // The inverse, and that of what weights are multiplied by.
        if lid == 0u { factors[row] = bitcast<f32>((250u - exponent) << 23u); }
        ";
    (source, text.replace("SCALE", SUM_SCALE))
}

/// Parts `x[rows, width]`; `width` is a multiple of 4.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    x: &Buffer,
    to: &Halves,
    (rows, width): (usize, usize),
) -> Result<(), GpuError> {
    debug_assert!(width.is_multiple_of(4), "rows of {width}");
    let spans = [x.all(), to.values.all(), to.factors.all()];
    let groups = [rows.min(32768) as u32, rows.div_ceil(32768) as u32, 1];
    gpu.dispatch(Op::Halves, &spans, &[width as u32 / 4], groups)
}
