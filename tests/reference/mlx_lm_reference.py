"""What mlx-lm makes of a net: its conversions, and its own logits on the CPU."""

import contextlib
import io
import os
import pathlib
import shutil
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import mlx.core as mx
import mlx_lm
import numpy as np

import hugging_face
import tokenizer_files


def convert(net, folder, *, dtype, q_bits=None, q_group_size=None, recipe=None):
    """Writes `net` to `folder` as mlx-lm converts it: with `q_bits`, by a named `recipe` of mixed
    widths, or unquantised; `dtype` is that of the scales and of everything unquantised."""
    folder = pathlib.Path(folder)
    with tempfile.TemporaryDirectory() as source:
        hugging_face.write(source, net)
        tokenizer_files.write(source, net.vocabulary)
        if folder.exists():
            shutil.rmtree(folder)
        options = {}
        if q_bits or recipe:
            options = {"quantize": True, "q_group_size": q_group_size, "quant_predicate": recipe}
            options |= {"q_bits": q_bits} if q_bits else {}
        with contextlib.redirect_stdout(io.StringIO()):
            mlx_lm.convert(source, str(folder), dtype=dtype, **options)
    for leftover in folder.glob("README.md"):
        leftover.unlink()


def logits(folder, ids):
    """Logits [tokens, vocabulary] as float32 of the MLX checkpoint in `folder`."""
    model, _tokenizer = mlx_lm.load(str(folder))
    return np.array(model(mx.array(ids)[None])[0].astype(mx.float32))
