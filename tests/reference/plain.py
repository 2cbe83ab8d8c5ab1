"""Seeded random networks of plain attention, in the layout of the released checkpoints: OLMoE, dots.llm1, Solar-Open,
Hy3, Qwen3-VL-MoE's text, ERNIE 4.5 and K-EXAONE.

They share what `latent.py` draws: norms that are not one, a bias of the choice that changes it, widths that all differ,
dense layers first. Here is what differs: keys, names, and which parts a family has.
"""

import dataclasses

import latent

CLASSES = {
    "olmoe": "OlmoeForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "solar_open": "SolarOpenForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone_moe": "ExaoneMoeForCausalLM",
}
WHOLE_NORMS = ("olmoe",)
HEAD_NORMS = ("dots1", "hy_v3", "qwen3_vl_moe", "exaone_moe")
SOFTMAX = ("olmoe", "qwen3_vl_moe")


@dataclasses.dataclass(frozen=True)
class PlainNet(latent.LatentNet):
    """Shape of a network; ranks and groups of the parent are not used."""

    family: str = "olmoe"
    shared: int = 2
    groups: int = 1
    kept: int = 1
    biases: bool = False
    window: int = 24
    stretched: bool = False

    def config(self, dtype="bfloat16"):
        common = {
            "architectures": [CLASSES[self.family]],
            "model_type": self.family,
            "torch_dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": self.tied,
            "eos_token_id": 0,
            "bos_token_id": 0,
        }
        config = common | getattr(self, f"_{self.family}")()
        return self._with_pictures(config) if self.family == "qwen3_vl_moe" else config

    def _with_pictures(self, text):
        text["model_type"] += "_text"
        vision = {
            "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
            "out_hidden_size": self.hidden, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        }
        return {
            "architectures": text.pop("architectures"),
            "model_type": self.family,
            "text_config": text,
            "tie_word_embeddings": self.tied,
            "vision_config": vision | {"model_type": self.family},
            "image_token_id": self.vocabulary - 2,
            "video_token_id": self.vocabulary - 1,
            "vision_start_token_id": self.vocabulary - 4,
            "vision_end_token_id": self.vocabulary - 3,
        }

    @property
    def prefix(self):
        return "model.language_model." if self.family == "qwen3_vl_moe" else "model."

    def _qwen3_vl_moe(self):
        pairs = self.head_dim // 2
        return {
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "head_dim": self.head_dim,
            "intermediate_size": self.dense_width,
            "mlp_only_layers": [],
            "moe_intermediate_size": self.expert_width,
            "norm_topk_prob": True,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "rope_scaling": {
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3],
            },
            "rope_theta": 5000000,
        }

    def _olmoe(self):
        return {
            "attention_bias": False,
            "clip_qkv": None,
            "intermediate_size": self.expert_width,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "norm_topk_prob": self.norm_topk,
            "rope_scaling": None,
            "rope_theta": 10000.0,
        }

    def _dots1(self):
        return self._sigmoids() | {
            "attention_bias": False,
            "scoring_func": "noaux_tc",
            "rope_scaling": None,
            "rope_theta": 10000000,
            "sliding_window": None,
            "max_window_layers": self.layers,
        }

    def _solar_open(self):
        return self._sigmoids() | {
            "attention_bias": self.biases,
            "head_dim": self.head_dim,
            "scoring_func": "sigmoid",
            "partial_rotary_factor": 1.0,
            "rope_scaling": self._yarn() if self.stretched else None,
            "rope_theta": 1000000,
            "use_qk_norm": False,
        }

    def _hy_v3(self):
        return {
            "attention_bias": False,
            "head_dim": self.head_dim,
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_shared_experts": self.shared,
            "num_nextn_predict_layers": 1,
            "first_k_dense_replace": self.dense,
            "route_norm": True,
            "router_scaling_factor": self.scale,
            "rope_parameters": {"rope_type": "default", "rope_theta": 11158840.0},
        }

    def _ernie4_5_moe(self):
        return {
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "moe_num_experts": self.experts,
            "moe_k": self.top_k,
            "moe_num_shared_experts": self.shared,
            "moe_layer_start_index": self.dense,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
            "moe_use_aux_free": True,
            "num_nextn_predict_layers": 1,
            "rope_theta": 500000.0,
            "use_bias": False,
        }

    def _exaone_moe(self):
        kinds = ["full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(self.layers)]
        own = {
            "head_dim": self.head_dim,
            "is_moe_layer": [i >= self.dense for i in range(self.layers)],
            "layer_types": kinds,
            "num_experts": self.experts,
            "num_nextn_predict_layers": 1,
            "num_shared_experts": self.shared,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
            "scoring_func": "sigmoid",
            "sliding_window": self.window,
            "sliding_window_pattern": "LLLG",
        }
        counted = ("n_routed_experts", "n_shared_experts")
        return {key: value for key, value in self._sigmoids().items() if key not in counted} | own

    def _sigmoids(self):
        return {
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "n_routed_experts": self.experts,
            "n_shared_experts": self.shared,
            "num_experts_per_tok": self.top_k,
            "first_k_dense_replace": self.dense,
            "n_group": self.groups,
            "topk_group": self.kept,
            "topk_method": "noaux_tc",
            "norm_topk_prob": self.norm_topk,
            "routed_scaling_factor": self.scale,
        }

    @staticmethod
    def _yarn():
        return {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}

    def skipped_tensors(self):
        if self.family == "qwen3_vl_moe":
            names = ["model.visual.merger.norm.bias"]
        elif self.family == "ernie4_5_moe":
            names = ["model.mtp_block.0.input_layernorm.weight", "model.mtp_emb_norm.0.weight"]
        else:
            return super().skipped_tensors()
        return {name: self._draw(name, (16,)) for name in names}

    def _draw(self, name, shape):
        drawn = super()._draw(name, shape)
        # Probabilities of a softmax are small, and so is what moves their choice.
        small = self.family == "ernie4_5_moe" and name.endswith("e_score_correction_bias")
        return drawn / 8 if small else drawn

    def _attention_shapes(self, p):
        shapes = self._plain_attention_shapes(p)
        if self.family in WHOLE_NORMS:
            shapes |= {p + "q_norm.weight": (self.heads * self.head_dim,)}
            shapes |= {p + "k_norm.weight": (self.kv_heads * self.head_dim,)}
        if self.family in HEAD_NORMS:
            shapes |= {p + "q_norm.weight": (self.head_dim,), p + "k_norm.weight": (self.head_dim,)}
        return shapes

    def _network_shapes(self, p, dense):
        shapes = super()._network_shapes(p, dense)
        if self.family in SOFTMAX:
            shapes.pop(p + "gate.e_score_correction_bias", None)
        return shapes
