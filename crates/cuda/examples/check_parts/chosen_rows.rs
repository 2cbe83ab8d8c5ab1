//! Latent attention to chosen rows, and what rows are chosen by, against the same kernels over gathered rows and plain
//! code on the host; time at depth: a part of the example `check`.

use cuda::Span;
use cuda::launch::{
    self, ChosenRows, LatentAttention, LatentCache, LatentShape, Rotation, RowChoice, RowIndex,
    SequenceRows, StoredRows, TokenPlaces,
};
use kernels::KvType;

use super::Bench;

const SEQUENCES: usize = 2;
const CONTEXT: usize = 1024;
const PAGE_TOKENS: usize = 256;
/// Bytes of a page before the layer's.
const PLACE: usize = 32;
const EPSILON: f32 = 1e-6;

/// Shapes as in DeepSeek-V3.2 and GLM-5, and small ones that fill no vector.
const SHAPES: [LatentShape; 4] = [
    LatentShape { heads: 128, rank: 512, rotated: 64, plain: 128, values: 128, neighbours: true },
    LatentShape { heads: 64, rank: 512, rotated: 64, plain: 192, values: 256, neighbours: true },
    LatentShape { heads: 3, rank: 24, rotated: 8, plain: 20, values: 12, neighbours: false },
    LatentShape { heads: 17, rank: 90, rotated: 6, plain: 32, values: 64, neighbours: true },
];

/// An indexer: heads, values of a head, rotated values.
type Heads = (usize, usize, usize);

/// Index keys of two sequences in pages.
struct Keys {
    pages: usize,
    kind: KvType,
    dim: usize,
}

impl Keys {
    fn stored(&self) -> StoredRows {
        let bytes = self.kind.bytes_of_head(self.dim);
        StoredRows { dim: self.dim, kind: Some(self.kind), place: PLACE, bytes }
    }

    fn page(&self) -> usize {
        PLACE + PAGE_TOKENS * self.kind.bytes_of_head(self.dim)
    }

    fn all(&self) -> usize {
        SEQUENCES * self.pages * self.page()
    }

    fn rows(&self, places: TokenPlaces, pages: Span<u8>, states: Span<f32>) -> SequenceRows {
        SequenceRows {
            places,
            states,
            state_stride: 0,
            pages,
            sequence_bytes: self.pages * self.page(),
            page_bytes: self.page(),
            page_tokens: PAGE_TOKENS,
            ratio: 1,
            overlap: false,
            window: 0,
        }
    }
}

impl Bench {
    pub(super) fn chosen_rows(&self) {
        for shape in &SHAPES {
            for kv_type in KvType::ALL {
                if launch::serves_latent(shape.rank, shape.rotated, kv_type) {
                    self.chosen_case(shape, kv_type, 100);
                }
            }
        }
        self.chosen_case(&SHAPES[1], KvType::F16, 512);
        self.choices_of_scores();
        for (heads, neighbours, kind) in [
            ((64, 128, 64), false, KvType::F16),
            ((32, 128, 64), true, KvType::Bf16),
            ((16, 128, 64), true, KvType::F32),
            ((3, 40, 12), true, KvType::F32),
            ((1, 24, 24), false, KvType::F16),
        ] {
            self.row_index_case(heads, neighbours, kind);
        }
    }

