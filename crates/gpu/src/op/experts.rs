//! The routed experts of a layer: gate and up with their activation, then down; each pair of a token and an expert
//! has a row of its own, and [`super::combine`] adds a token's rows up by ascending expert id.
//!
//! A workgroup serves one *tile*: some pairs of one expert. The expert's record is found through a table of words,
//! `slab << 24 | slot + 1`; the text has one copy of its loop per slab. An expert without a slot is left out, and a
//! flag that another layer has raised stops all.

use std::fmt::Write as _;

use kernels::format::Encoding;

use super::Op;
use super::elementwise::{GELU, LIMITED};
use super::packing::Packing;
use super::product::{TEAMS, team_rows};
use super::sums::Sums;
use crate::source::{Form, Source};
use crate::{Buffer, Gpu, GpuError, Slabs, Span};

pub use super::product::TILE as TILE_TOKENS;

/// Which products of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// `silu(gate x) * up x`
    GateUp,
    /// `down x`
    Down,
}

/// What experts compute between their matrices, and whether these have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Between {
    /// `silu(gate) * up`, no biases.
    SwiGlu,
    /// `gelu(gate) * up` with the approximation by a hyperbolic tangent, no biases.
    GeGlu,
    /// `silu(g) * u` with `g = min(gate, limit)` and `u = up` within `-limit..=limit`, no biases.
    Limited,
    /// `g * sigmoid(alpha g) * (u + 1)` with `g = min(gate, limit)` and `u = up` within `-limit..=limit`, of gate and
    /// up with their biases; down has biases too.
    Clamped {
        /// True where rows of gate and up lie in turns, gate first, through both matrices, which have an even number of
        /// rows.
        in_turns: bool,
    },
}

/// What an expert with [`Between::Clamped`] has beside its matrices.
#[derive(Clone, Copy, Debug)]
pub struct Clamped<'a> {
    /// Factor of the gate within the sigmoid.
    pub alpha: f32,
    /// What both are clamped to.
    pub limit: f32,
    /// See [`Between::Clamped`].
    pub in_turns: bool,
    /// Experts of the layer.
    pub experts: usize,
    /// `[2, experts, inner]`: of gates, then of ups.
    pub gate_up: &'a Buffer,
    /// `[experts, hidden]`
    pub down: &'a Buffer,
}

/// What is between the matrices of a launch's experts.
#[derive(Clone, Copy, Debug)]
pub enum Activation<'a> {
    /// As [`Between::SwiGlu`].
    SwiGlu,
    /// As [`Between::GeGlu`].
    GeGlu,
    /// As [`Between::Limited`], with what both are clamped to.
    Limited(f32),
    /// As [`Between::Clamped`].
    Clamped(Clamped<'a>),
}

impl Between {
    /// Functions that the text calls.
    pub(super) fn function(self, source: Source, half: Half) -> Source {
        match (self, half) {
            (Self::GeGlu, Half::GateUp) => source.function(GELU),
            _ => source,
        }
    }

    /// Declares the biases of one half and what belongs to them.
    pub(super) fn declare(self, source: Source, half: Half) -> Source {
        match (self, half) {
            (Self::SwiGlu | Self::GeGlu, _) | (Self::Limited, Half::Down) => source,
            (Self::Limited, Half::GateUp) => source.parameters(&["limit"]),
            (Self::Clamped { .. }, Half::Down) => source.read("bias", "f32"),
            (Self::Clamped { .. }, Half::GateUp) => {
                source.read("bias", "f32").parameters(&["alpha", "limit", "up_biases"])
            }
        }
    }

    /// Statements that give what the first half writes as `inner`, of `gate` and `up` of row `row` of `expert`.
    pub(super) fn inner(self, row: &str) -> String {
        match self {
            Self::SwiGlu => "let inner = gate / (1.0 + exp(-gate)) * up;".to_owned(),
            Self::GeGlu => "let inner = gelu(gate) * up;".to_owned(),
            Self::Limited => format!(
                "let limit = bitcast<f32>(p.limit);\n{LIMITED}let inner = g / (1.0 + exp(-g)) * u;"
            ),
            // What is no number stays none: comparisons with it are false.
            Self::Clamped { .. } => format!(
                "let at_bias = expert * p.rows + {row};
                let limit = bitcast<f32>(p.limit);
                let g0 = gate + bias[at_bias];
                let u0 = up + bias[p.up_biases + at_bias];
                let g = select(g0, limit, g0 > limit);
                let u = select(select(u0, limit, u0 > limit), -limit, u0 < -limit);
                let inner = g / (1.0 + exp(-(bitcast<f32>(p.alpha) * g))) * (u + 1.0);"
            ),
        }
    }

