//! Compressed attention against plain code on the host, whole and in pieces: a part of the example `check`.

use cuda::Span;
use cuda::launch::{
    self, Pool, Rotation, RowAttention, RowChoice, SequenceRows, StoredRows, TokenPlaces,
};
use kernels::{KvType, decode_fp4, encode_fp4, fp4_bytes, hadamard};

use self::streams::{normed, turn};
use super::Bench;

#[path = "streams.rs"]
mod streams;

const PAGE_TOKENS: usize = 256;
const SEQUENCES: usize = 2;
const PAGES: usize = 3;
/// The sequence that the tokens belong to.
const OWNER: usize = 1;
const EPSILON: f32 = 1e-6;
/// Bytes of a page before the layer's.
const PLACE: usize = 16;

/// A layer and what its tokens bring.
struct Case {
    kind: KvType,
    dim: usize,
    rotated: usize,
    heads: usize,
    window: usize,
    ratio: usize,
    overlap: bool,
    /// Heads, values and rows of the indexer.
    index: (usize, usize, usize),
    tokens: usize,
}

/// What the layer's matrices gave, and its vectors.
struct Inputs {
    query: Span<f32>,
    key: Span<f32>,
    values: [Span<f32>; 2],
    gates: [Span<f32>; 2],
    added: [Span<f32>; 2],
    norms: [Span<f32>; 2],
    index_query: Span<f32>,
    factors: Span<f32>,
    sinks: Span<f32>,
    rotation: Rotation,
}

/// What a run over all tokens leaves.
struct Outcome {
    out: Vec<f32>,
    pages: Vec<u8>,
    states: Vec<u8>,
    chosen: Vec<u32>,
}

impl Case {
    fn row(&self) -> usize {
        self.kind.bytes_of_head(self.dim)
    }

    /// Type of keys; `None` in 4 bits.
    fn key_kind(&self) -> Option<KvType> {
        match self.kind {
            KvType::F32 | KvType::Bf16 => Some(self.kind),
            KvType::F16 | KvType::Q8 => Some(KvType::F16),
            KvType::Fp8 { .. } => None,
        }
    }

    fn key(&self) -> usize {
        self.key_kind().map_or(fp4_bytes(self.index.1), |kind| kind.bytes_of_head(self.index.1))
    }

    fn rows_of_page(&self) -> usize {
        PAGE_TOKENS / self.ratio.max(1)
    }

    fn page(&self) -> usize {
        (PLACE + self.rows_of_page() * (self.row() + self.key())).next_multiple_of(4)
    }

    fn kept(&self) -> usize {
        if self.overlap { 2 * self.ratio } else { self.ratio }
    }

    fn width(&self, dim: usize) -> usize {
        if self.overlap { 2 * dim } else { dim }
    }

    fn ring(&self) -> usize {
        (self.window * self.row()).div_ceil(4)
    }

    /// Values of a state: the window, values and gates of rows, of keys.
    fn state(&self) -> usize {
        self.ring() + 2 * self.kept() * (self.width(self.dim) + self.width(self.index.1))
    }

    fn name(&self) -> String {
        let Self { kind, dim, heads, window, ratio, overlap, .. } = self;
        format!("{heads} heads of {dim}, {kind}, window {window}, ratio {ratio}, overlap {overlap}")
    }
}

impl Bench {
    /// All cases.
    pub(super) fn compressed(&self) {
        for (count, hidden, tokens) in [(4, 4096, 3), (4, 64, 5), (2, 200, 1), (8, 96, 2)] {
            self.streams(count, hidden, tokens);
        }
        self.turned();
        self.stored();
        let fp8 = KvType::Fp8 { rotated: 64 };
        let small = KvType::Fp8 { rotated: 16 };
        for (kind, dim, rotated, heads, window, ratio, overlap, index) in [
            (KvType::F32, 512, 64, 20, 128, 4, true, (8, 128, 24)),
            (fp8, 512, 64, 64, 128, 4, true, (64, 128, 24)),
            (fp8, 512, 64, 20, 128, 128, false, (1, 8, 1)),
            (fp8, 512, 64, 20, 128, 0, false, (1, 8, 1)),
            (small, 32, 16, 4, 16, 4, true, (16, 16, 8)),
            (small, 32, 16, 4, 16, 8, false, (1, 8, 1)),
            (KvType::F16, 128, 64, 16, 48, 4, true, (4, 64, 500)),
            (KvType::Bf16, 64, 32, 3, 20, 4, true, (4, 64, 9)),
            (KvType::Q8, 96, 32, 3, 20, 4, true, (4, 32, 9)),
        ] {
            let tokens = 600;
            let case = Case { kind, dim, rotated, heads, window, ratio, overlap, index, tokens };
            self.compressed_case(&case);
        }
    }

