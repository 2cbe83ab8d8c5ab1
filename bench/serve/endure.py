"""A soak: hours of clients of four protocols with tools, streams and cancels on one server that ends and starts again.

    bench/serve/endure.py FLASHMOE MODEL [--minutes 120] [--clients 6] [--pause 2] [--seed 1] [OPTIONS OF serve ...]

Clients think between their requests, so that the server has a small share of one core. Each asks in a protocol of its
own choice (OpenAI's chat and responses, Anthropic's messages, Ollama's chat), whole or streamed, with or without tools,
and turns that go on after a tool's result; a part of them leaves in the midst of an answer. The server ends five times,
by SIGTERM and by SIGKILL in turn, and starts again on the same folder of kept prompts; the lives between grow longer, so
that the last two are a third of the time each.

Prints a line a minute (resident memory, threads, descriptors, processor time) and a summary in JSON. Ends with 1 where

    an answer was another than the first one to the same question, or none although the server had not ended,
    memory, threads or descriptors grew within a life or from life to life (--growth, a share, for memory),
    an end by SIGTERM was not 0, kept prompts exceeded their folder, or the log has a panic.

Loopback only; nothing but the standard library.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

# Shares of the time that the lives of the server have.
LIVES = (1 / 24, 1 / 24, 1 / 12, 1 / 6, 1 / 3, 1 / 3)
# Seconds after a start before which memory, threads and descriptors are not compared.
WARM = 240
NUMBERS = 24
FOLDER_LIMIT = 256 << 20
SCHEMA = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 12}}, "required": ["word"],
          "additionalProperties": False}
NAME, WHAT = "look_up", "Looks a word up."


class Server:
    """One life of the server."""

    def __init__(self, command, log):
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        line = self.child.stdout.readline().decode().strip()
        if not line:
            sys.exit("the server did not start; its log says why")
        self.port = int(line.rsplit(":", 1)[1])
        self.born = time.monotonic()

    def facts(self):
        """Resident bytes, threads, descriptors, seconds of processor time."""
        place = pathlib.Path(f"/proc/{self.child.pid}")
        resident = next(int(line.split()[1]) << 10 for line in (place / "status").read_text().splitlines()
                        if line.startswith("VmRSS"))
        fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
        spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return resident, len(os.listdir(place / "task")), len(os.listdir(place / "fd")), spent


def ask(port, path, body):
    """Status and text of a whole answer; streams are read to their end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def bare(value):
    """A whole answer without what differs from one request to the next: identifiers, times, what was reused."""
    if isinstance(value, dict):
        left_out = {"id", "call_id", "created", "created_at", "timings", "x_io", "usage", "item_id"}
        return {key: bare(item) for key, item in value.items() if key not in left_out and "duration" not in key}
    return [bare(item) for item in value] if isinstance(value, list) else value


def events(text):
    """The objects of a stream, of server-sent events or of lines."""
    for line in text.splitlines():
        line = line.removeprefix("data:").strip()
        if line.startswith("{"):
            yield bare(json.loads(line))


