"""Compares flashmoe with llama.cpp on models of one shape and the same bits, in turns, and prints a Markdown table.

  python3 compare.py --llama-bench PATH --gguf FILE --flashmoe PATH --model FOLDER [--limit 6G] [--rounds 3]
      [--prompt 512] [--decode 32] [--llama-prompt N] [--llama-decode N] [--threads 2] [--memory 20G] [--wrap COMMAND]
      [--log FILE]

One round runs each program once, in turns, so that a change of the machine's mood meets both. With `--limit` each program
runs in a fresh memory control group of that size (root, cgroup v1 or v2; page cache is charged to the group that brings it
in, so the files are dropped from the cache first): llama.cpp maps its file, flashmoe streams (`--storage budget`). Without, both have room: llama.cpp maps and warms its file, flashmoe
loads it (`--storage resident`, with `--memory` if given). Each program's own measurement is taken: llama-bench's one repetition after its warm-up,
flashmoe bench's one after its cold one. In a group llama.cpp gets no warm-up, which would take minutes, and its decode
follows its prefill. A program that needs minutes for a token can be given fewer (`--llama-prompt`, `--llama-decode`).
`--log` appends every result as a JSON line; the table is made from all lines of that file with the same limit.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    return int(float(text[:-1]) * UNITS[text[-1].upper()]) if text[-1].upper() in UNITS else int(text)


def forget(path):
    """Drops a file or folder from the page cache: pages that another group has brought in are free for this one."""
    files = [os.path.join(d, f) for d, _, names in os.walk(path) for f in names] if os.path.isdir(path) else [path]
    for name in files:
        with open(name, "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Group:
    """A memory control group for one run, or nothing when there is no limit."""

    def __init__(self, limit):
        self.folder, self.peak_file = None, None
        if limit is None:
            return
        v1 = os.path.isdir("/sys/fs/cgroup/memory")
        root = "/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup"
        self.folder = tempfile.mkdtemp(prefix="flashmoe-compare-", dir=root)
        self.write("memory.limit_in_bytes" if v1 else "memory.max", limit)
        self.peak_file = "memory.max_usage_in_bytes" if v1 else "memory.peak"

    def write(self, name, value):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(str(value))

    def run(self, command):
        """Standard output of `command`, and the group's peak in bytes or None."""
        join = (lambda: self.write("cgroup.procs", os.getpid())) if self.folder else None
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=join)
        if done.returncode:
            sys.exit(f"{shlex.join(command)}\nfailed with {done.returncode}:\n{done.stderr[-2000:]}")
        if not self.folder:
            return done.stdout, None
        with open(os.path.join(self.folder, self.peak_file)) as file:
            return done.stdout, int(file.read())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.folder:
            os.rmdir(self.folder)


def llama(a, group):
    command = [a.llama_bench, "-m", a.gguf, "-r", "1", "-t", str(a.threads), "--repack", "0", "-o", "json",
               "-p", str(a.llama_prompt or a.prompt), "-n", str(a.llama_decode or a.decode)]
    if a.limit:
        command += ["--no-warmup", "-lm", "mmap"]
    out, peak = group.run(shlex.split(a.wrap) + command)
    rows = json.loads(out[out.index("["):])
    return {("prefill" if row["n_prompt"] else "decode"): row["avg_ts"] for row in rows} | {"peak": peak}


def flashmoe(a, group):
    command = [a.flashmoe, "bench", a.model, "-p", str(a.prompt), "-n", str(a.decode), "-r", "1", "-o", "json",
               "-t", str(a.threads), "--storage", "budget" if a.limit else "resident"]
    command += ["--memory", a.memory] if a.memory else []
    out, peak = group.run(shlex.split(a.wrap) + command)
    result = {"peak": peak}
    for line in out.splitlines():
        row = json.loads(line)
        if "cold" not in str(row["test"]):
            result["prefill" if row["test"].startswith("pp") else "decode"] = row["tok_per_s"]
    return result


def table(lines):
    def cell(program, key):
        values = [line[key] for line in lines if line["program"] == program]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        return statistics.mean(values), f"{statistics.mean(values):.2f}{spread}"
    print("| test | llama.cpp, tok/s | flashmoe, tok/s | ratio | rounds |\n|---|---|---|---|---|")
    for key in ("prefill", "decode"):
        (theirs, their_text), (ours, our_text) = cell("llama.cpp", key), cell("flashmoe", key)
        print(f"| {key} | {their_text} | {our_text} | {ours / theirs:.2f} | {len(lines) // 2} |")
    peaks = {p: max((line["peak"] or 0) for line in lines if line["program"] == p) for p in ("llama.cpp", "flashmoe")}
    if any(peaks.values()):
        print("\npeak of the group, page cache included: " + ", ".join(f"{p} {v / 2**30:.2f} GiB" for p, v in peaks.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("llama-bench", "gguf", "flashmoe", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--limit", help="memory of the control group, for example 6G")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--llama-prompt", type=int)
    parser.add_argument("--llama-decode", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", help="flashmoe's --memory")
    parser.add_argument("--wrap", default="", help="command put before each program")
    parser.add_argument("--log")
    a = parser.parse_args()
    limit, lines = size(a.limit) if a.limit else None, []
    if a.log and os.path.exists(a.log):
        with open(a.log) as file:
            lines = [line for line in map(json.loads, file) if line["limit"] == a.limit]
    for index in range(a.rounds):
        for program, run, files in (("llama.cpp", llama, a.gguf), ("flashmoe", flashmoe, a.model)):
            if limit:
                forget(files)
            with Group(limit) as group:
                line = {"program": program, "limit": a.limit, **run(a, group)}
            print(f"round {index + 1} of {a.rounds}: {json.dumps(line)}", file=sys.stderr, flush=True)
            lines.append(line)
            if a.log:
                with open(a.log, "a") as file:
                    file.write(json.dumps(line) + "\n")
    table(lines)


if __name__ == "__main__":
    main()
