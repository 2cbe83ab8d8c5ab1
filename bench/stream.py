#!/usr/bin/env python3
"""How close streaming comes to its bound, in a memory control group, as ratios of one run.

    stream.py FLASHMOE MODEL --group 4G --record BYTES --layers N --experts E [--disk 0.7G] [--tokenizer FOLDER] \\
        [-- options of flashmoe bench]

Needs root, for the control group. In turns, `--rounds` times: the disk is read at the record's size, `flashmoe bench`
runs in the group, the disk is read again. The disk's rate is the mean of all readings, so that a machine that others
use gives ratios, not speeds. With `--disk` the group's reads are held to that rate by the block-I/O controller, which
makes the disk the bound whatever else runs.

With `--tokenizer` it also runs `flashmoe run --stats` in the group and compares what the kernel counted as read from the
device by that process with the trunk's file and the bytes that the store counted.

Prints a row a test, and whether reads are whole records and a prompt reads each expert once.
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

SECONDS = 1.5
THREADS = 4
HUGE = 2 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    return int(float(text[:-1]) * UNITS[text[-1]]) if text[-1] in UNITS else int(text)


class Group:
    """A control group for memory, and for block I/O where reads are held back."""

    def __init__(self, limit, model, rate, own=""):
        self.folders, name = [], f"flashmoe-stream-{os.getpid()}{own}"
        root = pathlib.Path("/sys/fs/cgroup")
        self.unified = (root / "cgroup.controllers").exists()
        memory = self._make(root / name if self.unified else root / "memory" / name)
        (memory / ("memory.max" if self.unified else "memory.limit_in_bytes")).write_text(str(limit))
        self.peak = memory / ("memory.peak" if self.unified else "memory.max_usage_in_bytes")
        if rate:
            device = os.stat(model).st_dev
            number = f"{os.major(device)}:{os.minor(device)}"
            blocks = memory if self.unified else self._make(root / "blkio" / name)
            if self.unified:
                (blocks / "io.max").write_text(f"{number} rbps={rate}")
            else:
                (blocks / "blkio.throttle.read_bps_device").write_text(f"{number} {rate}")

    def _make(self, folder):
        folder.mkdir()
        self.folders.append(folder)
        return folder

    def enter(self):
        """Takes this process into the group."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def run(self, command):
        """Runs a command in the group; gives what it wrote and the bytes that it read from devices."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=errors, preexec_fn=self.enter)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            texts = []
            for file in (out, errors):
                file.seek(0)
                texts.append(file.read().decode())
        if process.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}: {texts[1]}")
        return *texts, usage.ru_inblock * 512

    def disk(self, path, record):
        """Bytes a second of direct reads of `record` bytes by a process in the group."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self.enter()
                os.write(writer, str(read_rate(path, record)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        found = os.read(reader, 100)
        os.close(reader)
        os.waitpid(child, 0)
        return float(found)

    def remove(self):
        for folder in self.folders:
            for _ in range(100):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


def read_rate(path, record):
    record = -(-record // 4096) * 4096
    places, start, counts = max(1, os.path.getsize(path) // record), time.monotonic(), [0] * THREADS

    def read(thread):
        # On huge pages, as slots lie: into ordinary ones a drive gives half as much, or less.
        file, private = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, record + 2 * HUGE, flags=private)
        memory.madvise(mmap.MADV_HUGEPAGE)
        first = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE
        buffer = memoryview(memory)[first : first + record]
        buffer[:] = bytes(record)
        draw = random.Random(thread + time.monotonic_ns())
        while time.monotonic() - start < SECONDS:
            counts[thread] += os.preadv(file, [buffer], draw.randrange(places) * record)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(THREADS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sum(counts) / (time.monotonic() - start)


def account(group, options, trunk):
    """What the device gave a process, and what its store says that it read."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(options.tokenizer / name, options.model)
    command = [options.flashmoe, "run", options.model, "Name a colour and a number.", "--max-tokens", 24, "--stats"]
    _, errors, device = group.run([*command, "--device", "cpu", "--context", 512, "--no-check"])
    found = re.search(r"of (\d+) · read ([0-9.]+) (\w+)", errors)
    store = float(found[2]) * UNITS[found[3][0]]
    rest = device - trunk - store
    print(
        f"run --stats: the device gave {device / 1e9:.4f} GB: trunk {trunk / 1e9:.4f}, records {store / 1e9:.4f} GB by "
        f"the store's count, {rest / 1e6:+.1f} MB else ({found[1]} requests in decode)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flashmoe", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--group", type=size, required=True)
    parser.add_argument("--record", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True, help="layers with experts")
    parser.add_argument("--experts", type=int, required=True)
    parser.add_argument("--disk", type=size)
    parser.add_argument("--tokenizer", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=2)
    own, more = sys.argv[1:], []
    if "--" in own:  # options of `flashmoe bench` follow
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    group = Group(options.group, options.model, options.disk)
    experts = max((options.model / "experts").iterdir(), key=lambda file: file.stat().st_size)
    trunk = (options.model / "trunk.bin").stat().st_size
    rates, rows = [], []
    try:
        if options.tokenizer:
            account(group, options, trunk)
        for _ in range(options.rounds):
            rates.append(group.disk(experts, options.record))
            command = [options.flashmoe, "bench", options.model, "--device", "cpu", "--routing", "calibrated"]
            out, _, _ = group.run([*command, "-o", "json", *more])
            rows += [json.loads(line) for line in out.splitlines()]
            rates.append(group.disk(experts, options.record))
        peak = int(group.peak.read_text())
    finally:
        group.remove()
    # The program's own reading before each run counts as well.
    rates += [row["disk_probe_gb_per_s"] * 1e9 for row in rows]
    disk = sum(rates) / len(rates)
    print(f"disk {disk / 1e9:.2f} GB/s ({min(rates) / 1e9:.2f} to {max(rates) / 1e9:.2f}), peak {peak / 2**30:.2f} GiB")
    for row in rows:
        tokens = int(re.match(r"[a-z]+(\d+)", row["test"])[1]) * row["runs"]
        records = row["gb_per_token"] * tokens * 1e9 / options.record
        waits, computes = row["gb_per_token"] * 1e12 / disk, row["t_mem_ms"]
        bound = 1000 / max(waits, computes)
        regime = "disk" if waits > computes else "memory"
        once = ""
        if row["test"].startswith("pp"):
            once = f", {records / row['runs'] / options.layers / options.experts:.3f} of each expert"
        print(
            f"{row['test']:12} {row['tok_per_s']:8.2f} tok/s, disk {waits:.1f} ms, memory {computes:.1f} ms a token: "
            f"{100 * row['tok_per_s'] / bound:.0f} % of {bound:.2f} ({regime}), hits {row['hits_percent']} %, "
            f"{records:.1f} records{once}, slots {row['slots']}, chunk {row['prefill_chunk']}"
        )


if __name__ == "__main__":
    main()
