"""Checks that flashmoe, transformers and mlx-lm give the same greedy answers to 50 questions of eval.jsonl.

  python3 greedy.py FLASHMOE [FOLDER]      FLASHMOE is the binary; needs torch, transformers, mlx-lm

flashmoe answers as it ships (4-bit weights, 16-bit integer activations). Prompt and answer then go through the two
others in one pass each, in f32: transformers over the dequantised weights, mlx-lm over the packed file. If at every
place of the answer their most likely token is the one that flashmoe chose, then their own greedy answers are the same
texts. Prompts are rendered by transformers' template engine, so that is compared too. Where one differs, the distance of
the two logits is printed: a near tie is a matter of rounding, anything else is an error (exit code 1).
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import AutoTokenizer

import checkpoint
from check import reference
from evaluate import read

PER_TASK, COUNT = 2, 50
NEAR_TIE = 0.05    # logits have a standard deviation of 2.2


def questions(folder):
    """Lines of eval.jsonl as written: the first questions and two of every task, 50 in all."""
    with open(os.path.join(folder, "eval.jsonl")) as file:
        lines = file.readlines()
    taken, chosen = {}, []
    for line in lines:
        task = json.loads(line)["task"]
        taken[task] = taken.get(task, 0) + 1
        if taken[task] <= (COUNT if task == "first_questions" else PER_TASK):
            chosen.append(line)
    return chosen[:COUNT]


def flashmoe_answers(binary, folder, path, out):
    subprocess.run([binary, "eval", folder, path, "--answers", out], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with open(out) as file:
        return [json.loads(line)["tokens"] for line in file]


def main():
    binary = sys.argv[1]
    folder = sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = reference(checkpoint.load(folder), folder)
    mlx_model, _ = load_model(Path(folder))
    mlx_model.set_dtype(mx.float32)
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "questions.jsonl")
        with open(path, "w") as file:
            file.writelines(questions(folder))
        items = read(path)
        answers = flashmoe_answers(binary, folder, path, os.path.join(scratch, "answers.jsonl"))
    same, tokens, wrong = {"transformers": 0, "mlx-lm": 0}, 0, 0
    for index, (item, answer) in enumerate(zip(items, answers, strict=True)):
        prompt = tokenizer.apply_chat_template(item["messages"], tools=item.get("tools"), add_generation_prompt=True,
                                               enable_thinking=item["enable_thinking"], return_dict=False)
        ids, tokens = prompt + answer, tokens + len(answer)
        with torch.no_grad():
            theirs = {"transformers": model(torch.tensor([ids])).logits[0].numpy()}
        theirs["mlx-lm"] = np.array(mlx_model(mx.array([ids]))[0])
        for name, logits in theirs.items():
            rows = logits[len(prompt) - 1:-1]
            places = np.flatnonzero(rows.argmax(-1) != answer)
            same[name] += len(places) == 0
            for place in places[:1]:
                gap = rows[place].max() - rows[place][answer[place]]
                wrong += gap > NEAR_TIE
                print(f"question {index} ({item['task']}), token {place}: {name} prefers "
                      f"{tokenizer.decode([int(rows[place].argmax())])!r} to {tokenizer.decode([answer[place]])!r} by {gap:.4f}")
    counts = ", ".join(f"{name} {count} of {len(items)}" for name, count in same.items())
    print(f"the same greedy answers: {counts} ({tokens} tokens)")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
