//! Hostile tokenizer files are refused by name with one line, or cost no more than honest ones; texts at which the
//! library would silently give up are refused.

use crate::support;

use serde_json::{Value, json};
use support::golden;
use text::{Language, TemplateHost, TextError, Tokenizer};
use tokenizers::pre_tokenizers::split::Split;

fn file() -> Value {
    serde_json::from_slice(&std::fs::read(golden("tokenizer.json")).unwrap()).unwrap()
}

/// The file with the value at `pointer` replaced.
pub(crate) fn changed(pointer: &str, value: Value) -> Vec<u8> {
    let mut file = file();
    *file.pointer_mut(pointer).unwrap() = value;
    serde_json::to_vec(&file).unwrap()
}

/// The one line of the error, which names the field.
fn refusal(bytes: &[u8], field: &str) -> String {
    let panics = std::panic::catch_unwind(|| Tokenizer::from_bytes(bytes).map(drop));
    let error = panics.expect("no panic").expect_err(field);
    let line = error.to_string();
    assert!(matches!(error, TextError::Tokenizer { .. }), "{line}");
    assert!(line.contains(field) && !line.contains('\n') && line.len() < 2000, "{field}: {line}");
    line
}

pub(crate) fn split(pattern: Value) -> Value {
    json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
}

pub(crate) fn bytes() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
}

