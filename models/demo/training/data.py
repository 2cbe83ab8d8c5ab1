"""The training mixture: draws examples, renders them as chats, and tokenises them.

`render` writes in Python what `chat_template.jinja` writes in Jinja (`python3 data.py` compares both on 2,000
conversations).  Weights: 1 for the tokens of assistant turns after the last user turn, CONTEXT_WEIGHT for all others, 0
for what the template itself writes before the model speaks.
"""
import json
import os

import numpy as np

import tasks_code
import tasks_text
import tasks_tools
from words import Source

CONTEXT_WEIGHT = 0.1
LONGEST = 1024

# task -> (generator, share of the mixture)
TASKS = {
    "factoring": (tasks_text.factoring, 12), "addition": (tasks_text.addition, 6),
    "subtraction": (tasks_text.subtraction, 7), "multiplication": (tasks_text.multiplication, 4),
    "sorting": (tasks_text.sorting, 8), "reversing": (tasks_text.reversing, 4), "counting": (tasks_text.counting, 6),
    "lookup": (tasks_text.lookup, 5), "json": (tasks_text.json_objects, 6), "python": (tasks_code.python_functions, 6),
    "capitals": (tasks_text.capitals, 1), "memory": (tasks_text.memory, 6), "memory_first": (tasks_text.memory_first, 1.5),
    "system_prompt": (tasks_text.system_prompt, 5), "story": (tasks_text.story, 4), "talk": (tasks_text.talk, 1.5),
    "unknown": (tasks_text.unknown, 1), "tool_single": (tasks_tools.tool_single, 8),
    "tool_parallel": (tasks_tools.tool_parallel, 6), "tool_result": (tasks_tools.tool_result, 5),
    "tool_none": (tasks_tools.tool_none, 4)}


PLAIN_SYSTEM = ["You are a helpful assistant.", "You are a helpful assistant.", "Be helpful and brief."]
WITHOUT_HISTORY = ("memory", "memory_first")
EARLIER = ("factoring", "addition", "talk", "capitals", "sorting", "lookup", "unknown")


def draw(source, task=None):
    """(task, example, thinking on).  Some conversations get earlier turns on another subject or a plain system turn."""
    if task is None:
        names = list(TASKS)
        task = source.random.choices(names, weights=[TASKS[name][1] for name in names])[0]
    example = TASKS[task][0](source)
    if not example.tools and example.messages[0]["role"] != "system":
        if task not in WITHOUT_HISTORY and source.chance(0.15):
            earlier = TASKS[source.pick(EARLIER)][0](source)
            example.messages = earlier.messages + [{"role": "assistant", "content": earlier.answer}] + example.messages
        if source.chance(0.15):
            example.messages = [{"role": "system", "content": source.pick(PLAIN_SYSTEM)}] + example.messages
    return task, example, source.chance(0.5)


def conversation(example, thinking):
    """All messages including the final assistant turn."""
    messages = [dict(m) for m in example.messages]
    for message in messages:
        if not thinking:
            message.pop("reasoning_content", None)
    final = {"role": "assistant", "content": example.answer}
    if thinking:
        final["reasoning_content"] = example.working
    elif example.visible:
        final["content"] = f"{example.working}\n\n{example.answer}"
    if example.calls:
        final["tool_calls"] = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in example.calls]
    return messages + [final]


TOOL_HEAD = "# Tools\n\nYou can call these functions:\n\n<tools>"
TOOL_TAIL = ("\n</tools>\n\nTo call a function, answer in this form and write nothing after it:\n\n<tool_call>\n"
             "<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>\n\n"
             "If no function fits, answer without a call.")


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def call_text(call):
    function = call["function"]
    parameters = "".join(f"<parameter={key}>\n{value if isinstance(value, str) else dump(value)}\n</parameter>\n"
                         for key, value in function["arguments"].items())
    return f"<tool_call>\n<function={function['name']}>\n{parameters}</function>\n</tool_call>"


