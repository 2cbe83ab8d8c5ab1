//! Every dialect's answers: thinking, text and calls told apart, however they are cut, and what models get wrong
//! recovered or given back as text. (Qwen's two dialects have more cases of their own in text_answer.rs.)

use crate::support;

use proptest::prelude::*;
use serde_json::{Value, json};
use support::check_order;
use text::{AnswerEvent, AnswerParser, Dialect, collect, joined};

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"},
            "list": {"type": "array"}, "note": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ]
}

/// What an answer is expected to be.
struct Case {
    dialect: Dialect,
    opens: bool,
    text: String,
    reasoning: &'static str,
    content: &'static str,
    calls: Vec<(&'static str, Value)>,
    repairs: &'static [&'static str],
}

fn case(dialect: Dialect, text: impl Into<String>) -> Case {
    let text = text.into();
    Case { dialect, opens: false, text, reasoning: "", content: "", calls: vec![], repairs: &[] }
}

impl Case {
    fn opens(self) -> Self {
        Self { opens: true, ..self }
    }

    fn thinks(self, reasoning: &'static str) -> Self {
        Self { reasoning, ..self }
    }

    fn says(self, content: &'static str) -> Self {
        Self { content, ..self }
    }

    fn calls(mut self, name: &'static str, arguments: Value) -> Self {
        self.calls.push((name, arguments));
        self
    }

    fn repaired(self, repairs: &'static [&'static str]) -> Self {
        Self { repairs, ..self }
    }

    fn check(&self) {
        let (expected, parser) = parsed(self.dialect, &self.text, self.opens, usize::MAX);
        let message = collect(&expected);
        let text = &self.text;
        assert_eq!(message.reasoning.as_deref().unwrap_or_default(), self.reasoning, "{text}");
        assert_eq!(message.content, self.content, "{text}");
        let calls: Vec<(&str, Value)> = message
            .tool_calls
            .iter()
            .map(|call| (call.name.as_str(), Value::Object(call.arguments.clone())))
            .collect();
        assert_eq!(calls, self.calls, "{text}");
        let found = parser.repairs().iter().filter(|(_, count)| *count > 0).map(|(kind, _)| kind);
        let mut found: Vec<&str> = found.collect();
        let mut repairs = self.repairs.to_vec();
        found.sort_unstable();
        repairs.sort_unstable();
        assert_eq!(found, repairs, "{text}");
        for size in [1, 2, 3, 7] {
            let (events, again) = parsed(self.dialect, text, self.opens, size);
            assert_eq!(events, expected, "{text} in pieces of {size}");
            assert_eq!(again.repairs(), parser.repairs(), "{text} in pieces of {size}");
        }
        // Cut off anywhere, it still ends in order, and alike however it came.
        for (at, _) in text.char_indices() {
            let whole = parsed(self.dialect, &text[..at], self.opens, usize::MAX).0;
            let single = parsed(self.dialect, &text[..at], self.opens, 1).0;
            assert_eq!(whole, single, "{text} cut at {at}");
        }
    }
}

/// The joined events of an answer in pieces of `size` characters, with its parser.
fn parsed(
    dialect: Dialect,
    text: &str,
    opens: bool,
    size: usize,
) -> (Vec<AnswerEvent>, AnswerParser) {
    let mut parser = AnswerParser::new(dialect, &tools(), opens);
    let characters: Vec<char> = text.chars().collect();
    let mut events = Vec::new();
    for piece in characters.chunks(size) {
        events.extend(parser.push(&piece.iter().collect::<String>()));
    }
    events.extend(parser.finish());
    check_order(&events);
    (joined(events), parser)
}

