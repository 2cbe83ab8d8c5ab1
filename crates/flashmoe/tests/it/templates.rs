//! Hostile chat templates end as one error of one line, within a bounded time, and the program that asked lives on.
//!
//! Every template runs as it does for a user: in a process of the `flashmoe` program itself. An abort, a stack overflow
//! or an endless loop there must come back as an error here, and the next conversation must be answered.

use crate::long::is_long;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use text::{
    ChatTemplate, ControlTokens, Message, RenderOptions, Role, TemplateHost, TemplateTokens,
    TextError, Tokenizer,
};

/// Ten seconds is what a template gets; the rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

fn host() -> TemplateHost {
    TemplateHost::program(env!("CARGO_BIN_EXE_flashmoe"))
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn controls() -> Arc<ControlTokens> {
    Tokenizer::from_file(demo().join("tokenizer.json")).unwrap().control_tokens().clone()
}

fn compile(source: &str, controls: &Arc<ControlTokens>) -> Result<ChatTemplate, TextError> {
    ChatTemplate::new(source, TemplateTokens::default(), controls.clone(), &host())
}

fn conversation() -> Vec<Message> {
    vec![Message::new(Role::System, "Be brief."), Message::new(Role::User, "a\nb")]
}

/// Compiles and renders a hostile template; the error, if there was one, is checked.
fn attack(name: &str, source: &str, controls: &Arc<ControlTokens>) -> Result<String, String> {
    let started = Instant::now();
    let result = compile(source, controls)
        .and_then(|template| template.render(&conversation(), &[], &RenderOptions::default()));
    assert!(started.elapsed() < PATIENCE, "{name} took {:?}", started.elapsed());
    match result {
        Ok(rendered) => Ok(rendered.text().to_owned()),
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 1000, "{name}: {line}");
            let typed = matches!(
                error,
                TextError::TemplateSyntax { .. }
                    | TextError::TemplateFailed { .. }
                    | TextError::TemplateLost { .. }
                    | TextError::TemplateRefused { .. }
            );
            assert!(typed, "{name}: {line}");
            Err(line)
        }
    }
}

/// Each must fail, and the error must contain the words.
fn refused(cases: &[(&str, String, &str)]) {
    // Each in a process of its own, some of which end by their time alone.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || {
                let controls = controls();
                for (name, source, words) in cases.iter().skip(first).step_by(threads) {
                    let error = attack(name, source, &controls).expect_err(name);
                    assert!(error.contains(words), "{name}: {error}");
                }
            });
        }
    });
}

const STACK: &str = "stack";
const MEMORY: &str = "memory";

fn chain(before: &str, piece: &str, count: usize, after: &str) -> String {
    format!("{before}{}{after}", piece.repeat(count))
}

