//! Compressed attention: rotations, stored rows, rows that stand for several tokens, their choice and attention over
//! them, against plain code; a run at once, cut, and token by token.

use kernels::{KvType, decode_fp4, encode_fp4, hadamard, round_fp4};

use super::reference::reference;
use super::*;
use crate::op::attention::Run;
use crate::op::compressed_attention::{self, Scored, Seen};
use crate::op::compressed_rows::{
    self, Angles, Heads, Made, PageRows, Pooled, RowRing, StoredRows, Turn,
};
use crate::op::rounded::Stored;

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    add(turns(gpu)?);
    add(rounds(gpu)?);
    for (rows, keys) in
        [(Stored::F32, Stored::F32), (Stored::F16, Stored::F16), (Stored::Fp8, Stored::Fp4)]
    {
        add(stores(gpu, rows)?);
        let shape = Shape { rows, keys, dim: 96, plain: 16, key_dim: 32, window: 24, heads: 3 };
        add(attends(gpu, Shape { dim: 512, plain: 64, key_dim: 128, heads: 2, ..shape }, 12)?);
        add(attends(gpu, shape, 150)?);
    }
    Ok(())
}

/// Words that `dim` values take, of a row or of a key.
fn words_of(stored: Stored, dim: usize, plain: usize) -> usize {
    let bytes = match kind_of(stored, plain) {
        Some(kind) => kind.bytes_of_head(dim),
        None => kernels::fp4_bytes(dim),
    };
    bytes.div_ceil(4)
}

fn kind_of(stored: Stored, plain: usize) -> Option<KvType> {
    match stored {
        Stored::F32 => Some(KvType::F32),
        Stored::F16 => Some(KvType::F16),
        Stored::Fp8 => Some(KvType::Fp8 { rotated: plain as u16 }),
        Stored::Fp4 => None,
    }
}

/// The bytes of a row, in whole words.
fn encoded(stored: Stored, values: &[f32], plain: usize) -> Vec<u8> {
    let mut row = match kind_of(stored, plain) {
        Some(kind) => {
            let mut row = vec![0; kind.bytes_of_head(values.len())];
            kind.encode(values, &mut row);
            row
        }
        None => {
            let (mut values, mut row) =
                (values.to_vec(), vec![0; kernels::fp4_bytes(values.len())]);
            hadamard(&mut values);
            encode_fp4(&values, &mut row);
            row
        }
    };
    row.resize(4 * words_of(stored, values.len(), plain), 0);
    row
}

fn decoded(stored: Stored, row: &[u8], dim: usize, plain: usize) -> Vec<f32> {
    let mut values = vec![0.0; dim];
    match kind_of(stored, plain) {
        Some(kind) => kind.decode(&row[..kind.bytes_of_head(dim)], &mut values),
        None => decode_fp4(&row[..kernels::fp4_bytes(dim)], &mut values),
    }
    values
}

/// Cosine and sine of each pair's angle.
fn angle(position: usize, pair: usize) -> [f32; 2] {
    let angle = f64::from(position as f32 * 0.7f32.powi(pair as i32));
    [angle.cos() as f32, angle.sin() as f32]
}

fn angles(pairs: usize, positions: impl Iterator<Item = usize>) -> Vec<f32> {
    positions.flat_map(|at| (0..pairs).flat_map(move |pair| angle(at, pair))).collect()
}

/// Turns the last values of a head.
fn turned(head: &mut [f32], pairs: usize, position: usize, direction: f32) {
    let start = head.len() - 2 * pairs;
    for (number, pair) in head[start..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let ([x, y], [c, s]) = (*pair, angle(position, number));
        *pair = [x * c - y * s * direction, y * c + x * s * direction];
    }
}

