//! Rounds: runs of several tokens of a sequence in a step against one token a step, to the bit, with less kept at each
//! place; and their time: a part of the example `check`.

use cuda::launch::{
    self, AttentionShape, DeltaShape, DeltaStep, KeyValueCache, RoundRing, RunConvolution,
    StepConvolution, StepInput, StepJob, StepRuns, TokenPlaces, Visible,
};
use cuda::{Matrix, Span};
use kernels::{DeltaDecay, KvType};

use super::Bench;

/// Taps of the convolution.
const KERNEL: usize = 4;
/// Columns of the product before it.
const COLUMNS: usize = 256;
/// Most tokens of a step.
const MOST: usize = 8;
/// Sequences that have memory; the two that are computed are the last.
const SEQUENCES: usize = 3;

/// Weights of a delta layer.
struct Layer {
    shape: DeltaShape,
    channels: usize,
    matrix: Matrix,
    taps: Span<f32>,
    rate: Span<f32>,
    bias: Span<f32>,
}

/// Inputs of a sequence's tokens, one row after another.
#[derive(Default)]
struct Inputs {
    x: Vec<f32>,
    beta: Vec<f32>,
    decay: Vec<f32>,
}

/// Memory of all sequences, and what single steps leave in it.
struct Memory {
    tails: Span<f32>,
    states: Span<f32>,
}

/// What single steps of a sequence gave, by token.
#[derive(Default)]
struct Expected {
    convolved: Vec<Vec<f32>>,
    out: Vec<Vec<f32>>,
    tails: Vec<Vec<f32>>,
    states: Vec<Vec<f32>>,
}

impl Layer {
    fn tail(&self) -> usize {
        (KERNEL - 1) * self.channels
    }

    fn state(&self) -> usize {
        self.shape.value_heads * self.shape.key_dim * self.shape.value_dim
    }

    fn width(&self) -> usize {
        self.shape.value_heads * self.shape.value_dim
    }

    fn step(&self, memory: &Memory, [mixed, beta, decay, out]: [Span<f32>; 4]) -> DeltaStep {
        let (rate, bias) = (self.rate, self.bias);
        let (states, stride) = (memory.states, self.state());
        DeltaStep { mixed, beta, decay, rate, bias, states, stride, out }
    }
}

impl Bench {
    fn delta_layer(&self, shape: DeltaShape) -> Layer {
        let channels = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
        let rates: Vec<f32> = (0..shape.value_heads).map(|_| 1.0 + 0.9 * self.unit()).collect();
        Layer {
            shape,
            channels,
            matrix: self.matrix(channels, COLUMNS, 4, 64),
            taps: self.random(channels * KERNEL),
            rate: self.floats(&rates),
            bias: self.random(shape.decays()),
        }
    }

    fn layer_inputs(&self, layer: &Layer, tokens: usize) -> Inputs {
        let random = |count: usize| (0..count).map(|_| self.unit()).collect();
        let DeltaShape { value_heads, .. } = layer.shape;
        let decays = tokens * layer.shape.decays();
        Inputs {
            x: random(tokens * COLUMNS),
            beta: random(tokens * value_heads),
            decay: random(decays),
        }
    }

    /// Single steps, with the kernels of a step without rounds.
    fn single_steps(
        &self,
        layer: &Layer,
        inputs: &Inputs,
        memory: &Memory,
        sequence: u32,
    ) -> Expected {
        let (heads, at) = (layer.shape.value_heads, sequence as usize);
        let mut expected = Expected::default();
        for token in 0..inputs.x.len() / COLUMNS {
            let of = |values: &[f32], each: usize| self.floats(&values[token * each..][..each]);
            let places = self.places(&[token as u32], &[sequence]);
            let (mixed, out) = (self.poison(layer.channels), self.poison(layer.width()));
            let convolution = StepConvolution {
                weight: layer.taps,
                tails: memory.tails,
                stride: layer.tail(),
                sequences: places.sequences,
                rounds: None,
            };
            let job = StepJob::Convolve(layer.matrix, mixed, convolution);
            let input = StepInput::Plain { x: of(&inputs.x, COLUMNS) };
            launch::step_linear(&self.stream, 1, &input, &[job]).unwrap();
            expected.convolved.push(self.read(mixed));
            let beta = of(&inputs.beta, heads);
            let decay = of(&inputs.decay, layer.shape.decays());
            let step = layer.step(memory, [mixed, beta, decay, out]);
            launch::delta_rule(&self.stream, &layer.shape, &places, &step).unwrap();
            expected.out.push(self.read(out));
            let part = |span: Span<f32>, each: usize| self.read(span.part(at * each, each));
            expected.tails.push(part(memory.tails, layer.tail()));
            expected.states.push(part(memory.states, layer.state()));
        }
        expected
    }

