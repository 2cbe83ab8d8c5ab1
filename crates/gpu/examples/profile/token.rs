//! What every dispatch and submission costs, and a token of a model of 35 billion parameters from its launches, without
//! an engine: what of its time is the host's.

use std::time::Instant;

use gpu::op::attention::{self, Cache, Run};
use gpu::op::{chosen, delta, draw, elementwise, fused, gated_product, heads, norm, product};
use gpu::{Buffer, Gpu};

use super::{COPIES, Copies, EXPERTS, HIDDEN, INNER, Result, Room, TOP_K, VOCABULARY, encoding};

/// Tokens as a model of 40 layers computes them, each waited for.
pub(super) fn tokens(gpu: &mut Gpu, room: &Room) -> Result<()> {
    const LAYERS: usize = 40;
    const TOKENS: usize = 40;
    let mut set = |bits: u8, rows: usize, columns: usize| {
        Copies::new(gpu, encoding(bits, room.blocks), rows, columns, COPIES)
    };
    let (qkv, z, query, value) =
        (set(4, 8192, HIDDEN)?, set(4, 4096, HIDDEN)?, set(4, 8192, HIDDEN)?, set(4, 512, HIDDEN)?);
    let (small, out) = (set(4, 32, HIDDEN)?, set(4, HIDDEN, 4096)?);
    let (router, factor) = (set(8, EXPERTS, HIDDEN)?, set(8, 1, HIDDEN)?);
    let (gate, down) = (set(4, INNER, HIDDEN)?, set(4, HIDDEN, INNER)?);
    let head = Copies::new(gpu, encoding(4, room.blocks), VOCABULARY, HIDDEN, 1)?;
    let delta =
        delta::Shape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, tiled: false };
    let shape = attention::Shape { query_heads: 16, key_value_heads: 2, dim: 256 };
    let scratch = gpu.buffer("ranking", 4 * draw::scratch_words(VOCABULARY, 1) as u64)?;
    let logits = gpu.buffer("logits", 4 * VOCABULARY as u64)?;
    let [residual, normed, wide, other, context] = {
        let mut row = || gpu.buffer("row", 4 * 16384);
        [row()?, row()?, row()?, row()?, row()?]
    };
    let control = gpu.control().clone();
    let (mut times, mut recorded) = (Vec::new(), Vec::new());
    for token in 0..TOKENS {
        let begun = Instant::now();
        let run = Run { first: 0, tokens: 1, position: 512 + token };
        gpu.clear_control();
        for layer in 0..LAYERS {
            let of = |set: &'_ Copies| layer % set.count;
            let from = (&residual, &room.small);
            if layer % 4 == 3 {
                let at = of(&query);
                let matrices = [
                    (query.trunk.matrix(at), &wide),
                    (value.trunk.matrix(at), &other),
                    (value.trunk.matrix((at + 1) % COPIES), &normed),
                ];
                fused::launch_several(gpu, &matrices, from, 1e-6, None)?;
                let of = heads::Prepared {
                    both: Some(&wide),
                    key: &other,
                    value: &normed,
                    weights: [&room.small; 2],
                    angles: &room.small,
                    query: &context,
                    places: room.places(),
                };
                heads::launch_prepare(gpu, Cache::F16, of, shape, run, 32, 1e-6)?;
                let to = attention::Split { partial: &room.d, y: &other };
                let queries = attention::Queries { query: &context, both: Some(&wide) };
                attention::launch_split(gpu, Cache::F16, queries, room.places(), to, shape, run)?;
            } else {
                let at = of(&qkv);
                let matrices = [
                    (qkv.trunk.matrix(at), &wide),
                    (z.trunk.matrix(at), &normed),
                    (small.trunk.matrix(at), &room.ids),
                    (small.trunk.matrix((at + 1) % COPIES), &room.weights),
                ];
                fused::launch_delta_inputs(gpu, matrices, from, 1e-6, (&room.c, &room.tail, 4))?;
                let (decay, rate, bias) = (&room.weights, &room.small, &room.small);
                let decays = delta::Decays::Heads { decay, rate, bias };
                let inputs = delta::Inputs { x: &wide, beta: &room.ids, decays };
                delta::launch_heads(gpu, &wide, delta, 1)?;
                delta::launch(gpu, inputs, &room.state, &other, delta, run)?;
            }
            let matrix = out.trunk.matrix(of(&out));
            if layer % 4 == 3 {
                product::launch(gpu, matrix, &other, &residual, 1, true)?;
            } else {
                let of = ([&other, &room.small, &normed], norm::Gate::Silu);
                gated_product::launch(gpu, matrix, of, &residual, 128, 1e-6)?;
            }
            let at = of(&router);
            let matrices = [(router.trunk.matrix(at), &wide), (factor.trunk.matrix(at), &context)];
            fused::launch_several(gpu, &matrices, from, 1e-6, Some(&normed))?;
            let record = room.layout.record_shape();
            let shared = [gate.trunk.matrix(at), gate.trunk.matrix((at + 1) % COPIES)];
            let work = chosen::Work {
                record: &record,
                slabs: &room.slabs,
                choice: room.choice(layer as u32 + 1),
                shape: (EXPERTS, TOP_K),
                shared: Some([shared[0], shared[1], down.trunk.matrix(at)]),
                inner: &room.b,
            };
            chosen::launch_gate_up(gpu, work, (wide.all(), true), &normed)?;
            chosen::launch_down(gpu, work, &context, &residual)?;
        }
        norm::launch(gpu, (&residual, &room.small, &normed), (1, HIDDEN), 1e-6)?;
        product::launch(gpu, head.trunk.matrix(0), &normed, &logits, 1, false)?;
        draw::launch_most_likely(gpu, &logits, &scratch, &room.ids, (1, VOCABULARY))?;
        recorded.push(begun.elapsed().as_secs_f64() * 1e3);
        gpu.read_words(&control, 0, 1)?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    recorded.sort_by(f64::total_cmp);
    let (least, median) = (times[0], times[TOKENS / 2]);
    let host = recorded[TOKENS / 2];
    println!(
        "\na token of {LAYERS} layers: {least:.3} ms at least, {median:.3} (median); host {host:.3} ms"
    );
    Ok(())
}

