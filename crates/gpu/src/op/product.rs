//! `y = W x` for one token or several.
//!
//! A team of 32 invocations owns a few rows ([`super::sums`]). A weight is unpacked once for all tokens of a tile. A
//! sum has the same order whatever the number of tokens.

use std::fmt::Write as _;

use super::Op;
use super::packing::Packing;
use super::sums::Sums;
use crate::source::{Form, Source};
use crate::{Buffer, Gpu, GpuError, Planes};

/// Tokens that are computed together where there are several.
pub const TILE: u32 = 8;
/// Teams of a workgroup.
pub(crate) const TEAMS: u32 = 8;
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

pub(crate) fn source(spec: Spec, form: Form) -> (Source, String) {
    let Spec { packing, together, rows, tokens, .. } = spec;
    let sums = Sums { packing, together, rows, tokens, form, apart: false };
    let source = packing.declare_grid(packing.declare_together(Source::new(), together, ""));
    let source = source.read("x", sums.input()).write("y", "f32").parameters(&[
        "rows",
        "columns",
        "tokens",
        "row_words",
        "row_groups",
    ]);
    let source = sums.declare(source);
    let mut body = sums.begin();
    let _ = writeln!(body, "let first = (wid.x * {TEAMS}u + team) * {rows}u;");
    for row in 0..rows {
        let _ = write!(
            body,
            "let row{row} = min(first + {row}u, p.rows - 1u);
            let w{row} = row{row} * p.row_words;
            let s{row} = {scales};
            ",
            scales = packing.row_scales(&format!("row{row}"))
        );
    }
    for token in 0..spec.tokens {
        let _ = writeln!(
            body,
            "let x{token} = min(wid.y * {tile}u + {token}u, p.tokens - 1u) * p.columns;",
            tile = spec.tokens
        );
    }
    let load = |plane: u32, _: u32, index: &str| {
        format!("{}[{index}]", ["w", "scales", "biases"][plane as usize])
    };
    body.push_str(&sums.accumulate(&|each| each(&load)));
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
