"""Seeded random gpt-oss networks in the layout of the released checkpoints.

Experts are 4-bit floats (two planes: nibbles and exponents), rows of gate and up in turns; everything else is bfloat16.
`read` takes such a checkpoint back to the float32 tensors that transformers computes with.
"""

import dataclasses
import math
import pathlib
import zlib

import numpy as np

import safetensors_file
from nets import CALM, WILD
from safetensors_file import Stored, encode, round_to_bf16

# Values of the sixteen codes.
CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
GROUP = 32


@dataclasses.dataclass(frozen=True)
class GptOssNet:
    """Shape of a network. Widths are multiples of 32, as the released 2880 is, and of nothing more."""

    name: str
    family: str = "gpt_oss"
    vocabulary: int = 320
    hidden: int = 160
    layers: int = 4
    experts: int = 8
    top_k: int = 3
    expert_width: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    window: int = 16
    limit: float = 7.0
    truncate: bool = False
    gain: float = WILD
    seed: int = 1234

    def calm(self):
        return dataclasses.replace(self, name=self.name + "-calm", gain=CALM)

    def config(self, dtype="bfloat16"):
        return {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "torch_dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_local_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "experts_per_token": self.top_k,
            "sliding_window": self.window,
            "initial_context_length": 4096,
            "layer_types": [
                "full_attention" if i % 2 else "sliding_attention" for i in range(self.layers)
            ],
            "attention_bias": True,
            "hidden_act": "silu",
            "swiglu_limit": self.limit,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "rope_theta": 150000,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": self.truncate,
            },
            "tie_word_embeddings": False,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "quantization_config": {
                "quant_method": "mxfp4",
                "modules_to_not_convert": [
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
                ],
            },
        }

    def shapes(self):
        """{name: shape} of what is not an expert's matrix."""
        h, query, key = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        out = {"model.embed_tokens.weight": (self.vocabulary, h)}
        for i in range(self.layers):
            p = f"model.layers.{i}."
            for name, rows, columns in (("q", query, h), ("k", key, h), ("v", key, h), ("o", h, query)):
                out[f"{p}self_attn.{name}_proj.weight"] = (rows, columns)
                out[f"{p}self_attn.{name}_proj.bias"] = (rows,)
            out |= {
                p + "self_attn.sinks": (self.heads,),
                p + "mlp.router.weight": (self.experts, h),
                p + "mlp.router.bias": (self.experts,),
                p + "mlp.experts.gate_up_proj_bias": (self.experts, 2 * self.expert_width),
                p + "mlp.experts.down_proj_bias": (self.experts, h),
                p + "input_layernorm.weight": (h,),
                p + "post_attention_layernorm.weight": (h,),
            }
        return out | {"model.norm.weight": (h,), "lm_head.weight": (self.vocabulary, h)}

    def tensors(self):
        """{name: Stored} as the release has them."""
        out = {name: encode(self._draw(name, shape), "BF16") for name, shape in self.shapes().items()}
        for i in range(self.layers):
            p = f"model.layers.{i}.mlp.experts."
            for name, rows, columns, gain in (
                ("gate_up_proj", 2 * self.expert_width, self.hidden, 1.0),
                ("down_proj", self.hidden, self.expert_width, self.gain),
            ):
                out |= self._matrix(p + name, (self.experts, rows, columns // GROUP), gain)
        return out

    def _random(self, name):
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def _matrix(self, name, shape, gain):
        """Random codes, whose mean square is 8.56, and exponents about what gives them unit gain."""
        random = self._random(name)
        blocks = random.integers(0, 256, (*shape, GROUP // 2), np.uint8)
        wanted = math.log2(gain / math.sqrt(8.56 * shape[-1] * GROUP))
        exponents = 127 + np.rint(wanted + random.uniform(-1, 1, shape))
        return {
            name + "_blocks": Stored("U8", blocks),
            name + "_scales": Stored("U8", exponents.astype(np.uint8)),
        }

    def _draw(self, name, shape):
        random = self._random(name)
        normal = lambda scale: round_to_bf16(random.standard_normal(shape) * scale)
        fan_in = 1 / math.sqrt(shape[-1])
        if name.endswith("norm.weight"):
            return (1 + random.integers(-32, 33, shape) / 128.0).astype(np.float32)
        if name.endswith("sinks"):
            return normal(2.0)
        if name.endswith("bias"):
            return normal(0.3 * (self.gain if "o_proj" in name or "down_proj" in name else 1.0))
        if name.endswith("router.weight"):
            return normal(3 * fan_in)
        if name.endswith("embed_tokens.weight"):
            return normal(1.0)
        if name.endswith("lm_head.weight"):
            return normal(2 * fan_in)
        return normal(fan_in * (self.gain if name.endswith("o_proj.weight") else 1.0))


def read(folder):
    """{name: float32} as transformers' modules have them: experts' matrices with inputs first."""
    if any(pathlib.Path(folder).glob("*.gguf")):
        import gptoss_gguf

        return gptoss_gguf.read(folder)
    stored = safetensors_file.read(pathlib.Path(folder) / "model.safetensors")
    out = {}
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            low, high = CODES[tensor.bits & 15], CODES[tensor.bits >> 4]
            values = np.stack([low, high], axis=-1).reshape(*tensor.bits.shape[:-1], GROUP)
            exponents = stored[stem + "_scales"].bits.astype(np.int32) - 127
            values = np.ldexp(values, exponents[..., None])
            matrix = values.reshape(*tensor.bits.shape[:-2], -1)
            out[stem] = np.ascontiguousarray(np.moveaxis(matrix, 1, 2)).astype(np.float32)
        elif not name.endswith("_scales"):
            out[name] = tensor.values()
    return out
