//! Kernels that add up within subgroups against those that use workgroup memory for it: they have equal bits.

use super::*;
use crate::op::{Form, fused};

const EPSILON: f32 = 1e-6;

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let form = gpu.form();
    if form == Form::default() {
        let name = "sums of subgroups: skipped, the adapter's subgroups are not of 32".to_owned();
        add(Finding { name, difference: 0.0, bound: 0.0, alone_equal: true });
        return Ok(());
    }
    let scale = FloatType::Bf16;
    let encodings = [
        Encoding::Affine { bits: 4, group: 64, scale },
        Encoding::Affine { bits: 3, group: 32, scale },
        Encoding::Block(BlockFormat::Q4K),
        Encoding::Block(BlockFormat::Q6K),
        Encoding::Float(FloatType::F32),
        Encoding::Mxfp4,
    ];
    for encoding in encodings.into_iter().chain(matrices::OTHER_PLACES) {
        let subgroups = products(gpu, encoding)?;
        gpu.set_form(Form::default());
        let plain = products(gpu, encoding);
        gpu.set_form(form);
        let name = format!("sums of subgroups {}", encoding.name());
        let alone_equal = subgroups == plain?;
        add(Finding { name, difference: 0.0, bound: 0.0, alone_equal });
    }
    Ok(())
}

/// Products of one packing, where the two forms are two.
pub(super) fn short(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let form = gpu.form();
    if form == Form::default() {
        return Ok(());
    }
    let encoding = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
    let subgroups = products(gpu, encoding)?;
    gpu.set_form(Form::default());
    let plain = products(gpu, encoding);
    gpu.set_form(form);
    let name = format!("sums of subgroups {}", encoding.name());
    add(Finding { name, difference: 0.0, bound: 0.0, alone_equal: subgroups == plain? });
    Ok(())
}

/// What products of one token and of several give, alone and fused, and the norm.
fn products(gpu: &mut Gpu, encoding: Encoding) -> Result<Vec<f32>, GpuError> {
    let (rows, columns, tokens) = (2101, 1280, 9);
    let mut numbers = Numbers::new(41);
    let mut trunk = Trunk::default();
    for _ in 0..2 {
        let held = matrices::Held::random(encoding, rows, columns, &mut numbers);
        trunk.add(gpu, "check", &held.matrix())?;
    }
    let x = floats(gpu, &numbers.floats(tokens * columns))?;
    let weight = floats(gpu, &numbers.floats(columns))?;
    let (normed, y) = (empty(gpu, tokens * columns)?, empty(gpu, tokens * rows)?);
    let mut found = Vec::new();
    norm::launch(gpu, (&x, &weight, &normed), (tokens, columns), EPSILON)?;
    found.extend(gpu.read_floats(&normed, 0, tokens * columns)?);
    for tokens in [1, tokens] {
        product::launch(gpu, trunk.matrix(0), &normed, &y, tokens, false)?;
        found.extend(gpu.read_floats(&y, 0, tokens * rows)?);
    }
    let both = [(trunk.matrix(0), &y), (trunk.matrix(1), &normed)];
    if fused::serves(trunk.matrix(0).packing, columns) {
        fused::launch_several(gpu, &both, (&x, &weight), EPSILON, None)?;
        found.extend(gpu.read_floats(&y, 0, rows)?);
        found.extend(gpu.read_floats(&normed, 0, rows)?);
        fused::launch_gated(gpu, [trunk.matrix(0), trunk.matrix(1)], &x, &y)?;
        found.extend(gpu.read_floats(&y, 0, rows)?);
    }
    Ok(found)
}
