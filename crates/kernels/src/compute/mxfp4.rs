//! Products with 4-bit floats in two planes ([`Encoding::Mxfp4`]) for instruction sets without a kernel of them, and in
//! binary32: rows become blocks first, and have the bits of [`BlockFormat::Mxfp4`].

use std::cell::RefCell;
use std::ops::Range;

use super::Compute;
use crate::activations::Activations;
use crate::format::{BlockFormat, Encoding, Matrix, mxfp4};
use crate::task::Task;

thread_local! {
    /// Rows as blocks, and their outputs.
    static SCRATCH: RefCell<(Vec<u8>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl Compute {
    /// Some rows of a product for `count` tokens: those of `tokens`, or those from `first_token` on if it is empty.
    ///
    /// # Safety
    ///
    /// The matrix has this encoding; `out` is valid for the shape and no other thread writes these rows of it.
    pub(super) unsafe fn mxfp4_product(
        &self,
        matrix: &Matrix<'_>,
        rows: Range<usize>,
        x: &Activations,
        (tokens, first_token, count): (&[u32], usize, usize),
        out: *mut f32,
    ) {
        let (first, n) = (rows.start, rows.len());
        let bytes = n * mxfp4::row_bytes(matrix.columns);
        SCRATCH.with_borrow_mut(|(weight, results)| {
            weight.resize(bytes.max(weight.len()), 0);
            results.resize((n * count).max(results.len()), 0.0);
            mxfp4::to_blocks(matrix, rows, &mut weight[..bytes]);
            let encoding = Encoding::Block(BlockFormat::Mxfp4);
            let weight = &weight[..bytes];
            let some = Matrix { encoding, rows: n, weight, scales: &[], biases: &[], ..*matrix };
            let (rows, to) = (0..n, results.as_mut_ptr());
            if let Some(key) = self.integer_key(encoding) {
                let x = x.integers(key, matrix.encoding);
                let task =
                    Task { matrix: &some, rows, x, tokens, first: first_token, count, out: to };
                // SAFETY: `new` has checked the features, the caller the shapes; the results are this thread's.
                unsafe { (self.table.block_rows)(&task) };
            } else {
                let x = x.floats();
                let task =
                    Task { matrix: &some, rows, x, tokens, first: first_token, count, out: to };
                // SAFETY: as above.
                unsafe { (self.table.float_rows)(&task) };
            }
            for (token, results) in results.chunks_exact(n).take(count).enumerate() {
                // SAFETY: the caller vouches for these outputs.
                unsafe {
                    let to = out.add(token * matrix.rows + first);
                    std::ptr::copy_nonoverlapping(results.as_ptr(), to, n);
                }
            }
        });
    }
}
