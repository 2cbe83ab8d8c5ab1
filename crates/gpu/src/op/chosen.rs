//! The experts of one token in two launches: their choice with the first halves, and the second halves with the sum of
//! the layer. The expert that is always used goes with them, where its matrices are packed as theirs.
//!
//! On an H200 half of a token's time was launches that wait for the launch before. So each workgroup of the first
//! halves chooses for itself, which costs it less than a launch, and a workgroup of the second halves computes some
//! rows of all experts, so that it can add them up. Every sum has the order that it has in the plain kernels.

use std::fmt::Write as _;

use super::experts::{Half, Record};
use super::packing::Packing;
use super::product::{TEAMS, team_rows};
use super::sums::{Load, Sums};
use super::{Op, STOP_HERE, fused, router};
use crate::source::{Form, Source, tree_max, tree_sum};
use crate::{Buffer, Gpu, GpuError, Planes, Slabs, Span};

/// Most slabs that these kernels read: what Metal can bind beside their other buffers.
pub const SLABS: usize = 16;
/// Buffers of these kernels that are no slabs, at the most.
const OTHERS: usize = 13;
/// Names of a matrix's planes.
const PLANES: [&str; 3] = ["w", "scales", "biases"];
/// Experts that a team looks at first.
const PART: usize = 32;
/// Experts that are left then, of all parts.
const CANDIDATES: usize = 512;

/// What the text of these kernels depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The matrices.
    pub packing: Packing,
    /// Units that an invocation takes at once ([`Packing::together`]), more than one.
    pub together: u32,
    /// Slabs that hold records.
    pub slabs: u32,
    /// Whether an expert is always used.
    pub shared: bool,
}

impl Spec {
    /// True where the kernels here compute such matrices: units are read as vectors, and values are not points of a
    /// grid.
    pub(super) fn is_served(packing: Packing, together: u32) -> bool {
        together > 1 && fused::Spec { packing, together, rows: 1 }.is_served()
    }

    fn sums(self, rows: u32, form: Form) -> Sums {
        let Self { packing, together, .. } = self;
        Sums { packing, together, rows, tokens: 1, form, apart: false }
    }

    /// Declares slabs and the table.
    fn declare(self, mut source: Source) -> Source {
        for slab in 0..self.slabs {
            source = source.read(&format!("slab{slab}"), &format!("vec{}<u32>", self.together));
        }
        source.read("table", "u32")
    }

