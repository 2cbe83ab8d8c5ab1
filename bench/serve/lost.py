#!/usr/bin/env python3
"""Loses processes of a model in several processes, at random, and checks that the group says so in time and comes back.

    bench/serve/lost.py FLASHMOE MODEL LAYERS [--rounds 200] [--seed 1] [--silence 3] [--only KIND,KIND] [--lane N] [--slack 3]
        [--minutes M]

One server and one to three stages, cut at random layers, each under a small supervisor that does what systemd does with
Restart=always: it starts each process again 0.2 s after it ended, alone, whatever its exit code. In each round one thing
happens at a random moment of an answer, of a prompt, or while nothing is under way:

    kill        SIGKILL of a stage, or of the first process
    stop        SIGSTOP of one of them; it goes on when the others have given it up, up to 12 s later
    cable       the link between two network namespaces is taken down, and up again (as root)
    half-open   a relay between two processes passes nothing more, in one direction or both, and closes nothing
    half-close  the relay ends one direction alone
    crowd       SIGKILL of a stage; 24 connections that say nothing, or half a message, are there before the right one
    build       a stage is killed and comes back as another build; model: with another model's files

Checked in each round: the client's answer is that of one process to the last byte, or what came of it is the beginning of
that and then a typed error (`stage_lost`) within the silence; no request waits longer; a stage that was refused says both
values; processes end with the codes of docs/scaling.md; the group is there again and its next answer is right. Prints a
line for each kind, and every failure. Ends with status 1 at a failure. Standard library only.
"""

import argparse
import collections
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

SIZES = ["--device", "cpu", "--context", "2048", "--prefill-chunk", "64", "--memory", "2G", "--threads", "1", "--sequences", "2"]
TOPICS = ["a river", "the number seven", "old maps", "rain", "a clock", "bread", "two ships", "the moon"]
LONG = "The river runs past seven mills and under two bridges. "
PAUSE = 0.2  # until a supervisor starts a process again
ENDS = 12  # seconds that a process may take to end once it knows
BACK = 60  # seconds until a group has to be there again


class Failed(Exception):
    """What should not have happened."""


def until(patience, what, found):
    """Waits until `found` gives something."""
    end = time.monotonic() + patience
    while not (value := found()):
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {patience:.0f} s")
        time.sleep(0.02)
    return value


class Unit:
    """A process that is started again when it has ended."""

    def __init__(self, name, command, log, environment):
        self.name, self.command, self.log, self.environment = name, command, log, environment
        self.codes, self.going, self.process = [], True, None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while self.going:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
            code = self.process.wait()
            self.codes.append(code)
            time.sleep(PAUSE)

    def said(self):
        log = pathlib.Path(self.log)
        return log.read_text(errors="replace") if log.exists() else ""

    def send(self, number):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def end(self):
        self.going = False
        # Between two starts there is a moment without a process.
        while self.thread.is_alive():
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            self.thread.join(0.1)


