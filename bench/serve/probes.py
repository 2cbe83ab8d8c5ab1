"""The probes of deploy/kubernetes/flashmoe.yaml against a server in a long prefill on a slow disk, and one that is stuck.

    python bench/serve/probes.py BINARY MODEL [--rate 2400000] [--disk 254:0] [--words 1500] [--only prefill,stuck]

MODEL streams its experts from DISK (major:minor), whose reads the block controller (cgroup v1) holds to RATE bytes a
second. `stuck` freezes the engine's thread alone (the freezer of cgroup v1). Takes root, and ten minutes and more.
Prints when a kubelet would have restarted the server, and fails where it would have restarted a server that works, or
not one that is stuck.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import subprocess
import threading
import time

from replicas import free_port, get, wait_for

MANIFEST = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy" / "kubernetes" / "flashmoe.yaml"
GROUPS = pathlib.Path("/sys/fs/cgroup")


def probe_of(kind):
    text = re.search(rf"{kind}Probe:\n((?:\s{{12}}.*\n)+)", MANIFEST.read_text()).group(1)
    number = lambda name, default: int((re.search(rf"{name}: (\d+)", text) or [0, default])[1])
    return {"path": re.search(r"path: (\S+),", text)[1], "period": number("periodSeconds", 10),
            "timeout": number("timeoutSeconds", 1), "failures": number("failureThreshold", 3)}


class Prober(threading.Thread):
    """Asks as a kubelet does; `restarted_after` is when it would have acted."""

    def __init__(self, port, kind):
        super().__init__(daemon=True)
        self.port, self.probe, self.over = port, probe_of(kind), threading.Event()
        self.asked = self.failed = self.in_a_row = 0
        self.slowest, self.restarted_after, self.begun = 0.0, None, time.time()
        self.start()

    def run(self):
        while not self.over.wait(self.probe["period"]):
            asked = time.time()
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.probe["timeout"])
            try:
                connection.request("GET", self.probe["path"])
                good = connection.getresponse().status < 400
            except OSError:
                good = False
            finally:
                connection.close()
            self.slowest = max(self.slowest, time.time() - asked)
            self.asked += 1
            self.failed += not good
            self.in_a_row = 0 if good else self.in_a_row + 1
            if self.in_a_row >= self.probe["failures"] and self.restarted_after is None:
                self.restarted_after = time.time() - self.begun

    def __str__(self):
        return (f"{self.probe['path']} asked {self.asked} times, {self.failed} failed, the slowest {self.slowest:.2f} s, "
                f"{'never acted' if self.restarted_after is None else f'acted after {self.restarted_after:.0f} s'}")


class Group:
    """A group of one controller, for as long as it is needed."""

    def __init__(self, controller):
        self.folder = GROUPS / controller / f"probes-{os.getpid()}"
        self.folder.mkdir()

    def set(self, name, value):
        (self.folder / name).write_text(str(value))


def ask(port, words, found):
    text = " ".join(f"word{n * 7919 % 1000}" for n in range(words))
    body = {"model": "m", "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": text}]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    begun = last = time.time()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        for line in answer:
            if line.strip():
                found["waits"].append(time.time() - last)
                last = time.time()
            if b'"content":"' in line and "first" not in found:
                found["first"] = time.time() - begun
            if line.strip() == b"data: [DONE]":
                found["done"] = True
    except (OSError, http.client.HTTPException) as error:
        found["error"] = repr(error)


def prefill(port, process, options):
    group = Group("blkio")
    group.set("blkio.throttle.read_bps_device", f"{options.disk} {options.rate}")
    group.set("cgroup.procs", process.pid)
    live, ready = Prober(port, "liveness"), Prober(port, "readiness")
    found = {"waits": []}
    asking = threading.Thread(target=ask, args=(port, options.words, found))
    asking.start()
    asking.join(options.patience)
    live.over.set()
    ready.over.set()
    seconds = time.time() - live.begun
    group.set("blkio.throttle.read_bps_device", f"{options.disk} 0")
    print(f"prefill  {seconds:.0f} s at {options.rate / 1e6:.1f} MB/s; {live}; {ready}; {len(found['waits'])} events, the "
          f"longest wait {max(found['waits'], default=0):.1f} s", flush=True)
    asking.join(600)
    print(f"prefill  then at full speed: answered {found.get('done', False)} {found.get('error', '')}", flush=True)
    return live.restarted_after is None and ready.restarted_after is None and found.get("done", False)


def stuck(port, process, options):
    names = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
    thread = next(task.name for task in names if (task / "comm").read_text().strip() == "engine")
    group = Group("freezer")
    live = Prober(port, "liveness")
    group.set("tasks", thread)
    group.set("freezer.state", "FROZEN")
    while live.restarted_after is None and time.time() - live.begun < 600:
        time.sleep(1)
    live.over.set()
    said = get(port, "/livez")
    group.set("freezer.state", "THAWED")
    print(f"stuck    the engine's thread frozen: {live}; /livez said {said[0]} {said[1].decode()[:80]}", flush=True)
    return live.restarted_after is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--rate", type=int, default=2_400_000)
    parser.add_argument("--disk", default="254:0")
    parser.add_argument("--memory", default="1300M")
    parser.add_argument("--context", default="8192")
    parser.add_argument("--words", type=int, default=1500)
    parser.add_argument("--patience", type=float, default=1500, help="seconds until the prefill is let go at full speed")
    parser.add_argument("--only", default="prefill,stuck")
    options = parser.parse_args()
    port = free_port()
    command = [options.binary, "serve", options.model, "--device", "cpu", "--memory", options.memory,
               "--context", options.context,
               "--threads", "1", "--sequences", "1", "--port", str(port), "--log-level", "warn"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: get(port, "/readyz")[0] == 200, 600)
        parts = {"prefill": prefill, "stuck": stuck}
        good = [parts[name](port, process, options) for name in options.only.split(",")]
    finally:
        process.kill()
        process.wait()
        for folder in GROUPS.glob(f"*/probes-{os.getpid()}"):
            time.sleep(0.5)
            folder.rmdir()
    raise SystemExit(not all(good))


if __name__ == "__main__":
    main()