/// Heads that are normed and turned, and turned back.
fn turns(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (tokens, heads, dim, pairs) = (3, 2, 320, 10);
    let mut numbers = Numbers::new(131);
    let (x, weight) = (numbers.floats(tokens * heads * dim), numbers.floats(dim));
    let mut forth = x.clone();
    reference().rms_norm_in_place(&mut forth, &weight, 1e-6);
    let mut back = x.clone();
    let rows = forth.chunks_exact_mut(dim).zip(back.chunks_exact_mut(dim)).enumerate();
    for (row, (forth, back)) in rows {
        turned(forth, pairs, 5 + row / heads, 1.0);
        turned(back, pairs, 5 + row / heads, -1.0);
    }
    let told = [vec![9.0; 7], angles(pairs, 5..5 + tokens)].concat();
    let (told, weight) = (floats(gpu, &told)?, floats(gpu, &weight)?);
    let mut turn = |first: usize, tokens: usize, turn| {
        let buffer = floats(gpu, &x[first * heads * dim..][..tokens * heads * dim])?;
        let of = Angles { buffer: &told, first: 7 + first * 2 * pairs, pairs };
        compressed_rows::launch_turn(gpu, &buffer, of, Heads { tokens, heads, dim }, turn)?;
        gpu.read_floats(&buffer, 0, tokens * heads * dim)
    };
    let normed = Turn::Normed(&weight, 1e-6);
    let found = [turn(0, tokens, normed)?, turn(0, tokens, Turn::Back)?].concat();
    let alone = turn(tokens - 1, 1, normed)?;
    let whole = tokens * heads * dim;
    let alone_equal = alone == found[whole - heads * dim..whole];
    let difference = difference(&found, &[forth, back].concat());
    let name = "rotation of ends of heads".to_owned();
    Ok(Finding { name, difference, bound: 1e-5, alone_equal })
}

/// Queries of the indexer as 4-bit keys would hold them: to the bit where nothing is turned.
fn rounds(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (heads, dim, pairs) = (5, 64, 8);
    let x = Numbers::new(132).floats(heads * dim);
    let mut expected = x.clone();
    for head in expected.chunks_exact_mut(dim) {
        hadamard(head);
        round_fp4(head);
    }
    let (told, buffer) = (floats(gpu, &[1.0, 0.0].repeat(pairs))?, floats(gpu, &x)?);
    let (of, shape) = (Angles { buffer: &told, first: 0, pairs }, Heads { tokens: 1, heads, dim });
    compressed_rows::launch_turn(gpu, &buffer, of, shape, Turn::Rounded)?;
    let alone_equal = gpu.read_floats(&buffer, 0, x.len())? == expected;
    let name = "queries of an indexer in 4 bits".to_owned();
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal })
}

/// Rows of a ring, of large, small and plain numbers; those that are rounded have the processor's bits.
fn stores(gpu: &mut Gpu, stored: Stored) -> Result<Finding, GpuError> {
    let (tokens, dim, plain, start) = (7, 500, 36, 5);
    let mut numbers = Numbers::new(133);
    let scales: Vec<f32> =
        (0..tokens * dim).map(|at| 10f32.powi((at / 50) as i32 % 9 - 5)).collect();
    let random = numbers.floats(tokens * dim);
    let keys: Vec<f32> = random.iter().zip(&scales).map(|(value, scale)| value * scale).collect();
    let (words, base) = (words_of(stored, dim, plain), 3);
    let (input, to) = (floats(gpu, &keys)?, empty(gpu, base + tokens * words)?);
    let ring = RowRing { buffer: &to, base, rows: tokens };
    let rows = StoredRows { stored, dim, plain, words };
    let run = Run { first: 0, tokens, position: start };
    compressed_rows::launch_store(gpu, &input, ring, rows, run)?;
    let found = gpu.read_words(&to, 4 * base as u64, tokens * words)?;
    let found: Vec<u8> = found.into_iter().flat_map(u32::to_le_bytes).collect();
    let place = |at: usize| (start + at) % tokens;
    let (mut values, mut expected, mut alone_equal) = (Vec::new(), Vec::new(), true);
    for (at, key) in keys.chunks_exact(dim).enumerate() {
        let row = &found[place(at) * 4 * words..][..4 * words];
        let bytes = encoded(stored, key, plain);
        // How a driver rounds halves is its own choice.
        alone_equal &= stored == Stored::F16 || *row == bytes[..];
        values.extend(decoded(stored, row, dim, plain));
        expected.extend(decoded(stored, &bytes, dim, plain));
    }
    let bound = if stored == Stored::F16 { 1e-3 } else { 0.0 };
    let name = format!("rows of a window, {stored:?}");
    Ok(Finding { name, difference: difference(&values, &expected), bound, alone_equal })
}

