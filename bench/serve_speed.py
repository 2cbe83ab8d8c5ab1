"""What a server does for several clients at once: total decode speed, a short request beside a long prompt, cancelling.

    flashmoe serve FOLDER --memory 3G --routing calibrated --port 8766 &
    bench/serve_speed.py http://127.0.0.1:8766 decode --clients 1 2 4 --tokens 24 --rounds 3
    bench/serve_speed.py http://127.0.0.1:8766 beside --words 1500
    bench/serve_speed.py http://127.0.0.1:8766 cancel --times 40 --words 1500

Arms are interleaved: every round runs each number of clients once. Only the standard library is used.
"""

import argparse
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
        "ignore_eos": True,
    }


def open_stream(server, request):
    connection = http.client.HTTPConnection(server, timeout=600)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(request), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read().decode()}")
    return connection, response


def read_stream(response, started):
    """Seconds to the first piece of the answer, the last chunk's figures."""
    first, last = None, {}
    for line in response:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        chunk = json.loads(line[6:])
        delta = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
        if first is None and (delta.get("content") or delta.get("reasoning_content")):
            first = time.monotonic() - started
        if "timings" in chunk:
            last = chunk
    return first, last


def ask(server, request, results):
    started = time.monotonic()
    connection, response = open_stream(server, request)
    first, last = read_stream(response, started)
    connection.close()
    results.append((first, last, started, time.monotonic()))


def decode(server, options):
    for round_number in range(options.rounds):
        for clients in options.clients:
            results = []
            requests = [
                body(12, options.tokens, 1000 * round_number + 10 * clients + n) for n in range(clients)
            ]
            threads = [threading.Thread(target=ask, args=(server, r, results)) for r in requests]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            # From the moment the last of them has its first token, all are decoded together.
            begin = max(started + first for first, _, started, _ in results)
            end = max(ended for *_, ended in results)
            each = [last["timings"]["predicted_n"] for _, last, _, _ in results]
            times = [last["timings"]["predicted_ms"] / 1e3 for _, last, _, _ in results]
            rate = sum((n - 1) / t for n, t in zip(each, times))
            hits = sum(last["x_io"]["hit_ratio"] for _, last, _, _ in results) / clients
            print(
                f"round {round_number}, {clients} clients: {rate:.2f} tok/s together, "
                f"{rate / clients:.2f} each, hits {100 * hits:.1f} %, {end - begin:.1f} s",
                flush=True,
            )


def beside(server, options):
    short = body(8, 2, 1)
    alone = []
    ask(server, body(8, 2, 2), [])
    ask(server, short, alone)
    long_results = []
    long_request = body(options.words, 2, 3)
    thread = threading.Thread(target=ask, args=(server, long_request, long_results))
    thread.start()
    time.sleep(options.after)
    results = []
    for n in range(3):
        if not long_results:
            ask(server, body(8, 2, 10 + n), results)
    thread.join()
    print(f"a short request alone: first token after {alone[0][0]:.2f} s")
    shown = ", ".join(f"{first:.2f}" for first, *_ in results)
    print(f"beside a prompt of {options.words} words: {shown} s; the prompt took {long_results[0][0]:.1f} s")


def running(server):
    connection = http.client.HTTPConnection(server, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    line = next(line for line in text.splitlines() if line.startswith("flashmoe_num_requests_running "))
    return float(line.split()[1])


def cancel(server, options):
    times = {"prefill": [], "decode": []}
    for n in range(options.times):
        stage = "prefill" if n % 2 == 0 else "decode"
        request = body(options.words, 5, 100 + n) if stage == "prefill" else body(8, 500, 100 + n)
        connection, response = open_stream(server, request)
        if stage == "decode":
            while b"content" not in response.readline():
                pass
        time.sleep(random.Random(n).uniform(0.3, 1.0))
        response.close()
        connection.close()
        started = time.monotonic()
        while running(server) > 0:
            time.sleep(0.005)
        times[stage].append(time.monotonic() - started)
    for stage, found in times.items():
        found.sort()
        worst, middle = found[-1], found[len(found) // 2]
        print(f"cancelled in {stage}, {len(found)} times: median {middle * 1e3:.0f} ms, worst {worst * 1e3:.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("what", choices=["decode", "beside", "cancel"])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=1500)
    parser.add_argument("--after", type=float, default=2.0, help="seconds of the long prompt before the short one")
    parser.add_argument("--times", type=int, default=40)
    options = parser.parse_args()
    server = urllib.parse.urlparse(options.url).netloc
    {"decode": decode, "beside": beside, "cancel": cancel}[options.what](server, options)


if __name__ == "__main__":
    main()
