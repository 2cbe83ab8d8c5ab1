//! The text of the delta rule ([`super::delta`]).
//!
//! A workgroup owns 32 columns of one head's state; an eighth of the rows of a column is one invocation's, in
//! registers. Where subgroups have 32 lanes, the eighths of a column are neighbours in one and add up by shuffles: no
//! token waits for a barrier.

use std::fmt::Write as _;

use crate::source::{Form, Source};

/// How an invocation finds its column and its eighth of the column's rows, and how the sums of eighths become one.
fn eighths(form: Form) -> [&'static str; 3] {
    match form.subgroups {
        true => [
            "let local = lid >> 3u;
            let eighth = lid & 7u;
            ",
            "all = all + subgroupShuffleXor(all, 1u);
            all = all + subgroupShuffleXor(all, 2u);
            all = all + subgroupShuffleXor(all, 4u);
            ",
            "",
        ],
        // Tokens take turns with the halves of `partial`: one barrier a token is enough.
        false => [
            "let local = lid & 31u;
            let eighth = lid >> 5u;
            ",
            "let half = (t & 1u) * 256u;
            partial[half + lid] = vec4<f32>(all, 0.0);
            workgroupBarrier();
            let at = half + local;
            all = ((partial[at] + partial[at + 32u]) + (partial[at + 64u] + partial[at + 96u])
                + ((partial[at + 128u] + partial[at + 160u]) + (partial[at + 192u] + partial[at + 224u]))).xyz;
            ",
            "array<vec4<f32>, 512>",
        ],
    }
}

/// From `a`, a decay before its function with its bias, and a rate to the decay `g`.
pub(super) fn decay_of(rate: &str) -> String {
    format!(
        "let softplus = max(a, 0.0) + log(1.0 + exp(-abs(a)));
        let g = exp(-({rate} * softplus));
        "
    )
}

/// What the text depends on.
#[derive(Clone, Copy)]
struct Spec {
    key_dim: u32,
    /// Whether queries, keys and decays of channels are read as vectors.
    wide: bool,
    /// Whether decays are of the channels of keys, and computed.
    channels: bool,
}

pub(crate) fn source(key_dim: u32, wide: bool, channels: bool, form: Form) -> (Source, String) {
    let spec = Spec { key_dim, wide, channels };
    let [own, add_up, shared] = eighths(form);
    let values = if wide { "vec4<f32>" } else { "f32" };
    let source = Source::new().read("x", values).read("beta", "f32");
    let source = match channels {
        true => source.read("decay", values),
        false => source.read("decay", "f32").read("rate", "f32").read("bias", "f32"),
    };
    let names = ["key_heads", "value_heads", "value_dim", "tiled", "first", "tokens"];
    let source = source.write("state", "f32").write("y", "f32").parameters(&names);
    let source = if shared.is_empty() { source } else { source.shared("partial", shared) };
    let (begin, ask, step) = (spec.begin(own), spec.ask(), spec.step());
    let [sum_k, sum_q, next] = spec.next();
    let end = spec.moves(|at, of| format!("state[{at}] = {of};"));
    // What the next token reads is on its way while this one waits for its sums.
    let body = format!(
        "{begin}{{\nlet row = p.first;\n{ask}}}
        for (var t = 0u; t < p.tokens; t = t + 1u) {{
            let row = p.first + t;
            {step}if t + 1u < p.tokens {{\nlet row = p.first + t + 1u;\n{ask}}}
            var all = vec3<f32>((u.x + u.y) + (u.z + u.w), (w.x + w.y) + (w.z + w.w), (qk.x + qk.y) + (qk.z + qk.w));
            {add_up}let d = strength * (v - {sum_k});
            if inside && eighth == 0u {{
                y[(row * p.value_heads + head) * p.value_dim + column] = fma(all.z, d, {sum_q});
            }}
            {next}
        }}
        {end}"
    );
    (source, body)
}

impl Spec {
    /// Vectors of four rows; those of an eighth lie apart, so that eight invocations read what lies together.
    fn vectors(self) -> std::ops::Range<u32> {
        0..self.key_dim.div_ceil(32)
    }

    /// The rows of an eighth: behind its first one, what must hold for there to be such a row, vector and part.
    fn rows(
        self,
        vectors: std::ops::Range<u32>,
    ) -> impl Iterator<Item = (u32, String, u32, &'static str)> {
        let of = move |vector: u32| {
            ["x", "y", "z", "w"].into_iter().enumerate().map(move |(place, part)| {
                let row = vector * 32 + place as u32;
                let exists = match self.key_dim.is_multiple_of(32) {
                    true => "true".to_owned(),
                    false => format!("low + {row}u < {}u", self.key_dim),
                };
                (row, exists, vector, part)
            })
        };
        vectors.flat_map(of)
    }