class Question:
    """A question in one protocol. Streamed answers are compared by their events joined: `key` says which is which."""

    def __init__(self, number, protocol, tools, result, stream):
        self.key = (number, protocol, tools, result, stream)
        text = f"What are the factors of {number}? " + "word " * (number % 5 * 30)
        self.path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages",
                     "ollama": "/api/chat"}[protocol]
        user = {"role": "user", "content": text}
        body = getattr(self, protocol)(user, tools, result, number)
        self.body = {**body, "stream": stream} if protocol == "ollama" or stream else body
        self.stream = stream

    def chat(self, user, tools, result, number):
        body = {"messages": [user], "max_tokens": 16, "temperature": 0, "logprobs": True}
        if result:
            call = {"id": "call_1", "type": "function", "function": {"name": NAME, "arguments": '{"word": "a"}'}}
            body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]},
                                 {"role": "tool", "tool_call_id": "call_1", "content": f"{number} letters"}]
        if tools:
            function = {"name": NAME, "description": WHAT, "parameters": SCHEMA}
            body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
        return body

    def responses(self, user, tools, result, number):
        items = [user]
        if result:
            items += [{"type": "function_call", "call_id": "call_1", "name": NAME, "arguments": '{"word": "a"}'},
                      {"type": "function_call_output", "call_id": "call_1", "output": f"{number} letters"}]
        body = {"input": items, "max_output_tokens": 24, "temperature": 0}
        if tools:
            tool = {"type": "function", "name": NAME, "description": WHAT, "parameters": SCHEMA}
            body |= {"tools": [tool], "tool_choice": "required"}
        return body

    def messages(self, user, tools, result, number):
        turns = [user]
        if result:
            use = {"type": "tool_use", "id": "toolu_1", "name": NAME, "input": {"word": "a"}}
            turns += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": f"{number} letters"}]}]
        body = {"messages": turns, "max_tokens": 24, "temperature": 0}
        if tools or result:
            body["tools"] = [{"name": NAME, "description": WHAT, "input_schema": SCHEMA}]
        if tools:
            body["tool_choice"] = {"type": "any"}
        return body

    def ollama(self, user, tools, result, number):
        turns = [user]
        if result:
            call = {"function": {"name": NAME, "arguments": {"word": "a"}}}
            turns += [{"role": "assistant", "content": "", "tool_calls": [call]},
                      {"role": "tool", "tool_name": NAME, "content": f"{number} letters"}]
        body = {"messages": turns, "options": {"temperature": 0, "num_predict": 24}}
        if tools:
            function = {"name": NAME, "description": WHAT, "parameters": SCHEMA}
            body["tools"] = [{"type": "function", "function": function}]
        return body

    def said(self, text):
        if not self.stream:
            return json.dumps(bare(json.loads(text)), sort_keys=True)
        # Chunks may hold one token or several: strings under one path are joined, other values are kept once.
        joined, seen = collections.defaultdict(str), set()

        def walk(place, value):
            if isinstance(value, dict):
                for key, item in value.items():
                    if key not in ("sequence_number", "logprobs"):
                        walk(f"{place}.{key}", item)
            elif isinstance(value, list):
                for item in value:
                    walk(place, item)
            elif isinstance(value, str) and place.rsplit(".", 1)[-1] in ("content", "text", "delta", "thinking",
                                                                        "reasoning_content", "partial_json"):
                joined[place] += value
            else:
                seen.add((place, str(value)))

        for event in events(text):
            kind = event.get("type", "") if isinstance(event.get("type"), str) else ""
            walk(kind, event)
        return json.dumps([sorted(joined.items()), sorted(seen)])


