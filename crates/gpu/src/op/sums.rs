//! The loop that all products of few tokens share: what a team of 32 invocations reads and in which order it adds up.
//!
//! Invocation `l` takes the units `l`, `l + 32`, ... of each row of its team; the 32 sums of a row are added in a fixed
//! tree. Of one token a workgroup brings a chunk of the input to its own memory, where all of its teams read it, while
//! the first weights of the chunk are on their way. Nothing of that shows in a bit.

use std::fmt::Write as _;

use super::STOP_HERE;
use super::blocks;
use super::packing::Packing;
use super::product::TEAMS;
use crate::source::{Form, Source};

/// Sums of a team that are added up at once.
const ROUND: u32 = 8;
/// Values of the input that a workgroup holds at most.
const CHUNK: u32 = 2048;
/// Vectors of four of such a chunk, one in nine unused: invocations that read every eighth meet other banks.
const STAGED: u32 = CHUNK / 4 / 8 * 9;
/// Units of a row that an invocation reads before it computes with the first.
const AHEAD: u32 = 2;

/// What is summed and how.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    pub(crate) packing: Packing,
    /// Units that an invocation takes at once ([`Packing::together`]).
    pub(crate) together: u32,
    /// Rows of a team.
    pub(crate) rows: u32,
    pub(crate) tokens: u32,
    pub(crate) form: Form,
    /// Whether each team has an input of its own ([`Sums::accumulate_apart`]).
    pub(crate) apart: bool,
}

/// Reads a word of weights, scales or biases: plane, row and index; of weights that are taken together a vector of
/// words, by its index.
pub(crate) type Load<'a> = &'a dyn Fn(u32, u32, &str) -> String;

