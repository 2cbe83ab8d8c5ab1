//! Block encodings and floats: plain kernels against the scalar reference of the processor, fast ones against plain
//! ones, and their time: a part of the example `check`.

use cuda::launch::{
    self, ExpertActivation, ExpertStep, SharedExpert, SplitForm, StepConvolution, StepInput,
    StepJob, StepShared,
};
use cuda::{ExpertShapes, Matrix, Span};
use kernels::format::{self, BlockFormat, Encoding, FloatType, ScaleType};

use super::{Bench, Shared};

/// Every format, and where its numbers of 16 bits are: scale, and minimum where there is one.
pub(super) const FORMATS: [(BlockFormat, &[usize]); 23] = [
    (BlockFormat::Q4K, &[0, 2]),
    (BlockFormat::Q6K, &[208]),
    (BlockFormat::Q8_0, &[0]),
    (BlockFormat::Q5K, &[0, 2]),
    (BlockFormat::Q4_0, &[0]),
    (BlockFormat::Q4_1, &[0, 2]),
    (BlockFormat::Q5_0, &[0]),
    (BlockFormat::Q5_1, &[0, 2]),
    (BlockFormat::Q2K, &[80, 82]),
    (BlockFormat::Q3K, &[108]),
    (BlockFormat::Iq4Nl, &[0]),
    (BlockFormat::Iq4Xs, &[0]),
    (BlockFormat::Mxfp4, &[]),
    (BlockFormat::Iq2Xxs, &[0]),
    (BlockFormat::Iq2Xs, &[0]),
    (BlockFormat::Iq2S, &[0]),
    (BlockFormat::Iq3Xxs, &[0]),
    (BlockFormat::Iq3S, &[0]),
    (BlockFormat::Iq1S, &[0]),
    (BlockFormat::Iq1M, &[]),
    (BlockFormat::Tq1_0, &[52]),
    (BlockFormat::Tq2_0, &[64]),
    (BlockFormat::Nvfp4, &[]),
];

impl Bench {
    /// Random bytes of a matrix whose scales are ordinary numbers.
    pub(super) fn encoded(&self, encoding: Encoding, rows: usize, columns: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(encoding.matrix_bytes(rows, columns) + 8);
        while bytes.len() < encoding.matrix_bytes(rows, columns) {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(encoding.matrix_bytes(rows, columns));
        match encoding {
            Encoding::Block(format) => {
                let numbers = FORMATS.iter().find(|row| row.0 == format).unwrap().1;
                for block in bytes.chunks_exact_mut(format.bytes()) {
                    for &at in numbers {
                        // A sign at random, and 2^-8 .. 2^-6.
                        let bits = (self.next() as u16 & 0x87ff) | 0x1c00;
                        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                    }
                    match format {
                        BlockFormat::Mxfp4 => block[0] = 118 + block[0] % 4,
                        // Nibbles of a number of 16 bits, with the same bits.
                        BlockFormat::Iq1M => {
                            block[55] = block[55] & 0x8f | 0x10;
                            block[53] = block[53] & 0x7f | 0xc0;
                        }
                        // Four numbers of eight bits from 2^-4 on.
                        BlockFormat::Nvfp4 => block[..4].iter_mut().for_each(|b| *b = *b & 15 | 24),
                        _ => {}
                    }
                }
            }
            // The kernels do not read them.
            Encoding::Nvfp4 { .. } | Encoding::Zeroed { .. } | Encoding::Fp8Rows { .. } => {}
            Encoding::Float(float) => {
                for value in bytes.chunks_exact_mut(float.bytes()) {
                    let unit = self.unit();
                    match float {
                        FloatType::F32 => value.copy_from_slice(&unit.to_le_bytes()),
                        FloatType::Bf16 => value.copy_from_slice(&unit.to_le_bytes()[2..]),
                        // Any sign and significand, 2^-2 .. 2^2.
                        FloatType::F16 => value[1] = value[1] & 0x8f | 0x30,
                    }
                }
            }
            Encoding::Mxfp4 => {
                let [weights, ..] = encoding.plane_bytes(rows, columns);
                bytes[weights..].iter_mut().for_each(|scale| *scale = 118 + *scale % 4);
            }
            Encoding::Symmetric { .. } => {
                let [weights, ..] = encoding.plane_bytes(rows, columns);
                self.write_scales(FloatType::Bf16, &mut bytes[weights..]);
            }
            Encoding::Fp8 { scale } => {
                let [weights, ..] = encoding.plane_bytes(rows, columns);
                let (values, scales) = bytes.split_at_mut(weights);
                // What is no number has a case of its own.
                values.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte -= 1);
                match scale {
                    ScaleType::E8m0 => scales.iter_mut().for_each(|it| *it = 118 + *it % 4),
                    ScaleType::Float(float) => self.write_scales(float, scales),
                }
            }
            Encoding::Affine { .. } => unreachable!("affine matrices are made elsewhere"),
        }
        bytes
    }

