"""Seeded random networks with latent attention, or with the router and the dense layers of such models alone, in the
layout of the released checkpoints: DeepSeek-V3, DeepSeek-V3.2, Kimi-K2, GLM-4.7-Flash, GLM-5, GLM-4.5 and MiniMax-M2.

They have what such models differ in and what a slip would leave out: queries with and without a latent of their own,
one group of experts and several, a bias of the choice that changes it, dense layers first, rotation by YaRN with a
factor of the scores, widths that all differ, and the layer after the last, which is not used. In DeepSeek-V3.2 and
GLM-5 an indexer chooses fewer rows than the text has tokens; in GLM-5 some layers see what the one before chose.
"""

import dataclasses
import math
import re
import zlib

import numpy as np

from nets import CALM, WILD
from safetensors_file import round_to_bf16

CLASSES = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
}


# Parts of names that a release has otherwise, as patterns.
RELEASED = {
    "minimax_m2": {
        ".gate_proj.": ".w1.",
        ".down_proj.": ".w2.",
        ".up_proj.": ".w3.",
        ".mlp.": ".block_sparse_moe.",
        ".gate.e_score": ".e_score",
    },
    "hy_v3": {
        ".mlp.gate.weight": ".mlp.router.gate.weight",
        ".mlp.gate.e_score_correction_bias": ".mlp.expert_bias",
        ".mlp.shared_experts.": ".mlp.shared_mlp.",
    },
    "kimi_linear": {
        r"\.mlp\.experts\.(\d+)\.gate_proj\.": r".block_sparse_moe.experts.\1.w1.",
        r"\.mlp\.experts\.(\d+)\.down_proj\.": r".block_sparse_moe.experts.\1.w2.",
        r"\.mlp\.experts\.(\d+)\.up_proj\.": r".block_sparse_moe.experts.\1.w3.",
        r"\.mlp\.(gate|shared_experts)\.": r".block_sparse_moe.\1.",
    },
    "bailing_hybrid": {
        r"\.self_attn\.o_proj\.": ".attention.dense.",
        r"\.self_attn\.": ".attention.",
        ".mlp.gate.e_score_correction_bias": ".mlp.gate.expert_bias",
        r"^model\.embed_tokens\.": "model.word_embeddings.",
    },
    "exaone_moe": {".mlp.gate.e_score_correction_bias": ".mlp.e_score_correction_bias"},
    "ernie4_5_moe": {".mlp.gate.e_score_correction_bias": ".mlp.moe_statics.e_score_correction_bias"},
}


