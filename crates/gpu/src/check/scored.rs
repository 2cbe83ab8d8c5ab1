//! Parts of families whose experts are chosen by scores: the choice, the sum with an expert that is always used and has
//! no gate, norms of rows in place.

use super::reference::reference;
use super::*;
use crate::op::router_scored::{self, Given, Moves, Score, Scored};

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let sigmoid = Scored {
        score: Score::Sigmoid,
        groups: 1,
        kept: 1,
        normalise: true,
        least: 1e-20,
        scale: 2.5,
    };
    let softmax = Scored { score: Score::Softmax, least: 1e-12, scale: 1.0, ..sigmoid };
    add(routes(gpu, sigmoid, (160, 8), true)?);
    add(routes(gpu, Scored { groups: 8, kept: 4, ..sigmoid }, (256, 8), true)?);
    add(routes(gpu, Scored { groups: 64, kept: 5, normalise: false, ..sigmoid }, (64, 5), true)?);
    add(routes(gpu, sigmoid, (384, 8), false)?);
    add(routes(gpu, softmax, (64, 6), true)?);
    add(routes(gpu, Scored { normalise: false, ..softmax }, (7, 3), false)?);
    let roots = Scored { score: Score::SqrtSoftplus, scale: 1.5, ..sigmoid };
    add(routes(gpu, roots, (256, 6), true)?);
    add(given(gpu, roots, (256, 6), 6)?);
    add(given(gpu, Scored { normalise: false, ..roots }, (70, 3), 5)?);
    for score in [Score::Sigmoid, Score::Softmax, Score::SqrtSoftplus] {
        add(broken(gpu, Scored { score, ..sigmoid })?);
    }
    add(sums(gpu)?);
    for (rows, width) in [(3, 1000), (70_000, 16)] {
        add(norms(gpu, rows, width)?);
    }
    Ok(())
}

/// Ids of the chosen, ascending, and their weights.
fn chosen(of: Scored, logits: &[f32], bias: Option<&[f32]>, k: usize) -> Vec<(u32, f32)> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
    let own = |logit: &f32| match of.score {
        Score::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
        Score::Softmax => (logit - most).exp() / sum,
        Score::SqrtSoftplus => f64::from(*logit).exp().ln_1p().sqrt() as f32,
    };
    let own: Vec<f32> = logits.iter().map(own).collect();
    let moved = |expert: usize| own[expert] + bias.map_or(0.0, |bias| bias[expert]);
    let size = logits.len() / of.groups;
    let of_group = |group: usize| {
        let mut all: Vec<f32> = (group * size..(group + 1) * size).map(moved).collect();
        all.sort_by(|a, b| b.total_cmp(a));
        all.iter().take(2).sum::<f32>()
    };
    // Sorting keeps the order of equal ones: the lowest first.
    let mut groups: Vec<usize> = (0..of.groups).collect();
    groups.sort_by(|&a, &b| of_group(b).total_cmp(&of_group(a)));
    groups.truncate(of.kept);
    let mut open: Vec<usize> =
        (0..logits.len()).filter(|expert| groups.contains(&(expert / size))).collect();
    open.sort_by(|&a, &b| moved(b).total_cmp(&moved(a)));
    open.truncate(k);
    open.sort_unstable();
    let sum: f32 = open.iter().map(|&expert| own[expert]).sum();
    let divisor = if of.normalise { sum.max(of.least) } else { 1.0 };
    open.iter().map(|&expert| (expert as u32, own[expert] / divisor * of.scale)).collect()
}

/// What a choice of `tokens` tokens is written to.
struct Room {
    slabs: Slabs,
    ids: Buffer,
    weights: Buffer,
    tiles: Buffer,
}

impl Room {
    fn new(gpu: &mut Gpu, count: usize, pairs: usize) -> Result<Self, GpuError> {
        let slabs = Slabs::new(gpu, 1, Gpu::ALIGNMENT as usize, count)?;
        let (ids, weights, tiles) =
            (empty(gpu, pairs)?, empty(gpu, pairs)?, empty(gpu, 3 * pairs)?);
        Ok(Self { slabs, ids, weights, tiles })
    }

