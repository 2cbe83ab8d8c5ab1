//! Products of one token with what comes before, behind or beside them, in one launch each: the norm and several
//! matrices, the first half of the shared expert beside the choice of the others, and its second half with the sum of a
//! layer.
//!
//! Every sum has the order that it has in the plain kernels, so that a token's bits are the same either way.

use std::fmt::Write as _;

use super::combine::Weighed;
use super::packing::Packing;
use super::product::{TEAMS, team_rows};
use super::sums::{Load, Sums};
use super::{Op, convolution, router};
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError, Planes, Slabs, Span};

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
    pub(super) fn new(matrix: &Planes, rows: usize) -> Self {
        let packing = matrix.packing;
        let rows = team_rows(packing, rows, 1);
        Self { packing, together: packing.together(matrix.columns), rows }
    }

    /// True where the kernels here compute such matrices: four values of the input are read at once, and values are not
    /// points of a grid.
    pub(super) fn is_served(self) -> bool {
        let of_grid = self.packing.block().is_some_and(|format| format.grid().is_some());
        self.packing.unit() * self.together >= 4 && !of_grid
    }

    pub(super) fn sums(self, form: Form) -> Sums {
        let Self { packing, together, rows } = self;
        Sums { packing, together, rows, tokens: 1, form, apart: false }
    }
}

/// True where the kernels here compute matrices of this packing with so many columns.
pub fn serves(packing: Packing, columns: usize) -> bool {
    Spec { packing, together: packing.together(columns), rows: 1 }.is_served()
}

/// Declares the planes of matrix `number`.
pub(super) fn declare(source: Source, spec: Spec, number: usize) -> Source {
    spec.packing.declare_together(source, spec.together, &format!("{number}_"))
}

