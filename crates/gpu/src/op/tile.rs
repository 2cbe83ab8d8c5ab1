//! Products of many tokens by cooperative matrices: 128 rows of a matrix and 32 to 128 tokens a workgroup.
//!
//! Activations come in halves ([`super::halves`]); weights are unpacked once for all tokens of a tile, as one f16 where
//! that is exact, else as two. Products of halves are exact and their sums f32; only the product of both lower halves
//! is left out. A token's sums have one order whatever its tile, so a prompt's bits do not depend on how it is cut.
//! They differ from those of [`super::product`], which is for answers.

use std::cell::RefCell;
use std::fmt::Write as _;

use super::experts::{self, Between, Half, Record, Work};
use super::halves::{Halves, WEIGHT_SCALE};
use super::packing::{Float, Packing};
use super::{Op, blocks};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError, Planes, Slabs};

/// Workgroup memory of the largest tile.
pub(crate) const WORKGROUP_BYTES: u32 = 48 << 10;
/// Rows of a tile.
const ROWS: u32 = 128;
/// Columns that are in workgroup memory at once.
const DEPTH: u32 = 32;
/// The step from a row in workgroup memory to the next, in vectors of four: a multiple of 16 bytes whose multiples fall
/// into different banks.
const STEP: u32 = DEPTH / 4 + 2;

/// Pairs of a tile of an expert: few where experts have few, so that tiles are full.
pub const EXPERT_TOKENS: [u32; 2] = [32, 64];
/// Tokens of a tile of a dense product: more where there are enough tiles for a GPU.
pub(crate) const DENSE_TOKENS: [u32; 2] = [64, 128];
/// Tiles that are enough.
const ENOUGH: u32 = 256;
/// Rows of matrices that are computed by tiles; of fewer [`super::product`] reads them faster.
const LEAST_ROWS: usize = 64;

/// What the text of a dense product depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The matrix.
    pub packing: Packing,
    /// Tokens of a tile; it shows in no bit.
    pub tokens: u32,
    /// True to add to what is there.
    pub add: bool,
}

/// What the text of experts depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertsSpec {
    /// Which products.
    pub half: Half,
    /// What is between the halves.
    pub between: Between,
    /// The matrices.
    pub packing: Packing,
    /// Pairs of a tile, of [`EXPERT_TOKENS`]; it shows in no bit.
    pub tokens: u32,
    /// Slabs that hold records.
    pub slabs: u32,
}

/// Pairs of a tile where `pairs` are those of `experts`.
pub fn expert_tokens(pairs: usize, experts: usize) -> u32 {
    let [few, many] = EXPERT_TOKENS;
    if pairs <= experts * few as usize { few } else { many }
}

/// True where a matrix of this shape is computed by tiles: rows are whole depths, and not too few.
pub fn serves(rows: usize, columns: usize) -> bool {
    rows >= LEAST_ROWS && columns.is_multiple_of(DEPTH as usize)
}

/// Numbers of f16 that a weight becomes: one where its mantissa has no more than 11 bits.
fn parts(packing: Packing) -> u32 {
    match packing {
        Packing::Float(Float::F16 | Float::Bf16) | Packing::Mxfp4 => 1,
        _ => 2,
    }
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
    let (words, group) = (packing.unit_words(), packing.group());
    // Units of floats are a half or a quarter of what is unpacked at once.
    let together = (4 / packing.unit()).max(1);
    let mut values = Vec::new();
    for number in 0..together {
        let name = format!("q{number}_");
        let at = format!("row * p.row_words + unit * {}u + {}u", words * together, number * words);
        text.push_str(&packing.load(&name, &at, &|index| load(0, index)));
        values.extend(packing.values(&name));
    }
    if group > 0 {
        let (_, shift) = packing.number();
        let _ = writeln!(
            places,
            "let g = row * p.row_groups + unit * {}u / {group}u;",
            packing.unit() * together
        );
        for (name, plane) in [("scale", 1), ("bias", 2)].into_iter().take(packing.planes() - 1) {
            let word = load(plane, &format!("(g >> {shift}u)"));
            let _ = writeln!(text, "let {name} = number({word}, g);");
        }
        let whole = |value: String| match packing.is_biased() {
            true => format!("fma({value}, scale, bias)"),
            false => format!("{value} * scale"),
        };
        values = values.into_iter().map(whole).collect();
    }
    (places, text, values)
}

