#!/usr/bin/env python3
"""Calls of the CUDA driver, and the host's processor time, for one decoded token.

Usage: bench/cuda/calls.py FLASHMOE MODEL CALLS_SO [OPTION...]: the library that `bench/cuda/calls.c` describes, and
options for `flashmoe bench`. Two runs of different lengths; what they differ in, over the tokens they differ by, is
what a token costs. A call whose number is a fraction is not made for every token."""
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

SHORT, LONG = 64, 320
# `bench` decodes once cold and REPETITIONS times more.
REPETITIONS = 1


def decode(program, model, library, tokens, options):
    with tempfile.TemporaryDirectory() as place:
        out = pathlib.Path(place) / "calls.tsv"
        environment = dict(os.environ, CALLS_OUT=str(out))
        if library:
            environment["CUDA_INJECTION64_PATH"] = str(pathlib.Path(library).resolve())
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [program, "bench", model, "--device", "cuda", "-p", "0", "-n", tokens, "-r", REPETITIONS, *options]
        done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr[-2000:])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        calls = {}
        if library:
            lines = (line.split("\t") for line in out.read_text().splitlines())
            calls = {name: int(count) for name, count in lines}
        user, system = (getattr(after, f) - getattr(before, f) for f in ("ru_utime", "ru_stime"))
        return calls, user, system


def main():
    program, model, library, *options = sys.argv[1:]
    tokens = (LONG - SHORT) * (1 + REPETITIONS)
    (few, *_), (many, *_) = (decode(program, model, library, n, options) for n in (SHORT, LONG))
    print(f"calls of the driver per token, over {tokens} tokens:")
    for name in sorted(many):
        per_token = (many[name] - few.get(name, 0)) / tokens
        if per_token:
            print(f"  {name}: {per_token:.3f}")
    # Without the library: being watched costs time.
    (_, *short), (_, *long) = (decode(program, model, None, n, options) for n in (SHORT, LONG))
    user, system = (1e3 * (b - a) / tokens for a, b in zip(short, long))
    print(f"host's processor time per token: {user:.2f} ms user, {system:.2f} ms system")


if __name__ == "__main__":
    main()