    fn choice(&self) -> router::Choice<'_> {
        let (ids, weights, tiles) = (&self.ids, &self.weights, &self.tiles);
        router::Choice { ids, first_id: 0, weights, tiles, table_start: 0, flag: 7 }
    }
}

/// With ties, which go to the lowest id; the flag is raised if and only if a chosen expert has no slot.
fn routes(
    gpu: &mut Gpu,
    of: Scored,
    (count, k): (usize, usize),
    biased: bool,
) -> Result<Finding, GpuError> {
    let tokens = 3;
    let mut numbers = Numbers::new(81);
    let mut logits = numbers.floats(tokens * count);
    logits.iter_mut().for_each(|logit| *logit = (*logit * 12.0).round() / 4.0);
    let bias: Vec<f32> = numbers.floats(count).iter().map(|it| (it * 4.0).round() / 8.0).collect();
    let bias = biased.then_some(&bias[..]);
    let expected: Vec<_> =
        logits.chunks_exact(count).flat_map(|logits| chosen(of, logits, bias, k)).collect();
    let (input, room) = (floats(gpu, &logits)?, Room::new(gpu, count, tokens * k)?);
    let added = bias.map(|bias| floats(gpu, bias)).transpose()?;
    let control = gpu.control().clone();
    let mut alone_equal = true;
    for missing in [Some(expected[0].0), None] {
        let there = (0..count).map(|expert| u32::from(missing != Some(expert as u32)));
        gpu.write_words(room.slabs.table(), 0, &there.collect::<Vec<_>>())?;
        let shape = router::Chosen { tokens, experts: count, k };
        let from = (input.all(), added.as_ref().into());
        router_scored::launch(gpu, of, from, &room.slabs, room.choice(), shape)?;
        let flag = if missing.is_some() { 7 } else { 0 };
        alone_equal &= gpu.read_words(&control, 0, 2)? == [flag, 0];
        gpu.clear_control();
    }
    let ids: Vec<u32> = expected.iter().map(|pair| pair.0).collect();
    alone_equal &= gpu.read_words(&room.ids, 0, tokens * k)? == ids;
    let found = gpu.read_floats(&room.weights, 0, tokens * k)?;
    let expected: Vec<f32> = expected.iter().map(|pair| pair.1).collect();
    let Scored { score, groups, kept, .. } = of;
    let name = format!("choice by {score:?}, {k} of {count}, {kept} of {groups} groups");
    Ok(Finding { name, difference: difference(&found, &expected), bound: 1e-5, alone_equal })
}

/// Experts that a table gives: of each token's the best.
fn given(
    gpu: &mut Gpu,
    of: Scored,
    (count, k): (usize, usize),
    columns: usize,
) -> Result<Finding, GpuError> {
    let (tokens, vocabulary) = (3, 11);
    let mut numbers = Numbers::new(84);
    let logits: Vec<f32> = numbers.floats(tokens * count).iter().map(|it| it * 30.0).collect();
    let rows: Vec<u16> = (0..vocabulary * columns)
        .map(|at| (at / columns * 7 % 10 + at % columns * (count / columns)) as u16)
        .collect();
    let ids = [4u32, 10, 0];
    let expected: Vec<_> = logits
        .chunks_exact(count)
        .zip(ids)
        .flat_map(|(logits, id)| {
            let own = &rows[id as usize * columns..][..columns];
            let bias = |expert: usize| if own.contains(&(expert as u16)) { 0.0 } else { -1e9 };
            chosen(of, logits, Some(&(0..count).map(bias).collect::<Vec<_>>()), k)
        })
        .collect();
    let mut pairs = rows.clone();
    pairs.resize(rows.len().next_multiple_of(2), 0);
    let pairs: Vec<u32> = pairs
        .as_chunks::<2>()
        .0
        .iter()
        .map(|&[low, high]| u32::from(low) | u32::from(high) << 16)
        .collect();
    let (table, held) = (words(gpu, &pairs)?, words(gpu, &ids)?);
    let (input, room) = (floats(gpu, &logits)?, Room::new(gpu, count, tokens * k)?);
    let shape = router::Chosen { tokens, experts: count, k };
    let moves = Moves::Given(Given { table: &table, columns, ids: &held });
    router_scored::launch(gpu, of, (input.all(), moves), &room.slabs, room.choice(), shape)?;
    gpu.clear_control();
    let found = gpu.read_words(&room.ids, 0, tokens * k)?;
    let alone_equal = found.iter().zip(&expected).all(|(id, pair)| *id == pair.0);
    let found = gpu.read_floats(&room.weights, 0, tokens * k)?;
    let expected: Vec<f32> = expected.iter().map(|pair| pair.1).collect();
    let name = format!("choice of {k} of {columns} that a table gives");
    Ok(Finding { name, difference: difference(&found, &expected), bound: 1e-5, alone_equal })
}

