//! Products of many tokens by cooperative matrices: 128 rows of a matrix and 32 to 128 tokens a workgroup.
//!
//! Activations come in halves ([`super::halves`]); weights are unpacked once for all tokens of a tile, as one f16 where
//! that is exact, else as two. Products of halves are exact and their sums f32; only the product of both lower halves
//! is left out. A token's sums have one order whatever its tile, so a prompt's bits do not depend on how it is cut.
//! They differ from those of [`super::product`], which is for answers.

use std::fmt::Write as _;

use super::Op;
use super::depth::{self, DEPTH, Fetch, Load, ROWS, STEP, Weights};
use super::experts::{self, Between, Half, Record, Work};
use super::halves::Halves;
use super::packing::Packing;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError, Planes, Slabs};

/// Workgroup memory of the largest tile.
pub(crate) const WORKGROUP_BYTES: u32 = 48 << 10;
/// Sums that are in workgroup memory at once, at the end.
const STAGE: u32 = 2048;

/// Pairs of a tile of an expert: few where experts have few, so that tiles are full.
pub const EXPERT_TOKENS: [u32; 2] = [32, 64];
/// Tokens of a tile of a dense product: more where there are enough tiles for a GPU.
pub(crate) const DENSE_TOKENS: [u32; 2] = [64, 128];
/// Tiles that are enough.
const ENOUGH: u32 = 128;
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

/// Pairs of a tile where `pairs` are those of `experts`: such that few experts need a second tile.
pub fn expert_tokens(pairs: usize, experts: usize) -> u32 {
    let [few, many] = EXPERT_TOKENS;
    if 2 * pairs <= experts * few as usize { few } else { many }
}

/// True where a matrix of this shape is computed by tiles: rows are whole depths, and not too few.
pub fn serves(rows: usize, columns: usize) -> bool {
    rows >= LEAST_ROWS && columns.is_multiple_of(DEPTH as usize)
}

/// True where experts of these widths are computed by tiles: their rows are whole depths. Of others a depth would have
/// values of the next row, times sums that are behind a token's values.
pub fn serves_experts(hidden: usize, inner: usize) -> bool {
    [hidden, inner].iter().all(|width| width.is_multiple_of(DEPTH as usize))
}

/// The loop of a tile of `tokens`, and what comes before it: token `t` of the tile has its halves at vector
/// `x{t / 32}` (of this invocation). Of experts `count` says how many tokens there are.
struct Tile<'a> {
    tokens: u32,
    weights: Weights<'a>,
    counted: bool,
}

