//! The bytes of a synthetic checkpoint: random numbers at disk speed.
//!
//! Two tables are made once: random bytes and normal numbers. Every piece reads them from a place, and
//! mixes them with a word, that its name and the seed decide; packed values are then uniform over their
//! range, and scale and bias are chosen so that the matrix has the mean and variance of its
//! distribution.

use kernels::bf16_from_f32;
use kernels::f16_from_f32;
use kernels::format::{BlockFormat, Encoding, FloatType, GlobalScale, ScaleType};
use store::record::Piece;
use store::split_mix::{SplitMix64, mix};
use store::synthetic::{Content, Owner};

use super::blocks::Scales;
use super::shape::Shape;
use super::values::Values;

/// Random bytes; a power of two, larger than a second-level cache so that repeats lie far apart.
const BLOCK_BYTES: usize = 16 << 20;
/// Root mean square of random 8-bit floats.
const FP8_DEVIATION: f32 = 107.2;
/// Normal numbers; a power of two.
const NORMALS: usize = 1 << 18;

/// Fills pieces with random numbers.
pub(super) struct RandomContent<'a> {
    shape: &'a Shape,
    seed: u64,
    block: Vec<u8>,
    normals: Vec<f32>,
    scales_of: Vec<(BlockFormat, Scales)>,
}

impl<'a> RandomContent<'a> {
    /// Makes the tables.
    pub(super) fn new(shape: &'a Shape, seed: u64) -> Self {
        let mut random = SplitMix64(seed);
        let block = (0..BLOCK_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        let normals = (0..NORMALS).map(|_| random.normal()).collect();
        let formats = shape.block_formats().into_iter();
        let scales_of = formats.map(|format| (format, Scales::new(format))).collect();
        Self { shape, seed, block, normals, scales_of }
    }

    /// What distinguishes a matrix from every other.
    fn key(&self, owner: Owner) -> u64 {
        let place = match owner {
            Owner::Tensor(index) => (1 << 48) | index as u64,
            Owner::Expert { layer, expert, projection } => {
                ((layer as u64) << 32) | ((expert as u64) << 8) | projection as u64
            }
        };
        mix(self.seed ^ mix(place))
    }

    /// Uniform bits: the block from a place of its own, mixed with a word of its own.
    fn packed(&self, key: u64, start: u64, out: &mut [u8]) {
        let word = mix(key);
        for (index, chunk) in out.chunks_mut(8).enumerate() {
            let at = (start as usize + 8 * index).wrapping_add(key as usize & !7);
            let round = (at / BLOCK_BYTES) as u32;
            let bytes = word.rotate_left(round).to_le_bytes();
            let source = &self.block[at % BLOCK_BYTES..][..chunk.len()];
            for ((out, &random), byte) in chunk.iter_mut().zip(source).zip(bytes) {
                *out = random ^ byte;
            }
        }
    }

    /// Scales vary by a quarter around what gives the variance; each bias centres its group.
    fn scales(
        &self,
        key: u64,
        values: Values,
        encoding: (u8, FloatType),
        piece: Piece,
        start: u64,
        out: &mut [u8],
    ) {
        let (bits, float) = encoding;
        let levels = (1u32 << bits) as f32;
        // Variance of a uniform integer below `levels` is (levels^2 - 1) / 12.
        let scale = values.deviation() / ((levels * levels - 1.0) / 12.0).sqrt();
        let mut table = [[0u8; 4]; 256];
        for (byte, entry) in table.iter_mut().enumerate() {
            let scale = rounded(float, scale * (0.75 + byte as f32 / 512.0));
            let value = if piece == Piece::Scales { scale } else { -0.5 * (levels - 1.0) * scale };
            encode(float, value, entry);
        }
        let bytes = float.bytes();
        let first = start as usize / bytes;
        for (index, out) in out.chunks_exact_mut(bytes).enumerate() {
            let random = self.block[(first + index).wrapping_add(key as usize) % BLOCK_BYTES];
            out.copy_from_slice(&table[usize::from(random)][..bytes]);
        }
    }

    fn floats(&self, key: u64, values: Values, float: FloatType, start: u64, out: &mut [u8]) {
        let bytes = float.bytes();
        let first = start as usize / bytes;
        if let Values::Ids { columns, below } = values {
            return self.ids(key, (columns, below), first, out);
        }
        let mut word = [0; 4];
        for (index, out) in out.chunks_exact_mut(bytes).enumerate() {
            let at = (first + index).wrapping_add(key as usize);
            let normal = self.normals[at % NORMALS];
            let random = self.block[at % BLOCK_BYTES];
            let value = match values {
                Values::Normal { mean, deviation } => mean + deviation * normal,
                Values::AroundOne => 1.0 + (f32::from(random % 65) - 32.0) / 128.0,
                Values::Ids { .. } => continue,
                Values::LogRate => (0.05 + 7.95 * (f32::from(random) / 255.0)).ln(),
            };
            encode(float, value, &mut word);
            out.copy_from_slice(&word[..bytes]);
        }
    }
}

impl RandomContent<'_> {
    /// Whole numbers, from word `first` on.
    fn ids(&self, key: u64, (columns, below): (usize, usize), first: usize, out: &mut [u8]) {
        for (index, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let number = (first + index) / 2;
            let (row, column) = (number / columns, number % columns);
            let random = mix(key.wrapping_add(row as u64)) as usize;
            let id = (random % below + column * (below / columns)) % below;
            let high = !(first + index).is_multiple_of(2);
            *out = if high { 0 } else { id as u32 }.to_le_bytes();
        }
    }
}

