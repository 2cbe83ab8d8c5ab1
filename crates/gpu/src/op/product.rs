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
    /// Units that an invocation takes at once ([`Packing::together`]).
    pub together: u32,
    /// Rows of a team.
    pub rows: u32,
    /// Tokens of a tile.
    pub tokens: u32,
    /// True to add to what is there.
    pub add: bool,
}

/// Rows of a team: as many as a load of the input can serve, fewer where there would be too few workgroups. It shows in
/// no bit.
pub(crate) fn team_rows(packing: Packing, rows: usize, tokens: u32) -> u32 {
    let most = if packing.unit() <= 8 { 4 } else { 2 };
    match rows {
        _ if tokens > 1 => most,
        0..2048 => 1,
        2048..8192 => 2,
        _ => most,
    }
}

/// The shared part of products: what is summed and how.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    pub(crate) packing: Packing,
    pub(crate) together: u32,
    pub(crate) rows: u32,
    pub(crate) tokens: u32,
}

impl Sums {
    fn sums(&self) -> u32 {
        self.rows * self.tokens
    }

    fn round(&self) -> u32 {
        self.sums().min(ROUND)
    }

    /// Values that an invocation takes at once.
    pub(crate) fn values(&self) -> u32 {
        self.packing.unit() * self.together
    }

