//! Units of block formats: the text that reads eight consecutive values of a block.
//!
//! The fields are those of `kernels::blocks`, which is the reference. A unit lies within one group, so it has one scale
//! and, in some formats, one minimum: `value * scale + minimum`. Blocks begin at any byte, so words are joined where a
//! format's size is no multiple of four.

use std::fmt::Write as _;

use kernels::format::BlockFormat;

mod codebooks;
mod k_quants;
mod legacy;
mod ternary;

/// Values of a unit.
pub(crate) const UNIT: u32 = 8;

/// Reads bytes of a block that begins at byte `at` of a plane; `load` reads a word of it.
struct Block<'a> {
    at: &'a str,
    /// Blocks and their fields begin at words.
    aligned: bool,
    load: &'a dyn Fn(&str) -> String,
}

impl Block<'_> {
    fn word_of(&self, offset: &str) -> String {
        (self.load)(&format!("(({} + {offset}) >> 2u)", self.at))
    }

    fn byte(&self, offset: &str) -> String {
        format!("byte_of({}, {} + {offset})", self.word_of(offset), self.at)
    }

    /// A binary16 number at an even byte.
    fn half(&self, offset: &str) -> String {
        format!("half_of({}, {} + {offset})", self.word_of(offset), self.at)
    }

    /// Two bytes that begin at an even one.
    fn short(&self, offset: &str) -> String {
        format!("short_of({}, {} + {offset})", self.word_of(offset), self.at)
    }

    /// Four bytes that begin at any.
    fn word(&self, offset: &str) -> String {
        let low = self.word_of(offset);
        if self.aligned {
            return low;
        }
        let high = self.word_of(&format!("{offset} + 3u"));
        format!("join({low}, {high}, {} + {offset})", self.at)
    }
}

/// A number below 2^23 as a float, less an offset; exact. Conversions of integers are slow on many GPUs, so its bits
/// become the lower ones of 2^23 and itself.
pub(crate) fn exact(code: &str, offset: u32) -> String {
    format!("(bitcast<f32>(({code}) | 0x4b000000u) - {}.0)", (1u32 << 23) + offset)
}

/// The field of a word at bit `shift` as a float, less an offset; exact. Where it fits into a float's mantissa it stays
/// where it is, below a power of two whose last bits it then counts.
pub(crate) fn exact_field(word: &str, shift: u32, mask: u32, offset: u32) -> String {
    match shift + mask.count_ones() {
        ..=23 => format!(
            "(bitcast<f32>(({word} & {}u) | {}u) - {}.0)",
            mask << shift,
            (150 - shift) << 23,
            (1u32 << (23 - shift)) + offset
        ),
        _ => exact_field(&format!("({word} >> 16u)"), shift - 16, mask, offset),
    }
}

/// Q4_K and Q5_K by vectors: an invocation takes the values of some consecutive bytes, their lower halves and their
/// upper halves, each with a scale and a minimum. `part` counts such vectors of a block.
#[derive(Clone, Copy)]
pub(crate) struct Wide {
    format: BlockFormat,
    /// Words of a vector.
    words: u32,
    /// Vectors of a block.
    pub(crate) vectors: u32,
    /// Units of a block.
    pub(crate) parts: u32,
}

impl Wide {
    /// True for formats whose blocks are whole vectors of four words.
    pub(crate) fn serves(format: BlockFormat) -> bool {
        matches!(format, BlockFormat::Q4K | BlockFormat::Q5K)
    }

    pub(crate) fn new(format: BlockFormat, words: u32) -> Self {
        let vectors = format.bytes() as u32 / (4 * words);
        Self { format, words, vectors, parts: 32 / words }
    }

    /// Statements that say where unit `unit` has its first value.
    pub(crate) fn column(&self, unit: &str) -> String {
        let (parts, each) = (self.parts, self.parts / 4);
        format!(
            "let part = {unit} % {parts}u;
            let column = {unit} / {parts}u * 256u + part / {each}u * 64u + part % {each}u * {}u;
            ",
            4 * self.words
        )
    }

    /// Vectors of four values of the lower and of the upper halves, from the first on.
    pub(crate) fn quads(&self) -> [Vec<u32>; 2] {
        [(0..self.words).collect(), (8..8 + self.words).collect()]
    }