#[test]
fn sources_that_nest_too_deeply_are_refused() {
    let n = 100_000;
    let source = |before, piece, after| chain(before, piece, n, after);
    refused(&[("signs", source("{{ ", "-", "1 }}"), "")]);
    let controls = controls();
    let cases = [
        ("nots", source("{{ ", "not ", "1 }}")),
        ("nots in an if", source("{% if ", "not ", "1 %}{% endif %}")),
        ("brackets", source("{{ ", "[", "")),
        ("brackets, closed", format!("{{{{ {}{} }}}}", "[".repeat(n), "]".repeat(n))),
        ("parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n))),
        ("braces", format!("{{{{ {}1{} }}}}", "{1:".repeat(n), "}".repeat(n))),
        ("tuples", format!("{{{{ {}{} }}}}", "(1,".repeat(n), ")".repeat(n))),
        ("attributes", source("{{ messages", ".a", " }}")),
        ("items", source("{{ messages", "[0]", " }}")),
        ("slices", source("{{ messages", "[:]", " }}")),
        ("calls", source("{{ range", "()", " }}")),
        ("filters", source("{{ 1", "|string", " }}")),
        ("filter blocks", source("", "{% filter upper %}", "")),
        ("tests", source("{{ 1", " is defined", " }}")),
        ("sums", source("{{ 1", "+1", " }}")),
        ("concatenations", source("{{ 1", "~1", " }}")),
        ("products of lists", source("{{ [1]", "+[1]", " }}")),
        ("powers", source("{{ 1", "**1", " }}")),
        ("ands", source("{{ 1", " and 1", " }}")),
        ("conditions", source("{{ 1", " if 1 else 1", " }}")),
        ("comparisons", source("{{ 1", "<1", " }}")),
        ("ins", source("{{ 1", " in [1]", " }}")),
        ("elifs", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(n))),
        ("ifs", source("", "{% if 1 %}", "")),
        ("ifs, closed", format!("{}{}", "{% if 1 %}".repeat(20_000), "{% endif %}".repeat(20_000))),
        (
            "fors, closed",
            format!("{}{}", "{% for a in [1] %}".repeat(9_000), "{% endfor %}".repeat(9_000)),
        ),
        ("sets", source("", "{% set a %}", "")),
        ("withs", source("", "{% with %}", "")),
        ("macros", source("", "{% macro a() %}", "")),
        (
            "call blocks",
            source("{% macro a() %}{{ caller() }}{% endmacro %}", "{% call a() %}", ""),
        ),
        ("key arguments", source("{{ dict(", "a=dict(", "")),
    ];
    for (name, source) in &cases {
        // Some are legal, and nothing but slow or deep; what counts is that no process dies of them.
        let _ = attack(name, source, &controls);
    }
}

#[test]
fn values_that_are_cyclic_or_too_deep_end_the_template_alone() {
    let cyclic = "{% set ns = namespace(a={}) %}{% set ns.a = ns %}";
    let pair = "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}";
    let deep = "{% set ns = namespace(a=[]) %}{% for i in range(90000) %}{% set ns.a = [ns.a] %}{% endfor %}";
    let case = |name, start: &str, end: &str, words| (name, format!("{start}{end}"), words);
    let mut cases = vec![
        case("printed", cyclic, "{{ ns }}", STACK),
        case("as a string", cyclic, "{{ (ns ~ '')|length }}", STACK),
        case("in a list", cyclic, "{{ [ns] }}", STACK),
        case("as JSON", cyclic, "{{ ns|tojson }}", "nested too deeply"),
        case("formatted", cyclic, "{{ '{}'.format(ns) }}", ""),
        case("two of them", pair, "{{ a }}", STACK),
        case("sorted", cyclic, "{{ [ns, ns]|sort|string }}", ""),
        case("unique", cyclic, "{{ [ns, ns]|unique|list }}", ""),
        case("in an error", cyclic, "{{ raise_exception(ns) }}", STACK),
        case("a deep list", deep, "{{ ns.a }}", STACK),
    ];
    if is_long() {
        // Until its time is over.
        cases.push(case("printed nicely", cyclic, "{{ ns|pprint }}", ""));
    }
    refused(&cases);
    let controls = controls();
    for (name, source) in [
        ("compared", format!("{pair}{{{{ a == b }}}}")),
        ("dropped", deep.to_owned()),
        ("as a key", format!("{cyclic}{{{{ {{ns: 1}} }}}}")),
        ("in a loop", format!("{cyclic}{{% for a in ns %}}{{{{ a }}}}{{% endfor %}}")),
    ] {
        let _ = attack(name, &source, &controls);
    }
}