    /// What the second half writes of the product `sum` of row `row` of `expert`.
    pub(super) fn outer(self, sum: &str, row: &str) -> String {
        match self {
            Self::SwiGlu | Self::GeGlu | Self::Limited => sum.to_owned(),
            Self::Clamped { .. } => format!("{sum} + bias[expert * p.rows + {row}]"),
        }
    }

    pub(super) fn in_turns(self) -> bool {
        self == Self::Clamped { in_turns: true }
    }
}

/// What the text depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Which products.
    pub half: Half,
    /// What is between the halves.
    pub between: Between,
    /// The matrices.
    pub packing: Packing,
    /// Units that an invocation takes at once ([`Packing::together`]).
    pub together: u32,
    /// Pairs of a tile at the most.
    pub tokens: u32,
    /// Slabs that hold records.
    pub slabs: u32,
}

/// Where the planes of a matrix lie in a record, in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Packed values.
    pub weight: u32,
    /// Scales.
    pub scales: u32,
    /// Biases.
    pub biases: u32,
}

/// Where the matrices of a layer's records lie, and their shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Gate, up, down.
    pub places: [Place; 3],
    /// How gate and up are packed.
    pub gate_up: Packing,
    /// How down is packed.
    pub down: Packing,
    /// Width of the stream.
    pub hidden: usize,
    /// Inner width.
    pub inner: usize,
}

/// How a record of a layer lies in a slot: each plane at a whole vector of words, projections in order.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    encodings: [Encoding; 3],
    shapes: [(usize, usize); 3],
    /// Where each plane begins, in bytes.
    starts: [[usize; 3]; 3],
    bytes: usize,
}

impl Layout {
    /// The layout of records with these matrices, gate, up, down, of `(rows, columns)`; `None` where the kernels do not
    /// read them: gate and up are packed alike.
    pub fn new(encodings: [Encoding; 3], shapes: [(usize, usize); 3]) -> Option<Self> {
        let mut starts = [[0; 3]; 3];
        let mut at = 0;
        for ((encoding, (rows, columns)), starts) in encodings.iter().zip(shapes).zip(&mut starts) {
            if !Packing::of(*encoding).serves(columns) {
                return None;
            }
            for (bytes, start) in encoding.plane_bytes(rows, columns).into_iter().zip(starts) {
                *start = at;
                at += bytes.next_multiple_of(16);
            }
        }
        let alike =
            Packing::of(encodings[0]) == Packing::of(encodings[1]) && shapes[0] == shapes[1];
        alike.then_some(Self { encodings, shapes, starts, bytes: at })
    }

    /// The same matrices with their planes elsewhere: `starts` of weight, scales and biases of gate, up, down, in
    /// bytes; the start of a plane without bytes is ignored. `None` where one does not begin at a whole vector of
    /// words.
    pub fn placed(&self, mut starts: [[usize; 3]; 3]) -> Option<Self> {
        let mut bytes = 0;
        for ((encoding, (rows, columns)), starts) in
            self.encodings.iter().zip(self.shapes).zip(&mut starts)
        {
            for (length, start) in encoding.plane_bytes(rows, columns).into_iter().zip(starts) {
                if length == 0 {
                    *start = 0;
                } else if !start.is_multiple_of(16) {
                    return None;
                }
                bytes = bytes.max(*start + length);
            }
        }
        Some(Self { starts, bytes: bytes.next_multiple_of(16), ..*self })
    }

    /// Bytes of a record.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A record from the planes of its matrices.
    pub fn record(&self, planes: [[&[u8]; 3]; 3]) -> Vec<u8> {
        let mut record = vec![0; self.bytes];
        for (planes, starts) in planes.iter().zip(&self.starts) {
            for (plane, &start) in planes.iter().zip(starts) {
                record[start..start + plane.len()].copy_from_slice(plane);
            }
        }
        record
    }

    /// What launches need of it.
    pub fn record_shape(&self) -> Record {
        let place = |starts: [usize; 3]| {
            let [weight, scales, biases] = starts.map(|start| (start / 4) as u32);
            Place { weight, scales, biases }
        };
        Record {
            places: self.starts.map(place),
            gate_up: Packing::of(self.encodings[0]),
            down: Packing::of(self.encodings[2]),
            hidden: self.shapes[0].1,
            inner: self.shapes[0].0,
        }
    }
}

/// The matrices of one half of a record, as every kernel of experts is told of them.
pub(super) struct Sides {
    pub(super) packing: Packing,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) places: [Place; 2],
    half: Half,
}

impl Record {
    pub(super) fn sides(&self, half: Half) -> Sides {
        let [gate, up, down] = self.places;
        let (packing, rows, columns, places) = match half {
            Half::GateUp => (self.gate_up, self.inner, self.hidden, [gate, up]),
            Half::Down => (self.down, self.hidden, self.inner, [down, Place::default()]),
        };
        Sides { packing, rows, columns, places, half }
    }
}

