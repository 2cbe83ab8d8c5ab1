//! Products of one token with what comes before or behind them, in one launch each: the norm and several matrices, the
//! first half of the shared expert, and its second half with the sum of a layer.
//!
//! Every sum has the order that it has in the plain kernels, so that a token's bits are the same either way.

use std::fmt::Write as _;

use super::Op;
use super::packing::Packing;
use super::product::{Sums, TEAMS, team_rows};
use crate::source::{Source, TREE_SUM};
use crate::{Buffer, Gpu, GpuError, Planes};

/// Most matrices of a launch.
pub const MATRICES: usize = 4;

/// What the text of a fused product depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The matrices.
    pub packing: Packing,
    /// Units that an invocation takes at once ([`Packing::together`]).
    pub together: u32,
    /// Rows of a team.
    pub rows: u32,
}

impl Spec {
    fn new(matrix: &Planes, rows: usize) -> Self {
        let packing = matrix.packing;
        let rows = team_rows(packing, rows, 1);
        Self { packing, together: packing.together(matrix.columns), rows }
    }

    fn sums(self) -> Sums {
        Sums { packing: self.packing, together: self.together, rows: self.rows, tokens: 1 }
    }
}

/// True where the kernels here compute matrices of this packing: four values of the input are read at once.
pub fn serves(packing: Packing) -> bool {
    packing.unit() >= 4 && packing.block().is_none()
}

/// Declares the planes of matrix `number`.
fn declare(source: Source, spec: Spec, number: usize) -> Source {
    let kind =
        if spec.together == 1 { "u32".to_owned() } else { format!("vec{}<u32>", spec.together) };
    source
        .read(&format!("w{number}_"), &kind)
        .read(&format!("scales{number}_"), "u32")
        .read(&format!("biases{number}_"), "u32")
}

/// The name of a plane.
fn plane(number: usize, plane: u32) -> String {
    format!("{}{number}_", ["w", "scales", "biases"][plane as usize])
}

/// `factor`: what the norm multiplies with. The order of the sum is that of `norm::rows`.
const FACTOR: &str = "
        var squares = 0.0;
        for (var i = lid; i < p.columns; i = i + 256u) {
            let value = x[i >> 2u][i & 3u];
            squares = fma(value, value, squares);
        }
        red[lid] = squares;
        let factor = 1.0 / sqrt(tree_sum(lid) / f32(p.columns) + bitcast<f32>(p.epsilon));
        let x0 = 0u;
";

/// Where the rows `row{r}` of a team begin.
fn starts(spec: Spec) -> String {
    (0..spec.rows).fold(String::new(), |mut text, row| {
        let _ = write!(
            text,
            "let w{row} = row{row} * p.row_words;
            let s{row} = row{row} * p.row_groups;
            "
        );
        text
    })
}

/// Four normed values of the input.
fn normed(_token: u32, index: u32) -> String {
    format!("x[(column >> 2u) + {index}u] * factor * weight[(column >> 2u) + {index}u]")
}

/// Workgroup memory of a norm and a product; the product's `red` is large enough for the norm's.
fn shared(spec: Spec, source: Source) -> Source {
    spec.sums().declare(source)
}

