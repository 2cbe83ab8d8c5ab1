//! What a tile by matrices ([`super::tile`]) unpacks: 32 columns of 128 rows at a time, as one f16 where that is exact,
//! else as two.
//!
//! Affine weights of 4 bits with scales of bf16 are `(q - 8) * scale`, which has 11 bits and so is one f16, plus
//! `bias + 8 * scale`, which is the same for a group: that part is multiplied by the sums of the group's columns
//! ([`super::halves`]) at the end. Symmetric integers with such scales are the former alone. Q4_K parts likewise, with
//! its scale in two. Other packings are unpacked to f32 first.

use std::cell::RefCell;
use std::fmt::Write as _;

use kernels::format::{BlockFormat, ScaleType};

use super::blocks;
use super::halves::{SUM_COLUMNS, SUM_SCALE, WEIGHT_SCALE};
use super::packing::{Float, Packing};

/// Rows of a tile.
pub(super) const ROWS: u32 = 128;
/// Columns that are in workgroup memory at once.
pub(super) const DEPTH: u32 = 32;
/// The step from a row in workgroup memory to the next, in vectors of four: a multiple of 16 bytes whose multiples fall
/// into different banks.
pub(super) const STEP: u32 = DEPTH / 4 + 2;

/// Reads a word of weights, scales or biases, or a vector of words of weights: plane and index.
pub(super) type Load<'a> = &'a dyn Fn(u32, &str) -> String;

/// Where the text of a load may depend on what a workgroup computes: gives that text for each of its cases.
pub(super) type Cases<'a> = &'a dyn Fn(&dyn Fn(Load<'_>) -> String) -> String;

/// How weights become numbers of f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// 4 bits and scales of bf16, with biases for the end or none and no zero points: one f16.
    Centred,
    /// Q4_K: two, and minima for the end.
    Blocks,
    /// Through f32.
    Plain,
}

/// The weights of a tile: their packing, statements that declare `row` for the tile's row `r`, and the cases of loads.
pub(super) struct Weights<'a> {
    pub(super) packing: Packing,
    pub(super) row: &'a str,
    pub(super) cases: Cases<'a>,
}

/// What is read at once, for one depth or two.
pub(super) struct Fetch {
    /// Names of what is read, and its types.
    pub(super) names: Vec<(String, &'static str)>,
    /// Statements that read the columns from `k` on.
    pub(super) loads: String,
    /// For each depth statements that put its values into `right` from `to` on, and the part of them that is below into
    /// `right` from `to + ROWS * STEP` on.
    pub(super) unpacks: Vec<String>,
    /// The columns, less the first of those that are read at once, of the four values that are vector `q` of a row in
    /// workgroup memory, for each depth.
    pub(super) columns: Vec<String>,
}

impl Fetch {
    /// For two depths: in a row every other vector of four is `odd` columns further on, and in the second depth each is
    /// `far` further on.
    fn of_two(
        names: Vec<(String, &'static str)>,
        place: &str,
        loads: &str,
        unpack: &dyn Fn(usize) -> String,
        [odd, far]: [usize; 2],
    ) -> Self {
        let columns =
            |depth: usize| format!("(q & 1u) * {odd}u + (q >> 1u) * 4u + {}u", far * depth);
        Self {
            names,
            loads: format!("{{\n{place}{loads}}}\n"),
            unpacks: (0..2).map(unpack).collect(),
            columns: (0..2).map(columns).collect(),
        }
    }
}

/// What is read once, by name: plane and index.
struct Names {
    prefix: &'static str,
    held: RefCell<Vec<(u32, String)>>,
}

impl Names {
    fn new(prefix: &'static str) -> Self {
        Self { prefix, held: RefCell::default() }
    }

    /// The name of what is read there.
    fn of(&self, plane: u32, index: &str) -> String {
        let (mut held, read) = (self.held.borrow_mut(), (plane, index.to_owned()));
        let known = held.iter().position(|it| *it == read);
        let at = known.unwrap_or_else(|| {
            held.push(read);
            held.len() - 1
        });
        format!("{}_{at}", self.prefix)
    }

