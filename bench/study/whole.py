#!/usr/bin/env python3
"""A model of full depth whose layers share files: the least memory by plan and by measure, decode, and answers at the limit.

    whole.py --flashmoe target/dist/flashmoe --work FOLDER [--shape 397B-A17B] [--distinct 2] [--tokenizer models/demo]
        [--context 4096] [--memory 10G] [--answers 100] [--generate 20]

1. `synth SHAPE --distinct N`: the files of N layers; the others are hard links. Experts are read directly, so a link costs a read.
2. The least memory that `plan` names at this context, and what a process in a closed control group of that size and 5 % takes.
3. ANSWERS answers of GENERATE tokens at that limit, by as many processes as it takes: none may fail.
4. Decode and prompts in a closed group of --memory, with the bound that disk and memory set.
Needs root.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

from group import Group, forget, size

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--shape", default="397B-A17B")
    parser.add_argument("--distinct", type=int, default=2)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=pathlib.Path("models/demo"))
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--memory", default="10G")
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--generate", type=int, default=20)
    options = parser.parse_args()
    model = options.work / f"{options.shape}-linked-{options.distinct}"
    if not model.exists():
        command = [options.flashmoe, "synth", options.shape, model, "--layout", "native"]
        subprocess.run([str(part) for part in [*command, "--distinct", options.distinct]], check=True)
        for name in TOKENIZER:
            shutil.copy(options.tokenizer / name, model)
    common = ["--device", "cpu", "--context", options.context, "--no-check"]
    refused = subprocess.run([str(part) for part in [options.flashmoe, "run", model, "x", "--memory", "1M", *common]],
                             capture_output=True, text=True)
    least = size(re.search(r"--memory ([0-9.]+[KMG]?)", refused.stderr)[1])
    print(f"least memory by plan at a context of {options.context}: {least / 1e9:.2f} GB ({least / 2**30:.2f} GiB)")
    ask = [options.flashmoe, "run", model, "Name a colour.", "--max-tokens", options.generate, "--temperature", 0, "--stats"]
    ask += ["--memory", least, "--routing", "calibrated", *common]
    failed, first, begun = 0, None, time.monotonic()
    for number in range(options.answers):
        forget(model)
        with Group(int(1.05 * least)) as group:
            code, out, errors, counted = group.run(ask, timeout=3600)
        first = first or out
        if code or out != first:
            failed += 1
            print(f"answer {number}: exit {code}: {errors[-300:]}", file=sys.stderr)
        if number == 0:
            print(f"process {counted['peak_process'] / 1e9:.2f} GB, page cache {counted['peak_cache'] / 1e9:.2f} GB; {errors[-400:]}")
    seconds = time.monotonic() - begun
    print(f"{options.answers} answers of {options.generate} tokens at the limit: {failed} failed, {seconds:.0f} s")
    memory = size(options.memory)
    bench = [options.flashmoe, "bench", model, "--device", "cpu", "-p", "128", "-n", options.generate, "-r", 2, "-o", "json"]
    bench += ["--memory", memory - (200 << 20), "--routing", "calibrated", "--no-check", "--phases"]
    forget(model)
    with Group(memory) as group:
        code, out, errors, _ = group.run(bench, timeout=3600)
    if code:
        sys.exit(errors)
    print(f"| test, {options.memory}, layers linked | tok/s | hits % | GB a token | of bound % |\n|---|---|---|---|---|")
    for row in (json.loads(line) for line in out.splitlines() if line.startswith("{")):
        print(f"| {row['test']} | {row['tok_per_s']:.3g} | {row['hits_percent']} | {row['gb_per_token']:.3f} "
              f"| {row['of_bound_percent']} |")


main()