/// What is attended.
#[derive(Clone, Copy)]
struct Shape {
    rows: Stored,
    keys: Stored,
    dim: usize,
    plain: usize,
    key_dim: usize,
    window: usize,
    heads: usize,
}

const RATIO: usize = 4;
/// Rows that a token chooses, heads of the indexer, rows of a page.
const TOP: usize = 7;
const INDEX_HEADS: usize = 18;
const PAGE_ROWS: usize = 5;
const PAIRS: usize = 8;

/// What the tokens of a run have, as the matrices gave it.
struct Inputs {
    tokens: usize,
    /// `[heads, dim]`, `[dim]`, `[index heads, key_dim]`, `[index heads]`
    query: Vec<f32>,
    key: Vec<f32>,
    index_query: Vec<f32>,
    factors: Vec<f32>,
    /// `[2 dim]` and `[2 key_dim]`, values and gates, and what is added to those.
    values: [Vec<f32>; 2],
    gates: [Vec<f32>; 2],
    added: [Vec<f32>; 2],
    norms: [Vec<f32>; 2],
    sinks: Vec<f32>,
}

impl Inputs {
    fn random(shape: Shape, tokens: usize) -> Self {
        let mut numbers = Numbers::new(134);
        let dims = [shape.dim, shape.key_dim];
        let mut each = |count: usize| numbers.floats(count);
        Self {
            tokens,
            query: each(tokens * shape.heads * shape.dim),
            key: each(tokens * shape.dim),
            index_query: each(tokens * INDEX_HEADS * shape.key_dim),
            factors: each(tokens * INDEX_HEADS),
            values: dims.map(|dim| each(tokens * 2 * dim)),
            gates: dims.map(|dim| each(tokens * 2 * dim)),
            added: dims.map(|dim| each(RATIO * 2 * dim)),
            norms: dims.map(&mut each),
            sinks: each(shape.heads),
        }
    }

    /// A compressed row (of kind 0) or a key (1), before it is stored.
    fn pooled(&self, kind: usize, number: usize, dim: usize) -> Vec<f32> {
        let (first, width) = (number * RATIO, 2 * dim);
        let begin = first.saturating_sub(RATIO);
        let mut row: Vec<f32> = (0..dim)
            .map(|d| {
                let at = |q: usize| d + if q >= first { dim } else { 0 };
                let gate = |q: usize| {
                    self.gates[kind][q * width + at(q)]
                        + self.added[kind][q % RATIO * width + at(q)]
                };
                let all = begin..first + RATIO;
                let most = all.clone().map(gate).fold(f32::NEG_INFINITY, f32::max);
                let weight = |q: usize| f64::from(gate(q) - most).exp();
                let total: f64 = all.clone().map(weight).sum();
                let value = |q: usize| f64::from(self.values[kind][q * width + at(q)]);
                (all.map(|q| weight(q) * value(q)).sum::<f64>() / total) as f32
            })
            .collect();
        reference().rms_norm_in_place(&mut row, &self.norms[kind], 1e-6);
        turned(&mut row, PAIRS, first, 1.0);
        row
    }
}

