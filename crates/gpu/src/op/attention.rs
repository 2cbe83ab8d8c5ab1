//! A cache of keys and values, and attention over it with an online softmax.
//!
//! A cache holds rows `[positions, key_value_heads, dim]` of f32, of f16 two to a word, or of 8 bits ([`super::q8`]).
//! One workgroup computes one query head of one token, block by block: scores of 64 positions, each by four
//! invocations, then their values, one or two per invocation. Blocks begin at multiples of 64 and are joined in their
//! order, one behind the other or, of a token alone, from workgroups side by side ([`launch_split`]): a token's sums
//! depend on neither.

use std::fmt::Write as _;

use kernels::KvType;

use super::{Op, q8};
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cache {
    /// Binary32.
    F32,
    /// Binary16.
    F16,
    /// Signed bytes with a binary16 scale for 32 of them.
    Q8,
}

impl Cache {
    /// The type whose rows these are on the processor, byte for byte.
    pub fn kv_type(self) -> KvType {
        match self {
            Self::F32 => KvType::F32,
            Self::F16 => KvType::F16,
            Self::Q8 => KvType::Q8,
        }
    }

    /// Bytes of a row: so many keys or values of a head.
    pub fn bytes(self, dim: usize) -> usize {
        self.kv_type().bytes_of_head(dim)
    }

    /// Words of a position's rows.
    fn words(self, shape: Shape) -> usize {
        shape.key_value_heads * self.bytes(shape.dim) / 4
    }

    /// Whether one launch prepares a token's heads of `dim` values: each has words of its own.
    pub fn prepares(self, dim: usize) -> bool {
        self != Self::Q8 || dim.is_multiple_of(q8::WHOLE_WORDS)
    }
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_value_heads: usize,
    /// Values of a head, even.
    pub dim: usize,
}

/// A run of tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Row of its first token in the batch.
    pub first: usize,
    /// Tokens.
    pub tokens: usize,
    /// Position of its first token in the sequence.
    pub position: usize,
}

/// Keys and values: rows of a batch, or the places of a sequence.
#[derive(Clone, Copy)]
pub struct KeyValue<'a> {
    /// Keys.
    pub keys: &'a Buffer,
    /// Values.
    pub values: &'a Buffer,
}

/// Queries of a batch.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// `[batch, query_heads, dim]`
    pub query: &'a Buffer,
    /// `[batch, query_heads, 2, dim]` has gates, whose sigmoid the result is multiplied by.
    pub both: Option<&'a Buffer>,
}

/// Where [`launch_split`] writes.
#[derive(Clone, Copy)]
pub struct Split<'a> {
    /// [`partial_len`] numbers.
    pub partial: &'a Buffer,
    /// As of [`launch`].
    pub y: &'a Buffer,
}

/// A sink that takes no weight: layers with a window but without sinks have such ones.
pub const NO_SINK: f32 = -3.0e38;

/// What a layer attends with.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// Its heads.
    pub shape: Shape,
    /// `[query_heads]`: for each a score without a value, which only takes weight from the others.
    pub sinks: Option<&'a Buffer>,
    /// Each token sees so many of the last positions, its own included; all of them without. Only with sinks.
    pub window: Option<usize>,
    /// Factor of the scores; one over the root of a head's values without.
    pub scale: Option<f32>,
}

impl From<Shape> for Layer<'_> {
    fn from(shape: Shape) -> Self {
        Self { shape, sinks: None, window: None, scale: None }
    }
}

impl Layer<'_> {
    /// Rows that a token sees at most, as kernels are told.
    fn window(&self) -> usize {
        self.window.unwrap_or(i32::MAX as usize)
    }

    /// The first block that a token at `position` looks at.
    fn begin(&self, position: usize) -> usize {
        let last = position / BLOCK as usize;
        last.saturating_sub(self.window().div_ceil(BLOCK as usize))
    }

    fn parameters(&self, run: Run) -> Vec<u32> {
        assert!(self.sinks.is_some() || self.window.is_none(), "a window without sinks");
        let shape = self.shape;
        let mut parameters = vec![
            shape.query_heads as u32,
            shape.key_value_heads as u32,
            shape.dim as u32,
            run.first as u32,
            run.position as u32,
            self.scale.unwrap_or_else(|| (shape.dim as f32).powf(-0.5)).to_bits(),
        ];
        parameters.extend(self.sinks.map(|_| self.window() as u32));
        parameters
    }
}

