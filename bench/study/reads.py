#!/usr/bin/env python3
"""What hints, direct reads, cuts, queue depth and alignment of destinations give when records are read at random.

    reads.py FILE [--record 1769472] [--seconds 2] [--rounds 3] [--memory 1G] [--cc cc]

FILE is larger than --memory: everything runs in a control group of that size, to which the page cache is charged, and begins
with nothing of FILE in the cache, so that a way cannot live on what an earlier one has read. The ways are interleaved. The last
column is the rate as a share of direct reads at the same depth in the same round. Needs root.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from group import Group, size

SMALL, HUGE = 4096, 2 << 20
# Way, hint, cuts, alignment, threads.
ARMS = [("direct", "none", 1, HUGE, depth) for depth in (1, 2, 4, 8, 16, 32, 64)]
ARMS += [("direct", "none", cuts, HUGE, 4) for cuts in (2, 4)]
ARMS += [("direct", "none", 1, SMALL, 4)]
ARMS += [("buffered", hint, 1, HUGE, 4) for hint in ("none", "sequential", "random", "willneed")]
ARMS += [("buffered", "none", 1, SMALL, 4), ("buffered", "none", 4, HUGE, 4)]
ARMS += [("mapped", hint, 1, HUGE, 4) for hint in ("none", "sequential", "random", "willneed")]


def forget(path):
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--record", type=int, default=1769472)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="1G")
    parser.add_argument("--cc", default="cc")
    options = parser.parse_args()
    limit = size(options.memory)
    if options.file.stat().st_size < 2 * limit:
        sys.exit(f"{options.file} is smaller than twice {options.memory}: the cache would answer")
    found = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "reads"
        source = pathlib.Path(__file__).with_name("reads.c")
        subprocess.run([options.cc, "-O2", "-Wall", "-Werror", "-pthread", "-o", program, source], check=True)
        for turn in range(options.rounds):
            for arm in ARMS if turn % 2 == 0 else reversed(ARMS):
                way, hint, cuts, align, threads = arm
                forget(options.file)
                with Group(limit) as group:
                    command = [program, options.file, options.record, threads, options.seconds, way, hint, cuts, align]
                    code, out, errors, _ = group.run(command)
                if code:
                    sys.exit(f"{arm}: {errors}")
                found[arm].append(json.loads(out))
                print(f"{arm}: {found[arm][-1]['bytes_per_second'] / 1e9:.2f} GB/s", file=sys.stderr)
    print("| way | hint | reads a record | destination | depth | GB/s | processor, s a GB | of direct at depth 4 |")
    print("|---" * 8 + "|")
    base = found[("direct", "none", 1, HUGE, 4)]
    for (way, hint, cuts, align, threads), runs in found.items():
        rate = statistics.median(run["bytes_per_second"] for run in runs)
        time = statistics.median(run["cpu_seconds_per_gb"] for run in runs)
        ratio = statistics.median(a["bytes_per_second"] / b["bytes_per_second"] for a, b in zip(runs, base))
        aligned = "2 MiB, huge pages" if align == HUGE else "4 KiB"
        print(f"| {way} | {hint} | {cuts} | {aligned} | {threads} | {rate / 1e9:.2f} | {time:.3f} | {ratio:.2f} |")


main()
