"""Writes tests/golden/text-dialects: conversations in the templates of further families as transformers renders them,
and a digest of the token ids that the tokenizers library gives for 10,000 texts by each family's rule for words.

Usage: dialect_goldens.py DESTINATION [NAME=TEMPLATE ...]

With NAME=TEMPLATE, a template of a release takes the place of ours of that name (harmony, deepseek, kimi, glm, minimax);
such files are for a comparison by hand and are not committed."""

import copy
import json
import pathlib
import sys

import text_goldens
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
DEMO = HERE / "../../models/demo/tokenizer.json"
NAMES = ["harmony", "deepseek", "kimi", "glm", "minimax"]
CONTROLS = [
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>",
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "｜DSML｜",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>",
    "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>",
]
TITLES = ["user", "untrimmed", "unicode", "turns", "thinking in history", "call", "call with null content",
          "parallel calls"]
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def cased(rest, without=""):
    """Words of an upper-case beginning and a lower-case rest."""
    upper, lower = f"[{UPPER}{without}]", f"[{LOWER}{without}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    return f"{first}{upper}*{lower}+{CONTRACTION}?|{first}{upper}+{lower}*{CONTRACTION}?|" + r"\p{N}{1,3}" + rest


PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
O200K = cased(r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)
CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + PUNCTUATION + SPACES
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    + r"| ?[\p{P}\p{S}]+[\r\n]*" + SPACES,
]
KIMI = r"[\p{Han}]+|" + cased(PUNCTUATION + SPACES, r"&&[^\p{Han}]")
# Name of the rule in GGUF files: its expressions, and whether a word that is a token is taken whole.
RULES = {
    "gpt-4o": ([O200K], True),
    "minimax-m2": ([O200K], False),
    "deepseek-v3": (DEEPSEEK, False),
    "joyai-llm": (DEEPSEEK, False),
    "glm4": ([CL100K], True),
    "chatglm-bpe": ([CL100K], False),
    "kimi-k2": ([KIMI], True),
}
TEXTS = 10_000
RANGES = [
    (0x20, 0x7E), (0x61, 0x7A), (0x30, 0x39), (0xA0, 0x17F), (0x300, 0x36F), (0x391, 0x3C9), (0x410, 0x44F),
    (0x5D0, 0x5EA), (0x620, 0x669), (0x904, 0x97F), (0xE01, 0xE5B), (0x1100, 0x11FF), (0x2000, 0x206F),
    (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0x1F1E6, 0x1F64F), (0x10330, 0x1034A),
]
TEXTS_OF_RULES = ["'s", "'LL", "'T", " ", "  ", "\n", "\r\n", "\t", "\u3000", "don't", "<|im_end|>", "<think>",
                  "e\u0301", "2\u2075"]
MASK = (1 << 64) - 1


class SplitMix64:
    """As `store::split_mix`."""

    def __init__(self, state):
        self.state = state

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def text(random):
    """As in crates/text/tests/it/gguf.rs."""
    pieces = []
    for _ in range(1 + random.next() % 24):
        kind = random.next() % 24
        if kind < len(RANGES):
            first, last = RANGES[kind]
            for _ in range(1 + random.next() % 5):
                code = first + random.next() % (last - first + 1)
                pieces.append(chr(code))
        else:
            pieces.append(TEXTS_OF_RULES[random.next() % 14])
    return "".join(pieces)


def digest(name, seed):
    """FNV-1a over the ids of all texts, each text's followed by 2^32 - 1."""
    expressions, whole_words = RULES[name]
    file = json.loads(DEMO.read_text())
    file["normalizer"] = None
    file["added_tokens"] = []
    file["model"]["ignore_merges"] = whole_words
    tokenizer = Tokenizer.from_str(json.dumps(file))
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    random = SplitMix64(seed)
    value, count = 0xCBF29CE484222325, 0
    for _ in range(TEXTS):
        ids = tokenizer.encode(text(random), add_special_tokens=False).ids
        count += len(ids)
        for byte in b"".join(id.to_bytes(4, "little") for id in [*ids, MASK >> 32]):
            value = ((value ^ byte) * 0x100000001B3) & MASK
    return {"pre": name, "seed": seed, "tokens": count, "digest": f"{value:016x}"}


def prepared(name, messages):
    """Messages in the form that a family's template takes."""
    messages = [copy.deepcopy(message) for message in messages]  # they share calls
    for message in messages:
        message["content"] = message["content"] or ""
        for call in message.get("tool_calls", []):
            if name == "deepseek":
                arguments = call["function"]["arguments"]
                call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
    if name != "harmony":
        return messages
    single = []
    while messages:
        message = messages.pop(0)
        thought = message.pop("reasoning_content", None)
        calls = message.pop("tool_calls", [])
        if thought is not None:
            said = message["content"]
            both = calls and said.strip()
            message["thinking"] = thought + "\n\n" + said if both else thought
            message["content"] = "" if calls else said
        single.append(message)
        for place, call in enumerate(calls):
            if place > 0:
                single.append({"role": "assistant", "content": ""})
            single[-1]["tool_calls"] = [call]
            found = [m for m in messages if m["role"] == "tool" and m["tool_call_id"] == call["id"]]
            if found and len(calls) > 1:
                messages.remove(found[0])
                single.append(found[0])
    return single


def described(name, tools):
    """Tools in the form that a family's template takes."""
    tools = copy.deepcopy(tools)
    for tool in tools or []:
        if name == "harmony":
            tool["function"].setdefault("description", "")
    return tools


def cases_of(name, render, conversations):
    for title, messages in conversations.items():
        calls = any("tool_calls" in message for message in messages)
        for tools in [None, text_goldens.TOOLS] if calls or title == "user" else [None]:
            for options in text_goldens.OPTIONS:
                result = render(prepared(name, messages), described(name, tools), options)
                if result is not None:
                    yield {"template": name, "conversation": title, "tools": tools is not None, "options": options,
                           **result}


def main():
    destination = pathlib.Path(sys.argv[1])
    destination.mkdir(parents=True, exist_ok=True)
    templates = {name: HERE / "templates" / f"{name}_structure.jinja" for name in NAMES}
    for argument in sys.argv[2:]:
        name, path = argument.split("=", 1)
        templates[name] = pathlib.Path(path)
    core = text_goldens.train()
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROLS])
    core.save(str(destination / "tokenizer.json"), pretty=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", bos_token="<|endoftext|>")
    conversations = {title: text_goldens.CONVERSATIONS[title] for title in TITLES}
    cases = []
    for name, path in templates.items():
        source = path.read_text()

        def render(messages, tools, options, source=source):
            return text_goldens.render(tokenizer, source, messages, tools, options)

        cases += cases_of(name, render, conversations)
    golden = {
        "templates": {name: path.read_text() for name, path in templates.items()},
        "conversations": conversations,
        "tools": text_goldens.TOOLS,
        "cases": cases,
    }
    def write(file, value):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        (destination / file).write_text(text + "\n")

    write("conversations.json", golden)
    write("words.json", [digest(name, seed) for seed, name in enumerate(RULES)])


if __name__ == "__main__":
    main()