    /// Every length of a round with every number of kept tokens, of two sequences in one step.
    pub(super) fn delta_rounds(&self) {
        let (heads, channels) = (DeltaDecay::Heads, DeltaDecay::Channels);
        for (key_dim, value_dim, tiled, decay) in [
            (128, 128, false, heads),
            (256, 64, false, heads),
            (64, 32, true, heads),
            (16, 16, false, heads),
            (128, 40, true, heads),
            (128, 128, false, channels),
            (64, 40, true, channels),
            (16, 16, false, DeltaDecay::BoundedChannels { bound: 5.0 }),
        ] {
            let shape =
                DeltaShape { key_heads: 2, value_heads: 4, key_dim, value_dim, tiled, decay };
            let layer = self.delta_layer(shape);
            let differ = self.rounds_of(&layer);
            let good = differ.is_empty();
            let case = format!(
                "rounds, keys of {key_dim}, values of {value_dim}, tiled {tiled}, {decay:?}"
            );
            let found = differ.first().map_or("equal".to_owned(), |first| {
                format!("{} differ, first {first} FAILED", differ.len())
            });
            println!("{case}: {found}");
            self.failed.set(self.failed.get() || !good);
        }
    }

    /// What differs.
    fn rounds_of(&self, layer: &Layer) -> Vec<String> {
        let of = |tokens| (1..=tokens).map(move |kept| (tokens, kept));
        let splits: Vec<(usize, usize)> = (1..=MOST).flat_map(of).collect();
        let turns = splits.len();
        // The other sequence has what is left of a step, in another order.
        let plan = |turn: usize| {
            let first = splits[(turn * 7 + 3) % turns];
            let room = MOST - first.0;
            let second = splits[(turn * 11 + 5) % turns];
            let tokens = second.0.min(room);
            [first, (tokens, second.1.min(tokens))]
        };
        let all = [0, 1].map(|it| (0..turns).map(|turn| plan(turn)[it].1).sum::<usize>());
        let memory = || Memory {
            tails: self.random(SEQUENCES * layer.tail()),
            states: self.random(SEQUENCES * layer.state()),
        };
        let start = memory();
        let copy = || Memory { tails: self.twin(start.tails), states: self.twin(start.states) };
        let (single, rounds) = (copy(), copy());
        let inputs = all.map(|tokens| self.layer_inputs(layer, tokens));
        let expected =
            [0, 1].map(|it| self.single_steps(layer, &inputs[it], &single, 2 - it as u32));
        let row = launch::round_row(&layer.shape);
        let stride = launch::ROUND_PLACES * row;
        // Not a number where nothing was noted.
        let ring = RoundRing { values: self.poison(SEQUENCES * stride), stride, row };
        let (mut at, mut lags, mut differ) = ([0, 0], [0, 0], Vec::new());
        for turn in 0..turns {
            let plan = plan(turn);
            let mut batch = Batch::default();
            for it in 0..2 {
                let wrong = self.layer_inputs(layer, plan[it].0);
                batch.add(layer, (&inputs[it], at[it], plan[it].1), &wrong, plan[it].0);
                batch.place(2 - it as u32, at[it], plan[it].0, lags[it]);
            }
            let (mixed, out) = self.run_batch(layer, &batch, &rounds, &ring);
            let mut first = 0;
            for it in 0..2 {
                let (tokens, kept) = plan[it];
                for place in 0..kept {
                    let rows =
                        |all: &[f32], each: usize| all[(first + place) * each..][..each].to_vec();
                    let token = at[it] + place;
                    let pairs = [
                        ("convolved", rows(&mixed, layer.channels), &expected[it].convolved[token]),
                        ("output", rows(&out, layer.width()), &expected[it].out[token]),
                    ];
                    for (what, found, expected) in pairs {
                        if !equal(&found, expected) {
                            differ.push(format!("{what} {place} of {kept} of {tokens} in {turn}"));
                        }
                    }
                }
                at[it] += kept;
                lags[it] = match tokens {
                    0 => lags[it],
                    1 => 0,
                    _ => kept as u32,
                };
                first += tokens;
            }
            // What was kept is applied now and then; else the next step does it.
            let it = turn % 4;
            if it < 2 && at[it] > 0 {
                if lags[it] > 0 {
                    self.apply_kept(layer, 2 - it as u32, at[it], lags[it], &rounds, &ring);
                    lags[it] = 0;
                }
                let part = |span: Span<f32>, each| self.read(span.part((2 - it) * each, each));
                let states = [
                    ("tail", part(rounds.tails, layer.tail()), &expected[it].tails[at[it] - 1]),
                    ("state", part(rounds.states, layer.state()), &expected[it].states[at[it] - 1]),
                ];
                for (what, found, expected) in states {
                    if !equal(&found, expected) {
                        differ.push(format!("{what} after {turn}"));
                    }
                }
            }
        }
        differ
    }

