//! Goal: an answer under a constraint is what was asked for, whatever the model thinks of it. Method: random walks
//! through the masks, which are a model that knows nothing; each answer is parsed and checked against its schema by a
//! checker of our own (schema_check). With a model: constrained of the engine.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use text::constraint::{Constraint, ConstraintError, Grammars, Rule};
use text::sampling::{Sampler, SamplingOptions};
use text::{Dialect, Thinking, Tokenizer};

use crate::constraint_support::{calls, end_tokens, grammars, tokenizer, tools};
use crate::mask_walk::Walk;
use crate::schema_check::check;

const ANSWER_TOKENS_MAX: usize = 400;

fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 150}, "tags": {"type": "array",
            "items": {"enum": ["a", "b", "c d"]}, "maxItems": 3}}, "required": ["name", "age"],
            "additionalProperties": false}),
        json!({"$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number", "minimum": -9,
            "maximum": 9}, "y": {"type": "boolean"}}, "required": ["x", "y"], "additionalProperties": false}},
            "type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, "minItems": 1,
            "maxItems": 3}),
        json!({"type": "integer", "minimum": 10, "maximum": 99}),
        json!({"const": "a \"quoted\" text\nof two lines"}),
    ]
}

#[test]
fn a_draw_is_changed_only_where_the_tools_do_not_take_it() {
    let tokenizer = tokenizer();
    let grammars = Arc::new(grammars(Dialect::QwenXml));
    let vocabulary = tokenizer.vocabulary_size() + 2;
    let mut sampler = Sampler::new(SamplingOptions::greedy(), vocabulary).unwrap();
    let [mut watch, mut apart] =
        [0; 2].map(|_| grammars.watch(&tools(), Thinking::Closed).unwrap());
    let mut draw = |best: u32, second: u32| {
        let mut logits = vec![0.0; vocabulary];
        logits[best as usize] = 2.0;
        logits[second as usize] = 1.0;
        // As where the first draw is made without the row: it is judged, and the row is looked at if it does not stand.
        let stands = apart.judge(best).then_some(best);
        let row = || apart.sample(&mut sampler, &mut logits.clone(), &[]).unwrap().token;
        let judged = stands.unwrap_or_else(row);
        apart.accept(judged);
        let token = watch.sample(&mut sampler, &mut logits, &[]).unwrap().token;
        watch.accept(token);
        assert_eq!(judged, token, "drawn in two steps");
        token
    };
    let first_of = |text: &str| tokenizer.encode(text).unwrap()[0];
    let (begin, wrong) = (tokenizer.token_id("<tool_call>").unwrap(), first_of("wrong"));
    assert_eq!(draw(wrong, begin), wrong, "text is free");
    assert_eq!(draw(begin, wrong), begin);
    for token in tokenizer.encode("\n<function=now>\n").unwrap() {
        assert_eq!(draw(token, wrong), token, "what is allowed stays");
    }
    let closing = first_of("</function>\n");
    assert_eq!(draw(wrong, closing), closing, "what is not gives way to the next best");
}

