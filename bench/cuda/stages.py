#!/usr/bin/env python3
"""Compares stages of a model on NVIDIA GPUs with one GPU: logits and answers, which must be the same to the bit, and
speeds.

Run in the repository's root on a machine with a GPU: bench/cuda/stages.py PROGRAM [--parts logits,answers,speed]
[--only WORD] [--limit SECONDS] [--model FOLDER] [--vram SIZE] [--small SIZE] [--rounds N]. Two stages are on the first
GPU, and on two GPUs where there are two. `logits`: those of all positions and greedy answers of the golden checkpoints,
at several cuts and budgets. `answers`: text, tokens and log-probabilities of prompts of mixed lengths, one client and
three at once, of checkpoints with a tokenizer and of the demo model. `speed`: `bench` of FOLDER (the 35B shape is made
there where it is empty), one GPU with SIZE and two stages with half of it each, interleaved. Prints a line per case and
ends with an error when one differs; what the limit left out is said."""
import argparse
import concurrent.futures
import filecmp
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from server import Server, words

GOLDEN, DEMO = pathlib.Path("tests/golden"), pathlib.Path("models/demo")
# Served by no GPU.
UNSERVED = ("glm-next",)
# Options of both sides. Records outside of device memory cross the cut in neither.
LOGITS = [[], ["--vram", "200M", "--slots", "128"], ["--prefill-chunk", "5"],
          ["--vram", "200M", "--slots", "128", "--predict", "on"], ["--routing", "calibrated"],
          ["--vram", "200M", "--slots", "128", "--routing", "calibrated"]]
ANSWERS = [[], ["--vram", "200M", "--slots", "128"], ["--draft", "auto"]]
TOKENS = 48
# Words of prompts: pages end in between, and chunks.
LENGTHS = [1, 3, 17, 60, 130, 250, 251, 400, 700, 1100]
SAMPLINGS = [{"temperature": 0}, {"temperature": 0.8, "seed": 6}]
TESTS = {"decode": ["-p", "0", "-n", "256"], "prompt of 16,384": ["-p", "16384", "-n", "0"],
         "decode behind 16,384": ["-p", "0", "-n", "128", "-d", "16384"]}


class Clock:
    """What is left of the time."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.left_out = []
        self.broken = 0

    def left(self):
        return self.end - time.monotonic()

    def allows(self, case):
        if self.left() > 0:
            return True
        self.left_out.append(case)
        return False


def run(clock, command, check=True):
    """Standard output; with `check` false, None where the program refuses."""
    command = list(map(str, command))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(clock.left(), 1))
    except subprocess.TimeoutExpired:
        clock.left_out.append(" ".join(command[1:]))
        return None
    if done.returncode != 0:
        if not check and done.returncode == 2:
            return None
        print("FAILED", " ".join(command), done.stderr.strip()[-600:], flush=True)
        clock.broken += 1
        return None
    return done.stdout


def layers(clock, program, model):
    plan = run(clock, [program, "plan", model, "--device", "cuda:0", "--json"])
    return plan and json.loads(plan)["stages"][0]["layers"][1]


def two_gpus(program, model):
    command = [program, "plan", str(model), "--device", "cuda:1", "--json"]
    return subprocess.run(command, capture_output=True, timeout=120).returncode == 0


def devices(program, model):
    yield "cuda:0,cuda:0"
    if two_gpus(program, model):
        yield "cuda:0,cuda:1"


def models(only, with_text):
    found = sorted(GOLDEN.glob("*/model/tokenizer.json" if with_text else "*/ids.json"))
    folders = [path.parent if with_text else path.parent / "model" for path in found]
    # Large enough for records outside of device memory.
    folders.append(DEMO)
    name = lambda folder: folder.name if folder.name != "model" else folder.parent.name
    served = [folder for folder in folders if not name(folder).startswith(UNSERVED)]
    return [(name(folder), folder) for folder in served if only in name(folder)]


def ids_of(name, model, place):
    """Token ids: a golden checkpoint's own, or random ones."""
    if model != DEMO:
        return GOLDEN / name / "ids.json"
    chooser, file = random.Random(7), place / "ids.json"
    config = json.loads((model / "config.json").read_text())
    vocabulary = config.get("text_config", config)["vocab_size"]
    file.write_text(json.dumps([chooser.randrange(vocabulary) for _ in range(400)]))
    return file


def logits(program, clock, only):
    """The file of `score`, byte by byte."""
    for name, model in models(only, with_text=False):
        count = clock.allows(f"logits of {name}") and layers(clock, program, model)
        if not count:
            continue
        splits = ["auto", f"1,{count - 1}", f"{count - 1},1", *([f"{count // 2},{count - count // 2}"])]
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            ids = ids_of(name, model, place)

            def score(file, device, options):
                command = [program, "score", model, "--ids", ids, "--greedy", 32, "--logits", place / file]
                return run(clock, [*command, "--device", device, *options], check=False) is not None

            for options in LOGITS:
                case = f"{name} {' '.join(options)}".strip()
                if not clock.allows(f"logits of {case}"):
                    continue
                if not score("one", "cuda:0", options):
                    yield f"{case}: one GPU does not", False
                    continue
                for device in devices(program, model):
                    same, compared = [], 0
                    for split in dict.fromkeys(splits):
                        # A cut behind a layer without experts is refused.
                        if score("two", device, [*options, "--split", split]):
                            compared += 1
                            if not filecmp.cmp(place / "one", place / "two", shallow=False):
                                same.append(split)
                    text = f"{case} on {device}: {compared} cuts, differ: {same or 'none'}"
                    yield text, compared > 0 and not same


