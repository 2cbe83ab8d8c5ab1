//! Decays of the delta rule where each channel of a key has its own (Kimi Team, "Kimi Linear", 2025): computed once, as
//! each of them decays all columns of the state, which several workgroups have.

use super::elementwise::{INDEX, groups};
use super::{Op, delta, delta_text};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

pub(crate) fn source(op: Op) -> (Source, String) {
    let mut source = Source::new()
        .read("rate", "f32")
        .read("bias", "f32")
        .write("decay", "f32")
        .parameters(&["count", "channels", "key_dim"]);
    let mut decay = delta_text::decay_of("rate[channel / p.key_dim]");
    if op == Op::BoundedDecays {
        source = source.parameters(&["bound"]);
        decay = "let sigmoid = 1.0 / (1.0 + exp(-(rate[channel / p.key_dim] * a)));
            let g = exp(-(bitcast<f32>(p.bound) * sigmoid));
            "
        .to_owned();
    }
    let body = format!(
        "{INDEX}if i < p.count {{
            let channel = i % p.channels;
            let a = decay[i] + bias[channel];
            {decay}decay[i] = g;
        }}
        "
    );
    (source, body)
}

/// `decay[tokens, value_heads, key_dim]` from what is before the function of decays, in place: with `bias[value_heads,
/// key_dim]` added, `exp(-rate[value_heads] softplus(decay))`, or with a bound `exp(-bound sigmoid(rate decay))`.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    decay: &Buffer,
    [rate, bias]: [&Buffer; 2],
    bound: Option<f32>,
    shape: delta::Shape,
    tokens: usize,
) -> Result<(), GpuError> {
    let channels = shape.value_heads * shape.key_dim;
    let count = tokens * channels;
    let mut parameters = [count, channels, shape.key_dim].map(|it| it as u32).to_vec();
    parameters.extend(bound.map(f32::to_bits));
    let spans = [rate, bias, decay].map(Buffer::all);
    let op = if bound.is_some() { Op::BoundedDecays } else { Op::DeltaDecays };
    gpu.dispatch(op, &spans, &parameters, groups(count))
}