pub(crate) fn append(cache: Cache) -> (Source, String) {
    let source = Source::new()
        .read("key", "f32")
        .read("value", "f32")
        .write("keys", "u32")
        .write("values", "u32")
        .parameters(&["width", "first", "position"])
        .function(&q8::stores(cache, &["key", "value"]));
    let (per, pack) = match cache {
        Cache::F32 => (1, "bitcast<u32>(FROM[source])"),
        Cache::F16 => (2, "pack2x16float(vec2<f32>(FROM[source], FROM[source + 1u]))"),
        Cache::Q8 => return (source.parameters(&["dim"]), q8::APPEND.to_owned()),
    };
    let (key, value) = (pack.replace("FROM", "key"), pack.replace("FROM", "value"));
    let body = format!(
        "let word = wid.x * 256u + lid;
        let words = p.width / {per}u;
        if word < words {{
            let source = (p.first + wid.y) * p.width + word * {per}u;
            let to = (p.position + wid.y) * words + word;
            keys[to] = {key};
            values[to] = {value};
        }}
        "
    );
    (source, body)
}

/// Writes the run's `rows` of keys and values, `[batch, key_value_heads * dim]`, to its cache.
///
/// # Errors
/// The device failed.
pub fn launch_append(
    gpu: &mut Gpu,
    cache: Cache,
    rows: KeyValue<'_>,
    places: KeyValue<'_>,
    shape: Shape,
    run: Run,
) -> Result<(), GpuError> {
    let width = (shape.key_value_heads * shape.dim) as u32;
    let mut parameters = vec![width, run.first as u32, run.position as u32];
    if cache == Cache::Q8 {
        assert!(q8::serves(shape.key_value_heads, shape.dim), "{shape:?}");
        parameters.push(shape.dim as u32);
    }
    let spans = [rows.keys, rows.values, places.keys, places.values].map(Buffer::all);
    let groups = [(cache.words(shape) as u32).div_ceil(256), run.tokens as u32, 1];
    gpu.dispatch(Op::Append(cache), &spans, &parameters, groups)
}

/// Positions of a block.
const BLOCK: u32 = 64;
/// Most blocks that [`launch_split`] computes side by side.
const SPLIT_LIMIT: usize = 1024;
/// Numbers that a block leaves: a sum for each invocation, or two; the greatest score and the sum of weights.
const PARTIAL: u32 = 514;

/// What all forms of attention compute alike.
struct Form {
    cache: Cache,
    /// Whether keys are read as vectors.
    wide: bool,
    /// Whether heads have sinks, and see a window.
    sinks: bool,
}

/// Whether keys of so many values can be read as vectors: of 8 bits as whole words.
fn is_wide(cache: Cache, dim: usize) -> bool {
    dim.is_multiple_of(if cache == Cache::Q8 { q8::WHOLE_WORDS } else { 8 })
}

impl Form {
    /// The first row that the token at `position` sees, and the first block that has one. There are as many blocks for
    /// every token behind the first ones, so that launches of steps are alike; a block without a visible position adds
    /// zero.
    fn seen(&self) -> String {
        match self.sinks {
            true => format!(
                "let seen = max(position + 1u, p.window) - p.window;
                let last = position / {BLOCK}u;
                let begin = (last - min(last, (p.window + {}u) / {BLOCK}u)) * {BLOCK}u;
                ",
                BLOCK - 1
            ),
            false => "let begin = 0u;\n".to_owned(),
        }
    }

    fn parameters(&self, source: Source) -> Source {
        let source = source.parameters(&PARAMETERS);
        if self.sinks { source.parameters(&["window"]) } else { source }
    }

    /// Declares the sinks, where there are.
    fn declare_sinks(&self, source: Source) -> Source {
        if self.sinks { source.read("sinks", "f32") } else { source }
    }

    fn declare(&self, source: Source) -> Source {
        let vectors = self.wide && self.cache != Cache::Q8;
        source
            .read("keys", if vectors { "vec4<u32>" } else { "u32" })
            .read("values", "u32")
            .function(&q8::loads(self.cache))
            .shared("red", "array<f32, 256>")
            .shared("q", "array<f32, 256>")
            .shared("scores", "array<vec4<f32>, 16>")
            .shared("weights", "array<vec4<f32>, 16>")
    }

