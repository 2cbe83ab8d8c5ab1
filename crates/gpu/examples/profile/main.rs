//! Where the time of a GPU goes: each kernel at the shapes of a model of 35 billion parameters (4 bits, groups of 64),
//! as often as a token or a prompt asks for it, and what a dispatch and a submission cost.
//!
//! `cargo run --release -p flashmoe-gpu --example profile [adapter] [tokens of a prompt] [0: without matrices]
//! [1: blocks] [1: the prompt alone]`
//!
//! The prompt alone takes a few seconds: what it computes by matrices is not computed without them. Where blocks are
//! asked for, matrices are blocks of GGUF: Q6_K where they would have 8 bits, else Q4_K.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use gpu::op::attention::{self, Cache, Run};
use gpu::op::experts::{self, Half, Work};
use gpu::op::halves::{self, Halves};
use gpu::op::{
    chosen, combine, convolution, delta, draw, elementwise, embedding, fused, gated_product, group,
    heads, norm, product, prompt, router, tile,
};
use gpu::{Buffer, Gpu, GpuError, Slabs, Trunk, choose};
use kernels::format::{BlockFormat, Encoding, FloatType, Matrix};

mod table;
mod token;

use table::Table;

const HIDDEN: usize = 2048;
const INNER: usize = 512;
const EXPERTS: usize = 256;
const TOP_K: usize = 8;
const VOCABULARY: usize = 248_320;
const CONTEXT: usize = 4096;
/// Copies of a matrix, so that each is read from memory.
const COPIES: usize = 16;

type Result<T> = std::result::Result<T, GpuError>;

/// Blocks or groups for matrices of so many bits.
fn encoding(bits: u8, blocks: bool) -> Encoding {
    match (blocks, bits) {
        (true, 8) => Encoding::Block(BlockFormat::Q6K),
        (true, _) => Encoding::Block(BlockFormat::Q4K),
        (false, _) => Encoding::Affine { bits, group: 64, scale: FloatType::Bf16 },
    }
}

/// Pseudo-random bytes.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let words = (0..bytes.div_ceil(8)).flat_map(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state ^ (state >> 29)).to_le_bytes()
    });
    words.take(bytes).collect()
}

/// Planes with scales near 0.01 and biases that bring values to a mean of zero.
fn planes(encoding: Encoding, rows: usize, columns: usize, seed: u64) -> [Vec<u8>; 3] {
    let [weights, scales, biases] = encoding.plane_bytes(rows, columns);
    if let Encoding::Block(format) = encoding {
        let mut blocks = noise(weights, seed);
        for block in blocks.chunks_exact_mut(format.bytes()) {
            let (scale, at) =
                (0x0a00u16.to_le_bytes(), if format == BlockFormat::Q6K { 208 } else { 0 });
            block[at..at + 2].copy_from_slice(&scale);
            if format == BlockFormat::Q4K {
                block[2..4].copy_from_slice(&scale);
            }
        }
        return [blocks, Vec::new(), Vec::new()];
    }
    let bits = match encoding {
        Encoding::Affine { bits, .. } => bits,
        _ => 1,
    };
    let step = 0.08 / f32::from(1u16 << (bits - 1).min(8));
    let upper = |value: f32| (value.to_bits() >> 16) as u16;
    let fill = |bytes: usize, value: f32| upper(value).to_le_bytes().repeat(bytes / 2);
    let bias = -step * f32::from(1u16 << (bits - 1));
    [noise(weights, seed), fill(scales, step), fill(biases, bias)]
}

/// Matrices of one shape.
struct Copies {
    trunk: Trunk,
    count: usize,
    rows: usize,
    columns: usize,
    bytes: usize,
    next: usize,
}