    /// A step; convolved rows and outputs.
    fn run_batch(
        &self,
        layer: &Layer,
        batch: &Batch,
        memory: &Memory,
        ring: &RoundRing,
    ) -> (Vec<f32>, Vec<f32>) {
        let (tokens, places) = (batch.positions.len(), self.places_of(batch));
        let (x, raw) = (self.floats(&batch.inputs.x), self.poison(tokens * layer.channels));
        let (mixed, out) =
            (self.poison(tokens * layer.channels), self.poison(tokens * layer.width()));
        let (input, stride) = (StepInput::Plain { x }, layer.tail());
        if tokens == 1 {
            let convolution = StepConvolution {
                weight: layer.taps,
                tails: memory.tails,
                stride,
                sequences: places.sequences,
                rounds: Some((*ring, places.positions, places.runs.unwrap().lags)),
            };
            let job = StepJob::Convolve(layer.matrix, mixed, convolution);
            launch::step_linear(&self.stream, tokens, &input, &[job]).unwrap();
        } else {
            let job = StepJob::Store(layer.matrix, raw);
            launch::step_linear(&self.stream, tokens, &input, &[job]).unwrap();
            let (weight, tails) = (layer.taps, memory.tails);
            let convolution = RunConvolution { weight, x: raw, tails, stride, out: mixed };
            launch::convolve_runs(&self.stream, &layer.shape, &places, &convolution, ring, false)
                .unwrap();
        }
        let (beta, decay) = (self.floats(&batch.inputs.beta), self.floats(&batch.inputs.decay));
        let step = layer.step(memory, [mixed, beta, decay, out]);
        launch::delta_runs(&self.stream, &layer.shape, &places, &step, ring, false).unwrap();
        (self.read(mixed), self.read(out))
    }

    fn apply_kept(
        &self,
        layer: &Layer,
        sequence: u32,
        length: usize,
        lag: u32,
        memory: &Memory,
        ring: &RoundRing,
    ) {
        let mut batch = Batch::default();
        batch.place(sequence, length, 1, lag);
        let (places, none) = (self.places_of(&batch), self.poison(0));
        let (weight, tails, stride) = (layer.taps, memory.tails, layer.tail());
        let convolution = RunConvolution { weight, x: none, tails, stride, out: none };
        launch::convolve_runs(&self.stream, &layer.shape, &places, &convolution, ring, true)
            .unwrap();
        let step = layer.step(memory, [none; 4]);
        launch::delta_runs(&self.stream, &layer.shape, &places, &step, ring, true).unwrap();
    }

    fn places_of(&self, batch: &Batch) -> TokenPlaces {
        let runs = StepRuns { starts: self.words(&batch.starts), lags: self.words(&batch.lags) };
        TokenPlaces { runs: Some(runs), ..self.places(&batch.positions, &batch.sequences) }
    }

    /// Runs of 2 to 8 tokens that append and attend, against one token after the other; over the ends of tiles and
    /// parts.
    pub(super) fn attention_rounds(&self) {
        let shapes = [(16, 2, 128), (8, 1, 256), (32, 4, 64), (6, 2, 40), (16, 2, 512)];
        for (query_heads, key_value_heads, dim) in shapes {
            let shape = AttentionShape { query_heads, key_value_heads, dim, scale: None };
            for kv_type in [KvType::F16, KvType::Bf16, KvType::Q8, KvType::F32] {
                if !launch::serves_cache(&shape, kv_type) {
                    continue;
                }
                for (first, tokens, window) in [
                    (0, 8, None),
                    (30, 5, None),
                    (255, 2, None),
                    (1021, 8, None),
                    (2047, 3, Some(128)),
                    (1500, 7, Some(128)),
                ] {
                    let cached = self.cached(&shape, 2, 2100, kv_type);
                    let visible = Visible { window, sinks: None };
                    let width = key_value_heads * dim;
                    let rows = [0, 1].map(|_| self.random(tokens * width));
                    let query = self.random(tokens * query_heads * dim);
                    let positions: Vec<u32> = (first..first + tokens as u32).collect();
                    let twin = KeyValueCache {
                        keys: self.twin_bytes(cached.cache.keys),
                        values: self.twin_bytes(cached.cache.values),
                        ..cached.cache
                    };
                    let zeros = vec![0; tokens];
                    let runs = StepRuns { starts: self.words(&zeros), lags: self.words(&zeros) };
                    let places = self.places(&positions, &vec![1; tokens]);
                    let places = TokenPlaces { runs: Some(runs), ..places };
                    let together = self.append_and_attend(
                        &shape,
                        &cached.cache,
                        &places,
                        rows,
                        query,
                        visible,
                    );
                    let mut alone = Vec::new();
                    for token in 0..tokens {
                        let places = self.places(&positions[token..=token], &[1]);
                        let rows = rows.map(|span| span.part(token * width, width));
                        let query = query.part(token * query_heads * dim, query_heads * dim);
                        alone.extend(
                            self.append_and_attend(&shape, &twin, &places, rows, query, visible),
                        );
                    }
                    let case = format!("a run of {tokens} from {first}, {kv_type}, heads of {dim}");
                    self.same_bits(&case, &together, &alone);
                }
            }
        }
    }

