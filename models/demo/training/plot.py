"""Draws loss.png from the training log: python3 plot.py LOG.jsonl OUT.png"""
import json
import sys

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt

with open(sys.argv[1]) as file:
    lines = [json.loads(line) for line in file]
steps = [line["step"] for line in lines]
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.plot(steps, [line["loss"] for line in lines], label="weighted loss (context at 0.1)")
axes.plot(steps, [line["answer_loss"] for line in lines], label="answer tokens")
axes.axvline(3000, color="grey", linestyle=":", label="fake quantisation from here")
axes.set(xlabel="step (65,536 token places)", ylabel="nats per token", yscale="log")
axes.legend()
figure.tight_layout()
figure.savefig(sys.argv[2], dpi=110)
