"""Seeded random networks in the layout of released checkpoints.

`Net` describes a Qwen3.5-MoE, Qwen3-MoE or Qwen3-Next of any shape; `tensors` gives its weights under the
names and shapes of the Hugging Face release, `config` the matching config.json. Every tensor is
drawn from its own generator, seeded by the net's seed and the tensor's name, so that the values
depend on nothing but those two.

Values are exact in bfloat16, and so is 1 + w of the zero-centred norms: converting a checkpoint
between layouts therefore changes nothing.

A random net with ordinary gain multiplies rounding errors from layer to layer ("wild"). With the
projections that write to the residual stream scaled by 0.25 it does not ("calm"): calm nets
show whether an implementation is exact, wild ones whether it is stable.
"""

import dataclasses
import math
import zlib

import numpy as np

from safetensors_file import round_to_bf16

CALM, WILD = 0.25, 1.0


@dataclasses.dataclass(frozen=True)
class Net:
    """Shape of a network. Fields are named as in config.json, shortened where that is long."""

    name: str
    family: str = "qwen3_5_moe"  # or "qwen3_moe", "qwen3_next"
    vocabulary: int = 320
    hidden: int = 128
    layers: int = 4
    experts: int = 8
    top_k: int = 2
    expert_width: int = 64
    shared_width: int = 64
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    key_heads: int = 2
    value_heads: int = 4
    linear_dim: int = 32  # key and value head dimension of the linear-attention layers
    interval: int = 4  # every interval-th layer is full attention
    tied: bool = False
    norm_topk: bool = True  # not for Qwen3.5, which always normalises
    flat: bool = False  # ForCausalLM with a flat config instead of the multimodal layout
    stretched: bool = False  # rotation by YaRN, for Qwen3-MoE
    gain: float = WILD
    seed: int = 1234

    def calm(self):
        return dataclasses.replace(self, name=self.name + "-calm", gain=CALM)

    def is_full_attention(self, layer):
        return self.family == "qwen3_moe" or (layer + 1) % self.interval == 0

    @property
    def prefix(self):
        nested = self.family == "qwen3_5_moe" and not self.flat
        return "model.language_model." if nested else "model."

    def config(self, dtype="bfloat16"):
        """config.json, with the keys that the released models carry."""
        if self.family == "qwen3_moe":
            return self._qwen3_moe_config(dtype)
        if self.family == "qwen3_next":
            return self._qwen3_next_config(dtype)
        text = {
            "model_type": "qwen3_5_moe_text",
            "dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.linear_dim,
            "linear_value_head_dim": self.linear_dim,
            "linear_conv_kernel_dim": 4,
            "moe_intermediate_size": self.expert_width,
            "shared_expert_intermediate_size": self.shared_width,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": self.tied,
            "full_attention_interval": self.interval,
            "layer_types": [
                "full_attention" if self.is_full_attention(i) else "linear_attention"
                for i in range(self.layers)
            ],
            "attention_bias": False,
            "attn_output_gate": True,
            "hidden_act": "silu",
            "mamba_ssm_dtype": "float32",
            "mlp_only_layers": [],
            "mtp_num_hidden_layers": 1,
            "eos_token_id": 0,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000,
                "partial_rotary_factor": 0.25,
                "mrope_section": self._mrope_section(),
                "mrope_interleaved": True,
            },
        }
        if self.flat:
            return {"architectures": ["Qwen3_5MoeForCausalLM"], **text}
        return {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "dtype": dtype,
            "tie_word_embeddings": self.tied,
            "text_config": text,
            "vision_config": {
                "model_type": "qwen3_5_moe",
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": self.hidden,
                "num_position_embeddings": 16,
                "patch_size": 4,
            },
            "image_token_id": self.vocabulary - 2,
            "video_token_id": self.vocabulary - 1,
            "vision_start_token_id": self.vocabulary - 4,
            "vision_end_token_id": self.vocabulary - 3,
        }

    def _mrope_section(self):
        pairs = self.head_dim // 8
        height = width = pairs // 3
        return [pairs - height - width, height, width]

    def _qwen3_moe_config(self, dtype):
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "torch_dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.expert_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "moe_intermediate_size": self.expert_width,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "norm_topk_prob": self.norm_topk,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "attention_bias": False,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_scaling": self._yarn() if self.stretched else None,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": self.tied,
            "eos_token_id": 0,
            "bos_token_id": 0,
        }

    def _qwen3_next_config(self, dtype):
        return {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "torch_dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.expert_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "partial_rotary_factor": 0.25,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.linear_dim,
            "linear_value_head_dim": self.linear_dim,
            "linear_conv_kernel_dim": 4,
            "moe_intermediate_size": self.expert_width,
            "shared_expert_intermediate_size": self.shared_width,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "norm_topk_prob": self.norm_topk,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "full_attention_interval": self.interval,
            "attention_bias": False,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000000,
            "rope_scaling": None,
            "tie_word_embeddings": self.tied,
            "use_sliding_window": False,
            "eos_token_id": 0,
            "bos_token_id": 0,
        }

    @staticmethod
    def _yarn():
        return {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}

    def shapes(self):
        """{name: shape} of every tensor, experts fused as in the Qwen3.5 releases."""
        p, h, out = self.prefix, self.hidden, {}
        out[p + "embed_tokens.weight"] = (self.vocabulary, h)
        for i in range(self.layers):
            layer = f"{p}layers.{i}."
            if self.is_full_attention(i):
                out |= self._attention_shapes(layer + "self_attn.")
            else:
                out |= self._linear_attention_shapes(layer + "linear_attn.")
            out |= self._moe_shapes(layer + "mlp.")
            out[layer + "input_layernorm.weight"] = (h,)
            out[layer + "post_attention_layernorm.weight"] = (h,)
        out[p + "norm.weight"] = (h,)
        if not self.tied:
            out["lm_head.weight"] = (self.vocabulary, h)
        return out

    def _attention_shapes(self, p):
        gated = 1 if self.family == "qwen3_moe" else 2
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            p + "q_proj.weight": (gated * query, self.hidden),
            p + "k_proj.weight": (key, self.hidden),
            p + "v_proj.weight": (key, self.hidden),
            p + "o_proj.weight": (self.hidden, query),
            p + "q_norm.weight": (self.head_dim,),
            p + "k_norm.weight": (self.head_dim,),
        }

    def _linear_attention_shapes(self, p):
        key, value = self.key_heads * self.linear_dim, self.value_heads * self.linear_dim
        if self.family == "qwen3_next":
            inputs = {
                p + "in_proj_qkvz.weight": (2 * key + 2 * value, self.hidden),
                p + "in_proj_ba.weight": (2 * self.value_heads, self.hidden),
            }
        else:
            inputs = {
                p + "in_proj_qkv.weight": (2 * key + value, self.hidden),
                p + "in_proj_z.weight": (value, self.hidden),
                p + "in_proj_a.weight": (self.value_heads, self.hidden),
                p + "in_proj_b.weight": (self.value_heads, self.hidden),
            }
        return inputs | {
            p + "conv1d.weight": (2 * key + value, 1, 4),
            p + "A_log": (self.value_heads,),
            p + "dt_bias": (self.value_heads,),
            p + "norm.weight": (self.linear_dim,),
            p + "out_proj.weight": (self.hidden, value),
        }

    def _moe_shapes(self, p):
        h, e, f = self.hidden, self.experts, self.expert_width
        shapes = {
            p + "gate.weight": (e, h),
            p + "experts.gate_up_proj": (e, 2 * f, h),
            p + "experts.down_proj": (e, h, f),
        }
        if self.family != "qwen3_moe":
            s = self.shared_width
            shapes |= {
                p + "shared_expert.gate_proj.weight": (s, h),
                p + "shared_expert.up_proj.weight": (s, h),
                p + "shared_expert.down_proj.weight": (h, s),
                p + "shared_expert_gate.weight": (1, h),
            }
        return shapes

    def tensors(self):
        """{name: float32 array} of the language model."""
        return {name: self._draw(name, shape) for name, shape in self.shapes().items()}

    def skipped_tensors(self):
        """Tensors of a released checkpoint that text inference does not use: a reader must skip
        the vision tower and the multi-token prediction block without complaint."""
        h = self.hidden
        names = {
            "model.visual.patch_embed.proj.weight": (16, 3, 2, 4, 4),
            "model.visual.merger.norm.bias": (16,),
            "mtp.fc.weight": (h, 2 * h),
            "mtp.norm.weight": (h,),
            "mtp.layers.0.mlp.experts.0.gate_proj.weight": (self.expert_width, h),
        }
        return {name: self._draw(name, shape) for name, shape in names.items()}

    def _draw(self, name, shape):
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        normal = lambda scale: round_to_bf16(random.standard_normal(shape) * scale)
        fan_in = 1 / math.sqrt(shape[-1])
        if name.endswith("A_log"):
            return round_to_bf16(np.log(random.uniform(0.05, 8.0, shape)))
        if name.endswith("dt_bias"):
            return normal(1.0)
        if name.endswith("linear_attn.norm.weight"):
            return round_to_bf16(1 + 0.2 * random.standard_normal(shape))
        if name.endswith("norm.weight"):
            offset = random.integers(-32, 33, shape) / 128.0  # 1 + w is exact in bfloat16
            return (offset + (1.0 if self.family == "qwen3_moe" else 0.0)).astype(np.float32)
        if name.endswith("conv1d.weight"):
            return normal(0.5)
        if name.endswith("mlp.gate.weight"):
            return normal(3 * fan_in)
        if name.endswith("embed_tokens.weight"):
            # Also when it is the output head as well: rows as small as a head's would let every layer's output
            # outweigh the residual stream, and the net would amplify rounding, however calm its layers are.
            return normal(1.0)
        if name.endswith("lm_head.weight"):
            return normal(2 * fan_in)
        residual = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")
        return normal(fan_in * (self.gain if name.endswith(residual) else 1.0))


def unfuse_experts(tensors):
    """The layout that transformers 5 saves and fine-tunes carry: one matrix per expert."""
    out = {}
    for name, value in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            p = name.removesuffix("gate_up_proj")
            for e, both in enumerate(value):
                gate, up = np.split(both, 2)
                out[f"{p}{e}.gate_proj.weight"], out[f"{p}{e}.up_proj.weight"] = gate, up
        elif name.endswith("experts.down_proj"):
            p = name.removesuffix("down_proj")
            out |= {f"{p}{e}.down_proj.weight": down for e, down in enumerate(value)}
        else:
            out[name] = value
    return out