    /// Positive scales, 2^-8 and less.
    fn write_scales(&self, float: FloatType, scales: &mut [u8]) {
        for scale in scales.chunks_exact_mut(float.bytes()) {
            let value = (1.5 + self.unit()) / 256.0;
            match float {
                FloatType::F32 => scale.copy_from_slice(&value.to_le_bytes()),
                FloatType::Bf16 => scale.copy_from_slice(&value.to_le_bytes()[2..]),
                FloatType::F16 => unreachable!("no case has such scales"),
            }
        }
    }

    pub(super) fn on_device(
        &self,
        encoding: Encoding,
        rows: usize,
        columns: usize,
        bytes: &[u8],
    ) -> Matrix {
        let none = self.bytes(&[0; 16]).part(0, 0);
        let (weight, scales) = bytes.split_at(encoding.plane_bytes(rows, columns)[0]);
        let scales = if scales.is_empty() { none } else { self.bytes(scales) };
        Matrix::new(encoding, rows, columns, self.bytes(weight), scales, none)
    }

    pub(super) fn any_matrix(&self, encoding: Encoding, rows: usize, columns: usize) -> Matrix {
        self.on_device(encoding, rows, columns, &self.encoded(encoding, rows, columns))
    }

    /// Products and embedded rows of plain kernels against the processor's decoding; then the fast ones.
    pub(super) fn blocks(&self) {
        let floats = [FloatType::F32, FloatType::F16, FloatType::Bf16].map(Encoding::Float);
        let others = floats.into_iter().chain([Encoding::Mxfp4]);
        for encoding in FORMATS.map(|row| Encoding::Block(row.0)).into_iter().chain(others) {
            for (rows, columns, tokens) in
                [(40, 96, 1), (33, 64, 2), (300, 512, 3), (2100, 2048, 1), (24, 4096, 2)]
            {
                if columns % encoding.block_values() != 0 {
                    continue;
                }
                self.block_products(encoding, rows, columns, tokens);
            }
            for (rows, columns, tokens) in [(300, 2048, 1), (40, 512, 17), (1000, 256, 129)] {
                self.block_tiles(encoding, rows, columns, tokens);
            }
            self.block_tiles(encoding, 520, 768, 300);
        }
    }

    pub(super) fn block_products(
        &self,
        encoding: Encoding,
        rows: usize,
        columns: usize,
        tokens: usize,
    ) {
        let bytes = self.encoded(encoding, rows, columns);
        let (weight, scales) = bytes.split_at(encoding.plane_bytes(rows, columns)[0]);
        let host = format::Matrix::new(encoding, rows, columns, weight, scales, &[]).unwrap();
        let first = self.on_device(encoding, rows, columns, &bytes);
        let x = self.random(tokens * columns);
        let values = self.read(x);
        let mut decoded = vec![0.0; rows * columns];
        for (row, out) in decoded.chunks_exact_mut(columns).enumerate() {
            format::decode_row(&host, row, out);
        }
        let dot = |row: &[f32], x: &[f32]| {
            row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
        };
        let expected: Vec<f32> = values
            .chunks_exact(columns)
            .flat_map(|x| decoded.chunks_exact(columns).map(move |row| dot(row, x)))
            .collect();
        let case = format!("{} [{rows}, {columns}], {tokens} tokens", encoding.label());
        let plain = self.poison(tokens * rows);
        launch::linear(&self.stream, x, tokens, &[(first, plain)], false).unwrap();
        self.compare(&format!("plain {case}"), plain, self.floats(&expected));
        let ids: Vec<u32> = vec![0, rows as u32 - 1, rows as u32 / 2];
        let embedded = self.poison(ids.len() * columns);
        launch::embed(&self.stream, first, self.words(&ids), embedded).unwrap();
        let row = |&id: &u32| decoded[id as usize * columns..][..columns].to_vec();
        let expected: Vec<f32> = ids.iter().flat_map(row).collect();
        self.same_bits("  rows", &self.read(embedded), &expected);
        if !launch::step_serves(&self.device, [&first]) {
            return;
        }
        let weight = self.random(columns);
        let second = self.any_matrix(encoding, rows, columns);
        let normed = self.poison(tokens * columns);
        launch::rms_norm(&self.stream, tokens, x, None, weight, 1e-6, normed).unwrap();
        let plain: Vec<_> = (0..2).map(|_| self.poison(tokens * rows)).collect();
        let jobs = [(first, plain[0]), (second, plain[1])];
        launch::linear(&self.stream, normed, tokens, &jobs, false).unwrap();
        let input = StepInput::Norm { x, weight, epsilon: 1e-6 };
        let fused: Vec<_> = (0..3).map(|_| self.poison(tokens * rows)).collect();
        let step = [StepJob::Store(first, fused[0]), StepJob::Store(second, fused[1])];
        launch::step_linear(&self.stream, tokens, &input, &step).unwrap();
        self.compare(&format!("norm and products, {case}"), fused[0], plain[0]);
        self.compare(&format!("second matrix, {case}"), fused[1], plain[1]);
        let step = [StepJob::SwiGlu(first, second, fused[2]), StepJob::Add(first, fused[1])];
        launch::step_linear(&self.stream, tokens, &input, &step).unwrap();
        launch::linear(&self.stream, normed, tokens, &[(first, plain[1])], true).unwrap();
        let up = self.second(normed, tokens, second);
        launch::swiglu(&self.stream, plain[0], up, tokens * rows).unwrap();
        self.compare(&format!("SwiGLU, {case}"), fused[2], plain[0]);
        self.compare(&format!("sum, {case}"), fused[1], plain[1]);
    }

