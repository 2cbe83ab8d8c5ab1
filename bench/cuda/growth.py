#!/usr/bin/env python3
"""Long conversations beside each other on a GPU whose keys and values grow into the slots of experts.

    bench/cuda/growth.py FLASHMOE MODEL --vram 6G --context 32768 [--slots 4000] [--longest 5000]

Starts a server with a cache that is allocated ahead, one whose cache grows, and, with `--slots`, one that keeps experts
on disk besides. Each is asked the same by three clients: short and long prompts, and second turns that go on from the
first. Every answer and every log-probability must be equal. Says how many slots there were at most and at least, and
the most GPU memory that was taken. Standard library only; ends with status 1 at a difference."""
import argparse
import concurrent.futures
import json
import random
import re
import subprocess
import sys
import threading
import time

from server import Server, words

CLIENTS = 3


class Watched(Server):
    """A server whose memory is looked at while it works: `seen` has the rows of `look`."""

    def __init__(self, program, model, options):
        super().__init__(program, model, ["--sequences", str(CLIENTS), *options])
        self.seen, self.stopped = [], threading.Event()
        self.watch = threading.Thread(target=self.look, daemon=True)
        self.watch.start()

    def look(self):
        """Slots, bytes of keys and values, experts that gave way, MiB of GPU memory, a few times a second."""
        while not self.stopped.wait(0.2):
            page = self.ask("GET", "/metrics")
            names = ("expert_vram_slots", "kv_vram_bytes", "expert_vram_given_up_total")
            row = [int(float(re.search(rf"^\w*{name} (\S+)", page, re.M).group(1))) for name in names]
            query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
            used = subprocess.run(query, capture_output=True, text=True, check=True).stdout
            self.seen.append((*row, int(used.split()[0])))

    def stop(self):
        self.stopped.set()
        self.watch.join()
        super().stop()


def client(server, seed, longest):
    chooser, answers = random.Random(seed), []
    for share in (0.02, 1.0, 0.3, 0.05, 0.7, 0.01):
        messages = [{"role": "user", "content": words(chooser, int(share * longest))}]
        for _ in range(2):
            body = {"messages": messages, "max_tokens": 16, "temperature": 0, "logprobs": True}
            answer = json.loads(server.ask("POST", "/v1/chat/completions", body))
            if "choices" not in answer:
                sys.exit(f"{answer}\n{''.join(server.tail[-5:])}")
            answers.append((answer["usage"]["prompt_tokens"], answer["choices"][0]))
            reply = {"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""}
            messages = [*messages, reply, {"role": "user", "content": words(chooser, 20)}]
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--vram", required=True)
    parser.add_argument("--context", required=True)
    parser.add_argument("--slots")
    parser.add_argument("--longest", type=int, default=5000, help="words of the longest prompt")
    options = parser.parse_args()
    arms = [["--kv", "ahead"], ["--kv", "grow"]]
    if options.slots:
        arms.append(["--kv", "grow", "--slots", options.slots])
    expected = None
    for arm in arms:
        server = Watched(options.program, options.model, ["--vram", options.vram, "--context", options.context, *arm])
        try:
            started = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                walks = [pool.submit(client, server, seed, options.longest) for seed in range(CLIENTS)]
                answers = [walk.result() for walk in walks]
            seconds = time.monotonic() - started
        finally:
            server.stop()
        slots, cache, given_up, used = zip(*server.seen)
        tokens = [answer[0] for walk in answers for answer in walk]
        print(f"{' '.join(arm)}: {len(tokens)} answers to {min(tokens)} to {max(tokens)} tokens in {seconds:.1f} s; "
              f"{max(slots)} to {min(slots)} slots, {slots[-1]} at the end; keys and values {min(cache) >> 20} to "
              f"{max(cache) >> 20} MiB; {given_up[-1]} experts gave way; GPU memory at most {max(used)} MiB", flush=True)
        expected = expected or answers
        if answers != expected:
            sys.exit("answers differ")


if __name__ == "__main__":
    main()