    /// Values that an invocation sums.
    fn per(&self) -> u32 {
        if self.cache == Cache::F32 { 1 } else { 2 }
    }

    /// The query, scaled, in `q`; which dimensions and positions this invocation sums.
    fn begin(&self) -> String {
        format!(
            "let head = wid.x;
            let pair_head = head / (p.query_heads / p.key_value_heads);
            let at_query = (row * p.query_heads + head) * p.dim;
            if lid < p.dim {{ q[lid] = query[at_query + lid] * bitcast<f32>(p.scale); }}
            workgroupBarrier();
            let words = p.dim / {}u;
            let parts = 256u / words;
            let word = lid % words;
            let part = lid / words;
            ",
            self.per()
        )
    }

    /// Of the block at `block`: `most`, `weight` and the sums `near` and, of two values, `far`. Four invocations share
    /// a position's score.
    fn block(&self) -> String {
        let (step, score) = match (self.cache, self.wide) {
            (Cache::F32, true) => (
                4,
                "let four = bitcast<vec4<f32>>(keys[(at + d) >> 2u]);
                score = fma(q[d], four.x, score);
                score = fma(q[d + 1u], four.y, score);
                score = fma(q[d + 2u], four.z, score);
                score = fma(q[d + 3u], four.w, score);",
            ),
            (Cache::F32, false) => (1, "score = fma(q[d], bitcast<f32>(keys[at + d]), score);"),
            (Cache::F16, true) => (
                8,
                "let eight = keys[(at + d) >> 3u];
                let a = unpack2x16float(eight.x);
                let b = unpack2x16float(eight.y);
                let c = unpack2x16float(eight.z);
                let e = unpack2x16float(eight.w);
                score = fma(q[d + 1u], a.y, fma(q[d], a.x, score));
                score = fma(q[d + 3u], b.y, fma(q[d + 2u], b.x, score));
                score = fma(q[d + 5u], c.y, fma(q[d + 4u], c.x, score));
                score = fma(q[d + 7u], e.y, fma(q[d + 6u], e.x, score));",
            ),
            (Cache::F16, false) => (
                2,
                "let pair = unpack2x16float(keys[(at + d) >> 1u]);
                score = fma(q[d + 1u], pair.y, fma(q[d], pair.x, score));",
            ),
            (Cache::Q8, true) => (16, q8::SCORE_OF_WORDS),
            (Cache::Q8, false) => (
                2,
                "let pair = pair_keys(at / p.dim, p.dim, d / 2u);
                score = fma(q[d + 1u], pair.y, fma(q[d], pair.x, score));",
            ),
        };
        let add = |index: &str| {
            let row = format!("(block + {index}) * p.key_value_heads + pair_head");
            let from = format!("values[({row}) * words + word]");
            let weight = format!("weights[({index}) >> 2u][({index}) & 3u]");
            match self.cache {
                Cache::F32 => format!("near = fma({weight}, bitcast<f32>({from}), near);\n"),
                Cache::F16 | Cache::Q8 => {
                    let pair = match self.cache {
                        Cache::Q8 => format!("pair_values({row}, p.dim, word)"),
                        _ => format!("unpack2x16float({from})"),
                    };
                    format!(
                        "{{
                        let pair = {pair};
                        near = fma({weight}, pair.x, near);
                        far = fma({weight}, pair.y, far);
                    }}
                    "
                    )
                }
            }
        };
        let unseen = if self.sinks { "mine > position || mine < seen" } else { "mine > position" };
        // Four at a time, so that their loads are under way together.
        let four: String = (0..4).map(|at| add(&format!("j + {at}u * parts"))).collect();
        format!(
            "let mine = block + (lid >> 2u);
            var score = 0.0;
            if mine <= position {{
                let at = (mine * p.key_value_heads + pair_head) * p.dim;
                for (var d = (lid & 3u) * {step}u; d < p.dim; d = d + {all}u) {{
                    {score}
                }}
            }}
            red[lid] = score;
            workgroupBarrier();
            let same = lid & 252u;
            score = (red[same] + red[same + 1u]) + (red[same + 2u] + red[same + 3u]);
            if {unseen} {{ score = -3.0e38; }}
            if (lid & 3u) == 0u {{ scores[lid >> 4u][(lid >> 2u) & 3u] = score; }}
            workgroupBarrier();
            var best = scores[0];
            for (var fourth = 1u; fourth < 16u; fourth = fourth + 1u) {{ best = max(best, scores[fourth]); }}
            let most = max(max(best.x, best.y), max(best.z, best.w));
            if (lid & 3u) == 0u {{
                weights[lid >> 4u][(lid >> 2u) & 3u] = select(exp(score - most), 0.0, {unseen});
            }}
            workgroupBarrier();
            var four = weights[0];
            for (var fourth = 1u; fourth < 16u; fourth = fourth + 1u) {{ four = four + weights[fourth]; }}
            let weight = (four.x + four.y) + (four.z + four.w);
            var near = 0.0;
            var far = 0.0;
            if part < parts {{
                let count = min({BLOCK}u, position - block + 1u);
                var j = part;
                for (; j + 3u * parts < count; j = j + 4u * parts) {{
                    {four}
                }}
                for (; j < count; j = j + parts) {{
                    {one}
                }}
            }}
            ",
            all = 4 * step,
            one = add("j"),
        )
    }

    /// Adds a block to what came before it.
    const JOIN: &'static str = "
            let now = max(greatest, most);
            let keep = exp(greatest - now);
            let share = exp(most - now);
            total = fma(total, keep, weight * share);
            sum = fma(sum, keep, near * share);
            more = fma(more, keep, far * share);
            greatest = now;
    ";

    /// Adds the parts of each dimension up and writes them.
    fn end(&self, gated: bool) -> String {
        let result = |at: &str| match gated {
            true => {
                format!("all / total * (1.0 / (1.0 + exp(-both[at_query * 2u + p.dim + {at}])))")
            }
            false => "all / total".to_owned(),
        };
        let mut text = String::new();
        if self.sinks {
            text.push_str(
                "let sink = sinks[head];
                let raised = max(greatest, sink);
                let kept = exp(greatest - raised);
                total = fma(total, kept, exp(sink - raised));
                sum = sum * kept;
                more = more * kept;
                ",
            );
        }
        for (number, name) in ["sum", "more"].into_iter().take(self.per() as usize).enumerate() {
            let at = format!("lid * {}u + {number}u", self.per());
            let _ = write!(
                text,
                "workgroupBarrier();
                red[lid] = {name};
                workgroupBarrier();
                if lid < words {{
                    var all = red[lid];
                    for (var other = 1u; other < parts; other = other + 1u) {{ all = all + red[lid + other * words]; }}
                    y[at_query + {at}] = {};
                }}
                ",
                result(&at)
            );
        }
        text
    }
}