    fn inputs(&self, case: &Case) -> Inputs {
        let Case { dim, heads, tokens, .. } = *case;
        let (index_heads, index_dim, _) = case.index;
        let widths = [case.width(dim), case.width(index_dim)];
        let frequencies: Vec<f32> = (0..case.rotated / 2)
            .map(|j| 1e4f32.powf(-2.0 * j as f32 / case.rotated as f32))
            .collect();
        Inputs {
            query: self.random(tokens * heads * dim),
            key: self.random(tokens * dim),
            values: widths.map(|width| self.random(tokens * width)),
            gates: widths.map(|width| self.random(tokens * width)),
            added: widths.map(|width| self.random((case.ratio * width).max(1))),
            norms: [dim, index_dim].map(|dim| self.random(dim)),
            index_query: self.random(tokens * index_heads * index_dim),
            factors: self.random(tokens * index_heads),
            sinks: self.random(heads),
            rotation: Rotation { frequencies: self.floats(&frequencies), magnitude: 1.0 },
        }
    }

    /// All tokens in runs of the given lengths; steps behind `steps_from`.
    fn run_case(&self, case: &Case, inputs: &Inputs, runs: &[usize], steps_from: usize) -> Outcome {
        let Case { dim, heads, tokens, ratio, .. } = *case;
        let (index_heads, index_dim, top) = case.index;
        let page_bytes = case.page();
        let all_pages = SEQUENCES * PAGES * page_bytes;
        let pages = self.keep(&vec![0; all_pages]);
        let states = self.keep(&vec![0; SEQUENCES * case.state() * 4]);
        let window = self.keep(&vec![0xff; tokens * case.row()]);
        let held = |index: usize, bytes: usize| self.held.borrow()[index].span::<u8>(0, bytes);
        let state_values = self.held.borrow()[states].span::<f32>(0, SEQUENCES * case.state());
        let (page_span, span) = (held(pages, all_pages), held(window, tokens * case.row()));
        let most = PAGES * PAGE_TOKENS / ratio.max(1);
        let scratch = launch::row_attention_scratch(1, heads, dim, case.window + most);
        let (out, partial) = (self.poison(tokens * heads * dim), self.poison(scratch));
        let chosen = self.words(&vec![u32::MAX; tokens * top]);
        let scores = self.poison(tokens * most);
        let row = StoredRows { dim, kind: Some(case.kind), place: PLACE, bytes: case.row() };
        let key = StoredRows {
            dim: index_dim,
            kind: case.key_kind(),
            place: PLACE + case.rows_of_page() * case.row(),
            bytes: case.key(),
        };
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let all = self.places(&positions, &vec![OWNER as u32; tokens]);
        let mut first = 0;
        for &count in runs {
            let single = first >= steps_from;
            let part = |span: Span<f32>| {
                let width = span.len() / tokens;
                span.part(first * width, count * width)
            };
            let rows = SequenceRows {
                places: TokenPlaces {
                    positions: all.positions.part(first, count),
                    sequences: all.sequences.part(first, count),
                    single,
                    runs: None,
                    end: all.end,
                },
                states: state_values,
                state_stride: case.state(),
                pages: page_span,
                sequence_bytes: PAGES * page_bytes,
                page_bytes,
                page_tokens: PAGE_TOKENS,
                ratio,
                overlap: case.overlap,
                window: case.window,
            };
            let pool = |which: usize, stored: StoredRows, tail: usize| Pool {
                values: part(inputs.values[which]),
                gates: part(inputs.gates[which]),
                added: inputs.added[which],
                norm: inputs.norms[which],
                epsilon: EPSILON,
                rotation: inputs.rotation,
                tail,
                stored,
            };
            let tail = case.ring();
            if ratio > 0 {
                launch::pool_rows(&self.stream, &rows, &pool(0, row, tail)).unwrap();
            }
            let listed = (chosen.part(first * top, count * top), top);
            if case.overlap {
                let tail = tail + 2 * case.kept() * case.width(dim);
                launch::pool_rows(&self.stream, &rows, &pool(1, key, tail)).unwrap();
                let choice = RowChoice {
                    query: part(inputs.index_query),
                    factors: part(inputs.factors),
                    scores,
                    chosen: listed.0,
                    keys: key,
                    heads: index_heads,
                    top,
                    most,
                    split: false,
                };
                launch::choose_rows(&self.stream, &rows, &choice).unwrap();
            }
            let span = span.part(0, count * case.row());
            let new = part(inputs.key);
            launch::store_window_rows(&self.stream, &rows, &row, new, span).unwrap();
            let attention = RowAttention {
                query: part(inputs.query),
                out: part(out),
                partial,
                span,
                chosen: case.overlap.then_some(listed),
                sinks: inputs.sinks,
                heads,
                most: case.window + most,
                stored: row,
            };
            launch::attend_rows(&self.stream, &rows, &attention).unwrap();
            launch::keep_window_rows(&self.stream, &rows, &row, new, span).unwrap();
            first += count;
        }
        Outcome {
            out: self.read(out),
            pages: self.bytes_from(pages, all_pages),
            states: self.bytes_from(states, SEQUENCES * case.state() * 4),
            chosen: self.read_words(chosen),
        }
    }

