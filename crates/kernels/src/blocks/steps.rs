//! Where a kernel can read the blocks of a row, sixteen groups at a time.

use crate::activations::GROUP_LANES;
use crate::format::{Encoding, Matrix};
use crate::task::IntegerTask;

/// Bytes ahead of the reader that blocks are prefetched.
const PREFETCH_BYTES: usize = 48 * 64;

/// The same for scales in a plane of their own: some rows, as for the codes.
const SCALES_PREFETCH_BYTES: usize = 6 * 64;

/// Columns of half a step of groups of 32, or of a step of groups of 16.
pub(crate) const HALF: usize = 256;

/// Bytes that a format may read past the blocks of 256 columns.
pub(crate) const SLACK: usize = 64;

/// Room for the blocks of 256 columns of any format, and slack.
const COPY_BYTES: usize = 384;

/// Where the blocks of sixteen groups of a row can be read, in halves of 256 columns.
pub(crate) struct StepBlocks<'a> {
    matrix: &'a Matrix<'a>,
    row_bytes: usize,
    groups: usize,
    half_bytes: usize,
    halves: usize,
    copies: [[u8; COPY_BYTES]; 2],
    scales: [u8; GROUP_LANES],
}

impl<'a> StepBlocks<'a> {
    /// For the rows of a task whose format has groups of `GROUP`.
    #[inline(always)]
    pub(crate) fn new<const GROUP: usize>(task: &IntegerTask<'a>) -> Self {
        let half_bytes = match task.matrix.encoding {
            Encoding::Mxfp4 | Encoding::Nvfp4 { .. } => HALF / 2,
            _ => HALF / task.format().values() * task.format().bytes(),
        };
        Self {
            matrix: task.matrix,
            row_bytes: task.matrix.encoding.weight_row_bytes(task.matrix.columns),
            groups: task.matrix.columns / GROUP,
            half_bytes,
            halves: GROUP_LANES * GROUP / HALF,
            copies: [[0; COPY_BYTES]; 2],
            scales: [0; GROUP_LANES],
        }
    }

    /// Where the codes of both halves of a step are, and where their scales: with `planes` the bytes of sixteen
    /// groups, with groups of 32 eight for each half, zeros where the row has ended; else they are in the blocks.
    ///
    /// # Safety
    ///
    /// As for [`StepBlocks::at`]; `planes` says of the matrix what its encoding is.
    #[inline(always)]
    pub(crate) unsafe fn sources(
        &mut self,
        planes: bool,
        row: usize,
        step: usize,
    ) -> ([*const u8; 2], [*const u8; 2]) {
        // SAFETY: passed on to the caller.
        let from = unsafe { self.at(row, step) };
        if !planes {
            return (from, from);
        }
        let groups = self.groups;
        let first = step * GROUP_LANES;
        let mut scales = self.matrix.scales.as_ptr().wrapping_add(row * groups + first);
        crate::prefetch(scales.wrapping_add(SCALES_PREFETCH_BYTES));
        if groups - first < GROUP_LANES {
            self.scales.fill(0);
            let copy = self.scales.as_mut_ptr();
            // SAFETY: `Matrix` guarantees the scales of each row; there are fewer than the copy holds.
            unsafe { std::ptr::copy_nonoverlapping(scales, copy, groups - first) };
            scales = copy;
        }
        (from, [scales, scales.wrapping_add(GROUP_LANES / 2)])
    }

    /// The halves of step `step` of a row, each with [`SLACK`] readable bytes behind; those in use are valid until the
    /// next call. Near the end of the matrix, and where the row ends within 256 columns, they are copies that end in
    /// zeros.
    ///
    /// # Safety
    ///
    /// The row exists and begins at most `step` steps before its end.
    #[inline(always)]
    pub(crate) unsafe fn at(&mut self, row: usize, step: usize) -> [*const u8; 2] {
        let Self { matrix, row_bytes, half_bytes, halves, .. } = *self;
        let blocks = matrix.weight.as_ptr().wrapping_add(row * row_bytes);
        let end = matrix.weight.as_ptr_range().end;
        let mut from = [std::ptr::null(); 2];
        for (h, from) in from.iter_mut().enumerate().take(halves) {
            let at = (step * halves + h) * half_bytes;
            let place = blocks.wrapping_add(at);
            let left = row_bytes.saturating_sub(at).min(half_bytes);
            for line in 0..half_bytes.div_ceil(64) {
                crate::prefetch(place.wrapping_add(PREFETCH_BYTES + 64 * line));
            }
            let inside = place as usize + half_bytes + SLACK <= end as usize;
            *from = if left == half_bytes && inside {
                place
            } else {
                self.copies[h].fill(0);
                let copy = self.copies[h].as_mut_ptr();
                // SAFETY: `Matrix` guarantees the bytes of each row; a copy has room for the blocks of 256 columns.
                unsafe { std::ptr::copy_nonoverlapping(place, copy, left) };
                copy
            };
        }
        from
    }
}
