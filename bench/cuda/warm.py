#!/usr/bin/env python3
"""Warm answers against cold ones on a GPU: bits, and the time to the first token.

    bench/cuda/warm.py FLASHMOE MODEL [--requests 200] [--seed 1] [--words 0] [-- OPTIONS OF serve]

Walks random trees of conversations, several clients at a time, and asks every prompt with reuse and without it
(`cache_prompt: false`), half of them greedily and half with a seed. Text and log-probabilities must be equal: then
every logit was. A third time it asks without log-probabilities: the device then draws, and the text must be the same.
With `--words` it then asks for the first token of a conversation whose first turn has so many random words, again a
turn later, and both without reuse, five times. Standard library only; ends with status 1 at a difference."""
import argparse
import concurrent.futures
import json
import random
import statistics
import sys
import time

from server import Server, words

QUESTIONS = ("What is 255 factored?", "Sort 9 4 7 1.", "My name is Alice.", "What is my name?", "Add 128 and 377.")
CLIENTS = 3
SAMPLING = (
    {"temperature": 0},
    {"temperature": 1, "top_p": 0.95},
    {"temperature": 1},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.02},
)


def answer(server, messages, reuse, **more):
    """The first choice, tokens of the prompt, those reused, seconds."""
    started = time.monotonic()
    body = {"messages": messages, "cache_prompt": reuse, **more}
    answer = json.loads(server.ask("POST", "/v1/chat/completions", body))
    seconds = time.monotonic() - started
    if "choices" not in answer:
        sys.exit(f"{answer}\n{''.join(server.tail[-5:])}")
    usage = answer["usage"]
    return answer["choices"][0], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], seconds


def tree(server, seed, requests):
    """One client's walk; gives prompts asked, prompts with reuse, tokens and tokens reused."""
    chooser, conversations, counts = random.Random(seed), [], [0, 0, 0, 0]
    for _ in range(requests):
        messages = list(chooser.choice(conversations)) if conversations and chooser.random() < 0.8 else []
        question = f"{chooser.choice(QUESTIONS)} (case {chooser.randrange(10**6)})"
        question += " " + words(chooser, chooser.choice((0, 3, 40)))
        messages.append({"role": "user", "content": question})
        sampling = dict(chooser.choice(SAMPLING), seed=chooser.randrange(10**6))
        more = dict(sampling, max_tokens=chooser.choice((1, 12, 40)))
        warm, tokens, cached, _ = answer(server, messages, True, logprobs=True, **more)
        cold, *_ = answer(server, messages, False, logprobs=True, **more)
        drawn, *_ = answer(server, messages, True, **more)
        if warm != cold:
            sys.exit(f"seed {seed}: answers differ after {counts[0]}, {cached} of {tokens} reused\n{warm}\n{cold}")
        if warm["message"] != drawn["message"]:
            sys.exit(f"seed {seed}: the device drew another answer, {more}\n{warm['message']}\n{drawn['message']}")
        counts = [a + b for a, b in zip(counts, (1, cached > 0, tokens, cached))]
        messages.append({"role": "assistant", "content": warm["message"]["content"] or ""})
        if len(messages) < 10:
            conversations.append(messages)
    return counts


def first_token(server, chooser, count):
    """Milliseconds to the first token: of a first turn, of the second with reuse, and of the second without."""
    first = [{"role": "user", "content": words(chooser, count)}]
    _, tokens, _, cold_first = answer(server, first, True, max_tokens=1, temperature=0)
    second = [*first, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": words(chooser, 20)}]
    _, tokens, cached, warm = answer(server, second, True, max_tokens=1, temperature=0)
    _, _, _, cold = answer(server, second, False, max_tokens=1, temperature=0)
    return tokens, cached, cold_first * 1e3, warm * 1e3, cold * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--words", type=int, default=0)
    own, _, more = " ".join(sys.argv[1:]).partition(" -- ")
    options = parser.parse_args(own.split())
    server = Server(options.program, options.model, more.split())
    try:
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            share = -(-options.requests // CLIENTS)
            walks = [pool.submit(tree, server, options.seed * 100 + client, share) for client in range(CLIENTS)]
            asked, reused, tokens, cached = (sum(parts) for parts in zip(*(walk.result() for walk in walks)))
        print(f"seed {options.seed}: {asked} prompts equal to those without reuse, {reused} with reuse, "
              f"{cached} of {tokens} tokens reused", flush=True)
        if options.words:
            chooser = random.Random(options.seed)
            rows = [first_token(server, chooser, options.words) for _ in range(5)]
            tokens, cached, *times = (statistics.median(column) for column in zip(*rows))
            first, warm, cold = times
            print(f"second turn of {tokens:.0f} tokens, {cached:.0f} reused: first token after {warm:.1f} ms, without "
                  f"reuse {cold:.1f} ms (first turn {first:.1f} ms); medians of {len(rows)}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
