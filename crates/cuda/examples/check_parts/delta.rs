//! The delta rule over the tokens of a prompt against steps, cut anywhere, and its time: a part of the example `check`.

use cuda::Span;
use cuda::launch::{
    self, DeltaShape, DeltaStep, StepConvolution, StepInput, StepJob, Streams, TokenPlaces,
};

use kernels::DeltaDecay;

use super::Bench;

/// Inputs of a run of one sequence.
struct Run {
    shape: DeltaShape,
    mixed: Span<f32>,
    beta: Span<f32>,
    decay: Span<f32>,
    rate: Span<f32>,
    bias: Span<f32>,
    states: Span<f32>,
}

impl Run {
    /// All its tokens; `states` hold one sequence's after the other's.
    fn step(&self, states: Span<f32>, out: Span<f32>) -> DeltaStep {
        let Self { mixed, beta, decay, rate, bias, .. } = *self;
        DeltaStep { mixed, beta, decay, rate, bias, states, stride: self.states.len(), out }
    }
}

impl Bench {
    fn run(&self, shape: DeltaShape, tokens: usize) -> Run {
        let channels = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
        let rates: Vec<f32> = (0..shape.value_heads).map(|_| 1.0 + 0.9 * self.unit()).collect();
        Run {
            shape,
            mixed: self.random(tokens * channels),
            beta: self.random(tokens * shape.value_heads),
            decay: self.random(tokens * shape.decays()),
            rate: self.floats(&rates),
            bias: self.random(shape.decays()),
            states: self.random(shape.value_heads * shape.key_dim * shape.value_dim),
        }
    }

    /// The run in pieces that end at `ends`; outputs, then the state after it.
    fn pieces_of(&self, run: &Run, ends: &[usize], single: bool) -> [Span<f32>; 2] {
        let tokens = ends[ends.len() - 1];
        let width = run.shape.value_heads * run.shape.value_dim;
        let (states, out) = (self.twin(run.states), self.poison(tokens * width));
        let [mixed, beta, decay] = [run.mixed, run.beta, run.decay].map(|span| self.twin(span));
        let mut start = 0;
        for &end in ends {
            let rows = |span: Span<f32>| {
                let each = span.len() / tokens;
                span.part(start * each, (end - start) * each)
            };
            let positions: Vec<u32> = (start as u32..end as u32).collect();
            let places = self.places(&positions, &vec![0; end - start]);
            let step = DeltaStep {
                mixed: rows(mixed),
                beta: rows(beta),
                decay: rows(decay),
                rate: run.rate,
                bias: run.bias,
                states,
                stride: states.len(),
                out: rows(out),
            };
            let places = TokenPlaces { single, ..places };
            launch::delta_rule(&self.stream, &run.shape, &places, &step).unwrap();
            start = end;
        }
        [out, states]
    }