    fn compressed_case(&self, case: &Case) {
        let name = case.name();
        let inputs = self.inputs(case);
        let tokens = case.tokens;
        let whole = self.run_case(case, &inputs, &[tokens], tokens);
        let pieces = self.run_case(case, &inputs, &[1, 6, 120, 200, 3, 270], tokens);
        self.same_bits(&format!("chunk in pieces, {name}"), &pieces.out, &whole.out);
        let same = pieces.pages == whole.pages && pieces.states == whole.states;
        self.verdict(&format!("  its pages and states equal: {same}"), same);
        self.verdict("  its choices", pieces.chosen == whole.chosen);
        let runs: Vec<usize> = std::iter::once(500).chain(std::iter::repeat_n(1, 100)).collect();
        let steps = self.run_case(case, &inputs, &runs, 500);
        let same = steps.pages == whole.pages && steps.states == whole.states;
        self.verdict(&format!("  steps leave the same pages and states: {same}"), same);
        let width = case.heads * case.dim;
        let behind = self.floats(&steps.out[500 * width..]);
        self.compare("  steps", behind, self.floats(&whole.out[500 * width..]));
        self.expected_rows(case, &inputs, &whole);
        self.expected_choice(case, &inputs, &whole);
        self.expected_context(case, &inputs, &whole);
    }

    /// A stored row of a kind, decoded.
    fn stored_row(case: &Case, pages: &[u8], row: usize, keys: bool) -> Vec<f32> {
        let per_page = case.rows_of_page();
        let page = (OWNER * PAGES + row / per_page) * case.page() + PLACE;
        let at = row % per_page;
        let (dim, bytes, start) = match keys {
            false => (case.dim, case.row(), page + at * case.row()),
            true => (case.index.1, case.key(), page + per_page * case.row() + at * case.key()),
        };
        let (mut values, stored) = (vec![0.0; dim], &pages[start..start + bytes]);
        match (keys, case.key_kind()) {
            (false, _) => case.kind.decode(stored, &mut values),
            (true, Some(kind)) => kind.decode(stored, &mut values),
            (true, None) => decode_fp4(stored, &mut values),
        }
        values
    }

    /// Compressed rows and keys, pooled on the host.
    fn expected_rows(&self, case: &Case, inputs: &Inputs, outcome: &Outcome) {
        let frequencies = self.read(inputs.rotation.frequencies);
        for which in 0..if case.overlap { 2 } else { usize::from(case.ratio > 0) } {
            let dim = [case.dim, case.index.1][which];
            let width = case.width(dim);
            let [values, gates, added] =
                [inputs.values[which], inputs.gates[which], inputs.added[which]]
                    .map(|span| self.read(span));
            let norm = self.read(inputs.norms[which]);
            let (mut other, mut all, mut error, mut square) = (0, 0, 0.0, 0.0);
            for row in 0..case.tokens / case.ratio {
                let first = row * case.ratio;
                let begin = if case.overlap { first.saturating_sub(case.ratio) } else { first };
                let mut pooled: Vec<f32> = (0..dim)
                    .map(|d| {
                        let place = |p: usize| d + if case.overlap && p >= first { dim } else { 0 };
                        let (mut sum, mut total) = (0.0, 0.0);
                        for p in begin..first + case.ratio {
                            let gate = gates[p * width + place(p)]
                                + added[p % case.ratio * width + place(p)];
                            let weight = f64::from(gate).exp();
                            total += weight;
                            sum += weight * f64::from(values[p * width + place(p)]);
                        }
                        (sum / total) as f32
                    })
                    .collect();
                normed(&mut pooled, Some(&norm));
                turn(&mut pooled, &frequencies, first, 1.0);
                let mut expected = vec![0.0; dim];
                let kind = if which == 0 { Some(case.kind) } else { case.key_kind() };
                match kind {
                    Some(kind) => {
                        let mut bytes = vec![0; kind.bytes_of_head(dim)];
                        kind.encode(&pooled, &mut bytes);
                        kind.decode(&bytes, &mut expected);
                    }
                    None => {
                        let mut bytes = vec![0; fp4_bytes(dim)];
                        hadamard(&mut pooled);
                        encode_fp4(&pooled, &mut bytes);
                        decode_fp4(&bytes, &mut expected);
                    }
                }
                let found = Self::stored_row(case, &outcome.pages, row, which == 1);
                for (a, b) in found.iter().zip(&expected) {
                    let (a, b) = (f64::from(*a), f64::from(*b));
                    (error, square) = (error + (a - b) * (a - b), square + b * b);
                    all += 1;
                    other += usize::from((a - b).abs() > 1e-4 * b.abs() + 1e-6);
                }
            }
            let relative = (error / square).sqrt();
            let what = ["compressed rows", "their keys"][which];
            let text = format!("  {what}: relative {relative:.1e}, {other} of {all} values differ");
            let bound = if case.kind == KvType::F32 { 2e-5 } else { 2e-3 };
            self.verdict(&text, relative <= bound || other * 2000 <= all);
        }
    }