impl Copies {
    fn new(
        gpu: &mut Gpu,
        encoding: Encoding,
        rows: usize,
        columns: usize,
        count: usize,
    ) -> Result<Self> {
        let mut trunk = Trunk::default();
        let planes = planes(encoding, rows, columns, 7);
        let [weights, scales, biases] = &planes;
        let matrix = Matrix::new(encoding, rows, columns, weights, scales, biases).unwrap();
        for _ in 0..count {
            trunk.add(gpu, "matrix", &matrix)?;
        }
        let bytes = planes.iter().map(Vec::len).sum();
        Ok(Self { trunk, count, rows, columns, bytes, next: 0 })
    }

    fn next(&mut self) -> &gpu::Planes {
        self.next = (self.next + 1) % self.count;
        self.trunk.matrix(self.next)
    }
}

/// The launches of one token that do several operations.
fn together(gpu: &mut Gpu, table: &mut Table, room: &Room) -> Result<()> {
    let mut sets = Vec::new();
    for rows in [8192, 4096, 32, 32] {
        sets.push(Copies::new(gpu, encoding(4, room.blocks), rows, HIDDEN, COPIES)?);
    }
    let outputs = [&room.b, &room.c, &room.d, &room.keys];
    let (from, mut next) = ((&room.a, &room.small), 0);
    let bytes = sets.iter().map(|set| set.bytes).sum();
    table.line(gpu, "norm, qkv, z, beta, decay", 30, bytes, &mut |gpu| {
        next = (next + 1) % COPIES;
        let matrices: Vec<_> =
            sets.iter().zip(outputs).map(|(set, y)| (set.trunk.matrix(next), y)).collect();
        fused::launch_several(gpu, &matrices, from, 1e-6, None)
    })?;
    table.line(gpu, "  and its convolution", 30, bytes, &mut |gpu| {
        next = (next + 1) % COPIES;
        let of = |at: usize| (sets[at].trunk.matrix(next), outputs[at]);
        let matrices = [of(0), of(1), of(2), of(3)];
        let filter = (&room.keys, &room.tail, 4);
        fused::launch_delta_inputs(gpu, matrices, from, 1e-6, filter)
    })?;
    let mut out = Copies::new(gpu, encoding(4, room.blocks), HIDDEN, 4096, COPIES)?;
    table.line(gpu, "gated norm, out", 30, out.bytes, &mut |gpu| {
        let of = [&room.a, &room.small, &room.b];
        let of = (of, norm::Gate::Silu);
        gated_product::launch(gpu, out.next(), of, &room.d, 128, 1e-6)
    })?;
    let mut router = Copies::new(gpu, encoding(8, room.blocks), EXPERTS, HIDDEN, COPIES)?;
    let mut factor = Copies::new(gpu, encoding(8, room.blocks), 1, HIDDEN, COPIES)?;
    table.line(gpu, "norm, router, factor", 40, router.bytes, &mut |gpu| {
        let matrices = [(router.next(), &room.b), (factor.next(), &room.c)];
        fused::launch_several(gpu, &matrices, from, 1e-6, Some(&room.d))
    })?;
    let mut gate = Copies::new(gpu, encoding(4, room.blocks), INNER, HIDDEN, COPIES)?;
    let mut up = Copies::new(gpu, encoding(4, room.blocks), INNER, HIDDEN, COPIES)?;
    table.line(gpu, "shared gate, up, activation", 40, 2 * gate.bytes, &mut |gpu| {
        fused::launch_gated(gpu, [gate.next(), up.next()], &room.a, &room.b)
    })?;
    let mut down = Copies::new(gpu, encoding(4, room.blocks), HIDDEN, INNER, COPIES)?;
    table.line(gpu, "shared down, sum", 40, down.bytes, &mut |gpu| {
        let pairs = combine::Weighed { rows: &room.b, weights: &room.c };
        fused::launch_close(gpu, down.next(), &room.a, &room.small, pairs, &room.d, TOP_K)
    })?;
    let record = room.layout.record_shape();
    let logits = gpu.buffer("logits", 4 * EXPERTS as u64)?;
    let mut both = |gpu: &mut Gpu, first: bool| {
        let work = chosen::Work {
            record: &record,
            slabs: &room.slabs,
            choice: room.choice(1),
            shape: (EXPERTS, TOP_K),
            shared: Some([gate.next(), up.next(), down.next()]),
            inner: &room.b,
        };
        match first {
            true => chosen::launch_gate_up(gpu, work, (logits.all(), true), &room.a),
            false => chosen::launch_down(gpu, work, &room.c, &room.d),
        }
    };
    let third = 9 * INNER * HIDDEN * 9 / 16;
    table.line(gpu, "choice, gate, up", 40, 2 * third, &mut |gpu| both(gpu, true))?;
    table.line(gpu, "downs, sum", 40, third, &mut |gpu| both(gpu, false))?;
    let shape =
        delta::Shape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, tiled: false };
    table.line(gpu, "convolution, heads", 30, 8 * shape.channels(), &mut |gpu| {
        let buffers = room.filtered();
        convolution::launch_with_heads(gpu, buffers, shape, 4, 0)
    })?;
    let shape = attention::Shape { query_heads: 16, key_value_heads: 2, dim: 256 };
    table.line(gpu, "norms, rotation, append", 10, 4 * 9216, &mut |gpu| {
        let of = heads::Prepared {
            both: Some(&room.a),
            key: &room.c,
            value: &room.d,
            weights: [&room.small; 2],
            angles: &room.small,
            query: &room.b,
            places: room.places(),
        };
        let run = Run { first: 0, tokens: 1, position: 512 };
        heads::launch_prepare(gpu, Cache::F16, of, shape, run, 32, 1e-6)
    })
}