    /// Vectors of a block, from its first on, that hold what a unit needs beside its header: expressions of `part`.
    pub(crate) fn places(&self, part: &str) -> Vec<String> {
        let (header, each) = (4 / self.words, self.parts / 4);
        match self.format {
            BlockFormat::Q5K => vec![
                format!("{}u + {part}", header + 8 / self.words),
                format!("{header}u + {part} % {each}u"),
            ],
            _ => vec![format!("{header}u + {part}")],
        }
    }

    /// Statements that declare `scale{run}_{row}` and `bias{run}_{row}`, and the values of both halves, of the vectors
    /// `names` and the header `header`.
    pub(crate) fn decode(
        &self,
        row: u32,
        names: &[String],
        header: &str,
    ) -> (String, [Vec<String>; 2]) {
        let each = self.parts / 4;
        let q = format!("k{row}_");
        let mut text = format!(
            "let {q}t = part / {each}u;
            let {q}b = ({q}t & 1u) * 16u;
            let {q}x = {header}.y >> {q}b;
            let {q}y = {header}.z >> {q}b;
            let {q}z = {header}.w >> {q}b;
            let {q}s = select({q}x & 0x3f3fu, ({q}z & 0x0f0fu) | (({q}x >> 2u) & 0x3030u), {q}t > 1u);
            let {q}m = select({q}y & 0x3f3fu, (({q}z >> 4u) & 0x0f0fu) | (({q}y >> 2u) & 0x3030u), {q}t > 1u);
            let {q}d = half_of_bits({header}.x & 65535u);
            let {q}e = half_of_bits({header}.x >> 16u);
            "
        );
        for (run, shift) in [(0, 0), (1, 8)] {
            let six = |name: &str| exact(&format!("(({q}{name} >> {shift}u) & 63u)"), 0);
            let _ = write!(
                text,
                "let scale{run}_{row} = {q}d * {};
                let bias{run}_{row} = -({q}e * {});
                ",
                six("s"),
                six("m")
            );
        }
        let value = |index: u32, upper: u32| {
            let component = ["x", "y", "z", "w"][(index / 4) as usize];
            let shift = index % 4 * 8;
            let (word, shift) = (format!("{}.{component}", names[0]), shift + 4 * upper);
            match names.get(1) {
                None => exact_field(&word, shift, 15, 0),
                // Bit `2t` of a byte belongs to the lower half, the next to the upper one.
                Some(high) => {
                    let place = format!("{}u + 2u * {q}t", shift - 3 * upper);
                    let bit = format!("(({high}.{component} >> ({place})) & 1u) << 4u");
                    exact(&format!("(({word} >> {shift}u) & 15u) | ({bit})"), 0)
                }
            }
        };
        let halves =
            [0, 1].map(|upper| (0..4 * self.words).map(|index| value(index, upper)).collect());
        (text, halves)
    }
}

/// A unit as text.
pub(crate) struct Unit {
    /// Statements before the rest is used.
    pub(crate) text: String,
    /// The eight values before scale and minimum.
    pub(crate) values: Vec<String>,
    /// The scale.
    pub(crate) scale: String,
    /// What is added, in formats that have it.
    pub(crate) minimum: Option<String>,
}

/// Functions that the text of any unit of `format` may call.
pub(crate) fn functions(format: BlockFormat) -> String {
    let mut text = String::from(
        "fn byte_of(word: u32, at: u32) -> u32 { return (word >> ((at & 3u) * 8u)) & 255u; }
fn short_of(word: u32, at: u32) -> u32 { return (word >> ((at & 2u) * 8u)) & 65535u; }
fn half_of_bits(bits: u32) -> f32 {
    let exponent = (bits >> 10u) & 31u;
    let normal = bitcast<f32>(((exponent + 112u) << 23u) | ((bits & 1023u) << 13u));
    let magnitude = select(normal, f32(bits & 1023u) * 5.9604644775390625e-8, exponent == 0u);
    return select(magnitude, -magnitude, (bits & 32768u) != 0u);
}
fn half_of(word: u32, at: u32) -> f32 { return half_of_bits(short_of(word, at)); }
fn join(low: u32, high: u32, at: u32) -> u32 {
    let shift = (at & 3u) * 8u;
    return select((low >> shift) | (high << (32u - max(shift, 1u))), low, shift == 0u);
}
",
    );
    // Tables of sixteen bytes lie in four words.
    let table = |values: [u8; 16]| {
        let word = |at: usize| {
            u32::from_le_bytes([values[at], values[at + 1], values[at + 2], values[at + 3]])
        };
        format!(
            "fn entry(index: u32) -> f32 {{
    let low = select({}u, {}u, (index & 4u) != 0u);
    let high = select({}u, {}u, (index & 4u) != 0u);
    return f32(byte_of(select(low, high, (index & 8u) != 0u), index));
}}
",
            word(0),
            word(4),
            word(8),
            word(12)
        )
    };
    if let Some((values, _)) = format.table() {
        text.push_str(&table(values));
    }
    if format == BlockFormat::Tq1_0 {
        text.push_str(
            "fn power_of_three(n: u32) -> u32 {
    return select(select(1u, 3u, n == 1u), select(select(9u, 27u, n == 3u), 81u, n == 4u), n >= 2u);
}
",
        );
    }
    if format == BlockFormat::Nvfp4 {
        text.push_str(
            "fn half_of_e4m3(byte: u32) -> f32 {
    let exponent = (byte >> 3u) & 15u;
    let mantissa = f32(byte & 7u);
    let normal = (1.0 + mantissa * 0.125) * bitcast<f32>((exponent + 119u) << 23u);
    let value = select(normal, mantissa * 0.0009765625, exponent == 0u);
    return select(value, 0.0, byte == 0u || byte == 127u);
}
",
        );
    }
    text
}

