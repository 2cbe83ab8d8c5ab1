"""Seeded random networks in the layout of the release of Kimi-Linear: layers of the delta rule whose keys have a decay for
each channel, latent attention without rotation, the router and the dense layers of DeepSeek-V3 under other keys.

They have what a slip would leave out: lists of layers that count from one and follow no interval, other heads in the two
kinds of layers, decays from nearly none to nearly all of a channel, taps of the convolutions that all differ.
"""

import dataclasses

import numpy as np

import latent


@dataclasses.dataclass(frozen=True)
class KimiLinearNet(latent.LatentNet):
    """Shape of a network; rotation of the parent is not used."""

    family: str = "kimi_linear"
    layers: int = 5
    attends: tuple = (3, 5)
    linear_heads: int = 3
    linear_dim: int = 32
    kernel: int = 4
    groups: int = 1
    kept: int = 1
    scale: float = 2.446
    query_rank: int | None = None
    stretched: bool = False

    def config(self, dtype="bfloat16"):
        return {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": self.family,
            "dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "head_dim": self.hidden // self.heads,
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "num_nextn_predict_layers": 0,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "kv_lora_rank": self.rank,
            "q_lora_rank": self.query_rank,
            "qk_nope_head_dim": self.plain,
            "qk_rope_head_dim": self.rotated,
            "v_head_dim": self.value,
            "mla_use_nope": True,
            "linear_attn_config": {
                "full_attn_layers": list(self.attends),
                "kda_layers": [layer for layer in range(1, self.layers + 1) if layer not in self.attends],
                "num_heads": self.linear_heads,
                "head_dim": self.linear_dim,
                "short_conv_kernel_size": self.kernel,
            },
            "num_experts": self.experts,
            "num_experts_per_token": self.top_k,
            "num_shared_experts": self.shared,
            "num_expert_group": self.groups,
            "topk_group": self.kept,
            "use_grouped_topk": True,
            "moe_renormalize": self.norm_topk,
            "moe_router_activation_func": "sigmoid",
            "moe_layer_freq": 1,
            "first_k_dense_replace": self.dense,
            "routed_scaling_factor": self.scale,
            "hidden_act": "silu",
            "model_max_length": 4096,
            "rms_norm_eps": 1e-5,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "eos_token_id": 0,
            "bos_token_id": 0,
            "pad_token_id": 0,
        }

    def _attention_shapes(self, p):
        layer = int(p.removeprefix(f"{self.prefix}layers.").split(".")[0])
        if layer + 1 in self.attends:
            return super()._attention_shapes(p)
        h, dim, width = self.hidden, self.linear_dim, self.linear_heads * self.linear_dim
        shapes = {f"{p}{part}_proj.weight": (width, h) for part in "qkv"}
        shapes |= {f"{p}{part}_conv1d.weight": (width, 1, self.kernel) for part in "qkv"}
        for part in "fg":
            shapes |= {f"{p}{part}_a_proj.weight": (dim, h), f"{p}{part}_b_proj.weight": (width, dim)}
        return shapes | {
            p + "b_proj.weight": (self.linear_heads, h),
            p + "A_log": (1, 1, self.linear_heads, 1),
            p + "dt_bias": (width,),
            p + "o_norm.weight": (dim,),
            p + "o_proj.weight": (h, width),
        }

    def _draw(self, name, shape):
        drawn = super()._draw(name, shape)
        if name.endswith("conv1d.weight"):
            return drawn  # by the taps, which are what is summed
        if name.endswith("A_log"):
            return (drawn * shape[2] ** 0.5).astype(np.float32)
        if name.endswith("dt_bias"):
            return (drawn * shape[0] ** 0.5 - 2).astype(np.float32)
        return drawn


def as_modules(tensors):
    """Tensors under the names of a GGUF or MLX file's layers as the modules of transformers have them."""
    out, taps = {}, {}
    for name, value in tensors.items():
        p, _, rest = name.rpartition("self_attn.")
        if rest.endswith(("_conv1d.weight", "_conv.conv.weight")):
            taps.setdefault(p, {})[rest[0]] = value.reshape(max(value.shape), 1, -1)
        elif rest in ("A_log", "dt_bias") or rest.startswith(("f_a_proj", "f_b_proj")):
            out[f"{p}self_attn.forget_gate.{rest}"] = value.reshape(1, 1, -1, 1) if rest == "A_log" else value
        else:
            out[name.replace(".mlp.e_score", ".mlp.gate.e_score")] = value
    for p, parts in taps.items():
        out[p + "self_attn.conv1d.weight"] = np.concatenate([parts[part] for part in "qkv"])
    return out
