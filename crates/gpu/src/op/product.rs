//! `y = W x` for one token or several, and the text that all products share.
//!
//! A team of 32 invocations owns a few rows; invocation `l` takes the units `l`, `l + 32`, ... of each, and the 32 sums
//! of a row are added in a fixed tree. A weight is unpacked once for all tokens of a tile. A sum has the same order
//! whatever the number of tokens.

use std::fmt::Write as _;

use super::packing::Packing;
use super::{Op, blocks};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError, Planes};

/// Tokens that are computed together where there are several.
pub const TILE: u32 = 8;
/// Teams of a workgroup.
pub(crate) const TEAMS: u32 = 8;
/// Sums of a team that are added up at once.
const ROUND: u32 = 8;

/// What the text of a product depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The matrix.
    pub packing: Packing,
    /// Tokens of a tile.
    pub tokens: u32,
    /// True to add to what is there.
    pub add: bool,
}

/// The shared part of products: what is summed and how.
pub(crate) struct Sums {
    pub(crate) packing: Packing,
    pub(crate) tokens: u32,
}

impl Sums {
    /// Rows of a team.
    pub(crate) fn rows(&self) -> u32 {
        if self.packing.unit() <= 8 { 4 } else { 2 }
    }

    fn sums(&self) -> u32 {
        self.rows() * self.tokens
    }

    fn round(&self) -> u32 {
        self.sums().min(ROUND)
    }

    /// How the input is declared.
    pub(crate) fn input(&self) -> &'static str {
        if self.packing.unit() >= 4 { "vec4<f32>" } else { "f32" }
    }

    /// Workgroup memory and functions.
    pub(crate) fn declare(&self, source: Source) -> Source {
        let round = self.round();
        source
            .shared("red", &format!("array<f32, {}>", TEAMS * round * 32))
            .shared("part", &format!("array<f32, {}>", TEAMS * round * 4))
            .function(&self.packing.functions())
    }

    /// Declares the sums.
    pub(crate) fn zero(&self) -> String {
        (0..self.sums()).map(|sum| format!("var acc{sum} = 0.0;\n")).collect()
    }

    /// Reads the units of the rows into `v{row}_{index}`, and `scale{row}` and `bias{row}` where there are any. True
    /// for each of these.
    fn read_units(
        &self,
        text: &mut String,
        load: &dyn Fn(u32, u32, &str) -> String,
    ) -> (bool, bool) {
        let (packing, rows) = (self.packing, self.rows());
        let (words, group) = (packing.unit_words(), packing.group());
        let (_, shift) = packing.number();
        let (mut scaled, mut biased) = (group > 0, group > 0);
        if let Some(format) = packing.block() {
            let parts = format.values() as u32 / blocks::UNIT;
            let _ = writeln!(text, "let part = unit % {parts}u;");
            let _ = writeln!(text, "let start = unit / {parts}u * {}u;", format.bytes());
        }
        for row in 0..rows {
            let name = format!("q{row}_");
            if let Some(format) = packing.block() {
                let at = format!("at{row}");
                let _ = writeln!(text, "let {at} = w{row} + start;");
                let unit = blocks::unit(format, &name, &at, &|index| load(0, row, index));
                text.push_str(&unit.text);
                for (index, value) in unit.values.iter().enumerate() {
                    let _ = writeln!(text, "let v{row}_{index} = {value};");
                }
                let _ = writeln!(text, "let scale{row} = {};", unit.scale);
                scaled = true;
                if let Some(minimum) = unit.minimum {
                    let _ = writeln!(text, "let bias{row} = {minimum};");
                    biased = true;
                }
                continue;
            }
            let at = format!("w{row} + unit * {words}u");
            text.push_str(&packing.load(&name, &at, &|index| load(0, row, index)));
            for (index, value) in packing.values(&name).iter().enumerate() {
                let _ = writeln!(text, "let v{row}_{index} = {value};");
            }
            if group > 0 {
                let _ = writeln!(text, "let g{row} = s{row} + column / {group}u;");
                for (name, plane) in [("scale", 1), ("bias", 2)] {
                    let word = load(plane, row, &format!("(g{row} >> {shift}u)"));
                    let _ = writeln!(text, "let {name}{row} = number({word}, g{row});");
                }
            }
        }
        (scaled, biased)
    }

    /// The loop over units. Row `r` begins at word `w{r}`, of blocks at that byte, and, in scales, at number `s{r}`;
    /// token `t`'s input begins at value `x{t}`. `load` reads a word of weights, scales or biases: plane, row and
    /// index.
    pub(crate) fn accumulate(&self, load: &dyn Fn(u32, u32, &str) -> String) -> String {
        let (rows, unit) = (self.rows(), self.packing.unit());
        let mut text = String::from("for (var unit = lane; unit < units; unit = unit + 32u) {\n");
        let _ = writeln!(text, "let column = unit * {unit}u;");
        let (scaled, biased) = self.read_units(&mut text, load);
        for token in 0..self.tokens {
            text.push_str("{\n");
            if unit >= 4 {
                for part in 0..unit / 4 {
                    let _ =
                        writeln!(text, "let i{part} = x[((x{token} + column) >> 2u) + {part}u];");
                }
            }
            let input = |index: u32| match unit >= 4 {
                true => format!("i{}.{}", index / 4, ["x", "y", "z", "w"][(index % 4) as usize]),
                false => format!("x[x{token} + column + {index}u]"),
            };
            if biased {
                let _ = writeln!(text, "var all = {};", input(0));
                for index in 1..unit {
                    let _ = writeln!(text, "all = all + {};", input(index));
                }
            }
            for row in 0..rows {
                let sum = token * rows + row;
                if !scaled {
                    for index in 0..unit {
                        let _ = writeln!(
                            text,
                            "acc{sum} = fma(v{row}_{index}, {}, acc{sum});",
                            input(index)
                        );
                    }
                    continue;
                }
                let _ = writeln!(text, "var dot{row} = v{row}_0 * {};", input(0));
                for index in 1..unit {
                    let _ = writeln!(
                        text,
                        "dot{row} = fma(v{row}_{index}, {}, dot{row});",
                        input(index)
                    );
                }
                let before = match biased {
                    true => format!("fma(bias{row}, all, acc{sum})"),
                    false => format!("acc{sum}"),
                };
                let _ = writeln!(text, "acc{sum} = fma(scale{row}, dot{row}, {before});");
            }
            text.push_str("}\n");
        }
        text.push_str("}\n");
        text
    }

    /// Adds the sums of 32 invocations up and hands each to `finish`, which finds it as `sum`, its row among the
    /// team's as `r` and its token as `t`.
    pub(crate) fn finish(&self, finish: &str) -> String {
        self.rounds(finish, None)
    }

    /// As [`Sums::finish`]; when `first` has run for every sum of a round, `second` runs for each, without `sum`.
    pub(crate) fn finish_pairs(&self, first: &str, second: &str) -> String {
        self.rounds(first, Some(second))
    }

    fn rounds(&self, finish: &str, then: Option<&str>) -> String {
        let (round, rows) = (self.round(), self.rows());
        let mut text = String::new();
        for first in (0..self.sums()).step_by(round as usize) {
            for index in 0..round {
                let sum = first + index;
                let _ =
                    writeln!(text, "red[(team * {round}u + {index}u) * 32u + lane] = acc{sum};");
            }
            let names =
                format!("let n = {first}u + lane;\nlet r = n % {rows}u;\nlet t = n / {rows}u;");
            let _ = write!(
                text,
                "workgroupBarrier();
                if (lane >> 2u) < {round}u {{
                    let slot = team * {round}u + (lane >> 2u);
                    let at = slot * 32u + (lane & 3u) * 8u;
                    part[slot * 4u + (lane & 3u)] = ((red[at] + red[at + 1u]) + (red[at + 2u] + red[at + 3u]))
                        + ((red[at + 4u] + red[at + 5u]) + (red[at + 6u] + red[at + 7u]));
                }}
                workgroupBarrier();
                if lane < {round}u {{
                    let at = (team * {round}u + lane) * 4u;
                    let sum = (part[at] + part[at + 1u]) + (part[at + 2u] + part[at + 3u]);
                    {names}
                    {finish}
                }}
                "
            );
            if let Some(then) = then {
                let _ = write!(
                    text,
                    "workgroupBarrier();
                    if lane < {round}u {{
                        {names}
                        {then}
                    }}
                    workgroupBarrier();
                    "
                );
            }
        }
        text
    }
}