pub(crate) fn sequence(steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

#[test]
fn normalizers_of_other_families_are_refused() {
    let replace = |pattern: &str, content: &str| {
        let pattern = json!({ "String": pattern });
        json!({"type": "Replace", "pattern": pattern, "content": content})
    };
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
    for (value, field) in [
        (replace("", "x"), "normalizer"),
        (replace("h", "hh"), "normalizer"),
        (sequence(vec![replace("h", "hh"); 10]), "normalizer[0]"),
        (sequence(vec![replace("h", "hh"); 40]), "normalizer"),
        (sequence(vec![json!({"type": "NFC"}), json!({"type": "NFKD"})]), "normalizer[1]"),
        (sequence(vec![json!({"type": "NFC"}); 100_000]), "normalizer"),
        (sequence(vec![sequence(vec![])]), "normalizer[0]"),
        (json!({"type": "Prepend", "prepend": "x".repeat(10 << 20)}), "normalizer"),
        (json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "normalizer"),
        (json!({"type": "Precompiled", "precompiled_charsmap": ""}), "normalizer"),
        (json!({"type": "ByteLevel"}), "normalizer"),
        (json!({"type": "Lowercase"}), "normalizer"),
        (json!({"type": "Strip", "strip_left": true, "strip_right": true}), "normalizer"),
        (json!({"type": "x".repeat(100_000)}), "normalizer"),
        (json!({"type": 5}), "normalizer"),
        (json!({}), "normalizer"),
        (json!([]), "normalizer"),
        (json!(true), "normalizer"),
    ] {
        refusal(&changed("/normalizer", value), field);
    }
    for value in [
        Value::Null,
        json!({"type": "NFC"}),
        sequence(vec![]),
        sequence(vec![json!({"type": "NFC"})]),
    ] {
        let tokenizer = Tokenizer::from_bytes(&changed("/normalizer", value)).unwrap();
        assert_eq!(tokenizer.decode(&tokenizer.encode("caf\u{e9}").unwrap()), "caf\u{e9}");
    }
}

#[test]
fn pre_tokenizers_of_other_families_are_refused() {
    for (value, field) in [
        (sequence(vec![bytes(); 2]), "pre_tokenizer[1]"),
        (sequence(vec![bytes(), split(json!({"String": "a"}))]), "pre_tokenizer[1]"),
        (sequence(vec![bytes(); 40]), "pre_tokenizer"),
        (sequence(vec![]), "pre_tokenizer"),
        (sequence(vec![sequence(vec![bytes()])]), "pre_tokenizer[0]"),
        (sequence(vec![split(json!({"String": ""})), bytes()]), "pre_tokenizer[0].pattern"),
        (sequence(vec![split(json!({"Regex": ""})), bytes()]), "pre_tokenizer[0].pattern"),
        (sequence(vec![split(json!({"Regex": 5})), bytes()]), "pre_tokenizer[0]"),
        (sequence(vec![split(json!({"Regex": "a".repeat(1 << 20)})), bytes()]), "pattern"),
        (json!({"type": "Metaspace", "replacement": "_"}), "pre_tokenizer"),
        (json!({"type": "FixedLength", "length": 0}), "pre_tokenizer"),
        (json!({"type": "ByteLevel", "add_prefix_space": "x"}), "pre_tokenizer"),
        (json!({"type": "ByteLevel"}), "pre_tokenizer"),
        (Value::Null, "pre_tokenizer"),
        (json!({"type": "Split"}), "pre_tokenizer"),
    ] {
        refusal(&changed("/pre_tokenizer", value), field);
    }
    refusal(&changed("/decoder", json!({"type": "WordPiece"})), "decoder");
    refusal(&changed("/decoder", json!({"type": "Fuse"})), "decoder");
    let text = String::from_utf8(changed("/decoder/trim_offsets", json!("HERE"))).unwrap();
    for value in ["1e999", "5", "null2", "[[", "\"x\""] {
        refusal(text.replace("\"HERE\"", value).as_bytes(), "tokenizer.json");
    }
}

/// Expressions that would backtrack, or compile to a lot of memory.
#[test]
fn irregular_and_huge_expressions_are_refused() {
    for pattern in [
        r"(a+)+(?=b)",
        r"(?:a*a*b|.)(?=.)",
        r"a+(?=b)|.",
        r"(a)\1",
        r"(\s+(?!\S))*x",
        r"\s+(?!\S)x",
        r"(?<=a)b",
        r"(?>a+)b",
        r"a++",
        r"(?(1)a|b)",
        r"a\Kb",
        r"\Ga",
        r"(?:\w{100}){100}",
        r"\w{1000}",
        r"(((a{100}){100}){100}){100}",
        r"((?=a){1000}){1000}",
        r"[",
        r"(",
        r"a{99999999999}",
        r"\p{Nonsense}",
    ] {
        let steps = vec![split(json!({"Regex": pattern})), bytes()];
        let line = refusal(&changed("/pre_tokenizer", sequence(steps)), "pre_tokenizer[0].pattern");
        assert!(!line.is_empty());
    }
    let nested = format!("{}a{}", "(".repeat(1000), ")".repeat(1000));
    let many = vec![r"\w{20}"; 500].join("|");
    for pattern in [nested, many] {
        let steps = vec![split(json!({"Regex": pattern})), bytes()];
        refusal(&changed("/pre_tokenizer", sequence(steps)), "pre_tokenizer[0].pattern");
    }
}

/// What the supported families divide by, as their files have it.
#[test]
fn expressions_of_the_supported_families_are_taken() {
    let letters = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+";
    let o200k = format!(
        r"{letters}(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    let space = r"\s*[\r\n]+|\s+(?!\S)|\s+";
    let cl100k = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|";
    let cl100k = format!(r"{cl100k} ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{space}");
    let deepseek = r#"[!"\#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?"#;
    let deepseek = format!(r"{deepseek}[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{space}");
    let expression = |text: &str| split(json!({"Regex": text}));
    let digits = json!({"type": "Digits", "individual_digits": true});
    for steps in [
        vec![expression(&o200k), bytes()],
        vec![expression(&cl100k), bytes()],
        vec![
            expression(r"\p{N}{1,3}"),
            expression("[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+"),
            expression(&deepseek),
            bytes(),
        ],
        vec![expression("[\r\n]"), expression(r"\s?\p{L}+"), digits, bytes()],
        vec![json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})],
    ] {
        let file = changed("/pre_tokenizer", sequence(steps));
        let tokenizer = Tokenizer::from_bytes(&file).unwrap();
        for text in ["It's 12345 o'clock,\r\n\r\n  \u{5929}\u{6c17}  is  \t fine!! ", "a", ""] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text);
        }
    }
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    let text = String::from_utf8(changed("/model/vocab/!", json!(0))).unwrap();
    assert!(text.contains("\"!\":0"), "the file's first token");
    for (id, field) in [
        ("-1", "tokenizer.json"),
        ("9223372036854775808", "tokenizer.json"),
        ("18446744073709551616", "tokenizer.json"),
        ("1e999", "tokenizer.json"),
        ("0.5", "tokenizer.json"),
        ("4294967295", "model.vocab"),
        ("1", "model.vocab"),
        ("null", "tokenizer.json"),
    ] {
        refusal(text.replace("\"!\":0", &format!("\"!\":{id}")).as_bytes(), field);
    }
    let twice = text.replace("\"!\":0", "\"!\":0,\"!\":0");
    assert!(refusal(twice.as_bytes(), "model.vocab").contains("twice"));
    let merges: Vec<Value> = (0..1_000_000).map(|n| json!([format!("absent{n}"), "x"])).collect();
    refusal(&changed("/model/merges", merges.into()), "model.merges[0]");
    refusal(&changed("/model/merges", vec![json!(["a", "b", "c"])].into()), "merge");
    refusal(&changed("/model/merges", vec![json!("x".repeat(100_000))].into()), "merge");
    let token = |content: &str| {
        json!([{"id": 0, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}])
    };
    refusal(&changed("/added_tokens", token(&"x".repeat(10 << 20))), "added_tokens[0]");
    refusal(&changed("/added_tokens", token("")), "added_tokens[0]");
    let many: Vec<Value> =
        (0..2000).map(|id| json!({"id": 500 + id, "content": format!("{id:0>250}")})).collect();
    refusal(&changed("/added_tokens", many.into()), "added_tokens");
    for depth in [200, 100_000] {
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let file = String::from_utf8(changed("/normalizer", json!("HERE"))).unwrap();
        refusal(file.replace("\"HERE\"", &deep).as_bytes(), "tokenizer.json");
    }
    refusal(&vec![b'['; 1 << 20], "file");
    refusal(b"", "file");
}

