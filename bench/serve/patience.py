#!/usr/bin/env python3
"""How a running server treats people who wait, and people who leave.

    bench/serve/patience.py silence --port N [--protocol chat|messages|responses] [--words 3500] [--minutes 10]
    bench/serve/patience.py cancel --port N [--count 100] [--words 600]
    bench/serve/patience.py together --port N [--most 4] [--words 40] [--tokens 48]
    bench/serve/patience.py short --port N [--words 2000]

`silence` streams the answer to a long prompt and notes the longest time without a byte, whole frames and comments; beside it
`/health` is asked four times a second and count_tokens with 100 KB every two seconds. It leaves after `--minutes` or at
the first token. `cancel` closes streams at random moments of prefill and decode and notes how long the server goes on with
them (`/slots`, asked every 10 ms). `together` decodes one to `--most` different answers at once and prints tokens per
second of all. `short` notes the time to the first token of a short request alone and beside a long prefill.
Standard library only.
"""

import argparse
import concurrent.futures
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


def open_stream(port, protocol, prompt, tokens=None, **more):
    path, body = request(protocol, prompt, tokens or 100000)
    payload = json.dumps({**body, "stream": True, "temperature": 1.0, **more}).encode()
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
        # Prefill sends signs of life only; any of these begins the answer.
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


def answer(options, seed, words, begun):
    """Time to the first token and to the end, and tokens, of one streamed answer."""
    stream = open_stream(options.port, "chat", text(words, seed), options.tokens,
                         stream_options={"include_usage": True})
    first, data = None, b""
    while b"[DONE]" not in data:
        piece = stream.recv(65536)
        if not piece:
            break
        data += piece
        if first is None and data.count(b'"delta":{') > 1:
            first = time.monotonic() - begun
    stream.close()
    usage = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")][-1]["usage"]
    return first, time.monotonic() - begun, usage["completion_tokens"]


def together(options):
    alone = None
    for count in [*range(1, options.most + 1)]:
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            seeds = [options.seed * 100 + count * 10 + index for index in range(count)]
            answers = list(pool.map(lambda seed: answer(options, seed, options.words, begun), seeds))
        tokens = sum(done[2] for done in answers)
        # Decoding begins for all when the last prompt is done.
        seconds = max(done[1] for done in answers) - max(done[0] for done in answers)
        rate = (tokens - count) / seconds
        alone = alone or rate
        print(f"{count} at once: {tokens} tokens, {rate:.2f} tok/s of all, {rate / alone:.2f} of one", flush=True)


def short(options):
    begun = time.monotonic()
    alone = answer(options, options.seed, 10, begun)[0]
    long = open_stream(options.port, "chat", text(options.words, options.seed + 1))
    time.sleep(3)
    begun = time.monotonic()
    beside = answer(options, options.seed + 2, 10, begun)[0]
    slots = call(options.port, "GET", "/slots")
    long.close()
    print(f"first token of a short request: alone {alone:.2f} s, beside a prefill of {options.words} words {beside:.2f} s; "
          f"afterwards the long one was in {slots[0]['state'] if slots else 'no stage'}, "
          f"{slots[0]['n_prompt_tokens_processed'] if slots else 0} tokens done")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("silence", "cancel", "together", "short"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--protocol", default="chat", choices=("chat", "messages", "responses"))
    parser.add_argument("--words", type=int, default=600)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--longest", type=float, default=3.0)
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    {"silence": silence, "cancel": cancel, "together": together, "short": short}[options.what](options)


main()
