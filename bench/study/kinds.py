#!/usr/bin/env python3
"""How much routing depends on what is talked about: traces of the demo model's answers, one for each kind of question.

    kinds.py --flashmoe target/release/flashmoe --work FOLDER [--model models/demo] [--tokens 1290]

Each kind is some tasks of the model's `eval.jsonl`. `flashmoe eval --trace` records the answers, greedy; each trace is cut to its
first TOKENS tokens, since coverage and hit rates depend on the length. `mixed` has as many tokens in all, an equal share of each
kind, one kind after the other. The first table has `trace stats` (means over layers) and `trace replay`. The second table asks what
a list of experts learned from one kind is worth for another: of each layer the quarter that the first half of a trace uses most, and
the share of the uses in the second half of every trace that it holds. A quarter of a uniform router's uses is 25 %.
Standard library only.
"""

import argparse
import array
import collections
import itertools
import json
import pathlib
import struct
import subprocess
import sys

KINDS = {
    "arithmetic": ("addition", "subtraction", "multiplication", "factoring"),
    "lists, letters": ("sorting", "reversing", "counting"),
    "small talk, stories": ("talk", "story", "unknown", "first_questions"),
    "JSON, Python": ("json", "python"),
    "tool calls": ("tool_single", "tool_parallel", "tool_result", "tool_none"),
}
HEADER = struct.Struct("<8sQHHHHQQ")        # Trace::write of crates/store/src/trace/mod.rs
SHARE = 4                                   # a list of the most used experts has 1/SHARE of them


def read(path):
    """Header fields, and the expert ids of each token, layers one after the other."""
    data = path.read_bytes()
    header = HEADER.unpack_from(data)
    _, _, layers, _, k, weighted, _, tokens = header
    ids, record = 2 * layers * k, (2 + (4 if weighted else 0)) * layers * k
    rows = [array.array("H", data[at:at + ids]) for at in range(HEADER.size, HEADER.size + tokens * record, record)]
    return header, rows


def write(path, header, rows):
    magic, fingerprint, layers, experts, k, _, _, _ = header
    with path.open("wb") as file:
        file.write(HEADER.pack(magic, fingerprint, layers, experts, k, 0, 0, len(rows)))
        for row in rows:
            file.write(row.tobytes())


def record(options, kind, tasks):
    """The trace of a kind's answers, made once."""
    name = kind.replace(", ", "-").replace(" ", "-")
    asked, trace = options.work / f"{name}.jsonl", options.work / f"{name}.full"
    if not trace.exists():
        lines = (options.model / "eval.jsonl").read_text().splitlines(keepends=True)
        by_task = [[line for line in lines if json.loads(line)["task"] == task] for task in tasks]
        # One question of each task after the other, so that both halves of a trace have all tasks.
        asked.write_text("".join(line for turn in itertools.zip_longest(*by_task, fillvalue="") for line in turn))
        command = [options.flashmoe, "eval", options.model, asked, "--device", "cpu", "--trace", trace]
        subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)
    return name, *read(trace)


def table(options, command, *arguments):
    done = subprocess.check_output([str(options.flashmoe), "trace", command, "-o", "json", *map(str, arguments)])
    return [json.loads(line) for line in done.splitlines() if line.startswith(b"{")]


def most_used(rows, layers, k, slots):
    """A set of experts for each layer."""
    chosen = []
    for layer in range(layers):
        uses = collections.Counter(expert for row in rows for expert in row[layer * k:(layer + 1) * k])
        chosen.append({expert for expert, _ in uses.most_common(slots)})
    return chosen


def held(chosen, rows, k):
    """Share of the uses in `rows` that the sets hold."""
    found = sum(row[at] in experts for row in rows for layer, experts in enumerate(chosen) for at in range(layer * k, (layer + 1) * k))
    return found / (len(rows) * len(chosen) * k)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path("models/demo"))
    parser.add_argument("--tokens", type=int, default=1290)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    traces, names = {}, {}
    for kind, tasks in KINDS.items():
        name, header, rows = record(options, kind, tasks)
        if len(rows) < options.tokens:
            sys.exit(f"{kind}: {len(rows)} tokens of answers, --tokens asks for {options.tokens}")
        traces[kind], names[kind] = rows[:options.tokens], name
    part = options.tokens // len(KINDS)
    traces["mixed"], names["mixed"] = [row for kind in KINDS for row in traces[kind][:part]], "mixed"

    print("| answers | tokens | overlap | Gini | used | 30 tokens use | LFRU, 1/8 in slots | 1/4 | Belady, 1/4 | most used 1/4 |")
    print("|---" * 10 + "|")
    for kind, rows in traces.items():
        path = options.work / f"{names[kind]}.trace"
        write(path, header, rows)
        mean = next(row for row in table(options, "stats", path) if row["layer"] == "mean")
        eighth, quarter = table(options, "replay", path, "--slots", "12.5,25")
        print(f"| {kind} | {len(rows)} | {mean['overlap']:.3f} | {mean['gini']:.3f} | {100 * mean['coverage']:.0f} % "
              f"| {100 * mean['30_tokens']:.0f} % | {eighth['lfru_percent']} % | {quarter['lfru_percent']} % | {quarter['belady_percent']} % "
              f"| {quarter['fixed_percent']} % |")

    _, _, layers, experts, k, *_ = header
    half = options.tokens // 2
    kinds = list(KINDS)
    print("\n| a quarter learned from | " + " | ".join(f"serves {kind}" for kind in kinds) + " |")
    print("|---" * (len(kinds) + 1) + "|")
    for source in kinds:
        chosen = most_used(traces[source][:half], layers, k, experts // SHARE)
        shares = (held(chosen, traces[kind][half:], k) for kind in kinds)
        print(f"| {source} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")


main()