/// The name of a plane.
pub(super) fn plane(number: usize, plane: u32) -> String {
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
";

/// Where the rows `row{r}` of a team begin.
pub(super) fn starts(spec: Spec) -> String {
    (0..spec.rows).fold(String::new(), |mut text, row| {
        let _ = write!(
            text,
            "let w{row} = row{row} * p.row_words;
            let s{row} = {};
            ",
            spec.packing.row_scales(&format!("row{row}"))
        );
        text
    })
}

/// `taps`: of the filter that the first product's rows go through, or none.
pub(crate) fn several(
    spec: Spec,
    count: usize,
    keep: bool,
    taps: u32,
    form: Form,
) -> (Source, String) {
    let sums = spec.sums(form);
    let mut source = (0..count).fold(Source::new(), |source, number| declare(source, spec, number));
    source = source.read("x", "vec4<f32>").read("weight", "vec4<f32>");
    for number in 0..count {
        source = source.write(&format!("y{number}"), "f32");
    }
    if keep {
        source = source.write("normed", "vec4<f32>");
    }
    if taps > 0 {
        source = source.read("filter_of", "f32").write("tail", "f32");
    }
    const ROWS: [&str; MATRICES] = ["rows0", "rows1", "rows2", "rows3"];
    let source = source
        .parameters(&["columns", "row_words", "row_groups", "epsilon"])
        .parameters(&ROWS[..count]);
    let source = sums.declare(source).shared("red", "array<f32, 256>").function(tree_sum(form));
    let each = TEAMS * spec.rows;
    let mut body = sums.begin();
    body.push_str(
        "var which = 0u;
        var group = wid.x;
        var rows = p.rows0;
        ",
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
    let _ = writeln!(body, "let first = (group * {TEAMS}u + team) * {}u;", spec.rows);
    for row in 0..spec.rows {
        let _ = writeln!(body, "let row{row} = min(first + {row}u, rows - 1u);");
    }
    body.push_str(&starts(spec));
    if taps > 0 {
        // What the filter needs comes while the weights do.
        body.push_str(&convolution::ask(
            taps,
            "which == 0u",
            "p.rows0",
            &format!("min(first + lane % {}u, rows - 1u)", spec.rows),
        ));
    }
    let mut before = String::from(FACTOR);
    if keep {
        before.push_str(
            "if wid.x == 0u {
                for (var i = lid; i < (p.columns >> 2u); i = i + 256u) { normed[i] = x[i] * factor * weight[i]; }
            }
            ",
        );
    }
    let case = |number: usize| match number {
        0 => "default".to_owned(),
        _ => format!("case {number}u"),
    };
    let cases = |each: &dyn Fn(Load<'_>) -> String| {
        let mut text = String::from("switch which {\n");
        for number in (0..count).rev() {
            let loads = each(&|of, _, index| format!("{}[{index}]", plane(number, of)));
            let _ = writeln!(text, "{}: {{\n{loads}}}", case(number));
        }
        text.push_str("}\n");
        text
    };
    body.push_str(&sums.accumulate_of(&cases, &before, "x[vec_at] * factor * weight[vec_at]"));
    let mut store = String::from("let row = first + r;\nif row < rows {\nswitch which {\n");
    for number in (0..count).rev() {
        let put = match (number, taps) {
            (0, 1..) => convolution::filter(taps, "p.rows0", "row", "y0[row]"),
            _ => format!("y{number}[row] = sum;"),
        };
        let _ = writeln!(store, "{}: {{ {put} }}", case(number));
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
    let (spec, groups, parameters, mut spans) = several_launch(matrices, (x, weight), epsilon);
    spans.extend(keep.map(Buffer::all));
    let op = Op::Several { spec, count: matrices.len() as u32, keep: keep.is_some() };
    gpu.dispatch(op, &spans, &parameters, [groups, 1, 1])
}

/// [`launch_several`] of four matrices; the first one's product goes through the filter of
/// [`convolution::launch`], whose last inputs are in `tail`: `[channels, taps]` and `[taps - 1, channels]`.
///
/// # Errors
/// The device failed.
pub fn launch_delta_inputs(
    gpu: &mut Gpu,
    matrices: [(&Planes, &Buffer); MATRICES],
    from: (&Buffer, &Buffer),
    epsilon: f32,
    (filter, tail, taps): (&Buffer, &Buffer, usize),
) -> Result<(), GpuError> {
    assert!((2..=convolution::TAPS_LIMIT).contains(&taps), "{taps} taps");
    let (spec, groups, parameters, mut spans) = several_launch(&matrices, from, epsilon);
    spans.extend([filter.all(), tail.all()]);
    let op = Op::DeltaInputs { spec, taps: taps as u32 };
    gpu.dispatch(op, &spans, &parameters, [groups, 1, 1])
}

/// The text, workgroups, parameters and buffers of several products.
fn several_launch<'a>(
    matrices: &[(&'a Planes, &'a Buffer)],
    (x, weight): (&'a Buffer, &'a Buffer),
    epsilon: f32,
) -> (Spec, u32, Vec<u32>, Vec<Span<'a>>) {
    let first = matrices[0].0;
    assert!(
        (1..=MATRICES).contains(&matrices.len()) && serves(first.packing, first.columns),
        "fused products"
    );
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
    let each = (TEAMS * spec.rows) as usize;
    let groups: usize = matrices.iter().map(|(matrix, _)| matrix.rows.div_ceil(each)).sum();
    (spec, groups as u32, parameters, spans)
}

/// Buffers and parameters of the first half of an expert.
fn declare_gated(source: Source, spec: Spec) -> Source {
    let source = declare(declare(source, spec, 0), spec, 1);
    source.read("x", "vec4<f32>").write("y", "f32").parameters(&[
        "rows",
        "columns",
        "row_words",
        "row_groups",
    ])
}

/// The sums of both matrices of a team.
fn gated_sums(spec: Spec, form: Form) -> Sums {
    Sums { rows: 2 * spec.rows, ..spec.sums(form) }
}

/// The first half of an expert, by workgroup `group`.
fn gated_body(spec: Spec, form: Form, group: &str) -> String {
    let (sums, own) = (gated_sums(spec, form), spec.rows);
    let mut body = sums.begin();
    let _ = writeln!(body, "let first = ({group} * {TEAMS}u + team) * {own}u;");
    for row in 0..2 * own {
        let _ = writeln!(body, "let row{row} = min(first + {}u, p.rows - 1u);", row % own);
    }
    body.push_str(&starts(Spec { rows: 2 * own, ..spec }));
    let load =
        |of: u32, row: u32, index: &str| format!("{}[{index}]", plane((row / own) as usize, of));
    body.push_str(&sums.accumulate_of(&|each| each(&load), "", "x[vec_at]"));
    body.push_str(&sums.finish_pairs(
        own,
        "if first + r < p.rows { y[first + r] = gate / (1.0 + exp(-gate)) * up; }",
    ));
    body
}

pub(crate) fn gated(spec: Spec, form: Form) -> (Source, String) {
    let (source, sums) = (declare_gated(Source::new(), spec), gated_sums(spec, form));
    let source = sums.declare_pairs(sums.declare(source));
    (source, gated_body(spec, form, "wid.x"))
}

pub(crate) fn choose(spec: Spec, form: Form) -> (Source, String) {
    let source = declare_gated(router::declare(Source::new()), spec);
    let sums = gated_sums(spec, form);
    let source = router::declare_shared(sums.declare_pairs(sums.declare(source)), form);
    // Scores lie where the other workgroups hold their input.
    let body = format!(
        "{}if wid.x == 0u {{
            {}
        }} else {{
            {}
        }}
        ",
        router::BEGIN,
        router::body("staged", router::LOGIT),
        gated_body(spec, form, "(wid.x - 1u)")
    );
    (source, body)
}