    /// Choices among scores of every kind: many that are equal, ranges of all sizes, what is no number.
    fn choices_of_scores(&self) {
        let (count, top) = (40_000usize, 512usize);
        let keys = Keys { pages: 1, kind: KvType::F32, dim: 4 };
        let number = |index: usize, kind: usize| -> f32 {
            let x = self.unit();
            match kind {
                0 => x,
                1 if index % 97 != 5 => 0.0,
                2 => (index % 7) as f32,
                3 => f32::from_bits(x.to_bits() ^ (index as u32 * 40_503) & 0x7f7f_ffff),
                4 => 1.0 + x * 1e-6,
                5 if index == 333 => f32::NAN,
                6 => -5.0,
                _ => x.abs() * 1e-30 * 10f32.powi((index % 60) as i32),
            }
        };
        for kind in 0..8 {
            let scores: Vec<f32> = (0..count).map(|index| number(index, kind)).collect();
            let order = |v: f32| {
                let bits = v.to_bits();
                if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
            };
            let room = self.poison(10 * count);
            self.stream.copy(self.floats(&scores), room.part(0, count)).unwrap();
            // A last part with fewer rows than are chosen, one part, fewer rows than a part has.
            for visible in [count, 2 * 16_384 + 100, 16_384, 600] {
                let mut expected: Vec<u32> = (0..visible as u32).collect();
                expected.sort_by_key(|&it| (std::cmp::Reverse(order(scores[it as usize])), it));
                expected.truncate(top);
                expected.sort_unstable();
                let places = self.places(&[visible as u32 - 1], &[0]);
                let rows = keys.rows(places, self.bytes(&[0; 16]), self.poison(1));
                // Alone there is no room for parts.
                for (what, scores) in [("at once", room.part(0, count)), ("in parts", room)] {
                    let chosen = self.words(&vec![u32::MAX; top]);
                    let scores = (scores, count);
                    launch::choose_scored(&self.stream, &rows, scores, chosen, top).unwrap();
                    let same = self.read_words(chosen) == expected;
                    let name = format!("choice {what} among {visible} scores of kind {kind}");
                    self.verdict(&name, same);
                }
            }
        }
    }

    /// `top` of the rows up to `position`, ascending.
    fn some_rows(&self, position: usize, top: usize) -> Vec<u32> {
        let mut rows: Vec<u32> = (0..=position as u32).collect();
        for index in 0..top {
            let other = index + (self.next() % (rows.len() - index) as u64) as usize;
            rows.swap(index, other);
        }
        rows.truncate(top);
        rows.sort_unstable();
        rows
    }

    /// The same kernels over a cache of the chosen rows alone have the same bits.
    fn chosen_case(&self, shape: &LatentShape, kv_type: KvType, top: usize) {
        let (row, bytes) = (shape.row(), kv_type.bytes_of_head(shape.row()));
        let name = format!(
            "{} heads over {} + {}, {kv_type}, {top} rows",
            shape.heads, shape.rank, shape.rotated
        );
        let mut held = vec![0; SEQUENCES * CONTEXT * bytes];
        for to in held.chunks_mut(bytes) {
            let values: Vec<f32> = (0..row).map(|_| 2.0 * self.unit()).collect();
            kv_type.encode(&values, to);
        }
        let cache = LatentCache { rows: self.bytes(&held), context: CONTEXT, kv_type };
        // Some see all rows, one the last of those that see all, one a row more.
        let positions: Vec<u32> =
            [5, top - 1, top, top + 1, 700, 900, 1023].map(|it| it as u32).to_vec();
        let owners = [0u32, 1, 0, 1, 1, 0, 1];
        let tokens = positions.len();
        let chosen: Vec<Vec<u32>> = (positions.iter())
            .map(|&position| match position as usize >= top {
                true => self.some_rows(position as usize, top),
                false => vec![u32::MAX; top],
            })
            .collect();
        let listed = ChosenRows { rows: self.words(&chosen.concat()), top };
        let (width, wide) = (shape.heads * row, shape.heads * shape.rank);
        let query = self.random(tokens * width);
        for single in [true, false] {
            let mut expected = Vec::new();
            for (index, rows) in chosen.iter().enumerate() {
                let (owner, position) = (owners[index] as usize, positions[index] as usize);
                let first = owner * CONTEXT * bytes;
                let own = &held[first..first + CONTEXT * bytes];
                let seen = if position >= top { top } else { position + 1 };
                let gathered: Vec<u8> = match position >= top {
                    false => own[..seen * bytes].to_vec(),
                    true => rows
                        .iter()
                        .flat_map(|&it| own[it as usize * bytes..][..bytes].to_vec())
                        .collect(),
                };
                let cache = LatentCache { rows: self.bytes(&gathered), context: seen, kv_type };
                let places = self.places(&[seen as u32 - 1], &[0]);
                let places = TokenPlaces { single, ..places };
                let query = query.part(index * width, width);
                expected.extend(self.attend_rows(shape, &cache, &places, query, None));
            }
            let places = TokenPlaces { single, ..self.places(&positions, &owners) };
            let found = match single {
                true => self.attend_rows(shape, &cache, &places, query, Some(listed)),
                // A prompt's run is of one sequence; of those that see all rows nothing is chosen.
                false => (0..tokens)
                    .flat_map(|index| {
                        let places = places.part(index, 1);
                        let query = query.part(index * width, width);
                        let rows = listed.rows.part(index * top, top);
                        let chosen = ChosenRows { rows, top };
                        self.attend_rows(shape, &cache, &places, query, Some(chosen))
                    })
                    .collect(),
            };
            assert_eq!(found.len(), tokens * wide);
            let kind = if single { "steps" } else { "chunks" };
            self.same_bits(&format!("chosen rows in {kind}, {name}"), &found, &expected);
        }
    }

