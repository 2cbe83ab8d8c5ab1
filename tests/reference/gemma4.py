"""Seeded random networks of Gemma-4 with experts, in the layout of the released checkpoint.

They have what a slip would leave out: two shapes of attention heads, windows shorter than the text, values that are
the keys before their norm in layers without a window, pairs of such layers' heads that do not turn, norms after
blocks, a dense network and a mixture next to each other, a router with a norm and factors of its own, a factor of each
layer, a cap of logits. Norms, factors and the layer's number are drawn away from one.
"""

import dataclasses
import json
import math
import pathlib
import zlib

import numpy as np

import safetensors_file
from nets import CALM, WILD
from safetensors_file import round_to_bf16

PREFIX = "model.language_model."


@dataclasses.dataclass(frozen=True)
class GemmaNet:
    """Shape of a network."""

    name: str
    family: str = "gemma4"
    vocabulary: int = 320
    hidden: int = 128
    layers: int = 4
    interval: int = 3  # every interval-th layer and the last have full attention
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    full_kv_heads: int | None = 1
    full_head_dim: int = 64
    keys_as_values: bool = True
    window: int = 24
    dense_width: int = 152
    experts: int = 16
    top_k: int = 3
    expert_width: int = 64
    rotary: float = 0.25
    softcap: float | None = 30.0
    flat: bool = False
    tied: bool = True
    gain: float = WILD
    seed: int = 1234

    def calm(self):
        return dataclasses.replace(self, name=self.name + "-calm", gain=CALM)

    @property
    def prefix(self):
        return "model." if self.flat else PREFIX

    def is_full(self, layer):
        return (layer + 1) % self.interval == 0 or layer + 1 == self.layers

    def config(self, dtype="bfloat16"):
        kinds = ["full_attention" if self.is_full(i) else "sliding_attention" for i in range(self.layers)]
        text = {
            "model_type": "gemma4_text",
            "dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.dense_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_global_key_value_heads": self.full_kv_heads,
            "global_head_dim": self.full_head_dim,
            "attention_k_eq_v": self.keys_as_values,
            "attention_bias": False,
            "layer_types": kinds,
            "sliding_window": self.window,
            "enable_moe_block": True,
            "num_experts": self.experts,
            "top_k_experts": self.top_k,
            "moe_intermediate_size": self.expert_width,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": self.vocabulary,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "use_bidirectional_attention": None if self.flat else "vision",
            "hidden_activation": "gelu_pytorch_tanh",
            "final_logit_softcapping": self.softcap,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1000000.0,
                    "partial_rotary_factor": self.rotary,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "tie_word_embeddings": self.tied,
            "eos_token_id": 0,
            "bos_token_id": 2,
            "pad_token_id": 0,
        }
        if self.flat:
            return {"architectures": ["Gemma4ForCausalLM"]} | text
        return {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "dtype": dtype,
            "vocab_size": self.vocabulary,  # mlx-lm reads it here
            "tie_word_embeddings": self.tied,
            "eos_token_id": 0,
            "text_config": text,
            "image_token_id": self.vocabulary - 1,
        }

    def shapes(self):
        """{name: shape} of every tensor."""
        h, p, out = self.hidden, self.prefix, {}
        out[p + "embed_tokens.weight"] = (self.vocabulary, h)
        for i in range(self.layers):
            layer = f"{p}layers.{i}."
            out |= self._attention_shapes(layer + "self_attn.", self.is_full(i))
            out |= {
                layer + "mlp.gate_proj.weight": (self.dense_width, h),
                layer + "mlp.up_proj.weight": (self.dense_width, h),
                layer + "mlp.down_proj.weight": (h, self.dense_width),
                layer + "router.proj.weight": (self.experts, h),
                layer + "router.scale": (h,),
                layer + "router.per_expert_scale": (self.experts,),
                layer + "experts.gate_up_proj": (self.experts, 2 * self.expert_width, h),
                layer + "experts.down_proj": (self.experts, h, self.expert_width),
                layer + "layer_scalar": (1,),
            }
            sides = ("input", "post_attention", "pre_feedforward", "post_feedforward")
            out |= {f"{layer}{side}_layernorm.weight": (h,) for side in sides}
            numbered = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
            out |= {f"{layer}{name}.weight": (h,) for name in numbered}
        out[p + "norm.weight"] = (h,)
        if not self.tied:
            out["lm_head.weight"] = (self.vocabulary, h)
        return out

    def _attention_shapes(self, p, full):
        dim = self.full_head_dim if full else self.head_dim
        shared = full and self.keys_as_values
        keys = (self.full_kv_heads if shared and self.full_kv_heads else self.kv_heads) * dim
        shapes = {
            p + "q_proj.weight": (self.heads * dim, self.hidden),
            p + "k_proj.weight": (keys, self.hidden),
            p + "v_proj.weight": (keys, self.hidden),
            p + "o_proj.weight": (self.hidden, self.heads * dim),
            p + "q_norm.weight": (dim,),
            p + "k_norm.weight": (dim,),
        }
        if shared:
            del shapes[p + "v_proj.weight"]
        return shapes

    def tensors(self):
        """{name: float32 array} of the language model."""
        return {name: self._draw(name, shape) for name, shape in self.shapes().items()}

    def skipped_tensors(self):
        """What a released checkpoint has for pictures."""
        names = {
            "model.vision_tower.patch_embedder.input_proj.weight": (16, 48),
            "model.embed_vision.embedding_projection.weight": (self.hidden, 16),
        }
        return {name: self._draw(name, shape) for name, shape in names.items()}

    def _draw(self, name, shape):
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        normal = lambda scale: round_to_bf16(random.standard_normal(shape) * scale)
        around_one = lambda: (1 + random.integers(-32, 33, shape) / 128.0).astype(np.float32)
        fan_in = 1 / math.sqrt(shape[-1])
        wild = self.gain == WILD
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            # Scores have no factor: with weights about one a softmax would see one position.
            return around_one() * np.float32(0.75 if wild else 0.5)
        if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            return around_one() * np.float32(self.gain)
        if "norm" in name or name.endswith(("scale", "layer_scalar")):
            return around_one()
        if name.endswith("router.proj.weight"):
            return normal(2.0)  # its input is divided by the root of the width
        if name.endswith("embed_tokens.weight"):
            # The head as well, and multiplied by the root of the width where it is read.
            return normal(0.125 if wild else 0.5)
        if name.endswith("lm_head.weight"):
            return normal(2 * fan_in)
        return normal(fan_in)


def text_config(config):
    """The text model's part of a configuration."""
    return config.get("text_config", config)


def read(folder):
    """{name: float32 array} of a checkpoint in `folder` under the names of the text model alone."""
    stored = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        stored |= safetensors_file.read(file)
    named = lambda name: name.replace(PREFIX, "model.")
    ours = lambda name: not name.startswith(("model.vision_tower.", "model.embed_vision."))
    return {named(name): tensor.values() for name, tensor in stored.items() if ours(name)}


def settings(folder):
    """The configuration as a keyword list of the text model's class."""
    return dict(text_config(json.loads((pathlib.Path(folder) / "config.json").read_text())))