    /// The cases of a read, by the variable `word`: each slab, and behind them the matrices that are always used, of
    /// `always` rows each. Row `r` of an expert's matrix begins in its slab as [`starts`] says.
    fn cases(self, always: Option<u32>, each: &dyn Fn(Load<'_>) -> String) -> String {
        let together = self.together;
        let mut text = String::from("switch word >> 24u {\n");
        for slab in 0..self.slabs {
            let word = |index: String| {
                format!("slab{slab}[({index}) / {together}u][({index}) % {together}u]")
            };
            let loads = each(&|plane, row, index| match plane {
                0 => format!("slab{slab}[m{row} / {together}u + {index}]"),
                1 => word(format!("scales{row} + {index}")),
                _ => word(format!("biases{row} + {index}")),
            });
            let _ = writeln!(text, "case {slab}u: {{\n{loads}}}");
        }
        if let Some(own) = always {
            let loads = each(&|plane, row, index| {
                format!("{}{}_[{index}]", PLANES[plane as usize], row / own)
            });
            let _ = writeln!(text, "case {}u: {{\n{loads}}}", self.slabs);
        }
        text.push_str("default: {}\n}\n");
        text
    }
}

/// Where the rows of a team begin: `first + row % own` of the matrix of an expert at `base` that `row / own` counts.
fn starts(packing: Packing, rows: u32, own: u32) -> String {
    let mut text = String::new();
    for row in 0..rows {
        let _ = write!(
            text,
            "let row{row} = min(first + {local}u, p.rows - 1u);
            let m{row} = base + p.w{matrix};
            let w{row} = row{row} * p.row_words;
            let s{row} = {scales};
            let scales{row} = base + p.s{matrix};
            let biases{row} = base + p.b{matrix};
            ",
            scales = packing.row_scales(&format!("row{row}")),
            local = row % own,
            matrix = row / own
        );
    }
    text
}

/// The expert of rank `rank` by its number, as a word of the table, in `word`. As in `router`, an expert is chosen that
/// fewer than `k` precede; those that as many of their own part precede are left out before.
const CHOOSE: &str = "
            var words = vec4<u32>(0u);
            for (var part = 0u; part < 4u; part = part + 1u) {
                let e = part * 256u + lid;
                if e < p.experts {
                    words[part] = table[p.table_start + e];
                    let value = logits[e];
                    // Behind the last expert nothing precedes.
                    let number = (bitcast<u32>(value) & 0x7fffffffu) < 0x7f800000u;
                    staged[e >> 2u][e & 3u] = select(-3.0e38, max(value, -3.3e38), number);
                } else {
                    staged[e >> 2u][e & 3u] = -3.4e38;
                }
            }
            let parts = (p.experts + 31u) >> 5u;
            let left = parts * p.k;
            // The last vector of candidates may not be full.
            if lid < 4u && (left & 3u) != 0u && (left & 3u) <= lid { staged[256u + (left >> 2u)][lid] = -3.4e38; }
            workgroupBarrier();
            for (var e = lid; e < parts * 32u; e = e + 256u) {
                let mine = staged[e >> 2u][e & 3u];
                var before = vec4<u32>(0u);
                for (var step = 0u; step < 8u; step = step + 1u) {
                    let other = (e >> 5u) * 8u + step;
                    let theirs = staged[other];
                    let numbers = vec4<u32>(other * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
                    let same = select(vec4<u32>(0u), vec4<u32>(1u), theirs == vec4<f32>(mine))
                        * select(vec4<u32>(0u), vec4<u32>(1u), numbers < vec4<u32>(e));
                    before = before + same + select(vec4<u32>(0u), vec4<u32>(1u), theirs > vec4<f32>(mine));
                }
                let place = (before.x + before.y) + (before.z + before.w);
                if place < p.k {
                    let to = (e >> 5u) * p.k + place;
                    staged[256u + (to >> 2u)][to & 3u] = mine;
                    staged[384u + (to >> 2u)][to & 3u] = f32(e);
                }
            }
            workgroupBarrier();
            for (var at = lid; at < left; at = at + 256u) {
                let mine = staged[256u + (at >> 2u)][at & 3u];
                let number = staged[384u + (at >> 2u)][at & 3u];
                var before = vec4<u32>(0u);
                for (var other = 0u; other < ((left + 3u) >> 2u); other = other + 1u) {
                    let theirs = staged[256u + other];
                    let same = select(vec4<u32>(0u), vec4<u32>(1u), theirs == vec4<f32>(mine))
                        * select(vec4<u32>(0u), vec4<u32>(1u), staged[384u + other] < vec4<f32>(number));
                    before = before + same + select(vec4<u32>(0u), vec4<u32>(1u), theirs > vec4<f32>(mine));
                }
                let place = (before.x + before.y) + (before.z + before.w);
                if place < p.k { chosen[place] = u32(number); }
            }
            workgroupBarrier();
            if lid < p.k {
                let e = chosen[lid];
                var place = 0u;
                for (var other = 0u; other < p.k; other = other + 1u) {
                    if chosen[other] < e { place = place + 1u; }
                }
                if place == rank { own = e; }
            }
            workgroupBarrier();
            if lid == (own & 255u) { place_of = words[own >> 8u]; }
";

/// What the choice leaves, by a workgroup of its own. As in `router`.
const WRITE: &str = "
            var greatest = -3.0e38;
            for (var e = lid; e < p.experts; e = e + 256u) {
                let value = logits[e];
                if (bitcast<u32>(value) & 0x7fffffffu) >= 0x7f800000u { control[1] = 1u; }
                greatest = max(greatest, staged[e >> 2u][e & 3u]);
            }
            red[lid] = greatest;
            greatest = tree_max(lid);
            var sum = 0.0;
            for (var e = lid; e < p.experts; e = e + 256u) { sum = sum + exp(staged[e >> 2u][e & 3u] - greatest); }
            red[lid] = sum;
            sum = tree_sum(lid);
            if lid < p.k {
                let e = chosen[lid];
                var place = 0u;
                for (var other = 0u; other < p.k; other = other + 1u) {
                    if chosen[other] < e { place = place + 1u; }
                }
                best[place] = exp(staged[e >> 2u][e & 3u] - greatest);
                ids[p.first_id + place] = e;
                if table[p.table_start + e] == 0u { control[0] = p.flag; }
            }
            workgroupBarrier();
            if lid < p.k {
                var all = sum;
                if p.normalise != 0u {
                    all = 0.0;
                    for (var place = 0u; place < p.k; place = place + 1u) { all = all + best[place]; }
                }
                weights[lid] = best[lid] / all;
            }
            return;
";

pub(crate) fn gate_up(spec: Spec, form: Form) -> (Source, String) {
    let rows = team_rows(spec.packing, usize::MAX, 1);
    let (sums, own) = (spec.sums(rows, form), rows / 2);
    let mut source = spec.declare(Source::new()).read("logits", "f32").read("x", sums.input());
    if spec.shared {
        for number in 0..2 {
            let suffix = format!("{number}_");
            source = spec.packing.declare_together(source, spec.together, &suffix);
        }
    }
    let source = source
        .write("ids", "u32")
        .write("weights", "f32")
        .write("y", "f32")
        .parameters(&["rows", "columns", "row_words", "row_groups", "slot_words"])
        .parameters(&["w0", "s0", "b0", "w1", "s1", "b1"])
        .parameters(&["experts", "k", "normalise", "first_id", "table_start", "flag"]);
    let source = sums.declare_pairs(sums.declare(source));
    let source = source
        .shared("raised", "u32")
        .shared("own", "u32")
        .shared("place_of", "u32")
        .shared("chosen", "array<u32, 32>")
        .shared("best", "array<f32, 32>")
        .shared("red", "array<f32, 256>")
        .function(tree_sum(form))
        .function(tree_max(form));
    let each = TEAMS * own;
    let (always, write) = match spec.shared {
        true => {
            let word = (spec.slabs << 24) | 1;
            (format!("if rank == p.k {{ if lid == 0u {{ place_of = {word}u; }} }} else {{"), 1)
        }
        false => ("{".to_owned(), 0),
    };
    let mut body = format!(
        "let tiles = (p.rows + {}u) / {each}u;
        let rank = wid.x / tiles;
        if lid == 0u {{
            raised = control[0];
            own = 0u;
        }}
        {always}{CHOOSE}
        }}
        let stopped = workgroupUniformLoad(&raised);
        // A flag that this launch has raised is this layer's.
        if stopped != 0u && stopped != p.flag {{ return; }}
        if rank == p.k + {write}u {{{WRITE}}}
        let word = workgroupUniformLoad(&place_of);
        if word == 0u {{ return; }}
        let base = ((word & 0xffffffu) - 1u) * p.slot_words;
        {}
        let first = ((wid.x % tiles) * {TEAMS}u + team) * {own}u;
        {}",
        each - 1,
        sums.begin(),
        starts(spec.packing, rows, own)
    );
    let always = spec.shared.then_some(own);
    let cases = |each: &dyn Fn(Load<'_>) -> String| spec.cases(always, each);
    body.push_str(&sums.accumulate_of(&cases, "", "x[vec_at]"));
    body.push_str(&sums.finish_pairs(
        own,
        "if first + r < p.rows {
            y[rank * p.rows + first + r] = gate / (1.0 + exp(-gate)) * up;
        }",
    ));
    (source, body)
}