/// Where the text of a load may depend on what a workgroup computes: gives that text for each of its cases.
pub(crate) type Cases<'a> = &'a dyn Fn(&dyn Fn(Load<'_>) -> String) -> String;

/// Values of the input that are multiplied by one scale.
struct Run {
    /// Vectors of four values, counted from the unit's first.
    quads: Vec<u32>,
    /// By row.
    values: Vec<Vec<String>>,
}

const COMPONENTS: [&str; 4] = ["x", "y", "z", "w"];

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

    /// Whether the input is read four values at a time.
    fn by_fours(&self) -> bool {
        self.values() >= 4
    }

    /// Whether a workgroup holds a part of the input.
    fn staged(&self) -> bool {
        self.tokens == 1 && self.by_fours() && !self.apart
    }

    /// How the input is declared.
    pub(crate) fn input(&self) -> &'static str {
        if self.by_fours() { "vec4<f32>" } else { "f32" }
    }

    /// Workgroup memory and functions.
    pub(crate) fn declare(&self, mut source: Source) -> Source {
        if self.staged() {
            source = source.shared("staged", &format!("array<vec4<f32>, {STAGED}>"));
        }
        let source = source.function(&self.packing.functions());
        let round = self.round();
        match self.form.subgroups {
            true => source.function(
                "fn team_sum(own: f32) -> f32 {
    var sum = own + subgroupShuffleXor(own, 1u);
    sum = sum + subgroupShuffleXor(sum, 2u);
    sum = sum + subgroupShuffleXor(sum, 4u);
    sum = sum + subgroupShuffleXor(sum, 8u);
    return sum + subgroupShuffleXor(sum, 16u);
}
",
            ),
            false => source
                .shared("sums", &format!("array<f32, {}>", TEAMS * round * 32))
                .shared("part", &format!("array<f32, {}>", TEAMS * round * 4)),
        }
    }

    /// Declares the sums, the invocation's place in its team, and the units of a row.
    pub(crate) fn begin(&self) -> String {
        let mut text = format!(
            "let lane = lid & 31u;
            let team = lid >> 5u;
            let units = p.columns / {}u;
            ",
            self.values()
        );
        for sum in 0..self.sums() {
            let _ = writeln!(text, "var acc{sum} = 0.0;");
        }
        text
    }

    /// The loop over units. Row `r` begins at word `w{r}`, of blocks at that byte, and, in scales, at number `s{r}`;
    /// token `t`'s input begins at value `x{t}`.
    pub(crate) fn accumulate(&self, cases: Cases<'_>) -> String {
        self.accumulate_of(cases, "", "x[(x0 >> 2u) + vec_at]")
    }

    /// As [`Sums::accumulate`], where four values of the token's input are `input`, an expression of their number
    /// `vec_at`. `before` comes when the first weights are on their way.
    pub(crate) fn accumulate_of(&self, cases: Cases<'_>, before: &str, input: &str) -> String {
        if !self.staged() {
            let one = cases(&|load| self.unit(&self.read(load)));
            return format!("for (var unit = lane; unit < units; unit = unit + 32u) {{\n{one}}}\n");
        }
        let ahead = self.reads_ahead();
        let chunk = if ahead { AHEAD * 32 * self.values() } else { CHUNK }.min(CHUNK);
        let chunk_units = chunk / self.values();
        let stage = format!(
            "workgroupBarrier();
            let vec_end = min((begin + {chunk_units}u) * {quads}u, p.columns >> 2u);
            for (var vec_at = begin * {quads}u + lid; vec_at < vec_end; vec_at = vec_at + 256u) {{
                let local = vec_at - begin * {quads}u;
                staged[local + (local >> 3u)] = {input};
            }}
            workgroupBarrier();
            ",
            quads = self.values() / 4,
        );
        let looped =
            format!("for (var begin = 0u; begin < units; begin = begin + {chunk_units}u) {{\n");
        if !ahead {
            let one = cases(&|load| self.unit(&self.read(load)));
            return format!(
                "{before}{looped}{stage}let end = min(begin + {chunk_units}u, units);
                for (var unit = begin + lane; unit < end; unit = unit + 32u) {{\n{one}}}\n}}\n"
            );
        }
        // The first chunk's weights are asked for before `before`, those of others when their turn comes: asked for
        // while the chunk before is used, they cost registers, and large matrices took a fifth longer on an H200.
        let (mut variables, mut taken, mut units) = (String::new(), String::new(), String::new());
        for step in 0..AHEAD {
            for (name, kind) in self.fetched(step) {
                let _ = writeln!(variables, "var n_{name}: {kind};");
                let _ = writeln!(taken, "let {name} = n_{name};");
            }
            let _ =
                writeln!(units, "let unit{step} = min(next + {}u + lane, units - 1u);", 32 * step);
        }
        let loads = cases(&|load| (0..AHEAD).map(|step| self.fetch(load, step)).collect());
        let mut text = variables;
        let _ = write!(
            text,
            "{{
            let next = 0u;
            {units}{loads}}}
            {STOP_HERE}
            {before}{looped}if begin > 0u {{
            let next = begin;
            {units}{loads}}}
            {stage}{taken}"
        );
        for step in 0..AHEAD {
            let unit = format!("unit{step}");
            let _ = write!(
                text,
                "let {unit} = begin + {}u + lane;
                if {unit} < units {{
                {}}}
                ",
                32 * step,
                self.unit(&self.decode(&unit, step))
            );
        }
        text.push_str("}\n");
        text
    }

    /// The loop over units of one token where each team has an input of its own, from value `x0` on, and weights are
    /// read as vectors. Of each unit the reads alone depend on the case.
    pub(crate) fn accumulate_apart(&self, cases: Cases<'_>) -> String {
        debug_assert!(self.apart && self.tokens == 1 && self.reads_ahead(), "inputs of teams");
        let mut text =
            String::from("for (var unit0 = lane; unit0 < units; unit0 = unit0 + 32u) {\n");
        for (name, kind) in self.fetched(0) {
            let _ = writeln!(text, "var n_{name}: {kind};");
        }
        text.push_str(&cases(&|load| self.fetch(load, 0)));
        for (name, _) in self.fetched(0) {
            let _ = writeln!(text, "let {name} = n_{name};");
        }
        text + &self.unit(&self.decode("unit0", 0)) + "}\n"
    }

    /// Whether weights are read as vectors, apart from what is computed with them.
    fn reads_ahead(&self) -> bool {
        self.together > 1
    }

    /// Variables that hold what is read of a unit ahead, and their types.
    fn fetched(&self, step: u32) -> Vec<(String, String)> {
        let vector = format!("vec{}<u32>", self.together);
        let mut names = Vec::new();
        for row in 0..self.rows {
            let vectors = self
                .packing
                .block()
                .map_or(1, |format| blocks::Wide::new(format, self.together).places("").len());
            names.extend(
                (0..vectors).map(|index| (format!("u{row}_{index}_{step}"), vector.clone())),
            );
            if self.packing.block().is_some() {
                names.push((format!("h{row}_{step}"), "vec4<u32>".to_owned()));
            }
            let planes = ["sw", "bw"].into_iter().take(self.packing.planes() - 1);
            names.extend(planes.map(|plane| (format!("{plane}{row}_{step}"), "u32".to_owned())));
        }
        names
    }

    /// Statements that read a unit ahead, number `unit{step}` of each row.
    fn fetch(&self, load: Load<'_>, step: u32) -> String {
        let (packing, together, unit) = (self.packing, self.together, format!("unit{step}"));
        let mut text = String::new();
        for row in 0..self.rows {
            if let Some(format) = packing.block() {
                let wide = blocks::Wide::new(format, together);
                let at = format!(
                    "w{row} / {}u + {unit} / {}u * {}u",
                    4 * together,
                    wide.parts,
                    wide.vectors
                );
                let header: Vec<_> = (0..4 / together)
                    .map(|index| load(0, row, &format!("{at} + {index}u")))
                    .collect();
                let _ = writeln!(text, "n_h{row}_{step} = vec4<u32>({});", header.join(", "));
                for (index, place) in
                    wide.places(&format!("({unit} % {}u)", wide.parts)).iter().enumerate()
                {
                    let vector = load(0, row, &format!("{at} + {place}"));
                    let _ = writeln!(text, "n_u{row}_{index}_{step} = {vector};");
                }
                continue;
            }
            let index = format!("w{row} / {together}u + {unit}");
            let _ = writeln!(text, "n_u{row}_0_{step} = {};", load(0, row, &index));
            if packing.is_scaled() {
                let (_, shift) = packing.number();
                let column = format!("{unit} * {}u", self.values());
                let index = packing.scale_index(&format!("s{row}"), &column);
                let word = format!("(({index}) >> {shift}u)");
                let _ = writeln!(text, "n_sw{row}_{step} = {};", load(1, row, &word));
                if packing.third().is_some() {
                    let word = packing.third_word(&format!("row{row}"), &column, &word);
                    let _ = writeln!(text, "n_bw{row}_{step} = {};", load(2, row, &word));
                }
            }
        }
        text
    }

    /// What was read ahead of a unit, as values.
    fn decode(&self, unit: &str, step: u32) -> Decoded {
        let (packing, together, values) = (self.packing, self.together, self.values());
        if let Some(format) = packing.block() {
            let wide = blocks::Wide::new(format, together);
            let mut text = wide.column(unit);
            let mut decoded = Decoded {
                text: String::new(),
                runs: wide.quads().map(|quads| Run { quads, values: Vec::new() }).into(),
                scaled: true,
                biased: true,
            };
            for row in 0..self.rows {
                let names =
                    (0..wide.places("").len()).map(|index| format!("u{row}_{index}_{step}"));
                let names: Vec<_> = names.collect();
                let found = wide.decode(row, &names, &format!("h{row}_{step}"));
                text.push_str(&found.0);
                for (run, values) in decoded.runs.iter_mut().zip(found.1) {
                    run.values.push(values);
                }
            }
            decoded.text = text;
            return decoded;
        }
        let mut text = format!("let column = {unit} * {values}u;\n");
        let mut by_row = Vec::new();
        for row in 0..self.rows {
            let mut values = Vec::new();
            for part in 0..together {
                let name = format!("q{row}_{part}_");
                let component = COMPONENTS[part as usize];
                let _ = writeln!(text, "let {name}0 = u{row}_0_{step}.{component};");
                values.extend(packing.values(&name, &format!("zero0_{row}")));
            }
            by_row.push(values);
            if packing.is_scaled() {
                let index = packing.scale_index(&format!("s{row}"), "column");
                let words = [format!("sw{row}_{step}"), format!("bw{row}_{step}")];
                let words = words.each_ref().map(String::as_str);
                let (suffix, row) = (format!("0_{row}"), format!("row{row}"));
                text.push_str(&packing.scaling(&suffix, &row, &index, words));
            }
        }
        let quads = (0..values / 4).collect();
        let (scaled, biased) = (packing.is_scaled(), packing.is_biased());
        Decoded { text, runs: vec![Run { quads, values: by_row }], scaled, biased }
    }

    /// What is read of a unit when its turn comes, as values.
    fn read(&self, load: Load<'_>) -> Decoded {
        let (packing, unit) = (self.packing, "unit");
        if self.reads_ahead() {
            // Of several tokens: the same, one unit at a time.
            let mut text = String::from("let unit0 = unit;\n");
            for (name, kind) in self.fetched(0) {
                let _ = writeln!(text, "var n_{name}: {kind};");
            }
            text.push_str(&self.fetch(load, 0));
            for (name, _) in self.fetched(0) {
                let _ = writeln!(text, "let {name} = n_{name};");
            }
            let decoded = self.decode(unit, 0);
            return Decoded { text: text + &decoded.text, ..decoded };
        }
        let words = packing.unit_words();
        let (_, shift) = packing.number();
        let mut text = format!("let column = {unit} * {}u;\n", packing.unit());
        let (mut scaled, mut biased) = (packing.is_scaled(), packing.is_biased());
        let mut values = Vec::new();
        if let Some(format) = packing.block() {
            let parts = format.values() as u32 / blocks::UNIT;
            let _ = writeln!(text, "let part = {unit} % {parts}u;");
            let _ = writeln!(text, "let start = {unit} / {parts}u * {}u;", format.bytes());
        }
        for row in 0..self.rows {
            let name = format!("q{row}_");
            if let Some(format) = packing.block() {
                let at = format!("at{row}");
                let _ = writeln!(text, "let {at} = w{row} + start;");
                let found = blocks::unit(format, &name, &at, &|index| load(0, row, index));
                text.push_str(&found.text);
                values.push(found.values);
                let _ = writeln!(text, "let scale0_{row} = {};", found.scale);
                scaled = true;
                if let Some(minimum) = found.minimum {
                    let _ = writeln!(text, "let bias0_{row} = {minimum};");
                    biased = true;
                }
                continue;
            }
            let at = format!("w{row} + {unit} * {words}u");
            text.push_str(&packing.load(&name, &at, &|index| load(0, row, index)));
            values.push(packing.values(&name, &format!("zero0_{row}")));
            if packing.is_scaled() {
                let (index, word) = (format!("g{row}"), format!("(g{row} >> {shift}u)"));
                let place = packing.scale_index(&format!("s{row}"), "column");
                let _ = writeln!(text, "let {index} = {place};");
                let third = packing.third_word(&format!("row{row}"), "column", &word);
                let third = packing.third().map_or(String::new(), |_| load(2, row, &third));
                let words = [&*load(1, row, &word), &*third];
                let (suffix, row) = (format!("0_{row}"), format!("row{row}"));
                text.push_str(&packing.scaling(&suffix, &row, &index, words));
            }
        }
        let quads = (0..packing.unit() / 4).collect();
        Decoded { text, runs: vec![Run { quads, values }], scaled, biased }
    }

    /// Four values of a token's input, by the number of their vector from `column` on.
    fn four(&self, token: u32, quad: u32) -> String {
        match self.staged() {
            // A unit's vectors lie between two multiples of eight.
            true => format!("staged[place + {}u]", quad + quad / 8),
            false => format!("x[((x{token} + column) >> 2u) + {quad}u]"),
        }
    }

    /// Adds a unit's products to the sums.
    fn unit(&self, decoded: &Decoded) -> String {
        let (rows, by_fours) = (self.rows, self.by_fours());
        let Decoded { runs, scaled, biased, .. } = decoded;
        let mut text = decoded.text.clone();
        if self.staged() {
            let _ = write!(
                text,
                "let local = (column >> 2u) - begin * {}u;
                let place = local + (local >> 3u);
                ",
                self.values() / 4
            );
        }
        for (number, run) in runs.iter().enumerate() {
            for (row, values) in run.values.iter().enumerate() {
                for (index, value) in values.iter().enumerate() {
                    let _ = writeln!(text, "let v{number}_{row}_{index} = {value};");
                }
            }
        }
        for token in 0..self.tokens {
            for (number, run) in runs.iter().enumerate() {
                let count = run.values[0].len();
                if by_fours {
                    for (index, &quad) in run.quads.iter().enumerate() {
                        let _ = writeln!(
                            text,
                            "let i{token}_{number}_{index} = {};",
                            self.four(token, quad)
                        );
                    }
                }
                let value = |index: usize| match by_fours {
                    true => {
                        format!("i{token}_{number}_{}.{}", index / 4, COMPONENTS[index % 4])
                    }
                    false => format!("x[x{token} + column + {index}u]"),
                };
                if *biased {
                    let all = format!("all{token}_{number}");
                    let _ = writeln!(text, "var {all} = {};", value(0));
                    for index in 1..count {
                        let _ = writeln!(text, "{all} = {all} + {};", value(index));
                    }
                }
                for row in 0..rows {
                    let sum = token * rows + row;
                    let dot = match scaled {
                        true => format!("dot{sum}_{number}"),
                        false => format!("acc{sum}"),
                    };
                    if *scaled {
                        let _ = writeln!(text, "var {dot} = v{number}_{row}_0 * {};", value(0));
                    }
                    for index in usize::from(*scaled)..count {
                        let _ = writeln!(
                            text,
                            "{dot} = fma(v{number}_{row}_{index}, {}, {dot});",
                            value(index)
                        );
                    }
                    if *scaled {
                        let before = match biased {
                            true => {
                                format!("fma(bias{number}_{row}, all{token}_{number}, acc{sum})")
                            }
                            false => format!("acc{sum}"),
                        };
                        let _ =
                            writeln!(text, "acc{sum} = fma(scale{number}_{row}, {dot}, {before});");
                    }
                }
            }
        }
        text
    }

    /// Adds the sums of 32 invocations up and hands each to `finish`, which finds it as `sum`, its row among the
    /// team's as `r` and its token as `t`.
    pub(crate) fn finish(&self, finish: &str) -> String {
        self.rounds(None, finish)
    }

    /// As [`Sums::finish`], where the team's last `own` rows are those of a second matrix: `finish` finds the sums of
    /// both as `gate` and `up`, for each of the first `own` rows. Needs `fin` ([`Sums::declare_pairs`]).
    pub(crate) fn finish_pairs(&self, own: u32, finish: &str) -> String {
        self.rounds(Some(own), finish)
    }

    /// What [`Sums::finish_pairs`] needs.
    pub(crate) fn declare_pairs(&self, source: Source) -> Source {
        match self.form.subgroups {
            true => source,
            false => source.shared("fin", &format!("array<f32, {}>", TEAMS * ROUND)),
        }
    }

    fn rounds(&self, pairs: Option<u32>, finish: &str) -> String {
        let (round, rows) = (self.round(), self.rows);
        let mut text = String::new();
        for first in (0..self.sums()).step_by(round as usize) {
            let names =
                format!("let n = {first}u + lane;\nlet r = n % {rows}u;\nlet t = n / {rows}u;");
            if self.form.subgroups {
                self.shuffled(&mut text, first, &names, pairs, finish);
                continue;
            }
            for index in 0..round {
                let sum = first + index;
                let _ =
                    writeln!(text, "sums[(team * {round}u + {index}u) * 32u + lane] = acc{sum};");
            }
            let last = if pairs.is_some() {
                format!("fin[team * {ROUND}u + lane] = sum;")
            } else {
                format!("{names}\n{finish}")
            };
            let _ = write!(
                text,
                "workgroupBarrier();
                if (lane >> 2u) < {round}u {{
                    let slot = team * {round}u + (lane >> 2u);
                    let at = slot * 32u + (lane & 3u) * 8u;
                    part[slot * 4u + (lane & 3u)] = ((sums[at] + sums[at + 1u]) + (sums[at + 2u] + sums[at + 3u]))
                        + ((sums[at + 4u] + sums[at + 5u]) + (sums[at + 6u] + sums[at + 7u]));
                }}
                workgroupBarrier();
                if lane < {round}u {{
                    let at = (team * {round}u + lane) * 4u;
                    let sum = (part[at] + part[at + 1u]) + (part[at + 2u] + part[at + 3u]);
                    {last}
                }}
                "
            );
            if let Some(own) = pairs {
                let _ = write!(
                    text,
                    "workgroupBarrier();
                    if lane < {round}u {{
                        {names}
                        let gate = fin[team * {ROUND}u + lane];
                        let up = fin[min(team * {ROUND}u + lane + {own}u, {}u)];
                        if r < {own}u {{
                            {finish}
                        }}
                    }}
                    workgroupBarrier();
                    ",
                    TEAMS * ROUND - 1
                );
            }
        }
        text
    }

    /// A round without workgroup memory.
    fn shuffled(
        &self,
        text: &mut String,
        first: u32,
        names: &str,
        pairs: Option<u32>,
        finish: &str,
    ) {
        let round = self.round();
        text.push_str("{\n");
        for index in 0..round {
            let _ = writeln!(text, "let sum{index} = team_sum(acc{});", first + index);
        }
        let own = pairs.unwrap_or(0);
        let (name, second) =
            if pairs.is_some() { ("gate", "var up = 0.0;\n") } else { ("sum", "") };
        let _ = writeln!(text, "var {name} = sum0;\n{second}");
        for index in 0..round {
            if index > 0 {
                let _ = writeln!(text, "if lane == {index}u {{ {name} = sum{index}; }}");
            }
            if pairs.is_some() && index % self.rows < own {
                let _ = writeln!(text, "if lane == {index}u {{ up = sum{}; }}", index + own);
            }
        }
        let which = match pairs {
            Some(own) => format!("if r < {own}u {{\n{finish}\n}}"),
            None => finish.to_owned(),
        };
        let _ = writeln!(text, "if lane < {round}u {{\n{names}\n{which}\n}}\n}}");
    }
}

/// A unit as text: statements, then values by row.
struct Decoded {
    text: String,
    runs: Vec<Run>,
    /// `scale{run}_{row}` are declared.
    scaled: bool,
    /// `bias{run}_{row}` are declared.
    biased: bool,
}
