"""Writes the shipped checkpoint from a training state: python3 export.py STATE_DIR FOLDER [--split DIR]

STATE_DIR holds state.pt or small-*.safetensors.  `--split` also writes model.safetensors in pieces below 16 MiB.
"""
import argparse
import os
import shutil

import torch

import checkpoint
from model import Config, Demo
from tokenizer import SPECIAL_IDS
from train import HOME, load_small

PIECE = 15 << 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("state")
    parser.add_argument("folder")
    parser.add_argument("--split")
    a = parser.parse_args()
    model = Demo(Config())
    path = os.path.join(a.state, "state.pt")
    if os.path.exists(path):
        model.load_state_dict(torch.load(path, map_location="cpu")["model"])
    else:
        load_small(model, a.state)
    checkpoint.save(model, a.folder, SPECIAL_IDS)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if os.path.realpath(a.folder) != os.path.realpath(HOME):
            shutil.copy(os.path.join(HOME, name), a.folder)
    if a.split:
        with open(os.path.join(a.folder, "model.safetensors"), "rb") as file:
            content = file.read()
        for index in range(0, len(content), PIECE):
            with open(os.path.join(a.split, f"model-{index // PIECE}.part"), "wb") as file:
                file.write(content[index:index + PIECE])


if __name__ == "__main__":
    main()