    fn expected_choice(&self, case: &Case, inputs: &Inputs, outcome: &Outcome) {
        if !case.overlap {
            return;
        }
        let (heads, dim, top) = case.index;
        let (query, factors) = (self.read(inputs.index_query), self.read(inputs.factors));
        let (mut wrong, mut near) = (0, 0);
        let keys: Vec<Vec<f32>> = (0..case.tokens / case.ratio)
            .map(|row| Self::stored_row(case, &outcome.pages, row, true))
            .collect();
        for token in (0..case.tokens).step_by(37).chain([case.tokens - 1]) {
            let visible = (token + 1) / case.ratio;
            let chosen = &outcome.chosen[token * top..(token + 1) * top];
            if visible <= top {
                wrong += usize::from(chosen.iter().any(|&row| row != u32::MAX));
                continue;
            }
            let score = |key: &Vec<f32>| {
                let of_head = |head: usize| {
                    let start = (token * heads + head) * dim;
                    let query = &query[start..start + dim];
                    let dot: f64 =
                        query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                    f64::from(factors[token * heads + head]) * dot.max(0.0)
                };
                (0..heads).map(of_head).sum::<f64>()
            };
            let scores: Vec<f64> = keys[..visible].iter().map(score).collect();
            let mut order: Vec<usize> = (0..visible).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            let least = scores[order[top - 1]];
            let mut best = order[..top].to_vec();
            best.sort_unstable();
            let same = best.iter().zip(chosen).all(|(&a, &b)| a == b as usize);
            let ascending = chosen.is_sorted_by(|a, b| a < b);
            let tied = |&row: &u32| {
                let row = row as usize;
                row < visible && scores[row] > least - 1e-4 * least.abs().max(1.0)
            };
            near += usize::from(!same);
            wrong += usize::from(!ascending || !same && !chosen.iter().all(tied));
        }
        self.verdict(&format!("  choices: {wrong} wrong, {near} by near ties"), wrong == 0);
    }

    /// Attention in f64 over the rows as they are stored.
    fn expected_context(&self, case: &Case, inputs: &Inputs, outcome: &Outcome) {
        let Case { dim, heads, window, tokens, .. } = *case;
        let (query, keys) = (self.read(inputs.query), self.read(inputs.key));
        let sinks = self.read(inputs.sinks);
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        let window_row = |position: usize| {
            let mut bytes = vec![0; case.row()];
            let mut row = vec![0.0; dim];
            case.kind.encode(&keys[position * dim..(position + 1) * dim], &mut bytes);
            case.kind.decode(&bytes, &mut row);
            row
        };
        let places = [0, 3, window - 1, window, 255, 301, 512, tokens - 1];
        for token in places {
            let mut rows: Vec<Vec<f32>> =
                ((token + 1).saturating_sub(window)..=token).map(window_row).collect();
            let visible = (token + 1).checked_div(case.ratio).unwrap_or(0);
            let top = case.index.2;
            let listed = case.overlap && visible > top;
            let seen: Vec<usize> = match listed {
                true => outcome.chosen[token * top..][..top].iter().map(|&r| r as usize).collect(),
                false => (0..visible).collect(),
            };
            let stored = |row: &usize| Self::stored_row(case, &outcome.pages, *row, false);
            rows.extend(seen.iter().map(stored));
            for (head, sink) in sinks.iter().enumerate() {
                let start = (token * heads + head) * dim;
                let q = &query[start..start + dim];
                let score = |row: &Vec<f32>| {
                    let dot: f64 =
                        q.iter().zip(row).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                    (dot * (dim as f64).powf(-0.5)).exp()
                };
                let weights: Vec<f64> = rows.iter().map(score).collect();
                let total = weights.iter().sum::<f64>() + f64::from(*sink).exp();
                expected.extend((0..dim).map(|d| {
                    let pairs = weights.iter().zip(&rows);
                    (pairs.map(|(w, row)| w * f64::from(row[d])).sum::<f64>() / total) as f32
                }));
                found.extend_from_slice(&outcome.out[start..start + dim]);
            }
        }
        self.compare("  context", self.floats(&found), self.floats(&expected));
    }
}
