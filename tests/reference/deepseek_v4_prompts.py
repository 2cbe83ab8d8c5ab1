"""Writes tests/golden/text-dialects/deepseek_v4.json: conversations as the encoder of DeepSeek-V4's folder writes them.

Usage: deepseek_v4_prompts.py FOLDER DESTINATION, where FOLDER has the release's encoding_dsv4.py. The conversations are
ours; the encoder takes tools in the first message, which is a system message without text where there is none."""

import copy
import itertools
import json
import pathlib
import sys

TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather of a place, in “plain” words.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
                       "required": ["place"]}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def call(id, name, **arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def result(id, text):
    return {"role": "tool", "tool_call_id": id, "content": text}


SYSTEM = {"role": "system", "content": "Answer briefly."}
ASK = {"role": "user", "content": "Wie ist das Wetter in Köln?\n"}
PARALLEL = {
    "role": "assistant", "content": "", "reasoning_content": "Two places.\nTwo calls.",
    "tool_calls": [
        call("c1", "weather", place="Köln <&>", days=2, wide=True, where=[1, 2.5, None], more={"a": "ü"}),
        call("c2", "now"),
    ],
}
SPOKEN = {**PARALLEL, "content": "Let me look.", "tool_calls": [call("c9", "weather", place="line\nbreak")]}
ANSWER = {"role": "assistant", "content": "Rain.", "reasoning_content": "It rains."}
CONVERSATIONS = {
    "user": [ASK],
    "system": [SYSTEM, ASK],
    "turns": [SYSTEM, ASK, ANSWER, {"role": "user", "content": "And tomorrow?"}],
    "two users": [ASK, {"role": "user", "content": "Quickly."}],
    "no thinking in history": [ASK, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": "Thanks."}],
    "call": [ASK, SPOKEN, result("c9", "sun")],
    "calls": [SYSTEM, ASK, PARALLEL, result("c1", "rain"), result("c2", "12:00")],
    "results in another order": [ASK, PARALLEL, result("c2", "12:00"), result("c1", "rain")],
    "a user after results": [ASK, PARALLEL, result("c2", "12:00"), result("c1", "rain"),
                             {"role": "user", "content": "Well?"}],
    "after a call": [ASK, PARALLEL, result("c1", "rain"), result("c2", "12:00"), ANSWER,
                     {"role": "user", "content": "And now?"}],
    "call after call": [ASK, PARALLEL, result("c1", "rain"), result("c2", "12:00"), SPOKEN, result("c9", "sun")],
}


def main():
    folder, destination = map(pathlib.Path, sys.argv[1:3])
    sys.path.insert(0, str(folder))
    import encoding_dsv4

    cases = []
    choices = itertools.product(CONVERSATIONS, (False, True), ("thinking", "chat"), (None, "max"))
    for title, tools, mode, effort in choices:
        messages = copy.deepcopy(CONVERSATIONS[title])
        if tools:
            if messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": ""})
            messages[0]["tools"] = TOOLS
        text = encoding_dsv4.encode_messages(messages, mode, reasoning_effort=effort)
        cases.append({"conversation": title, "tools": tools, "mode": mode, "effort": effort, "text": text})
    golden = {"conversations": CONVERSATIONS, "tools": TOOLS, "cases": cases}
    destination.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")
    print(f"{len(cases)} prompts")


if __name__ == "__main__":
    main()