impl Sides {
    /// What a launch over the pairs of `work` is told.
    pub(super) fn parameters(&self, slabs: &Slabs, work: Work<'_>) -> Vec<u32> {
        // Rows of `x` are tokens in the first half, pairs in the second.
        let share = if self.half == Half::GateUp { work.k } else { 1 };
        let [first, second] = self.places;
        let mut parameters = vec![
            self.rows as u32,
            self.columns as u32,
            self.packing.row_step(self.columns),
            self.packing.row_groups(self.columns),
            work.first as u32,
            work.table_start as u32,
            slabs.slot_words(),
            share as u32,
            work.flag,
            first.weight,
            first.scales,
            first.biases,
            second.weight,
            second.scales,
            second.biases,
        ];
        if let (Activation::Clamped(clamped), Half::GateUp) = (work.activation, self.half) {
            let up = (clamped.experts * self.rows) as u32;
            parameters.extend([clamped.alpha.to_bits(), clamped.limit.to_bits(), up]);
        }
        if let (Activation::Limited(limit), Half::GateUp) = (work.activation, self.half) {
            parameters.push(limit.to_bits());
        }
        parameters
    }
}

/// The biases of one half.
pub(super) fn biases<'a>(work: Work<'a>, half: Half) -> Option<Span<'a>> {
    let of = |clamped: Clamped<'a>| match half {
        Half::GateUp => clamped.gate_up.all(),
        Half::Down => clamped.down.all(),
    };
    match work.activation {
        Activation::Clamped(clamped) => Some(of(clamped)),
        Activation::SwiGlu | Activation::GeGlu | Activation::Limited(_) => None,
    }
}

/// What a launch of experts reads before its rows: records, the grid of their format, and where the pairs are.
pub(super) fn spans<'a>(
    slabs: &'a Slabs,
    grid: Option<&'a Buffer>,
    work: Work<'a>,
) -> Vec<Span<'a>> {
    let mut spans = slabs.spans();
    spans.extend(grid.map(Buffer::all));
    spans.extend([slabs.table().all(), work.tiles.all(), work.order.all()]);
    spans
}

/// The pairs that a launch serves.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// Expert, first place in `order`, pairs: of each tile; it may have none.
    pub tiles: &'a Buffer,
    /// First tile.
    pub first: usize,
    /// Tiles.
    pub count: usize,
    /// Pairs of a tile at the most: 1 or [`TILE_TOKENS`], by matrices of [`super::tile::EXPERT_TOKENS`].
    pub pairs: u32,
    /// Pairs, those of an expert together.
    pub order: &'a Buffer,
    /// Experts of a token.
    pub k: usize,
    /// First word of the layer in the table.
    pub table_start: usize,
    /// The layer's flag ([`super::router::Choice`]).
    pub flag: u32,
    /// What is between the matrices.
    pub activation: Activation<'a>,
}

impl Work<'_> {
    /// Where nothing but the first half depends on it, the second is that of [`Between::SwiGlu`].
    pub(super) fn between(&self, half: Half) -> Between {
        match (self.activation, half) {
            (Activation::GeGlu, Half::GateUp) => Between::GeGlu,
            (Activation::Limited(_), Half::GateUp) => Between::Limited,
            (Activation::SwiGlu | Activation::GeGlu | Activation::Limited(_), _) => Between::SwiGlu,
            (Activation::Clamped(it), _) => Between::Clamped { in_turns: it.in_turns },
        }
    }
}