#[test]
fn a_call_that_the_model_begins_is_one_that_the_tools_take() {
    let tokenizer = tokenizer();
    let grammars = Arc::new(grammars(Dialect::QwenXml));
    let token = |text| tokenizer.token_id(text).unwrap();
    let (begin, end) = (token("<tool_call>"), token("</tool_call>"));
    let city = "<parameter=city>\nRome\n</parameter>\n";
    let days = "<parameter=days>\n3\n</parameter>\n";
    let unit = "<parameter=unit>\nc\n</parameter>\n";
    let weather = |parameters: &[&str]| {
        format!("\n<function=get_weather>\n{}</function>\n", parameters.concat())
    };
    let cases = [
        ("\n<function=now>\n</function>\n".to_owned(), true),
        (weather(&[city, days]), true),
        (weather(&[days, city]), true),
        (weather(&[unit, days, city]), true),
        (weather(&[days, unit, city]), true),
        (weather(&[city]), false),
        (weather(&[]), false),
        (weather(&[city, city, days]), false),
        (weather(&[city, "<parameter=days>\nsoon\n</parameter>\n"]), false),
        (weather(&[city, days, "<parameter=unit>\nk\n</parameter>\n"]), false),
        (weather(&[city, days, "<parameter=other>\nx\n</parameter>\n"]), false),
        ("\n<function=get_wealth>\n</function>\n".to_owned(), false),
    ];
    for (call, valid) in cases {
        let mut watch = grammars.watch(&tools(), Thinking::Open).unwrap();
        // Nothing is excluded from thoughts and text, and a tag in a thought begins nothing.
        let before = tokenizer.encode("I look at <function=x> first.").unwrap();
        for token in [&before[..], &[begin, token("</think>")], &before].concat() {
            assert!(!watch.in_call() && watch.allows(token) && watch.allowed().is_none());
            watch.accept(token);
        }
        for round in 0..2 {
            watch.accept(begin);
            assert!(watch.in_call());
            let mut taken = true;
            for token in [tokenizer.encode(&call).unwrap(), vec![end]].concat() {
                taken &= watch.allows(token);
                assert_eq!(
                    watch.allowed().is_none_or(|mask| mask.allows(token)),
                    watch.allows(token)
                );
                watch.accept(token);
            }
            assert_eq!(taken, valid, "round {round}: {call}");
            assert!(!watch.in_call(), "{call}");
            if !valid {
                // What was written all the same is no longer watched.
                break;
            }
        }
    }
    assert!(grammars.watch(&[], Thinking::Closed).is_none(), "no tools, nothing to watch");
    // Tools that make no grammar are let go.
    let odd = json!({"type": "function", "function": {"name": "a<b>", "parameters": {}}});
    let mut watch = grammars.watch(&[odd], Thinking::Closed).unwrap();
    watch.accept(begin);
    assert!(!watch.in_call());
}

/// A walk: any allowed token with equal chance, but of strings soon their end. The text of the answer.
fn walk(constraint: &mut Constraint, tokenizer: &Tokenizer, seed: u64) -> (Vec<u32>, bool) {
    let (ids, ends) = (tokenizer.vocabulary_size() + 2, &end_tokens(tokenizer));
    let close = Some("\n</parameter>\n");
    Walk { tokenizer, ends, close, ids, patience: 20, most: ANSWER_TOKENS_MAX }
        .take(constraint, seed)
}

#[test]
fn random_walks_end_in_what_was_asked_for() {
    let (tokenizer, grammars) = (tokenizer(), grammars(Dialect::QwenXml));
    for (index, schema) in schemas().into_iter().enumerate() {
        let rule = Rule::JsonSchema(schema.clone());
        let mut ended = 0;
        for seed in 0..40 {
            let mut constraint = grammars.compile(&rule, &[], Thinking::Closed).unwrap();
            let (tokens, end) = walk(&mut constraint, &tokenizer, seed);
            let text = tokenizer.decode(&tokens);
            if end {
                ended += 1;
                let value = serde_json::from_str(&text).unwrap_or_else(|error| {
                    panic!("schema {index}, seed {seed}: {text:?}: {error}");
                });
                check(&schema, &schema, &value)
                    .unwrap_or_else(|error| panic!("schema {index}, seed {seed}: {text}: {error}"));
                assert!(constraint.finished(), "schema {index}, seed {seed}");
            }
        }
        assert!(ended > 20, "schema {index}: {ended} walks ended");
    }
}

