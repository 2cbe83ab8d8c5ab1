//! Shared by the tests: a seeded generator, random matrices, the instruction sets of this machine.

use kernels::format::{BlockFormat, Encoding, FP8_TILE, FloatType, GlobalScale, Matrix, ScaleType};
use kernels::{Arithmetic, Compute, ComputeOptions, Isa, bf16_from_f32, f16_from_f32};

/// xorshift64*: small, seeded, the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in [0, 1).
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal: a sum of uniforms.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.uniform() - 0.5).sum::<f32>() * std::f32::consts::SQRT_2
    }

    pub(crate) fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }
}

/// A matrix with its own bytes: weights, scales, biases one after the other.
pub(crate) struct Owned {
    pub(crate) encoding: Encoding,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    bytes: Vec<u8>,
}

/// The bytes of a matrix at an address that is `skew` past a multiple of 64.
pub(crate) struct Skewed {
    buffer: Vec<u8>,
    start: usize,
}

impl Owned {
    pub(crate) fn skewed(&self, skew: usize) -> Skewed {
        let mut buffer = vec![0; self.bytes.len() + 128];
        let start = buffer.as_ptr().align_offset(64) + skew;
        buffer[start..start + self.bytes.len()].copy_from_slice(&self.bytes);
        buffer.truncate(start + self.bytes.len());
        Skewed { buffer, start }
    }

    pub(crate) fn view<'a>(&self, skewed: &'a Skewed) -> Matrix<'a> {
        let bytes = &skewed.buffer[skewed.start..];
        let [weight, scales, _] = self.encoding.plane_bytes(self.rows, self.columns);
        let (weight, rest) = bytes.split_at(weight);
        let (scales, biases) = rest.split_at(scales);
        Matrix::new(self.encoding, self.rows, self.columns, weight, scales, biases).unwrap()
    }
}

fn append(value: f32, float: FloatType, bytes: &mut Vec<u8>) {
    match float {
        FloatType::F32 => bytes.extend(value.to_le_bytes()),
        FloatType::F16 => bytes.extend(f16_from_f32(value).to_le_bytes()),
        FloatType::Bf16 => bytes.extend(bf16_from_f32(value).to_le_bytes()),
    }
}

/// Weights of mean near 0 and standard deviation near 1.
pub(crate) fn random_matrix(
    random: &mut Random,
    encoding: Encoding,
    rows: usize,
    columns: usize,
) -> Owned {
    let mut bytes = Vec::new();
    match encoding {
        Encoding::Float(float) => {
            for _ in 0..rows * columns {
                append(random.normal(), float, &mut bytes);
            }
        }
        Encoding::Affine { bits, group, scale } => {
            for _ in 0..rows * encoding.weight_row_bytes(columns) {
                bytes.push(random.next() as u8);
            }
            let largest = ((1u32 << bits) - 1) as f32;
            let groups = rows * columns / usize::from(group);
            let scales: Vec<f32> =
                (0..groups).map(|_| (0.5 + random.uniform()) * 3.5 / largest).collect();
            for &s in &scales {
                append(s, scale, &mut bytes);
            }
            for &s in &scales {
                append(-s * largest * (0.45 + 0.1 * random.uniform()), scale, &mut bytes);
            }
        }
        Encoding::Symmetric { bits, group, scale } | Encoding::Zeroed { bits, group, scale } => {
            for _ in 0..rows * encoding.weight_row_bytes(columns) {
                bytes.push(random.next() as u8);
            }
            let largest = ((1u32 << bits) - 1) as f32;
            for _ in 0..rows * columns / usize::from(group) {
                append((0.5 + random.uniform()) * 3.5 / largest, scale, &mut bytes);
            }
            // Zero points near the middle, which those of rows that do not exist have as well.
            if let Encoding::Zeroed { .. } = encoding {
                let count = encoding.plane_bytes(rows, columns)[2] * 8 / usize::from(bits);
                let middle = 1 << (bits - 1);
                let points: Vec<u8> =
                    (0..count).map(|_| middle - 1 + (random.next() % 3) as u8).collect();
                match bits {
                    4 => bytes.extend(points.chunks(2).map(|pair| pair[0] | pair[1] << 4)),
                    _ => bytes.extend(points),
                }
            }
        }
        Encoding::Block(format) => {
            for _ in 0..rows * columns / format.values() {
                random_block(random, format, &mut bytes);
            }
        }
        Encoding::Fp8Rows { scale, shared } => {
            bytes.extend((0..rows * columns).map(|_| number(random)));
            for _ in 0..if shared { 1 } else { rows } {
                append((0.5 + random.uniform()) / 120.0, scale, &mut bytes);
            }
        }
        Encoding::Fp8 { scale } => {
            bytes.extend((0..rows * columns).map(|_| number(random)));
            for _ in 0..rows.div_ceil(FP8_TILE) * columns.div_ceil(FP8_TILE) {
                match scale {
                    ScaleType::Float(float) => {
                        append((0.5 + random.uniform()) / 120.0, float, &mut bytes);
                    }
                    ScaleType::E8m0 => bytes.push(119 + (random.next() % 3) as u8),
                }
            }
        }
        Encoding::Nvfp4 { global } => {
            bytes.extend((0..rows * columns / 2).map(|_| random.next() as u8));
            // 8-bit floats between 32 and 448, and a number that brings the values near 1.
            bytes.extend((0..rows * columns / 16).map(|_| 0x60 + (random.next() % 31) as u8));
            let one = (0.5 + random.uniform()) / 500.0;
            append(
                match global {
                    GlobalScale::Multiplies => one,
                    GlobalScale::Divides => 1.0 / one,
                },
                FloatType::F32,
                &mut bytes,
            );
        }
        Encoding::Mxfp4 => {
            bytes.extend((0..rows * columns / 2).map(|_| random.next() as u8));
            // Powers of two about a third, which is what values of three are divided by.
            bytes.extend((0..rows * columns / 32).map(|_| 124 + (random.next() % 3) as u8));
        }
    }
    Owned { encoding, rows, columns, bytes }
}