pub(crate) fn source(spec: Spec) -> (Source, String) {
    let sums = Sums { packing: spec.packing, tokens: spec.tokens };
    let source = spec.packing.declare(Source::new());
    let source = source.read("x", sums.input()).write("y", "f32").parameters(&[
        "rows",
        "columns",
        "tokens",
        "row_words",
        "row_groups",
    ]);
    let source = sums.declare(source);
    let rows = sums.rows();
    let mut body = format!(
        "let lane = lid & 31u;
        let team = lid >> 5u;
        let first = (wid.x * {TEAMS}u + team) * {rows}u;
        let units = p.columns / {unit}u;
        ",
        unit = spec.packing.unit()
    );
    for row in 0..rows {
        let _ = write!(
            body,
            "let row{row} = min(first + {row}u, p.rows - 1u);
            let w{row} = row{row} * p.row_words;
            let s{row} = row{row} * p.row_groups;
            "
        );
    }
    for token in 0..spec.tokens {
        let _ = writeln!(
            body,
            "let x{token} = min(wid.y * {tile}u + {token}u, p.tokens - 1u) * p.columns;",
            tile = spec.tokens
        );
    }
    body.push_str(&sums.zero());
    body.push_str(&sums.accumulate(&|plane, _, index| {
        format!("{}[{index}]", ["w", "scales", "biases"][plane as usize])
    }));
    let tile = spec.tokens;
    let value = if spec.add { "y[at] + sum" } else { "sum" };
    body.push_str(&sums.finish(&format!(
        "let row = first + r;
        let token = wid.y * {tile}u + t;
        if row < p.rows && token < p.tokens {{
            let at = token * p.rows + row;
            y[at] = {value};
        }}"
    )));
    (source, body)
}

/// `y[tokens, rows] = W x[tokens, columns]`, or `y += W x`.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    matrix: &Planes,
    x: &Buffer,
    y: &Buffer,
    tokens: usize,
    add: bool,
) -> Result<(), GpuError> {
    let packing = matrix.packing;
    let tile = if tokens == 1 { 1 } else { TILE };
    let spec = Spec { packing, tokens: tile, add };
    let rows = Sums { packing, tokens: tile }.rows();
    let parameters = [
        matrix.rows as u32,
        matrix.columns as u32,
        tokens as u32,
        packing.row_step(matrix.columns),
        packing.row_groups(matrix.columns),
    ];
    let grid = gpu.grid(packing)?;
    let mut spans = matrix.spans(grid.as_ref());
    spans.extend([x.all(), y.all()]);
    let groups = [(matrix.rows as u32).div_ceil(TEAMS * rows), (tokens as u32).div_ceil(tile), 1];
    gpu.dispatch(Op::Product(spec), &spans, &parameters, groups)
}
