//! Attention to the keys that an indexer chooses against plain code on the host, whole and in pieces: a part of the
//! example `check`.

use cuda::Span;
use cuda::launch::{
    self, AttentionShape, IndexRows, KeyValueCache, Rotation, SequenceRows, StepRuns, StoredRows,
    TokenPlaces, UnitAttention, UnitChoice,
};
use kernels::KvType;

use super::Bench;
use super::gated::normed;

const PAGE_TOKENS: usize = 256;
const SEQUENCES: usize = 2;
const PAGES: usize = 3;
/// The sequence that the tokens belong to.
const OWNER: usize = 1;
const TOKENS: usize = 600;
const EPSILON: f32 = 1e-6;
/// Bytes of a page before the layer's.
const PLACE: usize = 32;

/// A layer.
struct Case {
    shape: AttentionShape,
    kind: KvType,
    /// Heads and values of the indexer, and how many are rotated.
    index: (usize, usize, usize),
    /// Tokens of a unit, and units that a token sees at most.
    unit: (usize, usize),
    /// Tokens whose keys are kept.
    kept: usize,
}

/// What the layer's matrices gave, and its vectors.
struct Inputs {
    query: Span<f32>,
    key: Span<f32>,
    value: Span<f32>,
    both: Span<f32>,
    norms: [Span<f32>; 2],
    rotation: Rotation,
}

/// What all tokens leave.
struct Outcome {
    out: Vec<f32>,
    /// Queries of the indexer as they were used.
    both: Vec<f32>,
    pages: Vec<u8>,
    states: Vec<f32>,
    chosen: Vec<u32>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Case {
    fn key_kind(&self) -> KvType {
        if self.kind == KvType::Q8 { KvType::F16 } else { self.kind }
    }

    fn key_bytes(&self) -> usize {
        self.key_kind().bytes_of_head(self.index.1)
    }

    fn page(&self) -> usize {
        PLACE + PAGE_TOKENS / self.unit.0 * self.key_bytes()
    }

    fn row(&self) -> usize {
        self.shape.key_value_heads * self.kind.bytes_of_head(self.shape.dim)
    }

    fn both(&self) -> usize {
        (self.index.0 + 1) * self.index.1
    }

    fn name(&self) -> String {
        let (AttentionShape { query_heads, key_value_heads, dim, .. }, (unit, top)) =
            (self.shape, self.unit);
        format!(
            "{query_heads} / {key_value_heads} heads of {dim}, {}, {top} units of {unit}",
            self.kind
        )
    }
}

/// Norms a row and turns its first values, in halves.
fn norm_and_turn(row: &[f32], weight: &[f32], frequencies: &[f32], position: usize) -> Vec<f32> {
    let (mut row, half) = (normed(row, weight), frequencies.len());
    for (j, frequency) in frequencies.iter().enumerate() {
        let angle = f64::from(position as f32 * frequency);
        let (x, y) = (f64::from(row[j]), f64::from(row[j + half]));
        row[j] = (x * angle.cos() - y * angle.sin()) as f32;
        row[j + half] = (y * angle.cos() + x * angle.sin()) as f32;
    }
    row
}

impl Bench {
    /// All cases.
    pub(super) fn indexed(&self) {
        for (heads, kind, index, unit, kept) in [
            ((24, 2, 256), KvType::F16, (4, 128, 64), (4, 64), 12),
            ((24, 2, 256), KvType::F32, (4, 128, 64), (4, 512), 12),
            ((40, 2, 128), KvType::Bf16, (4, 64, 64), (4, 17), 12),
            ((2, 1, 32), KvType::F32, (4, 16, 8), (4, 4), 12),
            ((4, 2, 64), KvType::Q8, (4, 32, 16), (4, 8), 12),
            ((6, 3, 48), KvType::F16, (3, 40, 12), (1, 30), 9),
            ((3, 1, 80), KvType::F32, (1, 24, 24), (16, 2), 24),
        ] {
            let (query_heads, key_value_heads, dim) = heads;
            let shape = AttentionShape { query_heads, key_value_heads, dim, scale: None };
            self.indexed_case(&Case { shape, kind, index, unit, kept });
        }
    }