/// What a tile reads for each depth.
struct Fetch {
    variables: String,
    loads: String,
    /// By unit: statements, and values.
    decodes: Vec<(String, Vec<String>)>,
}

/// The loop of a tile of `tokens`, and what comes before it: `row_of(r)` gives the matrix's row of the tile's row `r`
/// as statements that declare `row`; token `t` of the tile has its halves at vector `x{t / 32}` (of this invocation).
struct Tile<'a> {
    packing: Packing,
    tokens: u32,
    row: &'a str,
    cases: Cases<'a>,
}

/// Reads a word of weights, scales or biases: plane and index.
type Load<'a> = &'a dyn Fn(u32, &str) -> String;

/// Where the text of a load may depend on what a workgroup computes: gives that text for each of its cases.
type Cases<'a> = &'a dyn Fn(&dyn Fn(Load<'_>) -> String) -> String;

impl Tile<'_> {
    /// Fragments of a subgroup: by tokens.
    fn fragments(&self) -> u32 {
        self.tokens / 32
    }

    fn declare(&self, source: Source) -> Source {
        let side = |rows: u32, parts: u32| format!("array<vec4<f16>, {}>", rows * parts * STEP);
        source
            .extension("f16")
            .extension("wgpu_cooperative_matrix")
            .shared("left", &side(self.tokens, 2))
            .shared("right", &side(ROWS, parts(self.packing)))
            .shared("stage", "array<f32, 2048>")
            .function(&self.packing.functions())
    }

    /// Where this invocation's subgroup is in the tile, and its sums.
    fn begin(&self) -> String {
        let mut text = format!(
            "let subgroup = lid >> 5u;
            let lane = lid & 31u;
            let near = (subgroup & 1u) * {}u;
            let across = (subgroup >> 1u) * 32u;
            let quads = p.columns >> 2u;
            ",
            self.tokens / 2
        );
        for i in 0..self.fragments() {
            for j in 0..2 {
                let _ = writeln!(text, "var acc{i}_{j} = coop_mat16x16<f32, C>();");
            }
        }
        text
    }

    /// Units of weights that an invocation unpacks for each depth; of the last, only the first invocations.
    fn units(&self) -> (u32, u32) {
        let values = self.packing.unit().max(4);
        let units = ROWS * DEPTH / values;
        (units.div_ceil(256), units)
    }

    /// Statements that read what an invocation needs of the columns from `k` on, into variables of the loop: halves of
    /// tokens, and words of weights; and the text that unpacks these.
    fn fetch(&self) -> Fetch {
        let values = self.packing.unit().max(4);
        let each = DEPTH / values;
        let (mut variables, mut loads, mut decodes) = (String::new(), String::new(), Vec::new());
        for part in 0..2 {
            for i in 0..self.fragments() {
                let _ = writeln!(variables, "var near{part}_{i}: vec4<f16>;");
                let _ = writeln!(loads, "near{part}_{i} = x[x{i} + {part}u * quads + (k >> 2u)];");
            }
        }
        let (count, units) = self.units();
        for number in 0..count {
            let words = RefCell::new(Vec::new());
            let name = |at: usize| format!("far{number}_{at}");
            let load = |plane: u32, index: &str| {
                let (mut words, word) = (words.borrow_mut(), (plane, index.to_owned()));
                let known = words.iter().position(|it| *it == word);
                name(known.unwrap_or_else(|| {
                    words.push(word);
                    words.len() - 1
                }))
            };
            let (places, unpack, found) = unpacked(self.packing, &load);
            let words = words.into_inner();
            for at in 0..words.len() {
                let _ = writeln!(variables, "var {}: u32;", name(at));
            }
            let read = (self.cases)(&|load| {
                let words = words.iter().enumerate();
                let each = |(at, (plane, index)): (usize, &(u32, String))| {
                    format!("{} = {};\n", name(at), load(*plane, index))
                };
                words.map(each).collect()
            });
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
            let _ = writeln!(loads, "{{\n{place}{read}}}");
            decodes.push((format!("{place}{unpack}"), found));
        }
        Fetch { variables, loads, decodes }
    }

    fn accumulate(&self) -> String {
        let parts = parts(self.packing);
        let Fetch { variables, loads, decodes } = self.fetch();
        let mut text = format!(
            "{variables}{{
            let k = 0u;
            {loads}}}
            for (var k = 0u; k < p.columns; k = k + {DEPTH}u) {{
            "
        );
        for part in 0..2 {
            for i in 0..self.fragments() {
                let _ = writeln!(
                    text,
                    "left[{}u + (lid >> 3u) * {STEP}u + (lid & 7u)] = near{part}_{i};",
                    part * self.tokens * STEP + i * 32 * STEP
                );
            }
        }
        for (unpack, found) in decodes {
            let quads = found.len() / 4;
            let _ = writeln!(text, "{{\n{unpack}let at = r * {STEP}u + inside * {quads}u;");
            for (quad, four) in found.as_chunks::<4>().0.iter().enumerate() {
                let four = four.join(", ");
                let _ = writeln!(text, "let f{quad} = vec4<f32>({four}) * {WEIGHT_SCALE};");
                if parts == 1 {
                    let _ = writeln!(text, "right[at + {quad}u] = vec4<f16>(f{quad});");
                    continue;
                }
                // As `halves` parts values.
                let _ = write!(
                    text,
                    "let h{quad} = bitcast<vec4<f32>>(bitcast<vec4<u32>>(f{quad}) & vec4<u32>(0xffffe000u));
                    right[at + {quad}u] = vec4<f16>(h{quad});
                    right[at + {}u] = vec4<f16>(f{quad} - h{quad});
                    ",
                    quad + (ROWS * STEP) as usize
                );
            }
            text.push_str("}\n");
        }
        // What comes next is on its way while this is multiplied.
        let _ = write!(
            text,
            "workgroupBarrier();
            {{
                let ahead = k + {DEPTH}u;
                if ahead < p.columns {{
                    let k = ahead;
                    {loads}
                }}
            }}
            "
        );
        for step in 0..DEPTH / 16 {
            text.push_str("{\n");
            for part in 0..parts {
                for j in 0..2 {
                    let _ = writeln!(
                        text,
                        "let b{part}_{j} = coopLoad<coop_mat16x16<f16, B>>(&right[{}u + across * {STEP}u], {STEP}u);",
                        part * ROWS * STEP + j * 16 * STEP + step * 4
                    );
                }
            }
            for i in 0..self.fragments() {
                for part in 0..2 {
                    let _ = writeln!(
                        text,
                        "let a{part}_{i} = coopLoadT<coop_mat16x16<f16, A>>(&left[{}u + near * {STEP}u], {STEP}u);",
                        part * self.tokens * STEP + i * 16 * STEP + step * 4
                    );
                }
                let products = [(1, 0), (0, 1), (0, 0)];
                for (a, b) in products.into_iter().filter(|&(_, b)| b < parts) {
                    for j in 0..2 {
                        let _ = writeln!(
                            text,
                            "acc{i}_{j} = coopMultiplyAdd(a{a}_{i}, b{b}_{j}, acc{i}_{j});"
                        );
                    }
                }
            }
            text.push_str("}\n");
        }
        text.push_str("workgroupBarrier();\n}\n");
        text
    }

    /// Puts fragment `i`, `j` of each subgroup where its invocations find eight numbers each, and runs `each` for
    /// them: `sum`, `t` and `r` are the number, its token and its row among the tile's.
    fn finish(i: u32, j: u32, each: &dyn Fn(u32) -> String) -> String {
        let mut text =
            format!("coopStoreT(acc{i}_{j}, &stage[subgroup * 256u], 16u);\nworkgroupBarrier();\n");
        for number in 0..8 {
            let _ = write!(
                text,
                "{{
                    let n = lane + {}u;
                    let t = near + {}u + (n >> 4u);
                    let r = across + {}u + (n & 15u);
                    let sum = stage[subgroup * 256u + n];
                    {}
                }}
                ",
                number * 32,
                i * 16,
                j * 16,
                each(number)
            );
        }
        text.push_str("workgroupBarrier();\n");
        text
    }
}