    pub(super) fn block_tiles(
        &self,
        encoding: Encoding,
        rows: usize,
        columns: usize,
        tokens: usize,
    ) {
        let matrix = self.any_matrix(encoding, rows, columns);
        let x = self.random(tokens * columns);
        let form = launch::split_form(&self.device, &matrix).unwrap_or(SplitForm::Blocks);
        let split = self.split_as(form, x, tokens, columns);
        let found = self.product(x, tokens, matrix, Some(&split));
        let expected = self.product(x, tokens, matrix, None);
        let case = format!("{}, {rows} x {columns}, {tokens} tokens", encoding.label());
        self.compare(&format!("split {case}"), found, expected);
        let last = x.part((tokens - 1) * columns, columns);
        let alone = self.split_as(form, last, 1, columns);
        let alone = self.product(last, 1, matrix, Some(&alone));
        self.same_bits("  alone", &self.read(alone), &self.read(found)[(tokens - 1) * rows..]);
    }

    /// Records of gate, up and down as `encodings` says.
    pub(super) fn block_records(
        &self,
        experts: usize,
        hidden: usize,
        inner: usize,
        encodings: [Encoding; 3],
    ) -> (ExpertShapes, Vec<u64>) {
        let sizes = [(inner, hidden), (inner, hidden), (hidden, inner)];
        let (mut places, mut addresses) = (Vec::new(), Vec::new());
        for _ in 0..experts {
            let mut record: Vec<u8> = Vec::new();
            for ((rows, columns), encoding) in sizes.into_iter().zip(encodings) {
                record.resize(record.len().next_multiple_of(32), 0);
                let start = record.len() as u32;
                let scales = start + encoding.plane_bytes(rows, columns)[0] as u32;
                places.extend(Matrix::pieces(encoding, [start, scales, scales]));
                record.extend(self.encoded(encoding, rows, columns));
            }
            addresses.push(self.bytes(&record).address());
        }
        let shape = |index: usize| Matrix::shape(encodings[index], sizes[index].0, sizes[index].1);
        let shapes = ExpertShapes::new(shape(0), shape(1), shape(2), self.words(&places));
        (shapes, addresses)
    }

    /// Experts of every format, and of mixtures, by fused and by plain kernels.
    pub(super) fn block_experts(&self, pinned: &Shared) {
        let every = FORMATS.map(|row| (row.0, row.0, BlockFormat::Q8_0)).into_iter();
        let mixed = [
            (BlockFormat::Q4K, BlockFormat::Q6K, BlockFormat::Q6K),
            (BlockFormat::Q5K, BlockFormat::Q8_0, BlockFormat::Q4K),
        ];
        for (index, (first, second, dense)) in every.chain(mixed).enumerate() {
            let sizes = [(2048, 512), (512, 256), (256, 768)][index % 3];
            let [first, second, dense] = [first, second, dense].map(Encoding::Block);
            self.experts_of(sizes, [first, first, second], dense, pinned);
        }
        self.block_convolution();
    }