pub(crate) fn several(spec: Spec, count: usize, keep: bool) -> (Source, String) {
    let sums = spec.sums();
    let mut source = (0..count).fold(Source::new(), |source, number| declare(source, spec, number));
    source = source.read("x", "vec4<f32>").read("weight", "vec4<f32>");
    for number in 0..count {
        source = source.write(&format!("y{number}"), "f32");
    }
    if keep {
        source = source.write("normed", "vec4<f32>");
    }
    const ROWS: [&str; MATRICES] = ["rows0", "rows1", "rows2", "rows3"];
    let source = source
        .parameters(&["columns", "row_words", "row_groups", "epsilon"])
        .parameters(&ROWS[..count]);
    let source = shared(spec, source).function(TREE_SUM);
    let each = TEAMS * spec.rows;
    let mut body = format!(
        "let lane = lid & 31u;
        let team = lid >> 5u;
        let units = p.columns / {}u;
        var which = 0u;
        var group = wid.x;
        var rows = p.rows0;
        ",
        sums.values()
    );
    for number in 1..count {
        let _ = write!(
            body,
            "if which == {before}u && group >= (p.rows{before} + {}u) / {each}u {{
                group = group - (p.rows{before} + {}u) / {each}u;
                which = {number}u;
                rows = p.rows{number};
            }}
            ",
            each - 1,
            each - 1,
            before = number - 1
        );
    }
    body.push_str(FACTOR);
    if keep {
        body.push_str(
            "if wid.x == 0u {
                for (var i = lid; i < (p.columns >> 2u); i = i + 256u) { normed[i] = x[i] * factor * weight[i]; }
            }
            ",
        );
    }
    let _ = writeln!(body, "let first = (group * {TEAMS}u + team) * {}u;", spec.rows);
    for row in 0..spec.rows {
        let _ = writeln!(body, "let row{row} = min(first + {row}u, rows - 1u);");
    }
    body.push_str(&starts(spec));
    body.push_str(&sums.zero());
    body.push_str("switch which {\n");
    for number in (0..count).rev() {
        let case = if number == 0 { "default".to_owned() } else { format!("case {number}u") };
        let loop_of =
            sums.accumulate_of(&|of, _, index| format!("{}[{index}]", plane(number, of)), &normed);
        let _ = writeln!(body, "{case}: {{\n{loop_of}}}");
    }
    body.push_str("}\n");
    let mut store = String::from("let row = first + r;\nif row < rows {\nswitch which {\n");
    for number in (0..count).rev() {
        let case = if number == 0 { "default".to_owned() } else { format!("case {number}u") };
        let _ = writeln!(store, "{case}: {{ y{number}[row] = sum; }}");
    }
    store.push_str("}\n}\n");
    body.push_str(&sums.finish(&store));
    (source, body)
}

/// Rows of the norm of one token's `x[columns]` times `weight`, by up to [`MATRICES`] matrices of one packing and one
/// width, into a buffer each; the normed row itself into `keep`.
///
/// # Errors
/// The device failed.
pub fn launch_several(
    gpu: &mut Gpu,
    matrices: &[(&Planes, &Buffer)],
    (x, weight): (&Buffer, &Buffer),
    epsilon: f32,
    keep: Option<&Buffer>,
) -> Result<(), GpuError> {
    let first = matrices[0].0;
    assert!((1..=MATRICES).contains(&matrices.len()) && serves(first.packing), "fused products");
    let alike = |it: &Planes| it.packing == first.packing && it.columns == first.columns;
    assert!(matrices.iter().all(|(matrix, _)| alike(matrix)), "matrices of two packings");
    let most = matrices.iter().map(|(matrix, _)| matrix.rows).sum();
    let spec = Spec::new(first, most);
    let (columns, packing) = (first.columns, first.packing);
    let mut parameters = vec![
        columns as u32,
        packing.row_step(columns),
        packing.row_groups(columns),
        epsilon.to_bits(),
    ];
    parameters.extend(matrices.iter().map(|(matrix, _)| matrix.rows as u32));
    let mut spans: Vec<_> = matrices.iter().flat_map(|(matrix, _)| matrix.spans(None)).collect();
    spans.extend([x.all(), weight.all()]);
    spans.extend(matrices.iter().map(|(_, y)| y.all()));
    spans.extend(keep.map(Buffer::all));
    let each = (TEAMS * spec.rows) as usize;
    let groups: usize = matrices.iter().map(|(matrix, _)| matrix.rows.div_ceil(each)).sum();
    let op = Op::Several { spec, count: matrices.len() as u32, keep: keep.is_some() };
    gpu.dispatch(op, &spans, &parameters, [groups as u32, 1, 1])
}

pub(crate) fn gated(spec: Spec) -> (Source, String) {
    let sums = Sums { rows: 2 * spec.rows, ..spec.sums() };
    let source = declare(declare(Source::new(), spec, 0), spec, 1);
    let source = source
        .read("x", "vec4<f32>")
        .write("y", "f32")
        .parameters(&["rows", "columns", "row_words", "row_groups"])
        .shared("fin", &format!("array<f32, {}>", TEAMS * 8));
    let source = sums.declare(source);
    let own = spec.rows;
    let mut body = format!(
        "let lane = lid & 31u;
        let team = lid >> 5u;
        let units = p.columns / {}u;
        let first = (wid.x * {TEAMS}u + team) * {own}u;
        let x0 = 0u;
        ",
        sums.values()
    );
    for row in 0..2 * own {
        let _ = writeln!(body, "let row{row} = min(first + {}u, p.rows - 1u);", row % own);
    }
    body.push_str(&starts(Spec { rows: 2 * own, ..spec }));
    body.push_str(&sums.zero());
    body.push_str(
        &sums.accumulate(&|of, row, index| format!("{}[{index}]", plane((row / own) as usize, of))),
    );
    body.push_str(&sums.finish_pairs(
        "fin[team * 8u + lane] = sum;",
        &format!(
            "let up = fin[min(team * 8u + lane + {own}u, 63u)];
            let gate = fin[team * 8u + lane];
            if r < {own}u && first + r < p.rows {{ y[first + r] = gate / (1.0 + exp(-gate)) * up; }}"
        ),
    ));
    (source, body)
}

