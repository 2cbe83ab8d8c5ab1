//! A token's experts in two launches against the operations one by one, whose bits they must have.

use super::matrices::Held;
use super::*;
use crate::op::{chosen, fused};

/// Records that there are; experts share them.
const RECORDS: usize = 5;

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let affine = |bits| Encoding::Affine { bits, group: 64, scale: FloatType::Bf16 };
    add(layer(gpu, affine(4), (256, 8), true)?);
    add(layer(gpu, affine(4), (40, 3), false)?);
    add(layer(gpu, affine(8), (301, 17), false)?);
    add(layer(gpu, Encoding::Block(BlockFormat::Q4K), (512, 10), true)?);
    add(layer(gpu, Encoding::Float(FloatType::Bf16), (30, 30), true)?);
    for encoding in matrices::OTHER_PLACES {
        add(layer(gpu, encoding, (40, 3), true)?);
    }
    Ok(())
}

/// The first of them.
pub(super) fn short(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let affine = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
    add(layer(gpu, affine, (40, 3), false)?);
    Ok(())
}

/// A layer of `count` experts, in two slabs, of a token that uses `k`.
fn layer(
    gpu: &mut Gpu,
    encoding: Encoding,
    (count, k): (usize, usize),
    normalise: bool,
) -> Result<Finding, GpuError> {
    let (hidden, inner) = (768, 512);
    let mut numbers = Numbers::new(31);
    let shapes = [(inner, hidden), (inner, hidden), (hidden, inner)];
    let layout =
        experts::Layout::new([encoding; 3], shapes).expect("an encoding that the kernels read");
    let slot_bytes = layout.bytes().next_multiple_of(Gpu::ALIGNMENT as usize);
    let mut slabs = Slabs::with_slab_slots(gpu, RECORDS, slot_bytes, 2 * count, 3)?;
    for slot in 0..RECORDS {
        let held =
            shapes.map(|(rows, columns)| Held::random(encoding, rows, columns, &mut numbers));
        slabs.fill(gpu, slot, &layout.record(held.each_ref().map(Held::planes)))?;
    }
    for expert in 0..count {
        slabs.name(count + expert, slabs.slot_word(expert % RECORDS));
    }
    slabs.write_table(gpu)?;
    let mut trunk = Trunk::default();
    for (rows, columns) in shapes {
        trunk.add(gpu, "check", &Held::random(encoding, rows, columns, &mut numbers).matrix())?;
    }
    let [gate, up, down] = [0, 1, 2].map(|at| trunk.matrix(at));
    // With ties, which go to the lowest id.
    let mut logits = numbers.floats(count);
    logits.iter_mut().for_each(|logit| *logit = (*logit * 20.0).round() / 4.0);
    let (logits, x) = (floats(gpu, &logits)?, floats(gpu, &numbers.floats(hidden))?);
    let (before, factor) = (numbers.floats(hidden), floats(gpu, &[0.3])?);
    let (ids, weights) = (empty(gpu, 2 * k)?, empty(gpu, k)?);
    let (tiles, order) = (empty(gpu, 3 * k)?, words(gpu, &(0..k as u32).collect::<Vec<_>>())?);
    let (between, rows) = (empty(gpu, (k + 1) * inner)?, empty(gpu, k * hidden)?);
    let (shared, shared_rows) = (empty(gpu, inner)?, empty(gpu, hidden)?);
    let record = layout.record_shape();
    let choice = router::Choice {
        ids: &ids,
        first_id: k,
        weights: &weights,
        tiles: &tiles,
        table_start: count,
        flag: 7,
    };
    let sizes = router::Chosen { tokens: 1, experts: count, k };
    router::launch(gpu, logits.all(), None, &slabs, choice, sizes, normalise)?;
    let work = experts::Work {
        tiles: &tiles,
        first: 0,
        count: k,
        pairs: 1,
        order: &order,
        k,
        table_start: count,
        flag: 7,
        activation: experts::Activation::SwiGlu,
    };
    experts::launch(gpu, experts::Half::GateUp, &record, &slabs, work, &x, &between)?;
    experts::launch(gpu, experts::Half::Down, &record, &slabs, work, &between, &rows)?;
    fused::launch_gated(gpu, [gate, up], &x, &shared)?;
    product::launch(gpu, down, &shared, &shared_rows, 1, false)?;
    let mut all_equal = true;
    for with in [false, true] {
        let (plain, found) = (floats(gpu, &before)?, floats(gpu, &before)?);
        let common = with.then_some(combine::Shared { rows: &shared_rows, factor: Some(&factor) });
        let of = combine::Weighed { rows: &rows, weights: &weights };
        let size = combine::Combined { tokens: 1, k, width: hidden, add: true };
        combine::launch(gpu, of, common, &plain, size)?;
        let chosen_before = gpu.read_words(&ids, 4 * k as u64, k)?;
        let weights_before = gpu.read_floats(&weights, 0, k)?;
        gpu.write_words(&ids, 0, &vec![0; 2 * k])?;
        gpu.write_words(&weights, 0, &vec![0; k])?;
        let work = chosen::Work {
            record: &record,
            slabs: &slabs,
            choice,
            shape: (count, k),
            shared: with.then_some([gate, up, down]),
            inner: &between,
        };
        if !work.is_served(gpu) {
            let name = format!("chosen experts {}: skipped, too few bindings", encoding.name());
            return Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal: true });
        }
        chosen::launch_gate_up(gpu, work, (logits.all(), normalise), &x)?;
        chosen::launch_down(gpu, work, &factor, &found)?;
        all_equal &= gpu.read_words(&ids, 4 * k as u64, k)? == chosen_before;
        all_equal &= gpu.read_floats(&weights, 0, k)? == weights_before;
        all_equal &= gpu.read_floats(&plain, 0, hidden)? == gpu.read_floats(&found, 0, hidden)?;
    }
    let name = format!("{k} of {count} chosen experts {}", encoding.name());
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal: all_equal })
}