/// The library's engine gives up on a million spaces in a row and goes on with wrong words.
#[test]
fn white_space_without_an_end_is_an_error_and_not_other_tokens() {
    let tokenizer = support::tokenizer();
    for text in [" ".repeat(1_500_000), format!("a{}b", "\t".repeat(2_000_000))] {
        let error = tokenizer.encode(&text).unwrap_err();
        assert!(matches!(error, TextError::Encode { .. }), "{error}");
        assert!(error.is_client_mistake());
    }
    let broken = format!("{}.", " ".repeat(1000)).repeat(600);
    assert_eq!(tokenizer.decode(&tokenizer.encode(&broken).unwrap()), broken);
}

/// The library's engine gives up after a million places without a match as well: what follows would be one word.
#[test]
fn an_expression_whose_engine_gives_up_is_an_error_and_not_other_tokens() {
    let long = format!("{}ab cd", "!".repeat(1_000_000));
    let seldom = split(json!({"Regex": r"[a-z]+|\s+(?!\S)|\s+"}));
    let library: Split = serde_json::from_value(seldom.clone()).unwrap();
    assert_eq!(library.regex.find_iter(&long).count(), 0, "the library does not give up any more");
    let digits = json!({"type": "Digits", "individual_digits": false});
    for steps in [vec![seldom.clone(), bytes()], vec![seldom, digits, bytes()]] {
        let tokenizer = Tokenizer::from_bytes(&changed("/pre_tokenizer", sequence(steps))).unwrap();
        let error = tokenizer.encode(&long).unwrap_err();
        assert!(matches!(error, TextError::Encode { .. }), "{error}");
        assert!(error.to_string().lines().count() == 1, "{error}");
        let short = format!("{}ab cd", "!".repeat(10_000));
        assert_eq!(tokenizer.decode(&tokenizer.encode(&short).unwrap()), short);
    }
}

/// Expressions that read on for every word take quadratic time: a text at which one does is refused, others are not.
#[test]
fn expressions_that_read_on_for_every_word_refuse_the_text() {
    for (pattern, piece) in [
        (r"a+b|a", "a"),
        (r"a+b|a|\s+(?!\S)|\s+", "a"),
        (r"\s*x|\s+(?!\S)|\s+", " y"),
        (r" [a ]+b| |a|\s+(?!\S)|\s+", "  a"),
        (r".*x|.", "\u{5929}"),
    ] {
        for steps in [
            vec![split(json!({"Regex": pattern})), bytes()],
            // The library's own steps.
            vec![split(json!({"Regex": "\n"})), split(json!({"Regex": pattern})), bytes()],
        ] {
            let file = changed("/pre_tokenizer", sequence(steps));
            let tokenizer = Tokenizer::from_bytes(&file).unwrap();
            let text = piece.repeat(200_000 / piece.len());
            let found = tokenizer.encode(&text);
            if pattern.starts_with(r"\s*x") {
                // White space of one character: nothing reads on.
                assert!(found.is_ok(), "{pattern}");
                continue;
            }
            let error = found.expect_err(pattern);
            assert!(
                error.is_client_mistake() && error.to_string().contains("expression"),
                "{error}"
            );
            assert!(tokenizer.encode(&piece.repeat(20)).is_ok(), "{pattern}");
        }
    }
    for pattern in [r"\s+(?!\S)|x", r"\b\w+\b"] {
        let steps = vec![split(json!({"Regex": pattern})), bytes()];
        refusal(&changed("/pre_tokenizer", sequence(steps)), "pattern");
    }
}

/// A token of a megabyte would be a megabyte for each time that a client asks for its text.
#[test]
fn tokens_have_a_longest() {
    let with = |length: usize| {
        let text = String::from_utf8(changed("/model/vocab/!", json!("HERE"))).unwrap();
        let id = file()["model"]["vocab"].as_object().unwrap().len() + 1000;
        let entry = format!("\"!\":0,\"{}\":{id}", "x".repeat(length));
        text.replace("\"!\":\"HERE\"", &entry).into_bytes()
    };
    assert!(Tokenizer::from_bytes(&with(512)).is_ok());
    let line = refusal(&with(513), "model.vocab");
    assert!(line.contains("512 bytes"), "{line}");
    refusal(&with(1 << 20), "model.vocab");
}

/// What is wrong with a file is said once, with its name.
#[test]
fn the_file_is_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = golden("../qwen35-calm-mlxlm-4bit/model");
    for entry in std::fs::read_dir(model).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.path().join("tokenizer.json"), changed("/model/type", json!("X")))
        .unwrap();
    let checkpoint = store::format::open(folder.path()).unwrap();
    let Err(error) = Language::load(&checkpoint, usize::MAX, &TemplateHost::here()) else {
        panic!("a model of another type is taken")
    };
    let words = error.to_string();
    assert_eq!(words.matches("tokenizer.json").count(), 1, "{words}");
    assert!(words.contains("model.type") && std::error::Error::source(&error).is_none(), "{words}");
}
