"""Qwen3.8-Flash-Next as released in 8-bit floats, and back again.

Each expert's matrices are E4M3 with a scale for each tile of 128 x 128; rows of n-grams are E4M3 with one bfloat16 scale
for the table; the rest is bfloat16.
"""

import pathlib
import re

import numpy as np
import torch

import hugging_face
import nets
import release
import safetensors_file
from safetensors_file import Stored, encode

LARGEST, TILE = 448.0, 128
SCALE = "ngram_embedding.weight_scale"


def codes(values):
    """The nearest E4M3 floats, as bytes."""
    rounded = torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(torch.float8_e4m3fn)
    return Stored("F8_E4M3", rounded.view(torch.uint8).numpy())


def floats(tensor):
    return torch.from_numpy(tensor.bits.copy()).view(torch.float8_e4m3fn).float().numpy()


def spread(scales, shape):
    """The scale of each value of a matrix in tiles."""
    return scales.repeat(TILE, axis=0).repeat(TILE, axis=1)[: shape[0], : shape[1]]


def in_tiles(values):
    """{end of a name: Stored} of a matrix."""
    scales = np.zeros([-(-size // TILE) for size in values.shape], np.float32)
    for (row, column), _ in np.ndenumerate(scales):
        tile = values[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
        scales[row, column] = np.abs(tile).max() / LARGEST
    return {"weight": codes(values / spread(scales, values.shape)), "weight_scale_inv": Stored("F32", scales)}


def write(folder, net):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored, values = {}, nets.unfuse_experts(net.tensors())
    rows = [value for name, value in values.items() if ".ngram_embedding." in name]
    scale = encode(np.array([max(np.abs(value).max() for value in rows) / LARGEST]), "BF16")
    for name, value in values.items():
        if isinstance(value, Stored):
            stored[name] = value
        elif ".ngram_embedding." in name:
            stored[name] = codes(value / scale.values()[0])
            stored[name.split("ngram_embedding.")[0] + SCALE] = scale
        elif re.search(r"\.experts\.\d+\.", name):
            stored |= {name.removesuffix("weight") + end: tensor for end, tensor in in_tiles(value).items()}
        else:
            stored[name] = encode(value, "BF16")
    safetensors_file.write(folder / "model.safetensors", stored, metadata={"format": "pt"})
    quantised = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [TILE, TILE], "activation_scheme": "dynamic"}
    config = net.config(hugging_face.DTYPE_NAMES["BF16"])
    release.configure(folder, config | {"quantization_config": quantised})


def read(folder):
    """{name: array} as transformers' modules have them."""
    stored, out, parts, experts = safetensors_file.read(pathlib.Path(folder) / "model.safetensors"), {}, {}, {}
    for name, tensor in stored.items():
        short = name.replace("model.language_model.", "model.")
        if name.endswith((SCALE, "weight_scale_inv")):
            continue
        if ".ngram_embedding." in name:
            stem, number = name.split(".ngram_embedding.shard_")
            scale = stored[f"{stem}.{SCALE}"].values()[0]
            part = parts.setdefault(short.split(".shard_")[0] + ".weight", {})
            part[int(number.removesuffix(".weight"))] = floats(tensor) * scale
        elif match := re.fullmatch(r"(.*\.experts\.)(\d+)\.(\w+)_proj\.weight", short):
            scales = stored[name + "_scale_inv"].values()
            prefix, expert, matrix = match.groups()
            experts.setdefault(prefix, {})[int(expert), matrix] = floats(tensor) * spread(scales, tensor.bits.shape)
        else:
            out[short] = tensor.values()
    out |= {name: np.concatenate([part[number] for number in sorted(part)]) for name, part in parts.items()}
    for prefix, found in experts.items():
        numbers = range(len(found) // 3)
        both = [np.concatenate([found[number, "gate"], found[number, "up"]]) for number in numbers]
        out[prefix + "gate_up_proj"] = np.stack(both)
        out[prefix + "down_proj"] = np.stack([found[number, "down"] for number in numbers])
    return out