pub(crate) fn down(spec: Spec, form: Form) -> (Source, String) {
    let rows = team_rows(spec.packing, usize::MAX, 1);
    let sums = Sums { apart: true, ..spec.sums(rows, form) };
    let mut source = spec.declare(Source::new()).read("ids", "u32").read("weights", "f32");
    source = source.read("x", sums.input());
    if spec.shared {
        source = spec.packing.declare_together(source, spec.together, "0_").read("factor", "f32");
    }
    let source = source
        .write("y", "f32")
        .parameters(&["rows", "columns", "row_words", "row_groups", "slot_words"])
        .parameters(&["w0", "s0", "b0", "k", "first_id", "table_start"])
        .shared("found", &format!("array<f32, {}>", 33 * rows))
        .shared("weight_of", "array<f32, 32>");
    let source = sums.declare(source);
    // What the end needs is asked for here.
    let mut body = format!(
        "let own_weight = weights[min(lid, p.k - 1u)];
        let first = wid.x * {rows}u;
        var before = 0.0;
        if lid < {rows}u && first + lid < p.rows {{ before = y[first + lid]; }}
        {STOP_HERE}
        {}var next = 0u;
        if team < p.k {{ next = table[p.table_start + ids[p.first_id + team]]; }}
        ",
        sums.begin()
    );
    let one = Sums { rows: 1, ..sums };
    if spec.shared {
        // One row of a team, while the table is read.
        let load =
            |plane: u32, _: u32, index: &str| format!("{}0_[{index}]", PLANES[plane as usize]);
        let _ = write!(
            body,
            "let own_factor = factor[0];
            var always = 0.0;
            if team < {rows}u {{
                let row0 = min(first + team, p.rows - 1u);
                let w0 = row0 * p.row_words;
                let s0 = {};
                let x0 = p.k * p.columns;
                var acc0 = 0.0;
                {}always = acc0;
            }}
            ",
            spec.packing.row_scales("row0"),
            one.accumulate_apart(&|each| each(&load))
        );
    }
    let mut zero = String::new();
    for row in 0..rows {
        let _ = writeln!(zero, "acc{row} = 0.0;");
    }
    let cases = |each: &dyn Fn(Load<'_>) -> String| spec.cases(None, each);
    let _ = write!(
        body,
        "for (var turn = 0u; turn < p.k; turn = turn + {TEAMS}u) {{
            let rank = turn + team;
            let word = next;
            next = 0u;
            if rank + {TEAMS}u < p.k {{
                next = table[p.table_start + ids[p.first_id + rank + {TEAMS}u]];
            }}
            let base = ((word & 0xffffffu) - 1u) * p.slot_words;
            let x0 = rank * p.columns;
            {zero}if word != 0u {{
            {}{}}}
            {}}}
        ",
        starts(spec.packing, rows, rows),
        sums.accumulate_apart(&cases),
        sums.finish(&format!("if rank < p.k {{ found[rank * {rows}u + r] = sum; }}"))
    );
    if spec.shared {
        let put = format!("if team < {rows}u {{ found[p.k * {rows}u + team] = sum; }}");
        let _ = writeln!(body, "{{\nvar acc0 = always;\n{}}}", one.finish(&put));
    }
    let common = match spec.shared {
        true => {
            format!("all = fma(found[p.k * {rows}u + lid], 1.0 / (1.0 + exp(-own_factor)), all);")
        }
        false => String::new(),
    };
    // As `experts::combine`.
    let _ = write!(
        body,
        "if lid < p.k {{ weight_of[lid] = own_weight; }}
        workgroupBarrier();
        if lid < {rows}u && first + lid < p.rows {{
            var all = 0.0;
            for (var rank = 0u; rank < p.k; rank = rank + 1u) {{
                all = fma(found[rank * {rows}u + lid], weight_of[rank], all);
            }}
            {common}
            y[first + lid] = before + all;
        }}
        "
    );
    (source, body)
}

