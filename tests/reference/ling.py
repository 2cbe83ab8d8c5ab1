"""Seeded random networks in the layout of the release of Ling-3: the delta rule with bounded decays that have one matrix,
latent attention whose heads have a gate each, the router of DeepSeek-V3 in groups under names of its own.
"""

import dataclasses

import kimi_linear


@dataclasses.dataclass(frozen=True)
class LingNet(kimi_linear.KimiLinearNet):
    """Shape of a network; heads of the delta rule are as many as those of attention."""

    family: str = "bailing_hybrid"
    groups: int = 4
    kept: int = 2
    scale: float = 2.5
    bound: float = -5.0
    bounded: bool = True

    def config(self, dtype="bfloat16"):
        return {
            "architectures": ["BailingHybridForCausalLM"],
            "model_type": self.family,
            "dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "head_dim": self.linear_dim,
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "num_nextn_predict_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "kv_lora_rank": self.rank,
            "qk_nope_head_dim": self.plain,
            "qk_rope_head_dim": self.rotated,
            "v_head_dim": self.value,
            "layer_types": [
                "full_attention" if layer + 1 in self.attends else "linear_attention" for layer in range(self.layers)
            ],
            "first_k_dense_replace": self.dense,
            "short_conv_kernel_size": self.kernel,
            "kda_safe_gate": self.bounded,
            "kda_lower_bound": self.bound,
            "num_experts": self.experts,
            "num_experts_per_token": self.top_k,
            "num_shared_experts": self.shared,
            "num_expert_group": self.groups,
            "topk_group": self.kept,
            "moe_renormalize": self.norm_topk,
            "routed_scaling_factor": self.scale,
            "hidden_act": "silu",
            "model_max_length": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 6000000.0,
            "tie_word_embeddings": False,
            "eos_token_id": 0,
            "pad_token_id": 0,
        }

    def _attention_shapes(self, p):
        shapes = super()._attention_shapes(p)
        if p + "A_log" not in shapes:
            return shapes | {p + "g_proj.weight": (self.heads, self.hidden)}
        factors = ("f_a_proj.weight", "f_b_proj.weight", "g_a_proj.weight", "g_b_proj.weight")
        kept = {name: shape for name, shape in shapes.items() if not name.endswith(factors)}
        width = self.linear_heads * self.linear_dim
        return kept | {p + "f_proj.weight": (width, self.hidden), p + "g_proj.weight": (width, self.hidden)}

    def tensors(self):
        rates = lambda name, value: value.reshape(-1) if name.endswith("A_log") else value
        return {name: rates(name, value) for name, value in super().tensors().items()}