    /// Experts of gate, up and down as `encodings` says, with a shared one of `dense`.
    pub(super) fn experts_of(
        &self,
        (hidden, inner): (usize, usize),
        encodings: [Encoding; 3],
        dense: Encoding,
        pinned: &Shared,
    ) {
        let (experts, k, tokens) = (6, 3, 2);
        let (shapes, addresses) = self.block_records(experts, hidden, inner, encodings);
        let chosen = [0u32, 2, 5, 1, 3, 4];
        let named: Vec<u64> = chosen.iter().map(|&e| addresses[e as usize]).collect();
        let (x, norm) = (self.random(tokens * hidden), self.random(hidden));
        let normed = self.poison(tokens * hidden);
        launch::rms_norm(&self.stream, tokens, x, None, norm, 1e-6, normed).unwrap();
        let (plain, fused) = (self.random(tokens * hidden), self.poison(tokens * hidden));
        self.stream.copy(plain, fused).unwrap();
        let step = |x, out| ExpertStep {
            x,
            chosen: self.words(&chosen),
            weights: self.floats(&[0.2, 0.5, 0.3, 0.1, 0.8, 0.1]),
            addresses: self.long_words(&named),
            answers: pinned.answers.span(0, experts),
            status: pinned.status.all(),
            inner: self.poison(tokens * k * inner),
            out,
            copies: None,
            ended: None,
            first_key: 0,
            k,
        };
        let expert = SharedExpert {
            gate: self.any_matrix(dense, 512, hidden),
            up: self.any_matrix(dense, 512, hidden),
            down: self.any_matrix(dense, hidden, 512),
            factor: self.random(tokens),
            inner: self.poison(tokens * 512),
        };
        launch::experts(&self.stream, tokens, &step(normed, plain), &shapes, Some(&expert))
            .unwrap();
        let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
        let twin = self.poison(tokens * 512);
        let job = StepJob::SwiGlu(expert.gate, expert.up, twin);
        launch::step_linear(&self.stream, tokens, &input, &[job]).unwrap();
        let shared = StepShared { down: expert.down, factor: expert.factor, inner: twin };
        let [first, second] = [encodings[0].name(), encodings[2].name()];
        let case = format!("experts of {first} and {second}, {} shared", dense.name());
        if !launch::step_serves_experts(&self.device, &shapes, Some(&shared.down)) {
            println!("{case}: not fused");
            return;
        }
        let (to, shared) = (step(x, fused), Some(&shared));
        launch::step_experts(&self.stream, tokens, &input, &to, &shapes, shared, None).unwrap();
        self.compare(&case, fused, plain);
        if !launch::step_serves_limited(&self.device, &shapes, Some(&expert)) {
            return;
        }
        let (limit, input) = (0.4, StepInput::Plain { x: normed });
        let activation = ExpertActivation {
            biases: None,
            clamped: Some((0.0, limit)),
            in_turns: false,
            shared: true,
            gelu: false,
        };
        let (to, shared) = (step(normed, plain), Some(&expert));
        self.stream.copy(plain, fused).unwrap();
        let activation = Some(&activation);
        launch::experts_activated(&self.stream, tokens, &to, &shapes, shared, activation).unwrap();
        let to = step(normed, fused);
        launch::step_experts_limited(&self.stream, tokens, &input, &to, &shapes, shared, limit)
            .unwrap();
        self.compare(&format!("{case}, clamped"), fused, plain);
    }

    /// A convolution behind a product of blocks.
    fn block_convolution(&self) {
        let (columns, channels, kernel) = (512, 320, 4);
        let matrix = self.any_matrix(Encoding::Block(BlockFormat::Q6K), channels, columns);
        let (x, weight) = (self.random(columns), self.random(channels * kernel));
        let tails = self.random((kernel - 1) * channels);
        let (other, places) = (self.twin(tails), self.places(&[3], &[0]));
        let stride = (kernel - 1) * channels;
        let raw = self.second(x, 1, matrix);
        let (plain, fused) = (self.poison(channels), self.poison(channels));
        launch::convolve(&self.stream, channels, &places, weight, raw, tails, stride, plain)
            .unwrap();
        let convolution = StepConvolution {
            weight,
            tails: other,
            stride,
            sequences: places.sequences,
            rounds: None,
        };
        let job = StepJob::Convolve(matrix, fused, convolution);
        launch::step_linear(&self.stream, 1, &StepInput::Plain { x }, &[job]).unwrap();
        self.compare("convolution after q6_k", fused, plain);
        self.compare("its tails", other, tails);
    }

