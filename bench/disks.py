#!/usr/bin/env python3
"""Two stages with a disk each against one process with one of these disks, in one run.

    disks.py FLASHMOE MODEL LAYERS --cut 18 [--group 3G] [--memory 2800M] [--disk 0.7G] [--tokens 64] [--rounds 3]
        [--threads 2,1] [--pace PACE.so] [--more=OPTIONS]

Needs root, for the control groups. Each process has a group of its own: so much memory with its page cache, and reads
held to the rate of a disk by the block-I/O controller. All groups read the same drive, which has to be faster than two of
these rates. The controller lets short bursts pass; with `--pace` (bench/pace.c, compiled) reads take turns at the rate
instead, without any. Arms are interleaved, `--rounds` times: `flashmoe bench` alone, and with a stage of the layers from the cut on
in a second process, over loopback. LAYERS is the number of all layers; each number of `--threads`, of each process of two,
is an arm. Arms agree to the bit, or it ends with status 1.

Prints the rows of each arm, what each process read, and how many times as fast two are.
"""

import argparse
import collections
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

from stream import Group, size


def rows_of(group, options, more):
    """The rows of `flashmoe bench` in a group, and the bytes that its process read."""
    command = [
        options.flashmoe, "bench", options.model, "--device", "cpu", "--routing", "calibrated", "--no-check", "-p", "0",
        "-n", options.tokens, "-r", options.repetitions, "-o", "json", "--memory", options.memory, *options.more, *more,
    ]
    out, _, read = group.run(command)
    return [json.loads(line) for line in out.splitlines()], read


def with_stage(groups, options, folder, threads):
    """The same with the layers from the cut on in a second process."""
    threads = ["--threads", threads]
    command = [
        options.flashmoe, "stage", options.model, "--layers", f"{options.cut}:{options.layers}", "--listen", "127.0.0.1:0",
        "--device", "cpu", "--routing", "calibrated", "--no-check", "--memory", options.memory, *options.more, *threads,
        *options.sizes,
    ]
    command = [str(part) for part in command]
    with open(f"{folder}/stage.log", "w+") as log:
        stage = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=groups[1].enter)
        try:
            address = stage.stdout.readline().strip().rsplit(" ", 1)[-1]
            layers = f"{options.cut}:{options.layers}"
            file = pathlib.Path(folder, "stages.toml")
            file.write_text(f'[[stage]]\naddress = "{address}"\nlayers = "{layers}"\n')
            rows, read = rows_of(groups[0], options, ["--stages", file, *threads])
        except SystemExit:
            log.seek(0)
            print(log.read())
            raise
        finally:
            # Not yet waited for, so that its number is its own.
            os.kill(stage.pid, signal.SIGTERM)
            _, _, usage = os.wait4(stage.pid, 0)
            stage.returncode = 0
    return rows, [read, usage.ru_inblock * 512]


def show(arm, rows, reads):
    """Says the rows of one call of `bench`; gives the speed when warm."""
    for row in rows:
        print(f"{arm}: {row['test']} {row['tok_per_s']} tok/s, hits {row['hits_percent']} %, {row['gb_per_token']} GB a token, "
              f"slots {row['slots']}, check {row['check']}")
    print(f"{arm}: read {', '.join(f'{read / 1e9:.2f}' for read in reads)} GB, all in all", flush=True)
    return rows[-1]["tok_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flashmoe", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("layers", type=int)
    parser.add_argument("--cut", type=int, required=True)
    parser.add_argument("--group", type=size, default=size("3G"))
    parser.add_argument("--memory", default="2800M")
    parser.add_argument("--disk", type=float, default=0.7, help="GB/s of each")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="2,1")
    parser.add_argument("--pace", type=pathlib.Path)
    parser.add_argument("--more", default="")
    options = parser.parse_args()
    options.more, options.sizes = options.more.split(), ["--context", "2048", "--sequences", "1"]
    rate = int(options.disk * 1e9)
    if options.pace:
        # What a group runs inherits it.
        os.environ.update(LD_PRELOAD=str(options.pace.resolve()), FLASHMOE_PACE=str(rate))
        options.more += ["--io", "pread"]
        rate = None
    groups = [Group(options.group, options.model, rate, f"-{name}") for name in ["first", "second"]]
    found, checks = collections.defaultdict(list), set()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.rounds):
                rows, read = rows_of(groups[0], options, [])
                found["one"].append(show("one", rows, [read]))
                checks.add(str([row["check"] for row in rows]))
                for threads in options.threads.split(","):
                    arm = f"two, {threads} threads each"
                    rows, reads = with_stage(groups, options, folder, threads)
                    found[arm].append(show(arm, rows, reads))
                    checks.add(str([row["check"] for row in rows]))
        for group in groups:
            print(f"peak {int(group.peak.read_text()) / 2**30:.2f} GiB")
    finally:
        for group in groups:
            group.remove()
    one = statistics.median(found.pop("one"))
    for arm, rates in found.items():
        print(f"{arm}: {statistics.median(rates):.2f} tok/s for {one:.2f}: {statistics.median(rates) / one:.2f} times")
    if len(checks) != 1:
        sys.exit(f"{len(checks)} different answers")


if __name__ == "__main__":
    main()
