#!/usr/bin/env python3
"""What a server does for several clients at once: total decode speed by the wall clock and after the first token, times
to the first token, and a short request beside a long prompt.

    flashmoe serve FOLDER --memory 3G --routing calibrated --port 8766 &
    bench/serve/clients.py http://127.0.0.1:8766 decode --clients 1 2 4 --tokens 24 --rounds 3
    bench/serve/clients.py http://127.0.0.1:8766 beside --words 1500

Arms are interleaved: every round runs each number of clients once. Only the standard library is used.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import threading
import time
import urllib.parse


def body(words, tokens, seed):
    pick = random.Random(seed)
    text = " ".join(f"word{pick.randrange(1000)}" for _ in range(words))
    return {
        "model": "any",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }


def open_stream(server, request):
    connection = http.client.HTTPConnection(server, timeout=600)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(request), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read().decode()}")
    return connection, response


def read_stream(response):
    """The last chunk, which has the figures."""
    last = {}
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            chunk = json.loads(line[6:])
            last = chunk if "timings" in chunk else last
    return last


def ask(server, request, results):
    connection, response = open_stream(server, request)
    last = read_stream(response)
    connection.close()
    results.append(last)


def lasting(server, options, first, count):
    """Seeds from `first` on of prompts that are kept then, and whose answers do not end by themselves at once: a random
    network ends a third of them with the first token, and fewer clients than said would be measured."""
    seeds, seed, probe = [], first, min(options.tokens, 4)
    while len(seeds) < count:
        if seed == first + 20 * count:
            raise SystemExit("the model ends almost every answer at once")
        results = []
        ask(server, body(options.kept, probe, seed), results)
        if results[0]["timings"]["predicted_n"] == probe:
            seeds.append(seed)
        seed += 1
    return seeds


def decode(server, options):
    for round_number in range(options.rounds):
        for clients in options.clients:
            # The prompts are processed before, so that all clients decode from the first moment on.
            seeds = lasting(server, options, 100_000 * round_number + 1000 * clients, clients)
            results = []
            requests = [body(options.kept, options.tokens, seed) for seed in seeds]
            began = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                # A refused client ends the measurement: its thread alone would end unseen.
                list(pool.map(lambda request: ask(server, request, results), requests))
            wall = time.monotonic() - began
            figures = [last["timings"] for last in results]
            rate = sum((t["predicted_n"] - 1) / t["predicted_ms"] * 1e3 for t in figures)
            read = max(last["x_io"]["bytes_read"] for last in results) / sum(t["predicted_n"] for t in figures)
            hits = sum(last["x_io"]["hit_ratio"] for last in results) / clients
            tokens = sum(t["predicted_n"] for t in figures)
            short = sum(t["predicted_n"] < options.tokens for t in figures)
            first = sorted(to_first_token(last) * 1e3 for last in results)
            print(
                f"round {round_number}, {clients} clients: {tokens / wall:.2f} tok/s by the wall clock, {rate:.2f} by the "
                f"sum of rates after the first token, {rate / clients:.2f} each, first token after "
                f"{first[len(first) // 2]:.0f} ms (p50), {first[min(len(first) - 1, len(first) * 95 // 100)]:.0f} (p95), "
                f"hits {100 * hits:.1f} %, {read / 1e9:.3f} GB read per token, {short} answers ended before",
                flush=True,
            )


def to_first_token(last):
    return (last["timings"]["queued_ms"] + last["timings"]["prompt_ms"]) / 1e3


def beside(server, options):
    alone = []
    ask(server, body(8, 2, 2), alone)
    ask(server, body(8, 2, 1), alone)
    long_results = []
    long_request = body(options.words, 2, options.seed)
    thread = threading.Thread(target=ask, args=(server, long_request, long_results))
    thread.start()
    time.sleep(options.after)
    results = []
    for n in range(3):
        if not long_results:
            ask(server, body(8, 2, 10 + n), results)
    thread.join()
    print("a short request alone: first token after " + ", ".join(f"{to_first_token(r):.2f}" for r in alone) + " s")
    shown = ", ".join(f"{to_first_token(last):.2f}" for last in results)
    timings = long_results[0]["timings"]
    print(f"beside a prompt of {timings['prompt_n']} tokens, which took {timings['prompt_ms'] / 1e3:.1f} s: {shown} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("what", choices=["decode", "beside"])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", type=int, default=12, help="words of each client's prompt that are kept before")
    parser.add_argument("--words", type=int, default=1500)
    parser.add_argument("--after", type=float, default=2.0, help="seconds of the long prompt before the short one")
    parser.add_argument("--seed", type=int, default=3, help="of the long prompt")
    options = parser.parse_args()
    server = urllib.parse.urlparse(options.url).netloc
    {"decode": decode, "beside": beside}[options.what](server, options)


if __name__ == "__main__":
    main()
