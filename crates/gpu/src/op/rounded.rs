//! How rows of compressed attention are stored in words: as floats, or rounded as DeepSeek-V4 was trained with them
//! (`kernels/src/rounded.rs`, whose bytes these are, with zeros up to a whole word).
//!
//! Scales are powers of two, so that a product with the inverse is the quotient to the bit: a driver's division is not.

/// How a row, or a key of the indexer, is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// As computed.
    F32,
    /// In halves.
    F16,
    /// Rows: 8-bit floats under powers of two, the last values in bfloat16.
    Fp8,
    /// Keys: 4-bit floats under powers of two, after a Hadamard transform.
    Fp4,
}

impl Stored {
    /// Of rows.
    pub const ROWS: [Self; 3] = [Self::F32, Self::F16, Self::Fp8];
    /// Of keys.
    pub const KEYS: [Self; 3] = [Self::F32, Self::F16, Self::Fp4];
    /// All.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Fp8, Self::Fp4];

    /// Functions that write `row[0..dim]`, which the workgroup shares, to a buffer: `pack(word)` gives a word of the
    /// stored row, once all invocations have called `scale(lid)` and met. Of 8-bit rows the last `p.plain` values are
    /// not rounded to 8 bits.
    pub(super) fn stores(self) -> String {
        match self {
            Self::F32 => "
fn scale(lid: u32) {}
fn pack(word: u32) -> u32 { return bitcast<u32>(row[word]); }
"
            .to_owned(),
            Self::F16 => "
fn scale(lid: u32) {}
fn pack(word: u32) -> u32 { return pack2x16float(vec2<f32>(row[2u * word], row[2u * word + 1u])); }
"
            .to_owned(),
            Self::Fp8 => {
                let largest = scale_byte("64u", "p.dim - p.plain", 448.0, 1e-4);
                format!("{ENCODE_E4M3}{largest}{PACK_E4M3}{FOUR_BYTES}")
            }
            Self::Fp4 => {
                let least = f32::from_bits(0x0140_0000);
                let largest = scale_byte("32u", "p.dim", 6.0, least);
                format!("{ENCODE_E2M1}{largest}{PACK_E2M1}{FOUR_BYTES}")
            }
        }
    }

    /// A function that reads two values of a row: `NAME(memory, start, half)` gives values `2 half` and `2 half + 1` of
    /// the row that begins at word `start` of `memory`; `word_of(memory, at)` gives a word of it.
    pub(super) fn loads(self, name: &str) -> String {
        let text = match self {
            Self::F32 => {
                "
fn NAME(memory: u32, start: u32, half: u32) -> vec2<f32> {
    let at = start + 2u * half;
    return vec2<f32>(bitcast<f32>(word_of(memory, at)), bitcast<f32>(word_of(memory, at + 1u)));
}
"
            }
            Self::F16 => {
                "
fn NAME(memory: u32, start: u32, half: u32) -> vec2<f32> { return unpack2x16float(word_of(memory, start + half)); }
"
            }
            Self::Fp8 => DECODE_E4M3,
            Self::Fp4 => DECODE_E2M1,
        };
        text.replace("NAME", name)
    }
}

/// `scale(lid)`: the bytes of the scales of `row`'s first `count` values, in blocks of `block`, to `scales`.
fn scale_byte(block: &str, count: &str, largest: f32, least: f32) -> String {
    format!(
        "
fn scale(lid: u32) {{
    let count = {count};
    if lid * {block} >= count {{ return; }}
    var most = {}u;
    for (var i = lid * {block}; i < min(count, (lid + 1u) * {block}); i = i + 1u) {{
        most = max(most, bitcast<u32>(row[i]) & 0x7fffffffu);
    }}
    let quotient = bitcast<u32>(bitcast<f32>(most) * {:?});
    let exponent = (quotient >> 23u) + select(0u, 1u, (quotient & 0x7fffffu) != 0u);
    scales[lid] = select(exponent, 255u, exponent > 246u);
}}
fn power(byte: u32) -> f32 {{ return bitcast<f32>(select(byte << 23u, 0x7fc00000u, byte == 255u)); }}
// The value over the scale: 2^(127 - byte) is exact.
fn over(value: f32, byte: u32) -> f32 {{
    let most = {largest:?};
    return clamp(value * bitcast<f32>((254u - min(byte, 246u)) << 23u), -most, most);
}}
",
        least.to_bits(),
        1.0 / largest
    )
}

/// The code of a number of magnitude 448 at the most.
const ENCODE_E4M3: &str = "
fn code_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let magnitude = bits & 0x7fffffffu;
    // Below 2^-6 the last bit of the sum is 2^-9: the addition itself rounds to nearest even.
    let small = bitcast<u32>(bitcast<f32>(magnitude) + 16384.0) - 0x46800000u;
    let other = ((magnitude + 0x7ffffu + ((magnitude >> 20u) & 1u)) >> 20u) - 960u;
    return ((bits >> 24u) & 0x80u) | select(other, small, magnitude < 0x3c800000u);
}
";

