#!/usr/bin/env python3
"""Trunk read or mapped, cache grown or allocated ahead: what each costs at start and while running.

    bench/load_and_growth.py --flashmoe target/release/flashmoe MODEL... [--rounds 2] [--prompt 64] [--generate 32]
        [--depth 0] [--memory 6G]

For each MODEL: `flashmoe bench` as one process for every `--load read|mmap`, `--kv grow|ahead` and page cache cold or warm, in
turns. Cold drops the model's files from the page cache before, warm reads the trunk's bytes (all files of a checkpoint that keeps
trunk and experts together) through it. Load is the time from the end of the probes ("loading") to the first progress of the
prefill; the other figures are `bench`'s own, of its first (cold) repetition. Prints one Markdown row per arm with the medians.
Standard library only.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time


def files(model):
    return [path for path in sorted(model.rglob("*")) if path.is_file()]


def forget(model):
    for path in files(model):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(model):
    for path in files(model):
        if path.parent.name == "experts":
            continue
        with path.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass


def bench(options, model, load, growth):
    command = [str(options.flashmoe), "bench", str(model), "-p", str(options.prompt), "-n", str(options.generate)]
    command += ["-d", str(options.depth), "-r", "1", "--load", load, "--kv", growth, "--memory", options.memory]
    command += ["--routing", "calibrated", "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    begun = first = None
    tail = []
    for line in process.stderr:
        text = line.decode(errors="replace")
        tail = (tail + [text])[-5:]
        if text.startswith("loading") and begun is None:
            begun = time.monotonic()
        elif text.startswith("prefill:") and first is None:
            first = time.monotonic()
    rows = [json.loads(line) for line in process.stdout if line.startswith(b"{")]
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0 or begun is None or first is None:
        sys.exit(f"{' '.join(command)}: status {status}: {''.join(tail)}")
    cold = {row["test"].split()[0][:2]: row for row in rows if "cold" in row["test"]}
    return {
        "load": first - begun,
        "ttft": cold["pp"]["ttft_s"],
        "decode": cold["tg"]["tok_per_s"],
        "peak": usage.ru_maxrss / 2**20,
        "check": cold["tg"]["check"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--flashmoe", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--memory", default="6G")
    options = parser.parse_args()
    arms = [(l, g, c) for c in ("cold", "warm") for l in ("read", "mmap") for g in ("grow", "ahead")]
    print("| model | page cache | load | cache | until first progress, s | TTFT, s | decode, tok/s | peak resident, GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for model in options.models:
        results = {arm: [] for arm in arms}
        for _ in range(options.rounds):
            for arm in arms:
                (forget if arm[2] == "cold" else warm)(model)
                results[arm].append(bench(options, model, arm[0], arm[1]))
        if len({run["check"] for runs in results.values() for run in runs}) != 1:
            sys.exit(f"{model}: the arms computed different tokens")
        for (load, growth, cache), runs in results.items():
            middle = {key: statistics.median(run[key] for run in runs) for key in ("load", "ttft", "decode", "peak")}
            print(f"| {model.name} | {cache} | {load} | {growth} | {middle['load']:.2f} | {middle['ttft']:.2f} "
                  f"| {middle['decode']:.2f} | {middle['peak']:.2f} |", flush=True)
        forget(model)


main()