/// What attention is launched with.
const PARAMETERS: [&str; 6] =
    ["query_heads", "key_value_heads", "dim", "first", "position", "scale"];

pub(crate) fn source(cache: Cache, gated: bool, wide: bool, sinks: bool) -> (Source, String) {
    let form = Form { cache, wide, sinks };
    let mut source = Source::new().read("query", "f32");
    if gated {
        source = source.read("both", "f32");
    }
    let source = form.declare(form.declare_sinks(source)).write("y", "f32");
    let source = form.parameters(source);
    let body = format!(
        "let row = p.first + wid.y;
        let position = p.position + wid.y;
        {}{}
        var greatest = -3.0e38;
        var total = 0.0;
        var sum = 0.0;
        var more = 0.0;
        for (var block = begin; block <= position; block = block + {BLOCK}u) {{
            {}{}
        }}
        {}",
        form.seen(),
        form.begin(),
        form.block(),
        Form::JOIN,
        form.end(gated)
    );
    (source, body)
}

pub(crate) fn split(cache: Cache, wide: bool, sinks: bool) -> (Source, String) {
    let form = Form { cache, wide, sinks };
    let source = form.declare(Source::new().read("query", "f32"));
    let source = form.parameters(source.write("partial", "f32"));
    let body = format!(
        "let row = p.first;
        let position = p.position;
        {}let block = begin + wid.y * {BLOCK}u;
        {}{}
        let to = (wid.y * p.query_heads + head) * {PARTIAL}u;
        partial[to + lid] = near;
        partial[to + 256u + lid] = far;
        if lid == 0u {{
            partial[to + 512u] = most;
            partial[to + 513u] = weight;
        }}
        ",
        form.seen(),
        form.begin(),
        form.block()
    );
    (source, body)
}