class Soak:
    def __init__(self, options, folder, extra):
        self.options, self.folder = options, folder
        self.log = open(folder / "server.log", "wb")
        self.command = [options.program, "serve", options.model, "--port", "0", "--device", "cpu", "--sequences", "4",
                        "--threads", "1", "--memory", "400M", "--cache-disk", str(folder / "kept"),
                        "--cache-disk-size", str(FOLDER_LIMIT), *extra]
        self.lock, self.over, self.begun = threading.Lock(), threading.Event(), time.monotonic()
        self.counts, self.wrong, self.right = collections.Counter(), [], {}
        self.life, self.ending, self.server, self.spent = 0, False, None, 0.0
        self.samples = []

    def complain(self, text):
        with self.lock:
            self.wrong.append(text)
        print("WRONG", text[:1000], flush=True)

    def start(self):
        server = Server(self.command, self.log)
        with self.lock:
            self.server, self.ending = server, False
            self.life += 1

    def end(self, how):
        with self.lock:
            self.ending = True
        self.spent += self.server.facts()[3]
        self.server.child.send_signal(how)
        code = self.server.child.wait(120)
        if code != (0 if how == signal.SIGTERM else -how):
            self.complain(f"{how.name}: exit code {code}")

    def client(self, index):
        source = random.Random(f"{self.options.seed} {index}")
        while not self.over.is_set():
            if self.over.wait(source.expovariate(1 / self.options.pause)):
                break
            with self.lock:
                life, server, ending = self.life, self.server, self.ending
            if ending:
                continue
            protocol = source.choice(("chat", "responses", "messages", "ollama"))
            question = Question(source.randrange(NUMBERS), protocol, source.random() < 0.4, source.random() < 0.3,
                                source.random() < 0.4)
            try:
                if source.random() < 0.15:
                    self.leave(server, question, source.random())
                    self.count("cancel", protocol)
                    continue
                status, text = ask(server.port, question.path, question.body)
                if status in (429, 503, 529):
                    self.count("refused", protocol)
                elif status != 200:
                    self.complain(f"{question.key}: {status} {text}")
                else:
                    self.compare(question, text)
                    self.count("compared", protocol)
            except (OSError, http.client.HTTPException, ValueError) as error:
                with self.lock:
                    cut = self.ending or self.life != life
                if cut:
                    self.count("cut off", protocol)
                else:
                    self.complain(f"{question.key}: {error!r}")

    def count(self, what, protocol):
        with self.lock:
            self.counts[f"{what} {protocol}"] += 1

    def compare(self, question, text):
        said = question.said(text)
        with self.lock:
            first = self.right.setdefault(question.key, said)
        if said != first:
            self.complain(f"{question.key}: another answer: {said} and first {first}")

    def leave(self, server, question, share):
        body = json.dumps({**question.body, "stream": True}).encode()
        head = f"POST {question.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", server.port), 10) as stream:
            stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            stream.settimeout(0.001 + share / 10)
            try:
                stream.recv(200)
            except TimeoutError:
                pass

    def sample(self):
        resident, threads, files, spent = self.server.facts()
        kept = sum(path.stat().st_size for path in self.kept())
        at = time.monotonic() - self.begun
        if time.monotonic() - self.server.born > WARM:
            self.samples.append((self.life, resident, threads, files))
        if kept > FOLDER_LIMIT:
            self.complain(f"kept prompts of {kept} bytes")
        with self.lock:
            compared = sum(number for name, number in self.counts.items() if name.startswith("compared"))
        print(f"{at / 60:6.1f} min  life {self.life}  {resident / 1e6:6.1f} MB  {threads} threads  {files} descriptors  "
              f"{(self.spent + spent) / at:.2f} cores  {kept / 1e6:.1f} MB kept  {compared} compared", flush=True)

    def kept(self):
        for path in (self.folder / "kept").rglob("*"):
            try:
                if path.is_file():
                    yield path
            except OSError:
                pass

    def run(self):
        self.start()
        clients = [threading.Thread(target=self.client, args=(index,)) for index in range(self.options.clients)]
        for client in clients:
            client.start()
        try:
            until = self.begun
            for number, share in enumerate(LIVES):
                until += 60 * self.options.minutes * share
                while (left := until - time.monotonic()) > 0:
                    time.sleep(min(60, left))
                    self.sample()
                if number + 1 < len(LIVES):
                    self.end(signal.SIGTERM if number % 2 == 0 else signal.SIGKILL)
                    self.start()
            self.over.set()
            for client in clients:
                client.join()
            self.end(signal.SIGTERM)
        finally:
            self.over.set()
            self.server.child.kill()
        self.flat()
        log = (self.folder / "server.log").read_text(errors="replace")
        if "panic" in log:
            self.complain("the log has a panic: " + log[log.index("panic"):][:300])

    def flat(self):
        """Memory, threads and descriptors do not grow: within a life and from life to life."""
        firsts = {}
        for life, resident, threads, files in self.samples:
            firsts.setdefault(life, (resident, threads, files))
        first = None
        for life, resident, threads, files in self.samples:
            for name, (memory, tasks, open_files) in (("its life", firsts[life]), ("the soak", first or firsts[life])):
                if resident > memory * (1 + self.options.growth):
                    self.complain(f"life {life}: {resident / 1e6:.1f} MB, at the begin of {name} {memory / 1e6:.1f}")
                # Each client may have a connection at work, and connections that ended close a moment later.
                if threads > tasks + 2 or files > open_files + 2 * self.options.clients:
                    self.complain(f"life {life}: {threads} threads, {files} descriptors, at the begin of {name} "
                                  f"{tasks} and {open_files}")
            first = first or (resident, threads, files)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds that a client thinks between two requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth", type=float, default=0.1, help="share by which memory may grow")
    options, extra = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chmod(folder, 0o700)
        soak = Soak(options, folder, extra)
        soak.run()
        elapsed = time.monotonic() - soak.begun
        memory = [resident for _, resident, _, _ in soak.samples] or [0]
        print(json.dumps({
            "minutes": round(elapsed / 60, 1), "lives": soak.life, "cores": round(soak.spent / elapsed, 3),
            "questions": len(soak.right), "counts": dict(sorted(soak.counts.items())),
            "MB": [round(min(memory) / 1e6, 1), round(max(memory) / 1e6, 1)],
            "threads": sorted({threads for _, _, threads, _ in soak.samples}),
            "descriptors": [min((files for *_, files in soak.samples), default=0),
                            max((files for *_, files in soak.samples), default=0)],
            "wrong": len(soak.wrong), "first": [text[:500] for text in soak.wrong[:10]]}, indent=1))
        return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