/// Buffers that every kernel's arguments are taken from.
struct Room {
    a: Buffer,
    b: Buffer,
    c: Buffer,
    d: Buffer,
    small: Buffer,
    state: Buffer,
    tail: Buffer,
    keys: Buffer,
    values: Buffer,
    ids: Buffer,
    weights: Buffer,
    tiles: Buffer,
    order: Buffer,
    halves: Halves,
    slabs: Slabs,
    layout: experts::Layout,
    /// Whether cooperative matrices are measured too.
    matrices: bool,
    /// Whether matrices are blocks.
    blocks: bool,
    /// Whether a prompt's products by matrices are not computed without them.
    quick: bool,
}

impl Room {
    fn places(&self) -> attention::KeyValue<'_> {
        attention::KeyValue { keys: &self.keys, values: &self.values }
    }

    fn filtered(&self) -> convolution::Filtered<'_> {
        convolution::Filtered { x: &self.a, weight: &self.c, tail: &self.tail, y: &self.b }
    }

    /// What a router's choice is written to.
    fn choice(&self, flag: u32) -> router::Choice<'_> {
        let Self { ids, weights, tiles, .. } = self;
        router::Choice { ids, first_id: 0, weights, tiles, table_start: 0, flag }
    }

    /// So many tiles of so many pairs at the most.
    fn work(&self, (count, pairs): (usize, u32), flag: u32) -> Work<'_> {
        let Self { tiles, order, .. } = self;
        Work {
            tiles,
            first: 0,
            count,
            pairs,
            order,
            k: TOP_K,
            table_start: 0,
            flag,
            activation: experts::Activation::SwiGlu,
        }
    }

    fn new(gpu: &mut Gpu, tokens: usize, [matrices, blocks, quick]: [bool; 3]) -> Result<Self> {
        let widest = tokens * TOP_K * HIDDEN;
        let mut floats = |count: usize| gpu.buffer("room", 4 * count as u64);
        let [a, b, c, d] = [floats(widest)?, floats(widest)?, floats(widest)?, floats(widest)?];
        let (small, state) = (floats(tokens * 512)?, floats(32 * 128 * 128)?);
        let tail = floats(8192 * 4)?;
        let (keys, values) = (floats(CONTEXT * 512)?, floats(CONTEXT * 512)?);
        let (ids, weights) = (floats(tokens * TOP_K)?, floats(tokens * TOP_K)?);
        let (tiles, order) = (floats(3 * tokens * TOP_K)?, floats(tokens * TOP_K)?);
        let [values_of, factors] = Halves::sizes(tokens * TOP_K + 64, HIDDEN);
        let halves = Halves { values: floats(values_of)?, factors: floats(factors)? };
        let encoding = encoding(4, blocks);
        let shapes = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)];
        let layout = experts::Layout::new([encoding; 3], shapes).unwrap();
        let slot = layout.bytes().next_multiple_of(Gpu::ALIGNMENT as usize);
        let mut slabs = Slabs::new(gpu, EXPERTS, slot, EXPERTS)?;
        let held = shapes.map(|(rows, columns)| planes(encoding, rows, columns, 3));
        let record = layout.record(held.each_ref().map(|it| it.each_ref().map(Vec::as_slice)));
        for expert in 0..EXPERTS {
            slabs.fill(gpu, expert, &record)?;
            slabs.name(expert, slabs.slot_word(expert));
        }
        slabs.write_table(gpu)?;
        let words = noise(4 * widest, 5);
        let words = words.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let numbers: Vec<f32> = words.map(|word| word as f32 / 2f32.powi(31) - 1.0).collect();
        for buffer in [&a, &b, &c, &d] {
            gpu.write_floats(buffer, 0, &numbers)?;
        }
        gpu.write_floats(&small, 0, &numbers[..tokens * 512])?;
        Ok(Self {
            a,
            b,
            c,
            d,
            small,
            state,
            tail,
            keys,
            values,
            ids,
            weights,
            tiles,
            order,
            halves,
            slabs,
            layout,
            matrices,
            blocks,
            quick,
        })
    }

    /// Pairs by expert in tiles of `most`: as if each token had drawn its experts evenly.
    fn assign(&self, gpu: &mut Gpu, tokens: usize, most: usize) -> Result<usize> {
        let mut of = vec![Vec::new(); EXPERTS];
        for pair in 0..tokens * TOP_K {
            let token = pair / TOP_K;
            of[(token * 37 + (pair % TOP_K) * 31 + (token * token) % 29) % EXPERTS]
                .push(pair as u32);
        }
        let (mut tiles, mut order) = (Vec::new(), Vec::new());
        for (expert, pairs) in of.iter().enumerate() {
            for part in pairs.chunks(most) {
                tiles.extend([expert as u32, order.len() as u32, part.len() as u32]);
                order.extend(part);
            }
        }
        gpu.write_words(&self.tiles, 0, &tiles)?;
        gpu.write_words(&self.order, 0, &order)?;
        Ok(tiles.len() / 3)
    }
}