    /// All tokens in runs of the given lengths; behind `steps_from` each run is one of a step.
    fn run_indexed(
        &self,
        case: &Case,
        inputs: &Inputs,
        runs: &[usize],
        steps_from: usize,
    ) -> Outcome {
        let (shape, (unit, top), (heads, dim, _)) = (&case.shape, case.unit, case.index);
        let (width, of_keys) = (shape.query_heads * shape.dim, shape.key_value_heads * shape.dim);
        let (page_bytes, stride) = (case.page(), case.kept * dim);
        let all_pages = SEQUENCES * PAGES * page_bytes;
        let pages = self.keep(&vec![0; all_pages]);
        let page_span = self.held.borrow()[pages].span::<u8>(0, all_pages);
        let context = PAGES * PAGE_TOKENS;
        let side = SEQUENCES * context * case.row();
        let [keys, values] = [(); 2].map(|()| self.keep(&vec![0; side]));
        let held = |index: usize| self.held.borrow()[index].span::<u8>(0, side);
        let cache =
            KeyValueCache { keys: held(keys), values: held(values), context, kv_type: case.kind };
        let states = self.floats(&vec![0.0; SEQUENCES * stride]);
        let (both, out) = (self.twin(inputs.both), self.poison(TOKENS * width));
        let partial = self.poison(launch::unit_attention_scratch(shape, 4, (unit, top)));
        let most = context / unit;
        let (chosen, scores) =
            (self.words(&vec![u32::MAX; TOKENS * top]), self.poison(TOKENS * most));
        let stored =
            StoredRows { dim, kind: Some(case.key_kind()), place: PLACE, bytes: case.key_bytes() };
        let positions: Vec<u32> = (0..TOKENS as u32).collect();
        let all = self.places(&positions, &[OWNER as u32; TOKENS]);
        let mut first = 0;
        for &count in runs {
            let part = |span: Span<f32>| {
                let width = span.len() / TOKENS;
                span.part(first * width, count * width)
            };
            let single = first >= steps_from;
            let starts = self.words(&vec![0; count]);
            let places = TokenPlaces {
                positions: all.positions.part(first, count),
                sequences: all.sequences.part(first, count),
                single,
                runs: single.then_some(StepRuns { starts, lags: starts }),
                end: first + count,
            };
            let rows = SequenceRows {
                places,
                states,
                state_stride: stride,
                pages: page_span,
                sequence_bytes: PAGES * page_bytes,
                page_bytes,
                page_tokens: PAGE_TOKENS,
                ratio: unit,
                overlap: false,
                window: case.kept,
            };
            let index = IndexRows {
                both: part(both),
                norms: inputs.norms,
                rotation: inputs.rotation,
                heads,
                epsilon: EPSILON,
                keys: stored,
            };
            launch::index_rows(&self.stream, &rows, &index).unwrap();
            let (key, value) = (part(inputs.key), part(inputs.value));
            assert_eq!(key.len(), count * of_keys);
            launch::append(&self.stream, shape, &places, &cache, key, value).unwrap();
            let listed = chosen.part(first * top, count * top);
            let choice = UnitChoice {
                both: part(both),
                scores,
                chosen: listed,
                keys: stored,
                heads,
                top,
                most,
            };
            launch::choose_units(&self.stream, &rows, &choice).unwrap();
            let attention = UnitAttention {
                query: part(inputs.query),
                out: part(out),
                partial,
                chosen: listed,
                unit,
                top,
            };
            launch::attend_units(&self.stream, shape, &places, &cache, &attention).unwrap();
            first += count;
        }
        assert_eq!(first, TOKENS, "runs of all tokens");
        Outcome {
            out: self.read(out),
            both: self.read(both),
            pages: self.bytes_from(pages, all_pages),
            states: self.read(states),
            chosen: self.read_words(chosen),
            keys: self.bytes_from(keys, side),
            values: self.bytes_from(values, side),
        }
    }