pub(crate) fn source(spec: Spec) -> (Source, String) {
    let load =
        |plane: u32, index: &str| format!("{}[{index}]", ["w", "scales", "biases"][plane as usize]);
    let tile = Tile {
        packing: spec.packing,
        tokens: spec.tokens,
        row: "let row = min(wid.x * 128u + r, p.rows - 1u);",
        cases: &|each| each(&load),
    };
    let source = spec.packing.declare(Source::new());
    let source = source
        .read("x", "vec4<f16>")
        .read("factors", "f32")
        .write("y", "f32")
        .parameters(&["rows", "columns", "tokens", "row_words", "row_groups"]);
    let source = tile.declare(source);
    let tokens = spec.tokens;
    let mut body = tile.begin();
    for i in 0..tile.fragments() {
        let _ = writeln!(
            body,
            "let x{i} = min(wid.y * {tokens}u + {}u + (lid >> 3u), p.tokens - 1u) * 2u * quads + (lid & 7u);",
            i * 32
        );
    }
    body.push_str(&tile.accumulate());
    let value = if spec.add { "y[at] + sum * factors[token]" } else { "sum * factors[token]" };
    for i in 0..tile.fragments() {
        for j in 0..2 {
            body.push_str(&Tile::finish(i, j, &|_| {
                format!(
                    "let row = wid.x * 128u + r;
                    let token = wid.y * {tokens}u + t;
                    if row < p.rows && token < p.tokens {{
                        let at = token * p.rows + row;
                        y[at] = {value};
                    }}"
                )
            }));
        }
    }
    (source, body)
}