/// The calls that an answer makes, which must be all there is.
#[test]
fn random_walks_make_calls() {
    let tokenizer = tokenizer();
    let tools = tools();
    for dialect in [Dialect::QwenXml, Dialect::Hermes] {
        let grammars = grammars(dialect);
        for name in [None, Some("get_weather"), Some("now")] {
            let rule = Rule::Calls { name: name.map(str::to_owned), parallel: name.is_none() };
            let mut ended = 0;
            for seed in 0..40 {
                let mut constraint = grammars.compile(&rule, &tools, Thinking::Closed).unwrap();
                let (tokens, end) = walk(&mut constraint, &tokenizer, seed);
                if !end {
                    continue;
                }
                ended += 1;
                let text = tokenizer.decode(&tokens);
                let calls = calls(dialect, &text);
                assert!(!calls.is_empty(), "{dialect:?}, seed {seed}: {text:?}");
                assert!(name.is_none() || calls.len() == 1, "{dialect:?}, seed {seed}: {text:?}");
                for (called, arguments) in &calls {
                    assert!(name.is_none_or(|name| name == called), "seed {seed}: {text:?}");
                    let tool =
                        tools.iter().find(|tool| tool["function"]["name"] == **called).unwrap();
                    let schema = &tool["function"]["parameters"];
                    check(schema, schema, arguments).unwrap_or_else(|error| {
                        panic!("{dialect:?}, seed {seed}: {text:?}: {arguments}: {error}");
                    });
                }
            }
            assert!(ended > 20, "{dialect:?}, {name:?}: {ended} walks ended");
        }
    }
}

/// The scheduler's threads share grammars and pass constraints on.
/// Whether an answer can be this text, token by token, and end there.
fn can_be(rule: &Rule, text: &str) -> bool {
    let tokenizer = tokenizer();
    let grammars = grammars(Dialect::QwenXml);
    let mut constraint = grammars.compile(rule, &[], Thinking::Closed).unwrap();
    for token in tokenizer.encode(text).unwrap() {
        if !constraint.allowed().unwrap().allows(token) {
            return false;
        }
        constraint.accept(token).unwrap();
    }
    let end = end_tokens(&tokenizer)[0];
    constraint.allowed().unwrap().allows(end)
}

/// llama.cpp's notation: rules, answers that they describe, and answers that they do not.
const GRAMMARS: [(&str, &[&str], &[&str]); 8] = [
    ("root ::= \"yes\" | \"no\"", &["yes", "no"], &["", "maybe", "yes ", "yesno", "\nyes"]),
    (
        "root ::= \"a\"{2,3} [^a-y\\n]* \"\\u00e9\"? # comment\n",
        &["aa", "aaa", "aaz", "aaa\u{e9}", "aa0 1Z"],
        &["a", "aaaa", "aab", "aa\n"],
    ),
    // One after another: a lexer that takes all it can would never come to the last letter.
    ("root ::= x \"ab\"\nx ::= [a-c]+", &["cab", "ababab"], &["ab", "caba", "cabd"]),
    // The same where rules lead back to themselves.
    (
        "root ::= \"(\" root \")\" | x \"ab\"\nx ::= [a-c]+",
        &["cab", "((ababab))", "(aab)"],
        &["((cab)", "(ab)", "(cabc)", "()"],
    ),
    // A word that another one begins with, and blanks that two rules may have.
    (
        "root ::= e \"\\n\"\ne ::= t (op t)*\nt ::= w | \"(\" e \")\" ws\n\
         w ::= (\"null\" | [a-z]) ws\nop ::= [-+*/] ws\nws ::= [ \\t\\n]*",
        &["a\n", "null + n\n", "(a*(b - null))\n\n", "n / u\n\n\n"],
        &["nul\n", "a", "a +\n", "ab\n", "(a\n"],
    ),
    (
        "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\
         object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n\
         array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n\
         string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" \
         ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n\
         number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n\
         ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n",
        &[
            "{}",
            "{\"a\": [1, -2.5e3, \"x\\\"y\\u00e9z\", {\"b\": null}], \"c\": true}",
            "{\n  \"name\": \"A long value with, commas: and {braces}\"\n}",
        ],
        &["[]", "{\"a\" 1}", "{\"a\": 01}", "{\"a\": nul}", "{\"a\": \"\n\"}", "{\"a\": 1"],
    ),
    // Left recursion, and a rule that is empty.
    ("root ::= root \"+\" n | n\nn ::= e [0-9]\ne ::=", &["1", "1+2+3"], &["+1", "1+", "12"]),
    (
        "root ::= (\"- \" [^\\n]+ \"\\n\")+",
        &["- one\n", "- a - b\n- c\n"],
        &["- \n", "one\n", "- a"],
    ),
];

