//! Units of block formats: the text that reads eight consecutive values of a block.
//!
//! The fields are those of `kernels::blocks`, which is the reference. A unit lies within one group, so it has one scale
//! and, in some formats, one minimum: `value * scale + minimum`. Blocks begin at any byte, so words are joined where a
//! format's size is no multiple of four.

use std::fmt::Write as _;

use kernels::format::BlockFormat;

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

/// The field of a word at bit `shift` as a float, exactly. Where it fits into a float's mantissa it stays where it is,
/// below a power of two whose last bits it then counts.
pub(crate) fn exact_field(word: &str, shift: u32, mask: u32) -> String {
    match shift + mask.count_ones() {
        ..=23 => format!(
            "(bitcast<f32>(({word} & {}u) | {}u) - {}.0)",
            mask << shift,
            (150 - shift) << 23,
            1u32 << (23 - shift)
        ),
        _ => exact_field(&format!("({word} >> 16u)"), shift - 16, mask),
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
                None => exact_field(&word, shift, 15),
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

fn looked_up(codes: Vec<String>, zero: u32) -> Vec<String> {
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
    let offset = |what: &str| format!("{name}{what}");
    let zero = format.table().map_or(0, |(_, zero)| u32::from(zero));
    let mut text = String::new();
    // Sixteen bytes of nibbles: value `j` below and value `j + 16` above.
    let nibbles = |first: &str| {
        eight_bytes(
            &block,
            name,
            &format!("({first} + (part & 1u) * 8u)"),
            "((part >> 1u) & 1u) * 4u",
        )
    };
    // Bits `2j` and `2j + 1` of byte `32n + m` belong to value `128n + 32j + m`.
    let pairs = |first: u32, name: &str| {
        let bytes = format!("({first}u + (part >> 4u) * 32u + (part & 3u) * 8u)");
        eight_bytes(&block, name, &bytes, "((part >> 2u) & 3u) * 2u")
    };
    // The low nibble of byte `32c + m` belongs to value `64c + m`, the high one to value `64c + 32 + m`.
    let halves = |first: u32| {
        let bytes = format!("({first}u + (part >> 3u) * 32u + (part & 3u) * 8u)");
        eight_bytes(&block, name, &bytes, "((part >> 2u) & 1u) * 4u")
    };
    // Bit `j` of byte `m` belongs to value `32j + m`.
    let bits = |first: u32, name: &str| {
        eight_bytes(&block, name, &format!("({first}u + (part & 3u) * 8u)"), "part >> 2u")
    };
    let (values, scale, minimum);
    match format {
        F::Q4_0 | F::Iq4Nl | F::Mxfp4 => {
            text.push_str(&nibbles(if format == F::Mxfp4 { "1u" } else { "2u" }));
            let codes = codes(name, 15);
            values = match format.table() {
                Some(_) => looked_up(codes, zero),
                None => less(codes, 8),
            };
            scale = if format == F::Mxfp4 {
                let _ = writeln!(text, "let {name}e = {};", block.byte("0u"));
                let (small, large) =
                    (format!("2097152u << {name}e"), format!("({name}e - 1u) << 23u"));
                format!("bitcast<f32>(select({large}, {small}, {name}e < 2u))")
            } else {
                block.half("0u")
            };
            minimum = None;
        }
        F::Q5_0 => {
            text.push_str(&nibbles("6u"));
            let _ = writeln!(text, "let {name}h = {} >> (part * 8u);", block.word("2u"));
            values = less(fifth(name, codes(name, 15)), 16);
            (scale, minimum) = (block.half("0u"), None);
        }
        F::Q4_1 => {
            text.push_str(&nibbles("4u"));
            values = floats(codes(name, 15));
            (scale, minimum) = (block.half("0u"), Some(block.half("2u")));
        }
        F::Q5_1 => {
            text.push_str(&nibbles("8u"));
            let _ = writeln!(text, "let {name}h = {} >> (part * 8u);", block.word("4u"));
            values = floats(fifth(name, codes(name, 15)));
            (scale, minimum) = (block.half("0u"), Some(block.half("2u")));
        }
        F::Q8_0 => {
            text.push_str(&eight_bytes(&block, name, "(2u + part * 8u)", "0u"));
            values = codes(name, 255)
                .into_iter()
                .map(|code| exact(&format!("({code} ^ 128u)"), 128))
                .collect();
            (scale, minimum) = (block.half("0u"), None);
        }
        F::Q2K => {
            text.push_str(&pairs(16, name));
            let _ = writeln!(text, "let {name}s = {};", block.byte("(part >> 1u)"));
            values = floats(codes(name, 3));
            scale = format!("{} * f32({name}s & 15u)", block.half("80u"));
            minimum = Some(format!("-({} * f32({name}s >> 4u))", block.half("82u")));
        }
        F::Q3K => {
            text.push_str(&pairs(32, name));
            let high = offset("h");
            text.push_str(&bits(0, &high));
            let codes = codes(name, 3).into_iter().zip(codes(&high, 1));
            values =
                less(codes.map(|(low, high)| format!("({low} | ({high} << 2u))")).collect(), 4);
            let (low, high) = (
                block.byte("(96u + ((part >> 1u) & 7u))"),
                block.byte("(104u + ((part >> 1u) & 3u))"),
            );
            let _ = writeln!(text, "let {name}l = ({low} >> ((part >> 4u) * 4u)) & 15u;");
            let _ = writeln!(text, "let {name}t = ({high} >> ((part >> 3u) * 2u)) & 3u;");
            scale = format!("{} * (f32({name}l | ({name}t << 4u)) - 32.0)", block.half("108u"));
            minimum = None;
        }
        F::Q4K | F::Q5K => {
            text.push_str(&halves(if format == F::Q4K { 16 } else { 48 }));
            let low = codes(name, 15);
            values = if format == F::Q4K {
                floats(low)
            } else {
                let high = offset("h");
                text.push_str(&bits(16, &high));
                let codes = low.into_iter().zip(codes(&high, 1));
                floats(codes.map(|(low, high)| format!("({low} | ({high} << 4u))")).collect())
            };
            // Eight scales and minima of six bits in twelve bytes.
            for (word, at) in [("x", 4), ("y", 8), ("z", 12)] {
                let small = block.word(&format!("{at}u"));
                let _ = writeln!(text, "let {name}{word} = {small} >> (((part >> 2u) & 3u) * 8u);");
            }
            let upper = "part >= 16u";
            let joined = |nibble: &str, pair: &str| {
                format!("(({nibble}) & 15u) | ((({name}{pair} >> 6u) & 3u) << 4u)")
            };
            let (s, m) = (joined(&format!("{name}z"), "x"), joined(&format!("{name}z >> 4u"), "y"));
            scale = format!("{} * f32(select({name}x & 63u, {s}, {upper}))", block.half("0u"));
            minimum =
                Some(format!("-({} * f32(select({name}y & 63u, {m}, {upper})))", block.half("2u")));
        }
        F::Q6K => {
            text.push_str(&eight_bytes(
                &block,
                name,
                "((part >> 4u) * 64u + (part & 7u) * 8u)",
                "((part >> 3u) & 1u) * 4u",
            ));
            let high = offset("h");
            text.push_str(&pairs(128, &high));
            let codes = codes(name, 15).into_iter().zip(codes(&high, 3));
            values =
                less(codes.map(|(low, high)| format!("({low} | ({high} << 4u))")).collect(), 32);
            let small = format!("(f32({} ^ 128u) - 128.0)", block.byte("(192u + (part >> 1u))"));
            (scale, minimum) = (format!("{} * {small}", block.half("208u")), None);
        }
        F::Iq4Xs => {
            let bytes = "(8u + (part >> 2u) * 16u + (part & 1u) * 8u)";
            text.push_str(&eight_bytes(&block, name, bytes, "((part >> 1u) & 1u) * 4u"));
            values = looked_up(codes(name, 15), zero);
            let (low, high) = (block.byte("(4u + (part >> 3u))"), block.short("2u"));
            let _ = writeln!(text, "let {name}l = ({low} >> (((part >> 2u) & 1u) * 4u)) & 15u;");
            let _ = writeln!(text, "let {name}t = ({high} >> ((part >> 2u) * 2u)) & 3u;");
            scale = format!("{} * (f32({name}l | ({name}t << 4u)) - 32.0)", block.half("0u"));
            minimum = None;
        }
        F::Nvfp4 => {
            text.push_str(&eight_bytes(
                &block,
                name,
                "(4u + (part >> 1u) * 8u)",
                "(part & 1u) * 4u",
            ));
            values = looked_up(codes(name, 15), zero);
            (scale, minimum) = (format!("half_of_e4m3({})", block.byte("(part >> 1u)")), None);
        }
        F::Tq2_0 => {
            text.push_str(&pairs(0, name));
            values = less(codes(name, 3), 1);
            (scale, minimum) = (block.half("64u"), None);
        }
        F::Tq1_0 => {
            text.push_str(&ternary(&block, name));
            values = (0..UNIT)
                .map(|index| {
                    let power = if index < 4 { "p" } else { "q" };
                    let digit =
                        format!("(({} * {name}{power}) & 255u) * 3u", code(name, index, 255));
                    format!("(f32(({digit}) >> 8u) - 1.0)")
                })
                .collect();
            (scale, minimum) = (block.half("52u"), None);
        }
        F::Iq2Xxs | F::Iq2Xs | F::Iq2S | F::Iq3Xxs | F::Iq3S => {
            let of = grid_unit(format, &block, name);
            text.push_str(&of.0);
            values = (0..UNIT)
                .map(|index| {
                    let sign = format!("select(1.0, -1.0, (({name}g >> {index}u) & 1u) != 0u)");
                    format!("(f32({}) * {sign})", code(name, index, 255))
                })
                .collect();
            (scale, minimum) = (of.1, None);
        }
        F::Iq1S | F::Iq1M => {
            let of = grid_unit(format, &block, name);
            text.push_str(&of.0);
            // Eight times the levels -1, 0 and 1, less or more one.
            values = codes(name, 255)
                .into_iter()
                .map(|code| format!("(f32({code}) * 8.0 - 8.0 + {name}d)"))
                .collect();
            (scale, minimum) = (of.1, None);
        }
    }
    Unit { text, values, scale, minimum }
}

/// Adds bit `i` of `{name}h` to code `i` as its fifth.
fn fifth(name: &str, codes: Vec<String>) -> Vec<String> {
    let codes = codes.into_iter().enumerate();
    codes.map(|(i, code)| format!("({code} | ((({name}h >> {i}u) & 1u) << 4u))")).collect()
}

/// Bytes of ternary digits and the powers of three that bring the wanted ones to the top.
fn ternary(block: &Block<'_>, name: &str) -> String {
    let first =
        "select(select(48u, 32u + (part & 1u) * 8u, part < 30u), (part & 3u) * 8u, part < 20u)";
    let mut text = format!(
        "let {name}n = select(select((part - 30u) * 2u, (part - 20u) >> 1u, part < 30u), part >> 2u, part < 20u);
"
    );
    // The last four bytes hold a digit for each of the first four values and another for the next four.
    let (low, high) =
        (block.word(first), block.word(&format!("({first} + select(4u, 0u, part >= 30u))")));
    let _ = write!(
        text,
        "let {name}a = {low};
let {name}b = {high};
let {name}m = {name}n + select(0u, 1u, part >= 30u);
let {name}p = power_of_three({name}n);
let {name}q = power_of_three({name}m);
"
    );
    text
}

/// Statements that leave a point's coordinates in `{name}a` and `{name}b`, signs in `{name}g` or a shift in `{name}d`;
/// and the scale.
fn grid_unit(format: BlockFormat, block: &Block<'_>, name: &str) -> (String, String) {
    use BlockFormat as F;
    let mut text = String::new();
    let whole = |text: &mut String, index: &str| {
        let _ = writeln!(text, "let {name}i = ({index}) * 2u;");
        let _ = writeln!(text, "let {name}a = grid[{name}i];\nlet {name}b = grid[{name}i + 1u];");
    };
    let even = |text: &mut String, bits: &str| {
        let _ = writeln!(text, "let {name}v = ({bits}) & 127u;");
        let _ = writeln!(text, "let {name}g = {name}v | ((countOneBits({name}v) & 1u) << 7u);");
    };
    let quarter = |text: &mut String, at: u32| {
        let small = block.byte(&format!("({at}u + (part >> 2u))"));
        let _ = writeln!(text, "let {name}s = ({small} >> (((part >> 1u) & 1u) * 4u)) & 15u;");
        format!("{} * (0.5 + f32({name}s)) * 0.25", block.half("0u"))
    };
    let scale = match format {
        F::Iq2Xxs => {
            whole(&mut text, &block.byte("(2u + (part >> 2u) * 8u + (part & 3u))"));
            let _ = writeln!(text, "let {name}w = {};", block.word("(6u + (part >> 2u) * 8u)"));
            even(&mut text, &format!("{name}w >> ((part & 3u) * 7u)"));
            format!("{} * (0.5 + f32({name}w >> 28u)) * 0.25", block.half("0u"))
        }
        F::Iq2Xs => {
            let _ = writeln!(text, "let {name}w = {};", block.short("(2u + part * 2u)"));
            whole(&mut text, &format!("{name}w & 511u"));
            even(&mut text, &format!("{name}w >> 9u"));
            quarter(&mut text, 66)
        }
        F::Iq2S => {
            let high = block.byte("(66u + (part >> 2u))");
            let high = format!("((({high} >> ((part & 3u) * 2u)) & 3u) << 8u)");
            whole(&mut text, &format!("{} | {high}", block.byte("(2u + part)")));
            let _ = writeln!(text, "let {name}g = {};", block.byte("(34u + part)"));
            quarter(&mut text, 74)
        }
        F::Iq3Xxs => {
            let _ = writeln!(text, "let {name}i = {};", block.short("(2u + part * 2u)"));
            let _ = writeln!(text, "let {name}a = grid[{name}i & 255u];");
            let _ = writeln!(text, "let {name}b = grid[{name}i >> 8u];");
            let _ = writeln!(text, "let {name}w = {};", block.word("(66u + (part >> 2u) * 4u)"));
            even(&mut text, &format!("{name}w >> ((part & 3u) * 7u)"));
            format!("{} * (0.5 + f32({name}w >> 28u)) * 0.5", block.half("0u"))
        }
        F::Iq3S => {
            let _ = writeln!(text, "let {name}i = {};", block.short("(2u + part * 2u)"));
            let high = block.byte("(66u + (part >> 2u))");
            let _ = writeln!(text, "let {name}t = {high} >> ((part & 3u) * 2u);");
            let _ =
                writeln!(text, "let {name}a = grid[({name}i & 255u) | (({name}t & 1u) << 8u)];");
            let _ = writeln!(text, "let {name}b = grid[({name}i >> 8u) | (({name}t & 2u) << 7u)];");
            let _ = writeln!(text, "let {name}g = {};", block.byte("(74u + part)"));
            let small = block.byte("(106u + (part >> 3u))");
            let _ = writeln!(text, "let {name}s = ({small} >> (((part >> 2u) & 1u) * 4u)) & 15u;");
            format!("{} * f32(1u + 2u * {name}s)", block.half("0u"))
        }
        F::Iq1S => {
            let _ = writeln!(text, "let {name}w = {};", block.short("(34u + (part >> 2u) * 2u)"));
            let high = format!("((({name}w >> ((part & 3u) * 3u)) & 7u) << 8u)");
            whole(&mut text, &format!("{} | {high}", block.byte("(2u + part)")));
            let _ = writeln!(text, "let {name}d = select(1.0, -1.0, ({name}w & 32768u) != 0u);");
            format!("{} * f32(2u * (({name}w >> 12u) & 7u) + 1u) * 0.125", block.half("0u"))
        }
        _ => {
            let nibble = block.byte("(32u + (part >> 1u))");
            let _ = writeln!(text, "let {name}w = ({nibble} >> ((part & 1u) * 4u)) & 15u;");
            let high = format!("(({name}w & 7u) << 8u)");
            whole(&mut text, &format!("{} | {high}", block.byte("part")));
            let _ = writeln!(text, "let {name}d = select(1.0, -1.0, ({name}w & 8u) != 0u);");
            let _ = writeln!(text, "let {name}x = {};", block.word("48u"));
            let _ = writeln!(text, "let {name}y = {};", block.word("52u"));
            let small = block.short("(48u + (part >> 3u) * 2u)");
            let _ = writeln!(text, "let {name}s = ({small} >> (((part >> 1u) & 3u) * 3u)) & 7u;");
            // The scale lies in the highest nibbles of four words of 16 bits.
            let low = format!("(({name}x >> 12u) & 15u) | (({name}x >> 24u) & 240u)");
            let bits = format!("{low} | (({name}y >> 4u) & 3840u) | (({name}y >> 16u) & 61440u)");
            format!("half_of_bits({bits}) * f32(2u * {name}s + 1u) * 0.125")
        }
    };
    (text, scale)
}