    fn attend_rows(
        &self,
        shape: &LatentShape,
        cache: &LatentCache,
        places: &TokenPlaces,
        query: Span<f32>,
        chosen: Option<ChosenRows>,
    ) -> Vec<f32> {
        let tokens = places.positions.len();
        let out = self.poison(tokens * shape.heads * shape.rank);
        let scratch =
            self.poison(launch::latent_scratch(shape, if places.single { tokens } else { 0 }));
        let scale = 4.0 / shape.row() as f32;
        let attention = LatentAttention { query, out, scratch, scale, chosen };
        launch::attend_latent(&self.stream, shape, places, cache, &attention).unwrap();
        self.read(out)
    }

    /// Queries, index keys and choices against the host.
    fn row_index_case(&self, (heads, dim, rotated): Heads, neighbours: bool, kind: KvType) {
        let (tokens, top, owner) = (600, 64, 1u32);
        let keys = Keys { pages: 3, kind, dim };
        let frequencies: Vec<f32> =
            (0..rotated / 2).map(|j| 1e4f32.powf(-2.0 * j as f32 / rotated as f32)).collect();
        let rotation = Rotation { frequencies: self.floats(&frequencies), magnitude: 1.25 };
        let norm = [self.random(dim), self.random(dim)];
        let (given, values) = (self.random(tokens * heads * dim), self.random(tokens * dim));
        let factors = self.random(tokens * heads);
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let places = self.places(&positions, &vec![owner; tokens]);
        let places = TokenPlaces { single: false, ..places };
        let run = |cuts: &[usize], split: bool| {
            let (queries, factors) = (self.twin(given), self.twin(factors));
            let pages = self.keep(&vec![0; keys.all()]);
            let span = self.held.borrow()[pages].span::<u8>(0, keys.all());
            let chosen = self.words(&vec![u32::MAX; tokens * top]);
            let (scores, states) = (self.poison(tokens * PAGE_TOKENS * 3), self.poison(1));
            let mut first = 0;
            for &count in cuts {
                let rows = keys.rows(places.part(first, count), span, states);
                let part = |all: Span<f32>| {
                    let width = all.len() / tokens;
                    all.part(first * width, count * width)
                };
                let index = RowIndex {
                    queries: part(queries),
                    values: part(values),
                    factors: part(factors),
                    split,
                    norm,
                    epsilon: EPSILON,
                    rotation,
                    neighbours,
                    heads,
                    keys: keys.stored(),
                };
                launch::make_row_index(&self.stream, &rows, &index).unwrap();
                let choice = RowChoice {
                    query: part(queries),
                    factors: part(factors),
                    scores,
                    chosen: chosen.part(first * top, count * top),
                    keys: keys.stored(),
                    heads,
                    top,
                    most: 3 * PAGE_TOKENS,
                    split,
                };
                launch::choose_rows(&self.stream, &rows, &choice).unwrap();
                first += count;
            }
            let pages = self.bytes_from(pages, keys.all());
            (self.read(queries), pages, self.read_words(chosen))
        };
        let (queries, pages, chosen) = run(&[tokens], false);
        let pieces = run(&[1, 70, 200, 329], false);
        let name = format!("{heads} heads of {dim}, {rotated} rotated, {kind}");
        let same = pieces.0 == queries && pieces.1 == pages && pieces.2 == chosen;
        self.verdict(&format!("row index in pieces, {name}"), same);
        let turn = |row: &[f64], position: usize| -> Vec<f32> {
            let mut out: Vec<f32> = row.iter().map(|&v| v as f32).collect();
            let half = rotated / 2;
            for j in 0..half {
                let angle = f64::from(position as f32 * frequencies[j]);
                let (sine, cosine) = angle.sin_cos();
                let [x, y] = match neighbours {
                    true => [row[2 * j], row[2 * j + 1]],
                    false => [row[j], row[j + half]],
                };
                out[j] = (1.25 * (x * cosine - y * sine)) as f32;
                out[j + half] = (1.25 * (y * cosine + x * sine)) as f32;
            }
            out
        };
        let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let host = self.read(given);
        let expected = host.chunks_exact(dim).enumerate();
        let expected: Vec<f32> =
            expected.flat_map(|(row, values)| turn(&wide(values), row / heads)).collect();
        self.compare("  its queries", self.floats(&queries), self.floats(&expected));
        let key = |position: usize| {
            let page = (owner as usize * keys.pages + position / PAGE_TOKENS) * keys.page() + PLACE;
            let bytes = kind.bytes_of_head(dim);
            let mut values = vec![0.0; dim];
            kind.decode(&pages[page + position % PAGE_TOKENS * bytes..][..bytes], &mut values);
            values
        };
        let rows = keys.rows(places, self.bytes(&[0; 16]), self.poison(1));
        let split = launch::splits_queries(&self.stream, &rows, &keys.stored(), heads);
        let split = split.then(|| {
            let (whole, pieces) = (run(&[tokens], true), run(&[1, 70, 200, 329], true));
            let same = whole.1 == pieces.1 && whole.2 == pieces.2 && whole.1 == pages;
            self.verdict("  on tensor cores in pieces", same);
            whole.2
        });
        let [weight, bias] = norm.map(|part| self.read(part));
        let host = self.read(values);
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        for (position, row) in host.chunks_exact(dim).enumerate() {
            let row = wide(row);
            let mean = row.iter().sum::<f64>() / dim as f64;
            let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / dim as f64;
            let factor = 1.0 / (variance + f64::from(EPSILON)).sqrt();
            let normed: Vec<f64> = row
                .iter()
                .zip(weight.iter().zip(&bias))
                .map(|(v, (w, b))| (v - mean) * factor * f64::from(*w) + f64::from(*b))
                .collect();
            expected.extend(turn(&normed, position));
            found.extend(key(position));
        }
        self.compare_keys(kind, &found, &expected);
        let factors = self.read(factors);
        let cores = split.iter().map(|chosen| ("  its choices on tensor cores", chosen));
        for (what, chosen) in std::iter::once(("  its choices", &chosen)).chain(cores) {
            let (mut wrong, mut near) = (0, 0);
            for token in (0..tokens).step_by(29).chain([tokens - 1]) {
                let chosen = &chosen[token * top..(token + 1) * top];
                if token < top {
                    wrong += usize::from(chosen.iter().any(|&it| it != u32::MAX));
                    continue;
                }
                let score = |position: usize| -> f64 {
                    let key = key(position);
                    let of_head = |head: usize| {
                        let query = &queries[(token * heads + head) * dim..][..dim];
                        let pairs = query.iter().zip(&key);
                        let dot: f64 = pairs.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                        f64::from(factors[token * heads + head]) * dot.max(0.0)
                    };
                    (0..heads).map(of_head).sum()
                };
                let scores: Vec<f64> = (0..=token).map(score).collect();
                let mut order: Vec<usize> = (0..=token).collect();
                order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
                let least = scores[order[top - 1]];
                let best = &order[..top];
                let ascends = chosen.windows(2).all(|two| two[0] < two[1]);
                wrong += usize::from(!ascends || chosen.iter().any(|&it| it as usize > token));
                for &it in chosen.iter().filter(|&&it| !best.contains(&(it as usize))) {
                    let gap = (least - scores[it as usize]).abs() / least.abs().max(1e-3);
                    if gap < 1e-5 { near += 1 } else { wrong += 1 }
                }
            }
            let text = format!("{what} on the host: {wrong} wrong, {near} as good as equal");
            self.verdict(&text, wrong == 0 && near <= 2);
        }
    }

