"""A campaign of faults against a server of the demo model: eight clients whose answers are compared to the bit, and
meanwhile cancels, hostile bodies, pipes and rubbish in the place of kept prompts, a template's process that is stopped
or killed, and a second server on the same shared folder. As root also what a system does to a server:

    the shared folder hangs, is slow, fails with EIO or is full; the folder of kept prompts fails or is full; the model's
    files fail (bench/serve/failing.py, a file system of our own); no descriptor or no thread is to be had (limits of the
    running process, which belongs to a user of its own, since root has no limit of threads)

    [sudo] bench/serve/faults.py FLASHMOE MODEL [--faults 10000] [--minutes 20] [--seed 1] [--only KIND]

Loopback only. Each server has two that make faults, one of the kinds that a client can make and one of the others, so
that faults of several kinds come at once, and those after which a good request is asked come one after the other. At
least one of 25 faults is of these (--share). It ends after so many faults or minutes, whichever is first, with 0 when
every answer was right, every good request after a fault was answered within five seconds (--soon), and threads and
descriptors are what they were. A request may fail while its server's template, model, threads or descriptors are at fault,
and no other; a wrong answer never may.

On a machine with other work, what threads that could run waited for a processor (/proc/PID/task/*/schedstat) does not
count towards the five seconds: of the server, the thread that waited longest, and so of its template's process, of the
file systems and of who asks. How many were late by the clock is printed as well. `--pause` is what a client waits on the
average between two requests.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SOON = 5.0
CLIENTS = 8


# A user that has nothing else: its limit of threads is the server's own.
USER = 61_234


class Mount:
    """A folder that is shown through a file system which fails on demand."""

    def __init__(self, folder, mount):
        mount.mkdir()
        self.folder, self.mount = folder, mount
        command = [sys.executable, pathlib.Path(__file__).with_name("failing.py"), folder, mount]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.child = subprocess.Popen(command, text=True, **pipes)
        if self.child.stdout.readline() != "ready\n":
            sys.exit("no file system can be mounted here")

    def say(self, fault):
        self.child.stdin.write(fault + "\n")
        self.child.stdin.flush()
        self.child.stdout.readline()

    def end(self):
        self.child.stdin.close()
        self.child.wait(10)


class Server:
    """A server of the model on a free port."""

    def __init__(self, program, model, folder, name, user=None, further=(), mounts=()):
        self.name, self.log, self.mounts = name, open(folder / f"{name}.log", "wb"), mounts
        arguments = [program, "serve", model, "--port", "0", "--device", "cpu", "--sequences", "4", *further]
        arguments += ["--cache-disk", str(folder / f"{name}-kept"), "--cache-shared", str(folder / "shared")]
        who = {"user": user, "group": user, "extra_groups": [], "env": {**os.environ, "HOME": str(folder)}} if user else {}
        self.child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log, **who)
        line = self.child.stdout.readline().decode()
        if not line:
            sys.exit((folder / f"{name}.log").read_text())
        self.port = int(line.strip().rsplit(":", 1)[1])
        # Faults at work under which a request may fail, and when the last one was over.
        self.excused, self.excused_until = 0, 0.0

    def may_fail(self, begun):
        """Whether a request that began then may have failed."""
        return self.excused > 0 or self.excused_until > begun

    def limit(self, which):
        """The soft limit of descriptors (`nofile`) or threads (`nproc`), as /proc has it."""
        name = {"nofile": "Max open files", "nproc": "Max processes"}[which]
        lines = pathlib.Path(f"/proc/{self.child.pid}/limits").read_text().splitlines()
        return next(line.removeprefix(name).split()[0] for line in lines if line.startswith(name))

    def set_limit(self, which, soft):
        # As its own user: root may lack the right to change another user's limits.
        command = ["prlimit", f"--pid={self.child.pid}", f"--{which}={soft}:"]
        subprocess.run(command, user=USER, group=USER, extra_groups=[], check=True)

    def helpers(self):
        """Processes that a thread of the server has started: those of templates."""
        found = []
        for thread in pathlib.Path(f"/proc/{self.child.pid}/task").iterdir():
            try:
                found += [int(child) for child in (thread / "children").read_text().split()]
            except OSError:
                pass  # The thread has ended.
        return found

    def processes(self):
        """Those whose work an answer may wait for."""
        return [self.child.pid, *(mount.child.pid for mount in self.mounts), *self.helpers()]

    def ask(self, body, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def facts(self):
        """Threads and descriptors."""
        place = pathlib.Path(f"/proc/{self.child.pid}")
        return len(list((place / "task").iterdir())), len(list((place / "fd").iterdir()))

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(60)


def waited(processes):
    """Seconds that each thread of processes, and this one of ours, was able to run and did not."""
    found = {process: {} for process in processes}
    for process, threads in found.items():
        try:
            for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
                threads[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        except OSError:
            pass  # It has ended.
    own = pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    found["own"] = {"own": int(own.read_text().split()[1]) / 1e9}
    return found


def longest_waits(before, after):
    """Of the threads of each process, together."""
    def of(process):
        earlier = before.get(process, {})
        return max((seconds - earlier.get(thread, 0) for thread, seconds in after[process].items()), default=0)

    return sum(of(process) for process in after)


def question(number):
    text = f"What are the factors of {number}? " + "word " * (number % 7 * 40)
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
    }


def said(answer):
    choice = answer["choices"][0]
    tokens = [(token["token"], token["logprob"]) for token in choice["logprobs"]["content"]]
    return choice["message"]["content"], tokens


class Campaign:
    """Counts and the faults themselves."""

    def __init__(self, servers, mounts, folder, options):
        self.soon, self.clients, self.pause, self.seed = options.soon, options.clients, options.pause, options.seed
        self.servers, self.mounts, self.folder, self.share = servers, mounts, folder, options.share
        self.lock, self.sharing, self.own = threading.Lock(), threading.Lock(), threading.local()
        self.begun, self.loud, self.spent = 0, 0, {}
        self.wrong, self.compared, self.excused, self.counts, self.probes = [], 0, 0, {}, {}
        self.late_by_the_clock = 0
        self.over = threading.Event()
        self.right = {number: said(servers[0].ask(question(number))[1]) for number in range(20)}

    @property
    def random(self):
        """Of the thread."""
        if not hasattr(self.own, "random"):
            self.own.random = random.Random(f"{self.seed} {threading.current_thread().name}")
        return self.own.random

    def complain(self, text):
        with self.lock:
            self.wrong.append(text)
        print("WRONG", text[:500], file=sys.stderr, flush=True)

    def client(self, index):
        source = random.Random(index)
        while not self.over.is_set():
            number = source.randrange(20)
            if self.pause:
                self.over.wait(source.expovariate(1 / self.pause))
            server, begun = self.servers[index % len(self.servers)], time.monotonic()
            try:
                status, answer = server.ask(question(number))
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failed(server, begun, f"client {index}: {error!r}")
                continue
            if status == 200:
                with self.lock:
                    self.compared += 1
                if said(answer) != self.right[number]:
                    self.complain(f"client {index}: another answer to {number}")
            elif status not in (429, 503) or (answer.get("error") or {}).get("code") == "weights_unread":
                self.failed(server, begun, f"client {index}: {status} {answer}")

    def failed(self, server, begun, text):
        with self.lock:
            excused = server.may_fail(begun)
            self.excused += excused
        if not excused:
            self.complain(text)
        time.sleep(0.05)

    def cancel(self, server):
        body = json.dumps({**question(self.random.randrange(20)), "stream": True, "max_tokens": 64}).encode()
        with socket.create_connection(("127.0.0.1", server.port), 10) as stream:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            stream.sendall(head.encode() + body)
            stream.settimeout(self.random.random() / 5)
            try:
                stream.recv(100)
            except TimeoutError:
                pass

    def rubbish(self, server):
        size = self.random.randrange(1, 3000)
        with socket.create_connection(("127.0.0.1", server.port), 10) as stream:
            stream.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n")
            stream.sendall(self.random.randbytes(size))

    def files(self):
        """Files of the folders behind the mounts: a mount may hang."""
        mounts = {mount.mount for mount in self.mounts.values()}
        for place in (place for place in self.folder.iterdir() if place not in mounts):
            try:
                yield from place.rglob("*")
            except OSError:
                pass  # A server has removed a folder.

    def kept(self, _server):
        """A pipe, nothing, or other bytes in the place of a kept file."""
        files = [path for path in self.files() if path.suffix in (".page", ".prefix")]
        if not files:
            return
        path = self.random.choice(files)
        kind = self.random.randrange(4)
        try:
            if kind == 0:
                path.unlink()
                os.mkfifo(path)
            elif kind == 1:
                path.unlink()
            elif kind == 2:
                os.truncate(path, self.random.randrange(200))
            elif path.is_file():
                with open(path, "r+b") as file:
                    file.seek(self.random.randrange(max(1, path.stat().st_size)))
                    file.write(b"\x55")
        except OSError:
            pass  # A server has removed it.

    def clock(self, _server):
        """Times of use in other years."""
        for path in (path for path in self.files() if path.suffix == ".prefix"):
            when = time.time() + self.random.uniform(-4e8, 4e8)
            try:
                os.utime(path, (when, when), follow_symlinks=False)
            except OSError:
                pass

    def template(self, server):
        """Stops the template's process, for a moment or for good: another one takes its place."""
        for child in server.helpers():
            self.signal(child, signal.SIGSTOP)
        if self.random.random() < 0.5:
            time.sleep(0.2)
            for child in server.helpers():
                self.signal(child, signal.SIGCONT)
        self.probe(server, "template")

    def killed(self, server):
        for child in server.helpers():
            self.signal(child, signal.SIGKILL)
        self.probe(server, "killed")

    def signal(self, process, which):
        try:
            os.kill(process, which)
        except ProcessLookupError:
            pass

    def probe(self, server, kind):
        """The next good request."""
        number, before = self.random.randrange(20), waited(server.processes())
        begun = time.monotonic()
        try:
            status, answer = server.ask(question(number))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return self.complain(f"after {kind}: {error!r}")
        by_the_clock = time.monotonic() - begun
        took = by_the_clock - longest_waits(before, waited(server.processes()))
        with self.lock:
            self.late_by_the_clock += by_the_clock > self.soon
            self.probes.setdefault(kind, []).append((took, by_the_clock))
        if status != 200:
            self.complain(f"after {kind}: {status} {answer}")
        elif said(answer) != self.right[number]:
            self.complain(f"after {kind}: another answer to {number}")
        elif took > self.soon:
            self.complain(f"after {kind}: an answer after {took:.1f} s, {by_the_clock:.1f} by the clock")

    @contextlib.contextmanager
    def excuse(self, server):
        with self.lock:
            server.excused += 1
        try:
            yield
        finally:
            with self.lock:
                server.excused -= 1
                server.excused_until = time.monotonic()

    def mounted(self, server, name, faults, during):
        """A fault of a file system for a moment; with `during`, good requests are answered meanwhile."""
        mount, fault = self.mounts[name], self.random.choice(faults)
        mount.say(fault)
        try:
            if during:
                self.probe(server, f"{name} {fault.split()[0]}, during it")
            time.sleep(self.random.uniform(0, 3 if fault == "hang" else 0.5))
        finally:
            mount.say("well")
        self.probe(server, f"{name} {fault.split()[0]}")

    def shared(self, server):
        faults = ["hang", "hang", "slow 0.05", "slow 1", "eio 1", "eio 0.1", "full 1", "full 0.2"]
        with self.sharing:
            self.mounted(server, "shared", faults, True)

    def local(self, _server):
        self.mounted(self.servers[0], "kept", ["eio 1", "eio 0.1", "full 1", "full 0.2"], True)

    def weights(self, _server):
        with self.excuse(self.servers[0]):
            mount = self.mounts["model"]
            mount.say(self.random.choice(["eio 1", "eio 0.05"]))
            time.sleep(self.random.uniform(0.1, 0.6))
            mount.say("well")
        # At once: a read that failed while it was under way is repeated for who comes now.
        self.probe(self.servers[0], "model eio")

    def limited(self, server, which, soft, kind):
        before = server.limit(which)
        with self.excuse(server):
            server.set_limit(which, soft)
            try:
                if self.random.random() < 0.3:
                    for child in server.helpers():
                        self.signal(child, signal.SIGKILL)
                time.sleep(self.random.uniform(0.1, 1))
            finally:
                server.set_limit(which, before)
        self.probe(server, kind)

    def descriptors(self, server):
        _, files = server.facts()
        self.limited(server, "nofile", max(files - 8 + self.random.randrange(12), 4), "descriptors")

    def threads(self, server):
        self.limited(server, "nproc", 1, "threads")

    def next(self, quiet, limit, end):
        """Whether there is to be another fault; those that clients make wait for their share of the others."""
        while not self.over.is_set() and time.monotonic() < end:
            with self.lock:
                if self.begun >= limit:
                    return False
                if not quiet or self.share == 0 or self.loud >= self.share * self.begun - 1:
                    self.begun += 1
                    self.loud += not quiet
                    return True
            time.sleep(0.05)
        return False

    def inject(self, server, kinds, quiet, limit, end):
        while self.next(quiet, limit, end):
            kind = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
            begun = time.monotonic()
            try:
                kind(server)
            except OSError as error:
                self.failed(server, begun, f"{kind.__name__}: {error!r}")
            except Exception as error:  # A fault that cannot be made is none.
                self.complain(f"{kind.__name__}: {error!r}")
            with self.lock:
                self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
                self.spent[kind.__name__] = self.spent.get(kind.__name__, 0) + time.monotonic() - begun
                done = sum(self.counts.values())
            if done % 500 == 0:
                print(f"{done} faults, {self.compared} compared, {len(self.wrong)} wrong", file=sys.stderr, flush=True)

    def kinds(self, server, quiet):
        """Faults and their weights."""
        if quiet:
            return [(self.cancel, 64), (self.rubbish, 22), (self.kept, 13), (self.clock, 1)]
        kinds = [(self.template, 1), (self.killed, 1)]
        if self.mounts:
            kinds += [(self.shared, 2), (self.descriptors, 1), (self.threads, 1)]
        if self.mounts and server is self.servers[0]:
            kinds += [(self.local, 2), (self.weights, 2)]
        return kinds

    def run(self, faults, minutes, only):
        clients = [threading.Thread(target=self.client, args=(index,), daemon=True) for index in range(self.clients)]
        end, makers = time.monotonic() + 60 * minutes, []
        for server in self.servers:
            for quiet in (True, False):
                kinds = [(kind, weight) for kind, weight in self.kinds(server, quiet) if only in (None, kind.__name__)]
                name = f"{server.name} {quiet}"
                if kinds:
                    arguments = (server, kinds, quiet, faults, end)
                    makers.append(threading.Thread(target=self.inject, args=arguments, name=name, daemon=True))
        if only:
            self.share = 0
        for thread in clients + makers:
            thread.start()
        for thread in makers:
            thread.join()
        self.over.set()
        for client in clients:
            client.join()
        return sum(self.counts.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--pause", type=float, default=0, help="seconds between two requests of a client")
    parser.add_argument("--soon", type=float, default=SOON, help="seconds within which the next good answer must come")
    parser.add_argument("--share", type=float, default=0.04, help="least share of faults that no client can make")
    parser.add_argument("--only", help="a kind of fault: cancel, rubbish, kept, clock, template, killed, shared, local, "
                        "weights, descriptors, threads")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chmod(folder, 0o711)
        servers, mounts = [], {}
        try:
            if os.geteuid() == 0:
                mounts = mount_all(folder, options.model)
            model = mounts["model"].mount if mounts else options.model
            user = USER if mounts else None
            # The first one reads its experts again and again.
            first, shared = list(mounts.values()), [mounts["shared"]] if mounts else []
            servers = [Server(options.program, model, folder, "first", user, ["--slots", "400"], first),
                       Server(options.program, options.model, folder, "second", user, mounts=shared)]
            return campaign(options, servers, mounts, folder)
        finally:
            for mount in mounts.values():
                mount.say("well")
            for server in servers:
                server.child.kill()
                server.child.wait()
            for mount in mounts.values():
                mount.end()


def mount_all(folder, model):
    """The first server's model and kept prompts, and what both share."""
    mounts = {"model": Mount(pathlib.Path(model).resolve(), folder / "model")}
    for name, place in (("kept", "first-kept"), ("shared", "shared")):
        behind = folder / f"{place}-behind"
        behind.mkdir(mode=0o700)
        os.chown(behind, USER, USER)
        mounts[name] = Mount(behind, folder / place)
    (folder / "second-kept").mkdir(mode=0o700)
    os.chown(folder / "second-kept", USER, USER)
    return mounts


def campaign(options, servers, mounts, folder):
    campaign = Campaign(servers, mounts, folder, options)
    before = [server.facts() for server in servers]
    done = campaign.run(options.faults, options.minutes, options.only)
    time.sleep(1)
    for server in servers:
        campaign.probe(server, "all")
        # What a file system did for a moment is no reason for a restart.
        status, health = server.get("/health")
        if status != 200:
            campaign.complain(f"{server.name}: /health {status} {health}")
    after = [server.facts() for server in servers]
    for server, (threads, files), (threads_then, files_then) in zip(servers, before, after):
        if threads_then > threads + 2 or files_then > files + 10:
            campaign.complain(f"{server.name}: threads {threads} to {threads_then}, descriptors {files} to {files_then}")
    codes = [server.end() for server in servers]
    causes = {}
    if codes != [0, 0]:
        campaign.complain(f"exit codes {codes}")
    for server in servers:
        log = (folder / f"{server.name}.log").read_text(errors="replace")
        for cause in ("size and times of the file cannot be read", "Input/output error"):
            causes[cause] = causes.get(cause, 0) + log.count(cause)
        if "panicked" in log:
            campaign.complain(f"{server.name}: {log[log.index('panicked'):][:300]}")
        shutil.copy(folder / f"{server.name}.log", pathlib.Path(tempfile.gettempdir()) / f"faults-{server.name}.log")
    longest = {kind: [len(times), *(round(max(each), 2) for each in zip(*times))]
               for kind, times in sorted(campaign.probes.items())}
    load = [round(figure, 1) for figure in os.getloadavg()]
    print(json.dumps({"faults": done, "kinds": campaign.counts, "answers compared": campaign.compared,
                      "requests that might fail and did": campaign.excused, "causes in the logs": causes,
                      "mean seconds of a fault": {kind: round(campaign.spent[kind] / count, 2)
                                                  for kind, count in campaign.counts.items()},
                      "good requests next, seconds of the longest, by the clock": longest,
                      "late by the clock": campaign.late_by_the_clock, "load": load,
                      "wrong": len(campaign.wrong), "first": campaign.wrong[:10]}, indent=1))
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