#[test]
fn grammars_of_llama_cpp_describe_the_same_answers_here() {
    for (grammar, right, wrong) in GRAMMARS {
        let rule = Rule::Grammar(grammar.to_owned());
        for text in right {
            assert!(can_be(&rule, text), "{grammar}\nshould be able to be {text:?}");
        }
        for text in wrong {
            assert!(!can_be(&rule, text), "{grammar}\ncannot be {text:?}");
        }
    }
}

#[test]
fn texts_and_regular_expressions_are_about_the_whole_answer() {
    let one_of = |texts: &[&str]| Rule::OneOf(texts.iter().map(|&text| text.to_owned()).collect());
    let regex = |text: &str| Rule::Regex(text.to_owned());
    for (rule, right, wrong) in [
        (one_of(&["yes", "no \"way\"", "n"]), &["yes", "no \"way\"", "n"][..], &["no", "yes!"][..]),
        (regex(r"^\d{4}-\d{2}$"), &["2026-11"], &["2026-1", " 2026-11", "2026-11 "]),
        (regex(r"(a/b|c\/d)+"), &["a/bc/d"], &["a", "ab"]),
        (regex("one\ntwo"), &["one\ntwo"], &["one two"]),
        (regex(r"costs \$"), &["costs $"], &["costs "]),
    ] {
        for text in right {
            assert!(can_be(&rule, text), "{rule:?} should be able to be {text:?}");
        }
        for text in wrong {
            assert!(!can_be(&rule, text), "{rule:?} cannot be {text:?}");
        }
    }
    let grammars = grammars(Dialect::QwenXml);
    let chain: String = (0..300).map(|rule| format!("a{rule} ::= a{} \"x\"\n", rule + 1)).collect();
    let doubling: String =
        (0..40).map(|rule| format!("b{rule} ::= b{0} b{0}\n", rule + 1)).collect();
    for (rule, words) in [
        (regex("("), "regex"),
        (regex("^$"), "is empty"),
        (regex("(?=a)b"), ""),
        (regex(&"a".repeat(20_000)), "more than 16384"),
        (one_of(&[]), "needs texts"),
        (one_of(&["a", ""]), "none of them empty"),
        (Rule::Grammar("root ::= a".to_owned()), "there is no rule"),
        (Rule::Grammar(format!("root ::= a0\n{chain}a300 ::= \"y\"")), "lead to each other"),
    ] {
        let error = grammars.compile(&rule, &[], Thinking::Closed).unwrap_err();
        assert!(error.is_client_mistake(), "{rule:?}: {error}");
        assert!(error.to_string().contains(words), "{rule:?}: {error}");
    }
    // What grows beyond measure is refused or served within the limits, soon.
    let began = std::time::Instant::now();
    for text in [
        format!("root ::= b0\n{doubling}b40 ::= \"y\""),
        format!("root ::= \"(\" root \")\" | b0\n{doubling}b40 ::= [a-z]"),
    ] {
        let _either = grammars.compile(&Rule::Grammar(text), &[], Thinking::Closed).is_ok();
    }
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}

#[test]
fn grammars_are_shared_and_constraints_are_sent() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Grammars>();
    sent::<Constraint>();
}

