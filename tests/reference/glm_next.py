"""Seeded random networks in the layout of the release of GLM-5.3-Flash: the delta rule with bounded decays by channel,
latent attention without a shared key to pools of rows that an indexer chooses, streams that are mixed and whose mean the
head reads, activations clamped in every network.

They have what a slip would leave out: layers in an order that no interval gives, one that sees what the layer before it
chose, a text that ends in an incomplete pool, fewer pools than the text has, clamps that are met, and tensors of the
draft layer and of the vision tower, which are not used.
"""

import dataclasses
import json
import pathlib

import numpy as np

import flash_next_fp8
import kimi_linear
import mlx_format
import nets
import release
import safetensors_file
from safetensors_file import encode, round_to_bf16


@dataclasses.dataclass(frozen=True)
class GlmNextNet(kimi_linear.KimiLinearNet):
    """Shape of a network; `attends` counts from one, `shares` are those of them that choose nothing themselves."""

    family: str = "glm5_next"
    layers: int = 6
    attends: tuple = (2, 3, 5)
    shares: tuple = (3,)
    scale: float = 2.5
    query_rank: int | None = 56
    rotated: int = 0
    streams: int = 4
    pool: int = 16
    index_heads: int = 4
    index_top: int = 32
    limit: float = 0.5
    bound: float = -5.0
    published: bool = True  # keys of the delta rule in an object of their own, or as transformers saves them

    prefix = "model.language_model."

    def has_indexer(self, layer):
        return layer + 1 in self.attends and layer + 1 not in self.shares

    def config(self, dtype="bfloat16"):
        text = {
            "model_type": self.family + "_text",
            "dtype": dtype,
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "num_nextn_predict_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "kv_lora_rank": self.rank,
            "q_lora_rank": self.query_rank,
            "qk_nope_head_dim": self.plain,
            "qk_rope_head_dim": 0,
            "v_head_dim": self.value,
            "attention_bias": False,
            "layer_types": [self._kind(layer) for layer in range(self.layers)],
            "mlp_layer_types": ["dense" if layer < self.dense else "sparse" for layer in range(self.layers)],
            "indexer_types": ["shared" if layer + 1 in self.shares else "full" for layer in range(self.layers)],
            "index_n_heads": self.index_heads,
            "index_head_dim": self.index_dim,
            "index_topk": self.index_top,
            "index_kpool": self.pool,
            "index_kpool_always_select_tail": True,
            "n_routed_experts": self.experts,
            "n_shared_experts": self.shared,
            "num_experts_per_tok": self.top_k,
            "n_group": self.groups,
            "topk_group": self.kept,
            "norm_topk_prob": self.norm_topk,
            "routed_scaling_factor": self.scale,
            "hidden_act": "silu",
            "swiglu_limit": self.limit,
            "hc_mult": self.streams,
            "hc_eps": 1e-6,
            "hc_sinkhorn_iters": 20,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 0,
            "pad_token_id": 0,
        }
        sizes = {"num_heads": self.linear_heads, "head_dim": self.linear_dim}
        if self.published:
            text["linear_attn_config"] = sizes | {
                "short_conv_kernel_size": self.kernel, "gate_lower_bound": self.bound, "safe_gate": True,
            }
        else:
            text |= {f"linear_{key}": value for key, value in sizes.items()}
            text |= {"linear_conv_kernel_dim": self.kernel, "linear_lower_bound": self.bound, "head_dim": 0}
        return {
            "architectures": ["Glm5NextForConditionalGeneration"],
            "model_type": self.family,
            "tie_word_embeddings": False,
            "image_token_id": self.vocabulary - 3,
            "video_token_id": self.vocabulary - 4,
            "image_start_token_id": self.vocabulary - 5,
            "image_end_token_id": self.vocabulary - 6,
            "video_start_token_id": self.vocabulary - 7,
            "video_end_token_id": self.vocabulary - 8,
            "text_config": text,
            "vision_config": {
                "model_type": self.family + "_vision",
                "depth": 1,
                "hidden_size": 16,
                "num_heads": 2,
                "intermediate_size": 16,
                "out_hidden_size": self.hidden,
                "projection_intermediate_size": 16,
            },
        }

    def _kind(self, layer):
        return "indexed_attention" if layer + 1 in self.attends else "linear_attention"

    def shapes(self):
        sites = self.streams * (2 + self.streams)
        out = super().shapes()
        for layer in range(self.layers):
            for site in ("attn", "ffn"):
                p = f"{self.prefix}layers.{layer}.hc_{site}_"
                out |= {p + "fn": (sites, self.streams * self.hidden), p + "base": (sites,), p + "scale": (3,)}
        return out

    def tensors(self):
        rates = lambda name, value: value.reshape(-1) if name.endswith("A_log") else value
        return {name: rates(name, value) for name, value in super().tensors().items()}

    def _indexer_shapes(self, p):
        return super()._indexer_shapes(p) | {
            p + "index_kpool_compress_gate": (self.index_dim, self.hidden),
            p + "index_kpool_compress_ape": (self.pool, self.index_dim),
        }

    def skipped_tensors(self):
        h, p = self.hidden, f"{self.prefix}layers.{self.layers}."
        names = {
            p + "enorm.weight": (h,),
            p + "eh_proj.weight": (h, 2 * h),
            p + "shared_head.norm.weight": (h,),
            p + "self_attn.o_proj.weight": (h, h),
            p + "self_attn.indexer.index_kpool_compress_ape": (self.pool, self.index_dim),
            p + "mlp.experts.0.gate_proj.weight": (self.expert_width, h),
            "model.visual.post_layernorm.weight": (16,),
        }
        return {name: self._draw(name, shape) for name, shape in names.items()}

    def _draw(self, name, shape):
        drawn = super()._draw(name, shape)
        if name.endswith("_scale"):
            return np.array([0.875, 1.125, 0.75], np.float32)
        if name.endswith(("_base", "_ape")):
            return round_to_bf16(drawn * shape[-1] ** 0.5 / 2)
        return drawn * 2 if name.endswith(("_fn", "compress_gate")) else drawn


