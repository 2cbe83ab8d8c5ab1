#!/usr/bin/env python3
"""Compares a server's answers on a GPU with and without drafts: text, tokens and log-probabilities, of golden
checkpoints with a tokenizer, also with their draft heads, and of the demo model, greedy and drawn, of one client and of
three at once. Prints how many of a head's drafts were accepted on the GPU and on the processor: about as many, but how
deep drafts go is measured, and differs.

Run in the repository's root on a machine with a GPU: bench/cuda/rounds.py PATH_OF_FLASHMOE [MODEL ..] (MODEL: others in
place of these; --heads: the nets with heads alone). Then `bench --accept` with forced rates, which prints speeds alone.
Prints a line per case and ends with an error when one differs, or when nothing was drafted, accepted or refused."""
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from server import Server

DRAFTS = ["ngram", "auto"]
TOKENS = 96
# Rounds of drafts that are always, often and never right.
RATES = ["1,1,1,1,1,1,1", ".85,.82,.79", "0,0,0"]
PASSAGE = "one two three four five six seven, eight nine ten; one two three four "
PROMPTS = [PASSAGE * 6, "fn add(a: i32) -> i32 { a + 1 }\n" * 5 + "fn ", "Count to twenty.", "aaaa bbbb aaaa bbbb " * 9]
SAMPLINGS = [{"temperature": 0}, {"temperature": 0.3, "seed": 5}, {"temperature": 0.8, "seed": 6},
             {"temperature": 0.7, "seed": 7, "repetition_penalty": 1.1, "frequency_penalty": 0.2}]
# Records outside of device memory, which a round waits for as a step does.
MEMORIES = [[], ["--vram", "200M", "--slots", "192"]]


def requests():
    for prompt in PROMPTS:
        for sampling in SAMPLINGS:
            for logprobs in (None, 2):
                more = {"logprobs": logprobs} if logprobs else {}
                yield {"prompt": prompt, "max_tokens": TOKENS, **sampling, **more}


def answers(program, model, draft, options, clients, device="cuda"):
    """All answers, and what became of drafts: rounds, drafted, accepted."""
    server = Server(program, model, ["--draft", draft, "--sequences", "4", *options], device)
    try:
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(lambda request: server.answer(request), requests()))
        metrics = server.ask("GET", "/metrics")
    finally:
        server.stop()
    names = ("rounds_total", "tokens_total", "tokens_accepted_total")
    counts = [re.search(rf"^flashmoe_draft_{name} (\d+)", metrics, re.M) for name in names]
    return found, [int(count.group(1)) if count else 0 for count in counts]


def compare(program, model, head):
    drafts = [*DRAFTS, "head"] if head else DRAFTS
    for options in MEMORIES:
        expected, _ = answers(program, model, "off", options, 1)
        errors = [found["error"] for found in expected if "error" in found]
        if errors:
            yield f"{model} {' '.join(options)}: {errors[0]}", False
            continue
        for draft in drafts:
            for clients in (1, 3):
                found, (rounds, drafted, accepted) = answers(program, model, draft, options, clients)
                differ = [index for index, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]]
                # What `auto` drafts is its own affair.
                tried = draft == "auto" or 0 < accepted < drafted or draft == "head" and 0 < drafted
                text = f"{len(differ)} of {len(found)} differ; {accepted} of {drafted} accepted in {rounds} rounds"
                case = f"{model} {' '.join(options)} --draft {draft}, clients {clients}"
                yield f"{case}: {text} {differ[:5] or ''}", not differ and tried


def acceptance(program, model):
    """With every record in device memory: with few a GPU leaves other experts out than the processor."""
    found = {device: answers(program, model, "head", [], 1, device)[1] for device in ("cpu", "cuda")}
    text = ", ".join(f"{device} {accepted} of {drafted}" for device, (_, drafted, accepted) in found.items())
    yield f"{model} --draft head, accepted: {text}", all(drafted for _, drafted, _ in found.values())


def with_heads(folder):
    """The golden nets with heads, each in a folder of its own."""
    for head in sorted(pathlib.Path("tests/golden/heads").glob("*/mtp.safetensors")):
        case = head.parent.name
        to = pathlib.Path(folder) / f"{case}-head"
        shutil.copytree(pathlib.Path("tests/golden") / case / "model", to)
        shutil.copy(head, to)
        yield to


def speeds(program, model):
    for rates in [None, *RATES]:
        command = [program, "bench", model, "--device", "cuda", "-p", "64", "-n", "256", "-r", "2"]
        done = subprocess.run([*command, *(["--accept", rates] if rates else [])], capture_output=True, text=True)
        last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-3:]
        yield f"{model}, rates {rates}: " + " | ".join(last), done.returncode == 0


def main():
    program, *models = sys.argv[1:]
    alone = models == ["--heads"]
    if alone:
        models = []
    elif not models:
        folders = sorted(pathlib.Path("tests/golden").glob("*/model/tokenizer.json"))
        models = [folder.parent for folder in folders if not folder.parts[2].startswith("dsv4")]
        models.append(pathlib.Path("models/demo"))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        heads = [] if sys.argv[2:] and not alone else list(with_heads(folder))
        for model in [*models, *heads]:
            head, name = model in heads, str(model)
            more = acceptance(program, name) if head else speeds(program, name)
            for text, good in (*compare(program, name, head), *more):
                print(text, "" if good else "FAILED", flush=True)
                failed += not good
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
