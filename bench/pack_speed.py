#!/usr/bin/env python3
"""Compares `flashmoe pack` with a plain copy of the same files: what the disk does for the bytes in and out.

    bench/pack_speed.py --flashmoe target/release/flashmoe --source MODEL --work FOLDER [--rounds 3] [--group-bytes N]

The copy uses direct I/O, 8 MiB a request, four threads that each read and then write, and ends with an fsync;
the pack ends with its own. Both start with the source out of the page cache, in turns. With `--group-bytes`
the pack runs in a memory control group (version 1, root) of that size, to which its page cache is charged.
Prints seconds and bytes of each run, the ratio of the medians in bytes written per second, and peak memory.
Standard library only.
"""

import argparse
import concurrent.futures
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

REQUEST = 8 << 20
THREADS = 4
GROUP = pathlib.Path("/sys/fs/cgroup/memory/flashmoe-pack-speed")


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def forget(folder):
    """Drops the folder's files from the page cache; dirty pages are written first."""
    for path in files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(source, destination):
    """Copies every file with direct I/O; bytes written."""
    destination.mkdir()
    buffers = [mmap.mmap(-1, REQUEST) for _ in range(THREADS)]
    total = 0
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for path in files(source):
            length = path.stat().st_size
            reader = os.open(path, os.O_RDONLY | os.O_DIRECT)
            writer = os.open(destination / path.name, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)

            def work(lane):
                view = memoryview(buffers[lane])
                for offset in range(lane * REQUEST, length, THREADS * REQUEST):
                    # A direct write is whole blocks; the excess of the last is cut off below.
                    count = os.preadv(reader, [view], offset)
                    os.pwrite(writer, view[: -(-count // 4096) * 4096], offset)

            list(pool.map(work, range(THREADS)))
            os.ftruncate(writer, length)
            os.fsync(writer)
            os.close(reader)
            os.close(writer)
            total += length
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", required=True, type=pathlib.Path)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--group-bytes", type=int)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    out = options.work / "speed-out"
    rates = {"copy": [], "pack": []}
    for round_number in range(options.rounds):
        for arm in rates:
            for left in (out, out.with_name(out.name + ".partial")):
                shutil.rmtree(left, ignore_errors=True)
            forget(options.source)
            note = ""
            begun = time.monotonic()
            if arm == "copy":
                written = copy(options.source, out)
                seconds = time.monotonic() - begun
            else:
                command = [str(options.flashmoe), "pack", str(options.source), str(out)]
                if options.group_bytes:
                    GROUP.mkdir(exist_ok=True)
                    (GROUP / "memory.limit_in_bytes").write_text(str(options.group_bytes))
                    (GROUP / "memory.max_usage_in_bytes").write_text("0")
                    command = ["sh", "-c", f'echo $$ > {GROUP}/cgroup.procs; exec "$@"', "sh", *command]
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                errors = process.stderr.read().decode(errors="replace")
                _, status, usage = os.wait4(process.pid, 0)
                seconds = time.monotonic() - begun
                if status != 0:
                    sys.exit(f"pack failed with {status}: {errors}")
                written = sum(path.stat().st_size for path in files(out))
                note = f", peak resident {usage.ru_maxrss / 1024:.0f} MiB, processor {usage.ru_utime + usage.ru_stime:.2f} s"
                if options.group_bytes:
                    peak = int((GROUP / "memory.max_usage_in_bytes").read_text())
                    note += f", peak of the group {peak / 2**20:.0f} MiB"
            rates[arm].append(written / seconds)
            print(f"{arm}: {written} bytes in {seconds:.2f} s, {written / seconds / 1e9:.3f} GB/s{note}", flush=True)
            shutil.rmtree(out)
    if GROUP.exists():
        GROUP.rmdir()
    middle = {arm: statistics.median(values) for arm, values in rates.items()}
    print(f"median: copy {middle['copy'] / 1e9:.3f}, pack {middle['pack'] / 1e9:.3f} GB/s; ratio {middle['pack'] / middle['copy']:.2f}")


main()