impl Tile<'_> {
    /// Fragments of a subgroup by tokens; by rows they are two.
    fn fragments(&self) -> u32 {
        self.tokens / 32
    }

    fn parts(&self) -> u32 {
        depth::parts(self.weights.packing)
    }

    /// Vectors of four of workgroup memory for a depth of tokens, and of weights.
    fn sides(&self) -> (u32, u32) {
        (self.tokens * 2 * STEP, ROWS * self.parts() * STEP)
    }

    /// Depths that workgroup memory holds: with two, one is written while the other is multiplied.
    fn depths(&self) -> u32 {
        let (left, right) = self.sides();
        if 2 * 8 * (left + right) + 4 * STAGE <= WORKGROUP_BYTES { 2 } else { 1 }
    }

    fn declare(&self, source: Source) -> Source {
        let (left, right) = self.sides();
        let depths = self.depths();
        // Sums of columns are multiplied by weights in two parts.
        let right = (depths * right).max(2 * ROWS * STEP);
        source
            .extension("f16")
            .extension("wgpu_cooperative_matrix")
            .shared("left", &format!("array<vec4<f16>, {}>", depths * left))
            .shared("right", &format!("array<vec4<f16>, {right}>"))
            .shared("stage", &format!("array<f32, {STAGE}>"))
            .function(&self.weights.packing.functions())
    }

    /// Where this invocation's subgroup is in the tile, and its sums.
    fn begin(&self) -> String {
        let mut text = String::from(
            "let subgroup = lid >> 5u;
            // Every other fragment of 16 tokens, and every fourth of 16 rows.
            let near = (subgroup & 1u) * 16u;
            let across = (subgroup >> 1u) * 16u;
            let q = lid & 7u;
            // Sums of columns are behind the columns.
            let quads = (p.columns + ((p.columns + 1023u) >> 10u) * 32u) >> 2u;
            ",
        );
        for i in 0..self.fragments() {
            for j in 0..2 {
                let _ = writeln!(text, "var acc{i}_{j} = coop_mat16x16<f32, C>();");
            }
        }
        text
    }

    /// Declarations for halves of tokens of a depth, statements that read them of the columns from `k` on, and those
    /// that put them into workgroup memory. `column` is of the four values that vector `q` of a row has.
    fn near(&self, depth: usize, column: &str) -> [String; 3] {
        let [mut variables, mut loads, mut stores] = [String::new(), String::new(), String::new()];
        let _ = writeln!(loads, "let column{depth} = (k + {column}) >> 2u;");
        for part in 0..2 {
            for i in 0..self.tokens / 32 {
                let name = format!("near{depth}_{part}_{i}");
                let _ = writeln!(variables, "var {name}: vec4<f16>;");
                let _ = writeln!(loads, "{name} = x[x{i} + {part}u * quads + column{depth}];");
                let _ = writeln!(
                    stores,
                    "left[side + {}u + (lid >> 3u) * {STEP}u + q] = {name};",
                    part * self.tokens * STEP + i * 32 * STEP
                );
            }
        }
        [variables, loads, stores]
    }

    /// Statements that run only where a fragment has tokens.
    fn where_any(&self, i: u32, text: &str) -> String {
        let first = i * 32;
        match self.counted && first > 0 {
            true => format!("if count > {first}u {{\n{text}}}\n"),
            false => text.to_owned(),
        }
    }

    /// Multiplies what workgroup memory holds of a depth, of tokens from vector `side` on, of weights from `to` on.
    fn multiply(&self, parts: u32) -> String {
        let mut text = String::new();
        for step in 0..DEPTH / 16 {
            text.push_str("{\n");
            for part in 0..parts {
                for j in 0..2 {
                    let _ = writeln!(
                        text,
                        "let b{part}_{j} = coopLoad<coop_mat16x16<f16, B>>
                            (&right[to + {}u + across * {STEP}u], {STEP}u);",
                        part * ROWS * STEP + j * 64 * STEP + step * 4
                    );
                }
            }
            for i in 0..self.fragments() {
                let mut own = String::new();
                for part in 0..2 {
                    let _ = writeln!(
                        own,
                        "let a{part}_{i} = coopLoadT<coop_mat16x16<f16, A>>
                            (&left[side + {}u + near * {STEP}u], {STEP}u);",
                        part * self.tokens * STEP + i * 32 * STEP + step * 4
                    );
                }
                let products = [(1, 0), (0, 1), (0, 0)];
                for (a, b) in products.into_iter().filter(|&(_, b)| b < parts) {
                    for j in 0..2 {
                        let _ = writeln!(
                            own,
                            "acc{i}_{j} = coopMultiplyAdd(a{a}_{i}, b{b}_{j}, acc{i}_{j});"
                        );
                    }
                }
                text.push_str(&self.where_any(i, &own));
            }
            text.push_str("}\n");
        }
        text
    }

    fn accumulate(&self) -> String {
        let Fetch { names, loads, unpacks, columns } = self.weights.fetch();
        let count = unpacks.len();
        let near: Vec<_> =
            columns.iter().enumerate().map(|(depth, column)| self.near(depth, column)).collect();
        let near_loads: String = near.iter().map(|it| it[1].as_str()).collect();
        let (mut text, mut soon, mut now) = (String::new(), String::new(), String::new());
        near.iter().for_each(|it| text.push_str(&it[0]));
        for (name, kind) in &names {
            let _ = writeln!(text, "var {name}: {kind};");
            let _ = writeln!(soon, "var soon_{name}: {kind};");
            let _ = writeln!(now, "{name} = soon_{name};");
        }
        let block = DEPTH * count as u32;
        let ahead = names.iter().fold(loads.clone(), |text, (name, _)| {
            text.replace(&format!("{name} ="), &format!("soon_{name} ="))
        });
        let both = self.depths() == 2 && count == 2;
        // What comes next is on its way while this is multiplied: tokens of the next columns, weights of those after.
        let next = format!(
            "{now}{{
                let ahead = k + {block}u;
                if ahead < p.columns {{
                    let k = ahead;
                    {near_loads}
                }}
                if ahead + {block}u < p.columns {{
                    let k = ahead + {block}u;
                    {ahead}
                }}
            }}
            "
        );
        let _ = write!(
            text,
            "{soon}{{
            let k = 0u;
            {loads}{near_loads}}}
            if {block}u < p.columns {{
            let k = {block}u;
            {ahead}}}
            for (var k = 0u; k < p.columns; k = k + {block}u) {{
            "
        );
        let (left, right) = self.sides();
        let place = |number: u32| {
            format!("let side = {}u;\nlet to = {}u;\n", number * left, number * right)
        };
        let multiply = self.multiply(self.parts());
        for (depth, unpack) in unpacks.iter().enumerate() {
            let place = match (self.depths(), both) {
                (_, true) => place(depth as u32),
                (1, _) => place(0),
                _ => format!(
                    "let turn = (k / {DEPTH}u) & 1u;\nlet side = turn * {left}u;\nlet to = turn * {right}u;\n"
                ),
            };
            let _ = writeln!(text, "{{\n{place}{}{unpack}", near[depth][2]);
            if both {
                text.push_str("}\n");
                continue;
            }
            text.push_str("workgroupBarrier();\n");
            if depth + 1 == count {
                text.push_str(&next);
            }
            let last = if self.depths() == 1 { "workgroupBarrier();\n" } else { "" };
            let _ = writeln!(text, "{multiply}{last}}}");
        }
        if both {
            let _ = writeln!(text, "workgroupBarrier();\n{next}");
            for depth in 0..2 {
                let _ = writeln!(text, "{{\n{}{multiply}}}", place(depth));
            }
            text.push_str("workgroupBarrier();\n");
        }
        text.push_str("}\n");
        if depth::ends(self.weights.packing) {
            let [_, loads, stores] = self.near(0, "q * 4u");
            let _ = write!(
                text,
                "for (var k = p.columns; k < quads * 4u; k = k + {DEPTH}u) {{
                let sum = k - p.columns;
                {}workgroupBarrier();
                {loads}{stores}{}workgroupBarrier();
                {}}}
                ",
                place(0),
                self.weights.end(),
                self.multiply(2)
            );
        }
        text
    }

    /// Puts a part of the sums into `stage`, where invocations find eight each, and runs `each` for them: `sum`, `t`
    /// and `r` are the number, its token and its row among the tile's. `each` is given the part by rows.
    fn finish(&self, i: u32, each: &dyn Fn(u32, u32) -> String) -> String {
        let mut text = String::new();
        for j in 0..2 {
            let _ = write!(
                text,
                "workgroupBarrier();
                coopStoreT(acc{i}_{j}, &stage[near * 64u + across], 64u);
                workgroupBarrier();
                "
            );
            for number in 0..8 {
                let _ = write!(
                    text,
                    "{{
                        let n = lid + {}u;
                        let t = {}u + (n >> 6u);
                        let r = {}u + (n & 63u);
                        let sum = stage[n];
                        {}
                    }}
                    ",
                    number * 256,
                    i * 32,
                    j * 64,
                    each(number, j)
                );
            }
        }
        self.where_any(i, &text)
    }
}