#[test]
fn harmony() {
    use Dialect::Harmony;
    let oslo = || json!({"city": "Oslo"});
    let analysis = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Oslo\"}";
    for case in [
        case(Harmony, format!("{analysis}<|channel|>final<|message|>Mild. \n")).thinks("I look.").says("Mild. \n"),
        case(Harmony, format!("{analysis}{call}<|call|>")).thinks("I look.").calls("get_weather", oslo()),
        // The end token ends the answer and does not come here.
        case(Harmony, format!("{analysis}{call}")).thinks("I look.").calls("get_weather", oslo()),
        // The recipient in the role, as the template writes it.
        case(
            Harmony,
            " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Oslo\"}<|call|>",
        )
        .calls("get_weather", oslo()),
        // A preamble is visible; the final answer after it is a paragraph of its own.
        case(Harmony, format!("<|channel|>commentary<|message|>First.<|end|><|start|>assistant{call}<|call|>"))
            .says("First.")
            .calls("get_weather", oslo()),
        case(Harmony, "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}").says("{\"a\": 1}"),
        case(Harmony, "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>")
            .thinks("a\n\nb"),
        // Two finals.
        case(
            Harmony,
            "<|channel|>final<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>",
        )
        .says("One.\n\nTwo."),
        // A missing <|end|>, with and without <|start|>.
        case(Harmony, "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Yes.")
            .thinks("Hm.")
            .says("Yes."),
        case(Harmony, format!("<|channel|>analysis<|message|>Hm.{call}<|call|>"))
            .thinks("Hm.")
            .calls("get_weather", oslo()),
        // A call in the channel of thoughts.
        case(
            Harmony,
            "<|channel|>analysis to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Oslo\"}<|call|>",
        )
        .calls("get_weather", oslo())
        .repaired(&["call_in_thinking"]),
        case(Harmony, "<|channel|>commentary to=get_weather<|message|>{\"city\":\"Oslo\"}")
            .calls("get_weather", oslo()),
        case(Harmony, "<|channel|>commentary to=functions.now<|message|><|call|>").calls("now", json!({})),
        case(Harmony, "<|channel|>commentary to=functions.now <|constrain|>json<|message|>").calls("now", json!({})),
        // A tool that is not on offer, and text where arguments should be: nothing is lost.
        case(Harmony, "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{\"a\":1}<|call|>")
            .says("to=functions.rm {\"a\":1}")
            .repaired(&["unknown_function"]),
        case(Harmony, "<|channel|>commentary to=functions.now<|message|>print(1)<|call|>")
            .says("to=functions.now print(1)")
            .repaired(&["no_call"]),
        // Cut off.
        case(Harmony, "<|channel|>commentary to=functions.get_weather<|message|>{\"city\":\"Os")
            .calls("get_weather", json!({"city": "Os"}))
            .repaired(&["truncated"]),
        case(Harmony, "<|channel|>analysis<|message|>On and on").thinks("On and on"),
        case(Harmony, "<|channel|>anal"),
        case(Harmony, format!("{call}<|end|>"))
            .calls("get_weather", oslo())
            .repaired(&["missing_call_end"]),
        // Two calls in one answer, where <|call|> does not end it.
        case(Harmony, format!("{call}<|call|><|start|>assistant{call}<|call|>"))
            .calls("get_weather", oslo())
            .calls("get_weather", oslo()),
        // No header at all; prose that begins like one.
        case(Harmony, "Hello there.").says("Hello there."),
        case(Harmony, "assistants help").says("assistants help"),
        case(Harmony, "<|start|>assistant<|message|>Hi").says("Hi"),
        case(Harmony, "assistant<|channel|>final<|message|>Hi").says("Hi"),
        case(Harmony, "I think so.<|end|><|start|>assistant<|channel|>final<|message|>Yes.")
            .opens()
            .thinks("I think so.")
            .says("Yes."),
        case(Harmony, "a < b <| c <think>").says("a < b <| c <think>"),
    ] {
        case.check();
    }
}

