//! Rows of keys and values in 8 bits under scales: the bytes that `kernels::KvType::Q8` makes, on any device.
//!
//! A row is a head of a position: a signed byte a value, then a binary16 scale for every 32 of them. Kernels address
//! rows by halves of words, because a row of an odd number of groups is not whole words; all heads of a position
//! together have to be ([`serves`]).
//!
//! A device may divide and convert to binary16 with other last bits than the processor, so that neither is relied on: a
//! quotient without its fraction is the nearest number or the one before it, however its last bits were rounded. Which
//! it is, a product that binary32 holds exactly decides: that of the tie between the two and the divisor.
//! That the processor rounds twice (a quotient to binary32, then that) shows nowhere: products of ties have 19 bits, so
//! that a dividend of 24 bits that is none is further away than a quotient's rounding moves it.

use kernels::{KvType, Q8_GROUP};

use super::attention::Cache;

/// Values of a head of whose rows each is whole words: one launch prepares such a head of one token.
pub const WHOLE_WORDS: usize = 64;

/// Whether the kernels store so many heads of keys, and of values, of `dim` values each.
pub const fn serves(heads: usize, dim: usize) -> bool {
    dim.is_multiple_of(Q8_GROUP) && (heads * KvType::Q8.bytes_of_head(dim)).is_multiple_of(4)
}

/// Scales and bytes of values, whatever array they lie in.
pub(super) const ROUND: &str = "
// The value of a positive binary16, or of what would follow the greatest.
fn of_half(bits: u32) -> f32 {
    return select(f32(bits) * bitcast<f32>(0x33800000u), bitcast<f32>((bits << 13u) + 0x38000000u), bits >= 0x400u);
}
// Dividends by 127 from here on are nearer to a binary16 than to the one before it: half way is a tie.
fn begins(bits: u32) -> f32 {
    return (of_half(bits - 1u) + of_half(bits)) * 0.5 * 127.0;
}
// The binary16 nearest to a 127th of the greatest magnitude, given by its bits; NaN for what is none.
fn scale_of(most: u32) -> u32 {
    let value = bitcast<f32>(most);
    let guess = bitcast<u32>(value / 127.0);
    var bits = u32(bitcast<f32>(guess) * 16777216.0);
    if guess >= 0x38800000u { bits = min((guess >> 13u) - 0x1c000u, 0x7c00u); }
    let after = begins(bits + 1u);
    if value > after || (value == after && (bits & 1u) == 1u) { bits = bits + 1u; }
    return select(bits, 0x7e00u, bits >= 0x7c00u || most >= 0x7f800000u);
}
// The byte of a value under a scale.
fn byte_of(value: f32, bits: u32) -> u32 {
    if bits == 0u || bits >= 0x7c00u { return 0u; }
    let scale = of_half(bits);
    let size = abs(value);
    var steps = floor(min(size / scale, 127.0));
    // Products of eleven bits and nine.
    let tie = (steps + 0.5) * scale;
    if size > tie || (size == tie && (u32(steps) & 1u) == 1u) { steps = min(steps + 1.0, 127.0); }
    return u32(select(i32(steps), -i32(steps), value < 0.0)) & 255u;
}
";

/// `word_ARRAY(first, word, dim)`: a word of the rows of the heads of `dim` values that begin at `first` of an array.
pub(super) fn store(array: &str) -> String {
    "
fn most_ARRAY(first: u32) -> u32 {
    // Bits of magnitudes are ordered as the magnitudes are, NaN and infinity above all.
    var most = 0u;
    for (var at = 0u; at < 32u; at = at + 1u) { most = max(most, bitcast<u32>(ARRAY[first + at]) & 0x7fffffffu); }
    return most;
}
fn pair_of_ARRAY(first: u32, half: u32, dim: u32) -> u32 {
    let halves = dim / 2u + dim / 32u;
    let start = first + half / halves * dim;
    let at = half % halves;
    if at >= dim / 2u { return scale_of(most_ARRAY(start + (at - dim / 2u) * 32u)); }
    let scale = scale_of(most_ARRAY(start + at / 16u * 32u));
    return byte_of(ARRAY[start + 2u * at], scale) | (byte_of(ARRAY[start + 2u * at + 1u], scale) << 8u);
}
fn word_ARRAY(first: u32, word: u32, dim: u32) -> u32 {
    return pair_of_ARRAY(first, 2u * word, dim) | (pair_of_ARRAY(first, 2u * word + 1u, dim) << 16u);
}
"
    .replace("ARRAY", array)
}