    /// Moves each row of the column, `s`, from or to its place in the state.
    fn moves(self, one: impl Fn(&str, &str) -> String) -> String {
        let mut text = String::new();
        for (row, exists, vector, part) in self.rows(self.vectors()) {
            let (at, of) =
                (format!("at_state + {row}u * p.value_dim"), format!("s{vector}.{part}"));
            let _ = writeln!(text, "if inside && {exists} {{ {} }}", one(&at, &of));
        }
        text
    }

    /// Places, the column of the state, and room for what is read of a token.
    fn begin(self, own: &str) -> String {
        let key_dim = self.key_dim;
        let mut text = format!(
            "let head = wid.x;
            var key_head = head / (p.value_heads / p.key_heads);
            if p.tiled != 0u {{ key_head = head % p.key_heads; }}
            {own}let column = wid.y * 32u + local;
            let inside = column < p.value_dim;
            let low = eighth * 4u;
            let channels = 2u * p.key_heads * {key_dim}u + p.value_heads * p.value_dim;
            let at_state = (head * {key_dim}u + low) * p.value_dim + column;
            "
        );
        for vector in self.vectors() {
            let _ = writeln!(text, "var s{vector} = vec4<f32>(0.0);");
        }
        text.push_str(&self.moves(|at, of| format!("{of} = state[{at}];")));
        if !self.channels {
            text.push_str("let own_rate = rate[head];\nlet own_bias = bias[head];\n");
        }
        text.push_str("var now = vec4<f32>(0.0);\n");
        for vector in self.vectors() {
            for [of, ..] in self.of_token() {
                let _ = writeln!(text, "var {of}{vector} = vec4<f32>(0.0);");
            }
        }
        text
    }

    /// What a token has for each row: query and key, and the decay of a channel; the buffers and their first values.
    fn of_token(self) -> &'static [[&'static str; 3]] {
        const ALL: [[&str; 3]; 3] =
            [["q", "x", "at_query"], ["k", "x", "at_key"], ["g", "decay", "at_decay"]];
        &ALL[..if self.channels { 3 } else { 2 }]
    }

    /// Reads the query, the key, and decay, strength and value of token `row`.
    fn ask(self) -> String {
        let key_dim = self.key_dim;
        let value = if self.wide { "x[at_value >> 2u][at_value & 3u]" } else { "x[at_value]" };
        let decay = if self.channels { "0.0" } else { "decay[row * p.value_heads + head]" };
        let mut text = format!(
            "let at_query = row * channels + key_head * {key_dim}u + low;
            let at_key = at_query + p.key_heads * {key_dim}u;
            let at_value = row * channels + 2u * p.key_heads * {key_dim}u + head * p.value_dim + column;
            now = vec4<f32>({decay}, beta[row * p.value_heads + head], 0.0, 0.0);
            if inside {{ now.z = {value}; }}
            "
        );
        if self.channels {
            let _ =
                writeln!(text, "let at_decay = (row * p.value_heads + head) * {key_dim}u + low;");
        }
        for vector in self.vectors() {
            if self.wide {
                for [of, from, first] in self.of_token() {
                    let at = 8 * vector;
                    let _ = writeln!(text, "{of}{vector} = {from}[({first} >> 2u) + {at}u];");
                }
                continue;
            }
            for (row, exists, vector, part) in self.rows(vector..vector + 1) {
                let _ = writeln!(text, "if {exists} {{");
                for [of, from, first] in self.of_token() {
                    let _ = writeln!(text, "{of}{vector}.{part} = {from}[{first} + {row}u];");
                }
                text.push_str("}\n");
            }
        }
        text
    }

    /// Strength and value of the token, and its sums over the rows of an eighth.
    fn step(self) -> String {
        let mut text = String::new();
        if !self.channels {
            let _ = write!(text, "let a = now.x + own_bias;\n{}", decay_of("own_rate"));
        }
        text.push_str(
            "let strength = 1.0 / (1.0 + exp(-now.y));
            let v = now.z;
            var u = vec4<f32>(0.0);
            var w = vec4<f32>(0.0);
            var qk = vec4<f32>(0.0);
            ",
        );
        for vector in self.vectors() {
            if self.channels {
                let _ = writeln!(text, "s{vector} = s{vector} * g{vector};");
            }
            let _ = write!(
                text,
                "let kept{vector} = k{vector};
                u = fma(s{vector}, k{vector}, u);
                w = fma(s{vector}, q{vector}, w);
                qk = fma(q{vector}, k{vector}, qk);
                "
            );
        }
        text
    }

    /// The state's sums with key and query, and the state behind the token. Where channels have decays of their own, it
    /// was decayed before the sums.
    fn next(self) -> [String; 3] {
        let [sum_k, sum_q, decayed] = match self.channels {
            true => ["all.x", "all.y", ""],
            false => ["g * all.x", "g * all.y", " * g"],
        };
        let mut text = String::new();
        for vector in self.vectors() {
            let _ =
                writeln!(text, "s{vector} = fma(vec4<f32>(d), kept{vector}, s{vector}{decayed});");
        }
        [sum_k.to_owned(), sum_q.to_owned(), text]
    }
}