    fn append_and_attend(
        &self,
        shape: &AttentionShape,
        cache: &KeyValueCache,
        places: &TokenPlaces,
        [keys, values]: [Span<f32>; 2],
        query: Span<f32>,
        visible: Visible,
    ) -> Vec<f32> {
        let tokens = places.positions.len();
        let out = self.poison(tokens * shape.query_heads * shape.dim);
        let scratch = self.poison(launch::attend_scratch(shape, tokens));
        launch::append(&self.stream, shape, places, cache, keys, values).unwrap();
        launch::attend(&self.stream, shape, places, cache, query, out, scratch, visible).unwrap();
        self.read(out)
    }

    fn twin_bytes(&self, span: Span<u8>) -> Span<u8> {
        let to = self.bytes(&vec![0; span.len()]);
        self.stream.copy(span, to).unwrap();
        to
    }

    /// Time of the 35B shape's convolution and delta rule of one run, behind a round that was kept whole.
    pub(super) fn rounds_table(&self) {
        let shape = DeltaShape {
            key_heads: 16,
            value_heads: 32,
            key_dim: 128,
            value_dim: 128,
            tiled: false,
            decay: DeltaDecay::Heads,
        };
        let layer = self.delta_layer(shape);
        let row = launch::round_row(&shape);
        let stride = launch::ROUND_PLACES * row;
        let ring = RoundRing { values: self.random(4 * stride), stride, row };
        let tails = self.random(4 * layer.tail());
        let memory = Memory { tails, states: self.random(4 * layer.state()) };
        for tokens in [1, 2, 4, 8] {
            let places = [0, 1, 2, 3].map(|sequence| {
                let mut batch = Batch::default();
                batch.place(sequence, 64, tokens, tokens as u32 / 2);
                self.places_of(&batch)
            });
            let (raw, mixed) =
                (self.random(tokens * layer.channels), self.random(tokens * layer.channels));
            let heads = tokens * shape.value_heads;
            let (beta, decay) = (self.random(heads), self.random(heads));
            let out = self.poison(tokens * layer.width());
            let (weight, stride) = (layer.taps, layer.tail());
            let convolution = RunConvolution { weight, x: raw, tails, stride, out: mixed };
            let time = self.time(32, &|turn| {
                let places = &places[turn % 4];
                launch::convolve_runs(&self.stream, &shape, places, &convolution, &ring, false)
            });
            println!("35B convolution of a run of {tokens}: {time:.1} us");
            let step = layer.step(&memory, [mixed, beta, decay, out]);
            let time = self.time(32, &|turn| {
                launch::delta_runs(&self.stream, &shape, &places[turn % 4], &step, &ring, false)
            });
            println!("35B delta rule of a run of {tokens}, {} before: {time:.1} us", tokens / 2);
        }
    }
}

/// Tokens of a step.
#[derive(Default)]
struct Batch {
    inputs: Inputs,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    starts: Vec<u32>,
    lags: Vec<u32>,
}

impl Batch {
    /// A run of `tokens`: the first `kept` from `at` on of a sequence's, then wrong ones.
    fn add(
        &mut self,
        layer: &Layer,
        (right, at, kept): (&Inputs, usize, usize),
        wrong: &Inputs,
        tokens: usize,
    ) {
        let heads = layer.shape.value_heads;
        let lists = [
            (&mut self.inputs.x, &right.x, &wrong.x, COLUMNS),
            (&mut self.inputs.beta, &right.beta, &wrong.beta, heads),
            (&mut self.inputs.decay, &right.decay, &wrong.decay, layer.shape.decays()),
        ];
        for (to, right, wrong, each) in lists {
            to.extend(&right[at * each..(at + kept) * each]);
            to.extend(&wrong[kept * each..tokens * each]);
        }
    }

    fn place(&mut self, sequence: u32, position: usize, tokens: usize, lag: u32) {
        let start = self.positions.len() as u32;
        self.positions.extend(position as u32..(position + tokens) as u32);
        self.sequences.extend(vec![sequence; tokens]);
        self.starts.extend(vec![start; tokens]);
        self.lags.extend(vec![lag; tokens]);
    }
}

fn equal(found: &[f32], expected: &[f32]) -> bool {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() && a.is_finite();
    found.len() == expected.len() && found.iter().zip(expected).all(same)
}
