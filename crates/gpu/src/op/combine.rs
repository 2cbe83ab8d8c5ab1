//! The sum of a layer's experts: a token's rows by ascending expert id, then the expert that every token uses.

use super::Op;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Whether there is an expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Always {
    /// There is none.
    None,
    /// It is added as it is.
    Whole,
    /// It is weighed by a sigmoid.
    Gated,
}

pub(crate) fn source(always: Always, add: bool) -> (Source, String) {
    let mut source = Source::new().read("rows", "f32").read("weights", "f32");
    if always != Always::None {
        source = source.read("always", "f32");
    }
    if always == Always::Gated {
        source = source.read("factor", "f32");
    }
    let source = source.write("y", "f32").parameters(&["width", "k"]);
    let common = match always {
        Always::Gated => "sum = fma(always[at], 1.0 / (1.0 + exp(-factor[wid.y])), sum);",
        Always::Whole => "sum = sum + always[at];",
        Always::None => "",
    };
    let sum = if add { "y[at] + sum" } else { "sum" };
    let body = format!(
        "let column = wid.x * 256u + lid;
        if column < p.width {{
            let at = wid.y * p.width + column;
            var sum = 0.0;
            for (var rank = 0u; rank < p.k; rank = rank + 1u) {{
                let pair = wid.y * p.k + rank;
                sum = fma(rows[pair * p.width + column], weights[pair], sum);
            }}
            {common}
            y[at] = {sum};
        }}
        "
    );
    (source, body)
}

/// What experts gave for each pair of a token and an expert, and its weight.
#[derive(Clone, Copy)]
pub struct Weighed<'a> {
    /// `[tokens, k, width]`
    pub rows: &'a Buffer,
    /// `[tokens, k]`
    pub weights: &'a Buffer,
}

/// What the expert gave that every token uses.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    /// `[tokens, width]`
    pub rows: &'a Buffer,
    /// `[tokens]`: its weights before the sigmoid; they are one without.
    pub factor: Option<&'a Buffer>,
}

/// Sizes of a sum over experts.
#[derive(Clone, Copy, Debug)]
pub struct Combined {
    /// Rows of the sum.
    pub tokens: usize,
    /// Experts of a token.
    pub k: usize,
    /// Values of a row.
    pub width: usize,
    /// Whether the sum is added to what is there.
    pub add: bool,
}

/// `y[tokens, width] +=`, or `=`, `sum_k weights[tokens, k] * rows[tokens, k, width] + shared`, which is weighed by
/// `sigmoid(factor[tokens])` where it has a factor.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    Weighed { rows, weights }: Weighed<'_>,
    shared: Option<Shared<'_>>,
    y: &Buffer,
    Combined { tokens, k, width, add }: Combined,
) -> Result<(), GpuError> {
    let mut spans = vec![rows.all(), weights.all()];
    let mut always = Always::None;
    if let Some(Shared { rows, factor }) = shared {
        spans.push(rows.all());
        spans.extend(factor.map(Buffer::all));
        always = if factor.is_some() { Always::Gated } else { Always::Whole };
    }
    spans.push(y.all());
    let groups = [(width as u32).div_ceil(256), tokens as u32, 1];
    gpu.dispatch(Op::Combine { always, add }, &spans, &[width as u32, k as u32], groups)
}