#[test]
fn huge_values_end_the_template_alone() {
    let double = |start: &str, step: &str, end: &str| {
        format!(
            "{{% set ns = namespace(l={start}) %}}{{% for i in range(60) %}}\
             {{% set ns.l = {step} %}}{{% endfor %}}{end}"
        )
    };
    let mut cases = vec![
        ("indent", "{{ messages|indent(10000000000) }}".into(), MEMORY),
        ("indent of two lines", "{{ 'a\nb'|indent(1000000000) }}".into(), MEMORY),
        ("format, right", "{{ '{:>10000000000}'.format(1) }}".into(), ""),
        ("format, centred", "{{ '{:^3000000000}'.format(1) }}".into(), ""),
        ("format, digits", "{{ '{:.2000000000f}'.format(1.5) }}".into(), ""),
        ("percent", "{{ '%10000000000d' % 1 }}".into(), ""),
        ("format filter", "{{ '%10000000000d'|format(1) }}".into(), ""),
        ("doubling by +", double("'aaaaaaaa'", "ns.l + ns.l", "{{ ns.l }}"), ""),
        ("doubling by ~", double("'aaaaaaaa'", "ns.l ~ ns.l", "{{ ns.l|length }}"), ""),
        ("doubling by join", double("'aaaaaaaa'", "[ns.l, ns.l]|join", "{{ ns.l|length }}"), ""),
        (
            "doubling by set",
            double(
                "'aaaaaaaa'",
                "ns.l",
                "{% for i in range(60) %}{% set ns.l %}{{ ns.l }}{{ ns.l }}{% endset %}{% endfor %}{{ ns.l|length }}",
            ),
            "",
        ),
        ("multiplied", "{{ 'a' * 10000000000 }}".into(), ""),
        ("multiplied list", "{{ ([1] * 10000000000)|list }}".into(), ""),
        ("centre", "{{ 'a'|center(10000000000) }}".into(), ""),
        ("method centre", "{{ 'a'.center(10000000000) }}".into(), ""),
        ("ljust", "{{ 'a'.ljust(10000000000) }}".into(), ""),
        ("zfill", "{{ 'a'.zfill(10000000000) }}".into(), ""),
        ("slice", "{{ range(10)|slice(100000000)|list }}".into(), ""),
        ("batch", "{{ range(10)|batch(1000000000, 0)|list }}".into(), ""),
        ("join", "{{ range(90000)|join('a' * 100000)|length }}".into(), ""),
        ("wordwrap", "{{ 'a b c'|wordwrap(10000000000, true, 'a' * 1000000000) }}".into(), ""),
        ("tojson indent", "{{ [[[[1]]]]|tojson(indent='a' * 100000000) }}".into(), ""),
        ("printed doubling", double("[1]", "[ns.l, ns.l]", "{{ ns.l }}"), ""),
        ("output", "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}".into(), "longer than"),
        ("a long name", format!("{{{{ 1|{} }}}}", "a".repeat(100_000)), "..."),
        (
            "a raised essay",
            "{{ raise_exception('a\nb\x1b[31m' * 10000) }}".into(),
            "a\\nb\\u{1b}[31m",
        ),
    ];
    // Five to ten seconds of a processor each, which end as the others or as endless ones.
    let slow = [
        ("replace", double("'aaaaaaaa'", "ns.l|replace('a', 'aa')", "{{ ns.l }}"), ""),
        ("replace of nothing", double("'a'", "ns.l|replace('', 'aa')", "{{ ns.l }}"), ""),
        ("method replace", double("'a'", "ns.l.replace('a', 'aa')", "{{ ns.l }}"), ""),
        ("tojson doubling", double("[1]", "[ns.l, ns.l]", "{{ ns.l|tojson|length }}"), ""),
        ("lists of lists", double("range(1000)|list", "ns.l + ns.l", "{{ ns.l|list|length }}"), ""),
        ("lists, lazily", double("[1]", "ns.l + ns.l", "{{ ns.l|length }}"), ""),
        ("lists, reversed", double("[1]", "ns.l + ns.l", "{{ ns.l|reverse|first }}"), ""),
        (
            "dictionary",
            double("{'a': [1]}", "dict(a=[ns.l, ns.l])", "{{ ns.l|string|length }}"),
            "",
        ),
        ("split", double("'aaaaaaaa'", "(ns.l ~ ns.l).split('')", "{{ ns.l }}"), ""),
    ];
    if is_long() {
        cases.extend(slow);
    }
    refused(&cases);
}

