#!/usr/bin/env python3
"""Which way of getting experts into memory wins, and when.

    storage.py --flashmoe target/dist/flashmoe --work FOLDER [--shape 35B-A3B] [--layers 8] [--bits 4,3,2] [--shares 8,4,2,1]
        [--rooms closed,open] [--routing calibrated,uniform] [--rounds 5] [--prompt 128] [--generate 24] [--out FILE] [--quick]

For every precision of the experts a synthetic model is made in FOLDER, unless it is there. For every share 1/N of the experts'
bytes, the memory is that share, the trunk and 300 MiB. `closed`: a memory control group of that size, to which the page cache is
charged. `open`: no limit but the program's own `--memory`, so that the system may cache in free RAM. Arms are interleaved, each
in a process of its own that begins with none of the model in the page cache; a cold test comes first, a warm one after it. All arms
of a round compute the same tokens, so their check values must agree. Prints medians, with the lowest and highest, of the rounds.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys

from group import Group, forget

ARMS = {
    "budget": ["--storage", "budget"],
    "buffered": ["--storage", "buffered"],
    "page-cache": ["--storage", "page-cache"],
    "mmap": ["--storage", "mmap"],
    "mmap, advised": ["--storage", "mmap", "--residency-advice"],
    "resident": ["--storage", "resident"],
}
# What a process takes in addition to trunk and slots: activations, cache of a short context, the program itself.
REST = 300 << 20
MEASURES = ["decode", "decode cold", "prefill", "first token"]


def make(options, bits):
    model = options.work / f"{options.shape}-{options.layers}-{bits}bit"
    if not model.exists():
        command = [options.flashmoe, "synth", options.shape, model, "--layers", options.layers]
        command += ["--experts", f"{bits}bit", "--layout", "native"]
        subprocess.run([str(part) for part in command], check=True)
    return model


def run(options, model, arm, memory, room, routing):
    command = [options.flashmoe, "bench", model, "--device", "cpu", "-p", options.prompt, "-n", options.generate, "-r", 1]
    command += ["--memory", str(memory - (100 << 20)), "--no-check", "-o", "json", *ARMS[arm]]
    command += ["--routing", routing.replace("uniform", "model")]
    forget(model)
    with Group(memory if room == "closed" else None) as group:
        code, out, errors, counted = group.run(command, timeout=600)
    if code == 4 or code == 137 or code == -9:
        # It does not fit: that is an answer.
        return {"arm": arm, "fits": False, "why": errors.strip().splitlines()[-1:]}
    if code:
        sys.exit(f"{' '.join(map(str, command))}: {code}\n{errors}")
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    found = {"arm": arm, "fits": True, **counted}
    for row in rows:
        kind = "decode" if row["test"].startswith("tg") else "prefill"
        cold = " cold" if "cold" in row["test"] else ""
        found[kind + cold] = row["tok_per_s"]
        found[f"check {kind}{cold}"] = row["check"]
        found[f"bytes {kind}{cold}"] = row["gb_per_token"]
        if kind == "prefill" and cold:
            found["first token"] = row["ttft_s"]
    return found


def spread(values):
    middle = statistics.median(values)
    return f"{middle:.3g} ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else f"{middle:.3g}"


def table(records):
    print("\n| bits | share | room | routing | storage | decode, tok/s | cold | prompt, tok/s | first token, s | GB a token "
          "| process, GiB | page cache, GiB | major faults | swap |")
    print("|---" * 14 + "|")
    key = lambda record: (record["bits"], record["share"], record["room"], record["routing"], record["arm"])
    groups = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    for (bits, share, room, routing, arm), runs in groups.items():
        head = f"| {bits} | 1/{share} | {room} | {routing} | {arm} "
        if not all(run["fits"] for run in runs):
            print(head + "| does not fit" + " | " * 9 + "|")
            continue
        of = lambda name: [run[name] for run in runs if run.get(name) is not None]
        middle = lambda name: statistics.median(of(name)) if of(name) else float("nan")
        cells = [spread(of(name)) for name in MEASURES]
        moved = middle("bytes decode")
        cells += ["not counted" if moved != moved else f"{moved:.3f}", f"{middle('peak_process') / 2**30:.2f}"]
        cells += [f"{middle('peak_cache') / 2**30:.2f}", f"{middle('major_faults'):.0f}", f"{middle('swap'):.0f}"]
        print(head + "| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--shape", default="35B-A3B")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--bits", default="4,3,2")
    parser.add_argument("--shares", default="8,4,2,1")
    parser.add_argument("--rooms", default="closed,open")
    parser.add_argument("--routing", default="calibrated,uniform")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--generate", type=int, default=24)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="4 bits, calibrated, one round")
    options = parser.parse_args()
    if options.quick:
        options.bits, options.routing, options.rounds = "4", "calibrated", 1
    records = []
    for bits in options.bits.split(","):
        model = make(options, bits)
        inspected = json.loads(subprocess.check_output([options.flashmoe, "inspect", model, "--json"]))
        experts, trunk = inspected["expert_bytes"], inspected["trunk_bytes"]
        combinations = itertools.product(options.shares.split(","), options.rooms.split(","), options.routing.split(","))
        for share, room, routing in combinations:
            memory = trunk + REST + experts // int(share) + (200 << 20 if share == "1" else 0)
            arms = [arm for arm in ARMS if arm != "resident" or share == "1"]
            for turn in range(options.rounds):
                # Every other round backwards: drift of the machine falls on all arms.
                checks = {}
                for arm in arms if turn % 2 == 0 else reversed(arms):
                    found = run(options, model, arm, memory, room, routing)
                    found |= {"bits": int(bits), "share": int(share), "room": room, "routing": routing, "round": turn}
                    records.append(found)
                    if options.out:
                        with options.out.open("a") as file:
                            file.write(json.dumps(found) + "\n")
                    said = ", ".join(f"{name} {found[name]:.2f}" for name in MEASURES if found.get(name))
                    print(f"{bits} bits, 1/{share}, {room}, {routing}, {arm}: {said or found.get('why')}", file=sys.stderr)
                    for name, value in found.items():
                        if name.startswith("check") and checks.setdefault(name, value) != value:
                            sys.exit(f"{arm}: {name} differs between arms")
    table(records)


main()
