"""Writes tests/golden/text: a small tokenizer, texts with their token ids by the tokenizers library, and
conversations as transformers' apply_chat_template renders and tokenises them.

Usage: text_goldens.py DESTINATION [NAME=TEMPLATE ...]

With NAME=TEMPLATE, further templates (a release's own, for example) are rendered too; such files are
for a comparison by hand and are not committed."""

import json
import pathlib
import sys

import jinja2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
CORPUS = [
    "The weather in the town is mild today; the weather tomorrow will be cold and the day after that wet.",
    "def weather(town: str) -> dict:\n    return {\"town\": town, \"degrees\": 21}\n",
    "Wie wird das Wetter? Quel temps fait-il ? ¿Qué tiempo hace? Какая погода? 天気はどうですか 今天天气怎么样",
    "the function takes a parameter and the function returns a value, as the parameter says",
]
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\nnew\n\n\nlines\r\nmixed \n \n end",
    "don't we'll THEY'RE I'm",
    "1234567890 3.14159 1,000,000",
    "naïve café — “quotes” … ½ ² ﬁ",
    "e\u0301 is not é until it is normalised; \u1100\u1161\u11a8",
    "天気はどうですか。今天天气怎么样？",
    "नमस्ते दुनिया สวัสดี مرحبا שלום",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji",
    "\u0000\u0001\u007f\u0080\ufeff\ufffd\u2028\u00ad",
    "{\"name\": \"weather\", \"arguments\": {\"town\": \"Bern\"}}",
    "<function=weather>\n<parameter=town>\nBern\n</parameter>\n</function>",
    "if (a<b && c|d) { return a<|b; } // <| |> < think > <think",
    "     five spaces     \u3000ideographic\u00a0no-break",
    "a" * 300,
    "x = [" + ", ".join(str(i) for i in range(60)) + "]",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather <now> & \"later\" — für €5 in 北京's 'town'",
            "parameters": {
                "type": "object",
                "properties": {
                    "town": {"type": "string", "description": "a\nb\tc\\d/e"},
                    "days": {"type": "integer", "minimum": 0, "default": 1.5e-7},
                },
                "required": ["town"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CALLS = [
    {
        "id": "call_1",
        "type": "function",
        "function": {
            "name": "weather",
            "arguments": {
                "town": "Bern\n<b>&\"x\"",
                "days": 3,
                "exact": True,
                "no": None,
                "ratio": 1.0,
                "huge": 1e22,
                "list": [1, 2.5, "ü", {"a": None}],
                "empty": {},
            },
        },
    },
    {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": {}}},
]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = {
    "user": [say("user", "Hello!")],
    "untrimmed": [say("system", "  Be brief. \n"), say("user", "\n\n  Hello  \n")],
    "unicode": [say("system", "Réponds.\u3000"), say("user", "\x1f 天気\u00a0\x1c")],
    "turns": [
        say("system", "Be brief."),
        say("user", "One?"),
        say("assistant", "Two."),
        say("user", "Three?"),
    ],
    "thinking in history": [
        say("user", "One?"),
        say("assistant", "Two.", reasoning_content="\nHm, two.\n"),
        say("user", "Three?"),
        say("assistant", "Four.", reasoning_content="Surely four."),
    ],
    "thinking inside content": [
        say("user", "One?"),
        say("assistant", "<think>\nHm.\n</think>\n\nTwo."),
        say("user", "Three?"),
        say("assistant", "<think>\n\nFour, \n I think.\n\n</think>\n\n\n    Four.\n    Indented."),
    ],
    "thinking without an opening": [
        say("user", "One?"),
        say("assistant", "Hm.</think>Two."),
    ],
    "thinking twice": [
        say("user", "One?"),
        say("assistant", "<think>a</think>b<think>c</think>\nd"),
    ],
    "thinking and nothing else": [say("user", "One?"), say("assistant", "<think>\na\n</think>\n\n")],
    "call": [
        say("system", "Use tools."),
        say("user", "Weather?"),
        say("assistant", "", tool_calls=CALLS[:1]),
        say("tool", "21 degrees", tool_call_id="call_1"),
    ],
    "call with null content": [say("user", "Weather?"), say("assistant", None, tool_calls=CALLS[1:])],
    "parallel calls": [
        say("user", "Weather and time?"),
        say("assistant", "Let me look.", reasoning_content="Two calls.", tool_calls=CALLS),
        say("tool", " {\"degrees\": 21} \n", tool_call_id="call_1"),
        say("tool", "12:00", tool_call_id="call_2"),
        say("assistant", "It is noon and mild.", reasoning_content="Done."),
        say("user", "Thanks. And tomorrow?"),
        say("assistant", "", reasoning_content="Again.", tool_calls=CALLS[:1]),
        say("tool", "cold", tool_call_id="call_1"),
        say("tool", "", tool_call_id="call_2"),
    ],
    "parts": [
        say("user", [{"type": "text", "text": "One, "}, {"type": "text", "text": "two?"}]),
        say("assistant", [{"type": "text", "text": " Three. "}]),
        say("user", "Four?"),
    ],
    "no user": [say("assistant", "Hello?")],
}
OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True},
    {"add_generation_prompt": False},
]
EXTRA = {
    "integer": 12345678901234567,
    "negative": -3,
    "float": 0.1,
    "whole": 2.0,
    "large": 1.5e300,
    "small": 1e-05,
    "yes": True,
    "no": False,
    "nothing": None,
    "text": "quote \" back \\ slash / <b>&'</b> \u0001 \u007f é 😀 \u2028 \b\f\r\n\t",
    "list": [],
    "object": {},
    "nested": {"b": [1, [2, {"c": "d"}]], "a": {"z": None}},
}


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP])
    return tokenizer


