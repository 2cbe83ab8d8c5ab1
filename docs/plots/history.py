"""Draws docs/plots/history.svg: speed over time, from the rows of docs/experiments.tsv.

  python3 docs/plots/history.py      (needs matplotlib, and git for the commits' times)

A point is named by the commit of its row, words of its setting and the number in its figure. A row that is not found,
or has no such number, ends the script: the plot cannot show what the log does not say.
"""
import datetime
import pathlib
import re
import subprocess

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "flashmoe"
import matplotlib.dates as dates
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
CUDA, VULKAN = "#1565c0", "#c62828"
SHAPE = "35B shape, 4 bits, all experts in GPU memory"
# By panel: label, colour, and (commit, words of the setting, number of the figure counted from 0).
PANELS = {
    "decode, tokens a second": [
        ("CUDA, H200", CUDA, [
            ("25408d6", "64-bit division per chunk", 1), ("43aa2cf", "Q4_K with F32 routers", 1),
            ("8715955", "decode at 0, 8,192, 32,768", 0), ("1d09b08", "in turns with 8715955", 0),
            ("bdac7ad", "all in GPU memory, portable GPU merged", 5), ("87f9675", "35B shape in turns with 2bcfc5d", 0),
            ("9435d8a", "--device cuda, then gpu:0", 0)]),
        ("Vulkan, the same card", VULKAN, [
            ("88de171", "first run of the portable backend", 7), ("8bc8594", "all in GPU memory: decode", 0),
            ("bdac7ad", "all in GPU memory, portable GPU merged", 2), ("9435d8a", "--device cuda, then gpu:0", 4)]),
    ],
    "prompt of 2,048, tokens a second": [
        ("CUDA, H200", CUDA, [
            ("25408d6", "64-bit division per chunk", 4), ("25408d6", "delta rule's next token", 2),
            ("43aa2cf", "Q4_K with F32 routers", 10), ("8715955", "decode at 0, 8,192, 32,768", 4),
            ("bdac7ad", "all in GPU memory, portable GPU merged", 4), ("87f9675", "35B shape in turns with 2bcfc5d", 8),
            ("9435d8a", "--device cuda, then gpu:0", 2)]),
        ("Vulkan, the same card", VULKAN, [
            ("88de171", "first run of the portable backend", 6), ("8bc8594", "all in GPU memory: decode", 2),
            ("bdac7ad", "all in GPU memory, portable GPU merged", 1), ("9435d8a", "--device cuda, then gpu:0", 10)]),
    ],
    "8 clients together, tokens a second": [
        ("CUDA, H200", CUDA, [
            ("3c80ae2", "image of sm_90, dev profile", 4), ("5d4b681", "all of that: clients.py", 7),
            ("1d09b08", "in turns with 8715955", 9), ("8bc8594", "1, 2, 8 clients of 300 tokens", 2),
            ("2bcfc5d", "1 and 8 clients, 300 tokens", 2), ("87f9675", "35B shape in turns with 2bcfc5d", 16)]),
    ],
}


def rows():
    lines = (HERE.parent / "experiments.tsv").read_text().splitlines()[1:]
    return [line.split("\t") for line in lines]


def value(log, commit, words, number):
    found = [row for row in log if row[1].startswith(commit) and words in row[3]]
    assert len(found) == 1, f"{commit}, {words!r}: {len(found)} rows"
    numbers = re.findall(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![\w.,])\d+(?:\.\d+)?", found[0][4])
    return float(numbers[number].replace(",", ""))


def when(commit):
    seconds = subprocess.run(["git", "show", "-s", "--format=%ct", commit], cwd=HERE, check=True, capture_output=True)
    return datetime.datetime.fromtimestamp(int(seconds.stdout), datetime.timezone.utc)


def main():
    log = rows()
    figure, panels = plt.subplots(1, len(PANELS), figsize=(11, 3.2))
    for axes, (title, series) in zip(panels, PANELS.items()):
        for label, colour, points in series:
            at = [when(commit) for commit, _, _ in points]
            axes.plot(at, [value(log, *point) for point in points], "o-", color=colour, label=label)
        axes.set(title=title, ylim=(0, None))
        axes.xaxis.set_major_locator(dates.DayLocator())
        axes.xaxis.set_major_formatter(dates.DateFormatter("%d %b"))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.suptitle(SHAPE, fontsize=9)
    figure.tight_layout()
    figure.savefig(HERE / "history.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
