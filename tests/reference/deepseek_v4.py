"""Seeded random DeepSeek-V4 networks under the names of the published checkpoint.

Every kind of layer is there: a window alone, compressed rows that overlap and are chosen by an indexer, and compressed
rows of more tokens; experts by token and by router. What transformers initialises to zero or one (norms, sinks, biases,
bases and scales of the streams, biases of positions) is random here, so that leaving it out changes the answer.
`read` takes a checkpoint back to the tensors of transformers' modules.
"""

import dataclasses
import json
import math
import pathlib
import re
import zlib

import numpy as np

import safetensors_file
from nets import CALM, WILD
from safetensors_file import Stored, encode, round_to_bf16

SPARSE = 4  # tokens of a compressed row in layers with an indexer
TILE, GROUP = 128, 32
# Values of the codes of 4-bit and 8-bit floats.
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
FP8 = np.array(
    [
        (-1) ** (code >> 7) * ((8 * ((code >> 3 & 15) > 0) + (code & 7)) * 2.0 ** (max(code >> 3 & 15, 1) - 10))
        for code in range(256)
    ],
    np.float32,
)
DTYPES = {"F32": "float32", "BF16": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class DeepseekV4Net:
    """Shape of a network."""

    name: str
    family: str = "deepseek_v4"
    vocabulary: int = 320
    hidden: int = 128
    ratios: tuple = (0, 0, 4, 8, 4)
    hashed: int = 1
    experts: int = 8
    top_k: int = 2
    expert_width: int = 64
    heads: int = 4
    head_dim: int = 64
    rotated: int = 16
    query_rank: int = 64
    output_rank: int = 32
    groups: int = 2
    window: int = 16
    index_heads: int = 16  # with few, several rows score zero, and which of them is seen is not defined
    index_dim: int = 32
    index_top: int = 8
    streams: int = 4
    iterations: int = 20
    limit: float = 10.0
    table: str = "I64"
    dtype: str = "F32"
    published: bool = False  # experts in 4-bit floats, most of the rest in 8-bit floats, as released
    gain: float = WILD
    seed: int = 1234

    def calm(self):
        return dataclasses.replace(self, name=self.name + "-calm", gain=CALM)

    @property
    def layers(self):
        return len(self.ratios)

    def config(self):
        quantized = {
            "expert_dtype": "fp4",
            "quantization_config": {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "scale_fmt": "ue8m0",
                "weight_block_size": [TILE, TILE],
                "activation_scheme": "dynamic",
            },
        }
        return (quantized if self.published else {}) | {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "torch_dtype": DTYPES[self.dtype],
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": 1,
            "head_dim": self.head_dim,
            "q_lora_rank": self.query_rank,
            "o_lora_rank": self.output_rank,
            "o_groups": self.groups,
            "qk_rope_head_dim": self.rotated,
            "sliding_window": self.window,
            "index_n_heads": self.index_heads,
            "index_head_dim": self.index_dim,
            "index_topk": self.index_top,
            "n_routed_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "n_shared_experts": 1,
            "moe_intermediate_size": self.expert_width,
            "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "swiglu_limit": self.limit,
            "hidden_act": "silu",
            "num_hash_layers": self.hashed,
            "hc_mult": self.streams,
            "hc_sinkhorn_iters": self.iterations,
            "hc_eps": 1e-6,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "rope_theta": 10000,
            "compress_rope_theta": 160000,
            # One more than there are layers: that of the draft layer.
            "compress_ratios": [*self.ratios, 0],
            "rope_scaling": {
                "type": "yarn",
                "factor": 16,
                "original_max_position_embeddings": 64,
                "beta_fast": 32,
                "beta_slow": 1,
            },
            "max_position_embeddings": 4096,
            "num_nextn_predict_layers": 1,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
        }

    def shapes(self):
        """{name: shape} of everything but the tables of experts, in the order of the layers."""
        h, d, width = self.hidden, self.head_dim, self.expert_width
        sites = self.streams * (2 + self.streams)
        out = {"embed.weight": (self.vocabulary, h)}
        for i, ratio in enumerate(self.ratios):
            p = f"layers.{i}."
            for site in ("attn", "ffn"):
                out |= {
                    f"{p}hc_{site}_fn": (sites, self.streams * h),
                    f"{p}hc_{site}_base": (sites,),
                    f"{p}hc_{site}_scale": (3,),
                    f"{p}{site}_norm.weight": (h,),
                }
            out |= {
                p + "attn.wq_a.weight": (self.query_rank, h),
                p + "attn.q_norm.weight": (self.query_rank,),
                p + "attn.wq_b.weight": (self.heads * d, self.query_rank),
                p + "attn.wkv.weight": (d, h),
                p + "attn.kv_norm.weight": (d,),
                p + "attn.wo_a.weight": (self.groups * self.output_rank, self.heads // self.groups * d),
                p + "attn.wo_b.weight": (h, self.groups * self.output_rank),
                p + "attn.attn_sink": (self.heads,),
            }
            twice = 2 if ratio == SPARSE else 1
            if ratio:
                out |= self._compressor(p + "attn.compressor.", ratio, twice, d)
            if ratio == SPARSE:
                out |= self._compressor(p + "attn.indexer.compressor.", ratio, twice, self.index_dim)
                out |= {
                    p + "attn.indexer.wq_b.weight": (self.index_heads * self.index_dim, self.query_rank),
                    p + "attn.indexer.weights_proj.weight": (self.index_heads, h),
                }
            out[p + "ffn.gate.weight"] = (self.experts, h)
            if i >= self.hashed:
                out[p + "ffn.gate.bias"] = (self.experts,)
            for module in [f"experts.{e}" for e in range(self.experts)] + ["shared_experts"]:
                for matrix, rows, columns in (("w1", width, h), ("w2", h, width), ("w3", width, h)):
                    out[f"{p}ffn.{module}.{matrix}.weight"] = (rows, columns)
        return out | {
            "norm.weight": (h,),
            "hc_head_fn": (self.streams, self.streams * h),
            "hc_head_base": (self.streams,),
            "hc_head_scale": (1,),
            "head.weight": (self.vocabulary, h),
            # A draft layer's, which nothing reads.
            "mtp.0.enorm.weight": (h,),
        }

    def _compressor(self, prefix, ratio, twice, width):
        return {
            prefix + "wkv.weight": (twice * width, self.hidden),
            prefix + "wgate.weight": (twice * width, self.hidden),
            prefix + "ape": (ratio, twice * width),
            prefix + "norm.weight": (width,),
        }

    def tensors(self):
        """{name: Stored} as the release has them, but for its 8-bit and 4-bit weights."""
        out = {}
        for name, shape in self.shapes().items():
            matrix = name.endswith(".weight") and len(shape) == 2
            if self.published and ".experts." in name:
                out |= self._fp4(name, shape)
                continue
            low = ("wq_a", "wq_b", "attn.wkv", "wo_a", "wo_b", "w1", "w2", "w3")
            if self.published and name.removesuffix(".weight").endswith(low):
                out |= self._fp8(name, shape)
                continue
            out[name] = encode(self._draw(name, shape), self.dtype if matrix else "F32")
        kind = {"I64": np.int64, "I32": np.int32}[self.table]
        for i in range(self.hashed):
            name = f"layers.{i}.ffn.gate.tid2eid"
            random = self._random(name)
            table = np.stack([random.permutation(self.experts)[: self.top_k] for _ in range(self.vocabulary)])
            out[name] = Stored(self.table, table.astype(kind))
        return out

    def _random(self, name):
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def _gain(self, name, shape):
        return (self.gain if name.endswith(("wo_b.weight", "w2.weight")) else 1.0) / math.sqrt(shape[-1])

    def _scales(self, name, shape, deviation):
        """Powers of two about what gives values of this deviation the gain of the matrix."""
        wanted = math.log2(self._gain(name, shape) / deviation)
        random = self._random(name + ".scale")
        return lambda counts: (127 + np.rint(wanted + random.uniform(-1, 1, counts))).astype(np.uint8)

    def _fp4(self, name, shape):
        codes = self._random(name).integers(0, 256, (shape[0], shape[1] // 2), np.uint8)
        scales = self._scales(name, shape, math.sqrt(8.56))((shape[0], shape[1] // GROUP))
        return {
            name: Stored("I8", codes.view(np.int8)),
            name.removesuffix("weight") + "scale": Stored("F8_E8M0", scales),
        }

    def _fp8(self, name, shape):
        random = self._random(name)
        codes = (random.integers(0, 2, shape) << 7 | random.integers(0, 11, shape) << 3 | random.integers(0, 8, shape))
        deviation = float(np.sqrt((FP8[codes] ** 2).mean()))
        tiles = tuple(-(-size // TILE) for size in shape)
        return {
            name: Stored("F8_E4M3", codes.astype(np.uint8)),
            name.removesuffix("weight") + "scale": Stored("F8_E8M0", self._scales(name, shape, deviation)(tiles)),
        }

    def _draw(self, name, shape):
        random = self._random(name)
        normal = lambda scale: round_to_bf16(random.standard_normal(shape) * scale)
        fan_in = 1 / math.sqrt(shape[-1])
        if name.endswith("norm.weight"):
            return (1 + random.integers(-32, 33, shape) / 128.0).astype(np.float32)
        if name.endswith("_scale"):
            return (0.75 + random.random(shape) / 2).astype(np.float32)
        if name.endswith("_fn"):
            return normal(2 * fan_in)
        if name.endswith("attn_sink"):
            return normal(2.0)
        if name.endswith(("_base", "ape")):
            return normal(0.5)
        if name.endswith("gate.bias"):
            return normal(0.2)
        if name.endswith("ffn.gate.weight"):
            return normal(3 * fan_in)
        if name == "embed.weight":
            return normal(1.0)
        if name == "head.weight":
            return normal(2 * fan_in)
        if name.endswith("wgate.weight"):
            return normal(2 * fan_in)
        return normal(fan_in * (self.gain if name.endswith(("wo_b.weight", "w2.weight")) else 1.0))


def settings(folder):
    """The configuration as transformers takes it: kinds of layers by name, and how many tokens a row of each has."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    ratios = config.pop("compress_ratios")[: config["num_hidden_layers"]]
    config.pop("quantization_config", None)
    kinds = {0: "sliding_attention", SPARSE: "compressed_sparse_attention"}
    config["layer_types"] = [kinds.get(ratio, "heavily_compressed_attention") for ratio in ratios]
    rates = {kind: ratio for kind, ratio in zip(config["layer_types"], ratios) if ratio}
    config["compress_rates"] = {
        "compressed_sparse_attention": SPARSE, "heavily_compressed_attention": 128, **rates,
    }
    rope = config.pop("rope_scaling")
    rope["rope_type"] = rope.pop("type")
    config["rope_parameters"] = rope
    return config


# From the names of the release to those of transformers' modules.
RENAMES = [
    (r"^embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^hc_head_", "model.hc_head.hc_"),
    (r"^norm\.", "model.norm."),
    (r"^layers\.", "model.layers."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.hc_(attn|ffn)_(fn|base|scale)$", r".\1_hc.\2"),
    (r"\.indexer\.compressor\.", ".compressor.indexer."),
    (r"\.indexer\.weights_proj\.", ".compressor.indexer.scorer.weights_proj."),
    (r"\.attn\.indexer\.wq_b\.", ".attn.compressor.indexer.q_b_proj."),
    (r"(compressor.*)\.norm\.", r"\1.kv_norm."),
    (r"\.ape$", ".position_bias"),
    (r"\.attn_sink$", ".sinks"),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"\.wq_b\.", ".q_b_proj."),
    (r"\.q_norm\.", ".q_a_norm."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.wo_a\.", ".o_a_proj."),
    (r"\.wo_b\.", ".o_b_proj."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"\.shared_experts\.w1\.", ".shared_experts.gate_proj."),
    (r"\.shared_experts\.w2\.", ".shared_experts.down_proj."),
    (r"\.shared_experts\.w3\.", ".shared_experts.up_proj."),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
]


def dequantized(stored):
    """{name: Stored} with 4-bit and 8-bit floats as float32."""
    out = {}
    for name, tensor in stored.items():
        scale = stored.get(name.removesuffix("weight") + "scale") if name.endswith(".weight") else None
        if tensor.dtype == "F8_E8M0":
            continue
        if scale is None:
            out[name] = tensor
            continue
        factors = np.ldexp(np.float32(1), scale.bits.astype(np.int32) - 127)
        if tensor.dtype == "I8":
            codes = tensor.bits.view(np.uint8)
            values = np.stack([FP4[codes & 15], FP4[codes >> 4]], axis=-1).reshape(len(codes), -1)
            factors = factors.repeat(GROUP, axis=1)
        else:
            values = FP8[tensor.bits]
            factors = factors.repeat(TILE, axis=0).repeat(TILE, axis=1)[: values.shape[0], : values.shape[1]]
        out[name] = Stored("F32", (values * factors).astype(np.float32))
    return out


def read(folder):
    """{name: values} as transformers' modules have them."""
    stored = dequantized(safetensors_file.read(pathlib.Path(folder) / "model.safetensors"))
    whole = lambda tensor: tensor.dtype.startswith("I")
    return as_modules({name: it.bits if whole(it) else it.values() for name, it in stored.items()})


def as_modules(released):
    """{name: values} as transformers' modules have them, from those of the release."""
    out, experts = {}, {}
    for name, values in released.items():
        if name.startswith("mtp."):
            continue
        match = re.fullmatch(r"layers\.(\d+)\.ffn\.experts\.(\d+)\.(w\d)\.weight", name)
        if match:
            layer, expert, matrix = match.groups()
            experts.setdefault(int(layer), {})[int(expert), matrix] = values
            continue
        for pattern, replacement in RENAMES:
            name = re.sub(pattern, replacement, name)
        out[name] = values.astype(np.int64) if values.dtype.kind == "i" else values
    for layer, matrices in experts.items():
        count = len(matrices) // 3
        prefix = f"model.layers.{layer}.mlp.experts."
        gate_up = [np.concatenate([matrices[e, "w1"], matrices[e, "w3"]]) for e in range(count)]
        out[prefix + "gate_up_proj"] = np.stack(gate_up)
        out[prefix + "down_proj"] = np.stack([matrices[e, "w2"] for e in range(count)])
    return out