    /// Names and their types, and statements that read. Plane 0 is of `kind`.
    fn read(&self, cases: Cases<'_>, kind: &'static str) -> (Vec<(String, &'static str)>, String) {
        let (held, prefix) = (self.held.borrow(), self.prefix);
        let kind = |plane: u32| if plane == 0 { kind } else { "u32" };
        let variables = held.iter().enumerate();
        let variables =
            variables.map(|(at, (plane, _))| (format!("{prefix}_{at}"), kind(*plane))).collect();
        let loads = (cases)(&|load| {
            let reads = held.iter().enumerate();
            reads
                .map(|(at, (plane, index))| format!("{prefix}_{at} = {};\n", load(*plane, index)))
                .collect()
        });
        (variables, loads)
    }
}

fn kind(packing: Packing) -> Kind {
    match packing {
        Packing::Affine { bits: 4, scale: Float::Bf16, .. }
        | Packing::Integer { bits: 4, scale: Float::Bf16, zeros: false, .. } => Kind::Centred,
        Packing::Block(BlockFormat::Q4K) => Kind::Blocks,
        _ => Kind::Plain,
    }
}

/// Numbers of f16 that a weight becomes.
pub(super) fn parts(packing: Packing) -> u32 {
    match packing {
        Packing::Float(Float::F16 | Float::Bf16)
        | Packing::Block(BlockFormat::Mxfp4)
        | Packing::Fp8 { scale: ScaleType::E8m0, .. }
        | Packing::Mxfp4 => 1,
        _ if kind(packing) == Kind::Centred => 1,
        _ => 2,
    }
}

/// Words that plane 0 is read by.
pub(super) fn together(packing: Packing) -> u32 {
    if kind(packing) == Kind::Plain { 1 } else { 4 }
}

/// True where sums of columns are multiplied at the end.
pub(super) fn ends(packing: Packing) -> bool {
    match kind(packing) {
        Kind::Centred => packing.is_biased(),
        Kind::Blocks => true,
        Kind::Plain => false,
    }
}

/// Where the row and the half of an invocation are, which unpacks 16 values.
fn own(row: &str) -> String {
    format!("let r = lid >> 1u;\nlet odd = lid & 1u;\n{row}\n")
}

/// Four fields of 4 bits, less 8 and times the scale: each of `words` has a field at bit `shift` and one at bit 16;
/// then the names of the scale and of its negative products with both offsets.
fn four(words: [&str; 2], shift: u32, [scale, low, high]: [&str; 3]) -> String {
    let field = |word: &str, shift: u32, offset: &str| {
        let (mask, power) = (15u32 << shift, (150 - shift) << 23);
        format!("fma(bitcast<f32>(({word} & {mask}u) | {power}u), {scale}, {offset})")
    };
    let [a, b] = words;
    let fields =
        [field(a, shift, low), field(a, 16, high), field(b, shift, low), field(b, 16, high)];
    format!("vec4<f32>({})", fields.join(", "))
}

/// What is too much in a field at bit `shift` below a power of two: that power, and 8.
fn offset(shift: u32) -> u32 {
    (1 << (23 - shift)) + 8
}

/// Statements that declare the scale and the minimum of part `t` of a block of Q4_K, unscaled, with `header` its first
/// vector.
fn scales(header: &str, t: &str, name: &str) -> String {
    let six = |bits: &str| blocks::exact(bits, 0);
    let early = format!("{t} < 4u");
    let scale =
        six(&format!("select(({name}w & 15u) | (({name}y >> 2u) & 48u), {name}y & 63u, {early})"));
    let least = six(&format!(
        "select((({name}w >> 4u) & 15u) | (({name}z >> 2u) & 48u), {name}z & 63u, {early})"
    ));
    format!(
        "let {name}y = {header}.y >> (({t} & 3u) * 8u);
        let {name}z = {header}.z >> (({t} & 3u) * 8u);
        let {name}w = {header}.w >> (({t} & 3u) * 8u);
        let {name}scale = half_of_bits({header}.x & 65535u) * {scale};
        let {name}least = half_of_bits({header}.x >> 16u) * {least};
        "
    )
}

impl Weights<'_> {
    /// What an invocation reads of the columns from `k` on, and how it unpacks that.
    pub(super) fn fetch(&self) -> Fetch {
        match kind(self.packing) {
            Kind::Centred => self.centred(),
            Kind::Blocks => self.blocks(),
            Kind::Plain => self.plain(),
        }
    }

