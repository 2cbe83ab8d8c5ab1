"""Compares programs that read one GGUF file, all of it in memory, on the processor, interleaved; prints a Markdown table.

  python3 peers.py --gguf FILE --flashmoe PATH [--llama-bench PATH] [--ik-llama-bench PATH] [--ds4-bench PATH]
      [--rounds 3] [--prompt 512] [--decode 32] [--ds4-prompt N] [--ds4-decode N] [--threads 2] [--memory 12G]
      [--ik-repack] [--log FILE]

Each program's own measurement is taken: llama-bench's one repetition after its warm-up (of llama.cpp with `--repack 0`,
of ik_llama.cpp as it is, with `--ik-repack` also with `-rtr 1`, which repacks weights at the load), ds4-bench's with
weights touched before, and flashmoe bench's after its cold one. Every second round runs in the opposite order. ds4
reads a text, a byte a token; its decode follows its prompt. A slow program can be given fewer tokens. The file is read
into the page cache first.
`--log` appends every result as a JSON line; the table has the medians and the least and the most.
"""
import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

TEXT = "the quick brown fox jumps over the lazy dog and runs on. "


def output(command):
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def llama(a, program, *more):
    out = output([program, "-m", a.gguf, "-r", 1, "-t", a.threads, "-o", "json", "-p", a.prompt, "-n", a.decode, *more])
    rows = json.loads(out[out.index("["):out.rindex("]") + 1])
    return {("prompt" if row["n_prompt"] else "decode"): row["avg_ts"] for row in rows}


def ds4(a, program):
    prompt, decode = a.ds4_prompt or a.prompt, a.ds4_decode or a.decode
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write(TEXT * (1 + prompt // len(TEXT)))
        text.flush()
        out = output([program, "-m", a.gguf, "--cpu", "-t", a.threads, "--warm-weights", "--prompt-file", text.name,
                      "--ctx-start", prompt, "--ctx-max", prompt, "--gen-tokens", decode])
    row, = csv.DictReader(out[out.index("ctx_tokens"):].splitlines())
    return {"prompt": float(row["prefill_tps"]), "decode": float(row["gen_tps"])}


def flashmoe(a, program):
    out = output([program, "bench", a.gguf, "-p", a.prompt, "-n", a.decode, "-r", 1, "-t", a.threads, "-o", "json",
                  "--device", "cpu", "--storage", "resident", "--memory", a.memory])
    rows = [row for row in map(json.loads, out.splitlines()) if "cold" not in row["test"]]
    return {("prompt" if row["test"].startswith("pp") else "decode"): row["tok_per_s"] for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("gguf", "flashmoe"):
        parser.add_argument(f"--{name}", type=lambda path: pathlib.Path(path).resolve(), required=True)
    for name in ("llama-bench", "ik-llama-bench", "ds4-bench"):
        parser.add_argument(f"--{name}", type=lambda path: pathlib.Path(path).resolve())
    for name, tokens in {"rounds": 3, "prompt": 512, "decode": 32, "threads": 2, "ds4-prompt": None, "ds4-decode": None}.items():
        parser.add_argument(f"--{name}", type=int, default=tokens)
    parser.add_argument("--memory", default="12G")
    parser.add_argument("--ik-repack", action="store_true")
    parser.add_argument("--log", type=pathlib.Path)
    a = parser.parse_args()
    arms = {"flashmoe": lambda: flashmoe(a, a.flashmoe)}
    if a.llama_bench:
        arms["llama.cpp"] = lambda: llama(a, a.llama_bench, "--repack", 0)
    if a.ik_llama_bench:
        arms["ik_llama.cpp"] = lambda: llama(a, a.ik_llama_bench)
    if a.ik_llama_bench and a.ik_repack:
        arms["ik_llama.cpp, -rtr 1"] = lambda: llama(a, a.ik_llama_bench, "-rtr", 1)
    if a.ds4_bench:
        arms["ds4 (--cpu)"] = lambda: ds4(a, a.ds4_bench)
    with a.gguf.open("rb", buffering=0) as file:
        while file.read(16 << 20):
            pass
    found = {arm: [] for arm in arms}
    for turn in range(a.rounds):
        for arm in arms if turn % 2 == 0 else reversed(arms):
            found[arm].append(arms[arm]())
            line = json.dumps({"file": a.gguf.name, "program": arm, "round": turn + 1, **found[arm][-1]})
            print(line, file=sys.stderr, flush=True)
            if a.log:
                with a.log.open("a") as log:
                    log.write(line + "\n")
    print("| program | prompt, tok/s | times flashmoe's | decode, tok/s | times flashmoe's |\n|---|---|---|---|---|")
    for arm, runs in found.items():
        cells = []
        for key in ("prompt", "decode"):
            values, ours = [run[key] for run in runs], [run[key] for run in found["flashmoe"]]
            ratio = statistics.median(one / other for one, other in zip(values, ours))
            cells += [f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})", f"{ratio:.2f}"]
        print(f"| {arm} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
