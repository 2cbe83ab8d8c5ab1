//! The short causal convolution before the delta rule, with its SiLU; the last inputs of a run are kept.

use std::fmt::Write as _;

use super::Op;
use super::attention::Run;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Most taps.
pub const TAPS_LIMIT: usize = 8;

pub(crate) fn source(taps: u32) -> (Source, String) {
    let source = Source::new()
        .read("x", "f32")
        .read("weight", "f32")
        .write("tail", "f32")
        .write("y", "f32")
        .parameters(&["channels", "first", "tokens"]);
    let kept = taps - 1;
    let mut body = String::from("let c = wid.x * 256u + lid;\nif c < p.channels {\n");
    for tap in 0..taps {
        let _ = writeln!(body, "let w{tap} = weight[c * {taps}u + {tap}u];");
    }
    for old in 0..kept {
        let _ = writeln!(body, "var u{old} = tail[{old}u * p.channels + c];");
    }
    body.push_str(
        "for (var t = 0u; t < p.tokens; t = t + 1u) {\nlet at = (p.first + t) * p.channels + c;\n",
    );
    let _ = writeln!(body, "let u{kept} = x[at];\nvar sum = 0.0;");
    for tap in 0..taps {
        let _ = writeln!(body, "sum = fma(u{tap}, w{tap}, sum);");
    }
    body.push_str("y[at] = sum / (1.0 + exp(-sum));\n");
    for old in 0..kept {
        let _ = writeln!(body, "u{old} = u{};", old + 1);
    }
    body.push_str("}\n");
    for old in 0..kept {
        let _ = writeln!(body, "tail[{old}u * p.channels + c] = u{old};");
    }
    body.push_str("}\n");
    (source, body)
}

/// `y[batch, channels]` = SiLU of the convolution of the run's rows of `x` after `tail[taps - 1, channels]`, which
/// becomes the run's last inputs. `weight` is `[channels, taps]`, the newest last.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    (x, weight, tail, y): (&Buffer, &Buffer, &Buffer, &Buffer),
    channels: usize,
    taps: usize,
    run: Run,
) -> Result<(), GpuError> {
    assert!((1..=TAPS_LIMIT).contains(&taps), "{taps} taps");
    let parameters = [channels as u32, run.first as u32, run.tokens as u32];
    let spans = [x.all(), weight.all(), tail.all(), y.all()];
    let op = Op::Convolve { taps: taps as u32 };
    gpu.dispatch(op, &spans, &parameters, [(channels as u32).div_ceil(256), 1, 1])
}
