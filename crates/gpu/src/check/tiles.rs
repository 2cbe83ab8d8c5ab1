//! Products by cooperative matrices, where the adapter has them.

use super::*;
use crate::op::halves::{self, Halves};
use crate::op::tile;

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    if !gpu.adapter().matrices {
        let name = "products and experts by matrices: skipped, the adapter has none".to_owned();
        add(Finding { name, difference: 0.0, bound: 0.0, alone_equal: true });
        return Ok(());
    }
    for encoding in matrices::encodings() {
        add(products(gpu, encoding, 768)?);
    }
    // Half a block of columns at the end, and sums of more than 1,024 columns.
    let affine = |group| Encoding::Affine { bits: 4, group, scale: FloatType::Bf16 };
    add(products(gpu, affine(32), 736)?);
    for encoding in [affine(64), Encoding::Block(BlockFormat::Q4K)] {
        add(products(gpu, encoding, 2304)?);
    }
    Ok(())
}

fn empty_halves(gpu: &mut Gpu, rows: usize, width: usize) -> Result<Halves, GpuError> {
    let [values, factors] = Halves::sizes(rows, width);
    Ok(Halves { values: empty(gpu, values)?, factors: empty(gpu, factors)? })
}

/// Odd rows and tokens; a prompt cut in two.
fn products(gpu: &mut Gpu, encoding: Encoding, columns: usize) -> Result<Finding, GpuError> {
    let (rows, tokens) = (150, 140);
    let mut numbers = Numbers::new(31);
    let held = matrices::Held::random(encoding, rows, columns, &mut numbers);
    // Tokens of very different magnitudes.
    let mut x = numbers.floats(tokens * columns);
    for (token, row) in x.chunks_exact_mut(columns).enumerate() {
        row.iter_mut().for_each(|value| *value *= 10f32.powi(token as i32 % 9 - 4));
    }
    let mut trunk = Trunk::default();
    trunk.add(gpu, "check", &held.matrix())?;
    let matrix = trunk.matrix(0);
    let parted = empty_halves(gpu, tokens, columns)?;
    let mut results = Vec::new();
    for cut in [tokens, 71] {
        let mut found = Vec::new();
        for part in x.chunks(cut * columns) {
            let (input, count) = (floats(gpu, part)?, part.len() / columns);
            let out = empty(gpu, count * rows)?;
            halves::launch(gpu, &input, &parted, (count, columns))?;
            tile::launch(gpu, matrix, &parted, &out, count, false)?;
            found.extend(gpu.read_floats(&out, 0, count * rows)?);
        }
        results.push(found);
    }
    let expected = held.product(&x);
    let by_token = results[0].chunks_exact(rows).zip(expected.chunks_exact(rows));
    let most = by_token.map(|(found, expected)| difference(found, expected)).fold(0.0, f32::max);
    let name = format!("product by matrices {}, rows of {columns}", encoding.name());
    let alone_equal = results[0] == results[1];
    // Sums of f32 are further off where rows are long: 1.1e-5 of Q4_K on an H200.
    let bound = if columns > 1024 { 2e-5 } else { 1e-5 };
    Ok(Finding { name, difference: most, bound, alone_equal })
}