def requests(count):
    chooser = random.Random(4)
    for index in range(count):
        prompt = words(chooser, LENGTHS[index % len(LENGTHS)])
        for sampling in SAMPLINGS:
            yield {"prompt": prompt, "max_tokens": TOKENS, "logprobs": 3, **sampling}


def served(program, model, device, options, clients, count):
    server = Server(program, str(model), ["--sequences", "4", "-c", "4096", *options], device)
    try:
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            return list(pool.map(lambda request: server.answer(request), requests(count)))
    finally:
        server.stop()


def answers(program, clock, only, count):
    for name, model in models(only, with_text=True):
        for options in ANSWERS:
            case = f"answers of {name} {' '.join(options)}".strip()
            if "--draft" in options and name.startswith("dsv4"):
                continue
            if not clock.allows(case):
                continue
            expected = served(program, model, "cuda:0", options, 1, count)
            errors = [found["error"] for found in expected if "error" in found]
            if len(errors) == len(expected):
                yield f"{case}: {errors[0]}", False
                continue
            for device in devices(program, model):
                for clients in (1, 3):
                    if not clock.allows(f"{case} on {device}, clients {clients}"):
                        continue
                    found = served(program, model, device, options, clients, count)
                    differ = [index for index, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]]
                    text = f"{case} on {device}, clients {clients}: {len(differ)} of {len(found)} differ"
                    yield f"{text} {differ[:5] or ''} ({len(errors)} refused)", not differ


def half(size):
    """Half of a size as the program reads it."""
    number, unit = float(size.rstrip("GM")), size[-1]
    return f"{number / 2:g}{unit}"


def speed(program, clock, folder, sizes, rounds):
    model = folder / "35b" if folder.is_dir() and not (folder / "config.json").exists() else folder
    if not model.exists() and run(clock, [program, "synth", "35B-A3B", model, "--layout", "native"]) is None:
        yield "no model", False
        return
    for size in sizes:
        arms = {"one": ("cuda:0", size)}
        arms.update({device: (device, half(size)) for device in devices(program, model)})
        if two_gpus(program, model):
            # What a second card is for: each has all that the one had.
            arms["cuda:0,cuda:1, twice the memory"] = ("cuda:0,cuda:1", size)
        for test, options in TESTS.items():
            rates, checks = {name: [] for name in arms}, {}
            for turn in range(rounds):
                # Clocks drift: which is first changes.
                order = list(arms.items())
                for name, (device, vram) in order if turn % 2 == 0 else reversed(order):
                    case = f"{test}, {size}, {name}"
                    if not clock.allows(case):
                        continue
                    command = [program, "bench", model, "--device", device, "--vram", vram, "-r", "2", "-o", "json"]
                    text = run(clock, [*command, "--routing", "calibrated", *options])
                    if not text:
                        continue
                    row = [json.loads(line) for line in text.splitlines() if line.startswith("{")][-1]
                    print(json.dumps({"arm": name, "size": size, **row}), flush=True)
                    rate = next(row[key] for key in ("tok_per_s", "tok/s", "tok_s") if key in row)
                    rates[name].append(rate)
                    checks[name] = row.get("check")
            one = statistics.median(rates["one"]) if rates["one"] else 0
            for name in arms:
                if rates[name] and one:
                    middle = statistics.median(rates[name])
                    same = checks[name] == checks.get("one")
                    text = f"{test}, {size} of GPU memory, {name}: {middle:.1f} tok/s, {middle / one:.3f} of one"
                    yield f"{text}; check {'equal' if same else 'DIFFERS'} ({rates[name]})", same


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--parts", default="logits,answers,speed")
    parser.add_argument("--only", default="", help="models whose name has this")
    parser.add_argument("--limit", type=float, default=3600, help="seconds in all")
    parser.add_argument("--prompts", type=int, default=len(LENGTHS))
    parser.add_argument("--model", type=pathlib.Path, default=DEMO, help="of speed")
    parser.add_argument("--vram", default="", help="of one GPU where all experts fit, as in 40G")
    parser.add_argument("--small", default="", help="where a part of them does, as in 7G")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    clock = Clock(arguments.limit)
    program, parts = arguments.program, arguments.parts.split(",")
    failed = 0
    cases = []
    if "logits" in parts:
        cases.append(logits(program, clock, arguments.only))
    if "answers" in parts:
        cases.append(answers(program, clock, arguments.only, arguments.prompts))
    if "speed" in parts:
        sizes = [size for size in (arguments.vram, arguments.small) if size] or ["2G"]
        cases.append(speed(program, clock, arguments.model, sizes, arguments.rounds))
    for part in cases:
        for text, good in part:
            print(text, "" if good else "FAILED", flush=True)
            failed += not good
    if clock.left_out:
        print(f"no time for {len(clock.left_out)} cases, the first: {clock.left_out[0]}")
    sys.exit(1 if failed or clock.broken else 0)


if __name__ == "__main__":
    main()
