#!/usr/bin/env python3
"""Flips bits of a native pack and checks that `verify` finds each one and that no run answers something else.

    bench/flips.py --flashmoe target/release/flashmoe --pack PACK --work FOLDER [--flips 1000] [--seed 1]

Each trial flips one bit of one file of a copy of PACK (every file as often as every other), runs `verify` and then
`score` with `--check-reads --storage resident`, and puts the bit back. `verify` must fail and name the file. The run
must be refused with the file's name (exit 3 at open or load, 5 at a read), or give what the undamaged pack gives: a
run does not read the padding behind tensors, nor files of text. Standard library only. Exit status 1 on the first
breach.
"""

import argparse
import collections
import json
import pathlib
import random
import shutil
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", required=True, type=pathlib.Path)
    parser.add_argument("--pack", required=True, type=pathlib.Path)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    pack = options.work / "pack"
    shutil.rmtree(pack, ignore_errors=True)
    shutil.copytree(options.pack, pack)
    ids = options.work / "ids.json"
    ids.write_text(json.dumps([1, 50, 7, 7, 300, 12, 3, 90]))
    logits = options.work / "logits.safetensors"

    def flashmoe(*arguments):
        return subprocess.run([options.flashmoe, *arguments], capture_output=True, text=True, check=False)

    def lines(errors):
        return [line for line in errors.splitlines() if line.startswith("flashmoe: ")]

    def score():
        logits.unlink(missing_ok=True)
        run = flashmoe("score", pack, "--ids", ids, "--logits", logits, "--check-reads", "--storage", "resident",
                       "--device", "cpu", "--threads", "1")
        return run, logits.read_bytes() if logits.exists() else b""

    run, expected = score()
    if run.returncode or not expected or flashmoe("verify", pack).returncode:
        sys.exit(f"the undamaged pack does not run: {run.stderr}")
    files = sorted(path for path in pack.rglob("*") if path.is_file())
    outcomes = {path: collections.Counter() for path in files}
    for trial in range(options.flips):
        path = rng.choice(files)
        at, bit = rng.randrange(path.stat().st_size), 1 << rng.randrange(8)
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ bit]))
            file.flush()
            where = f"seed {options.seed}, trial {trial}: bit {bit} of byte {at} of {path.relative_to(pack)}"
            verify = flashmoe("verify", pack)
            if verify.returncode == 0 or path.name not in verify.stderr + verify.stdout:
                sys.exit(f"{where}: verify says {verify.returncode}: {verify.stderr}{verify.stdout}")
            run, found = score()
            if run.returncode == 0 and found == expected:
                outcome = "same answer"
            elif run.returncode in (3, 5) and path.name in (lines(run.stderr) or [""])[0] and len(lines(run.stderr)) == 1:
                outcome = f"refused with {run.returncode}"
            else:
                sys.exit(f"{where}: the run ends with {run.returncode}: {run.stderr}")
            outcomes[path][outcome] += 1
            file.seek(at)
            file.write(bytes([byte]))
        if (trial + 1) % 500 == 0:
            print(f"{trial + 1} flips", flush=True)
    print(f"seed {options.seed}: {options.flips} flips, all found by verify, no other answer")
    for path, counts in outcomes.items():
        print(f"  {path.relative_to(pack)}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


main()
