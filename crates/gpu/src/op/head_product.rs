//! Products by head: each head's values times its own rows of a matrix that has those of all heads.
//!
//! Sums are those of [`super::product`]: their order does not depend on the number of tokens.

use std::fmt::Write as _;

use super::Op;
use super::packing::Packing;
use super::product::{TEAMS, TILE, team_rows};
use super::sums::Sums;
use crate::source::{Form, Source};
use crate::{Buffer, Gpu, GpuError, Planes};

/// What the text depends on.
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
}

/// Rows of a matrix by head.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows {
    /// Heads.
    pub heads: usize,
    /// Rows from one head's first to the next one's.
    pub stride: usize,
    /// A head's first row among them.
    pub first: usize,
    /// Rows of a head.
    pub count: usize,
}

/// Rows of tokens, `[tokens, heads, width]`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// All of them.
    pub buffer: &'a Buffer,
    /// The first token that is meant.
    pub first: usize,
    /// Values of a head; the first of them are meant.
    pub width: usize,
}

/// Whether inputs of this width are read: four values at a time.
pub fn serves(width: usize) -> bool {
    width.is_multiple_of(4)
}

pub(crate) fn source(spec: Spec, form: Form) -> (Source, String) {
    let Spec { packing, together, rows, tokens } = spec;
    let sums = Sums { packing, together, rows, tokens, form, apart: false };
    let source = packing.declare_grid(packing.declare_together(Source::new(), together, ""));
    let source = source.read("x", sums.input()).write("y", "f32").parameters(&[
        "columns",
        "tokens",
        "row_words",
        "row_groups",
        "heads",
        "stride",
        "offset",
        "count",
        "x_first",
        "x_width",
        "y_first",
        "y_width",
    ]);
    let source = sums.declare(source);
    let mut body = sums.begin();
    let _ = write!(
        body,
        "let head = wid.z;
        let own = head * p.stride + p.offset;
        let first = (wid.x * {TEAMS}u + team) * {rows}u;
        "
    );
    for row in 0..rows {
        let _ = write!(
            body,
            "let row{row} = own + min(first + {row}u, p.count - 1u);
            let w{row} = row{row} * p.row_words;
            let s{row} = {scales};
            ",
            scales = packing.row_scales(&format!("row{row}"))
        );
    }
    for token in 0..tokens {
        let _ = writeln!(
            body,
            "let t{token} = p.x_first + min(wid.y * {tokens}u + {token}u, p.tokens - 1u);
            let x{token} = (t{token} * p.heads + head) * p.x_width;",
        );
    }
    let load = |plane: u32, _: u32, index: &str| {
        format!("{}[{index}]", ["w", "scales", "biases"][plane as usize])
    };
    body.push_str(&sums.accumulate(&|each| each(&load)));
    body.push_str(&sums.finish(&format!(
        "let row = first + r;
        let token = wid.y * {tokens}u + t;
        if row < p.count && token < p.tokens {{
            y[((p.y_first + token) * p.heads + head) * p.y_width + row] = sum;
        }}"
    )));
    (source, body)
}

/// The first `rows.count` values of each head in `y` = its rows of `matrix` times the first values of each head in `x`,
/// of `tokens` tokens.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    (matrix, rows): (&Planes, HeadRows),
    x: Rows<'_>,
    y: Rows<'_>,
    tokens: usize,
) -> Result<(), GpuError> {
    let HeadRows { heads, stride, first, count } = rows;
    let packing = matrix.packing;
    assert!(serves(x.width) && matrix.columns <= x.width && count <= y.width, "{rows:?}");
    assert!((heads - 1) * stride + first + count <= matrix.rows, "{rows:?}");
    let tile = if tokens == 1 { 1 } else { TILE };
    let team = team_rows(packing, count, tile);
    let together = packing.together(matrix.columns);
    let spec = Spec { packing, together, rows: team, tokens: tile };
    let sizes = [heads, stride, first, count, x.first, x.width, y.first, y.width];
    let mut parameters = vec![
        matrix.columns as u32,
        tokens as u32,
        packing.row_step(matrix.columns),
        packing.row_groups(matrix.columns),
    ];
    parameters.extend(sizes.map(|size| size as u32));
    let grid = gpu.grid(packing)?;
    let mut spans = matrix.spans(grid.as_ref());
    spans.extend([x.buffer.all(), y.buffer.all()]);
    let groups =
        [(count as u32).div_ceil(TEAMS * team), (tokens as u32).div_ceil(tile), heads as u32];
    gpu.dispatch(Op::HeadProduct(spec), &spans, &parameters, groups)
}