    /// Convolution and delta rule of a step against those of a prompt of one token, and what follows them.
    pub(super) fn delta(&self) {
        let (columns, tokens, kernel) = (512, 2, 4);
        let shape = DeltaShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 128,
            value_dim: 64,
            tiled: false,
            decay: DeltaDecay::Heads,
        };
        let channels = 2 * 2 * 128 + 4 * 64;
        let places = self.places(&[3, 9], &[1, 0]);
        let mixed = self.matrix(channels, columns, 4, 64);
        let x = self.random(tokens * columns);
        let weight = self.random(channels * kernel);
        let tails = self.random(2 * (kernel - 1) * channels);
        let other = self.twin(tails);
        let stride = (kernel - 1) * channels;
        let raw = self.second(x, tokens, mixed);
        let (plain, fused) = (self.poison(tokens * channels), self.poison(tokens * channels));
        launch::convolve(&self.stream, channels, &places, weight, raw, tails, stride, plain)
            .unwrap();
        let convolution = StepConvolution {
            weight,
            tails: other,
            stride,
            sequences: places.sequences,
            rounds: None,
        };
        let job = StepJob::Convolve(mixed, fused, convolution);
        launch::step_linear(&self.stream, tokens, &StepInput::Plain { x }, &[job]).unwrap();
        self.compare("convolution", fused, plain);
        self.compare("its tails", other, tails);
        let stride = 4 * 128 * 64;
        let states = self.random(2 * stride);
        let (beta, decay) = (self.random(tokens * 4), self.random(tokens * 4));
        let (rate, bias) = (self.floats(&[0.3, 1.0, 2.0, 0.1]), self.random(4));
        let mut outputs = Vec::new();
        for single in [true, false] {
            let states = self.twin(states);
            let out = self.poison(tokens * 256);
            for token in 0..tokens {
                let rows =
                    |span: Span<f32>| span.part(token * span.len() / tokens, span.len() / tokens);
                let step = DeltaStep {
                    mixed: rows(self.twin(plain)),
                    beta: rows(beta),
                    decay: rows(decay),
                    rate,
                    bias,
                    states,
                    stride,
                    out: rows(out),
                };
                let places = TokenPlaces { single, ..places.part(token, 1) };
                launch::delta_rule(&self.stream, &shape, &places, &step).unwrap();
            }
            outputs.push((out, states));
        }
        self.compare("delta rule of one token", outputs[0].0, outputs[1].0);
        self.compare("its state", outputs[0].1, outputs[1].1);
        let (z, norm) = (self.random(tokens * 256), self.random(64));
        let output = self.matrix(columns, 256, 4, 64);
        for sigmoid in [false, true] {
            let (plain, fused) = (self.random(tokens * columns), self.poison(tokens * columns));
            self.stream.copy(plain, fused).unwrap();
            let context = self.twin(outputs[0].0);
            let gate = (z, sigmoid);
            launch::gated_norm(&self.stream, tokens * 4, context, gate, norm, 1e-6).unwrap();
            launch::linear(&self.stream, context, tokens, &[(output, plain)], true).unwrap();
            let (x, epsilon) = (outputs[0].0, 1e-6);
            let input = StepInput::HeadNorm { x, gate: z, weight: norm, epsilon, sigmoid };
            let job = StepJob::Add(output, fused);
            launch::step_linear(&self.stream, tokens, &input, &[job]).unwrap();
            self.compare("gated norm and output", fused, plain);
            for count in [2, 4] {
                let [plain, fused] = [(); 2].map(|()| self.poison(tokens * count * columns));
                let start = self.random(tokens * count * columns);
                self.stream.copy(start, plain).unwrap();
                self.stream.copy(start, fused).unwrap();
                let (weights, taken) = (self.random(tokens * count), self.poison(tokens * columns));
                launch::linear(&self.stream, context, tokens, &[(output, taken)], false).unwrap();
                let streams = Streams { values: plain, count, hidden: columns };
                launch::inject_streams(&self.stream, tokens, &streams, weights, taken).unwrap();
                let job = StepJob::Inject(output, fused, weights);
                launch::step_linear(&self.stream, tokens, &input, &[job]).unwrap();
                self.compare("gated norm and output to streams", fused, plain);
            }
        }
    }

    /// Prompts whole, in pieces and as steps.
    pub(super) fn delta_runs(&self) {
        let heads = DeltaDecay::Heads;
        for (key_dim, value_dim, tiled, decay) in [
            (128, 64, false, heads),
            (256, 40, false, heads),
            (64, 32, false, heads),
            (128, 64, true, heads),
            (64, 32, true, heads),
            (128, 128, false, DeltaDecay::Channels),
            (128, 40, true, DeltaDecay::Channels),
            (64, 32, false, DeltaDecay::Channels),
            (24, 16, false, DeltaDecay::Channels),
            (128, 64, false, DeltaDecay::BoundedChannels { bound: 5.0 }),
            (64, 32, true, DeltaDecay::BoundedChannels { bound: 5.0 }),
        ] {
            let shape =
                DeltaShape { key_heads: 2, value_heads: 4, key_dim, value_dim, tiled, decay };
            let run = self.run(shape, 61);
            let steps = self.pieces_of(&run, &(1..=61).collect::<Vec<_>>(), true);
            let whole = self.pieces_of(&run, &[61], false);
            let pieces = self.pieces_of(&run, &[1, 9, 40, 61], false);
            for (index, what) in ["outputs", "state"].into_iter().enumerate() {
                let case = format!(
                    "delta rule, keys of {key_dim}, values of {value_dim}, tiled {tiled}, {decay:?}: \
                     {what}"
                );
                self.compare(&case, whole[index], steps[index]);
                self.same_bits("  in pieces", &self.read(pieces[index]), &self.read(whole[index]));
            }
            let expected = self.delta_expected(&run, 61);
            self.compare("  outputs on the host", whole[0], self.floats(&expected));
        }
        self.delta_of_several();
    }

    /// Outputs of a run's tokens, in f64 on the host.
    fn delta_expected(&self, run: &Run, tokens: usize) -> Vec<f32> {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, tiled, decay } = run.shape;
        let [mixed, beta, decays, rate, bias, states] =
            [run.mixed, run.beta, run.decay, run.rate, run.bias, run.states]
                .map(|all| self.read(all).into_iter().map(f64::from).collect::<Vec<_>>());
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (channels, each) = (mixed.len() / tokens, run.shape.decays() / value_heads);
        let mut out = vec![0.0; tokens * value_heads * value_dim];
        for head in 0..value_heads {
            let key_head = if tiled { head % key_heads } else { head / (value_heads / key_heads) };
            let mut state = states[head * key_dim * value_dim..][..key_dim * value_dim].to_vec();
            for token in 0..tokens {
                let row = &mixed[token * channels..][..channels];
                let unit = |from: usize| -> Vec<f64> {
                    let x = &row[from..from + key_dim];
                    let norm = (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|v| v / norm).collect()
                };
                let q = unit(key_head * key_dim);
                let k = unit((key_heads + key_head) * key_dim);
                let v = &row[2 * key_heads * key_dim + head * value_dim..][..value_dim];
                let factor = |key: usize| {
                    let at = if each > 1 { head * each + key } else { head };
                    let x = decays[token * value_heads * each + at] + bias[at];
                    match decay {
                        DeltaDecay::BoundedChannels { bound } => {
                            (-f64::from(bound) * sigmoid(rate[head] * x)).exp()
                        }
                        _ => (-rate[head] * x.exp().ln_1p()).exp(),
                    }
                };
                let strength = sigmoid(beta[token * value_heads + head]);
                let factors: Vec<f64> = (0..key_dim).map(factor).collect();
                for (row, factor) in state.chunks_exact_mut(value_dim).zip(&factors) {
                    row.iter_mut().for_each(|value| *value *= factor);
                }
                for column in 0..value_dim {
                    let dot: f64 = (0..key_dim).map(|i| state[i * value_dim + column] * k[i]).sum();
                    let change = strength * (v[column] - dot);
                    let mut sum = 0.0;
                    for i in 0..key_dim {
                        state[i * value_dim + column] += k[i] * change;
                        sum += state[i * value_dim + column] * q[i];
                    }
                    let at = (token * value_heads + head) * value_dim + column;
                    out[at] = (sum / (key_dim as f64).sqrt()) as f32;
                }
            }
        }
        out
    }

    /// Steps of several sequences against each of them alone, to the bit.
    fn delta_of_several(&self) {
        let (heads, channels) = (DeltaDecay::Heads, DeltaDecay::Channels);
        for (key_dim, value_dim, tokens, decay) in [
            (128, 128, 8, heads),
            (256, 64, 3, heads),
            (64, 32, 5, heads),
            (128, 40, 2, heads),
            (128, 128, 8, channels),
            (64, 32, 5, channels),
        ] {
            let tiled = false;
            let shape =
                DeltaShape { key_heads: 2, value_heads: 4, key_dim, value_dim, tiled, decay };
            let run = self.run(shape, tokens);
            let state = run.states.len();
            let start = self.random(tokens * state);
            let states = [self.twin(start), self.twin(start)];
            let outs = [0, 1].map(|_| self.poison(tokens * shape.value_heads * value_dim));
            // Sequences are taken from the last, also alone.
            let launch = |side: usize, from: usize, count: usize| {
                let rows = |span: Span<f32>| {
                    let each = span.len() / tokens;
                    span.part(from * each, count * each)
                };
                let sequences: Vec<u32> =
                    (from..from + count).map(|token| (tokens - 1 - token) as u32).collect();
                let places = self.places(&vec![7; count], &sequences);
                let step = DeltaStep {
                    mixed: rows(run.mixed),
                    beta: rows(run.beta),
                    decay: rows(run.decay),
                    rate: run.rate,
                    bias: run.bias,
                    states: states[side],
                    stride: state,
                    out: rows(outs[side]),
                };
                let places = TokenPlaces { single: true, ..places };
                launch::delta_rule(&self.stream, &shape, &places, &step).unwrap();
            };
            launch(0, 0, tokens);
            (0..tokens).for_each(|token| launch(1, token, 1));
            let case = format!("delta rule of {tokens} sequences, keys of {key_dim}");
            self.same_bits(&format!("{case}: outputs"), &self.read(outs[0]), &self.read(outs[1]));
            self.same_bits(
                &format!("{case}: states"),
                &self.read(states[0]),
                &self.read(states[1]),
            );
        }
    }

    /// Time of the delta rule of the 35B shape and of Kimi-Linear's.
    pub(super) fn delta_table(&self) {
        self.delta_times("35B", 16, DeltaDecay::Heads);
        self.delta_times("Kimi-Linear", 32, DeltaDecay::Channels);
    }

    fn delta_times(&self, name: &str, key_heads: usize, decay: DeltaDecay) {
        let shape = DeltaShape {
            key_heads,
            value_heads: 32,
            key_dim: 128,
            value_dim: 128,
            tiled: false,
            decay,
        };
        for tokens in [1, 2, 4, 8] {
            let run = self.run(shape, tokens);
            let states = self.random(4 * tokens * run.states.len());
            let out = self.poison(tokens * 32 * 128);
            let places = [0, 1, 2, 3].map(|turn| {
                let first = turn * tokens as u32;
                let sequences: Vec<u32> = (first..first + tokens as u32).collect();
                self.places(&vec![7; tokens], &sequences)
            });
            let time = self.time(32, &|turn| {
                let step = run.step(states, out);
                launch::delta_rule(&self.stream, &shape, &places[turn % 4], &step)
            });
            println!("{name} delta rule of a step of {tokens} sequences: {time:.1} us");
        }
        for tokens in [128, 2048] {
            let run = self.run(shape, tokens);
            let positions: Vec<u32> = (0..tokens as u32).collect();
            let places = TokenPlaces { single: false, ..self.places(&positions, &vec![0; tokens]) };
            let step = run.step(run.states, self.poison(tokens * 32 * 128));
            let time = self.time(4, &|_| launch::delta_rule(&self.stream, &shape, &places, &step));
            println!(
                "{name} delta rule of {tokens:>4} tokens: {time:8.1} us, {:.3} us a token",
                time / tokens as f64
            );
        }
    }
}
