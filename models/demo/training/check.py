"""Checks, on a CPU and in f32, that the training model equals transformers and that MLX reads the packed file.

  python3 check.py            random weights at a small shape: chunked rows, recurrent steps, packed documents
  python3 check.py FOLDER     the checkpoint in FOLDER: transformers against ours, MLX dequantisation bit for bit
"""
import json
import os
import sys
import tempfile

import torch
from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForCausalLM

import checkpoint
from batches import pack_rows, to_batch
from model import Config, Demo
from tokenizer import SPECIAL_IDS


def reference(model, folder):
    with open(os.path.join(folder, "config.json")) as file:
        content = json.load(file)
    config = Qwen3_5MoeConfig(text_config=content["text_config"]).text_config
    hf = Qwen3_5MoeForCausalLM(config).float().eval()
    hf.set_attn_implementation("eager")
    hf.load_state_dict(checkpoint.transformers_state(model), strict=True)
    return hf


@torch.no_grad()
def compare(model, folder, documents):
    """Largest difference of logits per document: packed rows against transformers, steps against transformers."""
    hf = reference(model, folder)
    rows, places = pack_rows(documents, 256)
    logits = model(to_batch(rows, torch.device("cpu")))[0]
    worst = step_worst = 0.0
    for document, (row, start) in zip(documents, places):
        ids = torch.tensor(document["ids"])
        want = hf(ids[None]).logits[0]
        worst = max(worst, (logits[row, start:start + len(ids)] - want).abs().max().item())
        states, out = model.empty_state(1, len(ids), ids.device), []
        for t, token in enumerate(ids):
            out.append(model.step(token[None], states, t, torch.ones(1))[0][0])
        step_worst = max(step_worst, (torch.stack(out) - want).abs().max().item())
    print(f"logits std {want.std():.3f}; packed rows - transformers {worst:.2e}; steps - transformers {step_worst:.2e}")
    assert max(worst, step_worst) < 1e-3 * max(1.0, want.std().item())


def mlx_agrees(folder):
    """mx.dequantize on every quantised tensor equals our unpacking exactly."""
    import mlx.core as mx
    import numpy as np
    model = checkpoint.load(folder)
    tensors = mx.load(os.path.join(folder, "model.safetensors"))
    for name, linear in checkpoint.modules(model):
        w, s, b = (tensors[f"{name}.{part}"] for part in ("weight", "scales", "biases"))
        out = mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), group_size=64, bits=linear.bits)
        assert np.abs(np.array(out) - linear.weight.detach().numpy()).max() < 1e-6, name
    print("mx.dequantize agrees on every tensor")


def documents(vocab, count, generator):
    lengths = torch.randint(5, 200, (count,), generator=generator).tolist()
    return [{"ids": torch.randint(3, vocab, (n,), generator=generator).tolist(), "weights": [1.0] * n} for n in lengths]


def main():
    torch.manual_seed(11)
    generator = torch.Generator().manual_seed(5)
    if len(sys.argv) > 1:
        folder = sys.argv[1]
        model = checkpoint.load(folder)
        compare(model, folder, documents(model.c.vocab_size, 6, generator))
        mlx_agrees(folder)
        return
    c = Config(vocab_size=512, num_hidden_layers=8, num_experts=16, num_experts_per_tok=4)
    model = Demo(c).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
            if name.endswith("dt_bias"):
                parameter.add_(torch.randn_like(parameter))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(model, folder, SPECIAL_IDS)
        compare(model, folder, documents(c.vocab_size, 9, generator))
        packed = checkpoint.load(folder)
        compare(packed, folder, documents(c.vocab_size, 5, generator))
        mlx_agrees(folder)


if __name__ == "__main__":
    main()
