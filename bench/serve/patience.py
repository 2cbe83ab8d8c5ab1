#!/usr/bin/env python3
"""How a running server treats people who wait, and people who leave.

    bench/serve/patience.py silence --port N [--protocol chat|messages|responses] [--words 3500] [--minutes 10]
    bench/serve/patience.py cancel --port N [--count 100] [--words 600]

`silence` streams the answer to a long prompt and notes the longest time without a byte, whole frames and comments; beside it
`/health` is asked four times a second and count_tokens with 100 KB every two seconds. It leaves after `--minutes` or at
the first token. `cancel` closes streams at random moments of prefill and decode and notes how long the server goes on with
them (`/slots`, asked every 10 ms).
Standard library only.
"""

import argparse
import http.client
import json
import random
import socket
import threading
import time

WORDS = "the sea was calm and old ships lay at anchor while people told stories of storms and far lands".split()


def text(count, seed):
    chooser = random.Random(seed)
    return " ".join(chooser.choice(WORDS) for _ in range(count))


def call(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    payload = None if body is None else json.dumps(body)
    connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
    answer = connection.getresponse().read()
    connection.close()
    return json.loads(answer)


def request(protocol, prompt, tokens):
    messages = [{"role": "user", "content": prompt}]
    if protocol == "chat":
        return "/v1/chat/completions", {"messages": messages, "max_completion_tokens": tokens}
    if protocol == "messages":
        return "/v1/messages", {"model": "m", "messages": messages, "max_tokens": tokens}
    return "/v1/responses", {"input": prompt, "max_output_tokens": tokens}


def open_stream(port, protocol, prompt):
    path, body = request(protocol, prompt, 100000)
    payload = json.dumps({**body, "stream": True, "temperature": 1.0}).encode()
    stream = socket.create_connection(("127.0.0.1", port), timeout=120)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    stream.sendall(head.encode() + payload)
    return stream


def percentiles(name, values):
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))] * 1000
    print(f"{name}: {len(values)} times, median {at(0.5):.1f} ms, p99 {at(0.99):.1f} ms, longest {values[-1] * 1000:.1f} ms")


def timed(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def silence(options):
    health, counted, over = [], [], threading.Event()

    def ask():
        body = {"model": "m", "messages": [{"role": "user", "content": text(20000, 1)[:100000]}]}
        turn = 0
        while not over.is_set():
            health.append(timed(lambda: call(options.port, "GET", "/health")))
            if turn % 8 == 0:
                counted.append(timed(lambda: call(options.port, "POST", "/v1/messages/count_tokens", body)))
            turn += 1
            time.sleep(0.25)

    stream = open_stream(options.port, options.protocol, text(options.words, options.seed))
    asking = threading.Thread(target=ask)
    asking.start()
    begun = last = time.monotonic()
    gaps, received, answered = [], 0, False
    while time.monotonic() - begun < options.minutes * 60 and not answered:
        data = stream.recv(65536)
        now = time.monotonic()
        if not data:
            break
        gaps.append(now - last)
        last, received = now, received + len(data)
        # Prefill sends keep-alives only; any of these begins the answer.
        answered = any(sign in data for sign in (b"reasoning_content", b'"content":"', b"_delta", b".delta")) and (
            b'"content":""' not in data or data.count(b"delta") > 1)
    waited = time.monotonic() - begun
    stream.close()
    left = timed(lambda: wait_idle(options.port))
    over.set()
    asking.join()
    print(f"{options.protocol}: {waited:.1f} s, {len(gaps)} pieces, {received} bytes, longest silence {max(gaps):.2f} s, "
          f"{'answered' if answered else 'left in prefill'}; idle {left * 1000:.0f} ms after leaving")
    percentiles("/health", health)
    percentiles("count_tokens, 100 KB", counted)


def wait_idle(port):
    while call(port, "GET", "/slots"):
        time.sleep(0.01)


def cancel(options):
    chooser = random.Random(options.seed)
    took = {"prefill": [], "decode": [], "queued or ended": []}
    for number in range(options.count):
        wait_idle(options.port)
        prompt = text(chooser.choice((10, options.words)), options.seed * 1000 + number)
        stream = open_stream(options.port, chooser.choice(("chat", "messages", "responses")), prompt)
        time.sleep(chooser.uniform(0.05, options.longest))
        slots = call(options.port, "GET", "/slots")
        stage = slots[0]["state"] if slots else "queued or ended"
        stream.close()
        took[stage].append(timed(lambda: wait_idle(options.port)))
    for stage, values in took.items():
        if values:
            percentiles(f"left in {stage}", values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("silence", "cancel"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--protocol", default="chat", choices=("chat", "messages", "responses"))
    parser.add_argument("--words", type=int, default=600)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--longest", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    {"silence": silence, "cancel": cancel}[options.what](options)


main()