pub(crate) fn join(cache: Cache, gated: bool, sinks: bool) -> (Source, String) {
    let form = Form { cache, wide: false, sinks };
    let mut source = Source::new().read("partial", "f32");
    if gated {
        source = source.read("both", "f32");
    }
    let source = form.declare_sinks(source).write("y", "f32").shared("red", "array<f32, 256>");
    let source = form.parameters(source);
    let body = format!(
        "let head = wid.x;
        let position = p.position;
        {}let at_query = (p.first * p.query_heads + head) * p.dim;
        let words = p.dim / {}u;
        let parts = 256u / words;
        var greatest = -3.0e38;
        var total = 0.0;
        var sum = 0.0;
        var more = 0.0;
        for (var block = 0u; begin + block * {BLOCK}u <= position; block = block + 1u) {{
            let start = (block * p.query_heads + head) * {PARTIAL}u;
            let near = partial[start + lid];
            let far = partial[start + 256u + lid];
            let most = partial[start + 512u];
            let weight = partial[start + 513u];
            {}
        }}
        {}",
        form.seen(),
        form.per(),
        Form::JOIN,
        form.end(gated)
    );
    (source, body)
}

/// Numbers that [`launch_split`] needs for up to so many positions.
pub fn partial_len(query_heads: usize, positions: usize) -> usize {
    query_heads * positions.div_ceil(BLOCK as usize).min(SPLIT_LIMIT) * PARTIAL as usize
}

/// [`launch`] of a run of one token, its blocks side by side where there are several and not too many; the same bits.
///
/// # Errors
/// The device failed.
pub fn launch_split<'a>(
    gpu: &mut Gpu,
    cache: Cache,
    queries: Queries<'_>,
    places: KeyValue<'_>,
    Split { partial, y }: Split<'_>,
    layer: impl Into<Layer<'a>>,
    run: Run,
) -> Result<(), GpuError> {
    let layer = layer.into();
    let blocks = run.position / BLOCK as usize - layer.begin(run.position) + 1;
    // Over a cache of f32 an NVIDIA driver gave other bits in a check of this, whose cause is open.
    let few = blocks == 1 || blocks > SPLIT_LIMIT;
    if cache == Cache::F32 || run.tokens != 1 || few {
        return launch(gpu, cache, queries, places, y, layer, run);
    }
    let (Queries { query, both }, KeyValue { keys, values }) = (queries, places);
    let parameters = layer.parameters(run);
    let (heads, sinks) = (layer.shape.query_heads as u32, layer.sinks.is_some());
    let spans = [query, keys, values, partial].map(Buffer::all);
    let op = Op::AttendSplit { cache, wide: is_wide(cache, layer.shape.dim), sinks };
    gpu.dispatch(op, &spans, &parameters, [heads, blocks as u32, 1])?;
    let spans = std::iter::once(partial).chain(both).chain(layer.sinks).chain([y]);
    let spans: Vec<_> = spans.map(Buffer::all).collect();
    let op = Op::AttendJoin { cache, gated: both.is_some(), sinks };
    gpu.dispatch(op, &spans, &parameters, [heads, 1, 1])
}

/// `y[batch, query_heads, dim]` = causal attention of the run's queries over its cache, which holds the run already.
///
/// # Errors
/// The device failed.
pub fn launch<'a>(
    gpu: &mut Gpu,
    cache: Cache,
    Queries { query, both }: Queries<'_>,
    KeyValue { keys, values }: KeyValue<'_>,
    y: &Buffer,
    layer: impl Into<Layer<'a>>,
    run: Run,
) -> Result<(), GpuError> {
    let layer = layer.into();
    let (shape, parameters) = (layer.shape, layer.parameters(run));
    let spans = std::iter::once(query).chain(both).chain(layer.sinks);
    let spans: Vec<_> = spans.chain([keys, values, y]).map(Buffer::all).collect();
    let groups = [shape.query_heads as u32, run.tokens as u32, 1];
    let (wide, sinks) = (is_wide(cache, shape.dim), layer.sinks.is_some());
    let op = Op::Attend { cache, gated: both.is_some(), wide, sinks };
    gpu.dispatch(op, &spans, &parameters, groups)
}
