//! An answer in every dialect, with thinking and calls of the functions `f` and `g`, and the words that mean something
//! in one of them.

use text::Dialect;

use Dialect::{DeepSeek, Dsml, Gemma, Glm, Harmony, Hermes, Kimi, MiniMax, QwenXml};

/// Answers that their dialect reads as calls.
pub(crate) const SAMPLES: [(Dialect, &str); 10] = [
    (
        Hermes,
        "<think>\nhm\n</think>\n\nHello <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>\nbye",
    ),
    (
        QwenXml,
        "x\n<tool_call>\n<function=f>\n<parameter=a>\n[1, 2]\n</parameter>\n<parameter=b>\nt\n</parameter>\n\
         </function>\n</tool_call>",
    ),
    (
        Harmony,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f \
         <|constrain|>json<|message|>{\"a\":[1]}<|call|>",
    ),
    (
        Harmony,
        "<|channel|>commentary<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>y",
    ),
    (
        Dsml,
        "hm</think>x\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"g\">\n<｜DSML｜parameter name=\"b\" \
         string=\"true\">t</｜DSML｜parameter>\n<｜DSML｜parameter name=\"c\" string=\"false\">3</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    (
        MiniMax,
        "hm\n</think>\n\nx\n<minimax:tool_call>\n<invoke name=\"g\">\n<parameter name=\"b\">t</parameter>\n\
         <parameter name=\"c\">3</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
    (
        Glm,
        "\n<think>hm</think>\nx\n<tool_call>g\n<arg_key>b</arg_key>\n<arg_value>t</arg_value>\n<arg_key>c</arg_key>\n\
         <arg_value>3</arg_value>\n</tool_call>",
    ),
    (
        Kimi,
        "<think>hm</think>x<|tool_calls_section_begin|><|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>\
         {\"b\": \"t\"}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        Gemma,
        "<|channel>thought\nhm<channel|>x<|tool_call>call:g{b:<|\"|>t<|\"|>,c:3}<tool_call|>\
         <|tool_call>call:f{a:[1,{k:true}]}<tool_call|>",
    ),
    (
        DeepSeek,
        "hm\n</think>\n\nx<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{\"b\": \"t\"}<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": [1]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
];

/// What the dialects are made of.
pub(crate) const WORDS: &[&str] = &[
    "<|channel>thought",
    "<channel|>",
    "<|tool_call>call:",
    "<tool_call|>",
    "<|\"|>",
    "{a:",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<",
    ">",
    "\n",
    "{",
    "}",
    "\"",
    "\\u",
    "\\ud800",
    "{\"name\":",
    "\"arguments\":",
    "[[[[",
    "1e999",
    "null",
    "None",
    "True",
    "=f>",
    "=g>",
    "<parameter=b>",
    "<parameter=c>",
    "</parameter>\n</function>\n</tool_call>",
    "{\"name\": \"g\", \"arguments\": {\"b\": \"",
    "```",
    "é",
    "\u{1f600}",
    "<|start|>assistant",
    "<|channel|>",
    "analysis",
    "commentary",
    "final",
    " to=functions.f",
    "<|constrain|>json",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜tool_calls>",
    "<｜DSML｜function_calls>",
    "<｜DSML｜invoke name=\"f\">",
    "</｜DSML｜invoke>",
    "<｜DSML｜parameter name=\"a\" string=\"false\">",
    "</｜DSML｜parameter>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"f\">",
    "</invoke>",
    "<parameter name=\"a\">",
    "<tool_call>f\n",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "functions.f:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "function<｜tool▁sep｜>f\n```json\n",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
];