@dataclasses.dataclass(frozen=True)
class LatentNet:
    """Shape of a network."""

    name: str
    family: str = "deepseek_v3"
    vocabulary: int = 320
    hidden: int = 128
    layers: int = 4
    dense: int = 1
    dense_width: int = 152
    experts: int = 16
    top_k: int = 3
    expert_width: int = 64
    shared: int = 1
    groups: int = 4
    kept: int = 2
    scale: float = 2.5
    heads: int = 4
    query_rank: int | None = 56
    rank: int = 80
    plain: int = 24
    rotated: int = 16
    value: int = 40
    kv_heads: int = 2  # this and the next three for GLM-4.5 and MiniMax-M2 alone
    head_dim: int = 32
    head_norms: bool = False
    biases: bool = True
    stretched: bool = True
    norm_topk: bool = True
    tied: bool = False
    index_heads: int = 0  # this and the next three for DeepSeek-V3.2 and GLM-5 alone
    index_dim: int = 24
    index_top: int = 13
    index_frequency: int = 1
    gain: float = WILD
    seed: int = 1234

    prefix = "model."

    def calm(self):
        return dataclasses.replace(self, name=self.name + "-calm", gain=CALM)

    def has_indexer(self, layer):
        """Whether a layer chooses rows itself: the first two do, and then every so many."""
        return self.index_heads > 0 and max(layer - 1, 0) % self.index_frequency == 0

    def _index_config(self):
        if not self.index_heads:
            return {}
        sizes = {"index_n_heads": self.index_heads, "index_head_dim": self.index_dim, "index_topk": self.index_top}
        if self.family == "glm_moe_dsa":
            rope = {"rope_theta": 1000000, "rope_type": "default"}
            sizes |= {"indexer_rope_interleave": True, "index_topk_freq": self.index_frequency, "rope_parameters": rope}
        return sizes

    def config(self, dtype="bfloat16"):
        if self.family == "minimax_m2":
            return self._minimax_config(dtype)
        if self.family == "glm4_moe":
            attention = {
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
                "partial_rotary_factor": 0.5,
                "use_qk_norm": self.head_norms,
                "attention_bias": self.biases,
            }
        else:
            attention = {
                "num_key_value_heads": self.heads,
                "q_lora_rank": self.query_rank,
                "kv_lora_rank": self.rank,
                "qk_nope_head_dim": self.plain,
                "qk_rope_head_dim": self.rotated,
                "v_head_dim": self.value,
                "attention_bias": False,
            }
        config = attention | {
            "architectures": [CLASSES[self.family]],
            "model_type": self.family,
            "torch_dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "num_nextn_predict_layers": 1,
            "num_attention_heads": self.heads,
            "n_routed_experts": self.experts,
            "n_shared_experts": self.shared,
            "num_experts_per_tok": self.top_k,
            "first_k_dense_replace": self.dense,
            "n_group": self.groups,
            "topk_group": self.kept,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": self.norm_topk,
            "routed_scaling_factor": self.scale,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000,
            "rope_scaling": self._yarn() if self.stretched else None,
            "tie_word_embeddings": self.tied,
            "eos_token_id": 0,
            "bos_token_id": 0,
        }
        if self.family == "glm_moe_dsa":
            del config["rope_theta"], config["rope_scaling"]
        return config | self._index_config()

    def _minimax_config(self, dtype):
        return {
            "architectures": [CLASSES[self.family]],
            "model_type": self.family,
            "torch_dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rotary_dim": self.rotated,
            "num_local_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "scoring_func": "sigmoid",
            "shared_intermediate_size": 0,
            "use_qk_norm": True,
            "use_routing_bias": True,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5000000,
            "tie_word_embeddings": self.tied,
            "eos_token_id": 0,
            "bos_token_id": 0,
        }

    @staticmethod
    def _yarn():
        return {
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 64,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
        }

    def shapes(self):
        """{name: shape} of every tensor, experts fused."""
        h, p, out = self.hidden, self.prefix, {}
        out[p + "embed_tokens.weight"] = (self.vocabulary, h)
        for i in range(self.layers):
            layer = f"{p}layers.{i}."
            out |= self._attention_shapes(layer + "self_attn.")
            if self.has_indexer(i):
                out |= self._indexer_shapes(layer + "self_attn.indexer.")
            out |= self._network_shapes(layer + "mlp.", i < self.dense)
            out[layer + "input_layernorm.weight"] = (h,)
            out[layer + "post_attention_layernorm.weight"] = (h,)
        out[p + "norm.weight"] = (h,)
        if not self.tied:
            out["lm_head.weight"] = (self.vocabulary, h)
        return out

    def _attention_shapes(self, p):
        if self.family in ("glm4_moe", "minimax_m2"):
            return self._plain_attention_shapes(p)
        query = self.heads * (self.plain + self.rotated)
        if self.query_rank is None:
            queries = {p + "q_proj.weight": (query, self.hidden)}
        else:
            queries = {
                p + "q_a_proj.weight": (self.query_rank, self.hidden),
                p + "q_a_layernorm.weight": (self.query_rank,),
                p + "q_b_proj.weight": (query, self.query_rank),
            }
        return queries | {
            p + "kv_a_proj_with_mqa.weight": (self.rank + self.rotated, self.hidden),
            p + "kv_a_layernorm.weight": (self.rank,),
            p + "kv_b_proj.weight": (self.heads * (self.plain + self.value), self.rank),
            p + "o_proj.weight": (self.hidden, self.heads * self.value),
        }

    def _indexer_shapes(self, p):
        return {
            p + "wq_b.weight": (self.index_heads * self.index_dim, self.query_rank),
            p + "wk.weight": (self.index_dim, self.hidden),
            p + "k_norm.weight": (self.index_dim,),
            p + "k_norm.bias": (self.index_dim,),
            p + "weights_proj.weight": (self.index_heads, self.hidden),
        }

    def _plain_attention_shapes(self, p):
        rows = {"q": self.heads * self.head_dim, "k": self.kv_heads * self.head_dim}
        rows["v"] = rows["k"]
        shapes = {f"{p}{part}_proj.weight": (count, self.hidden) for part, count in rows.items()}
        if self.family == "minimax_m2":
            shapes |= {p + "q_norm.weight": (rows["q"],), p + "k_norm.weight": (rows["k"],)}
        if self.biases:
            shapes |= {f"{p}{part}_proj.bias": (count,) for part, count in rows.items()}
        if self.head_norms:
            shapes |= {p + "q_norm.weight": (self.head_dim,), p + "k_norm.weight": (self.head_dim,)}
        return shapes | {p + "o_proj.weight": (self.hidden, rows["q"])}

    def _network_shapes(self, p, dense):
        h, f = self.hidden, self.expert_width
        network = lambda p, width: {
            p + "gate_proj.weight": (width, h),
            p + "up_proj.weight": (width, h),
            p + "down_proj.weight": (h, width),
        }
        if dense:
            return network(p, self.dense_width)
        mixture = {
            p + "gate.weight": (self.experts, h),
            p + "gate.e_score_correction_bias": (self.experts,),
            p + "experts.gate_up_proj": (self.experts, 2 * f, h),
            p + "experts.down_proj": (self.experts, h, f),
        }
        return mixture | (network(p + "shared_experts.", self.shared * f) if self.shared else {})

    def tensors(self):
        """{name: float32 array} of the language model, as most families name its parts."""
        return {name: self._draw(name, shape) for name, shape in self.shapes().items()}

    def skipped_tensors(self):
        """What a released checkpoint has for drafts, and frequencies that follow from the configuration."""
        h, p = self.hidden, f"{self.prefix}layers.{self.layers}."
        names = {
            p + "enorm.weight": (h,),
            p + "eh_proj.weight": (h, 2 * h),
            p + "shared_head.head.weight": (self.vocabulary, h),
            p + "self_attn.o_proj.weight": (h, h),
            p + "mlp.experts.0.gate_proj.weight": (self.expert_width, h),
            f"{self.prefix}layers.0.self_attn.rotary_emb.inv_freq": (self.rotated // 2,),
        }
        if self.index_heads:
            names[p + "self_attn.indexer.wk.weight"] = (self.index_dim, h)
        return {name: self._draw(name, shape) for name, shape in names.items()}

    def _draw(self, name, shape):
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        normal = lambda scale: round_to_bf16(random.standard_normal(shape) * scale)
        fan_in = 1 / math.sqrt(shape[-1])
        if name.endswith("norm.weight"):
            return (1 + random.integers(-32, 33, shape) / 128.0).astype(np.float32)
        if name.endswith("e_score_correction_bias"):
            return normal(0.2)
        if name.endswith(("_proj.bias", "k_norm.bias")):
            return normal(0.3)
        if name.endswith("mlp.gate.weight"):
            return normal(2 * fan_in)
        if name.endswith("embed_tokens.weight"):
            return normal(1.0)
        if name.endswith("lm_head.weight"):
            return normal(2 * fan_in)
        residual = ("o_proj.weight", "down_proj.weight", "down_proj")
        return normal(fan_in * (self.gain if name.endswith(residual) else 1.0))


def joined(tensors, plain):
    """As the release has it what mlx-lm parts: the rows of keys and of values of each head in one matrix."""
    out = dict(tensors)
    for name in [n for n in tensors if n.endswith("embed_q.weight")]:
        p = name.removesuffix("embed_q.weight")
        keys, values = np.moveaxis(out.pop(name), 1, 2), out.pop(p + "unembed_out.weight")
        assert keys.shape[1] == plain, "keys are transposed"
        both = np.concatenate([keys, values], axis=1)
        out[p + "kv_b_proj.weight"] = np.ascontiguousarray(both.reshape(-1, both.shape[-1]))
    return out


def released(tensors, family):
    """Names of tensors, experts apart, as the release of a family has them."""
    names, out = RELEASED.get(family, {}), {}
    for name, value in tensors.items():
        for ours, theirs in names.items():
            name = re.sub(ours, theirs, name)
        out[name] = value
    return out
