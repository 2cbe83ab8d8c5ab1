//! Templates made of hostile pieces by a grammar: nested and chained without end, cyclic, doubling, asking filters for
//! gigabytes. What is counted is how they end.
//!
//! Most run in the worker itself: starting a process takes twenty times as long as a template. `template-process` has
//! them where flashmoe has them, in a process of its own for each. A finding is a process that ended for another reason
//! than its stack, its memory or its time, and anything that ends or holds up the process that asked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use text::{ChatTemplate, Message, RenderOptions, Role, TemplateHost, TemplateTokens, TextError};

use crate::random::Random;
use crate::target::Target;
use crate::text::good_tokenizer;

/// Where most templates run: in this process, which they may end.
pub(crate) fn here() -> TemplateHost {
    if cfg!(test) { process() } else { TemplateHost::here() }
}

/// Processes of this program.
fn process() -> TemplateHost {
    if cfg!(test) {
        // The program of the tests: its main function is not ours, so one test is the process.
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
        return TemplateHost::process(
            program,
            ["--exact", "tests::template_process", "--nocapture"],
        );
    }
    TemplateHost::own_program()
}

pub(crate) fn hostile() -> Target {
    on(here())
}

/// The same templates in processes of their own.
pub(crate) fn processes() -> Target {
    on(process())
}

fn on(host: TemplateHost) -> Target {
    let controls = good_tokenizer().control_tokens().clone();
    let messages = [Message::new(Role::System, "Be brief."), Message::new(Role::User, "a\nb")];
    let mut ends = Ends::default();
    Target {
        seeds: vec![b"{{ messages|indent(10000000000) }}".to_vec()],
        mutate: |random, input| *input = Writer { random, left: 60 }.template().into_bytes(),
        run: Box::new(move |input| {
            let source = String::from_utf8_lossy(input);
            let made =
                ChatTemplate::new(&source, TemplateTokens::default(), controls.clone(), &host);
            let options = RenderOptions { now_s: Some(1_700_000_000), ..RenderOptions::default() };
            let result = made.and_then(|template| template.render(&messages, &[], &options));
            ends.count(result.err());
        }),
    }
}

/// How many ended how; told when the run is over.
#[derive(Default)]
struct Ends(BTreeMap<&'static str, u64>);

impl Ends {
    fn count(&mut self, error: Option<TextError>) {
        let end = match error {
            None => "rendered",
            Some(TextError::TemplateSyntax { .. }) => "not parsed",
            Some(TextError::TemplateRefused { .. }) => "raised",
            Some(TextError::TemplateFailed { problem } | TextError::TemplateLost { problem }) => {
                assert!(!problem.contains("its process was ended: "), "{problem}");
                assert!(!problem.contains("cannot be started"), "{problem}");
                let ends = ["of stack", "of memory", "steps", "and was ended", "longer than"];
                ends.into_iter().find(|end| problem.contains(end)).unwrap_or("failed")
            }
            Some(other) => panic!("an error of another kind: {other}"),
        };
        *self.0.entry(end).or_default() += 1;
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        crate::say(&format!("templates ended: {:?}", self.0));
    }
}

/// Numbers that are too large for something.
const NUMBERS: [&str; 10] = [
    "0",
    "-1",
    "3",
    "60",
    "1000",
    "99999",
    "100000000",
    "10000000000",
    "9223372036854775807",
    "1.5",
];
const STRINGS: [&str; 6] = ["''", "'a'", "'a\\nb c'", "'%s%s'", "'{:>10000000000}'", "'</think>'"];
const NAMES: [&str; 7] = ["messages", "ns", "ns.a", "x", "messages[0].content", "loop", "tools"];
const FILTERS: [&str; 40] = [
    "length",
    "list",
    "string",
    "tojson",
    "upper",
    "reverse",
    "sort",
    "unique",
    "first",
    "last",
    "sum",
    "items",
    "trim",
    "join",
    "pprint",
    "safe",
    "escape",
    "capitalize",
    "title",
    "abs",
    "bool",
    "int",
    "float",
    "lines",
    "indent(N)",
    "center(N)",
    "replace(E, E)",
    "join(E)",
    "slice(N)",
    "batch(N, E)",
    "default(E)",
    "round(N)",
    "tojson(indent=N)",
    "map('upper')",
    "select('defined')",
    "groupby('role')",
    "format(E)",
    "split(E)",
    "zip(E)",
    "chain(E)",
];
const METHODS: [&str; 14] = [
    "format(E, E)",
    "replace(E, E)",
    "split(E)",
    "join(E)",
    "strip(E)",
    "count(E)",
    "find(E)",
    "startswith(E)",
    "items()",
    "keys()",
    "get(E, E)",
    "title()",
    "splitlines()",
    "rstrip()",
];
const CALLS: [&str; 8] = [
    "range(N)",
    "range(N, N, N)",
    "dict(a=E)",
    "namespace(a=E)",
    "raise_exception(E)",
    "strftime_now(E)",
    "f(E)",
    "cycler(E)",
];
const OPERATORS: [&str; 16] = [
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "~",
    "==",
    "<",
    "in",
    "and",
    "or",
    "not in",
    "<=",
    "if 1 else",
];

struct Writer<'a> {
    random: &'a mut Random,
    /// Pieces that may still be written.
    left: u32,
}