    /// Time of a layer of the DeepSeek-V3.2 and GLM-5 shapes at depth: scores, choice, and attention to 2,048 rows
    /// next to attention to all.
    pub(super) fn chosen_table(&self) {
        let (context, top, dim) = (131_072, 2048, 128);
        for (shape, heads) in [(SHAPES[0], 64), (SHAPES[1], 32)] {
            let held = self.held.borrow().len();
            let keys = Keys { pages: context / PAGE_TOKENS, kind: KvType::F16, dim };
            let row_bytes = KvType::F16.bytes_of_head(shape.row());
            let rows = self.bytes(&vec![0; context * row_bytes]);
            let cache = LatentCache { rows, context, kv_type: KvType::F16 };
            let pages = self.bytes(&vec![0; keys.all()]);
            let (scores, states) = (self.random(128 * context), self.poison(1));
            for (depth, tokens) in
                [(2048, 1), (32_768, 1), (131_071, 1), (4096, 128), (32_768, 128)]
            {
                let single = tokens == 1;
                let positions: Vec<u32> = (depth as u32..(depth + tokens) as u32).collect();
                let places = TokenPlaces { single, ..self.places(&positions, &vec![0; tokens]) };
                let list: Vec<u32> = (0..tokens).flat_map(|_| self.some_rows(depth, top)).collect();
                let chosen = self.words(&list);
                let seq = keys.rows(places, pages, states);
                let choice = RowChoice {
                    query: self.random(tokens * heads * dim),
                    factors: self.random(tokens * heads),
                    scores,
                    chosen: self.words(&vec![0; tokens * top]),
                    keys: keys.stored(),
                    heads,
                    top,
                    most: context,
                    split: false,
                };
                let [plain, choosing] = [false, true].map(|split| {
                    let choice = RowChoice { split, ..choice };
                    self.time(4, &|_| launch::choose_rows(&self.stream, &seq, &choice))
                });
                let query = self.random(tokens * shape.heads * shape.row());
                let out = self.poison(tokens * shape.heads * shape.rank);
                let scratch = self.poison(launch::latent_scratch(&shape, tokens));
                let [some, all] = [Some(ChosenRows { rows: chosen, top }), None].map(|chosen| {
                    let attention = LatentAttention { query, out, scratch, scale: 0.1, chosen };
                    self.time(4, &|_| {
                        launch::attend_latent(&self.stream, &shape, &places, &cache, &attention)
                    })
                });
                println!(
                    "{tokens:>3} tokens after {depth:>6}, {} heads: scores of {heads} heads and choice \
                     {choosing:8.1} us ({plain:.1} in f32), attention to {top} rows {some:8.1} us, to all {all:8.1} us",
                    shape.heads
                );
            }
            self.stream.wait().unwrap();
            self.held.borrow_mut().truncate(held);
        }
    }
}