fn products(
    gpu: &mut Gpu,
    table: &mut Table,
    room: &Room,
    tokens: usize,
    prompt: bool,
) -> Result<()> {
    let matrices = gpu.adapter().matrices && prompt && room.matrices;
    let shapes = [
        ("product qkv", 30, 4, 8192, HIDDEN),
        ("product z", 30, 4, 4096, HIDDEN),
        ("product beta, decay", 60, 4, 32, HIDDEN),
        ("product out", 40, 4, HIDDEN, 4096),
        ("product query", 10, 4, 8192, HIDDEN),
        ("product key, value", 20, 4, 512, HIDDEN),
        ("product router", 40, 8, EXPERTS, HIDDEN),
        ("product shared factor", 40, 8, 1, HIDDEN),
        ("product shared gate, up", 80, 4, INNER, HIDDEN),
        ("product shared down", 40, 4, HIDDEN, INNER),
    ];
    for (name, count, bits, rows, columns) in shapes {
        let mut copies = Copies::new(gpu, encoding(bits, room.blocks), rows, columns, COPIES)?;
        let (bytes, shape) = (copies.bytes, (tokens, columns));
        let tiled = matrices && (!room.quick || tile::serves(rows, columns));
        if tiled && room.quick {
            println!("{name}");
        } else {
            table.line(gpu, name, count, bytes, &mut |gpu| {
                product::launch(gpu, copies.next(), &room.a, &room.b, tokens, false)
            })?;
        }
        if !tiled {
            continue;
        }
        let flops = 2.0 * (tokens * copies.rows * copies.columns) as f64;
        table.line(gpu, "  halves", count, 8 * tokens * columns, &mut |gpu| {
            halves::launch(gpu, &room.a, &room.halves, shape)
        })?;
        table.line(gpu, "  by matrices", count, flops as usize, &mut |gpu| {
            tile::launch(gpu, copies.next(), &room.halves, &room.c, tokens, false)
        })?;
        if !room.quick {
            let plain = gpu.read_floats(&room.b, 0, tokens * rows)?;
            let tiled = gpu.read_floats(&room.c, 0, tokens * rows)?;
            compare(&plain, &tiled);
        }
    }
    Ok(())
}