impl Writer<'_> {
    fn template(mut self) -> String {
        let mut source = "{% set ns = namespace(a=1) %}{% macro f(x) %}".to_owned();
        source += &self.statement();
        source += "{% endmacro %}";
        for _ in 0..1 + self.random.below(5) {
            source += &self.statement();
        }
        source
    }

    fn statement(&mut self) -> String {
        if self.left == 0 {
            return String::new();
        }
        self.left -= 1;
        match self.random.below(11) {
            0..=3 => format!("{{{{ {} }}}}", self.expression()),
            4 => format!("{{% set ns.a = {} %}}", self.expression()),
            5 => format!("{{% set x = {} %}}", self.expression()),
            6 => "{% set ns.a = ns %}".to_owned(),
            7 => {
                let turns = self.turns();
                format!("{{% for i in range({turns}) %}}{}{{% endfor %}}", self.statement())
            }
            8 => {
                let (list, body) = (self.expression(), self.statement());
                format!("{{% for x in {list} %}}{body}{{% endfor %}}")
            }
            9 => format!("{{% if {} %}}{}{{% endif %}}", self.expression(), self.statement()),
            _ => {
                let pair = *self.random.pick(&[
                    ("{% if 1 %}", "{% endif %}"),
                    ("{% for x in x %}", "{% endfor %}"),
                    ("{% filter upper %}", "{% endfilter %}"),
                    ("{% set x %}", "{% endset %}"),
                    ("{{ '", "' }}"),
                ]);
                let body = self.statement();
                self.around(pair, &body)
            }
        }
    }

    fn expression(&mut self) -> String {
        if self.left == 0 {
            return self.random.pick(&NAMES).to_string();
        }
        self.left -= 1;
        match self.random.below(14) {
            0 => self.random.pick(&NUMBERS).to_string(),
            1 => self.random.pick(&STRINGS).to_string(),
            2 => self.random.pick(&NAMES).to_string(),
            3 | 4 => {
                let (value, filter) = (self.expression(), *self.random.pick(&FILTERS));
                format!("({value})|{}", self.filled(filter))
            }
            5 => {
                let (value, method) = (self.expression(), *self.random.pick(&METHODS));
                format!("({value}).{}", self.filled(method))
            }
            6 => {
                let call = *self.random.pick(&CALLS);
                self.filled(call)
            }
            7..=9 => {
                let (left, right) = (self.expression(), self.expression());
                format!("({left} {} {right})", self.random.pick(&OPERATORS))
            }
            10 => format!("[{}, {}]", self.expression(), self.expression()),
            11 => format!("{{{}: {}}}", self.expression(), self.expression()),
            12 => {
                let pairs =
                    [("-", ""), ("not ", ""), ("(", ")"), ("[", "]"), ("{1:", "}"), ("(1,", ")")];
                let (pair, body) = (*self.random.pick(&pairs), self.expression());
                self.around(pair, &body)
            }
            _ => {
                let after = *self
                    .random
                    .pick(&["|string", ".a", "[0]", "[::-1]", "+x", "~x", " if x", "|list"]);
                self.expression() + &self.many(after)
            }
        }
    }

    /// Numbers and expressions put in the places of `N` and `E`.
    fn filled(&mut self, piece: &str) -> String {
        let mut text = String::new();
        for c in piece.chars() {
            match c {
                'N' => text.push_str(self.random.pick::<&str>(&NUMBERS)),
                'E' => text += &self.expression(),
                c => text.push(c),
            }
        }
        text
    }

    /// Turns of a loop: few as a rule, because loops in loops take all the steps that a template has.
    fn turns(&mut self) -> &'static str {
        let few: &[&'static str] = &["0", "1", "3", "7"];
        let list = if self.random.once_in(20) { &NUMBERS } else { few };
        let turns: &&'static str = self.random.pick(list);
        turns
    }

    /// A chain: mostly short, sometimes as long as a source may be.
    fn many(&mut self, piece: &str) -> String {
        piece.repeat(self.length())
    }

    /// Something inside many pairs; now and then they are not closed.
    fn around(&mut self, (open, close): (&str, &str), body: &str) -> String {
        let length = self.length();
        let closed = if self.random.once_in(8) { 0 } else { length };
        format!("{}{body}{}", open.repeat(length), close.repeat(closed))
    }

    fn length(&mut self) -> usize {
        if self.random.once_in(40) {
            return *self.random.pick(&[5000, 100_000]);
        }
        *self.random.pick(&[1, 1, 2, 3, 10, 60, 200])
    }
}
