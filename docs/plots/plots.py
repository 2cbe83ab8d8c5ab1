"""Draws the plots of docs/results.md from the figures of docs/benchmarks.md.

  python3 docs/plots/plots.py      (needs matplotlib; writes *.svg beside itself)
"""
import pathlib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
NOW, OTHER = "#1565c0", "#c62828"


def save(figure, name):
    figure.tight_layout()
    figure.savefig(HERE / name, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def depth():
    """Section "At depth": 35B shape on one H200, everything in GPU memory."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    left.plot([0, 8, 32, 131], [467, 446, 415, 343], "o-", color=NOW)
    left.set(title="decode", xlabel="context before, thousands of tokens", ylabel="tokens a second", ylim=(0, None))
    right.plot([128, 512, 2048, 8192, 32768], [3478, 9605, 14631, 14174, 12440], "o-", color=NOW)
    right.set(title="prefill", xlabel="tokens of the prompt", ylabel="tokens a second", xscale="log", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "depth.svg")


def memory():
    """Sections "A 19.5 GB model in 6 GiB" and "Against llama.cpp": 35B shape, two cores, no GPU."""
    figure, axes = plt.subplots(figsize=(6, 2.6))
    rows = ["decode, 6 GiB group", "decode, all in memory", "prefill 512, 6 GiB group", "prefill 512, all in memory"]
    ours, theirs = [5.23, 14.55, 63.09, 63.78], [0.21, 8.04, 33.95, 43.57]
    at = range(len(rows))
    axes.barh([y - 0.2 for y in at], ours, 0.4, color=NOW, label="flashmoe")
    axes.barh([y + 0.2 for y in at], theirs, 0.4, color=OTHER, label="llama.cpp")
    for y, (a, b) in enumerate(zip(ours, theirs)):
        axes.text(a + 0.6, y - 0.2, f"{a:g}", va="center", fontsize=8)
        axes.text(b + 0.6, y + 0.2, f"{b:g}", va="center", fontsize=8)
    axes.set_yticks(list(at), rows)
    axes.invert_yaxis()
    axes.set_xlabel("tokens a second")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "memory.svg")


if __name__ == "__main__":
    depth()
    memory()