    /// Time of products of one token and of many by format, of the 35B shape.
    pub(super) fn blocks_table(&self, copy: f64, pinned: &Shared) {
        let (hidden, inner, k) = (2048, 512, 8);
        let formats = FORMATS.map(|row| Encoding::Block(row.0)).into_iter();
        let affine = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
        for encoding in formats.chain([Encoding::Float(FloatType::F32), affine]) {
            let matrices: Vec<Matrix> = (0..8)
                .map(|_| match encoding {
                    Encoding::Affine { bits, group, .. } => {
                        self.matrix(12_352, hidden, bits, group)
                    }
                    _ => self.any_matrix(encoding, 12_352, hidden),
                })
                .collect();
            let (x, norm, out) =
                (self.random(hidden), self.random(hidden), self.poison(12_352 * 512));
            let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
            let time = self.time(24, &|turn| {
                let job = StepJob::Store(matrices[turn % 8], out);
                launch::step_linear(&self.stream, 1, &input, &[job])
            });
            let rate = encoding.matrix_bytes(12_352, hidden) as f64 / time / 1e3;
            let tokens = 512;
            let many = self.random(tokens * hidden);
            let form = launch::split_form(&self.device, &matrices[0]).unwrap();
            let split = self.split_as(form, many, tokens, hidden);
            let chunk = self.time(4, &|turn| {
                let (matrix, stream) = (matrices[turn], &self.stream);
                launch::tile_linear(stream, many, tokens, matrix, out, false, Some(&split))
            });
            let work = 2.0 * (12_352 * hidden * tokens) as f64 / chunk / 1e6;
            let experts = match encoding {
                Encoding::Block(_) => self.expert_time(encoding, [hidden, inner, k], pinned),
                _ => f64::NAN,
            };
            let bytes = 3 * k * encoding.matrix_bytes(inner, hidden);
            println!(
                "35B {:<8} step {time:6.2} us {rate:5.0} GB/s {:3.0} %, 512 tokens {chunk:7.1} us {work:6.1} \
                 TFLOP/s, experts {experts:6.2} us {:5.0} GB/s",
                encoding.label(),
                100.0 * rate / copy,
                bytes as f64 / experts / 1e3,
            );
        }
    }

    /// Time of a step's products by the number of tokens, of the 35B shape.
    pub(super) fn several_blocks_table(&self) {
        for (encoding, rows, columns) in [
            (BlockFormat::Q4K, 12_352, 2048),
            (BlockFormat::Q4K, 2048, 4096),
            (BlockFormat::Q4K, 1024, 2048),
            (BlockFormat::Q6K, 12_352, 2048),
        ] {
            let encoding = Encoding::Block(encoding);
            let matrices: Vec<Matrix> =
                (0..12).map(|_| self.any_matrix(encoding, rows, columns)).collect();
            let (x, norm, out) =
                (self.random(8 * columns), self.random(columns), self.poison(8 * rows));
            print!("{} [{rows}, {columns}], us by tokens:", encoding.name());
            for tokens in 1..=8 {
                let x = x.part(0, tokens * columns);
                let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
                let time = self.time(48, &|turn| {
                    let job = StepJob::Store(matrices[turn % 12], out.part(0, tokens * rows));
                    launch::step_linear(&self.stream, tokens, &input, &[job])
                });
                print!(" {time:.2}");
            }
            println!();
        }
    }

    pub(super) fn expert_time(
        &self,
        encoding: Encoding,
        [hidden, inner, k]: [usize; 3],
        pinned: &Shared,
    ) -> f64 {
        let (shapes, addresses) = self.block_records(4 * k, hidden, inner, [encoding; 3]);
        let (x, norm, out) = (self.random(hidden), self.random(hidden), self.poison(hidden));
        let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
        let (inner, weights) = (self.random(k * inner), self.random(k));
        let list: Vec<Span<u64>> = addresses.chunks(k).map(|turn| self.long_words(turn)).collect();
        let numbers = |turn: usize| (0..k).map(|i| (turn * k + i) as u32).collect::<Vec<_>>();
        let chosen: Vec<Span<u32>> = (0..4).map(|turn| self.words(&numbers(turn))).collect();
        self.time(40, &|turn| {
            let step = ExpertStep {
                x,
                chosen: chosen[turn % 4],
                weights,
                addresses: list[turn % 4],
                answers: pinned.answers.span(0, 4 * k),
                status: pinned.status.all(),
                inner,
                out,
                copies: None,
                ended: None,
                first_key: 0,
                k,
            };
            launch::step_experts(&self.stream, 1, &input, &step, &shapes, None, None)
        })
    }
}
