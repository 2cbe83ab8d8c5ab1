#!/usr/bin/env python3
"""Runs flashmoe over generated checkpoints and compares it with transformers and mlx-lm.

    compare.py CHECKPOINTS --binary target/release/flashmoe [--only TEXT]

Every checkpoint is scored four times:

    exact    --arithmetic f32 (activations in float32), keys and values in float32
    kernels  the default kernels (activations in 16 bits), keys and values in float32
    default  the default kernels and the default type of keys and values
    moved    the default again, with another storage mode, memory limit, thread count or
             prefill chunk, in turn from case to case: must repeat `default` bit for bit

The measure is the relative error |out - reference| / |reference| in the Euclidean norm over all
positions and the vocabulary. Bounds (see BOUNDS) follow the kind of net: a calm net does not amplify
rounding, a wild one does, so that all but the exact ones are held to a bound on calm nets only. The
greedy continuation of 32 tokens must be identical wherever a bound applies.

Prints one row per checkpoint; exits 1 if any bound is broken or any run fails.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import typing

import numpy as np

import safetensors_file

# (kind of net, kernels) -> greatest relative error; None: reported, not bounded.
BOUNDS = {
    ("calm", "exact"): 1e-5,
    ("calm", "kernels"): 1e-4,
    ("calm", "default"): 3e-4,
    ("wild", "exact"): 3e-4,
    ("wild", "kernels"): None,
    ("wild", "default"): None,
}
# Rounded keys of an indexer move scores, and in random nets other rows are near every cut: reported, not bounded.
CHOSEN_ROWS = ("deepseek_v32", "glm_moe_dsa", "glm5_next")
ROUNDED_BOUND = 5e-3  # mean KL to transformers that rounds its cache at the same places, on calm nets
MLX_BOUNDS = {"calm": 2e-5, "wild": 3e-4}  # against mlx-lm, itself rounding in float32
MOVES = [
    ["--prefill-chunk", "37"],
    ["--storage", "mmap", "--threads", "1"],
    ["--storage", "page-cache", "--prefill-chunk", "1"],
    ["--storage", "resident", "--prefill-chunk", "64"],
    ["--threads", "1", "--prefill-chunk", "101"],
]


class Failure(Exception):
    """What is wrong with one checkpoint."""


class Scores(typing.NamedTuple):
    logits: np.ndarray  # [tokens, vocabulary] f32
    greedy: list


def score(binary, folder, greedy_tokens, arguments):
    """Runs `flashmoe score` and returns what it wrote."""
    with tempfile.TemporaryDirectory() as scratch:
        target = pathlib.Path(scratch, "out.safetensors")
        command = [binary, "score", folder / "model", "--ids", folder / "ids.json"]
        command += ["--logits", target, "--greedy", greedy_tokens, *arguments]
        command = [str(part) for part in command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise Failure(f"exit code {done.returncode} of {' '.join(command[1:])}: {lines[-1]}")
        out = safetensors_file.read(target)
    return Scores(out["logits"].bits, out["greedy"].bits.tolist())


def relative_error(out, reference):
    difference = out.astype(np.float64) - reference
    return float(np.linalg.norm(difference) / np.linalg.norm(reference.astype(np.float64)))


def largest_error(out, reference):
    return float(np.abs(out.astype(np.float64) - reference).max())


def divergence(expected, out):
    """Mean KL divergence of the rows of logits, nats."""
    def log_probabilities(logits):
        logits = logits.astype(np.float64)
        logits = logits - logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    p, q = log_probabilities(expected), log_probabilities(out)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def check(binary, folder, moved):
    """Compares one checkpoint; returns (cells of its row, list of failures)."""
    about = json.loads((folder / "case.json").read_text())
    reference = {n: t.bits for n, t in safetensors_file.read(folder / "reference.safetensors").items()}
    kind = "calm" if about["calm"] else "wild"
    expected = reference["greedy"].tolist()
    cells, failures = [kind], []
    results = {}
    stored = ["--kv-type", "f32"]
    arms = (("exact", ["--arithmetic", "f32", *stored]), ("kernels", stored), ("default", []))
    rounded = folder / "rounded.safetensors"
    for kernels, arguments in arms:
        out = results[kernels] = score(binary, folder, len(expected), arguments)
        if out.logits.shape != reference["logits"].shape:
            raise Failure(f"logits {out.logits.shape}, not {reference['logits'].shape}")
        error = relative_error(out.logits, reference["logits"])
        bound = BOUNDS[kind, kernels]
        if kernels == "default" and about["family"] in CHOSEN_ROWS:
            bound = None
        if kernels == "default" and rounded.exists():
            bound = None  # another arithmetic: compared with its own reference
            apart = divergence(safetensors_file.read(rounded)["logits"].bits, out.logits)
            if kind == "calm" and not apart < ROUNDED_BOUND:
                failures.append(f"rounded cache: KL {apart:.1e} exceeds {ROUNDED_BOUND:.0e}")
        agreed = next((i for i, (a, b) in enumerate(zip(out.greedy, expected)) if a != b), 32)
        cells += [
            f"{error:.1e}",
            f"{largest_error(out.logits, reference['logits']):.1e}",
            f"{agreed}/{len(expected)}",
        ]
        if not np.isfinite(error):
            failures.append(f"{kernels}: logits are not finite")
        elif bound is not None and error > bound:
            failures.append(f"{kernels}: relative error {error:.1e} exceeds {bound:.0e}")
        if bound is not None and out.greedy != expected:
            failures.append(f"{kernels}: greedy text differs from token {agreed} on")
    if "mlx_logits" in reference:
        error = relative_error(results["exact"].logits, reference["mlx_logits"])
        cells.append(f"{error:.1e}")
        if not error <= MLX_BOUNDS[kind]:
            failures.append(f"against mlx-lm: {error:.1e} exceeds {MLX_BOUNDS[kind]:.0e}")
    else:
        cells.append("")
    again = score(binary, folder, len(expected), moved)
    same = again.logits.tobytes() == results["default"].logits.tobytes()
    if not same or again.greedy != results["default"].greedy:
        failures.append(f"not bit-identical with {' '.join(moved)}")
    cells.append("same" if same else "DIFFERS")
    return cells, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", type=pathlib.Path)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="checkpoints whose name contains this")
    options = parser.parse_args()
    folders = sorted(f.parent for f in options.checkpoints.glob("*/case.json"))
    folders = [f for f in folders if options.only in f.name]
    if not folders:
        sys.exit(f"{options.checkpoints}: no checkpoint whose name contains {options.only!r}")

    arms = ["exact", "max", "greedy", "kernels", "max", "greedy", "default", "max", "greedy"]
    columns = ["net", *arms, "mlx-lm", "moved"]
    widths = [5, 8, 8, 6, 8, 8, 6, 8, 8, 6, 8, 7]
    row = lambda name, cells: f"{name:34} " + " ".join(f"{c:>{w}}" for c, w in zip(cells, widths))
    print(row("checkpoint", columns))
    broken, start = 0, time.monotonic()
    for index, folder in enumerate(folders):
        try:
            cells, failures = check(options.binary, folder, MOVES[index % len(MOVES)])
        except (Failure, subprocess.TimeoutExpired, KeyError) as error:
            cells, failures = [], [str(error)]
        print(row(folder.name, cells))
        for failure in failures:
            print(f"    FAILED {failure}")
        broken += bool(failures)
        sys.stdout.flush()
    print(f"{len(folders) - broken} of {len(folders)} within bounds, {time.monotonic() - start:.0f} s")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