#[test]
fn endless_templates_are_ended() {
    let cases: [(&str, String, &str); 5] = [
        (
            "lists without copies",
            "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}\
             {% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l|length }}"
                .into(),
            "",
        ),
        (
            "a filter without steps",
            "{% set l = [1] * 100000000 %}{% for i in range(100) %}{{ l|sum }}{% endfor %}".into(),
            "",
        ),
        (
            "loops",
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}".into(),
            "did not finish",
        ),
        ("a macro of itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into(), ""),
        ("a recursive loop", "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(), ""),
    ];
    // Two wait for the end of a template's time: by default the first of them.
    let tried =
        cases.into_iter().filter(|(name, ..)| is_long() || *name != "a filter without steps");
    refused(&tried.collect::<Vec<_>>());
}

#[test]
fn a_template_that_behaves_is_answered_after_one_that_does_not() {
    let controls = controls();
    let source = "{% if messages[0].content == 'die' %}{{ messages|indent(10000000000) }}{% endif %}\
                  {{ messages[0].content }}";
    let template = compile(source, &controls).unwrap();
    let render = |text: &str| {
        let message = Message::new(Role::User, text);
        let rendered = template.render(&[message], &[], &RenderOptions::default());
        rendered.map(|rendered| rendered.text().to_owned())
    };
    for round in 0..4 {
        assert_eq!(render("live").unwrap(), "live", "round {round}");
        assert!(render("die").is_err(), "round {round}");
    }
    // Many at once; every other one ends its process.
    std::thread::scope(|scope| {
        for number in 0..12 {
            let render = &render;
            scope.spawn(move || match number % 2 {
                0 => assert!(render("die").is_err()),
                _ => assert_eq!(render("live").unwrap(), "live"),
            });
        }
    });
}

/// The demo model with another template.
fn model(template: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        std::fs::copy(demo().join(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

#[test]
fn run_says_one_line_and_the_exit_code_tells_whose_fault_it_is() {
    let signs = chain("{{ ", "-", 100_000, "1 }}");
    let cases = [(signs.as_str(), 3), ("{{ messages|indent(10000000000) }}", 1)];
    for (template, code) in cases {
        let folder = model(template);
        let program = Command::new(env!("CARGO_BIN_EXE_flashmoe"))
            .args(["run", folder.path().to_str().unwrap(), "hello", "--device", "cpu"])
            .args(["--memory", "300M"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&program.stderr);
        let lines = said.lines().filter(|line| line.starts_with("flashmoe: "));
        assert_eq!((program.status.code(), lines.count()), (Some(code), 1), "{said}");
    }
}

#[test]
fn a_server_lives_on() {
    let folder = model("{{ messages|indent(10000000000) }}");
    let mut server = Command::new(env!("CARGO_BIN_EXE_flashmoe"))
        .args(["serve", folder.path().to_str().unwrap(), "--port", "0", "--device", "cpu"])
        .args(["--memory", "300M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        line.unwrap().split_once("http://").map(|(_, address)| address.trim().to_owned())
    });
    let address = address.unwrap();
    // The log goes on; somebody has to read it.
    std::thread::spawn(move || lines.for_each(drop));
    let ask = |path: &str, body: &str| {
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let method = if body.is_empty() { "GET" } else { "POST" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        socket.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    };
    let until = Instant::now() + PATIENCE;
    while !ask("/health", "").contains("\"ok\"") && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    for _ in 0..3 {
        let body = r#"{"messages":[{"role":"user","content":"x"}]}"#;
        let answer = ask("/v1/chat/completions", body);
        assert!(answer.contains("MiB of memory; its process was ended"), "{answer}");
        assert!(answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 5"), "{answer}");
    }
    let health = ask("/health", "");
    assert!(health.starts_with("HTTP/1.1 200") && server.try_wait().unwrap().is_none(), "{health}");
    server.kill().unwrap();
    server.wait().unwrap();
}
