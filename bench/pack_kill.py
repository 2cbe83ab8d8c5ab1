#!/usr/bin/env python3
"""Kills `flashmoe pack` at random moments and checks that the pack comes out the same.

    bench/pack_kill.py --flashmoe target/release/flashmoe --source MODEL --work FOLDER [--kills 200] [--pack-args ...]

Each trial packs MODEL until it is done, sending SIGKILL after a delay drawn evenly from the time that an
uninterrupted run takes; a trial is killed up to three times. Every trial's folder must then hold the same
names and bytes as the uninterrupted run's, and no `.partial` folder may be left. Only kills that hit a
running packer count. SIGKILL tests the packer, not the disk: what was written but not synced survives it,
so power loss stays the business of the fault-injection tests of `store::pack`.
Standard library only; needs three times the pack's size in FOLDER. Exit status 1 on the first difference.
"""

import argparse
import collections
import hashlib
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time


def digest(folder):
    """SHA-256 of every file under `folder`, by relative name."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                sums[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def stage(destination, partial):
    """What a kill left: the number of files that the journal names, or what came before or after."""
    if destination.exists():
        return "whole" if whole_pack(destination) else "renamed"
    if not partial.exists():
        return "nothing"
    journals = list(partial.glob("*journal*"))
    if not journals:
        return "folder"
    lines = max(journal.read_bytes().count(b"\n") for journal in journals)
    return f"{max(lines - 1, 0):03d} files"


def whole_pack(folder):
    """True when nothing is left to do: the last step of a pack removes the journal."""
    return folder.exists() and not (folder / "journal").exists()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", required=True, type=pathlib.Path)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pack-args", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    rng = random.Random(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    reference, trial = options.work / "reference", options.work / "trial"
    partial = options.work / "trial.partial"

    def start(destination):
        command = [options.flashmoe, "pack", options.source, destination, *options.pack_args]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def clear():
        for folder in (trial, partial):
            shutil.rmtree(folder, ignore_errors=True)

    def finish(process):
        errors = process.communicate()[1].decode(errors="replace")
        if process.returncode != 0:
            sys.exit(f"pack failed with {process.returncode}: {errors}")

    shutil.rmtree(reference, ignore_errors=True)
    finish(start(reference))
    expected = digest(reference)
    times = []
    for _ in range(3):
        clear()
        begun = time.monotonic()
        finish(start(trial))
        times.append(time.monotonic() - begun)
    if digest(trial) != expected:
        sys.exit("two uninterrupted runs differ")
    whole = sorted(times)[1]
    print(f"seed {options.seed}: {len(expected)} files, uninterrupted run {whole:.3f} s", flush=True)

    kills = trials = late = 0
    stages = collections.Counter()
    while kills < options.kills:
        clear()
        for _ in range(rng.randint(1, 3)):
            process = start(trial)
            time.sleep(rng.uniform(0, whole))
            if process.poll() is not None:
                finish(process)
                late += 1
                break
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if process.returncode != -signal.SIGKILL:
                late += 1
                break
            kills += 1
            stages[stage(trial, partial)] += 1
            if whole_pack(trial):
                break
        if not whole_pack(trial):
            finish(start(trial))
        found = digest(trial)
        if found != expected or partial.exists():
            names = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
            sys.exit(f"seed {options.seed}, trial {trials}: differs in {names}, partial left: {partial.exists()}")
        trials += 1
        if trials % 20 == 0:
            print(f"{trials} trials, {kills} kills, all equal", flush=True)
    print(f"{kills} kills in {trials} trials, {late} came after the end: every pack byte-identical")
    print("kills by what they left: " + ", ".join(f"{name}: {count}" for name, count in sorted(stages.items())))
    clear()
    shutil.rmtree(reference)


main()