/// What a device holds while it attends.
struct Held {
    index_query: Buffer,
    factors: Buffer,
    query: Buffer,
    key: Buffer,
    values: [Buffer; 2],
    gates: [Buffer; 2],
    added: [Buffer; 2],
    norms: [Buffer; 2],
    sinks: Buffer,
    state: Buffer,
    span: Buffer,
    pages: Buffer,
    angles: Buffer,
    scores: Buffer,
    chosen: Buffer,
    out: Buffer,
    /// First words in the state of the ring, and of the tails of rows and keys.
    places: [usize; 3],
    /// Words of rows and of keys.
    words: [usize; 2],
    most: usize,
}

impl Held {
    fn new(gpu: &mut Gpu, shape: Shape, of: &Inputs) -> Result<Self, GpuError> {
        let words = [(shape.rows, shape.dim), (shape.keys, shape.key_dim)]
            .map(|(stored, dim)| words_of(stored, dim, shape.plain));
        let (ring, most) = (shape.window * words[0], of.tokens / RATIO);
        let tails = [shape.dim, shape.key_dim].map(|dim| 2 * 2 * RATIO * 2 * dim);
        let places = [2, 2 + ring, 2 + ring + tails[0]];
        let pages = most.div_ceil(PAGE_ROWS) * PAGE_ROWS * (words[0] + words[1]);
        let first = (0..of.tokens).map(|position| position / RATIO * RATIO);
        let mut both = |of: &[Vec<f32>; 2]| Ok([floats(gpu, &of[0])?, floats(gpu, &of[1])?]);
        let (values, gates) = (both(&of.values)?, both(&of.gates)?);
        let (added, norms) = (both(&of.added)?, both(&of.norms)?);
        Ok(Self {
            index_query: floats(gpu, &of.index_query)?,
            factors: floats(gpu, &of.factors)?,
            query: floats(gpu, &of.query)?,
            key: floats(gpu, &of.key)?,
            values,
            gates,
            added,
            norms,
            sinks: floats(gpu, &of.sinks)?,
            state: empty(gpu, places[2] + tails[1])?,
            span: empty(gpu, of.tokens * words[0])?,
            pages: empty(gpu, pages)?,
            angles: floats(gpu, &angles(PAIRS, first))?,
            scores: empty(gpu, of.tokens * most)?,
            chosen: empty(gpu, of.tokens * TOP)?,
            out: empty(gpu, of.query.len())?,
            places,
            words,
            most,
        })
    }