/// The bytes of a word as numbers.
const SIGNED: &str = "
fn signed_bytes(word: u32) -> vec4<f32> {
    let bits = i32(word);
    return vec4<f32>(vec4<i32>(bits << 24u, bits << 16u, bits << 8u, bits) >> vec4<u32>(24u));
}
";

/// `pair_ARRAY(row, dim, index)`: the values `2 index` and the next of a row of a cache, by the row's number.
pub(super) fn load(array: &str) -> String {
    "
fn pair_ARRAY(row: u32, dim: u32, index: u32) -> vec2<f32> {
    let start = row * (dim / 2u + dim / 32u);
    let half = start + index;
    let bytes = signed_bytes(ARRAY[half >> 1u] >> ((half & 1u) * 16u));
    let mark = start + dim / 2u + index / 16u;
    let scale = unpack2x16float(ARRAY[mark >> 1u] >> ((mark & 1u) * 16u)).x;
    return bytes.xy * vec2<f32>(scale);
}
"
    .replace("ARRAY", array)
}

/// The body of the kernel that appends keys and values.
pub(super) const APPEND: &str = "
        let word = wid.x * 256u + lid;
        let words = p.width / 64u * 17u;
        if word < words {
            let first = (p.first + wid.y) * p.width;
            let to = (p.position + wid.y) * words + word;
            keys[to] = word_key(first, word, p.dim);
            values[to] = word_value(first, word, p.dim);
        }
        ";

/// A query's product with sixteen keys of a row that is whole words.
pub(super) const SCORE_OF_WORDS: &str = "
                let start = at / 64u * 17u;
                var sum = 0.0;
                for (var four = d; four < d + 16u; four = four + 4u) {
                    let bytes = signed_bytes(keys[start + four / 4u]);
                    sum = fma(q[four], bytes.x, sum);
                    sum = fma(q[four + 1u], bytes.y, sum);
                    sum = fma(q[four + 2u], bytes.z, sum);
                    sum = fma(q[four + 3u], bytes.w, sum);
                }
                let mark = keys[start + p.dim / 4u + d / 64u] >> ((d / 32u & 1u) * 16u);
                score = fma(sum, unpack2x16float(mark).x, score);";

/// Of a kernel that stores to `cache`: the functions that it needs to read these arrays.
pub(super) fn stores(cache: Cache, arrays: &[&str]) -> String {
    match cache {
        Cache::Q8 => arrays.iter().fold(ROUND.to_owned(), |text, array| text + &store(array)),
        Cache::F32 | Cache::F16 => String::new(),
    }
}

/// Of a kernel that attends over `cache`: the functions that it needs.
pub(super) fn loads(cache: Cache) -> String {
    match cache {
        Cache::Q8 => SIGNED.to_owned() + &load("keys") + &load("values"),
        Cache::F32 | Cache::F16 => String::new(),
    }
}

/// Of a kernel that attends over rows of whole words: `eight_keys(row, dim, index)` and `eight_values`, the values
/// `8 index` and on of a row, in two vectors.
pub(super) fn loads_of_eight() -> String {
    let load = "
fn eight_ARRAY(row: u32, dim: u32, index: u32) -> mat2x4<f32> {
    let start = row * (dim / 64u * 17u);
    let first = start + 2u * index;
    let mark = ARRAY[start + dim / 4u + index / 8u] >> ((index / 4u & 1u) * 16u);
    let scale = unpack2x16float(mark).x;
    return mat2x4<f32>(signed_bytes(ARRAY[first]) * scale, signed_bytes(ARRAY[first + 1u]) * scale);
}
";
    ["keys", "values"]
        .iter()
        .fold(SIGNED.to_owned(), |all, array| all + &load.replace("ARRAY", array))
}
