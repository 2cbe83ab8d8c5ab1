#!/usr/bin/env python3
"""Compares two builds where experts are in GPU memory, in pinned RAM and on disk: records read and tokens per second.

Usage: tiers.py BEFORE AFTER FOLDER [--rounds N] [--keep]
BEFORE and AFTER are flashmoe programs; FOLDER has 20 GB free. The 35B shape is made there once. Rows, in turns:
decode with 20 % of the experts in GPU memory and 20 % in RAM (calibrated routing, 192 tokens after as many unmeasured
ones), decode with prediction on, and a prompt of 4,096 tokens with 15 to 20 % and 20 %. Prints a line of JSON for each
run, then a table; ends with status 1 when the two builds do not give the same check values.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

RECORD_BYTES = 1_769_472
RECORDS = 10_240
ROWS = {
    "decode": "-p 0 -n 192 --vram 5.1G --slots 2048 --routing calibrated",
    "decode, prediction on": "-p 0 -n 192 --vram 5.1G --slots 2048 --routing calibrated --predict on",
    "prompt of 4,096": "-p 4096 -n 0 --vram 5.5G --slots 2048",
}


def bench(program, model, options):
    """Rows of one run; the last is the warm one."""
    command = [program, "bench", str(model), "--device", "cuda", "-r", "1", "-o", "json", *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    text = done.stdout.strip()
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    return rows


def reads(row):
    """Records read per token."""
    return row["gb_per_token"] * 1e9 / RECORD_BYTES


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="do not remove the model at the end")
    arguments = parser.parse_args()
    model = arguments.folder / "35b"
    if not model.exists():
        command = [arguments.after, "synth", "35B-A3B", str(model), "--layout", "native"]
        subprocess.run(command, check=True, capture_output=True)
    found = {}
    for turn in range(arguments.rounds):
        builds = [("before", arguments.before), ("after", arguments.after)]
        # Drives and clocks drift: who goes first changes.
        for name, program in builds if turn % 2 == 0 else reversed(builds):
            for row, options in ROWS.items():
                rows = bench(program, model, options)
                found.setdefault((row, name), []).append(rows)
                print(json.dumps({"row": row, "build": name, "turn": turn, "rows": rows}), flush=True)
    wrong = False
    print(f"{'row':<24} {'build':<7} {'tok/s':>8} {'reads/token':>12} {'of all experts':>14} {'of bound %':>10}")
    for row in ROWS:
        checks = set()
        for name in ("before", "after"):
            last = [rows[-1] for rows in found[row, name]]
            checks.update(tuple(each["check"] for each in rows) for rows in found[row, name])
            middle = lambda value: statistics.median(value(each) for each in last)
            tokens = 4096 if row.startswith("prompt") else 1
            print(
                f"{row:<24} {name:<7} {middle(lambda each: each['tok_per_s']):8.2f} {middle(reads):12.2f}"
                f" {middle(reads) * tokens / RECORDS:14.3f} {middle(lambda each: each['of_bound_percent']):10.1f}"
            )
        if len(checks) > 1:
            wrong = True
            print(f"{row}: check values differ: {sorted(checks)}")
    if not arguments.keep:
        shutil.rmtree(model)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
