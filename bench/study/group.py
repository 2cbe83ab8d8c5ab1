"""A control group for one process: how much memory it and its page cache may take, and what the kernel counted.

Control groups of version 1 and 2. Without a limit the group only counts, and memory that is free stays available. Pages that
a file has in the cache belong to the group that read them first, so `forget` drops a model's pages before a group is closed.
"""

import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path("/sys/fs/cgroup")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    """Bytes of `1900M`, `2G`, `4096`."""
    return int(float(text[:-1]) * UNITS[text[-1]]) if text[-1] in UNITS else int(text)


def forget(folder):
    """Drops the files of a folder from the page cache."""
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Group:
    """`with Group(limit) as group`: `limit` in bytes, or None."""

    def __init__(self, limit=None):
        self.unified = (ROOT / "cgroup.controllers").exists()
        parent = ROOT if self.unified else ROOT / "memory"
        self.folder = parent / f"flashmoe-study-{os.getpid()}-{time.monotonic_ns()}"
        self.folder.mkdir()
        if limit:
            name = "memory.max" if self.unified else "memory.limit_in_bytes"
            (self.folder / name).write_text(str(limit))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(100):
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)

    def statistics(self):
        """Bytes of page cache and swap, major faults."""
        stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        cache, swap = ("file", None) if self.unified else ("total_cache", "total_swap")
        swapped = int((self.folder / "memory.swap.current").read_text()) if swap is None else int(stat.get(swap, 0))
        faults = stat["pgmajfault" if self.unified else "total_pgmajfault"]
        return {"cache": int(stat[cache]), "swap": swapped, "faults": int(faults)}

    def run(self, command, timeout=None):
        """Runs a command in the group: exit code, standard output, standard error, and what was counted."""
        enter = lambda: (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        before = self.statistics()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            parts = [str(part) for part in command]
            process = subprocess.Popen(parts, stdout=out, stderr=errors, preexec_fn=enter)
            deadline, peak_cache = time.monotonic() + (timeout or 1e9), 0
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                peak_cache = max(peak_cache, self.statistics()["cache"])
                if time.monotonic() > deadline:
                    process.kill()
                time.sleep(0.05)
            process.returncode = os.waitstatus_to_exitcode(status)
            texts = []
            for file in (out, errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        after = self.statistics()
        counted = {
            "peak_process": usage.ru_maxrss * 1024,
            "peak_cache": max(peak_cache, after["cache"]),
            "swap": after["swap"],
            "major_faults": after["faults"] - before["faults"],
            "device_bytes": usage.ru_inblock * 512,
        }
        return process.returncode, *texts, counted