#[test]
fn dsml() {
    use Dialect::Dsml;
    let parameter = |key: &str, flag: &str, value: &str| {
        format!("<｜DSML｜parameter name=\"{key}\" string=\"{flag}\">{value}</｜DSML｜parameter>\n")
    };
    let invoke = |name: &str, inside: &str| {
        format!("<｜DSML｜invoke name=\"{name}\">\n{inside}</｜DSML｜invoke>\n")
    };
    let block = |inside: &str| format!("\n\n<｜DSML｜tool_calls>\n{inside}</｜DSML｜tool_calls>");
    let city = parameter("city", "true", "Oslo");
    let call = block(&invoke("get_weather", &city));
    let oslo = || json!({"city": "Oslo"});
    for case in [
        case(Dsml, format!("I look.</think>Let me see.{call}"))
            .opens()
            .thinks("I look.")
            .says("Let me see.")
            .calls("get_weather", oslo()),
        case(Dsml, block(&format!("{}{}", invoke("get_weather", &city), invoke("now", ""))))
            .calls("get_weather", oslo())
            .calls("now", json!({})),
        case(Dsml, block(&invoke("get_weather", &(parameter("days", "false", "3")
            + &parameter("zip", "true", "02134")))))
            .calls("get_weather", json!({"days": 3, "zip": "02134"})),
        case(Dsml, block(&invoke("get_weather", &parameter("list", "false", "[1, {\"a\": null}]"))))
            .calls("get_weather", json!({"list": [1, {"a": null}]})),
        // The flag decides where the schema allows both.
        case(Dsml, block(&invoke("get_weather", &parameter("note", "true", "12"))))
            .calls("get_weather", json!({"note": "12"})),
        case(Dsml, block(&invoke("get_weather", &parameter("note", "false", "12"))))
            .calls("get_weather", json!({"note": 12})),
        // Line breaks inside a value are its own.
        case(Dsml, block(&invoke("get_weather", &parameter("city", "true", "\na\n</b>\n"))))
            .calls("get_weather", json!({"city": "\na\n</b>\n"})),
        // V3.2's name of the block.
        case(Dsml, call.replace("tool_calls", "function_calls"))
            .calls("get_weather", oslo())
            .repaired(&["missing_call_start"]),
        // No </think> before a call.
        case(Dsml, format!("I look.{call}"))
            .opens()
            .thinks("I look.")
            .calls("get_weather", oslo())
            .repaired(&["call_in_thinking"]),
        // All parameters inside one that the function does not have.
        case(Dsml, block(&invoke("get_weather", &parameter("arguments", "false", "{\"city\": \"Oslo\", \"days\": 2}"))))
            .calls("get_weather", json!({"city": "Oslo", "days": 2}))
            .repaired(&["wrapped_arguments"]),
        case(Dsml, block(&invoke("rm", &city)))
            .says("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"rm\">\n\
                <｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
                    </｜DSML｜tool_calls>")
            .repaired(&["unknown_function"]),
        case(Dsml, "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
            <｜DSML｜parameter name=\"city\" string=\"true\">Os")
            .calls("get_weather", json!({"city": "Os"}))
            .repaired(&["truncated"]),
        // Without its end, and without the flag.
        case(Dsml, "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
            <｜DSML｜parameter name=\"city\">Oslo</｜DSML｜parameter>\n</｜DSML｜tool_calls>")
            .calls("get_weather", oslo())
            .repaired(&["missing_function_end"]),
        case(Dsml, "DSML is <｜DSML｜ something").says("DSML is <｜DSML｜ something"),
    ] {
        case.check();
    }
}

#[test]
fn minimax() {
    use Dialect::MiniMax;
    let call = "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Oslo</parameter>\n\
        <parameter name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>";
    let two = call.replace("</minimax", "<invoke name=\"now\">\n</invoke>\n</minimax");
    let both = || json!({"city": "Oslo", "days": 3});
    for case in [
        case(MiniMax, format!("I look.\n</think>\n\nLet me see.\n{call}"))
            .opens()
            .thinks("I look.")
            .says("Let me see.")
            .calls("get_weather", both()),
        case(MiniMax, two).calls("get_weather", both()).calls("now", json!({})),
        case(MiniMax, call.replace("Oslo", "a\n\"</parameter\">b"))
            .calls("get_weather", json!({"city": "a\n\"</parameter\">b", "days": 3})),
        case(MiniMax, call.replace("<minimax:tool_call>\n", ""))
            .calls("get_weather", both())
            .repaired(&["missing_call_start"]),
        case(MiniMax, call.replace("Oslo</parameter>", "Oslo"))
            .calls("get_weather", json!({"city": "Oslo\n", "days": 3}))
            .repaired(&["missing_parameter_end"]),
        case(MiniMax, call.replace("</invoke>\n", ""))
            .calls("get_weather", both())
            .repaired(&["missing_function_end"]),
        case(MiniMax, call.replace("get_weather", "rm").replace("3", "4"))
            .says("<minimax:tool_call>\n<invoke name=\"rm\">\n<parameter name=\"city\">Oslo</parameter>\n\
                <parameter name=\"days\">4</parameter>\n</invoke>\n</minimax:tool_call>")
            .repaired(&["unknown_function"]),
    ] {
        case.check();
    }
}

#[test]
fn glm() {
    use Dialect::Glm;
    let pair = |key: &str, value: &str| {
        format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
    };
    let call = |inside: &str| format!("<tool_call>get_weather\n{inside}</tool_call>");
    let both = call(&(pair("city", "Oslo") + &pair("days", "3")));
    let oslo = || json!({"city": "Oslo", "days": 3});
    for case in [
        case(Glm, format!("\n<think>I look.</think>\nLet me see.\n{both}"))
            .thinks("I look.")
            .says("Let me see.")
            .calls("get_weather", oslo()),
        case(Glm, format!("{both}\n<tool_call>now\n</tool_call>"))
            .calls("get_weather", oslo())
            .calls("now", json!({})),
        case(Glm, "<tool_call>now</tool_call>").calls("now", json!({})),
        // Without line breaks, as GLM-4.7 writes it.
        case(Glm, both.replace('\n', "")).calls("get_weather", oslo()),
        case(Glm, call(&pair("city", "line one\nline two\n"))).calls("get_weather", json!({"city": "line one\n\
            line two\n"})),
        case(Glm, call(&pair("zip", "02134"))).calls("get_weather", json!({"zip": "02134"})),
        case(Glm, call("<arg_key>city</arg_key>\n<arg_value>Oslo\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"))
            .calls("get_weather", json!({"city": "Oslo\n", "days": 3}))
            .repaired(&["missing_parameter_end"]),
        case(Glm, call("<arg_key>city</arg_key>\n<arg_value>Oslo"))
            .calls("get_weather", json!({"city": "Oslo"}))
            .repaired(&["missing_parameter_end"]),
        case(Glm, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Os")
            .calls("get_weather", json!({"city": "Os"}))
            .repaired(&["truncated"]),
        case(Glm, "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>")
            .calls("now", json!({}))
            .repaired(&["other_dialect"]),
        case(Glm, "<tool_call>rm\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>")
            .says("<tool_call>rm\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>")
            .repaired(&["unknown_function"]),
        case(Glm, "a <tool_call> in prose").says("a <tool_call> in prose"),
    ] {
        case.check();
    }
}

#[test]
fn kimi() {
    use Dialect::Kimi;
    let one = |id: &str, arguments: &str| {
        format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>")
    };
    let section =
        |calls: &str| format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>");
    let oslo = one("functions.get_weather:0", "{\"city\": \"Oslo\"}");
    for case in [
        case(Kimi, format!("<think>I look.</think>Let me see.{}", section(&oslo)))
            .thinks("I look.")
            .says("Let me see.")
            .calls("get_weather", json!({"city": "Oslo"})),
        case(Kimi, section(&(oslo.clone() + &one("functions.now:1", "{}"))))
            .calls("get_weather", json!({"city": "Oslo"}))
            .calls("now", json!({})),
        case(Kimi, section(&one("now", "{}"))).calls("now", json!({})),
        case(Kimi, section(&one("functions.now:0", ""))).calls("now", json!({})),
        case(Kimi, oslo.replace("<|tool_call_end|>", "<|tool_calls_section_end|>"))
            .calls("get_weather", json!({"city": "Oslo"}))
            .repaired(&["missing_call_end"]),
        case(Kimi, section(&one("functions.rm:0", "{}")))
            .says(
                "<|tool_call_begin|>functions.rm:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
            )
            .repaired(&["unknown_function"]),
        // The argument's marker of the next call does not belong to this one.
        case(
            Kimi,
            format!("<|tool_call_begin|>functions.now:0{{}}<|tool_call_end|>{}", one("now", "{}")),
        )
        .says("<|tool_call_begin|>functions.now:0{}")
        .calls("now", json!({})),
        case(
            Kimi,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
            <|tool_call_argument_begin|>{\"city\": \"Os",
        )
        .calls("get_weather", json!({"city": "Os"}))
        .repaired(&["truncated"]),
    ] {
        case.check();
    }
}

#[test]
fn deepseek() {
    use Dialect::DeepSeek;
    let v31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜>\
        <｜tool▁calls▁end｜>";
    let v3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Oslo\"}\n\
        ```<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>";
    let oslo = || json!({"city": "Oslo"});
    // What no name is as long as.
    let long: &str = format!("<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{{}}", "x".repeat(400)).leak();
    for case in [
        case(DeepSeek, format!("I look.\n</think>\n\nLet me see.{v31}"))
            .opens()
            .thinks("I look.")
            .says("Let me see.")
            .calls("get_weather", oslo()),
        case(DeepSeek, v3).calls("get_weather", oslo()),
        case(DeepSeek, v3.replace("```json\n", "").replace("```", "")).calls("get_weather", oslo()),
        case(
            DeepSeek,
            v31.replace(
                "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
            ),
        )
        .calls("get_weather", oslo())
        .calls("now", json!({})),
        case(DeepSeek, v31.replace("Oslo\"}<｜tool▁call▁end｜>", "Oslo\"}"))
            .calls("get_weather", oslo())
            .repaired(&["missing_call_end"]),
        // A separator that is none: that of the next call does not belong to this one.
        case(
            DeepSeek,
            "<｜tool▁call▁begin｜>now<|tool▁sep｜>{}<｜tool▁call▁end｜>\
            <｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        )
        .says("<｜tool▁call▁begin｜>now<|tool▁sep｜>{}")
        .calls("now", json!({})),
        case(DeepSeek, long).says(long),
        case(DeepSeek, "<｜tool▁call▁begin｜>rm<｜tool▁sep｜>{}<｜tool▁call▁end｜>")
            .says("<｜tool▁call▁begin｜>rm<｜tool▁sep｜>{}<｜tool▁call▁end｜>")
            .repaired(&["unknown_function"]),
    ] {
        case.check();
    }
}

#[test]
fn gemma() {
    use Dialect::Gemma;
    let call = |inside: &str| format!("<|tool_call>call:get_weather{inside}<tool_call|>");
    let oslo = || json!({"city": "Oslo"});
    for case in [
        case(
            Gemma,
            format!(
                "<|channel>thought\nI look.\n<channel|>Let me see.{}",
                call("{city:<|\"|>Oslo<|\"|>}")
            ),
        )
        .thinks("I look.")
        .says("Let me see.")
        .calls("get_weather", oslo()),
        case(Gemma, "I look.<channel|>Mild.").opens().thinks("I look.").says("Mild."),
        // Strings hold quotes, braces and commas as they are; keys are bare at every level.
        case(
            Gemma,
            call(
                "{city:<|\"|>a {\"b\"}, \\ c\nd<|\"|>,days:2,list:[1,<|\"|>x<|\"|>,{k:true,l:[]}],\
                 zip:<|\"|>02134<|\"|>}",
            ),
        )
        .calls(
            "get_weather",
            json!({"city": "a {\"b\"}, \\ c\nd", "days": 2, "list": [1, "x", {"k": true, "l": []}],
                    "zip": "02134"}),
        ),
        case(Gemma, "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>")
            .calls("now", json!({}))
            .calls("now", json!({})),
        case(Gemma, "<|tool_call>call:now<tool_call|>").calls("now", json!({})),
        case(Gemma, call("{ city: <|\"|>Oslo<|\"|> , days: -15 }"))
            .calls("get_weather", json!({"city": "Oslo", "days": -15})),
        // As declarations quote their keys; a string in JSON's quotes, and one without any.
        case(Gemma, call("{<|\"|>city<|\"|>:<|\"|>Oslo<|\"|>}")).calls("get_weather", oslo()),
        case(Gemma, call("{city:\"Oslo\"}"))
            .calls("get_weather", oslo())
            .repaired(&["malformed_json"]),
        case(Gemma, call("{city:Oslo}")).calls("get_weather", oslo()).repaired(&["malformed_json"]),
        case(Gemma, call("{city:<|\"|>Oslo<|\"|>,city:<|\"|>Rome<|\"|>,days:1}"))
            .calls("get_weather", json!({"city": "Oslo", "days": 1}))
            .repaired(&["duplicate_parameter"]),
        case(Gemma, call("{note:None,days:two}"))
            .calls("get_weather", json!({"note": "None", "days": "two"}))
            .repaired(&["malformed_json", "unfitting_value"]),
        // A string that the call's end closes.
        case(Gemma, call("{city:<|\"|>Oslo"))
            .calls("get_weather", oslo())
            .repaired(&["malformed_json"]),
        case(Gemma, call("{city:<|\"|>Oslo<|\"|>]}"))
            .calls("get_weather", oslo())
            .repaired(&["malformed_json"]),
        case(Gemma, "<|tool_call>call:get_weather{city:<|\"|>Os")
            .calls("get_weather", json!({"city": "Os"}))
            .repaired(&["truncated"]),
        case(Gemma, "<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>,days:1")
            .calls("get_weather", oslo())
            .repaired(&["truncated"]),
        case(Gemma, "<|tool_call>call:now{}")
            .calls("now", json!({}))
            .repaired(&["missing_call_end"]),
        case(Gemma, "<|tool_call>call:rm{a:1}<tool_call|>")
            .says("<|tool_call>call:rm{a:1}<tool_call|>")
            .repaired(&["unknown_function"]),
        case(Gemma, "a <|tool_call> in prose").says("a <|tool_call> in prose"),
        case(Gemma, format!("<|channel>thought\nHm.{}", call("{city:<|\"|>Oslo<|\"|>}")))
            .thinks("Hm.")
            .calls("get_weather", oslo())
            .repaired(&["call_in_thinking"]),
    ] {
        case.check();
    }
}

/// Pieces of every dialect and none.
const WORDS: [&str; 61] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "get_weather",
    "now",
    "functions.now:0",
    "rm",
    "\n",
    "\n\n",
    " ",
    "<",
    "</",
    "<|",
    "<｜",
    "é\u{1f600}",
    "{",
    "}",
    "\"",
    "{\"city\": \"x\"}",
    "{\"city\": [1,",
    "12",
    "```json\n",
    "<|start|>",
    "assistant",
    "<|channel|>",
    "analysis",
    "final",
    "commentary",
    " to=functions.now",
    " to=rm",
    "<|constrain|>json",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜tool_calls>",
    "<｜DSML｜invoke name=\"get_weather\">",
    "</｜DSML｜invoke>",
    "<｜DSML｜parameter name=\"city\" string=\"true\">",
    "</｜DSML｜parameter>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"now\">",
    "</invoke>",
    "<parameter name=\"city\">",
    "</parameter>",
    "<arg_key>city</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_call_begin|>get_weather:0<|tool_call_argument_begin|>",
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>",
    "<|channel>thought",
    "<channel|>",
    "<|tool_call>call:get_weather",
    "<tool_call|>",
    "{city:",
    "<|\"|>",
    ",days:",
    "[",
    "]",
];

proptest! {
    #[test]
    fn any_text_gives_the_same_events_however_it_is_cut(
        words in prop::collection::vec(0..WORDS.len(), 0..20),
        size in 2_usize..9,
        dialect in 0..Dialect::ALL.len(),
        opens: bool,
    ) {
        let dialect = Dialect::ALL[dialect];
        let text: String = words.iter().map(|&word| WORDS[word]).collect();
        let (expected, whole) = parsed(dialect, &text, opens, usize::MAX);
        for size in [1, size] {
            let (events, parser) = parsed(dialect, &text, opens, size);
            prop_assert_eq!(&events, &expected, "{:?}: {:?} in pieces of {}", dialect, &text, size);
            prop_assert_eq!(parser.repairs(), whole.repairs(), "{:?}: {:?}", dialect, &text);
        }
    }
}
