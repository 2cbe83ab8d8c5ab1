//! Random blocks: random bytes whose 16-bit scales give the values the wanted spread, and a mean of zero.

use kernels::f16_from_f32;
use kernels::format::BlockFormat;
use store::split_mix::SplitMix64;

/// Where a format has its scale and, where it has one, its minimum, as numbers of 16 bits; `None` for formats whose
/// scales are something else.
pub(super) fn numbers(format: BlockFormat) -> Option<&'static [usize]> {
    use BlockFormat as F;
    match format {
        F::Q4_0 | F::Q5_0 | F::Q8_0 | F::Iq4Nl | F::Iq4Xs => Some(&[0]),
        F::Iq2Xxs | F::Iq2Xs | F::Iq2S | F::Iq3Xxs | F::Iq3S | F::Iq1S => Some(&[0]),
        F::Q4_1 | F::Q5_1 | F::Q4K | F::Q5K => Some(&[0, 2]),
        F::Q2K => Some(&[80, 82]),
        F::Q3K => Some(&[108]),
        F::Q6K => Some(&[208]),
        F::Tq1_0 => Some(&[52]),
        F::Tq2_0 => Some(&[64]),
        F::Iq1M | F::Mxfp4 | F::Nvfp4 => None,
    }
}

/// The numbers of blocks of random bytes.
pub(super) struct Scales {
    /// For a spread of one: scale, and minimum of the format's own sign.
    numbers: Vec<(usize, f32)>,
    bytes: usize,
}

impl Scales {
    /// Measures what random bytes give with a scale of one. Formats without [`numbers`] are left as they are.
    pub(super) fn new(format: BlockFormat) -> Self {
        let places = numbers(format).unwrap_or_default();
        let mut values = vec![0.0; format.values()];
        let mut moments = |numbers: &[f32]| {
            let mut random = SplitMix64(1);
            let (mut sum, mut square, mut count) = (0.0, 0.0, 0.0);
            for _ in 0..512 {
                let bytes = (0..format.bytes()).map(|_| (random.next_u64() >> 32) as u8);
                let mut block: Vec<u8> = bytes.collect();
                for (&at, &number) in places.iter().zip(numbers) {
                    block[at..at + 2].copy_from_slice(&f16_from_f32(number).to_le_bytes());
                }
                format.decode(&block, &mut values);
                sum += values.iter().map(|&v| f64::from(v)).sum::<f64>();
                square += values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
                count += values.len() as f64;
            }
            (sum / count, (square / count).sqrt())
        };
        let mut found = match places.len() {
            0 => Vec::new(),
            1 => vec![1.0],
            // The mean is linear in the minimum.
            _ => {
                let (without, with) = (moments(&[1.0, 0.0]).0, moments(&[1.0, 1.0]).0);
                vec![1.0, (without / (without - with)) as f32]
            }
        };
        let spread = moments(&found).1.max(f64::MIN_POSITIVE) as f32;
        found.iter_mut().for_each(|number| *number /= spread);
        Self { numbers: places.iter().copied().zip(found).collect(), bytes: format.bytes() }
    }

    /// Writes them into the blocks of a part of a matrix that begins at byte `start`.
    pub(super) fn write(&self, deviation: f32, start: u64, out: &mut [u8]) {
        let bytes = self.bytes as u64;
        for &(at, number) in &self.numbers {
            let stored = f16_from_f32(number * deviation).to_le_bytes();
            for (byte, value) in stored.into_iter().enumerate() {
                let place = (at + byte) as u64;
                let first = (place + bytes - start % bytes) % bytes;
                out.iter_mut().skip(first as usize).step_by(self.bytes).for_each(|b| *b = value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_wanted_spread_wherever_a_part_begins() {
        for &format in BlockFormat::ALL.iter().filter(|&&format| numbers(format).is_some()) {
            let mut random = SplitMix64(9);
            let mut bytes: Vec<u8> =
                (0..200 * format.bytes()).map(|_| (random.next_u64() >> 32) as u8).collect();
            let scales = Scales::new(format);
            let (first, second) = bytes.split_at_mut(3 * format.bytes() + 1);
            scales.write(0.02, 0, first);
            scales.write(0.02, 3 * format.bytes() as u64 + 1, second);
            let mut all = Vec::new();
            for block in bytes.chunks(format.bytes()) {
                let mut values = vec![0.0; format.values()];
                format.decode(block, &mut values);
                all.extend(values);
            }
            let count = all.len() as f32;
            let mean = all.iter().sum::<f32>() / count;
            let spread = (all.iter().map(|v| v * v).sum::<f32>() / count).sqrt();
            // Random codes of TQ2_0 are -1 to 2: its mean is 0.41 of the spread.
            let most = if format == BlockFormat::Tq2_0 { 0.01 } else { 0.005 };
            assert!(mean.abs() < most, "{}: mean {mean}", format.name());
            assert!((0.015..0.025).contains(&spread), "{}: spread {spread}", format.name());
        }
    }
}
