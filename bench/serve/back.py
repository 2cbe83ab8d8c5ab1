#!/usr/bin/env python3
"""Kills processes of a running group and times until it answers again, whatever started it and starts it again.

    back.py URL WORDS [WORDS...] [--kills 6] [--key KEY] [--model NAME] [--patience 120]

URL is the server's, or that of a router before it. WORDS find one process each by its command line, as
"--listen 127.0.0.1:7777". In each round a streamed answer is under way; one of the processes, by turns, gets SIGKILL; then
/v1/models is asked and the answer is asked for until it is whole. Every whole text must be the first one's. Prints a line
a round; ends with status 1 if the group did not come back. Standard library only.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import sys
import time
import urllib.error
import urllib.request

QUESTION = "Tell me a long story about a river."


def process_of(words):
    """The process whose command line has these words, as far as it is no shell or launcher around it."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parts = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parts[0].endswith(b"flashmoe") and words in b" ".join(parts).decode(errors="replace"):
            return int(folder.name)
    return None


def answer(options, streamed):
    """What came of a request: its text, whether it is whole, and what else was said."""
    body = {"model": options.model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0,
            "max_tokens": 200, "stream": streamed}
    headers = {"content-type": "application/json", "authorization": f"Bearer {options.key}"}
    request = urllib.request.Request(f"{options.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    text, whole, said = "", False, ""
    try:
        with urllib.request.urlopen(request, timeout=options.patience) as response:
            if not streamed:
                return json.load(response)["choices"][0]["message"]["content"], True, ""
            for line in response:
                line = line.decode().strip()
                if line == "data: [DONE]":
                    whole = not said
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        said = json.dumps(event["error"])[:80]
                        continue
                    for choice in event.get("choices", []):
                        text += choice.get("delta", {}).get("content") or ""
                        if text and options.harm:
                            options.harm()
    except urllib.error.HTTPError as error:
        said = f"{error.code} {error.read()[:80]!r}"
    except (OSError, ValueError) as error:
        said = type(error).__name__
    return text, whole, said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("words", nargs="+")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--patience", type=float, default=120)
    options = parser.parse_args()
    options.harm, times = None, []
    right, whole, said = answer(options, True)
    if not whole:
        sys.exit(f"no answer to begin with: {said}")
    for kill in range(options.kills):
        words = options.words[kill % len(options.words)]
        killed = []

        def harm(words=words, killed=killed):
            if not killed:
                victim = process_of(words)
                if victim is None:
                    sys.exit(f"no process has {words}")
                killed.append((victim, time.monotonic()))
                os.kill(victim, signal.SIGKILL)

        options.harm = harm
        text, whole, said = answer(options, True)
        options.harm = None
        outcome = "whole" if whole else f"{len(text)} letters, then {said or 'its end'}"
        if not right.startswith(text):
            sys.exit(f"another text: {text[:80]!r}")
        victim, at = killed[0]
        told = time.monotonic() - at
        while True:
            text, whole, said = answer(options, False)
            if whole and text == right:
                break
            if whole or time.monotonic() - at > options.patience:
                sys.exit(f"{words}: not back: {said} {text[:80]!r}")
            time.sleep(0.1)
        again = process_of(words)
        if again in (None, victim):
            sys.exit(f"{words}: it answers, and the process {victim} was not replaced")
        times.append(time.monotonic() - at)
        print(f"{words}: request {outcome} after {told:.2f} s; right answer {times[-1]:.1f} s after the kill", flush=True)
    print(f"{len(times)} kills, back each time: {statistics.median(times):.1f} s (median), {max(times):.1f} s (longest)")


if __name__ == "__main__":
    main()