/// Statements that read bytes `first .. first + 8` into two words, shifted right by `shift`.
fn eight_bytes(block: &Block<'_>, name: &str, first: &str, shift: &str) -> String {
    let (low, high) = (block.word(first), block.word(&format!("{first} + 4u")));
    format!("let {name}a = {low} >> ({shift});\nlet {name}b = {high} >> ({shift});\n")
}

/// Code `index` of eight, each in a byte of the words `{name}a` and `{name}b`.
fn code(name: &str, index: u32, mask: u32) -> String {
    let (word, shift) = if index < 4 { ("a", 8 * index) } else { ("b", 8 * (index - 4)) };
    format!("(({name}{word} >> {shift}u) & {mask}u)")
}

fn codes(name: &str, mask: u32) -> Vec<String> {
    (0..UNIT).map(|index| code(name, index, mask)).collect()
}

fn less(codes: Vec<String>, offset: u32) -> Vec<String> {
    codes.into_iter().map(|code| exact(&code, offset)).collect()
}

fn floats(codes: Vec<String>) -> Vec<String> {
    less(codes, 0)
}

/// Codes of a format with a table of sixteen values.
fn looked_up(format: BlockFormat, codes: Vec<String>) -> Vec<String> {
    let zero = format.table().map_or(0, |(_, zero)| u32::from(zero));
    codes.into_iter().map(|code| format!("(entry({code}) - {zero}.0)")).collect()
}

/// The text that reads unit `part` of the block at byte `at` of a plane. `name` begins the names of what it declares.
pub(crate) fn unit(
    format: BlockFormat,
    name: &str,
    at: &str,
    load: &dyn Fn(&str) -> String,
) -> Unit {
    use BlockFormat as F;
    let block = Block { at, aligned: format.bytes().is_multiple_of(4), load };
    match format {
        F::Q4_0 | F::Q4_1 | F::Q5_0 | F::Q5_1 | F::Q8_0 | F::Iq4Nl | F::Mxfp4 | F::Nvfp4 => {
            legacy::unit(format, &block, name)
        }
        F::Q2K => k_quants::q2_k(&block, name),
        F::Q3K => k_quants::q3_k(&block, name),
        F::Q4K | F::Q5K => k_quants::q4_k_or_q5_k(format, &block, name),
        F::Q6K => k_quants::q6_k(&block, name),
        F::Tq1_0 => ternary::tq1_0(&block, name),
        F::Tq2_0 => ternary::tq2_0(&block, name),
        F::Iq4Xs => codebooks::iq4_xs(&block, name),
        F::Iq2Xxs | F::Iq2Xs | F::Iq2S | F::Iq3Xxs | F::Iq3S => {
            codebooks::signed(format, &block, name)
        }
        F::Iq1S | F::Iq1M => codebooks::shifted(format, &block, name),
    }
}

/// Two bits of each value: bits `2j` and `2j + 1` of byte `32n + m` belong to value `128n + 32j + m`.
fn pairs(block: &Block<'_>, name: &str, first: u32) -> String {
    let bytes = format!("({first}u + (part >> 4u) * 32u + (part & 3u) * 8u)");
    eight_bytes(block, name, &bytes, "((part >> 2u) & 3u) * 2u")
}