    /// Rows (kind 0) or keys (1) in the pages.
    fn page_rows(&self, kind: usize) -> PageRows<'_> {
        PageRows {
            pages: &self.pages,
            page: PAGE_ROWS * (self.words[0] + self.words[1]),
            place: kind * PAGE_ROWS * self.words[0],
            rows: PAGE_ROWS,
        }
    }

    /// A run from its inputs to its attention, as a backend orders it.
    fn attend(&self, gpu: &mut Gpu, shape: Shape, run: Run) -> Result<(), GpuError> {
        let dims = [shape.dim, shape.key_dim];
        let stored = |kind: usize| StoredRows {
            stored: [shape.rows, shape.keys][kind],
            dim: dims[kind],
            plain: shape.plain,
            words: self.words[kind],
        };
        for (kind, dim) in dims.into_iter().enumerate() {
            let of = Pooled {
                values: &self.values[kind],
                gates: &self.gates[kind],
                added: &self.added[kind],
                state: &self.state,
                tail: self.places[1 + kind],
                ratio: RATIO,
                overlap: true,
                dim,
            };
            let angles = Angles { buffer: &self.angles, first: 0, pairs: PAIRS };
            let made = Made {
                norm: &self.norms[kind],
                epsilon: 1e-6,
                angles,
                rows: stored(kind),
                to: self.page_rows(kind),
            };
            compressed_rows::launch_pool(gpu, of, made, run)?;
            compressed_rows::launch_keep(gpu, of, run)?;
        }
        if (run.position + run.tokens) / RATIO > TOP {
            let of = Scored {
                query: &self.index_query,
                factors: &self.factors,
                heads: INDEX_HEADS,
                keys: (stored(1), self.page_rows(1)),
                ratio: RATIO,
                top: TOP,
                scores: &self.scores,
                stride: self.most,
                chosen: &self.chosen,
            };
            compressed_attention::launch_choose(gpu, of, run)?;
        }
        let ring = RowRing { buffer: &self.state, base: self.places[0], rows: shape.window };
        let span = RowRing { buffer: &self.span, base: 0, rows: run.tokens };
        let (rows, from_span) = (stored(0), Run { position: 0, ..run });
        match run.tokens {
            1 => compressed_rows::launch_store(gpu, &self.key, ring, rows, run)?,
            _ => compressed_rows::launch_store(gpu, &self.key, span, rows, from_span)?,
        }
        let seen = Seen {
            ring,
            span: (run.tokens > 1).then_some(&self.span),
            pages: (self.page_rows(0), Some(RATIO)),
            chosen: (&self.chosen, Some(TOP)),
            sinks: &self.sinks,
        };
        let ends = (&self.query, &self.out);
        compressed_attention::launch_attend(gpu, ends, shape.heads, rows, seen, run)?;
        if run.tokens > 1 {
            let left = run.tokens.saturating_sub(shape.window);
            let (first, position) = (run.first + left, run.position + left);
            let last = Run { first, position, tokens: run.tokens - left };
            compressed_rows::launch_store(gpu, &self.key, ring, rows, last)?;
        }
        Ok(())
    }
}

/// The rows with the best scores among the first `visible`, ascending: the first of equal ones.
fn best(scores: &[f32]) -> Vec<u32> {
    let mut all: Vec<u32> = (0..scores.len() as u32).collect();
    all.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
    all.truncate(TOP);
    all.sort_unstable();
    all
}

/// How far stored rows and keys are from those that plain code makes, in parts of what is allowed: a rounded number may
/// be its neighbour where drivers compute its last bit otherwise.
fn pooled_apart(
    inputs: &Inputs,
    shape: Shape,
    most: usize,
    stored: &dyn Fn(usize, usize) -> Vec<f32>,
) -> f32 {
    let (dims, kinds) = ([shape.dim, shape.key_dim], [shape.rows, shape.keys]);
    let apart = |kind: usize| {
        let of = |number| {
            let row = encoded(kinds[kind], &inputs.pooled(kind, number, dims[kind]), shape.plain);
            decoded(kinds[kind], &row, dims[kind], shape.plain)
        };
        let found: Vec<f32> = (0..most).flat_map(|number| stored(kind, number)).collect();
        let expected: Vec<f32> = (0..most).flat_map(of).collect();
        let allowed = match kinds[kind] {
            Stored::F32 => 1e-5,
            Stored::F16 => 1e-3,
            Stored::Fp8 => 0.08,
            Stored::Fp4 => 0.4,
        };
        difference(&found, &expected) / allowed
    };
    apart(0).max(apart(1))
}