    /// An invocation has 32 values of a row, a half for each depth. It writes every other vector of four, so that 16
    /// invocations write to different banks.
    fn centred(&self) -> Fetch {
        let (_, shift) = self.packing.number();
        let names = Names::new("far");
        let place = format!(
            "{}let column = k + odd * {DEPTH}u;
            let g = row * p.row_groups + min(column / {}u, p.row_groups - 1u);
            ",
            own(self.row),
            self.packing.group()
        );
        let vectors = "(p.row_words >> 2u)";
        let inside = format!("min(column / {DEPTH}u, {vectors} - 1u)");
        let words = names.of(0, &format!("row * {vectors} + {inside}"));
        let scale = names.of(1, &format!("(g >> {shift}u)"));
        let (variables, loads) = names.read(self.cases, "vec4<u32>");
        let unpack = |depth: usize| {
            let mut text = format!(
                "{place}let at = to + r * {STEP}u + odd;
                let s = select(0.0, number({scale}, g) * {WEIGHT_SCALE}, column < p.columns);
                let low = s * -{}.0;
                let high = s * -{}.0;
                ",
                offset(12),
                offset(16)
            );
            for (index, part) in ["x", "y", "z", "w"][2 * depth..2 * depth + 2].iter().enumerate() {
                for (half, [early, late]) in
                    [["<< 12u", "<< 4u"], [">> 4u", ">> 12u"]].iter().enumerate()
                {
                    let quad = 2 * index + half;
                    let name = |which: &str| format!("{which}{quad}");
                    let _ = write!(
                        text,
                        "let {} = {words}.{part} {early};
                        let {} = {words}.{part} {late};
                        ",
                        name("early"),
                        name("late")
                    );
                    let values = four([&name("early"), &name("late")], 12, ["s", "low", "high"]);
                    let _ = writeln!(text, "right[at + {}u] = vec4<f16>({values});", 2 * quad);
                }
            }
            braced(&text)
        };
        Fetch::of_two(variables, &place, &loads, &unpack, [32, 16])
    }

    /// An invocation has sixteen bytes, whose lower halves are of one depth and whose upper halves are of the next.
    fn blocks(&self) -> Fetch {
        let names = Names::new("far");
        let place = format!(
            "{}let first = row * (p.row_words >> 4u) + (k >> 8u) * 9u;
            let pair = (k >> 6u) & 3u;
            ",
            own(self.row)
        );
        let header = names.of(0, "first");
        let words = names.of(0, "first + 1u + pair * 2u + odd");
        let (variables, loads) = names.read(self.cases, "vec4<u32>");
        let unpack = |depth: usize| {
            let mut text = format!(
                "{place}let at = to + r * {STEP}u + odd;
                let t = pair * 2u + {depth}u;
                {}let s = {WEIGHT_SCALE} * n_scale;
                // Of both parts the products with offsets are exact.
                let s0 = bitcast<f32>(bitcast<u32>(s) & 0xffff0000u);
                let s1 = s - s0;
                let own = {words} >> vec4<u32>({}u);
                let early = own << vec4<u32>(8u);
                let late = own >> vec4<u32>(8u);
                ",
                scales(&header, "t", "n_"),
                4 * depth
            );
            for part in 0..2 {
                let _ = writeln!(text, "let low{part} = s{part} * -{}.0;", offset(8));
                let _ = writeln!(text, "let high{part} = s{part} * -{}.0;", offset(16));
            }
            for (index, component) in ["x", "y", "z", "w"].into_iter().enumerate() {
                let words = [&*format!("early.{component}"), &*format!("late.{component}")];
                for part in 0..2 {
                    let scale = [format!("s{part}"), format!("low{part}"), format!("high{part}")];
                    let values = four(words, 8, scale.each_ref().map(String::as_str));
                    let to = 2 * index as u32 + part * ROWS * STEP;
                    let _ = writeln!(text, "right[at + {to}u] = vec4<f16>({values});");
                }
            }
            braced(&text)
        };
        Fetch::of_two(variables, &place, &loads, &unpack, [16, 32])
    }