pub(crate) fn source(spec: Spec) -> (Source, String) {
    let load =
        |plane: u32, index: &str| format!("{}[{index}]", ["w", "scales", "biases"][plane as usize]);
    let weights = Weights {
        packing: spec.packing,
        row: "let row = min(wid.x * 128u + r, p.rows - 1u);",
        cases: &|each| each(&load),
    };
    let tile = Tile { tokens: spec.tokens, weights, counted: false };
    let together = depth::together(spec.packing);
    let source = spec.packing.declare_together(Source::new(), together, "");
    let source = spec.packing.declare_grid(source);
    let source = source
        .read("x", "vec4<f16>")
        .read("factors", "f32")
        .write("y", "f32")
        .parameters(&["rows", "columns", "tokens", "row_words", "row_groups"]);
    let source = tile.declare(source);
    let tokens = spec.tokens;
    let mut body = tile.begin();
    for i in 0..tokens / 32 {
        let _ = writeln!(
            body,
            "let x{i} = min(wid.y * {tokens}u + {}u + (lid >> 3u), p.tokens - 1u) * 2u * quads;",
            i * 32
        );
    }
    body.push_str(&tile.accumulate());
    let value = if spec.add { "y[at] + sum * factors[token]" } else { "sum * factors[token]" };
    for i in 0..tile.fragments() {
        body.push_str(&tile.finish(i, &|_, _| {
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
    let together = depth::together(spec.packing);
    let cases = |each: &dyn Fn(Load<'_>) -> String| {
        let mut text = String::from("switch slab {\n");
        for slab in (0..spec.slabs).rev() {
            let loads = each(&|plane, index| match (plane, together) {
                (0, 4) => format!("slab{slab}[(weights >> 2u) + {index}]"),
                (0, _) => format!("slab{slab}[weights + {index}]"),
                (plane, together) => {
                    let at = format!("{} + {index}", ["", "scales", "biases"][plane as usize]);
                    match together {
                        4 => format!("slab{slab}[({at}) >> 2u][({at}) & 3u]"),
                        _ => format!("slab{slab}[{at}]"),
                    }
                }
            });
            let case = if slab == 0 { "default".to_owned() } else { format!("case {slab}u") };
            let _ = writeln!(text, "{case}: {{\n{loads}}}");
        }
        text.push_str("}\n");
        text
    };
    // Gates come first, so that an invocation finds both.
    let row = match (gate_up, spec.between.in_turns()) {
        (true, false) => {
            "let row = min(wid.x * 64u + (r & 63u), p.rows - 1u);
            let second = r > 63u;"
        }
        (true, true) => {
            "let turn = 2u * min(wid.x * 64u + (r & 63u), p.rows - 1u) + (r >> 6u);
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
    let weights = Weights { packing: spec.packing, row: &row, cases: &cases };
    let tile = Tile { tokens: spec.tokens, weights, counted: true };
    let mut source = Source::new();
    for slab in 0..spec.slabs {
        source =
            source.read(&format!("slab{slab}"), if together == 4 { "vec4<u32>" } else { "u32" });
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
    let source = spec.between.function(spec.between.declare(source, spec.half), spec.half);
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
    for i in 0..spec.tokens / 32 {
        let _ = writeln!(
            body,
            "let x{i} = order[start + min({}u + (lid >> 3u), count - 1u)] / p.share * 2u * quads;",
            i * 32
        );
    }
    body.push_str(&tile.accumulate());
    for i in 0..tile.fragments() {
        let finish = tile.finish(i, &|number, j| match (spec.half, j) {
            (Half::Down, _) => format!(
                "let row = wid.x * 128u + r;
                if row < p.rows && t < count {{
                    let pair = order[start + t];
                    y[pair * p.rows + row] = {};
                }}",
                spec.between.outer("sum * factors[pair / p.share]", "row")
            ),
            (Half::GateUp, 0) => format!("gate{number} = sum;"),
            (Half::GateUp, _) => format!(
                "let row = wid.x * 64u + r - 64u;
                if row < p.rows && t < count {{
                    let pair = order[start + t];
                    let factor = factors[pair / p.share];
                    let gate = gate{number} * factor;
                    let up = sum * factor;
                    {}
                    y[pair * p.rows + row] = inner;
                }}",
                spec.between.inner("row")
            ),
        });
        let gates = (0..8).map(|number| format!("var gate{number} = 0.0;\n"));
        let gates: String = if gate_up { gates.collect() } else { String::new() };
        let _ = writeln!(body, "{{\n{gates}{finish}}}");
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
    assert!(serves_experts(record.hidden, record.inner), "rows of whole depths: {half:?}");
    let sides = record.sides(half);
    let (packing, rows) = (sides.packing, sides.rows);
    let parameters = sides.parameters(slabs, work);
    let grid = gpu.grid(packing)?;
    let mut spans = experts::spans(slabs, grid.as_ref(), work);
    spans.extend([x.values.all(), x.factors.all(), y.all()]);
    spans.extend(experts::biases(work, half));
    let own = if half == Half::GateUp { ROWS / 2 } else { ROWS };
    let groups = [(rows as u32).div_ceil(own), work.count as u32, 1];
    let (between, tokens) = (work.between(half), work.pairs);
    let spec = ExpertsSpec { half, between, packing, tokens, slabs: slabs.count() as u32 };
    gpu.dispatch(Op::TileExperts(spec), &spans, &parameters, groups)
}

#[cfg(test)]
mod tests {
    use super::{serves, serves_experts};

    #[test]
    fn rows_that_end_within_a_depth_take_no_tile() {
        assert!(serves(64, 32) && serves_experts(64, 32) && serves_experts(2816, 704));
        assert!(!serves(64, 24) && !serves_experts(32, 24) && !serves_experts(24, 32));
    }
}