fn compare(plain: &[f32], tiled: &[f32]) {
    let scale = plain.iter().fold(1e-9f32, |most, value| most.max(value.abs()));
    let (mut most, mut at, mut wrong) = (0.0f32, 0, 0);
    for (index, (one, other)) in plain.iter().zip(tiled).enumerate() {
        let apart = (one - other).abs() / scale;
        wrong += usize::from(apart.is_nan() || apart >= 1e-4);
        if apart.is_nan() || apart > most {
            (most, at) = (apart, index);
        }
    }
    let (one, other) = (plain[at], tiled[at]);
    println!(
        "    differs by {most:.1e} of {scale:.3} at {at}: {one} and {other}; {wrong} beyond 1e-4"
    );
}

fn mixture(gpu: &mut Gpu, table: &mut Table, room: &Room, tokens: usize) -> Result<()> {
    let record = room.layout.record_shape();
    let alone = tokens <= 8;
    let (most, pairs) = if alone { (1, 1) } else { (8, experts::TILE_TOKENS) };
    let count = room.assign(gpu, tokens, most)?;
    let used = (tokens * TOP_K).min(EXPERTS);
    let third = room.layout.bytes() / 3;
    let work = room.work((count, pairs), 1);
    let matrices = gpu.adapter().matrices && room.matrices && !alone;
    if matrices && room.quick {
        println!("experts");
    } else {
        table.line(gpu, "experts gate, up", 40, 2 * third * used, &mut |gpu| {
            experts::launch(gpu, Half::GateUp, &record, &room.slabs, work, &room.a, &room.b)
        })?;
        table.line(gpu, "experts down", 40, third * used, &mut |gpu| {
            experts::launch(gpu, Half::Down, &record, &room.slabs, work, &room.b, &room.c)
        })?;
    }
    if matrices {
        let plain = match room.quick {
            true => Vec::new(),
            false => gpu.read_floats(&room.c, 0, tokens * TOP_K * HIDDEN)?,
        };
        let pairs = tile::expert_tokens(tokens * TOP_K, EXPERTS);
        let count = room.assign(gpu, tokens, pairs as usize)?;
        let work = Work { count, pairs, ..work };
        let flops = 2 * tokens * TOP_K * INNER * HIDDEN;
        halves::launch(gpu, &room.a, &room.halves, (tokens, HIDDEN))?;
        table.line(gpu, "  gate, up by matrices", 40, 2 * flops, &mut |gpu| {
            tile::launch_experts(
                gpu,
                Half::GateUp,
                &record,
                &room.slabs,
                work,
                &room.halves,
                &room.b,
            )
        })?;
        let pairs = (tokens * TOP_K, INNER);
        table.line(gpu, "  halves of inner rows", 40, 8 * pairs.0 * INNER, &mut |gpu| {
            halves::launch(gpu, &room.b, &room.halves, pairs)
        })?;
        table.line(gpu, "  down by matrices", 40, flops, &mut |gpu| {
            tile::launch_experts(gpu, Half::Down, &record, &room.slabs, work, &room.halves, &room.d)
        })?;
        if !room.quick {
            compare(&plain, &gpu.read_floats(&room.d, 0, tokens * TOP_K * HIDDEN)?);
        }
    }
    let choice = room.choice(1);
    table.line(gpu, "router", 40, 4 * tokens * EXPERTS, &mut |gpu| {
        let shape = router::Chosen { tokens, experts: EXPERTS, k: TOP_K };
        router::launch(gpu, room.small.all(), None, &room.slabs, choice, shape, true)
    })?;
    table.line(gpu, "swiglu", 40, 12 * tokens * INNER, &mut |gpu| {
        elementwise::launch_swiglu(gpu, &room.a, &room.b, tokens * INNER)
    })?;
    let lists = (&room.d, &room.order);
    table.line(gpu, "pairs by expert", 40, 8 * tokens * TOP_K, &mut |gpu| {
        group::launch(gpu, &room.ids, lists, (tokens * TOP_K, EXPERTS), 32)
    })?;
    let rows = combine::Weighed { rows: &room.c, weights: &room.weights };
    table.line(gpu, "combine", 40, 4 * tokens * TOP_K * HIDDEN, &mut |gpu| {
        let shared = Some(combine::Shared { rows: &room.a, factor: Some(&room.small) });
        let size = combine::Combined { tokens, k: TOP_K, width: HIDDEN, add: true };
        combine::launch(gpu, rows, shared, &room.b, size)
    })
}