    /// How the input is declared.
    pub(crate) fn input(&self) -> &'static str {
        if self.packing.unit() >= 4 { "vec4<f32>" } else { "f32" }
    }

    /// Workgroup memory and functions.
    pub(crate) fn declare(&self, source: Source) -> Source {
        let round = self.round();
        source
            .shared("red", &format!("array<f32, {}>", TEAMS * round.max(1) * 32))
            .shared("part", &format!("array<f32, {}>", TEAMS * round * 4))
            .function(&self.packing.functions())
    }

    /// Declares the sums.
    pub(crate) fn zero(&self) -> String {
        (0..self.sums()).map(|sum| format!("var acc{sum} = 0.0;\n")).collect()
    }

    /// Reads what an invocation takes of the rows: the values of each part, unit by unit, as expressions by part and
    /// row; and `scale{row}` and `bias{row}` where there are any: true for each of these.
    fn read_units(
        &self,
        text: &mut String,
        load: &dyn Fn(u32, u32, &str) -> String,
    ) -> (Vec<Vec<Vec<String>>>, bool, bool) {
        let (packing, rows, together) = (self.packing, self.rows, self.together);
        let (words, group) = (packing.unit_words(), packing.group());
        let (_, shift) = packing.number();
        let (mut scaled, mut biased) = (group > 0, group > 0);
        let mut values = vec![Vec::new(); together as usize];
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
                values[0].push(unit.values);
                let _ = writeln!(text, "let scale{row} = {};", unit.scale);
                scaled = true;
                if let Some(minimum) = unit.minimum {
                    let _ = writeln!(text, "let bias{row} = {minimum};");
                    biased = true;
                }
                continue;
            }
            if together > 1 {
                // A vector of words, each a unit.
                let index = format!("(w{row} + unit * {together}u) / {together}u");
                let _ = writeln!(text, "let u{row} = {};", load(0, row, &index));
                for part in 0..together {
                    let component = ["x", "y", "z", "w"][part as usize];
                    let name = format!("q{row}_{part}_");
                    let _ = writeln!(text, "let {name}0 = u{row}.{component};");
                    values[part as usize].push(packing.values(&name));
                }
            } else {
                let at = format!("w{row} + unit * {words}u");
                text.push_str(&packing.load(&name, &at, &|index| load(0, row, index)));
                values[0].push(packing.values(&name));
            }
            if group > 0 {
                let _ = writeln!(text, "let g{row} = s{row} + column / {group}u;");
                for (name, plane) in [("scale", 1), ("bias", 2)] {
                    let word = load(plane, row, &format!("(g{row} >> {shift}u)"));
                    let _ = writeln!(text, "let {name}{row} = number({word}, g{row});");
                }
            }
        }
        (values, scaled, biased)
    }

    /// The loop over units. Row `r` begins at word `w{r}`, of blocks at that byte, and, in scales, at number `s{r}`;
    /// token `t`'s input begins at value `x{t}`. `load` reads a word of weights, scales or biases: plane, row and
    /// index; of weights that are taken together a vector of words, by its index.
    pub(crate) fn accumulate(&self, load: &dyn Fn(u32, u32, &str) -> String) -> String {
        self.accumulate_of(load, &|token, index| {
            format!("x[((x{token} + column) >> 2u) + {index}u]")
        })
    }

    /// As [`Sums::accumulate`], with `input` for four values: token and index.
    pub(crate) fn accumulate_of(
        &self,
        load: &dyn Fn(u32, u32, &str) -> String,
        input: &dyn Fn(u32, u32) -> String,
    ) -> String {
        let (rows, unit) = (self.rows, self.packing.unit());
        let mut text = String::from("for (var unit = lane; unit < units; unit = unit + 32u) {\n");
        let _ = writeln!(text, "let column = unit * {}u;", self.values());
        let (values, scaled, biased) = self.read_units(&mut text, load);
        for (part, values) in (0u32..).zip(&values) {
            for (row, values) in values.iter().enumerate() {
                for (index, value) in values.iter().enumerate() {
                    let _ = writeln!(text, "let v{part}_{row}_{index} = {value};");
                }
            }
            for token in 0..self.tokens {
                if unit >= 4 {
                    for index in part * unit / 4..(part + 1) * unit / 4 {
                        let _ = writeln!(text, "let i{token}_{index} = {};", input(token, index));
                    }
                }
                let value = |index: u32| match unit >= 4 {
                    true => {
                        let at = part * unit + index;
                        format!("i{token}_{}.{}", at / 4, ["x", "y", "z", "w"][(at % 4) as usize])
                    }
                    false => format!("x[x{token} + column + {index}u]"),
                };
                let first = if part == 0 { 1 } else { 0 };
                if biased {
                    if part == 0 {
                        let _ = writeln!(text, "var all{token} = {};", value(0));
                    }
                    for index in first..unit {
                        let _ = writeln!(text, "all{token} = all{token} + {};", value(index));
                    }
                }
                for row in 0..rows {
                    let sum = token * rows + row;
                    let dot = if scaled { format!("dot{sum}") } else { format!("acc{sum}") };
                    if scaled && part == 0 {
                        let _ = writeln!(text, "var {dot} = v0_{row}_0 * {};", value(0));
                    }
                    for index in if scaled { first } else { 0 }..unit {
                        let _ = writeln!(
                            text,
                            "{dot} = fma(v{part}_{row}_{index}, {}, {dot});",
                            value(index)
                        );
                    }
                }
            }
        }
        for sum in 0..if scaled { self.sums() } else { 0 } {
            let (row, token) = (sum % rows, sum / rows);
            let before = match biased {
                true => format!("fma(bias{row}, all{token}, acc{sum})"),
                false => format!("acc{sum}"),
            };
            let _ = writeln!(text, "acc{sum} = fma(scale{row}, dot{sum}, {before});");
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
        let (round, rows) = (self.round(), self.rows);
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
    let Spec { packing, together, rows, tokens, .. } = spec;
    let sums = Sums { packing, together, rows, tokens };
    let source = packing.declare_together(Source::new(), together);
    let source = source.read("x", sums.input()).write("y", "f32").parameters(&[
        "rows",
        "columns",
        "tokens",
        "row_words",
        "row_groups",
    ]);
    let source = sums.declare(source);
    let mut body = format!(
        "let lane = lid & 31u;
        let team = lid >> 5u;
        let first = (wid.x * {TEAMS}u + team) * {rows}u;
        let units = p.columns / {unit}u;
        ",
        unit = sums.values()
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
    let rows = team_rows(packing, matrix.rows, tile);
    let together = packing.together(matrix.columns);
    let spec = Spec { packing, together, rows, tokens: tile, add };
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