/// What every dispatch and submission costs.
pub(super) fn costs(gpu: &mut Gpu) -> Result<()> {
    const MANY: usize = 2000;
    let control = gpu.control().clone();
    let buffers: Vec<Buffer> = (0..8).map(|_| gpu.buffer("cost", 1024)).collect::<Result<_>>()?;
    elementwise::launch_swiglu(gpu, &buffers[0], &buffers[1], 256)?;
    gpu.read_words(&control, 0, 1)?;
    for (name, chained) in [("one behind the other", true), ("on buffers of their own", false)] {
        for round in 0..2 {
            let begun = Instant::now();
            for index in 0..MANY {
                let to = if chained { 1 } else { 1 + index % 7 };
                elementwise::launch_swiglu(gpu, &buffers[0], &buffers[to], 256)?;
            }
            let recorded = begun.elapsed().as_secs_f64() * 1e6 / MANY as f64;
            gpu.read_words(&control, 0, 1)?;
            let done = begun.elapsed().as_secs_f64() * 1e6 / MANY as f64;
            if round == 1 {
                println!("a dispatch, {name}: {recorded:.2} us to record, {done:.2} us in all");
            }
        }
    }
    let begun = Instant::now();
    for _ in 0..100 {
        elementwise::launch_swiglu(gpu, &buffers[0], &buffers[1], 256)?;
        gpu.read_words(&control, 0, 1)?;
    }
    println!("a dispatch and its answer: {:.1} us", begun.elapsed().as_secs_f64() * 1e4);
    let begun = Instant::now();
    for _ in 0..100 {
        gpu.write_words(&buffers[2], 0, &[1])?;
        elementwise::launch_swiglu(gpu, &buffers[0], &buffers[1], 256)?;
        gpu.read_words(&control, 0, 1)?;
    }
    println!("a write, a dispatch, its answer: {:.1} us", begun.elapsed().as_secs_f64() * 1e4);
    let begun = Instant::now();
    for _ in 0..200 {
        elementwise::launch_swiglu(gpu, &buffers[0], &buffers[1], 256)?;
        gpu.submit()?;
    }
    gpu.read_words(&control, 0, 1)?;
    println!("a dispatch in a submission: {:.1} us", begun.elapsed().as_secs_f64() * 1e6 / 200.0);
    Ok(())
}