const PACK_E4M3: &str = "
fn byte_of(at: u32) -> u32 {
    let rounded = p.dim - p.plain;
    let blocks = (rounded + 63u) >> 6u;
    if at < rounded {
        let byte = scales[at >> 6u];
        return select(code_of(over(row[at], byte)), 0u, byte == 255u);
    }
    if at < rounded + blocks { return scales[at - rounded]; }
    let half = at - rounded - blocks;
    if (half >> 1u) >= p.plain { return 0u; }
    let bits = bitcast<u32>(row[rounded + (half >> 1u)]);
    let near = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    let held = select(near, 0x7fc0u, (bits & 0x7fffffffu) >= 0x7f800000u || (near & 0x7f80u) == 0x7f80u);
    return (held >> ((half & 1u) * 8u)) & 255u;
}
";

/// The code of a number of magnitude 6 at the most: the middles between neighbours go to the even code.
const ENCODE_E2M1: &str = "
fn code_of(value: f32) -> u32 {
    let x = abs(value);
    let low = select(0u, 1u, x > 0.25) + select(0u, 1u, x >= 0.75) + select(0u, 1u, x > 1.25);
    let high = select(0u, 1u, x >= 1.75) + select(0u, 1u, x > 2.5) + select(0u, 1u, x >= 3.5);
    return ((bitcast<u32>(value) >> 28u) & 8u) | (low + high + select(0u, 1u, x > 5.0));
}
";

const PACK_E2M1: &str = "
fn code_at(at: u32) -> u32 {
    if at >= p.dim { return 0u; }
    let byte = scales[at >> 5u];
    return select(code_of(over(row[at], byte)), 0u, byte == 255u);
}
fn byte_of(at: u32) -> u32 {
    let codes = (p.dim + 1u) >> 1u;
    if at < codes { return code_at(2u * at) | (code_at(2u * at + 1u) << 4u); }
    if at - codes < ((p.dim + 31u) >> 5u) { return scales[at - codes]; }
    return 0u;
}
";

const FOUR_BYTES: &str = "
fn pack(word: u32) -> u32 {
    let at = 4u * word;
    return byte_of(at) | (byte_of(at + 1u) << 8u) | (byte_of(at + 2u) << 16u) | (byte_of(at + 3u) << 24u);
}
";

/// Exponents of bias 7; the numbers below 2^-6 are multiples of 2^-9.
const DECODE_E4M3: &str = "
fn NAME_value(code: u32) -> f32 {
    let exponent = (code >> 3u) & 15u;
    let small = f32(code & 7u) * 0.001953125;
    let other = bitcast<f32>(((exponent + 120u) << 23u) | ((code & 7u) << 20u));
    let magnitude = select(other, small, exponent == 0u);
    return select(magnitude, -magnitude, (code & 128u) != 0u);
}
fn NAME(memory: u32, start: u32, half: u32) -> vec2<f32> {
    let rounded = p.dim - p.plain;
    let d = 2u * half;
    if d < rounded {
        let codes = word_of(memory, start + (d >> 2u)) >> ((d & 2u) * 8u);
        let at = rounded + (d >> 6u);
        let byte = (word_of(memory, start + (at >> 2u)) >> ((at & 3u) * 8u)) & 255u;
        let scale = bitcast<f32>(select(byte << 23u, 0x7fc00000u, byte == 255u));
        return vec2<f32>(NAME_value(codes & 255u), NAME_value((codes >> 8u) & 255u)) * scale;
    }
    let at = rounded + ((rounded + 63u) >> 6u) + 2u * (d - rounded);
    let shift = (at & 3u) * 8u;
    var pair = word_of(memory, start + (at >> 2u)) >> shift;
    if shift != 0u { pair = pair | (word_of(memory, start + (at >> 2u) + 1u) << (32u - shift)); }
    return vec2<f32>(bitcast<f32>(pair << 16u), bitcast<f32>(pair & 0xffff0000u));
}
";

/// What a code of 4 bits stands for.
pub(super) const E2M1_VALUE: &str = "
fn value_of(code: u32) -> f32 {
    let m = code & 7u;
    let other = (1.0 + 0.5 * f32(m & 1u)) * f32(1u << (m >> 1u)) * 0.5;
    let magnitude = select(other, 0.5 * f32(m), m < 2u);
    return select(magnitude, -magnitude, (code & 8u) != 0u);
}
";

const DECODE_E2M1: &str = "
fn NAME(memory: u32, start: u32, half: u32) -> vec2<f32> {
    let codes = word_of(memory, start + (half >> 2u)) >> ((half & 3u) * 8u);
    let at = ((p.dim + 1u) >> 1u) + (half >> 4u);
    let byte = (word_of(memory, start + (at >> 2u)) >> ((at & 3u) * 8u)) & 255u;
    let scale = bitcast<f32>(select(byte << 23u, 0x7fc00000u, byte == 255u));
    return vec2<f32>(value_of(codes & 15u), value_of((codes >> 4u) & 15u)) * scale;
}
";

/// `hadamard(lid, dim)`: the orthonormal Walsh-Hadamard transform of `row[0..dim]`, a power of two values. Sums are the
/// processor's.
pub(super) const HADAMARD: &str = "
fn hadamard(lid: u32, dim: u32, factor: f32) {
    for (var half = 1u; half < dim; half = half << 1u) {
        for (var i = lid; i < (dim >> 1u); i = i + 256u) {
            let low = (i & (half - 1u)) + 2u * (i - (i & (half - 1u)));
            let a = row[low];
            let b = row[low + half];
            row[low] = a + b;
            row[low + half] = a - b;
        }
        workgroupBarrier();
    }
    for (var i = lid; i < dim; i = i + 256u) { row[i] = row[i] * factor; }
    workgroupBarrier();
}
";