    /// Units of weights that an invocation unpacks for each depth; of the last, only the first invocations.
    fn units(&self) -> (u32, u32) {
        let values = self.packing.unit().max(4);
        let units = ROWS * DEPTH / values;
        (units.div_ceil(256), units)
    }

    fn plain(&self) -> Fetch {
        let values = self.packing.unit().max(4);
        let each = DEPTH / values;
        let (mut variables, mut loads, mut unpack_all) = (Vec::new(), String::new(), String::new());
        let (count, units) = self.units();
        for number in 0..count {
            let names = Names::new(["far0", "far1", "far2", "far3"][number as usize]);
            let (places, unpack, found) =
                unpacked(self.packing, &|plane, index| names.of(plane, index));
            let (declared, read) = names.read(self.cases, "u32");
            // Of the last unit the invocations behind the tile read the tile's last.
            let place = format!(
                "let i = min(lid + {}u, {}u);
                let r = i / {each}u;
                let inside = i % {each}u;
                let unit = k / {values}u + inside;
                {}
                {places}",
                number * 256,
                units - 1,
                self.row,
            );
            variables.extend(declared);
            let _ = writeln!(loads, "{{\n{place}{read}}}");
            let quads = found.len() / 4;
            let mut text =
                format!("{place}{unpack}let at = to + r * {STEP}u + inside * {quads}u;\n");
            for (quad, four) in found.as_chunks::<4>().0.iter().enumerate() {
                let four = four.join(", ");
                let _ = writeln!(text, "let f{quad} = vec4<f32>({four}) * {WEIGHT_SCALE};");
                match parts(self.packing) {
                    1 => {
                        let _ = writeln!(text, "right[at + {quad}u] = vec4<f16>(f{quad});");
                    }
                    _ => text.push_str(&in_two(&format!("f{quad}"), quad as u32)),
                }
            }
            unpack_all.push_str(&braced(&text));
        }
        Fetch {
            names: variables,
            loads,
            unpacks: vec![unpack_all],
            columns: vec!["q * 4u".to_owned()],
        }
    }

