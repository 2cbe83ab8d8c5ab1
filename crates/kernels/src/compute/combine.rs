//! Operations of [`Compute`] that work in place or add rows to where they belong.

use super::{Compute, Parts};

/// Widest row that is copied to the stack to be normalised in place.
const ROW_MAX: usize = 1024;

/// Most and fewest columns of a stripe of [`Compute::scatter_add_scaled`]: 4 KiB of every row, and four cache lines.
const STRIPE: std::ops::RangeInclusive<usize> = 64..=1024;

impl Compute {
    /// [`Compute::rms_norm`] in place.
    ///
    /// # Panics
    ///
    /// If lengths do not fit.
    pub fn rms_norm_in_place(&self, x: &mut [f32], weight: &[f32], eps: f32) {
        let width = weight.len();
        assert!(width > 0, "rms_norm_in_place: rows of nothing");
        assert_eq!(x.len() % width, 0, "rms_norm_in_place: whole rows");
        let rows = x.len() / width;
        let x = Parts::new(x);
        self.pool.for_each(rows, (16384 / width).max(1), |range| {
            // Heads of a token are narrow, whole projections are not.
            let (mut narrow, mut wide) = ([0.0; ROW_MAX], Vec::new());
            let copy = if width <= ROW_MAX {
                &mut narrow[..width]
            } else {
                wide.resize(width, 0.0);
                &mut wide[..]
            };
            for row in range {
                // SAFETY: rows are disjoint; `new` has checked the features.
                unsafe {
                    let row = x.part(row * width..(row + 1) * width);
                    copy.copy_from_slice(row);
                    (self.table.rms_norm)(copy, weight, eps, row);
                }
            }
        });
    }

    /// [`Compute::gated_rms_norm`] in place, for rows of at most 1024 (the heads of a token).
    ///
    /// # Panics
    ///
    /// If lengths do not fit.
    pub fn gated_rms_norm_in_place(&self, x: &mut [f32], weight: &[f32], gate: &[f32], eps: f32) {
        let width = weight.len();
        assert!((1..=ROW_MAX).contains(&width), "gated_rms_norm_in_place: rows of {width}");
        assert_eq!(x.len() % width, 0, "gated_rms_norm_in_place: whole rows");
        assert_eq!(x.len(), gate.len(), "gated_rms_norm_in_place: gates");
        let x = Parts::new(x);
        self.pool.for_each(gate.len() / width, (4096 / width).max(1), |range| {
            let mut copy = [0.0; ROW_MAX];
            for row in range {
                let span = row * width..(row + 1) * width;
                let gate = &gate[span.clone()];
                // SAFETY: rows are disjoint; `new` has checked the features.
                unsafe {
                    let row = x.part(span);
                    copy[..width].copy_from_slice(row);
                    (self.table.gated_rms_norm)(&copy[..width], weight, gate, eps, row);
                }
            }
        });
    }

    /// For each row `i` of `x [rows.len(), width]`, in order: `sum[rows[i]] += x[i] * factors[i]`. Stripes of
    /// columns run in parallel, so every sum is formed in the order of `rows` whatever the threads.
    ///
    /// # Panics
    ///
    /// If lengths do not fit or a row lies outside `sum [n, width]`.
    pub fn scatter_add_scaled(
        &self,
        sum: &mut [f32],
        width: usize,
        rows: &[u32],
        factors: &[f32],
        x: &[f32],
    ) {
        assert_eq!(rows.len(), factors.len(), "scatter_add_scaled: factors");
        assert_eq!(rows.len() * width, x.len(), "scatter_add_scaled: rows");
        let share = width.div_ceil(self.pool.workers()).next_multiple_of(*STRIPE.start());
        let stripe = if rows.len() * width < 32768 { width } else { share.min(*STRIPE.end()) };
        let sum = Parts::new(sum);
        self.pool.for_each(width.div_ceil(stripe), 1, |stripes| {
            let columns = stripes.start * stripe..(stripes.end * stripe).min(width);
            for (index, (&row, &factor)) in rows.iter().zip(factors).enumerate() {
                let start = row as usize * width;
                let term = &x[index * width + columns.start..index * width + columns.end];
                // SAFETY: stripes are disjoint columns and `part` checks that the row lies within;
                // `new` has checked the features.
                unsafe {
                    let out = sum.part(start + columns.start..start + columns.end);
                    (self.table.add_scaled)(out, term, factor);
                }
            }
        });
    }
}