class Relay:
    """Between a first process and a stage: passes bytes on, until that is changed."""

    def __init__(self, port, to):
        self.to, self.held, self.pairs = to, set(), []
        self.listener = socket.create_server(("127.0.0.1", port), backlog=64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.to), 1)
                    far.settimeout(None)
                except OSError:
                    near.close()
                    continue
                for sock in (near, far):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.pairs = [(near, far)]
                for name, source, target in [("out", near, far), ("back", far, near)]:
                    threading.Thread(target=self.copy, args=(name, source, target), daemon=True).start()

    def copy(self, name, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                while name in self.held:
                    time.sleep(0.02)
                target.sendall(data)
        while name in self.held:
            time.sleep(0.02)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def half_close(self, name):
        for near, far in self.pairs:
            with contextlib.suppress(OSError):
                (far if name == "out" else near).shutdown(socket.SHUT_WR)

    def close(self):
        self.held.clear()
        self.listener.close()


class Group:
    """A server and its stages, cut at random layers."""

    def __init__(self, options, folder, chooser, number, way):
        self.options, self.folder, self.way = options, folder, way
        self.chooser = chooser
        count = chooser.randint(1, min(3, options.layers - 1))
        cuts = sorted(chooser.sample(range(1, options.layers), count)) + [options.layers]
        self.layers = [f"{start}:{end}" for start, end in zip(cuts, cuts[1:])]
        base = 21000 + 3000 * options.lane + (number * 16) % 2900
        self.port = base
        self.tls = way == "cable" or chooser.random() < 0.5
        self.stages, self.relays, lines = [], [], []
        self.environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        if self.tls:
            lines.append(f'identity = "{folder}/first"')
        lines.append(f'silence = "{options.silence}s"\nstart = "60s"')
        self.names = [f"fmlost{options.lane}{index}" for index in range(count)]
        if way == "cable":
            for index, name in enumerate(self.names):
                self.wire(index, name)
        for index, layers in enumerate(self.layers):
            host = f"10.{190 + self.options.lane}.{index}.2" if way == "cable" else "127.0.0.1"
            port = base + 1 + index
            reached = port
            if way == "relay":
                reached = base + 8 + index
                self.relays.append(Relay(reached, port))
            self.stages.append(self.stage(index, options.flashmoe, options.model, f"{host}:{port}", layers))
            lines += ["[[stage]]", f'address = "{host}:{reached}"', f'layers = "{layers}"']
            if self.tls:
                lines.append(f'certificate = "{folder}/second/certificate.pem"')
        self.file = folder / f"stages{number}.toml"
        self.file.write_text("\n".join(lines) + "\n")
        command = [options.flashmoe, "serve", options.model, "--port", str(self.port), "--stages", str(self.file), *SIZES]
        self.first = Unit("first", command, folder / "first.log", self.environment)

    def wire(self, index, name):
        def ip(*words):
            subprocess.run(["ip", *words], check=True)
        ip("netns", "add", name)
        ip("link", "add", f"fml{self.options.lane}{index}a", "type", "veth", "peer", "name", f"fml{self.options.lane}{index}b")
        ip("link", "set", f"fml{self.options.lane}{index}b", "netns", name)
        ip("addr", "add", f"10.{190 + self.options.lane}.{index}.1/30", "dev", f"fml{self.options.lane}{index}a")
        # While the cable is cut no other may answer for the address, as a default route's gateway would.
        ip("route", "replace", "unreachable", f"10.{190 + self.options.lane}.{index}.0/30", "metric", "9999")
        ip("link", "set", f"fml{self.options.lane}{index}a", "up")
        ip("-n", name, "addr", "add", f"10.{190 + self.options.lane}.{index}.2/30", "dev", f"fml{self.options.lane}{index}b")
        ip("-n", name, "link", "set", f"fml{self.options.lane}{index}b", "up")
        ip("-n", name, "link", "set", "lo", "up")

    def stage(self, index, program, model, listen, layers):
        command = ["ip", "netns", "exec", self.names[index]] if self.way == "cable" else []
        command += [program, "stage", model, "--layers", layers, "--listen", listen, "--silence", f"{self.options.silence}s"]
        if self.tls:
            command += ["--identity", f"{self.folder}/second", "--trust", f"{self.folder}/first/certificate.pem"]
        return Unit(f"stage {layers}", command + SIZES, self.folder / f"stage{index}.log", self.environment)

    def units(self):
        return [self.first, *self.stages]

    def is_ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        return False

    def end(self):
        # The first one ends the others in order.
        for unit in self.units():
            unit.going = False
        self.first.send(signal.SIGTERM)
        clean = [unit for unit in self.units() if unit.thread.join(8) or not unit.thread.is_alive()]
        for unit in self.units():
            unit.end()
        for relay in self.relays:
            relay.close()
        if self.way == "cable":
            for index, name in enumerate(self.names):
                # A socket that still says goodbye would keep the namespace and the card.
                subprocess.run(["ip", "link", "del", f"fml{self.options.lane}{index}a"], check=False)
                route = f"10.{190 + self.options.lane}.{index}.0/30"
                subprocess.run(["ip", "route", "del", "unreachable", route, "metric", "9999"], check=False)
                subprocess.run(["ip", "netns", "del", name], check=False)
        if len(clean) < len(self.units()):
            late = [unit.name for unit in self.units() if unit not in clean]
            raise Failed(f"did not end in order: {late}")


class Asked(threading.Thread):
    """A request, and what became of it."""

    def __init__(self, port, question, streamed):
        super().__init__(daemon=True)
        self.port, self.question, self.streamed = port, question, streamed
        self.text, self.result, self.ended, self.words = "", None, None, ""
        self.start()

    def run(self):
        try:
            self.result = self.ask()
        except (OSError, http.client.HTTPException) as error:
            self.result, self.words = "cut", repr(error)
        self.ended = time.monotonic()

    def ask(self):
        body = {"messages": [{"role": "user", "content": self.question}], "temperature": 0, "max_tokens": 120,
                "ignore_eos": True, "stream": self.streamed}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200 or not self.streamed:
            self.words = response.read().decode()
            if response.status == 200:
                self.text = json.loads(self.words)["choices"][0]["message"]["content"]
                return "whole"
            retry = response.getheader("Retry-After")
            return "lost" if response.status == 503 and "stage_lost" in self.words and retry else f"status {response.status}"
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return "whole"
            event = json.loads(line[6:])
            if "error" in event:
                self.words = line
                return "lost" if event["error"].get("code") == "stage_lost" else "error"
            for choice in event["choices"]:
                self.text += choice["delta"].get("content") or ""
        return "cut"


class Campaign:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.chooser = random.Random(options.seed)
        self.questions = [f"Tell me a long story about {topic}." for topic in TOPICS]
        self.questions += [LONG * 12 + question for question in self.questions[:4]]
        self.texts, self.times = {}, {}
        self.seen = collections.defaultdict(collections.Counter)
        self.longest = collections.defaultdict(float)
        self.failures = []

    def reference(self):
        """What one process says."""
        command = [self.options.flashmoe, "serve", self.options.model, "--port", str(20990 + self.options.lane), *SIZES]
        unit = Unit("reference", command, self.folder / "reference.log", dict(os.environ))
        until(BACK, "reference", lambda: "http://" in unit.said())
        for question in self.questions:
            begun = time.monotonic()
            asked = Asked(20990 + self.options.lane, question, False)
            asked.join()
            if asked.result != "whole":
                sys.exit(f"reference: {asked.result} {asked.words}")
            self.texts[question], self.times[question] = asked.text, time.monotonic() - begun
        unit.end()

    def right(self, group, patience):
        """The group is there, and its answer is right."""
        question = self.chooser.choice(self.questions)
        begun = time.monotonic()
        while True:
            until(max(1, patience - (time.monotonic() - begun)), "the group is not there again", group.is_ready)
            asked = Asked(group.port, question, False)
            asked.join(patience)
            # It may have connected to a process that was about to end.
            if asked.result in ("whole", None):
                break
        if asked.text != self.texts[question]:
            raise Failed(f"another answer after the start: {asked.result} {asked.text[:80]!r}")

    def round(self, group, kind):
        marks = {unit: len(unit.codes) for unit in group.units()}
        chooser = self.chooser
        question = chooser.choice(self.questions)
        idle = chooser.random() < 0.15
        asked = None if idle else Asked(group.port, question, chooser.random() < 0.5)
        time.sleep(chooser.uniform(0, 1.1 * self.times[question]))
        victim = chooser.choice(group.units() if kind in ("kill", "stop") else group.stages)
        healed, at_once = self.harm(group, kind, victim)
        harmed = time.monotonic()
        deadline = self.options.slack + (0 if at_once else self.options.silence + 1)
        if asked is None:
            asked = Asked(group.port, question, chooser.random() < 0.5)
        stopped_first = victim is group.first and kind == "stop"
        asked.join(deadline if not stopped_first else 0.1)
        self.judge(asked, kind, victim is group.first, question, harmed, deadline, stopped_first)
        # All others end: a process without its neighbours is of no use.
        gone = lambda unit: len(unit.codes) > marks[unit]
        others = [unit for unit in group.units() if unit is not victim]
        for unit in others:
            until(self.options.silence + ENDS, f"{kind} of {victim.name}: {unit.name} does not end", lambda unit=unit: gone(unit))
        healed()
        until(ENDS + self.options.silence, f"{kind}: {victim.name} does not end", lambda: gone(victim))
        for unit in others:
            code = unit.codes[marks[unit]]
            self.seen[kind][f"{'first' if unit is group.first else 'stage'} {code}"] += 1
            if code not in ([6] if unit is group.first else [0, 6]):
                raise Failed(f"{kind} of {victim.name}: {unit.name} ended with {code}")
        code = victim.codes[marks[victim]]
        self.seen[kind][f"victim {code}"] += 1
        if code not in ([-9] if at_once and kind != "half-close" else [0, 6]):
            raise Failed(f"{kind}: {victim.name} ended with {code}")
        self.back(group, kind, {unit: count + 1 for unit, count in marks.items()})

    def back(self, group, kind, marks):
        """The group comes back by starts after code 6 alone."""
        begun = time.monotonic()
        self.right(group, BACK)
        self.longest[kind, "back"] = max(self.longest[kind, "back"], time.monotonic() - begun)
        again = [(unit.name, code) for unit in group.units() for code in unit.codes[marks[unit]:]]
        self.seen[kind]["further ends"] += len(again)
        if wrong := [(name, code) for name, code in again if code not in (0, 6)]:
            raise Failed(f"{kind}: on the way back {wrong}")

    def judge(self, asked, kind, is_first, question, harmed, deadline, stopped_first):
        if stopped_first:
            # Its client waits as long as it is stopped: nothing of ours is at work.
            asked.join(30 if asked.result else 0)
            self.seen[kind]["of a stopped server"] += 1
        elif asked.result is None:
            raise Failed(f"{kind}: the request waits after {deadline:.0f} s")
        result = asked.result
        if not self.texts[question].startswith(asked.text) or (result == "whole" and asked.text != self.texts[question]):
            raise Failed(f"{kind}: other text: {asked.text[-60:]!r}")
        if result is None:
            return
        self.seen[kind][result] += 1
        # A server that has ended takes no connection; one that was killed cuts its own.
        # So does one whose answer is not streamed and has begun with a keep-alive: a body that is cut off is no answer.
        begun = "refused" in asked.words.lower() or ("IncompleteRead" in asked.words and not asked.streamed)
        allowed = {"whole", "lost", "cut"} if is_first or begun else {"whole", "lost"}
        if result not in allowed:
            raise Failed(f"{kind}: {result} {asked.words[:200]}")
        if result == "lost":
            self.longest[kind, "error"] = max(self.longest[kind, "error"], asked.ended - harmed)

    def harm(self, group, kind, victim):
        """Does it; what makes it good again, and whether the others hear of it at once."""
        chooser, index = self.chooser, group.stages.index(victim) if victim in group.stages else None
        if kind == "kill":
            victim.send(signal.SIGKILL)
            return (lambda: None), True
        if kind == "stop":
            victim.send(signal.SIGSTOP)
            pause = chooser.choice([0, 0, 4, 12])

            def go_on():
                time.sleep(pause)
                victim.send(signal.SIGCONT)
            return go_on, False
        if kind == "cable":
            far = chooser.random() < 0.5
            own = f"fml{self.options.lane}{index}"
            link = ["ip", "-n", group.names[index], "link", "set", f"{own}b"] if far else ["ip", "link", "set", f"{own}a"]
            subprocess.run([*link, "down"], check=True)
            pause = chooser.choice([0, 0, 4])

            def plug():
                time.sleep(pause)
                subprocess.run([*link, "up"], check=True)
            return plug, False
        relay = group.relays[index]
        if kind == "half-open":
            relay.held.update(chooser.choice([["out"], ["back"], ["out", "back"]]))
            return relay.held.clear, False
        if kind == "half-close":
            relay.half_close(chooser.choice(["out", "back"]))
            return (lambda: None), True
        raise ValueError(kind)

    def crowd(self, group):
        """Connections that say nothing are at the stage's door before the right one."""
        victim = self.chooser.choice(group.stages)
        address = victim.command[victim.command.index("--listen") + 1].rsplit(":", 1)
        # The kill is the victim's first end.
        marks = {unit: len(unit.codes) + (unit is victim) for unit in group.units()}
        victim.send(signal.SIGKILL)
        crowd = []

        def connect():
            with contextlib.suppress(OSError):
                one = socket.create_connection((address[0], int(address[1])), 0.2)
                one.send(self.chooser.choice([b"", b"\x50\x00", b"\x00\x01\x00\x00\x01abc", b"\x16\x03\x01\x02\x00\x01"]))
                crowd.append(one)
            return len(crowd) >= 24
        until(20, "crowd: the stage does not listen again", connect)
        self.seen["crowd"]["connections"] += len(crowd)
        self.back(group, "crowd", marks)
        for one in crowd:
            one.close()

    def other(self, group, kind):
        """A stage comes back as another build, or with another model."""
        victim = self.chooser.choice(group.stages)
        right, marks = list(victim.command), len(group.first.codes)
        said = len(group.first.said())
        place, value = (0, self.options.other_build) if kind == "build" else (2, self.options.other_model)
        offset = victim.command.index("stage") - 1
        victim.command = right[:offset + place] + [str(value)] + right[offset + place + 1:]
        victim.send(signal.SIGKILL)
        until(BACK, f"{kind}: the first process is not refused", lambda: 2 in group.first.codes[marks:])
        words = group.first.said()[said:]
        what = "build: " if kind == "build" else "contents of the model: "
        if what not in words or "in the first process" not in words or "in the stage" not in words:
            raise Failed(f"{kind}: {words[-300:]}")
        self.seen[kind]["refused with both values"] += 1
        if (codes := set(group.first.codes[marks:])) - {2, 6}:
            raise Failed(f"{kind}: the first process ended with {codes}")
        victim.command = right
        # The first process may try once more before the wrong one has gone.
        until(ENDS, f"{kind}: the first process is not started again", lambda: group.first.process.poll() is None)
        victim.send(signal.SIGKILL)
        begun = time.monotonic()
        self.right(group, BACK)
        self.longest[kind, "back"] = max(self.longest[kind, "back"], time.monotonic() - begun)

    def run(self):
        ways = {"plain": ["kill", "kill", "stop", "stop", "crowd", "build", "model"], "relay": ["half-open", "half-close"],
                "cable": ["cable"]}
        ways = {way: [kind for kind in kinds if not self.options.only or kind in self.options.only] for way, kinds in ways.items()}
        if os.geteuid():
            ways["cable"] = []
        weights = {way: len(kinds) for way, kinds in ways.items()}
        weights["cable"] *= 2
        done, number = 0, 0
        begun = time.monotonic()
        while done < self.options.rounds and time.monotonic() - begun < 60 * self.options.minutes:
            way = self.chooser.choices(list(weights), list(weights.values()))[0]
            number += 1
            group = Group(self.options, self.folder, self.chooser, number, way)
            kind = "start"
            try:
                self.right(group, BACK)
                for _ in range(min(self.chooser.randint(2, 6), self.options.rounds - done)):
                    done += 1
                    kind = self.chooser.choice(ways[way])
                    self.seen[kind]["rounds"] += 1
                    if kind in ("build", "model"):
                        self.other(group, kind)
                    elif kind == "crowd":
                        self.crowd(group)
                    else:
                        self.round(group, kind)
                kind = "end"
                group.end()
            except Failed as failure:
                self.failures.append(f"{done}, layers {group.layers}, {'TLS' if group.tls else 'open'}, {way}: {kind}: {failure}")
                print("FAILED", self.failures[-1], flush=True)
                for unit in group.units():
                    print(f"  {unit.name}: {unit.codes[-4:]}: ...{unit.said()[-400:]!r}", flush=True)
                with contextlib.suppress(Failed):
                    group.end()
            self.done = done
            print(f"{done} of {self.options.rounds} rounds, {len(self.failures)} failures", file=sys.stderr, flush=True)
            for log in self.folder.glob("*.log"):
                log.unlink()

    def report(self):
        for kind, counted in sorted(self.seen.items()):
            longest = {what: f"{value:.1f} s" for (own, what), value in self.longest.items() if own == kind}
            print(f"{kind}: {dict(counted)}; longest {longest}")
        print(f"seed {self.options.seed}: {self.done} rounds, {len(self.failures)} failures")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flashmoe")
    parser.add_argument("model")
    parser.add_argument("layers", type=int)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--silence", type=int, default=3)
    parser.add_argument("--slack", type=int, default=3, help="seconds that a busy machine may be late")
    parser.add_argument("--minutes", type=int, default=10**6, help="no new group after so many")
    parser.add_argument("--lane", type=int, default=0, choices=range(4), help="ports and names of its own, for several at a time")
    parser.add_argument("--only", type=lambda text: text.split(","))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in ["first", "second"]:
            subprocess.run([options.flashmoe, "stage", "--identity", folder / name], check=True, capture_output=True)
        # Another build: the same program with another commit in it.
        version = subprocess.run([options.flashmoe, "--version"], check=True, capture_output=True, text=True).stdout
        commit = version.split("(")[1].split(")")[0].encode()
        options.other_build = folder / "other_build"
        options.other_build.write_bytes(pathlib.Path(options.flashmoe).read_bytes().replace(commit, commit[::-1]))
        options.other_build.chmod(0o755)
        # Another model: one bit of its weights differs.
        options.other_model = folder / "other_model"
        shutil.copytree(options.model, options.other_model)
        weights = max(options.other_model.glob("*.safetensors"), key=lambda file: file.stat().st_size)
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        campaign = Campaign(options, folder)
        campaign.reference()
        campaign.run()
        campaign.report()
        sys.exit(bool(campaign.failures))


if __name__ == "__main__":
    main()