/// A run from its inputs to its attention: at once, cut, and token by token.
fn attends(gpu: &mut Gpu, shape: Shape, tokens: usize) -> Result<Finding, GpuError> {
    let inputs = Inputs::random(shape, tokens);
    let held = Held::new(gpu, shape, &inputs)?;
    let run = Run { first: 0, tokens, position: 0 };
    held.attend(gpu, shape, run)?;
    let found = gpu.read_floats(&held.out, 0, inputs.query.len())?;
    let page_words = PAGE_ROWS * (held.words[0] + held.words[1]);
    let count = held.most.div_ceil(PAGE_ROWS) * page_words;
    let pages = gpu.read_words(&held.pages, 0, count)?;
    let scores = gpu.read_floats(&held.scores, 0, tokens * held.most)?;
    let chosen = gpu.read_words(&held.chosen, 0, tokens * TOP)?;
    let bytes: Vec<u8> = pages.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (dims, kinds) = ([shape.dim, shape.key_dim], [shape.rows, shape.keys]);
    let stored = |kind: usize, number: usize| {
        let to = held.page_rows(kind);
        let at = number / to.rows * to.page + to.place + number % to.rows * held.words[kind];
        let row = &bytes[4 * at..][..4 * held.words[kind]];
        decoded(kinds[kind], row, dims[kind], shape.plain)
    };
    let bound = if shape.rows == Stored::F16 { 1e-3 } else { 1e-5 };
    let mut apart = pooled_apart(&inputs, shape, held.most, &stored) * bound;
    let mut alone_equal = true;
    let mut expected = Vec::with_capacity(found.len());
    for token in 0..tokens {
        let visible = (token + 1) / RATIO;
        let mut seen: Vec<Vec<f32>> = ((token + 1).saturating_sub(shape.window)..=token)
            .map(|at| {
                let key = &inputs.key[at * shape.dim..][..shape.dim];
                decoded(shape.rows, &encoded(shape.rows, key, shape.plain), shape.dim, shape.plain)
            })
            .collect();
        let mut numbers: Vec<u32> = (0..visible as u32).collect();
        if visible > TOP {
            let own = &scores[token * held.most..][..visible];
            let of = |number| score(&inputs, shape, token, &stored(1, number));
            let exact: Vec<f32> = (0..visible).map(of).collect();
            apart = apart.max(difference(own, &exact) * bound / 2e-5);
            numbers = best(own);
            alone_equal &= chosen[token * TOP..][..TOP] == numbers[..];
        }
        seen.extend(numbers.into_iter().map(|number| stored(0, number as usize)));
        for head in 0..shape.heads {
            let query = &inputs.query[(token * shape.heads + head) * shape.dim..][..shape.dim];
            expected.extend(attended(query, &seen, inputs.sinks[head]));
        }
    }
    apart = apart.max(difference(&found, &expected));
    for cuts in [vec![tokens / 2 + 3, tokens - tokens / 2 - 3], vec![1; tokens]] {
        let held = Held::new(gpu, shape, &inputs)?;
        let mut first = 0;
        for tokens in cuts {
            held.attend(gpu, shape, Run { first, tokens, position: first })?;
            first += tokens;
        }
        alone_equal &= gpu.read_floats(&held.out, 0, inputs.query.len())? == found;
        alone_equal &= gpu.read_words(&held.pages, 0, count)? == pages;
    }
    let name = format!("compressed attention, {:?}, rows of {}", shape.rows, shape.dim);
    Ok(Finding { name, difference: apart, bound, alone_equal })
}

/// The score of a key.
fn score(of: &Inputs, shape: Shape, token: usize, key: &[f32]) -> f32 {
    let head = |head: usize| {
        let query = &of.index_query[(token * INDEX_HEADS + head) * shape.key_dim..];
        let product: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        f64::from(of.factors[token * INDEX_HEADS + head]) * product.max(0.0)
    };
    (0..INDEX_HEADS).map(head).sum::<f64>() as f32
}

/// Attention in double precision.
fn attended(query: &[f32], seen: &[Vec<f32>], sink: f32) -> Vec<f32> {
    let scale = (query.len() as f64).powf(-0.5);
    let dot = |row: &Vec<f32>| -> f64 {
        query.iter().zip(row).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
    };
    let weights: Vec<f64> = seen.iter().map(|row| (dot(row) * scale).exp()).collect();
    let total: f64 = weights.iter().sum::<f64>() + f64::from(sink).exp();
    let value = |d: usize| {
        let terms = weights.iter().zip(seen).map(|(weight, row)| weight * f64::from(row[d]));
        (terms.sum::<f64>() / total) as f32
    };
    (0..query.len()).map(value).collect()
}
