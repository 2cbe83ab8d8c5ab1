//! The short causal convolution before the delta rule, with its SiLU; the last inputs of a run are kept.

use std::fmt::Write as _;

use super::Op;
use super::attention::Run;
use super::delta;
use crate::source::{Form, Source, tree_sum};
use crate::{Buffer, Gpu, GpuError, Span};

/// Most taps.
pub const TAPS_LIMIT: usize = 8;

/// Tokens of a workgroup: the others of a long run are computed beside it.
const PIECE: usize = 64;

pub(crate) fn source(taps: u32) -> (Source, String) {
    let source = Source::new()
        .read("x", "f32")
        .read("weight", "f32")
        .write("tail", "f32")
        .write("y", "f32")
        .parameters(&["channels", "first", "tokens"]);
    let kept = taps - 1;
    let mut body = format!(
        "let c = wid.x * 256u + lid;
        if c < p.channels {{
            let begin = wid.y * {PIECE}u;
            let end = min(begin + {PIECE}u, p.tokens);
        "
    );
    for tap in 0..taps {
        let _ = writeln!(body, "let w{tap} = weight[c * {taps}u + {tap}u];");
    }
    for old in 0..kept {
        let back = kept - old;
        let _ = write!(
            body,
            "var u{old} = 0.0;
            if begin >= {back}u {{ u{old} = x[(p.first + begin - {back}u) * p.channels + c]; }}
            "
        );
    }
    // The first piece alone reads what was before the run, and leaves what comes behind it.
    body.push_str("if wid.y == 0u {\n");
    for old in 0..kept {
        let _ = writeln!(body, "u{old} = tail[{old}u * p.channels + c];");
    }
    for old in 0..kept {
        let _ = writeln!(body, "var n{old} = u{old};");
        for later in old + 1..kept {
            let _ = writeln!(body, "if p.tokens == {}u {{ n{old} = u{later}; }}", later - old);
        }
        let back = kept - old;
        let _ = writeln!(
            body,
            "if p.tokens >= {back}u {{ n{old} = x[(p.first + p.tokens - {back}u) * p.channels + c]; }}"
        );
    }
    for old in 0..kept {
        let _ = writeln!(body, "tail[{old}u * p.channels + c] = n{old};");
    }
    body.push_str(
        "}
        for (var t = begin; t < end; t = t + 1u) {
        let at = (p.first + t) * p.channels + c;
        ",
    );
    let _ = writeln!(body, "let u{kept} = x[at];\nvar sum = 0.0;");
    for tap in 0..taps {
        let _ = writeln!(body, "sum = fma(u{tap}, w{tap}, sum);");
    }
    body.push_str("y[at] = sum / (1.0 + exp(-sum));\n");
    for old in 0..kept {
        let _ = writeln!(body, "u{old} = u{};", old + 1);
    }
    body.push_str("}\n}\n");
    (source, body)
}

/// The buffers of a convolution.
#[derive(Clone, Copy)]
pub struct Filtered<'a> {
    /// `[batch, channels]`
    pub x: &'a Buffer,
    /// `[channels, taps]`, the newest last.
    pub weight: &'a Buffer,
    /// `[taps - 1, channels]`: inputs before the run, then its last ones.
    pub tail: &'a Buffer,
    /// `[batch, channels]`
    pub y: &'a Buffer,
}

impl<'a> Filtered<'a> {
    fn spans(self) -> [Span<'a>; 4] {
        [self.x, self.weight, self.tail, self.y].map(Buffer::all)
    }
}

/// `y` = SiLU of the convolution of the run's rows of `x` after `tail`, which becomes the run's last inputs.
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    of: Filtered<'_>,
    channels: usize,
    taps: usize,
    run: Run,
) -> Result<(), GpuError> {
    assert!((1..=TAPS_LIMIT).contains(&taps), "{taps} taps");
    let parameters = [channels as u32, run.first as u32, run.tokens as u32];
    let spans = of.spans();
    let op = Op::Convolve { taps: taps as u32 };
    let groups = [(channels as u32).div_ceil(256), run.tokens.div_ceil(PIECE) as u32, 1];
    gpu.dispatch(op, &spans, &parameters, groups)
}

pub(crate) fn with_heads(taps: u32, form: Form) -> (Source, String) {
    let source = Source::new()
        .read("x", "f32")
        .read("weight", "f32")
        .write("tail", "f32")
        .write("y", "f32")
        .parameters(&["channels", "key_heads", "key_dim", "value_dim", "row"])
        .shared("red", "array<f32, 256>")
        .function(tree_sum(form));
    let kept = taps - 1;
    let mut body = String::from(
        "let normed = wid.x < 2u * p.key_heads;
        let dim = select(p.value_dim, p.key_dim, normed);
        let before = select(2u * p.key_heads * p.key_dim + (wid.x - 2u * p.key_heads) * p.value_dim, \
        wid.x * p.key_dim, normed);
        let c = before + lid;
        var value = 0.0;
        if lid < dim {
            var sum = 0.0;
        ",
    );
    for old in 0..kept {
        let _ = writeln!(body, "let u{old} = tail[{old}u * p.channels + c];");
    }
    let _ = writeln!(body, "let u{kept} = x[p.row * p.channels + c];");
    for tap in 0..taps {
        let _ = writeln!(body, "sum = fma(u{tap}, weight[c * {taps}u + {tap}u], sum);");
    }
    for old in 0..kept {
        let _ = writeln!(body, "tail[{old}u * p.channels + c] = u{};", old + 1);
    }
    // As `delta::heads`; of values the sum is not used.
    let _ = write!(
        body,
        "value = sum / (1.0 + exp(-sum));
        }}
        red[lid] = value * value;
        let root = sqrt(tree_sum(lid) + {});
        var factor = 1.0;
        if wid.x < p.key_heads {{ factor = 1.0 / sqrt(f32(p.key_dim)); }}
        if lid < dim {{ y[p.row * p.channels + c] = select(value, value * (factor / root), normed); }}
        ",
        delta::NORM_EPSILON
    );
    (source, body)
}