/// The experts of one token in a layer.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// Where a record's matrices lie.
    pub record: &'a Record,
    /// The records.
    pub slabs: &'a Slabs,
    /// Where the choice is written to; nothing is to its `tiles`.
    pub choice: router::Choice<'a>,
    /// Experts of the layer, and of the token.
    pub shape: (usize, usize),
    /// Gate, up and down of the expert that is always used.
    pub shared: Option<[&'a Planes; 3]>,
    /// `[k, inner]`, with the one that is always used `[k + 1, inner]`: what first halves leave.
    pub inner: &'a Buffer,
}

impl Work<'_> {
    fn spec(&self, half: Half) -> Spec {
        let sides = self.record.sides(half);
        let (packing, together) = (sides.packing, sides.packing.together(sides.columns));
        let slabs = self.slabs.count() as u32;
        Spec { packing, together, slabs, shared: self.shared.is_some() }
    }

    /// True where [`launch_gate_up`] and [`launch_down`] compute this on an adapter: the matrices of all experts are
    /// packed alike and of one shape, in not too many slabs.
    pub fn is_served(&self, gpu: &Gpu) -> bool {
        let ((experts, k), slabs) = (self.shape, self.slabs.count());
        let Record { gate_up, down, hidden, inner, .. } = *self.record;
        let alike = |planes: &Planes, packing, shape| {
            planes.packing == packing && (planes.rows, planes.columns) == shape
        };
        let shared = self.shared.is_none_or(|[gate, up, last]| {
            [gate, up].into_iter().all(|it| alike(it, gate_up, (inner, hidden)))
                && alike(last, down, (hidden, inner))
        });
        let halves = [(gate_up, hidden), (down, inner)];
        let served =
            |(packing, columns)| Spec::is_served(packing, Packing::together(packing, columns));
        shared
            && halves.into_iter().all(served)
            && slabs <= SLABS
            && slabs + OTHERS <= gpu.adapter().bindings as usize
            && experts <= router::EXPERTS_LIMIT
            && k <= router::TOP_K_LIMIT
            && experts.div_ceil(PART) * k <= CANDIDATES
    }

    fn parameters(&self, half: Half) -> Vec<u32> {
        let sides = self.record.sides(half);
        let mut parameters = vec![
            sides.rows as u32,
            sides.columns as u32,
            sides.packing.row_step(sides.columns),
            sides.packing.row_groups(sides.columns),
            self.slabs.slot_words(),
        ];
        let places = sides.places.iter().flat_map(|it| [it.weight, it.scales, it.biases]);
        parameters.extend(places.take(if half == Half::GateUp { 6 } else { 3 }));
        parameters
    }
}