fn layers(
    gpu: &mut Gpu,
    table: &mut Table,
    room: &Room,
    tokens: usize,
    position: usize,
) -> Result<()> {
    let run = Run { first: 0, tokens, position };
    table.line(gpu, "norm", 81, 8 * tokens * HIDDEN, &mut |gpu| {
        norm::launch(gpu, (&room.a, &room.small, &room.b), (tokens, HIDDEN), 1e-6)
    })?;
    let delta =
        delta::Shape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, tiled: false };
    let channels = delta.channels();
    table.line(gpu, "convolution", 30, 8 * tokens * channels, &mut |gpu| {
        let buffers = room.filtered();
        convolution::launch(gpu, buffers, channels, 4, run)
    })?;
    table.line(gpu, "delta heads", 30, 8 * tokens * 4096, &mut |gpu| {
        delta::launch_heads(gpu, &room.b, delta, tokens)
    })?;
    let inputs = delta::Inputs {
        x: &room.b,
        beta: &room.small,
        decays: delta::Decays::Heads { decay: &room.small, rate: &room.small, bias: &room.small },
    };
    table.line(gpu, "delta rule", 30, 8 * delta.state_len(), &mut |gpu| {
        delta::launch(gpu, inputs, &room.state, &room.c, delta, run)
    })?;
    table.line(gpu, "gated norm", 30, 12 * tokens * 4096, &mut |gpu| {
        let (x, weight, gate) = (&room.b, &room.small, &room.a);
        let buffers = norm::Gated { x, weight, gate, function: norm::Gate::Silu };
        norm::launch_gated(gpu, buffers, (tokens * 32, 128), 1e-6)
    })?;
    let sixteen = heads::Heads { tokens, heads: 16, dim: 256 };
    table.line(gpu, "split", 10, 16 * tokens * 4096, &mut |gpu| {
        heads::launch_split(gpu, (&room.a, &room.b, &room.c), sixteen)
    })?;
    table.line(gpu, "heads", 20, 8 * tokens * 4096, &mut |gpu| {
        heads::launch(gpu, (&room.b, &room.small, &room.small), sixteen, 32, 1e-6)
    })?;
    let shape = attention::Shape { query_heads: 16, key_value_heads: 2, dim: 256 };
    let places = room.places();
    let queries = attention::Queries { query: &room.a, both: None };
    table.line(gpu, "append", 10, 6 * tokens * 1024, &mut |gpu| {
        let rows = attention::KeyValue { keys: &room.a, values: &room.d };
        attention::launch_append(gpu, Cache::F16, rows, places, shape, run)
    })?;
    let bytes = 2 * 2 * 512 * (position + tokens);
    table.line(gpu, "attend", 10, bytes, &mut |gpu| {
        attention::launch(gpu, Cache::F16, queries, places, &room.b, shape, run)
    })?;
    if tokens > 1 {
        table.line(gpu, "  attend, of a prompt", 10, bytes, &mut |gpu| {
            prompt::launch(gpu, Cache::F16, queries, places, &room.b, shape, run)
        })?;
    }
    if tokens == 1 {
        table.line(gpu, "  attend side by side (two)", 20, bytes, &mut |gpu| {
            let to = attention::Split { partial: &room.d, y: &room.c };
            attention::launch_split(gpu, Cache::F16, queries, places, to, shape, run)
        })?;
    }
    table.line(gpu, "sigmoid gate", 10, 12 * tokens * 4096, &mut |gpu| {
        elementwise::launch_sigmoid_gate(gpu, &room.a, &room.b, tokens * 4096)
    })
}