QUANTISED = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def write_fp8(folder, net):
    """As published in 8-bit floats: matrices in tiles, but for both ends, routers, streams and the indexer's weights."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {}
    for name, value in nets.unfuse_experts(net.tensors()).items():
        linear = name.endswith(("_proj.weight", "wq_b.weight", "wk.weight")) and "weights_proj" not in name
        if linear:
            stored |= {name.removesuffix("weight") + end: part for end, part in flash_next_fp8.in_tiles(value).items()}
        else:
            stored[name] = encode(value, "F32" if name.endswith(("A_log", "_bias")) else "BF16")
    safetensors_file.write(folder / "model.safetensors", stored, metadata={"format": "pt"})
    release.configure(folder, net.config() | {"quantization_config": QUANTISED})


def write_floats(folder, target):
    """The values of a quantised checkpoint, in 8-bit floats or as MLX writes them, as the release has them in float32."""
    config = json.loads((folder / "config.json").read_text())
    if "quantization" in config:
        read = mlx_format.read_as_hugging_face(folder)
        long = lambda name: name.replace("model.", GlmNextNet.prefix, 1)
        values = nets.unfuse_experts({long(name): value for name, value in read.items()})
    else:
        stored, values = safetensors_file.read(folder / "model.safetensors"), {}
        for name in (name for name in stored if not name.endswith("_scale_inv")):
            scales, value = stored.get(name + "_scale_inv"), stored[name]
            if scales is not None:
                tiles = flash_next_fp8.spread(scales.values(), value.bits.shape)
                values[name] = flash_next_fp8.floats(value) * tiles
            else:
                values[name] = value.values()
    tensors = {name: encode(value, "F32") for name, value in values.items()}
    safetensors_file.write(target / "model.safetensors", tensors, metadata={"format": "pt"})
    kept = {key: value for key, value in config.items() if not key.startswith("quantization")}
    release.configure(target, kept)