#[test]
fn thinking_is_free_and_must_end() {
    let (tokenizer, grammars) = (tokenizer(), grammars(Dialect::QwenXml));
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    let mut constraint = grammars.compile(&Rule::JsonObject, &[], Thinking::Open).unwrap();
    for text in ["a", "{", "\n"] {
        assert!(constraint.allowed().unwrap().allows(id(text)), "{text:?} is excluded");
        constraint.accept(id(text)).unwrap();
    }
    for text in ["<|im_end|>", "<|endoftext|>", "<tool_call>", "<think>", "<|im_start|>"] {
        assert!(!constraint.allowed().unwrap().allows(id(text)), "{text} is allowed");
    }
    assert!(!constraint.finished());
    constraint.accept(id("</think>")).unwrap();
    let allowed = constraint.allowed().unwrap();
    assert!(allowed.allows(id("{")) && allowed.allows(id("\n")));
    assert!(!allowed.allows(id("a")) && !allowed.allows(id("</think>")));
    for text in ["{", "}"] {
        constraint.accept(id(text)).unwrap();
    }
    assert!(constraint.finished());
    let allowed = constraint.allowed().unwrap().clone();
    let ends = end_tokens(&tokenizer);
    assert_eq!(allowed.count(), ends.len());
    assert!(ends.iter().all(|&end| allowed.allows(end)));
    assert!(constraint.accept(id("a")).is_err());
    // A model that opens the thinking by itself may, but only at once.
    let mut constraint = grammars.compile(&Rule::JsonObject, &[], Thinking::Unopened).unwrap();
    assert!(constraint.allowed().unwrap().allows(id("<think>")));
    constraint.accept(id("<think>")).unwrap();
    assert!(constraint.allowed().unwrap().allows(id("a")));
    let mut constraint = grammars.compile(&Rule::JsonObject, &[], Thinking::Unopened).unwrap();
    constraint.accept(id("{")).unwrap();
    assert!(!constraint.allowed().unwrap().allows(id("<think>")));
    let mut constraint = grammars.compile(&Rule::JsonObject, &[], Thinking::Closed).unwrap();
    assert!(!constraint.allowed().unwrap().allows(id("<think>")));
}

#[test]
fn what_cannot_be_demanded_is_refused_by_name() {
    let grammars = grammars(Dialect::QwenXml);
    let compile = |rule: Rule, tools: &[Value]| grammars.compile(&rule, tools, Thinking::Closed);
    let schema = |schema: Value| compile(Rule::JsonSchema(schema), &[]).map(|_| ());
    let mut deep = json!({"type": "string"});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    let long = json!({"enum": (0..30_000).collect::<Vec<u32>>()});
    for bad in [
        json!({"type": "strin"}),
        json!({"type": 3}),
        json!({"properties": []}),
        json!({"$ref": "#/$defs/nowhere"}),
        json!({"type": "string", "pattern": "("}),
        json!({"type": "integer", "minimum": 5, "maximum": 1}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"multipleOf": 2_147_483_647}),
        json!({"unevaluatedItems": false, "dependentSchemas": {"a": {}}, "type": "object"}),
        json!(false),
        json!("string"),
        deep,
        long,
        // Two hundred regular expressions that must all hold took 20 GB.
        json!({"allOf": (0..200).map(|i| json!({"pattern": format!("^.*{i}.*$")})).collect::<Vec<_>>()}),
        json!({"properties": (0..2000).map(|i| (format!("p{i}"), json!({}))).collect::<Map<_, _>>()}),
        json!({"patternProperties": (0..99).map(|i| (format!("^.*{i}"), json!({}))).collect::<Map<_, _>>()}),
    ] {
        let error = schema(bad.clone()).err();
        let error = error.unwrap_or_else(|| panic!("accepted: {bad}"));
        assert!(error.is_client_mistake(), "{error}");
        assert!(error.to_string().starts_with("response_format.json_schema.schema"), "{error}");
    }
    let wide =
        (0..500).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect::<Map<_, _>>();
    let wide = json!({"properties": wide});
    let rule = Rule::JsonSchema(wide.clone());
    let mut constraint = grammars.compile(&rule, &[], Thinking::Closed).unwrap();
    walk(&mut constraint, &tokenizer(), 1);
    for good in
        [wide, json!(true), json!({}), json!({"x-guidance": {"nonsense": 1}, "type": "string"})]
    {
        assert_eq!(schema(good.clone()), Ok(()), "{good}");
    }
    let call = |name: Option<&str>| Rule::Calls { name: name.map(str::to_owned), parallel: false };
    let unknown = compile(call(Some("unknown")), &tools());
    assert!(matches!(unknown, Err(ConstraintError::NoSuchTool { .. })), "{unknown:?}");
    assert!(matches!(compile(call(None), &[]), Err(ConstraintError::NoSuchTool { .. })));
}
