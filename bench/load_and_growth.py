#!/usr/bin/env python3
"""Trunk read or mapped, cache grown or allocated ahead: what each costs at start and while running.

    bench/load_and_growth.py --flashmoe target/release/flashmoe MODEL... [--rounds 2] [--prompt 64] [--generate 32]
        [--depth 0,2048] [--load read,mmap] [--page-cache cold,warm] [--memory 6G] [--log FILE]

For each MODEL and depth: `flashmoe bench` as one process for every `--load`, `--kv grow|ahead` and page cache cold or warm,
interleaved, every second round in the opposite order. Cold drops the model's files from the page cache before, warm reads the
trunk's bytes (all files of a checkpoint that keeps trunk and experts together) through it. The start is the time from the end of the
probes ("loading") to the beginning of the prompt: the load, and at a depth the tokens of the context. The other figures are
`bench`'s own, of its first (cold) repetition, and the whole process's: what it took of the processor, which is steadier than the
clock on a shared machine, and its peak. Prints one Markdown row per arm with the medians; `--log` appends each run as a JSON
line. Ends with an error where arms compute different tokens. Standard library only.
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


def bench(options, model, depth, load, growth):
    command = [str(options.flashmoe), "bench", str(model), "-p", str(options.prompt), "-n", str(options.generate)]
    command += ["-d", str(depth), "-r", "1", "--load", load, "--kv", growth, "--memory", options.memory]
    command += ["--routing", "calibrated", "--device", "cpu", "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    begun = first = None
    tail = []
    for line in process.stderr:
        text = line.decode(errors="replace")
        tail = (tail + [text])[-5:]
        if text.startswith("loading") and begun is None:
            begun = time.monotonic()
        elif text.startswith(f"pp{options.prompt}") and first is None:
            first = time.monotonic()
    rows = [json.loads(line) for line in process.stdout if line.startswith(b"{")]
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0 or begun is None or first is None:
        sys.exit(f"{' '.join(command)}: status {status}: {''.join(tail)}")
    cold = {row["test"].split()[0][:2]: row for row in rows if "cold" in row["test"]}
    return {
        "start": first - begun - cold["pp"]["ttft_s"],
        "ttft": cold["pp"]["ttft_s"],
        "decode": cold["tg"]["tok_per_s"],
        "processor": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss / 2**20,
        "check": cold["tg"]["check"],
    }


def measure(options, model, depth):
    """Interleaved runs of all arms; prints a row for each."""
    caches, loads = options.page_cache.split(","), options.load.split(",")
    arms = [(l, g, c) for c in caches for l in loads for g in ("grow", "ahead")]
    results = {arm: [] for arm in arms}
    for turn in range(options.rounds):
        for arm in arms if turn % 2 == 0 else reversed(arms):
            load, growth, cache = arm
            (forget if cache == "cold" else warm)(model)
            run = bench(options, model, depth, load, growth)
            results[arm].append(run)
            if options.log:
                with options.log.open("a") as log:
                    about = {"model": model.name, "depth": depth, "load": load, "growth": growth, "page_cache": cache}
                    log.write(json.dumps(about | run) + "\n")
    if len({run["check"] for runs in results.values() for run in runs}) != 1:
        sys.exit(f"{model} at {depth} tokens: the arms computed different tokens")
    for (load, growth, cache), runs in results.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in ("start", "ttft", "decode", "processor", "peak")}
        print(f"| {model.name} | {depth} | {cache} | {load} | {growth} | {middle['start']:.2f} | {middle['ttft']:.2f} "
              f"| {middle['decode']:.2f} | {middle['processor']:.1f} | {middle['peak']:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--flashmoe", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--depth", default="0")
    parser.add_argument("--load", default="read,mmap")
    parser.add_argument("--page-cache", default="cold,warm")
    parser.add_argument("--memory", default="6G")
    parser.add_argument("--log", type=pathlib.Path)
    options = parser.parse_args()
    print("| model | context | page cache | load | cache | start, s | TTFT, s | decode, tok/s | processor, s | peak resident, GiB |")
    print("|---" * 10 + "|")
    for model in options.models:
        for depth in options.depth.split(","):
            measure(options, model, int(depth))
        forget(model)


main()
