#!/usr/bin/env python3
"""Kills a server while it writes what it keeps on disk, and checks that its successor's answers stay the same.

    bench/serve/kill.py --flashmoe target/release/flashmoe --model models/demo --work FOLDER [--kills 40] [--seed 1]

Each round starts a server on the same `--cache-disk`, continues conversations of earlier rounds and begins new ones, and asks
every prompt twice: with reuse and without (`cache_prompt: false`). Text, thinking and log-probabilities must be equal. Then it asks the server to
stop, which is when most is written, and sends SIGKILL after a delay drawn evenly from the time an undisturbed stop takes.
Prints how many kills hit a running server, what they left, and the reuse. Standard library only; ends with status 1 at a difference.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

QUESTIONS = ("What is 255 factored?", "Sort 9 4 7 1.", "My name is Alice.", "What is my name?", "Add 128 and 377.", "Tell me a story.")


class Server:
    def __init__(self, options):
        command = [options.flashmoe, "serve", options.model, "--port", "0", "--cache-disk", options.work / "kept",
                   "--cache-disk-reserve", "0"]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        else:
            sys.exit("the server did not start")

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse().read().decode()
        connection.close()
        return answer

    def answer(self, messages, reuse):
        body = {"messages": messages, "temperature": 0, "max_tokens": 60, "logprobs": True, "cache_prompt": reuse}
        answer = json.loads(self.ask("POST", "/v1/chat/completions", body))
        return answer["choices"][0], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashmoe", required=True, type=pathlib.Path)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chooser = random.Random(options.seed)
    conversations, hit, late, asked, reused, left, stop = [], 0, 0, 0, 0, 0, None
    while hit < options.kills:
        server = Server(options)
        for _ in range(3):
            old = conversations and chooser.random() < 0.7
            messages = list(chooser.choice(conversations)) if old else []
            # No other conversation has this beginning.
            name = f"{chooser.choice(QUESTIONS)} (case {chooser.randrange(10**6)})"
            messages.append({"role": "user", "content": name})
            warm, cached = server.answer(messages, True)
            cold, _ = server.answer(messages, False)
            if warm != cold:
                sys.exit(f"round {hit}: answers differ\n{warm}\n{cold}")
            asked, reused = asked + 1, reused + (cached > 0)
            messages.append({"role": "assistant", "content": warm["message"]["content"] or ""})
            if len(messages) < 12:
                conversations.append(messages)
        server.process.send_signal(signal.SIGTERM)
        if stop is None:
            begun = time.monotonic()
            server.process.wait()
            stop = time.monotonic() - begun
            continue
        time.sleep(chooser.uniform(0, stop))
        if server.process.poll() is None:
            server.process.kill()
            hit += 1
        else:
            late += 1
        server.process.wait()
        left += any((options.work / "kept").rglob("*.new"))
    print(f"seed {options.seed}: {hit} kills hit, {late} came after the end, {left} left an unfinished file; "
          f"{asked} prompts, {reused} with reuse, stop {stop:.2f} s; all answers equal to those without")


main()
