"""How many tokens a round takes where an agent edits a file: a replay of a file's history, by its text alone.

  python3 bench/study/edits.py FILE --tokenizer TOKENIZER.JSON [--commits 30] [--form edits|whole] [--rounds 4:1.34,8:2.12]

A round takes drafts that are what the model draws next, so that what a suffix proposes for a text that is known says how
many tokens a round takes, without a model. The session: the file is read, then each change of its git history is asked
for by its subject, and answered by calls with the passage that is replaced and the new one (`edits`), or by the file as
a whole (`whole`). Tokens of answers alone are counted, by `cargo run --release -p flashmoe-engine --example rounds`;
`--rounds` says how many steps a round of so many tokens takes on a device.
Needs the package `tokenizers`.
"""
import argparse
import difflib
import pathlib
import subprocess

from tokenizers import Tokenizer


def git(folder, *arguments):
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout


def versions(path, commits):
    """Subjects and texts of the file's last changes, oldest first."""
    folder, name = path.resolve().parent, path.name
    for commit in reversed(git(folder, "log", f"-{commits}", "--format=%H", "--", name).split()):
        text = git(folder, "show", f"{commit}:./{name}")
        yield git(folder, "log", "-1", "--format=%s", commit).strip(), text


def calls(old, new):
    """Passages that are replaced, each with three lines around it, and what replaces them."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    for group in difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(3):
        yield "".join(before[group[0][1]:group[-1][2]]), "".join(after[group[0][3]:group[-1][4]])


def session(path, commits, form):
    """Pieces of the text: who wrote it, and what."""
    changes = versions(path, commits)
    _, text = next(changes)
    yield "given", f"The file {path.name}:\n```\n{text}```\n"
    for subject, changed in changes:
        yield "given", f"\nUser: {subject}\nAssistant: "
        if form == "whole":
            yield "answer", f"```\n{changed}```\n"
        else:
            for old, new in calls(text, changed):
                yield "answer", f"<replace>\n{old}</replace>\n<with>\n{new}</with>\n"
                yield "given", "<result>done</result>\n"
        text = changed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--commits", type=int, default=30)
    parser.add_argument("--form", choices=["edits", "whole"], default="edits")
    parser.add_argument("--rounds", default="")
    asked = parser.parse_args()
    tokenizer = Tokenizer.from_file(asked.tokenizer)
    pieces = session(asked.file, asked.commits, asked.form)
    lines = [f"{who} {' '.join(map(str, tokenizer.encode(text, add_special_tokens=False).ids))}\n" for who, text in pieces]
    command = ["cargo", "run", "-q", "--release", "-p", "flashmoe-engine", "--example", "rounds", "--"]
    command += filter(None, asked.rounds.split(","))
    subprocess.run(command, input="".join(lines), text=True, check=True)


if __name__ == "__main__":
    main()