    fn indexed_case(&self, case: &Case) {
        let (name, shape) = (case.name(), &case.shape);
        let (_, dim, rotated) = case.index;
        let (width, of_keys) = (shape.query_heads * shape.dim, shape.key_value_heads * shape.dim);
        let frequency = |j: usize| 1e4f32.powf(-2.0 * j as f32 / rotated as f32);
        let frequencies: Vec<f32> = (0..rotated / 2).map(frequency).collect();
        let inputs = Inputs {
            query: self.random(TOKENS * width),
            key: self.random(TOKENS * of_keys),
            value: self.random(TOKENS * of_keys),
            both: self.random(TOKENS * case.both()),
            norms: [dim, dim].map(|dim| self.random(dim)),
            rotation: Rotation { frequencies: self.floats(&frequencies), magnitude: 1.0 },
        };
        let whole = self.run_indexed(case, &inputs, &[TOKENS], TOKENS);
        let pieces = self.run_indexed(case, &inputs, &[1, 6, 120, 200, 3, 270], TOKENS);
        self.same_bits(&format!("chunk in pieces, {name}"), &pieces.out, &whole.out);
        let kept = |it: &Outcome| it.pages == whole.pages && it.states == whole.states;
        self.verdict("  its index keys and states", kept(&pieces));
        self.verdict("  its choices", pieces.chosen == whole.chosen);
        let singles: Vec<usize> = std::iter::once(500).chain([1; 100]).collect();
        let steps = self.run_indexed(case, &inputs, &singles, 500);
        self.verdict("  steps leave the same index keys and states", kept(&steps));
        self.verdict("  their choices", steps.chosen == whole.chosen);
        let behind = |it: &Outcome| self.floats(&it.out[500 * width..]);
        self.compare("  steps", behind(&steps), behind(&whole));
        let rounds: Vec<usize> = std::iter::once(500).chain([1, 4, 3, 2].repeat(10)).collect();
        let rounds = self.run_indexed(case, &inputs, &rounds, 500);
        self.same_bits("  rounds", &rounds.out, &steps.out);
        self.verdict("  their index keys and states", kept(&rounds));
        self.expected_keys(case, &inputs, (&frequencies, &whole));
        self.expected_units(case, &whole);
        self.expected_attention(case, &inputs, &whole);
    }

    /// An index key, decoded.
    fn index_key(case: &Case, pages: &[u8], unit: usize) -> Vec<f32> {
        let (per_page, bytes) = (PAGE_TOKENS / case.unit.0, case.key_bytes());
        let page = (OWNER * PAGES + unit / per_page) * case.page() + PLACE;
        let mut values = vec![0.0; case.index.1];
        case.key_kind().decode(&pages[page + unit % per_page * bytes..][..bytes], &mut values);
        values
    }

    /// Queries and index keys, made on the host.
    fn expected_keys(
        &self,
        case: &Case,
        inputs: &Inputs,
        (frequencies, whole): (&[f32], &Outcome),
    ) {
        let ((heads, dim, _), (unit, _), both) = (case.index, case.unit, self.read(inputs.both));
        let [query_norm, key_norm] = inputs.norms.map(|norm| self.read(norm));
        let row = |token: usize, head: usize| &both[(token * (heads + 1) + head) * dim..][..dim];
        let mut expected = both.clone();
        for (index, out) in expected.chunks_exact_mut(dim).enumerate() {
            let (token, head) = (index / (heads + 1), index % (heads + 1));
            if head < heads {
                let turned = norm_and_turn(row(token, head), &query_norm, frequencies, token);
                out.copy_from_slice(&turned);
            }
        }
        self.compare("  its queries", self.floats(&whole.both), self.floats(&expected));
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        for number in 0..TOKENS / unit {
            let first = number * unit;
            let mean = (0..dim).map(|d| {
                let sum: f64 = (first..first + unit).map(|it| f64::from(row(it, heads)[d])).sum();
                (sum / unit as f64) as f32
            });
            let mean: Vec<f32> = mean.collect();
            expected.extend(norm_and_turn(&mean, &key_norm, frequencies, first));
            found.extend(Self::index_key(case, &whole.pages, number));
        }
        self.compare_keys(case.key_kind(), &found, &expected);
    }

    /// Index keys as they were stored: in 16 bits they are as near as that type is fine.
    pub(super) fn compare_keys(&self, kind: KvType, found: &[f32], expected: &[f32]) {
        let square = |v: f64| v * v;
        let pairs = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        let (error, norm) = pairs
            .fold((0.0, 0.0), |(error, norm), (a, b)| (error + square(a - b), norm + square(b)));
        let relative = f64::sqrt(error / norm);
        let bound = match kind {
            KvType::F32 => 1e-5,
            KvType::Bf16 => 4e-3,
            _ => 5e-4,
        };
        self.verdict(&format!("  its index keys: relative {relative:.1e}"), relative <= bound);
    }

