"""Whether `flashmoe bench` finds what `flashmoe plan` expects, on this machine.

  python3 bench/plan.py FLASHMOE MODEL[@MEMORY] ... [--runs 3] [--long] [-- OPTIONS OF BOTH ...]

Each model is planned and then measured at once, with the same options; MODEL@900M adds `--memory 900M`. The figures are
decode (tg64), cold decode (the first answer), and prefill of 512 tokens, as bench has them; `--long` adds the prompt of
20,000 tokens, in seconds. On a GPU a plan says nothing of prompts. A line a figure: the range, what was measured, the
load, and by which factor it lies outside. Ends with 1 if one does. `load` is the machine's at the plan; another load
during the bench moves what is found.
Only the standard library is used.
"""
import argparse
import json
import subprocess
import sys

PROMPT, ANSWER, LONG = 512, 64, 20000


def said(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measured(binary, model, options, prompt, answer, runs):
    command = [binary, "bench", *model, "-p", str(prompt), "-n", str(answer), "-r", str(runs), "--json", *options]
    rows = [json.loads(line) for line in said(command).splitlines()]
    return {row["test"].split(" @")[0]: row["tok_per_s"] for row in rows}


def compared(name, load, what, low, high, found):
    outside = max(low / found, found / high)
    verdict = "inside" if outside <= 1 else f"OUTSIDE by {outside:.2f}"
    span = f"{low:9.1f} to {high:9.1f}"
    print(f"{name:28} {what:12} {span}  found {found:9.1f}  load {load or 0:4.1f}  {verdict}", flush=True)
    return outside <= 1


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser()
    parser.add_argument("flashmoe")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--long", action="store_true")
    asked, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
    held = []
    for word in asked.models:
        model, _, memory = word.partition("@")
        model = [model, "--memory", memory] if memory else [model]
        name = word.split("/")[-1]
        plan = json.loads(said([asked.flashmoe, "plan", *model, "--json", *options]))
        expected, load = plan["expected"], plan["load"]
        rows = measured(asked.flashmoe, model, options, PROMPT, ANSWER, asked.runs)
        for what, key, row in [("decode", "decode_tok_per_s", f"tg{ANSWER}"),
                               ("cold", "decode_cold_tok_per_s", f"tg{ANSWER} cold"),
                               ("prefill", "prefill_tok_per_s", f"pp{PROMPT}")]:
            if expected[key] is not None:
                held.append(compared(name, load, what, *expected[key], rows[row]))
        if asked.long and expected["prompt_of_20000_tokens_seconds"] is not None:
            low, high = expected["prompt_of_20000_tokens_seconds"]
            rate = measured(asked.flashmoe, model, options, LONG, 1, 1)[f"pp{LONG} cold"]
            held.append(compared(name, load, "20,000", low, high, LONG / rate))
    print(f"{sum(held)} of {len(held)} figures inside their range")
    sys.exit(0 if all(held) else 1)


main()
