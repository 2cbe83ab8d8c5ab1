#!/usr/bin/env python3
"""Fills the disk while `flashmoe pack` writes, and checks that a second run completes the same pack.

    sudo bench/pack_full.py --flashmoe target/release/flashmoe --source MODEL --work FOLDER [--trials 30]

Each trial mounts a tmpfs on FOLDER/full with room for the pack, begins to pack MODEL into it, and after a delay
drawn from the time that an uninterrupted run takes fills what is free but for some pages: the packer's next write
ends with ENOSPC, often in the middle of a buffer. The run must end with exit 4 or 5 and one line that names a file of
the pack, or have been whole already. Then the filler is removed; the same command must complete the same bytes.
Standard library only; needs the right to mount. Exit status 1 on the first difference.
"""

import argparse
import collections
import hashlib
import os
import pathlib
import random
import shutil
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


def fill(path, mount, spare):
    """Takes all but `spare` bytes of the file system."""
    state = os.statvfs(mount)
    size = state.f_bavail * state.f_frsize - spare
    if size > 0:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", required=True, type=pathlib.Path)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    mount, reference = options.work / "full", options.work / "reference"
    mount.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(reference, ignore_errors=True)

    def start(target):
        command = [options.flashmoe, "pack", options.source, target]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    begun = time.monotonic()
    whole = start(reference)
    if whole.wait():
        sys.exit(f"pack fails: {whole.stderr.read()}")
    duration = time.monotonic() - begun
    expected = digest(reference)
    size = sum(path.stat().st_size for path in reference.rglob("*") if path.is_file())
    outcomes = collections.Counter()
    for trial in range(options.trials):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size + (40 << 20)}", "tmpfs", mount], check=True)
        try:
            target, filler = mount / "pack", mount / "filler"
            process = start(target)
            while not (mount / "pack.partial").exists() and process.poll() is None:
                time.sleep(0.0005)
            time.sleep(rng.uniform(0, duration))
            try:
                fill(filler, mount, rng.choice([0, 4096, 8192, 65536]))
            except OSError:
                pass  # the packer took the room first: the file system is as full as can be
            errors = process.communicate()[1]
            where = f"seed {options.seed}, trial {trial}"
            if process.returncode not in (0, 4, 5):
                sys.exit(f"{where}: exit {process.returncode}: {errors}")
            if process.returncode and (str(mount) not in errors or "flashmoe: " not in errors):
                sys.exit(f"{where}: no file is named: {errors}")
            outcomes[process.returncode] += 1
            filler.unlink(missing_ok=True)
            if process.returncode:
                again = start(target)
                errors = again.communicate()[1]
                if again.returncode:
                    sys.exit(f"{where}: the second run ends with {again.returncode}: {errors}")
            if digest(target) != expected or (mount / "pack.partial").exists():
                sys.exit(f"{where}: another pack, or a rest")
        finally:
            subprocess.run(["umount", mount], check=True)
    shutil.rmtree(reference)
    counts = ", ".join(f"exit {code}: {count}" for code, count in sorted(outcomes.items()))
    print(f"seed {options.seed}: {options.trials} full disks ({counts}), every pack byte-identical in the end")


main()