pub(crate) fn source(spec: Spec, form: Form) -> (Source, String) {
    let Spec { packing, together, tokens, .. } = spec;
    let rows = team_rows(packing, usize::MAX, tokens);
    let sums = Sums { packing, together, rows, tokens, form, apart: false };
    let mut source = Source::new();
    let slabs: Vec<String> = (0..spec.slabs).map(|at| format!("slab{at}")).collect();
    let kind = if together == 1 { "u32".to_owned() } else { format!("vec{together}<u32>") };
    for slab in &slabs {
        source = source.read(slab, &kind);
    }
    let source = spec.packing.declare_grid(source);
    let source = source
        .read("table", "u32")
        .read("tiles", "u32")
        .read("order", "u32")
        .read("x", sums.input())
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
    let gate_up = spec.half == Half::GateUp;
    let source = spec.between.function(spec.between.declare(source, spec.half), spec.half);
    let source = sums.declare(source);
    let source = if gate_up { sums.declare_pairs(source) } else { source };
    // Of gate and up together a team owns half as many rows each.
    let own = if gate_up { rows / 2 } else { rows };
    // What does not depend on another is read before anything is decided.
    let mut body = format!(
        "let raised = control[0];
        let tile = (p.first_tile + wid.y) * 3u;
        let expert = tiles[tile];
        let start = tiles[tile + 1u];
        let count = tiles[tile + 2u];
        let word = table[p.layer + expert];
        if (raised != 0u && raised != p.flag) || word == 0u || count == 0u {{ return; }}
        let base = ((word & 0xffffffu) - 1u) * p.slot_words;
        {}
        let first = (wid.x * {TEAMS}u + team) * {own}u;
        ",
        sums.begin()
    );
    // Bytes of blocks are counted from the matrix, so that they stay below 2^32.
    let blocks = spec.packing.block().is_some();
    for row in 0..rows {
        let matrix = if gate_up { row / own } else { 0 };
        let start = |plane: &str| match gate_up && spec.between.in_turns() {
            true => format!("select(p.{plane}0, p.{plane}1, second{row})"),
            false => format!("p.{plane}{matrix}"),
        };
        let _ = writeln!(body, "let own{row} = min(first + {}u, p.rows - 1u);", row % own);
        if gate_up && spec.between.in_turns() {
            let _ = write!(
                body,
                "let turn{row} = 2u * own{row} + {matrix}u;
                let second{row} = turn{row} >= p.rows;
                let row{row} = select(turn{row}, turn{row} - p.rows, second{row});
                "
            );
        } else {
            let _ = writeln!(body, "let row{row} = own{row};");
        }
        let _ = write!(
            body,
            "let m{row} = base + {};
            let w{row} = {from}row{row} * p.row_words;
            let s{row} = {scales};
            let scales{row} = base + {};
            let biases{row} = base + {};
            ",
            start("w"),
            start("s"),
            start("b"),
            scales = packing.row_scales(&format!("row{row}")),
            from = if blocks { String::new() } else { format!("m{row} + ") }
        );
    }
    for token in 0..spec.tokens {
        let _ = write!(
            body,
            "let pair{token} = order[start + min({token}u, count - 1u)];
            let x{token} = (pair{token} / p.share) * p.columns;
            "
        );
    }
    body.push_str(&sums.accumulate(&|each| {
        let mut text = String::from("switch word >> 24u {\n");
        for (index, slab) in slabs.iter().enumerate() {
            let word = |index: String| match together {
                1 => format!("{slab}[{index}]"),
                _ => format!("{slab}[({index}) / {together}u][({index}) % {together}u]"),
            };
            let loads = each(&|plane, row, index| match plane {
                0 if blocks && together > 1 => format!("{slab}[m{row} / {together}u + {index}]"),
                0 if blocks => format!("{slab}[m{row} + {index}]"),
                0 => format!("{slab}[{index}]"),
                1 => word(format!("scales{row} + {index}")),
                _ => word(format!("biases{row} + {index}")),
            });
            let _ = writeln!(text, "case {index}u: {{\n{loads}}}");
        }
        text.push_str("default: {}\n}\n");
        text
    }));
    let mut pair = String::from("var pair = pair0;\n");
    for token in 1..spec.tokens {
        let _ = writeln!(pair, "if t == {token}u {{ pair = pair{token}; }}");
    }
    match spec.half {
        Half::Down => body.push_str(&sums.finish(&format!(
            "{pair}
            if first + r < p.rows && t < count {{
                y[pair * p.rows + first + r] = {};
            }}",
            spec.between.outer("sum", "first + r")
        ))),
        Half::GateUp => body.push_str(&sums.finish_pairs(
            own,
            &format!(
                "{pair}
                if first + r < p.rows && t < count {{
                    {}
                    y[pair * p.rows + first + r] = inner;
                }}",
                spec.between.inner("(first + r)")
            ),
        )),
    }
    (source, body)
}

/// One half of the experts of `work` over their pairs. `x` has a row per token for the first half, per pair for the
/// second; `y` has a row per pair.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    half: Half,
    record: &Record,
    slabs: &Slabs,
    work: Work<'_>,
    x: &Buffer,
    y: &Buffer,
) -> Result<(), GpuError> {
    let sides = record.sides(half);
    let (packing, rows) = (sides.packing, sides.rows);
    let together = packing.together(sides.columns);
    let slabs_count = slabs.count() as u32;
    let (between, tokens) = (work.between(half), work.pairs);
    let spec = Spec { half, between, packing, together, tokens, slabs: slabs_count };
    let own = team_rows(packing, usize::MAX, work.pairs) / if half == Half::GateUp { 2 } else { 1 };
    let parameters = sides.parameters(slabs, work);
    let grid = gpu.grid(packing)?;
    let mut spans = spans(slabs, grid.as_ref(), work);
    spans.extend([x.all(), y.all()]);
    spans.extend(biases(work, half));
    let groups = [(rows as u32).div_ceil(TEAMS * own), work.count as u32, 1];
    gpu.dispatch(Op::Experts(spec), &spans, &parameters, groups)
}
