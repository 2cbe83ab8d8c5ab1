//! Rows of a matrix, decoded: the residual stream of a batch's tokens.

use std::fmt::Write as _;

use super::packing::Packing;
use super::{Op, blocks};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError, Planes};

pub(crate) fn source(packing: Packing) -> (Source, String) {
    let source = packing
        .declare(Source::new())
        .read("tokens", "u32")
        .write("y", "f32")
        .parameters(&["columns", "row_words", "row_groups"])
        .function(&packing.functions());
    let (unit, words) = (packing.unit(), packing.unit_words());
    let mut body = format!(
        "let row = tokens[wid.x];
        for (var unit = lid; unit < p.columns / {unit}u; unit = unit + 256u) {{
            let column = unit * {unit}u;
            let at = wid.x * p.columns + column;
        "
    );
    if let Some(format) = packing.block() {
        let parts = format.values() as u32 / blocks::UNIT;
        let _ = write!(
            body,
            "let part = unit % {parts}u;
            let first = row * p.row_words + unit / {parts}u * {}u;
            ",
            format.bytes()
        );
        let unit = blocks::unit(format, "q", "first", &|index| format!("w[{index}]"));
        body.push_str(&unit.text);
        let _ = writeln!(body, "let scale = {};", unit.scale);
        let _ = writeln!(body, "let bias = {};", unit.minimum.as_deref().unwrap_or("0.0"));
        for (index, value) in unit.values.iter().enumerate() {
            let _ = writeln!(body, "y[at + {index}u] = fma({value}, scale, bias);");
        }
        body.push_str("}\n");
        return (source, body);
    }
    let _ = writeln!(body, "let first = row * p.row_words + unit * {words}u;");
    body.push_str(&packing.load("q", "first", &|index| format!("w[{index}]")));
    if packing.is_scaled() {
        let place = packing.scale_index(&packing.row_scales("row"), "column");
        let _ = writeln!(body, "let g = {place};");
        let word = format!("g >> {}u", packing.number().1);
        let third = format!("biases[{}]", packing.third_word("row", "column", &word));
        let words = [&*format!("scales[{word}]"), &*third];
        body.push_str(&packing.scaling("", "row", "g", words));
    }
    for (index, value) in packing.values("q", "zero").iter().enumerate() {
        let value = match (packing.is_scaled(), packing.is_biased()) {
            (_, true) => format!("fma({value}, scale, bias)"),
            (true, false) => format!("{value} * scale"),
            (false, false) => value.clone(),
        };
        let _ = writeln!(body, "y[at + {index}u] = {value};");
    }
    body.push_str("}\n");
    (source, body)
}

/// `y[count, columns]` = rows `tokens[count]` of `table`.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    table: &Planes,
    tokens: &Buffer,
    y: &Buffer,
    count: usize,
) -> Result<(), GpuError> {
    let packing = table.packing;
    let columns = table.columns;
    let parameters = [columns as u32, packing.row_step(columns), packing.row_groups(columns)];
    let grid = gpu.grid(packing)?;
    let mut spans = table.spans(grid.as_ref());
    spans.extend([tokens.all(), y.all()]);
    gpu.dispatch(Op::Embed(packing), &spans, &parameters, [count as u32, 1, 1])
}
