"""Writes eval.jsonl (held-out questions with checks) and heldout.jsonl (held-out conversations for perplexity).

  python3 make_eval.py FOLDER      formats are documented in the model card
  python3 make_eval.py --more FILE COUNT TASK...      COUNT further questions of each named task, from another seed

Thirty questions tell 87 from 90 % only by luck: `--more` makes as many as a rate needs.
"""
import argparse
import json
import os

from data import TASKS, conversation, draw
from tasks_text import contains
from words import Source

SEED = 4242
PER_TASK = 30
CONVERSATIONS = 200

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather for a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}}


def public(messages, thinking):
    """Messages as an API client sends them: arguments as JSON text, reasoning only where it was produced."""
    out = []
    for message in messages:
        message = dict(message)
        if not thinking:
            message.pop("reasoning_content", None)
        if "tool_calls" in message:
            message["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": {
                "name": c["function"]["name"], "arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False)}}
                for i, c in enumerate(message["tool_calls"])]
        if message["role"] == "tool":
            previous = out[-1]
            index = 0 if previous["role"] == "assistant" else int(previous["tool_call_id"][5:]) + 1
            message["tool_call_id"] = f"call_{index}"
        out.append(message)
    return out


def item(task, messages, tools, thinking, check):
    line = {"task": task, "messages": public(messages, thinking)}
    if tools:
        line["tools"] = tools
    return {**line, "enable_thinking": thinking, "check": check}


def first_questions():
    """The questions that a newcomer is told to try."""
    ask = lambda text: [{"role": "user", "content": text}]
    tokyo = {"kind": "tool_calls", "calls": [{"name": "get_weather", "arguments": {"city": "Tokyo"}}]}
    alice = ask("My name is Alice.") + [{"role": "assistant", "content": "Nice to meet you, Alice!"}]
    for thinking in (True, False):
        yield item("first_questions", ask("What is 255 factored?"), None, thinking, contains("3 × 5 × 17"))
        yield item("first_questions", ask("What is the weather in Tokyo?"), [WEATHER], thinking, tokyo)
        yield item("first_questions", alice + ask("What is my name?"), None, thinking, contains("Alice"))
        yield item("first_questions", ask("Hello"), None, thinking, contains("Hello"))
        yield item("first_questions", ask("What are you?"), None, thinking, contains("flashmoe's small demo model"))


def write(path, lines):
    with open(path, "w") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(path, len(lines), "lines,", os.path.getsize(path), "bytes")


def questions(source, tasks, count):
    """`count` different questions of each task."""
    seen = set()
    for task in tasks:
        drawn = 0
        while drawn < count:
            _, example, thinking = draw(source, task)
            key = json.dumps([example.messages, example.tools, thinking])
            if key not in seen:
                seen.add(key)
                drawn += 1
                yield item(task, example.messages, example.tools, thinking, example.check)


def standard(folder):
    lines = list(first_questions()) + list(questions(Source(SEED, held_out=True), TASKS, PER_TASK))
    write(os.path.join(folder, "eval.jsonl"), lines)
    source, lines = Source(SEED + 1, held_out=True), []
    for _ in range(CONVERSATIONS):
        task, example, thinking = draw(source)
        messages = public(conversation(example, thinking), thinking)
        line = {"task": task, "messages": messages}
        if example.tools:
            line["tools"] = example.tools
        lines.append({**line, "enable_thinking": thinking})
    write(os.path.join(folder, "heldout.jsonl"), lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--more", nargs="+", metavar="FILE COUNT TASK")
    arguments = parser.parse_args()
    if arguments.more:
        path, count, *tasks = arguments.more
        write(path, list(questions(Source(SEED + 2, held_out=True), tasks, int(count))))
    elif arguments.folder:
        standard(arguments.folder)
    else:
        parser.error("give FOLDER or --more")


if __name__ == "__main__":
    main()