/// A token whose logits are not all finite is named.
fn broken(gpu: &mut Gpu, of: Scored) -> Result<Finding, GpuError> {
    let (count, k) = (40, 4);
    let (room, control) = (Room::new(gpu, count, k)?, gpu.control().clone());
    let mut alone_equal = true;
    for broken in [f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
        let mut logits = vec![0.25; count];
        logits[count / 2] = broken;
        let input = floats(gpu, &logits)?;
        let shape = router::Chosen { tokens: 1, experts: count, k };
        let from = (input.all(), None.into());
        router_scored::launch(gpu, of, from, &room.slabs, room.choice(), shape)?;
        alone_equal &= gpu.read_words(&control, 0, 2)?[1] == 1;
        gpu.clear_control();
        let ids = gpu.read_words(&room.ids, 0, k)?;
        alone_equal &= ids.windows(2).all(|pair| pair[0] < pair[1]);
        alone_equal &= ids.iter().all(|&id| (id as usize) < count);
    }
    let name = format!("choice by {:?}, without numbers", of.score);
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal })
}

/// The sum of a layer whose shared expert has no gate.
fn sums(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (tokens, k, width) = (2, 3, 300);
    let mut numbers = Numbers::new(82);
    let (rows, weights) = (numbers.floats(tokens * k * width), numbers.floats(tokens * k));
    let (shared, mut expected) = (numbers.floats(tokens * width), numbers.floats(tokens * width));
    let y = floats(gpu, &expected)?;
    for (at, value) in expected.iter_mut().enumerate() {
        let (token, column) = (at / width, at % width);
        let pairs = token * k..(token + 1) * k;
        *value += pairs.map(|pair| rows[pair * width + column] * weights[pair]).sum::<f32>();
        *value += shared[at];
    }
    let (rows, weights) = (floats(gpu, &rows)?, floats(gpu, &weights)?);
    let shared = floats(gpu, &shared)?;
    let always = Some(combine::Shared { rows: &shared, factor: None });
    let of = combine::Weighed { rows: &rows, weights: &weights };
    combine::launch(gpu, of, always, &y, combine::Combined { tokens, k, width, add: true })?;
    let found = gpu.read_floats(&y, 0, expected.len())?;
    let name = "combination, a shared expert without a gate".to_owned();
    let difference = difference(&found, &expected);
    Ok(Finding { name, difference, bound: 1e-5, alone_equal: true })
}

/// More rows than one direction has workgroups, too.
fn norms(gpu: &mut Gpu, rows: usize, width: usize) -> Result<Finding, GpuError> {
    let mut numbers = Numbers::new(83);
    let (x, weight) = (numbers.floats(rows * width), numbers.floats(width));
    let mut expected = x.clone();
    reference().rms_norm_in_place(&mut expected, &weight, 1e-6);
    let (place, factors) = (floats(gpu, &x)?, floats(gpu, &weight)?);
    norm::launch_in_place(gpu, (&place, &factors), (rows, width), 1e-6)?;
    let found = gpu.read_floats(&place, 0, x.len())?;
    let alone = floats(gpu, &x[x.len() - width..])?;
    norm::launch_in_place(gpu, (&alone, &factors), (1, width), 1e-6)?;
    let alone_equal = gpu.read_floats(&alone, 0, width)? == found[x.len() - width..];
    let name = format!("norm in place, {rows} rows of {width}");
    Ok(Finding { name, difference: difference(&found, &expected), bound: 1e-5, alone_equal })
}