/// The parameters and buffers of the first half of an expert.
fn gated_launch<'a>(
    [gate, up]: [&'a Planes; 2],
    x: &'a Buffer,
    y: &'a Buffer,
) -> (Spec, [u32; 4], Vec<Span<'a>>) {
    let alike = gate.packing == up.packing && (gate.rows, gate.columns) == (up.rows, up.columns);
    assert!(alike && serves(gate.packing, gate.columns), "fused products");
    let spec = Spec { rows: 1, ..Spec::new(gate, gate.rows) };
    let (columns, packing) = (gate.columns, gate.packing);
    let parameters =
        [gate.rows as u32, columns as u32, packing.row_step(columns), packing.row_groups(columns)];
    let mut spans = gate.spans(None);
    spans.extend(up.spans(None));
    spans.extend([x.all(), y.all()]);
    (spec, parameters, spans)
}

/// `y[rows] = silu(gate x) * (up x)` of one token; both matrices are packed alike.
///
/// # Errors
/// The device failed.
pub fn launch_gated(
    gpu: &mut Gpu,
    matrices: [&Planes; 2],
    x: &Buffer,
    y: &Buffer,
) -> Result<(), GpuError> {
    let (spec, parameters, spans) = gated_launch(matrices, x, y);
    let groups = [(matrices[0].rows as u32).div_ceil(TEAMS * spec.rows), 1, 1];
    gpu.dispatch(Op::Gated(spec), &spans, &parameters, groups)
}

/// What a router chooses by, as [`router::launch`] takes it.
#[derive(Clone, Copy)]
pub struct Router<'a> {
    /// `[experts]`
    pub logits: Span<'a>,
    /// Where experts have slots.
    pub slabs: &'a Slabs,
    /// Where the choice goes.
    pub choice: router::Choice<'a>,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts of a token.
    pub k: usize,
    /// Whether weights sum to one.
    pub normalise: bool,
}

/// [`launch_gated`], and in the same launch [`router::launch`] of one token.
///
/// # Errors
/// The device failed.
pub fn launch_choose(
    gpu: &mut Gpu,
    matrices: [&Planes; 2],
    x: &Buffer,
    y: &Buffer,
    Router { logits, slabs, choice, experts, k, normalise }: Router<'_>,
) -> Result<(), GpuError> {
    let (spec, gated, more) = gated_launch(matrices, x, y);
    let parameters = [&choice.parameters(experts, k, normalise)[..], &gated].concat();
    let spans = [&choice.spans(logits, slabs)[..], &more].concat();
    let groups = [1 + (matrices[0].rows as u32).div_ceil(TEAMS * spec.rows), 1, 1];
    gpu.dispatch(Op::Choose(spec), &spans, &parameters, groups)
}

pub(crate) fn close(spec: Spec, form: Form) -> (Source, String) {
    let sums = spec.sums(form);
    let source = declare(Source::new(), spec, 0);
    let source = source
        .read("x", "vec4<f32>")
        .read("pairs", "f32")
        .read("weights", "f32")
        .read("factor", "f32")
        .write("y", "f32")
        .parameters(&["rows", "columns", "row_words", "row_groups", "k"]);
    let source = sums.declare(source);
    let mut body = sums.begin();
    let _ = writeln!(body, "let first = (wid.x * {TEAMS}u + team) * {}u;", spec.rows);
    for row in 0..spec.rows {
        let _ = writeln!(body, "let row{row} = min(first + {row}u, p.rows - 1u);");
    }
    body.push_str(&starts(spec));
    let load = |of: u32, _: u32, index: &str| format!("{}[{index}]", plane(0, of));
    body.push_str(&sums.accumulate_of(&|each| each(&load), "", "x[vec_at]"));
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
    x: &Buffer,
    factor: &Buffer,
    Weighed { rows: pairs, weights }: Weighed<'_>,
    y: &Buffer,
    k: usize,
) -> Result<(), GpuError> {
    assert!(serves(down.packing, down.columns), "fused products");
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