    /// What is multiplied by the sums of columns: statements that put those of sums `sum .. sum + 32` into `right`, in
    /// two parts.
    pub(super) fn end(&self) -> String {
        let mut text = format!(
            "{}let at = r * {STEP}u + odd * 4u;
            let first = sum + odd * 16u;
            ",
            own(self.row)
        );
        let factor = format!("({WEIGHT_SCALE} / {SUM_SCALE})");
        let mut values = Vec::new();
        let names = Names::new("last");
        let mut after = String::new();
        if kind(self.packing) == Kind::Centred {
            let (_, shift) = self.packing.number();
            // A group is several sums, or a sum is a group.
            let same = self.packing.group() / SUM_COLUMNS;
            for sum in 0..16 {
                let group = sum / same;
                if sum % same == 0 {
                    let inside = format!("min((first / {same}u) + {group}u, p.row_groups - 1u)");
                    let _ = writeln!(text, "let g{group} = row * p.row_groups + {inside};");
                    let index = format!("(g{group} >> {shift}u)");
                    let (scale, bias) = (names.of(1, &index), names.of(2, &index));
                    let _ = writeln!(
                        after,
                        "let v{group} = fma(number({scale}, g{group}), 8.0, number({bias}, g{group})) * {factor};"
                    );
                }
                values.push(format!("v{group}"));
            }
        } else {
            for block in 0..2 {
                let _ = writeln!(
                    text,
                    "let b{block} = row * (p.row_words >> 4u)
                        + min((first >> 3u) + {block}u, (p.columns >> 8u) - 1u) * 9u;"
                );
                let header = names.of(0, &format!("b{block}"));
                for t in 0..8 {
                    let name = format!("n{block}_{t}_");
                    after.push_str(&scales(&header, &format!("{t}u"), &name));
                    let _ = writeln!(
                        after,
                        "let v{} = fma({name}scale, 8.0, -{name}least) * {factor};",
                        8 * block + t
                    );
                    values.push(format!("v{}", 8 * block + t));
                }
            }
        }
        let (variables, loads) = names.read(self.cases, "vec4<u32>");
        for (name, kind) in variables {
            let _ = writeln!(text, "var {name}: {kind};");
        }
        let _ = write!(text, "{loads}{after}");
        for (quad, four) in values.as_chunks::<4>().0.iter().enumerate() {
            let each = four.iter().enumerate().map(|(at, value)| {
                let sum = 4 * quad + at;
                format!("select(0.0, {value}, (first + {sum}u) * {SUM_COLUMNS}u < p.columns)")
            });
            let four = each.collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "let f{quad} = vec4<f32>({four});");
            text.push_str(&in_two(&format!("f{quad}"), quad as u32));
        }
        braced(&text)
    }
}

fn braced(text: &str) -> String {
    format!("{{\n{text}}}\n")
}

/// Statements that put four values into `right` at `at + quad`, in two parts as [`super::halves`] parts them.
fn in_two(four: &str, quad: u32) -> String {
    format!(
        "let h{quad} = bitcast<vec4<f32>>(bitcast<vec4<u32>>({four}) & vec4<u32>(0xffffe000u));
        right[at + {quad}u] = vec4<f16>(h{quad});
        right[at + {}u] = vec4<f16>({four} - h{quad});
        ",
        quad + ROWS * STEP
    )
}

/// Statements that say where four or more values of row `row` from unit `unit` on are, those that unpack them, and the
/// values. `load` reads a word of weights, scales or biases, by plane and index, which needs nothing but the former.
fn unpacked(packing: Packing, load: &dyn Fn(u32, &str) -> String) -> (String, String, Vec<String>) {
    let (mut places, mut text) = (String::new(), String::new());
    if let Some(format) = packing.block() {
        let parts = format.values() as u32 / blocks::UNIT;
        let _ = write!(
            places,
            "let part = unit % {parts}u;
            let first = row * p.row_words + unit / {parts}u * {}u;
            ",
            format.bytes()
        );
        let unit = blocks::unit(format, "q", "first", &|index| load(0, index));
        text.push_str(&unit.text);
        let _ = writeln!(text, "let scale = {};", unit.scale);
        let _ = writeln!(text, "let bias = {};", unit.minimum.as_deref().unwrap_or("0.0"));
        let values = unit.values.iter().map(|value| format!("fma({value}, scale, bias)"));
        return (places, text, values.collect());
    }
    let words = packing.unit_words();
    // Units of floats are a half or a quarter of what is unpacked at once.
    let together = (4 / packing.unit()).max(1);
    let mut values = Vec::new();
    for number in 0..together {
        let name = format!("q{number}_");
        let at = format!("row * p.row_words + unit * {}u + {}u", words * together, number * words);
        text.push_str(&packing.load(&name, &at, &|index| load(0, index)));
        values.extend(packing.values(&name, "zero"));
    }
    if packing.is_scaled() {
        let column = format!("unit * {}u", packing.unit() * together);
        let place = packing.scale_index(&packing.row_scales("row"), &column);
        let _ = writeln!(places, "let g = {place};");
        let word = format!("(g >> {}u)", packing.number().1);
        let third = packing.third_word("row", &column, &word);
        let third = packing.third().map_or(String::new(), |_| load(2, &third));
        text.push_str(&packing.scaling("", "row", "g", [&load(1, &word), &third]));
        let whole = |value: String| match packing.is_biased() {
            true => format!("fma({value}, scale, bias)"),
            false => format!("{value} * scale"),
        };
        values = values.into_iter().map(whole).collect();
    }
    (places, text, values)
}