/// Any 8-bit float that is a number, of root mean square near 120.
fn number(random: &mut Random) -> u8 {
    loop {
        let byte = random.next() as u8;
        if byte & 0x7f != 0x7f {
            return byte;
        }
    }
}

/// A block of random bits whose values are of a magnitude near 1.
fn random_block(random: &mut Random, format: BlockFormat, bytes: &mut Vec<u8>) {
    let mut block: Vec<u8> = (0..format.bytes()).map(|_| random.next() as u8).collect();
    let mut values = vec![0.0; format.values()];
    // What the scales of the block must shrink by is found with scales of one.
    set_scales(&mut block, format, 1.0);
    format.decode(&block, &mut values);
    let squares: f32 = values.iter().map(|v| v * v).sum();
    let factor = (0.5 + random.uniform()) / (squares / values.len() as f32).sqrt().max(1e-3);
    set_scales(&mut block, format, factor);
    bytes.extend(block);
}

/// Writes the scale that stands over a whole block, and its minimum where it has one.
fn set_scales(block: &mut [u8], format: BlockFormat, factor: f32) {
    let mut half = |at: usize, value: f32| {
        block[at..at + 2].copy_from_slice(&f16_from_f32(value).to_le_bytes());
    };
    let last = format.bytes() - 2;
    match format {
        BlockFormat::Mxfp4 => block[0] = (128.0 + factor.log2()) as u8,
        // Floats of eight bits between 1/16 and 1.
        BlockFormat::Nvfp4 => block[..4].iter_mut().for_each(|byte| *byte = *byte % 32 + 24),
        // The scale lies in the highest nibbles of four words.
        BlockFormat::Iq1M => {
            let bits = f16_from_f32(factor);
            for k in 0..4 {
                let place = &mut block[49 + 2 * k];
                *place = (*place & 15) | ((bits >> (4 * k) & 15) as u8 * 16);
            }
        }
        BlockFormat::Q4_1 | BlockFormat::Q5_1 => {
            half(0, factor);
            half(2, -8.0 * factor);
        }
        BlockFormat::Q4K | BlockFormat::Q5K => {
            half(0, factor);
            half(2, 8.0 * factor);
        }
        BlockFormat::Q2K => {
            half(last - 2, factor);
            half(last, factor);
        }
        BlockFormat::Q3K | BlockFormat::Q6K | BlockFormat::Tq1_0 | BlockFormat::Tq2_0 => {
            half(last, factor);
        }
        _ => half(0, factor),
    }
}

pub(crate) fn compute(threads: usize, arithmetic: Arithmetic, isa: Isa) -> Compute {
    Compute::new(ComputeOptions { threads, arithmetic, isa }).unwrap()
}

/// Every instruction set of this machine, the reference first.
pub(crate) fn isas() -> Vec<Isa> {
    [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx, Isa::Neon]
        .into_iter()
        .filter(|&isa| {
            let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::F32, isa };
            Compute::new(options).is_ok()
        })
        .collect()
}

/// Fails where `got` is further from `want` than `limit`, relative to the larger of it and the mean magnitude.
pub(crate) fn close(got: &[f32], want: &[f64], limit: f64, case: &str) {
    assert_eq!(got.len(), want.len(), "{case}");
    let norm = (want.iter().map(|w| w * w).sum::<f64>() / want.len() as f64).sqrt().max(1e-6);
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs() / norm.max(want.abs());
        assert!(error < limit, "{case}: element {i} is {got}, not {want}");
    }
}

/// Runs on every instruction set with one and three threads; all must give the same bits.
pub(crate) fn everywhere(mut body: impl FnMut(&Compute) -> Vec<f32>) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for isa in isas() {
        for threads in [1, 3] {
            let got = body(&compute(threads, Arithmetic::Int16, isa));
            let first = first.get_or_insert_with(|| got.clone());
            let same = first.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{isa:?} with {threads} threads: other bits");
        }
    }
    first.unwrap()
}

/// As binary64.
pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}