impl Content for RandomContent<'_> {
    fn fill(&self, owner: Owner, piece: Piece, start: u64, out: &mut [u8]) {
        let (encoding, values) = self.shape.matrix(owner);
        let key = self.key(owner);
        match (encoding, piece) {
            (Encoding::Float(float), _) => self.floats(key, values, float, start, out),
            (
                Encoding::Affine { .. }
                | Encoding::Symmetric { .. }
                | Encoding::Zeroed { .. }
                | Encoding::Mxfp4
                | Encoding::Nvfp4 { .. },
                Piece::Weight,
            ) => self.packed(key, start, out),
            (Encoding::Block(format), _) => {
                self.packed(key, start, out);
                let scales = self.scales_of.iter().find(|(known, _)| *known == format);
                scales.iter().for_each(|(_, s)| s.write(values.deviation(), start, out));
            }
            (Encoding::Fp8 { .. } | Encoding::Fp8Rows { .. }, Piece::Weight) => {
                self.packed(key, start, out);
                // Not the two codes without a number.
                out.iter_mut().for_each(|byte| *byte -= u8::from(*byte & 0x7f == 0x7f));
            }
            (Encoding::Fp8Rows { scale, .. }, _) => {
                let mut word = [0; 4];
                encode(scale, values.deviation() / FP8_DEVIATION, &mut word);
                out.chunks_exact_mut(scale.bytes())
                    .for_each(|out| out.copy_from_slice(&word[..out.len()]));
            }
            // Half of the codes, in each of the words.
            (Encoding::Zeroed { bits, .. }, Piece::Biases) => {
                out.fill(if bits == 4 { 0x88 } else { 0x80 });
            }
            (Encoding::Fp8 { scale }, _) => {
                let one = values.deviation() / FP8_DEVIATION;
                let mut word = [0; 4];
                match scale {
                    ScaleType::E8m0 => word[0] = (127.0 + one.log2().round()) as u8,
                    ScaleType::Float(float) => encode(float, one, &mut word),
                }
                out.chunks_exact_mut(scale.bytes())
                    .for_each(|out| out.copy_from_slice(&word[..out.len()]));
            }
            // Scales of one (0x38), times or over the number of the matrix.
            (Encoding::Nvfp4 { .. }, Piece::Scales) => out.fill(0x38),
            (Encoding::Nvfp4 { global }, _) => {
                let one = values.deviation() / 2.93;
                let number = match global {
                    GlobalScale::Multiplies => one,
                    GlobalScale::Divides => 1.0 / one,
                };
                out.copy_from_slice(&number.to_le_bytes()[..out.len()]);
            }
            // The mean square of the sixteen values is 8.56.
            (Encoding::Mxfp4, _) => {
                out.fill((127.0 + (values.deviation() / 2.93).log2().round()) as u8);
            }
            (
                Encoding::Affine { bits, scale, .. }
                | Encoding::Symmetric { bits, scale, .. }
                | Encoding::Zeroed { bits, scale, .. },
                _,
            ) => {
                self.scales(key, values, (bits, scale), piece, start, out);
            }
        }
    }
}

fn rounded(float: FloatType, value: f32) -> f32 {
    match float {
        FloatType::F32 => value,
        FloatType::F16 => kernels::f32_from_f16(f16_from_f32(value)),
        FloatType::Bf16 => kernels::f32_from_bf16(bf16_from_f32(value)),
    }
}

fn encode(float: FloatType, value: f32, out: &mut [u8; 4]) {
    match float {
        FloatType::F32 => *out = value.to_le_bytes(),
        FloatType::F16 => out[..2].copy_from_slice(&f16_from_f32(value).to_le_bytes()),
        FloatType::Bf16 => out[..2].copy_from_slice(&bf16_from_f32(value).to_le_bytes()),
    }
}