/// Of one token: the choice by `logits` as [`router::launch`], and `inner[rank] = silu(gate x) * (up x)` of each chosen
/// expert by ascending id, behind them of the one that is always used. `x` has one row.
///
/// # Errors
/// The device failed.
pub fn launch_gate_up(
    gpu: &mut Gpu,
    work: Work<'_>,
    (logits, normalise): (Span<'_>, bool),
    x: &Buffer,
) -> Result<(), GpuError> {
    let spec = work.spec(Half::GateUp);
    let mut parameters = work.parameters(Half::GateUp);
    parameters.extend(work.choice.parameters(work.shape.0, work.shape.1, normalise));
    let mut spans = work.slabs.spans();
    spans.extend([work.slabs.table().all(), logits, x.all()]);
    if let Some([gate, up, _]) = work.shared {
        spans.extend([gate, up].into_iter().flat_map(|it| it.spans(None)));
    }
    spans.extend([work.choice.ids, work.choice.weights, work.inner].map(Buffer::all));
    let own = team_rows(spec.packing, usize::MAX, 1) / 2;
    let tiles = work.record.inner.div_ceil((TEAMS * own) as usize);
    let groups = tiles * (work.shape.1 + usize::from(spec.shared)) + 1;
    gpu.dispatch(Op::ChosenGateUp(spec), &spans, &parameters, [groups as u32, 1, 1])
}

/// `y += sum_k weights[k] * (down_k inner[k])`, and `sigmoid(factor)` times that of the expert that is always used:
/// `factor` is read where there is one.
///
/// # Errors
/// The device failed.
pub fn launch_down(
    gpu: &mut Gpu,
    work: Work<'_>,
    factor: &Buffer,
    y: &Buffer,
) -> Result<(), GpuError> {
    let spec = work.spec(Half::Down);
    let mut parameters = work.parameters(Half::Down);
    let router::Choice { ids, weights, first_id, table_start, .. } = work.choice;
    parameters.extend([work.shape.1 as u32, first_id as u32, table_start as u32]);
    let mut spans = work.slabs.spans();
    spans.extend([work.slabs.table(), ids, weights, work.inner].map(Buffer::all));
    if let Some([.., down]) = work.shared {
        spans.extend(down.spans(None));
        spans.push(factor.all());
    }
    spans.push(y.all());
    let rows = team_rows(spec.packing, usize::MAX, 1) as usize;
    let groups = work.record.hidden.div_ceil(rows);
    gpu.dispatch(Op::ChosenDown(spec), &spans, &parameters, [groups as u32, 1, 1])
}