/// `y[tokens, rows] = W x[tokens, columns]`, or `y += W x`, with `x` in halves.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    matrix: &Planes,
    x: &Halves,
    y: &Buffer,
    tokens: usize,
    add: bool,
) -> Result<(), GpuError> {
    let packing = matrix.packing;
    let parameters = [
        matrix.rows as u32,
        matrix.columns as u32,
        tokens as u32,
        packing.row_step(matrix.columns),
        packing.row_groups(matrix.columns),
    ];
    let grid = gpu.grid(packing)?;
    let mut spans = matrix.spans(grid.as_ref());
    spans.extend([x.values.all(), x.factors.all(), y.all()]);
    let across = (matrix.rows as u32).div_ceil(ROWS);
    let [small, large] = DENSE_TOKENS.map(|of| (of, (tokens as u32).div_ceil(of)));
    let (of, down) = if across * large.1 >= ENOUGH { large } else { small };
    let op = Op::Tile(Spec { packing, tokens: of, add });
    gpu.dispatch(op, &spans, &parameters, [across, down, 1])
}

pub(crate) fn experts(spec: ExpertsSpec) -> (Source, String) {
    let gate_up = spec.half == Half::GateUp;
    let cases = |each: &dyn Fn(Load<'_>) -> String| {
        let mut text = String::from("switch slab {\n");
        for slab in (0..spec.slabs).rev() {
            let loads = each(&|plane, index| {
                let first = ["weights", "scales", "biases"][plane as usize];
                format!("slab{slab}[{first} + {index}]")
            });
            let case = if slab == 0 { "default".to_owned() } else { format!("case {slab}u") };
            let _ = writeln!(text, "{case}: {{\n{loads}}}");
        }
        text.push_str("}\n");
        text
    };
    // Of gate and up a subgroup has 16 rows each, so that an invocation finds both.
    let row = match (gate_up, spec.between.in_turns()) {
        (true, false) => {
            "let row = min(wid.x * 64u + (r >> 5u) * 16u + (r & 15u), p.rows - 1u);
            let second = ((r >> 4u) & 1u) == 1u;"
        }
        (true, true) => {
            "let turn = 2u * min(wid.x * 64u + (r >> 5u) * 16u + (r & 15u), p.rows - 1u) + ((r >> 4u) & 1u);
            let second = turn >= p.rows;
            let row = select(turn, turn - p.rows, second);"
        }
        (false, _) => {
            "let row = min(wid.x * 128u + r, p.rows - 1u);
            let second = false;"
        }
    };
    let row = format!(
        "{row}
        let weights = base + select(p.w0, p.w1, second);
        let scales = base + select(p.s0, p.s1, second);
        let biases = base + select(p.b0, p.b1, second);"
    );
    let tile = Tile { packing: spec.packing, tokens: spec.tokens, row: &row, cases: &cases };
    let mut source = Source::new();
    for slab in 0..spec.slabs {
        source = source.read(&format!("slab{slab}"), "u32");
    }
    let source = spec.packing.declare_grid(source);
    let source = source
        .read("table", "u32")
        .read("tiles", "u32")
        .read("order", "u32")
        .read("x", "vec4<f16>")
        .read("factors", "f32")
        .write("y", "f32")
        .parameters(&[
            "rows",
            "columns",
            "row_words",
            "row_groups",
            "first_tile",
            "layer",
            "slot_words",
            "share",
            "flag",
            "w0",
            "s0",
            "b0",
            "w1",
            "s1",
            "b1",
        ]);
    let source = spec.between.declare(source, spec.half);
    let source = tile.declare(source);
    let mut body = String::from(
        "let raised = control[0];
        if raised != 0u { if raised != p.flag { return; } }
        let tile = (p.first_tile + wid.y) * 3u;
        let expert = tiles[tile];
        let word = table[p.layer + expert];
        let start = tiles[tile + 1u];
        let count = tiles[tile + 2u];
        if word == 0u { return; }
        if count == 0u { return; }
        let slab = word >> 24u;
        let base = ((word & 0xffffffu) - 1u) * p.slot_words;
        ",
    );
    body.push_str(&tile.begin());
    for i in 0..tile.fragments() {
        let _ = writeln!(
            body,
            "let x{i} = order[start + min({}u + (lid >> 3u), count - 1u)] / p.share * 2u * quads + (lid & 7u);",
            i * 32
        );
    }
    body.push_str(&tile.accumulate());
    for i in 0..tile.fragments() {
        if !gate_up {
            for j in 0..2 {
                body.push_str(&Tile::finish(i, j, &|_| {
                    format!(
                        "let row = wid.x * 128u + r;
                        if row < p.rows && t < count {{
                            let pair = order[start + t];
                            y[pair * p.rows + row] = {};
                        }}",
                        spec.between.outer("sum * factors[pair / p.share]", "row")
                    )
                }));
            }
            continue;
        }
        for number in 0..8 {
            let _ = writeln!(body, "var gate{i}_{number} = 0.0;");
        }
        body.push_str(&Tile::finish(i, 0, &|number| format!("gate{i}_{number} = sum;")));
        body.push_str(&Tile::finish(i, 1, &|number| {
            format!(
                "let row = wid.x * 64u + (r >> 5u) * 16u + (r & 15u);
                if row < p.rows && t < count {{
                    let pair = order[start + t];
                    let factor = factors[pair / p.share];
                    let gate = gate{i}_{number} * factor;
                    let up = sum * factor;
                    {}
                    y[pair * p.rows + row] = inner;
                }}",
                spec.between.inner("row")
            )
        }));
    }
    (source, body)
}

/// As [`super::experts::launch`], for tiles of up to [`EXPERT_TOKENS`] pairs, with `x` in halves.
///
/// # Errors
/// The device failed.
pub fn launch_experts(
    gpu: &mut Gpu,
    half: Half,
    record: &Record,
    slabs: &Slabs,
    work: Work<'_>,
    x: &Halves,
    y: &Buffer,
) -> Result<(), GpuError> {
    let sides = record.sides(half);
    let (packing, rows) = (sides.packing, sides.rows);
    let parameters = sides.parameters(slabs, work);
    let grid = gpu.grid(packing)?;
    let mut spans = experts::spans(slabs, grid.as_ref(), work);
    spans.extend([x.values.all(), x.factors.all(), y.all()]);
    spans.extend(experts::biases(work, half));
    let own = if half == Half::GateUp { ROWS / 2 } else { ROWS };
    let groups = [(rows as u32).div_ceil(own), work.count as u32, 1];
    let (between, tokens) = (work.between(), work.pairs);
    let spec = ExpertsSpec { half, between, packing, tokens, slabs: slabs.count() as u32 };
    gpu.dispatch(Op::TileExperts(spec), &spans, &parameters, groups)
}