/// `y[rows] = silu(gate x) * (up x)` of one token; both matrices are packed alike.
///
/// # Errors
/// The device failed.
pub fn launch_gated(
    gpu: &mut Gpu,
    [gate, up]: [&Planes; 2],
    x: &Buffer,
    y: &Buffer,
) -> Result<(), GpuError> {
    let alike = gate.packing == up.packing && (gate.rows, gate.columns) == (up.rows, up.columns);
    assert!(alike && serves(gate.packing), "fused products");
    let spec = Spec { rows: 1, ..Spec::new(gate, gate.rows) };
    let (columns, packing) = (gate.columns, gate.packing);
    let parameters =
        [gate.rows as u32, columns as u32, packing.row_step(columns), packing.row_groups(columns)];
    let mut spans = gate.spans(None);
    spans.extend(up.spans(None));
    spans.extend([x.all(), y.all()]);
    let groups = [(gate.rows as u32).div_ceil(TEAMS * spec.rows), 1, 1];
    gpu.dispatch(Op::Gated(spec), &spans, &parameters, groups)
}

pub(crate) fn close(spec: Spec) -> (Source, String) {
    let sums = spec.sums();
    let source = declare(Source::new(), spec, 0);
    let source = source
        .read("x", "vec4<f32>")
        .read("pairs", "f32")
        .read("weights", "f32")
        .read("factor", "f32")
        .write("y", "f32")
        .parameters(&["rows", "columns", "row_words", "row_groups", "k"]);
    let source = shared(spec, source);
    let mut body = format!(
        "let lane = lid & 31u;
        let team = lid >> 5u;
        let units = p.columns / {}u;
        let first = (wid.x * {TEAMS}u + team) * {}u;
        let x0 = 0u;
        ",
        sums.values(),
        spec.rows
    );
    for row in 0..spec.rows {
        let _ = writeln!(body, "let row{row} = min(first + {row}u, p.rows - 1u);");
    }
    body.push_str(&starts(spec));
    body.push_str(&sums.zero());
    body.push_str(&sums.accumulate(&|of, _, index| format!("{}[{index}]", plane(0, of))));
    // As `experts::combine`.
    body.push_str(&sums.finish(
        "let row = first + r;
        if row < p.rows {
            var all = 0.0;
            for (var rank = 0u; rank < p.k; rank = rank + 1u) {
                all = fma(pairs[rank * p.rows + row], weights[rank], all);
            }
            all = fma(sum, 1.0 / (1.0 + exp(-factor[0])), all);
            y[row] = y[row] + all;
        }",
    ));
    (source, body)
}

/// `y[rows] += sum_k weights[k] * pairs[k, rows] + sigmoid(factor) * (down x)` of one token.
///
/// # Errors
/// The device failed.
pub fn launch_close(
    gpu: &mut Gpu,
    down: &Planes,
    (x, factor): (&Buffer, &Buffer),
    (pairs, weights): (&Buffer, &Buffer),
    y: &Buffer,
    k: usize,
) -> Result<(), GpuError> {
    assert!(serves(down.packing), "fused products");
    let spec = Spec::new(down, down.rows);
    let (columns, packing) = (down.columns, down.packing);
    let parameters = [
        down.rows as u32,
        columns as u32,
        packing.row_step(columns),
        packing.row_groups(columns),
        k as u32,
    ];
    let mut spans = down.spans(None);
    spans.extend([x.all(), pairs.all(), weights.all(), factor.all(), y.all()]);
    let groups = [(down.rows as u32).div_ceil(TEAMS * spec.rows), 1, 1];
    gpu.dispatch(Op::Close(spec), &spans, &parameters, groups)
}
