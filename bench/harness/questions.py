"""Questions about capitals with four choices each, from the demo model's own evaluation.

    python questions.py models/demo/eval.jsonl > capitals.jsonl

The choices are the right one and three other answers of the list, in an order that a fixed seed decides.
"""

import json
import random
import sys

rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
rows = [row for row in rows if row["task"] == "capitals" and len(row["messages"]) == 1]
answers = sorted({row["check"]["values"][0] for row in rows})
chance = random.Random(7)
for row in rows:
    right = row["check"]["values"][0]
    choices = chance.sample([answer for answer in answers if answer != right], 3) + [right]
    chance.shuffle(choices)
    question = row["messages"][0]["content"]
    print(json.dumps({"question": question, "choices": choices, "label": choices.index(right), "answer": right}))
