#!/usr/bin/env python3
"""Kills `flashmoe pull` at every change of its cache and fills the disk at every write; then it must complete.

    sudo bench/pull_faults.py --flashmoe target/release/flashmoe --model tests/golden/qwen3-calm-hf/model

A hub on this machine serves MODEL. The cache lies on bench/serve/failing.py, a file system that fails on demand: for
each number N from 1 to those of an undisturbed pull, one pull is killed before its N-th change of the file system
(creating, writing, syncing, renaming, removing), one after it, and one meets a full disk from its N-th write on. That one
must end with an exit code that is not 0 and one line that names a file of the cache and says that there is no space.
Then a tmpfs of every size up to the model's, in steps. After each: the next pull with room ends with 0, has the hub's
bytes in every file, leaves no part, no record, no temporary file, and asks for no file of another pull after it.
Standard library only; needs the right to mount. Exit status 1 on the first difference.
"""

import argparse
import collections
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "acme/tiny"
LARGE = 512


class Hub(http.server.BaseHTTPRequestHandler):
    """The listing of one repository, and ranges of its files."""

    protocol_version = "HTTP/1.1"
    files, asked = {}, []

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == f"/api/models/{NAME}/revision/main":
            return self.give(200, self.listing(), {})
        name = path.removeprefix(f"/{NAME}/resolve/{COMMIT}/")
        if name not in self.files:
            return self.give(404, b"", {})
        whole = self.files[name]
        self.asked.append(name)
        first, last = 0, len(whole) - 1
        wanted = self.headers.get("Range")
        if wanted:
            first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        part = whole[first:last + 1]
        headers = {"Content-Range": f"bytes {first}-{last}/{len(whole)}"} if wanted else {}
        return self.give(206 if wanted else 200, part, headers)

    def give(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass  # It was killed.

    def listing(self):
        siblings = []
        for path, body in self.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
            entry = {"rfilename": path, "size": len(body), "blobId": blob}
            if len(body) >= LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
            siblings.append(entry)
        return json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A pull that was killed."""


class Mount:
    """The failing file system of one folder."""

    def __init__(self, behind, mount):
        command = [sys.executable, pathlib.Path(__file__).parent / "serve/failing.py", behind, mount]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.child = subprocess.Popen(command, text=True, **pipes)
        if self.child.stdout.readline() != "ready\n":
            sys.exit("no file system can be mounted here")

    def say(self, fault):
        """Changes and writes since the last line."""
        self.child.stdin.write(fault + "\n")
        self.child.stdin.flush()
        return tuple(int(word) for word in self.child.stdout.readline().split()[1:])

    def end(self):
        self.child.stdin.close()
        self.child.wait(10)


class Trials:
    def __init__(self, flashmoe, files, endpoint, temporary):
        self.flashmoe, self.files, self.temporary = flashmoe, files, temporary
        self.environment = {"PATH": os.environ["PATH"], "HF_ENDPOINT": endpoint, "TMPDIR": str(temporary)}
        self.outcomes = collections.Counter()

    def pull(self, home):
        environment = {**self.environment, "HF_HOME": str(home), "HOME": str(home)}
        done = subprocess.run([self.flashmoe, "pull", NAME], env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stderr

    def complete(self, home, where):
        """The pull after the fault, and one more."""
        code, errors = self.pull(home)
        if code:
            sys.exit(f"{where}: the next pull ends with {code}: {errors}")
        repository = home / "hub" / "models--acme--tiny"
        for name, body in self.files.items():
            if (repository / "snapshots" / COMMIT / name).read_bytes() != body:
                sys.exit(f"{where}: {name} has other bytes")
        if (repository / "refs/main").read_text() != COMMIT:
            sys.exit(f"{where}: another reference")
        known = {hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest() for body in self.files.values()}
        known |= {hashlib.sha256(body).hexdigest() for body in self.files.values()}
        strange = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()
                   and path.name not in known and path.name != "main" and path.suffix != ".lock"]
        strange += list(self.temporary.iterdir()) + list((home / "hub/.locks").glob(".scratch/*"))
        if strange:
            sys.exit(f"{where}: left over: {[str(path) for path in strange]}")
        Hub.asked.clear()
        code, errors = self.pull(home)
        if code or Hub.asked:
            sys.exit(f"{where}: once more: {code}, asked for {Hub.asked}: {errors}")

    def full(self, where, home, code, errors):
        lines = [line for line in errors.splitlines() if line.startswith("flashmoe: ")]
        if code <= 0 or len(lines) != 1 or str(home) not in lines[0] or "panicked" in errors:
            sys.exit(f"{where}: exit {code}, not one line that names a file: {errors}")
        if not any(words in lines[0] for words in ("space", "disk", "free")):
            sys.exit(f"{where}: it is not said what is full: {errors}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", required=True, type=pathlib.Path)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--step", type=int, default=1, help="every so many changes, and so many 16 KiB of a tmpfs")
    options = parser.parse_args()
    Hub.files = {path.name: path.read_bytes() for path in sorted(options.model.iterdir()) if path.is_file()}
    hub = Server(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        behind, mounted, temporary, small = (work / it for it in ("behind", "mounted", "temporary", "small"))
        for folder in (behind, mounted, temporary, small):
            folder.mkdir()
        trials = Trials(options.flashmoe.resolve(), Hub.files, f"http://127.0.0.1:{hub.server_port}", temporary)
        mount = Mount(behind, mounted)
        try:
            kills(trials, mount, behind, mounted, options.step)
        finally:
            mount.end()
        tmpfs(trials, small, options.step)
    print("outcomes: " + ", ".join(f"{name}: {count}" for name, count in sorted(trials.outcomes.items())))


def kills(trials, mount, behind, mounted, step):
    mount.say("well")
    trials.complete(mounted, "undisturbed")
    shutil.rmtree(behind / "hub")
    mount.say("well")
    if trials.pull(mounted)[0]:
        sys.exit("an undisturbed pull fails")
    changes, writes = mount.say("well")
    print(f"an undisturbed pull: {changes} changes, {writes} of them take room", flush=True)
    for fault, count in (("kill", changes), ("killed", changes), ("fullat", writes)):
        for number in range(1, count + 1, step):
            for path in behind.iterdir():
                shutil.rmtree(path)
            where = f"{fault} {number}"
            mount.say(where)
            code, errors = trials.pull(mounted)
            mount.say("well")
            trials.outcomes[f"{fault}, exit {code}"] += 1
            # Half-written small files of a killed writer go when they are a minute old: a living one could have them.
            for path in behind.rglob("*.new"):
                os.utime(path, (time.time() - 120,) * 2)
            if fault == "fullat" and code:
                trials.full(where, mounted, code, errors)
            elif code not in (0, -9):
                sys.exit(f"{where}: exit {code}: {errors}")
            trials.complete(mounted, where)
    print(f"{sum(trials.outcomes.values())} pulls completed after a kill or a full disk", flush=True)


def tmpfs(trials, small, step):
    total = sum(len(body) for body in trials.files.values())
    for size in range(16 << 10, total + (256 << 10), step * (16 << 10)):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", small], check=True)
        try:
            where = f"tmpfs of {size} bytes"
            code, errors = trials.pull(small)
            trials.outcomes[f"tmpfs, exit {code}"] += 1
            if code:
                trials.full(where, small, code, errors)
                subprocess.run(["mount", "-o", f"remount,size={total + (4 << 20)}", small], check=True)
            trials.complete(small, where)
        finally:
            subprocess.run(["umount", small], check=True)


main()