def render(tokenizer, template, messages, tools, options):
    """What transformers renders, or the message with which the template refuses; token ids of short ones."""
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=template, tokenize=False, **options
        )
    except jinja2.exceptions.TemplateError as error:
        return {"refused": str(error)}
    if len(text) > 500:
        return {"text": text}
    return {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)}


def main():
    destination = pathlib.Path(sys.argv[1])
    destination.mkdir(parents=True, exist_ok=True)
    names = {"qwen35": "qwen35_structure", "qwen3": "qwen3_structure", "python": "python_details"}
    templates = {name: HERE / "templates" / f"{file}.jinja" for name, file in names.items()}
    for argument in sys.argv[2:]:
        name, path = argument.split("=", 1)
        templates[name] = pathlib.Path(path)
    core = train()
    core.save(str(destination / "tokenizer.json"), pretty=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", bos_token="<|endoftext|>")
    tokens = [{"text": text, "ids": core.encode(text, add_special_tokens=False).ids} for text in TEXTS]
    (destination / "tokens.json").write_text(json.dumps(tokens, ensure_ascii=False, separators=(",", ":")) + "\n")
    cases = []
    for name, path in templates.items():
        source = path.read_text()
        for title, messages in CONVERSATIONS.items():
            if name == "python" and title not in ("turns", "untrimmed"):
                continue
            if name == "qwen3" and title == "parts":
                continue  # it prints strings alone and would lose the parts; flashmoe joins them first
            calls = any("tool_calls" in message for message in messages)
            for tools in [None, TOOLS] if calls or title == "user" or title == "untrimmed" else [None]:
                for options in OPTIONS[:1] if name == "python" else OPTIONS:
                    extra = {"extra": EXTRA} if name == "python" else {}
                    result = render(tokenizer, source, messages, tools, {**options, **extra})
                    case = {
                        "template": name,
                        "conversation": title,
                        "tools": tools is not None,
                        "options": options,
                        **result,
                    }
                    cases.append(case)
    golden = {
        "templates": {name: path.read_text() for name, path in templates.items()},
        "conversations": CONVERSATIONS,
        "tools": TOOLS,
        "extra": EXTRA,
        "cases": cases,
    }
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (destination / "conversations.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
