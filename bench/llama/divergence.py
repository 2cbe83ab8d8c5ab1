"""Compares flashmoe's logits of GGUF files with llama.cpp's and with those of the same weights dequantised to f32.

  python3 divergence.py --flashmoe PATH --logits PATH --library FOLDER --ids FILE --exact FILE.gguf FILE.gguf...

`--logits` is bench/llama/logits.cpp, compiled; `--library` the folder of libllama. For each file one line of a Markdown
table: mean KL divergence (nats) and share of equal first choices of flashmoe (default arithmetic) against llama.cpp,
then the same of llama.cpp against flashmoe in f32 arithmetic: what llama.cpp's 8-bit activations cost. `--exact` also
prints the largest relative error between the two programs on a file of f32 or f16 weights.
"""
import argparse
import json
import os
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import load_file


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def divergence(p, q):
    """Mean KL(p || q) over positions, and the share of positions with the same first choice."""
    p, q = log_softmax(p), log_softmax(q)
    return (np.exp(p) * (p - q)).sum(-1).mean(), (p.argmax(-1) == q.argmax(-1)).mean()


def ours(program, model, ids, *options):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits.safetensors")
        command = [program, "score", model, "--ids", ids, "--logits", out, "--device", "cpu", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return load_file(out)["logits"]


def theirs(program, library, model, ids, vocabulary):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits.bin")
        environment = dict(os.environ, LD_LIBRARY_PATH=library)
        command = [program, model, ids, out, "f32"]
        subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
        return np.fromfile(out, np.float32).reshape(-1, vocabulary)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flashmoe", required=True)
    parser.add_argument("--logits", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--ids", required=True)
    parser.add_argument("--exact", action="append", default=[])
    parser.add_argument("models", nargs="*")
    given = parser.parse_args()
    count = len(json.load(open(given.ids)))
    for model in given.exact:
        a = ours(given.flashmoe, model, given.ids, "--arithmetic", "f32", "--kv-type", "f32")
        b = theirs(given.logits, given.library, model, given.ids, a.shape[1])
        error = np.linalg.norm(a - b) / np.linalg.norm(b)
        print(f"{os.path.basename(model)}: {count} positions, relative error {error:.1e}, KL {divergence(b, a)[0]:.1e}")
    print("| file | KL to llama.cpp | same first choice | llama.cpp's KL to f32 arithmetic | ours to f32 |")
    print("|---|---|---|---|---|")
    for model in given.models:
        a = ours(given.flashmoe, model, given.ids, "--kv-type", "f32")
        f = ours(given.flashmoe, model, given.ids, "--arithmetic", "f32", "--kv-type", "f32")
        b = theirs(given.logits, given.library, model, given.ids, a.shape[1])
        (kl, same), (cost, _), (own, _) = divergence(b, a), divergence(f, b), divergence(f, a)
        name = os.path.basename(model)
        print(f"| {name} | {kl:.1e} | {100 * same:.1f} % | {cost:.1e} | {own:.1e} |", flush=True)


if __name__ == "__main__":
    main()