    /// Choices by scores on the host: where they differ, the scores are as good as equal.
    fn expected_units(&self, case: &Case, whole: &Outcome) {
        let ((heads, dim, _), (unit, top)) = (case.index, case.unit);
        let keys: Vec<Vec<f32>> =
            (0..TOKENS / unit).map(|it| Self::index_key(case, &whole.pages, it)).collect();
        let (mut wrong, mut near) = (0, 0);
        for token in (0..TOKENS).step_by(23).chain([TOKENS - 1]) {
            let visible = (token + 1) / unit;
            let chosen = &whole.chosen[token * top..(token + 1) * top];
            if visible <= top {
                wrong += usize::from(chosen.iter().any(|&it| it != u32::MAX));
                continue;
            }
            let of_head = |head: usize, key: &[f32]| {
                let query = &whole.both[(token * (heads + 1) + head) * dim..][..dim];
                let pairs = query.iter().zip(key);
                pairs.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>().max(0.0)
            };
            let score = |key: &Vec<f32>| (0..heads).map(|head| of_head(head, key)).sum::<f64>();
            let scores: Vec<f64> = keys[..visible].iter().map(score).collect();
            let mut order: Vec<usize> = (0..visible).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            let least = scores[order[top - 1]];
            let mut best = order[..top].to_vec();
            best.sort_unstable();
            let ascends = chosen.windows(2).all(|two| two[0] < two[1]);
            wrong += usize::from(!ascends || chosen.iter().any(|&it| it as usize >= visible));
            for &it in chosen.iter().filter(|&&it| best.binary_search(&(it as usize)).is_err()) {
                let gap = (least - scores[it as usize]) / least.max(1e-9);
                match gap < 1e-5 && scores[it as usize] > 0.0 {
                    true => near += 1,
                    false => wrong += 1,
                }
            }
        }
        let text = format!("  its choices on the host: {wrong} wrong, {near} as good as equal");
        self.verdict(&text, wrong == 0 && near <= 2);
    }

    /// Attention of some tokens, on the host, to the units that the device chose.
    fn expected_attention(&self, case: &Case, inputs: &Inputs, whole: &Outcome) {
        let (shape, (unit, top)) = (&case.shape, case.unit);
        let (dim, heads) = (shape.dim, shape.key_value_heads);
        let (query, width) = (self.read(inputs.query), shape.query_heads * dim);
        let bytes = case.kind.bytes_of_head(dim);
        let row = |side: &[u8], position: usize, head: usize| {
            let at = ((OWNER * PAGES * PAGE_TOKENS + position) * heads + head) * bytes;
            let mut values = vec![0.0; dim];
            case.kind.decode(&side[at..at + bytes], &mut values);
            values
        };
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        for token in (0..TOKENS).step_by(41).chain([TOKENS - 1]) {
            let visible = (token + 1) / unit;
            let seen: Vec<usize> = match visible > top {
                false => (0..=token).collect(),
                true => {
                    let units = &whole.chosen[token * top..(token + 1) * top];
                    let chosen = units.iter().flat_map(|&it| {
                        let first = it as usize * unit;
                        first..first + unit
                    });
                    chosen.chain(visible * unit..token + 1).collect()
                }
            };
            for head in 0..shape.query_heads {
                let of = head / (shape.query_heads / heads);
                let q = &query[token * width + head * dim..][..dim];
                let dot = |position: &usize| {
                    let key = row(&whole.keys, *position, of);
                    let sum: f64 =
                        q.iter().zip(&key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                    sum / (dim as f64).sqrt()
                };
                let scores: Vec<f64> = seen.iter().map(dot).collect();
                let most = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let (total, mut sums) = (weights.iter().sum::<f64>(), vec![0.0; dim]);
                for (weight, &position) in weights.iter().zip(&seen) {
                    let value = row(&whole.values, position, of);
                    sums.iter_mut().zip(&value).for_each(|(sum, &v)| *sum += weight * f64::from(v));
                }
                expected.extend(sums.iter().map(|sum| (sum / total) as f32));
            }
            found.extend_from_slice(&whole.out[token * width..][..width]);
        }
        self.compare("  its attention on the host", self.floats(&found), self.floats(&expected));
    }
}
