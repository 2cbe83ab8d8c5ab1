"""The files of a release: one of tensors, the configuration, and what ends a text."""

import json
import pathlib

import safetensors_file


def configure(folder, config, end=0):
    """Writes the configuration, and `end` as the id that ends a text."""
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(f'{{"do_sample": false, "eos_token_id": {end}}}')


def write(folder, net, end=0):
    """Writes `net` into a new folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    safetensors_file.write(folder / "model.safetensors", net.tensors(), metadata={"format": "pt"})
    configure(folder, net.config(), end)


def is_family(folder, family):
    """Whether a checkpoint says that it is of `family`."""
    return json.loads((pathlib.Path(folder) / "config.json").read_text())["model_type"] == family