/// Asks for the last inputs and the weights of channel `channel` where `of` is true: of one token, before its own input
/// is there.
pub(super) fn ask(taps: u32, of: &str, channels: &str, channel: &str) -> String {
    let mut text = String::new();
    for tap in 0..taps {
        let _ = writeln!(text, "var tap{tap} = 0.0;");
        if tap + 1 < taps {
            let _ = writeln!(text, "var old{tap} = 0.0;");
        }
    }
    let _ = writeln!(text, "if {of} {{\nlet channel = {channel};");
    for tap in 0..taps {
        let _ = writeln!(text, "tap{tap} = filter_of[channel * {taps}u + {tap}u];");
        if tap + 1 < taps {
            let _ = writeln!(text, "old{tap} = tail[{tap}u * {channels} + channel];");
        }
    }
    text + "}\n"
}

/// From what [`ask`] has brought and the channel's own input `sum` to its result, in `to`; as [`with_heads`].
pub(super) fn filter(taps: u32, channels: &str, channel: &str, to: &str) -> String {
    let mut text = String::from("var filtered = 0.0;\n");
    let input = |tap: u32| if tap + 1 < taps { format!("old{tap}") } else { "sum".to_owned() };
    for tap in 0..taps {
        let _ = writeln!(text, "filtered = fma({}, tap{tap}, filtered);", input(tap));
    }
    for old in 0..taps - 1 {
        let _ = writeln!(text, "tail[{old}u * {channels} + {channel}] = {};", input(old + 1));
    }
    text + &format!("{to} = filtered / (1.0 + exp(-filtered));\n")
}

/// [`launch`] of a run of one token, then [`delta::launch_heads`] of that; heads have up to 256 values.
///
/// # Errors
/// The device failed.
pub fn launch_with_heads(
    gpu: &mut Gpu,
    of: Filtered<'_>,
    shape: delta::Shape,
    taps: usize,
    row: usize,
) -> Result<(), GpuError> {
    assert!((1..=TAPS_LIMIT).contains(&taps), "{taps} taps");
    assert!(shape.key_dim <= 256 && shape.value_dim <= 256, "delta heads");
    let parameters = [shape.channels(), shape.key_heads, shape.key_dim, shape.value_dim, row];
    let spans = of.spans();
    let groups = [(2 * shape.key_heads + shape.value_heads) as u32, 1, 1];
    let op = Op::ConvolveHeads { taps: taps as u32 };
    gpu.dispatch(op, &spans, &parameters.map(|it| it as u32), groups)
}
