#!/usr/bin/env python3
"""What fewer experts a token and fewer bits give in speed and in bytes, where experts stream from the disk.

    experts.py --flashmoe target/dist/flashmoe --work FOLDER [--shape 35B-A3B] [--layers 8] [--share 4] [--rounds 3]

The memory is that of the trunk and of 1/SHARE of the experts at 4 bits, in a closed control group, for every arm: fewer bits find
more experts in it. Arms are interleaved. Fewer experts than trained change the answers: what that costs the demo model is the table
"Quality by experts per token and by bits" of docs/benchmarks.md. Needs root.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from group import Group, forget

REST = 300 << 20
ARMS = [(4, k) for k in (8, 6, 4, 3, 2, 1)] + [(3, 8), (2, 8)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--shape", default="35B-A3B")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--share", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--generate", type=int, default=32)
    options = parser.parse_args()
    models = {}
    for bits in sorted({bits for bits, _ in ARMS}):
        models[bits] = options.work / f"{options.shape}-{options.layers}-{bits}bit"
        if not models[bits].exists():
            command = [options.flashmoe, "synth", options.shape, models[bits], "--layers", options.layers]
            command += ["--experts", f"{bits}bit", "--layout", "native"]
            subprocess.run([str(part) for part in command], check=True)
    inspected = json.loads(subprocess.check_output([options.flashmoe, "inspect", models[4], "--json"]))
    memory = inspected["trunk_bytes"] + REST + inspected["expert_bytes"] // options.share
    found = {arm: [] for arm in ARMS}
    for turn in range(options.rounds):
        for bits, k in ARMS if turn % 2 == 0 else reversed(ARMS):
            command = [options.flashmoe, "bench", models[bits], "--device", "cpu", "-p", 0, "-n", options.generate, "-r", 1]
            command += ["-k", k, "--memory", str(memory - (100 << 20)), "--no-check", "--routing", "calibrated", "-o", "json"]
            forget(models[bits])
            with Group(memory) as group:
                code, out, errors, _ = group.run(command)
            if code:
                sys.exit(f"{bits} bits, k {k}: {errors}")
            rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            found[bits, k].append(next(row for row in rows if "cold" not in row["test"]))
            print(f"{bits} bits, k {k}: {found[bits, k][-1]['tok_per_s']:.2f} tok/s", file=sys.stderr)
    print("| bits | experts a token | tok/s | of 4 bits, all experts | hits % | MB a token |")
    print("|---" * 6 + "|")
    for (bits, k), runs in found.items():
        middle = lambda name: statistics.median(run[name] for run in runs)
        ratio = statistics.median(a["tok_per_s"] / b["tok_per_s"] for a, b in zip(runs, found[ARMS[0]]))
        print(f"| {bits} | {k} | {middle('tok_per_s'):.1f} | {ratio:.2f} | {middle('hits_percent'):.1f} "
              f"| {1e3 * middle('gb_per_token'):.1f} |")


main()