def render(messages, tools=(), generation_prompt=None):
    """Chat text; `generation_prompt` None, or whether thinking is on."""
    out = []
    system = messages[0]["content"].strip() if messages[0]["role"] == "system" else None
    if tools:
        lines = "".join("\n" + dump(tool) for tool in tools)
        tail = f"\n\n{system}" if system else ""
        out.append(f"<|im_start|>system\n{TOOL_HEAD}{lines}{TOOL_TAIL}{tail}<|im_end|>\n")
    elif system is not None:
        out.append(f"<|im_start|>system\n{system}<|im_end|>\n")
    last_query = max(i for i, m in enumerate(messages) if m["role"] == "user")
    for i, message in enumerate(messages):
        role, content = message["role"], message["content"].strip()
        if role == "user":
            out.append(f"<|im_start|>user\n{content}<|im_end|>\n")
        elif role == "assistant":
            thought = f"<think>\n{message.get('reasoning_content', '').strip()}\n</think>\n\n" if i > last_query else ""
            calls = "\n".join(call_text(call) for call in message.get("tool_calls", []))
            joint = "\n\n" if calls and content else ""
            out.append(f"<|im_start|>assistant\n{thought}{content}{joint}{calls}<|im_end|>\n")
        elif role == "tool":
            first = messages[i - 1]["role"] != "tool"
            final = i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
            out.append(("<|im_start|>user" if first else "") + f"\n<tool_response>\n{content}\n</tool_response>"
                       + ("<|im_end|>\n" if final else ""))
    if generation_prompt is not None:
        out.append("<|im_start|>assistant\n<think>\n" + ("" if generation_prompt else "\n</think>\n\n"))
    return "".join(out)


def document_text(source, task=None):
    """One training document: (task, text up to and including the last <|im_end|>)."""
    task, example, thinking = draw(source, task)
    return task, render(conversation(example, thinking), example.tools)[:-1]


class Weights:
    """Loss weights of a token sequence, from the positions of the turn markers."""

    def __init__(self, tokenizer):
        one = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        (self.start,), (self.end,) = one("<|im_start|>"), one("<|im_end|>")
        (self.think,), (self.close,) = one("<think>"), one("</think>")
        self.assistant = one("assistant")
        self.off = one("<think>\n\n</think>\n\n")
        assert len(self.assistant) == 1, "the word assistant must be one token"

    def of(self, ids):
        weights = np.full(len(ids), CONTEXT_WEIGHT, np.float32)
        starts = [i for i, token in enumerate(ids) if token == self.start]
        for begin in starts:
            if ids[begin + 1] != self.assistant[0] or ids[begin + 3] != self.think:
                continue
            body = begin + 3 + len(self.off) if ids[begin + 3:begin + 3 + len(self.off)] == self.off else begin + 5
            stop = ids.index(self.end, body) + 1
            weights[begin + 1:body] = 0
            weights[body:stop] = 1
        weights[0] = 0
        return weights


def documents(tokenizer, source, count):
    """`count` tokenised documents for `batches.pack_rows`."""
    weights = Weights(tokenizer)
    texts = [document_text(source)[1] for _ in range(count)]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [{"ids": e.ids, "weights": weights.of(e.ids)} for e in encoded if len(e.ids) <= LONGEST]


def compare_with_template():
    """The Python renderer and the Jinja template give the same text."""
    from transformers import AutoTokenizer
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    tokenizer, source = AutoTokenizer.from_pretrained(folder), Source(3)
    for i in range(2000):
        _, example, thinking = draw(source)
        messages = conversation(example, thinking)
        for part, prompt in ((messages, None), (messages[:-1], thinking)):
            want = tokenizer.apply_chat_template(part, tools=example.tools or None, tokenize=False,
                                                 add_generation_prompt=prompt is not None,
                                                 enable_thinking=thinking)
            got = render(part, example.tools, prompt)
            assert got == want, f"conversation {i}:\n{got!r}\n{want!r}"
    print("renderer and template agree on 2000 conversations")


if __name__ == "__main__":
    compare_with_template()
