#!/usr/bin/env python3
"""Sends a server requests made to take memory, and holds its high-water mark to `--memory`.

    bench/serve/hostile.py --flashmoe target/release/flashmoe --model models/demo [--budgets 300M,600M,1G] [--held 30] [--clients 64]

For each budget a server is started and asked for a greedy answer. Then come, one after another and several at once: single strings of 1, 8 and
60 MB to every path that takes text, as letters, white space, escapes and marks; a million empty parts; 100,000 tools; deep and wide
JSON; schemas that branch; bodies that are held back one byte before their end; bodies that drip; and clients with ordinary requests,
alone and beside all of that. VmHWM must stay within the budget, every request must be answered or closed in time, and the
greedy answer afterwards must be the one from before. Prints a line for each budget; standard library only; status 1 at a failure.
"""

import argparse
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COUNT, TOKENIZE = "/v1/messages/count_tokens", "/tokenize"
QUESTION = {"messages": [{"role": "user", "content": "What is 255 factored?"}], "temperature": 0, "max_tokens": 40, "cache_prompt": False}


def size(text):
    units = {"K": 10, "M": 20, "G": 30}
    return int(float(text[:-1]) * (1 << units[text[-1]])) if text[-1] in units else int(text)


class Server:
    def __init__(self, options, budget):
        command = [options.flashmoe, "serve", options.model, "--port", "0", "--memory", budget, "--device", "cpu"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if not found:
            sys.exit(f"the server did not start with {budget}")
        self.port = int(found.group(1))

    def memory(self, field="VmHWM"):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith(field))

    def post(self, path, body, timeout=120):
        """Status and body; status 0 where the server closed the connection."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.putrequest("POST", path)
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders()
            try:
                connection.send(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before the end, and told why
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (http.client.HTTPException, ConnectionError, BrokenPipeError):
            return 0, ""
        finally:
            connection.close()

    def answer(self):
        """The greedy answer; waits where the server is full, as clients do."""
        for _ in range(1000):
            status, text = self.post(CHAT, QUESTION, 600)
            if status == 200:
                return json.loads(text)["choices"][0]["message"]
            time.sleep(0.5)
        return None


def bodies_of(text):
    """The same text for every path."""
    yield CHAT, b'{"max_tokens":1,"messages":[{"role":"user","content":"%s"}]}' % text
    yield RESPONSES, b'{"max_output_tokens":1,"input":"%s"}' % text
    yield MESSAGES, b'{"max_tokens":1,"messages":[{"role":"user","content":"%s"}]}' % text
    yield COUNT, b'{"messages":[{"role":"user","content":"%s"}]}' % text
    yield TOKENIZE, b'{"content":"%s"}' % text


def tree(depth, width):
    return {"type": "null"} if depth == 0 else {"anyOf": [tree(depth - 1, width) for _ in range(width)]}


def ladder(rungs, width):
    """A schema of few bytes that unfolds to `width ** rungs` alternatives."""
    steps = {f"s{i}": {"anyOf": [{"$ref": f"#/$defs/s{i + 1}"}, {"type": "object", "properties": {"p": {"$ref": f"#/$defs/s{i + 1}"}}}] * (width // 2)}
             for i in range(rungs)}
    return {"$defs": {**steps, f"s{rungs}": {"type": "integer"}}, "$ref": "#/$defs/s0"}


def shapes(limit):
    """Bodies that are small as text and large in memory, up to about `limit` bytes."""
    user = [{"role": "user", "content": "Hi"}]
    part = b'{"type":"text","text":""},'
    many = limit // 2
    yield "empty parts", CHAT, b'{"messages":[{"role":"user","content":[' + part * 1_000_000 + part[:-1] + b"]}]}"
    yield "some empty parts", CHAT, b'{"messages":[{"role":"user","content":[' + part * 9_000 + part[:-1] + b"]}]}"
    yield "messages", CHAT, {"max_tokens": 1, "messages": [{"role": "user", "content": "."}] * 5_000}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    yield "100,000 tools", CHAT, {"messages": user, "tools": [tool] * 100_000}
    yield "500 tools", CHAT, {"max_tokens": 1, "messages": user, "tools": [tool] * 500}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5_000)}}
    yield "a wide tool", RESPONSES, {"max_output_tokens": 1, "input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": wide}]}
    yield "numbers", TOKENIZE, b'{"content":"a","x":[' + b"1," * many + b"1]}"
    yield "empty lists", CHAT, b'{"messages":[],"x":[' + b"[]," * (limit // 3) + b"[]]}"
    yield "names", MESSAGES, b'{"messages":[],"x":{' + b",".join(b'"%x":0' % i for i in range(limit // 10)) + b"}}"
    yield "deep", CHAT, b'{"messages":' + b"[" * many + b"]" * many + b"}"
    yield "anyOf 8^6", CHAT, {"messages": user, "response_format": {"type": "json_schema", "json_schema": {"schema": tree(6, 8)}}}
    yield "anyOf 8^4", CHAT, {"max_tokens": 1, "messages": user, "response_format": {"type": "json_schema", "json_schema": {"schema": tree(4, 8)}}}
    for rungs, width in ((6, 8), (12, 4), (20, 2)):
        schema = {"type": "json_schema", "json_schema": {"schema": ladder(rungs, width)}}
        yield f"ladder {rungs}", CHAT, {"max_tokens": 8, "messages": user, "response_format": schema}
        tools = [{"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}, **ladder(rungs, width)}}]
        yield f"tool ladder {rungs}", MESSAGES, {"max_tokens": 8, "messages": user, "tools": tools, "tool_choice": {"type": "any"}}
    yield "repeated", CHAT, {"max_tokens": 8, "messages": user, "response_format": {"type": "json_schema", "json_schema": {
        "schema": {"type": "array", "minItems": 1, "maxItems": 9999, "items": {"type": "string", "pattern": "^(a|b|ab|ba){1,50}$"}}}}}
    yield "a long name", CHAT, b'{"model":"%s","stream":true,"messages":[{"role":"user","content":"Hi"}]}' % (b"m" * many)
    yield "metadata", RESPONSES, b'{"max_output_tokens":4,"stream":true,"input":"Hi","metadata":{"a":"%s"}}' % (b"m" * many)
    yield "thinking", CHAT, {"max_tokens": 1, "messages": user + [{"role": "assistant", "content": "Yes.", "reasoning_content": "hm " * (many // 3)}] + user}
    yield "arguments", CHAT, {"max_tokens": 1, "messages": user + [{"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": "<think>" * (many // 8)})}}]}]}
    yield "logprobs", CHAT, {"messages": user, "max_tokens": 200, "logprobs": True, "top_logprobs": 20, "temperature": 2}


class Suite:
    def __init__(self, server, budget, options):
        self.server, self.budget, self.options = server, budget, options
        self.failures, self.statuses, self.slowest = [], {}, (0.0, "")

    def send(self, name, path, body, allowed=(200, 400, 408, 413, 422, 429, 529)):
        started = time.monotonic()
        try:
            status, text = self.server.post(path, body)
        except TimeoutError:
            status, text = -1, "no answer in 120 s"
        took = time.monotonic() - started
        self.slowest = max(self.slowest, (took, name))
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status not in allowed:
            self.failures.append(f"{name} to {path}: status {status}: {text[:200]}")
        if len(text) > 4 << 20:
            self.failures.append(f"{name} to {path}: an answer of {len(text)} bytes")
        self.check(name)

    def check(self, name):
        peak = self.server.memory()
        if peak > self.budget:
            self.failures.append(f"after {name}: {peak >> 20} MiB of {self.budget >> 20}")

    def texts(self, sizes):
        for bytes_ in sizes:
            for unit in (b"a", b" ", b"word ", b"\\u00e9", b"\\n", b"\xcc\x81", b"<think>", b"\\ud83d\\ude00"):
                for path, body in bodies_of(unit * (bytes_ // len(unit))):
                    self.send(f"{bytes_} bytes of {unit!r}", path, body)

    def held(self, count, length):
        """Bodies that stop one byte before their end; how many were taken at most, and whether they are ended."""
        sockets = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", self.server.port))
            one.setblocking(False)
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            sockets.append((one, memoryview(head.encode() + b" " * (length - 1))))
        end = time.monotonic() + 20
        left = list(sockets)
        while left and time.monotonic() < end:
            further = []
            for one, data in left:
                try:
                    sent = one.send(data[: 1 << 20])
                    further.append((one, data[sent:]))
                except BlockingIOError:
                    further.append((one, data))
                except OSError:
                    continue
            left = [(one, data) for one, data in further if data]
            if len(left) == len(further) and not any(len(data) > 1 for _, data in left):
                break
        self.check("held bodies")
        if self.server.answer() is None:
            self.failures.append("no ordinary answer beside held bodies")
        return [one for one, _ in sockets]

    def dripping(self, count):
        """Bodies of one byte each second: all must be ended."""
        sockets = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", self.server.port))
            one.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n".encode())
            sockets.append(one)
        end = time.monotonic() + self.options.drip
        while sockets and time.monotonic() < end:
            for one in list(sockets):
                try:
                    one.sendall(b" ")
                    one.setblocking(False)
                    if one.recv(1000) is not None:
                        sockets.remove(one)
                except BlockingIOError:
                    one.setblocking(True)
                except OSError:
                    sockets.remove(one)
            time.sleep(1)
        if sockets:
            self.failures.append(f"{len(sockets)} of {count} dripping bodies still open")

    def clients(self, count, expected):
        """Ordinary requests at once; each must get the answer in the end."""
        wrong = []

        def one():
            if (answer := self.server.answer()) != expected:
                wrong.append(answer)

        threads = [threading.Thread(target=one) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads, wrong

    def run(self):
        first = self.server.answer()
        if first is None:
            self.failures.append("no answer at all")
            return
        limit = 1 << 20
        for name, path, body in shapes(limit):
            self.send(name, path, body)
        self.texts(self.options.sizes)
        held = self.held(self.options.held, 60 << 20) + self.held(self.options.held, limit)
        threads, wrong = self.clients(self.options.clients, first)
        beside = [threading.Thread(target=self.send, args=item) for item in shapes(limit)]
        for thread in beside:
            thread.start()
        self.dripping(50)
        for thread in threads + beside:
            thread.join()
        for one in held:
            one.close()
        if wrong:
            self.failures.append(f"{len(wrong)} of {self.options.clients} clients had another answer, as {wrong[0]}")
        self.check("the suite")
        if self.server.answer() != first:
            self.failures.append("another answer afterwards")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--budgets", default="300M,600M,1G")
    parser.add_argument("--sizes", default="1000000,8000000,60000000")
    parser.add_argument("--held", type=int, default=30)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--drip", type=float, default=60)
    options = parser.parse_args()
    options.sizes = [int(item) for item in options.sizes.split(",")]
    failed = False
    for budget in options.budgets.split(","):
        server = Server(options, budget)
        suite = Suite(server, size(budget), options)
        started, before = time.monotonic(), server.memory("VmRSS")
        try:
            suite.run()
            time.sleep(1)
            peak, after = server.memory(), server.memory("VmRSS")
        finally:
            server.process.terminate()
            server.process.wait()
        took, name = suite.slowest
        print(f"{budget}: peak {peak >> 20} MiB, at rest {before >> 20} and then {after >> 20} MiB, statuses {dict(sorted(suite.statuses.items()))}, "
              f"slowest {took:.1f} s ({name}), {time.monotonic() - started:.0f} s in all", flush=True)
        for failure in suite.failures[:20]:
            print(f"  FAILED: {failure}")
        failed |= bool(suite.failures)
    sys.exit(failed)


if __name__ == "__main__":
    main()