fn head(gpu: &mut Gpu, table: &mut Table, room: &Room) -> Result<()> {
    let mut copies = Copies::new(gpu, encoding(4, room.blocks), VOCABULARY, HIDDEN, 1)?;
    let bytes = copies.bytes;
    table.line(gpu, "product head", 1, bytes, &mut |gpu| {
        product::launch(gpu, copies.next(), &room.a, &room.c, 1, false)
    })?;
    let ids = room.ids.clone();
    table.line(gpu, "embedding", 1, 4 * HIDDEN, &mut |gpu| {
        embedding::launch(gpu, copies.next(), &ids, &room.b, 1)
    })?;
    let scratch = gpu.buffer("ranking", 4 * draw::scratch_words(VOCABULARY, 1) as u64)?;
    table.line(gpu, "most likely (two passes)", 2, 2 * VOCABULARY, &mut |gpu| {
        draw::launch_most_likely(gpu, &room.c, &scratch, &room.ids, (1, VOCABULARY))
    })
}

/// What concerns one token.
fn answer(gpu: &mut Gpu, room: &Room) -> Result<()> {
    token::costs(gpu)?;
    token::tokens(gpu, room)?;
    let mut table = Table::new("one token at position 512", 40);
    products(gpu, &mut table, room, 1, false)?;
    layers(gpu, &mut table, room, 1, 512)?;
    mixture(gpu, &mut table, room, 1)?;
    head(gpu, &mut table, room)?;
    table.end();
    let mut table = Table::new("launches of one token that do several operations", 40);
    together(gpu, &mut table, room)?;
    table.end();
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|it| it.parse::<usize>().unwrap());
    let adapter = choose(arguments.next())?;
    let prompt = arguments.next().unwrap_or(2048);
    println!("{adapter}\nmatrices: {}", adapter.matrix_shapes().join(", "));
    let mut gpu = Gpu::open(adapter)?;
    let matrices = arguments.next() != Some(0);
    let blocks = arguments.next() == Some(1);
    let quick = arguments.next() == Some(1);
    let room = Room::new(&mut gpu, prompt.max(1024), [matrices, blocks, quick])?;
    if !quick {
        answer(&mut gpu, &room)?;
    }
    let mut table = Table::new(&format!("a prompt of {prompt}"), 3);
    products(&mut gpu, &mut table, &room, prompt, true)?;
    layers(&mut gpu, &mut table, &room, prompt, 0)?;
    mixture(&mut gpu, &mut table, &room, prompt)?;
    table.end();
    Ok(())
}
