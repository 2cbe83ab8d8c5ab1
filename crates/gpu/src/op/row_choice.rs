//! The choice of a token's rows by their scores: the best, of equal ones the first, ascending. Rows are of one token
//! each, or of several that are pooled.
//!
//! A workgroup chooses for a token. In four rounds over its scores it counts how many have each value of eight more
//! bits, from the greatest on, until the last score that is chosen is known. Counts are added up by atomics, which
//! shows in no count. Then each invocation writes the chosen rows of a piece of its own, behind those of the pieces
//! before it.

use super::Op;
use super::attention::Run;
use super::row_index::Kernel;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// The functions of the kernel.
const FUNCTIONS: &str = "
// Bits whose order is that of the numbers; both zeros are one.
fn ordered(bits: u32) -> u32 {
    if bits == 0x80000000u { return bits; }
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
// The sum of what this invocation and those before it give.
fn add_up(lid: u32, own: vec2<u32>) -> vec2<u32> {
    sums[lid] = own;
    workgroupBarrier();
    for (var step = 1u; step < 256u; step = step << 1u) {
        var sum = sums[lid];
        if lid >= step { sum = sum + sums[lid - step]; }
        workgroupBarrier();
        sums[lid] = sum;
        workgroupBarrier();
    }
    return sums[lid];
}
";

/// Finds the last score that is chosen, by its ordered bits in `last`, and how many that are equal to it are, in
/// `wanted`.
const FIND: &str = "
        let visible = (p.position + wid.x + 1u) / p.ratio;
        if visible <= p.top { return; }
        let start = wid.x * p.stride;
        var last = 0u;
        var wanted = p.top;
        for (var round = 0u; round < 4u; round = round + 1u) {
            let shift = 24u - 8u * round;
            atomicStore(&bins[lid], 0u);
            workgroupBarrier();
            // Scores are often the same, zero: an invocation counts those that follow each other at once.
            var bin = 0u;
            var count = 0u;
            for (var row = lid; row < visible; row = row + 256u) {
                let key = ordered(scores[start + row]);
                if round == 0u || (key >> (shift + 8u)) == last {
                    let own = (key >> shift) & 255u;
                    if own != bin {
                        if count > 0u { atomicAdd(&bins[bin], count); }
                        bin = own;
                        count = 0u;
                    }
                    count = count + 1u;
                }
            }
            if count > 0u { atomicAdd(&bins[bin], count); }
            workgroupBarrier();
            let own = atomicLoad(&bins[255u - lid]);
            let until = add_up(lid, vec2<u32>(own, 0u)).x;
            if until - own < wanted && wanted <= until {
                found = vec2<u32>(255u - lid, wanted - (until - own));
            }
            let place = workgroupUniformLoad(&found);
            last = (last << 8u) | place.x;
            wanted = place.y;
        }
";

/// Writes the rows: those of an invocation's piece.
const WRITE: &str = "
        let each = (visible + 255u) >> 8u;
        let begin = lid * each;
        let end = min(begin + each, visible);
        // Scores above the last one that is chosen, and those that are equal to it.
        var own = vec2<u32>(0u);
        for (var row = begin; row < end; row = row + 1u) {
            let key = ordered(scores[start + row]);
            own = own + vec2<u32>(select(0u, 1u, key > last), select(0u, 1u, key == last));
        }
        let before = add_up(lid, own) - own;
        var equal = before.y;
        var to = (p.first + wid.x) * p.top + before.x + min(equal, wanted);
        for (var row = begin; row < end; row = row + 1u) {
            let key = ordered(scores[start + row]);
            if key > last || (key == last && equal < wanted) {
                chosen[to] = row;
                to = to + 1u;
            }
            equal = equal + select(0u, 1u, key == last);
        }
        ";

pub(super) fn source() -> (Source, String) {
    let source = Source::new()
        .read("scores", "u32")
        .write("chosen", "u32")
        .parameters(&["top", "first", "position", "stride", "ratio"])
        .shared("bins", "array<atomic<u32>, 256>")
        .shared("sums", "array<vec2<u32>, 256>")
        .shared("found", "vec2<u32>")
        .function(FUNCTIONS);
    (source, format!("{FIND}{WRITE}"))
}

/// The buffers of [`launch`].
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    /// `[tokens, stride]`: of the run's tokens, those of rows that each may see.
    pub scores: &'a Buffer,
    /// Scores from a token's to the next one's.
    pub stride: usize,
    /// Tokens of a row.
    pub ratio: usize,
    /// `[batch, top]`
    pub chosen: &'a Buffer,
}

/// Of each of the run's tokens that may see more than `top` rows, those with the best scores.
///
/// # Errors
/// The device failed.
pub fn launch(gpu: &mut Gpu, of: Choice<'_>, top: usize, run: Run) -> Result<(), GpuError> {
    assert!(top > 0 && (run.position + run.tokens) / of.ratio <= of.stride, "{run:?}");
    let parameters = [top, run.first, run.position, of.stride, of.ratio].map(|size| size as u32);
    let spans = [of.scores, of.chosen].map(Buffer::all);
    gpu.dispatch(Op::ChosenRows(Kernel::Choice), &spans, &parameters, [run.tokens as u32, 1, 1])
}
