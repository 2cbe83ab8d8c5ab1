//! Norms in place, and rows that are added to others, against the plain loops.

use kernels::{Arithmetic, Compute, ComputeOptions, Isa};

fn compute(threads: usize) -> Compute {
    let options = ComputeOptions { threads, arithmetic: Arithmetic::Int16, isa: Isa::Auto };
    Compute::new(options).unwrap()
}

fn values(count: usize, seed: u32) -> Vec<f32> {
    let next = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8;
    (0..count).map(|i| next(i) as f32 / 8_388_608.0 - 1.0).collect()
}

#[test]
fn norms_in_place_equal_those_into_another_buffer() {
    let compute = compute(2);
    let (x, gate, weight) = (values(7 * 96, 1), values(7 * 96, 2), values(96, 3));
    let (mut out, mut place) = (vec![0.0; x.len()], x.clone());
    compute.rms_norm(&x, &weight, 1e-6, &mut out);
    compute.rms_norm_in_place(&mut place, &weight, 1e-6);
    assert_eq!(out, place);
    let (wide, weights) = (values(3 * 1536, 4), values(1536, 5));
    let (mut wide_out, mut wide_place) = (vec![0.0; wide.len()], wide.clone());
    compute.rms_norm(&wide, &weights, 1e-6, &mut wide_out);
    compute.rms_norm_in_place(&mut wide_place, &weights, 1e-6);
    assert_eq!(wide_out, wide_place);
    place.clone_from(&x);
    compute.gated_rms_norm(&x, &weight, &gate, 1e-6, &mut out);
    compute.gated_rms_norm_in_place(&mut place, &weight, &gate, 1e-6);
    assert_eq!(out, place);
}

#[test]
fn scattered_rows_are_added_in_order_whatever_the_threads() {
    for (rows, width) in [(5, 64), (64, 2048)] {
        let targets: Vec<u32> = (0..rows).map(|i| (i * 7 % 4) as u32).collect();
        let (x, factors) = (values(rows * width, 4), values(rows, 5));
        let mut expected = values(4 * width, 6);
        let mut sums = [expected.clone(), expected.clone()];
        for (i, &row) in targets.iter().enumerate() {
            for column in 0..width {
                let sum = &mut expected[row as usize * width + column];
                *sum = x[i * width + column].mul_add(factors[i], *sum);
            }
        }
        for (threads, sum) in [1, 2].into_iter().zip(&mut sums) {
            compute(threads).scatter_add_scaled(sum, width, &targets, &factors, &x);
            assert_eq!(*sum, expected);
        }
    }
}
