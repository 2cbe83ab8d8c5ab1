#!/usr/bin/env python3
"""A coding agent's day: a first prompt of 33,000 tokens, then turns of 500 new tokens with 300 answered.

    flashmoe serve FOLDER --context 65536 --port 8766 &
    bench/serve/agent_day.py http://127.0.0.1:8766 [--first 33000] [--turns 10] [--new 500] [--answer 300] [--think 0]

Prompts are random token ids, and each turn's prompt is the last one, what was answered, and new ids: the server finds
the conversation that it kept, as it does for an agent. What stands for an answer in the next prompt is its text as ids.
Answers do not end before their length, as those of a random network would. On a GPU a turn computes the last answer
too, whose rows a prompt has other bits of. Per turn: seconds to the first token, tokens computed, tokens a second of
the answer. With several --agents, once all have their first answer: turns a minute, times to the first token, tokens by
the wall clock. With --think an agent's tools run so long between two turns, exponentially distributed. Only the standard
library is used.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import threading
import time
import urllib.parse


def post(server, path, body):
    connection = http.client.HTTPConnection(server, timeout=3600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {answer}")
    return answer


def day(server, options, seed, firsts, counts):
    """One agent's turns; appends times to the first token of all turns but the first, and tokens answered."""
    try:
        turns(server, options, seed, firsts, counts)
    except BaseException:
        options.ready.abort()
        raise


def turns(server, options, seed, firsts, counts):
    pick = random.Random(seed)
    ids = [pick.randrange(100, 4000) for _ in range(options.first)]
    for turn in range(options.turns + 1):
        if turn and options.think:
            time.sleep(pick.expovariate(1 / options.think))
        began = time.monotonic()
        body = {"model": "any", "prompt": ids, "max_tokens": options.answer, "temperature": 0, "ignore_eos": True}
        answer = post(server, "/v1/completions", body)
        times = answer["timings"]
        first = (times.get("queued_ms", 0) + times["prompt_ms"]) / 1e3
        rate = (times["predicted_n"] - 1) / max(times["predicted_ms"], 0.001) * 1e3
        if options.agents == 1:
            print(
                f"turn {turn}: prompt {len(ids)}, computed {times['prompt_n']}, first token after {first:.2f} s, "
                f"{times['prompt_n'] / times['prompt_ms'] * 1e3:.0f} tok/s; answer {rate:.1f} tok/s",
                flush=True,
            )
        if turn == 0:
            options.ready.wait()
        else:
            firsts.append(first)
            counts.append((times["predicted_n"], began, time.monotonic()))
        text = answer["choices"][0]["text"]
        ids += post(server, "/tokenize", {"content": text})["tokens"][: options.answer]
        ids += [pick.randrange(100, 4000) for _ in range(pick.choice(options.new))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--agents", type=int, default=1, help="at a time")
    parser.add_argument("--first", type=int, default=33000, help="tokens of the first prompt")
    parser.add_argument("--turns", type=int, default=10, help="turns after it")
    parser.add_argument("--new", type=int, nargs="+", default=[500], help="new tokens of a turn: one of these")
    parser.add_argument("--answer", type=int, default=300, help="tokens answered")
    parser.add_argument("--think", type=float, default=0, help="mean seconds between an answer and the next turn")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.ready = threading.Barrier(options.agents)
    server = urllib.parse.urlparse(options.url).netloc
    firsts, counts = [], []
    with concurrent.futures.ThreadPoolExecutor(options.agents) as pool:
        seeds = [options.seed + n for n in range(options.agents)]
        list(pool.map(lambda seed: day(server, options, seed, firsts, counts), seeds))
    if options.agents > 1 and counts:
        wall = max(end for _, _, end in counts) - min(began for _, began, _ in counts)
        firsts.sort()
        half, most = firsts[len(firsts) // 2], firsts[min(len(firsts) - 1, len(firsts) * 95 // 100)]
        print(
            f"{options.agents} agents, {len(firsts)} turns after {options.first} tokens: {60 * len(firsts) / wall:.0f} turns "
            f"a minute, first token after {1e3 * half:.0f} ms (p50), {1e3 * most:.0f} (p95), "
            f"{sum(count for count, _, _ in counts) / wall:.0f} tok/s by the wall clock"
        )


if __name__ == "__main__":
    main()
