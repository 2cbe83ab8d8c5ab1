#!/usr/bin/env python3
"""Generates the test checkpoints with their reference results.

    make_checkpoints.py OUT [--only TEXT] [--jobs N]     the full set
    make_checkpoints.py tests/golden --golden            the committed set

Each case becomes a folder OUT/NAME with
    model/                    the checkpoint, tokenizer included
    ids.json                  the token ids that are scored
    reference.safetensors     logits [tokens, vocabulary] f32, greedy [32] i32: the continuation of
                              the ids; mlx_logits where mlx-lm was asked too
    rounded.safetensors       logits with the cache rounded as in training, where a family has that
    case.json                 what the checks need to know
"""

import argparse
import functools
import json
import multiprocessing
import pathlib
import shutil
import time

import cases
import safetensors_file
import tokenizer_files


def make(case, out):
    """Writes one case under `out`; returns a line for the log."""
    import transformers_reference

    start = time.monotonic()
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    model_folder = folder / "model"
    folder.mkdir(parents=True)
    case.write(model_folder)
    tokenizer_files.write(model_folder, case.net.vocabulary)
    model = transformers_reference.load(model_folder)
    result = transformers_reference.reference(model, case.tokens)
    ids = result.pop("ids").bits
    if case.mlx_reference:
        import mlx_lm_reference

        logits = mlx_lm_reference.logits(model_folder, ids)
        result["mlx_logits"] = safetensors_file.Stored("F32", logits)
    (folder / "ids.json").write_text(json.dumps(ids.tolist()) + "\n")
    safetensors_file.write(folder / "reference.safetensors", result)
    if case.net.family == "deepseek_v4":
        safetensors_file.write(folder / "rounded.safetensors", transformers_reference.rounded(model, ids))
    about = {
        "family": case.net.family,
        "calm": case.calm,
        "quantized": case.quantized,
        "tokens": case.tokens,
    }
    (folder / "case.json").write_text(json.dumps(about, indent=1) + "\n")
    return f"{case.name:40} {time.monotonic() - start:6.1f} s"


def make_by_name(name, out, golden):
    """Runs in a worker: a case holds functions, so only its name crosses the process border."""
    return make(next(c for c in listed(golden) if c.name == name), out)


def listed(golden):
    return cases.golden_cases() if golden else cases.all_cases()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--golden", action="store_true", help="the committed set")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = [c.name for c in listed(options.golden) if options.only in c.name]
    if not names:
        parser.error(f"no case contains {options.only!r}")
    assert len(set(names)) == len(names), "two cases share a name"
    work = functools.partial(make_by_name, out=options.out, golden=options.golden)
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=20) as pool:
        for line in pool.imap_unordered(work, names):
            print(line, flush=True)
    print(f"{len(names)} checkpoints in {options.out}")


if __name__ == "__main__":
    main()
