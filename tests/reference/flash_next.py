"""Seeded random Qwen3.8-Flash-Next networks in the layout of the release, and what the reference needs for them.

Every kind of layer is there: the delta rule with a gate by sigmoid, attention whose budget is shorter than the text, and a
layer of hashed n-grams, whose hash is cut by ends inside the text. Of blocks with equal scores torch.topk may take any;
here it is made to take the first, as flashmoe does.
"""

import dataclasses
import math

import numpy as np

from nets import Net
from safetensors_file import Stored, round_to_bf16

END = 0  # ends a text, and cuts the hash
ENDS = (0, 40, 41, 60)  # places of the text that hold it
GAMMA, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class FlashNextNet(Net):
    """Shape of a network, beyond what a Net has."""

    family: str = "qwen4_exp"
    layers: int = 6
    interval: int = 3
    streams: int = 4
    rank: int = 24
    index_heads: int = 4
    index_dim: int = 32
    budget: int = 32
    block: int = 4
    ngram_layers: tuple = (2,)
    ngram: int = 3
    ngram_heads: int = 4
    ngram_width: int = 128
    kernel: int = 4
    base: int = 50
    divisor: int = 16
    parts: int = 4

    @property
    def prefix(self):
        return "model.language_model."

    def config(self, dtype="bfloat16"):
        """config.json, with the keys that the release carries."""
        kinds = ["full_attention" if self.is_full_attention(i) else "linear_attention" for i in range(self.layers)]
        text = {
            "model_type": "qwen4_exp_text",
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
            "output_gate_type": "sigmoid",
            "moe_intermediate_size": self.expert_width,
            "shared_expert_intermediate_size": self.shared_width,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "norm_topk_prob": True,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "layer_types": kinds,
            "attention_bias": False,
            "hidden_act": "silu",
            "eos_token_id": END,
            "hc_count": self.streams,
            "hc_lowrank": self.rank,
            "indexer_n_heads": self.index_heads,
            "indexer_kv_heads": 1,
            "indexer_head_dim": self.index_dim,
            "indexer_budget": self.budget,
            "indexer_compress_ratio": self.block,
            "ple_layer_ids": list(self.ngram_layers),
            "ple_embed_dim": self.ngram_width,
            "ple_conv_kernel_size": self.kernel,
            "ngram_size": self.ngram,
            "heads_per_ngram": self.ngram_heads,
            "ngram_vocab_size_base": self.base,
            "make_ngram_vocab_size_divisible_by": self.divisor,
            "split_ngram_parts": self.parts,
            "mtp_num_hidden_layers": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000,
                "partial_rotary_factor": 0.25,
                "mrope_section": self._mrope_section(),
                "mrope_interleaved": True,
            },
        }
        return {
            "architectures": ["Qwen4ExpForConditionalGeneration"],
            "model_type": "qwen4_exp",
            "dtype": dtype,
            "tie_word_embeddings": False,
            "text_config": text,
            "image_token_id": self.vocabulary - 2,
            "video_token_id": self.vocabulary - 1,
            "vision_start_token_id": self.vocabulary - 4,
            "vision_end_token_id": self.vocabulary - 3,
        }

    def shapes(self):
        """{name: shape} of every tensor of floats."""
        shapes = super().shapes()
        p, wide = self.prefix, self.streams * self.hidden
        for name in [p + "norm.weight", *(n for n in shapes if n.endswith("layernorm.weight"))]:
            del shapes[name]
        sites = {f"{p}layers.{i}.{part}_hyper_connection." for i in range(self.layers) for part in ("attn", "mlp")}
        for site in sorted(sites) + [p + "hyper_connection_mixer."]:
            shapes[site + "hc_norm.weight"] = (wide,)
            shapes[site + "input_mix_weight_down.weight"] = (self.rank, wide)
            shapes[site + "input_mix_weight_up.weight"] = (wide, self.rank)
            if site in sites:
                shapes[site + "block_inject_weight.weight"] = (self.streams, wide)
        for i in range(self.layers):
            if self.is_full_attention(i):
                indexer = f"{p}layers.{i}.self_attn.indexer."
                shapes[indexer + "index_qk_proj.weight"] = ((self.index_heads + 1) * self.index_dim, self.hidden)
                shapes[indexer + "q_layernorm.weight"] = (self.index_dim,)
                shapes[indexer + "k_layernorm.weight"] = (self.index_dim,)
        for place, number in enumerate(self.ngram_layers):
            ple = f"{p}layers.{number - 1}.ple."
            shapes[ple + "key_proj.weight"] = (wide, self.ngram_width)
            shapes[ple + "value_proj.weight"] = (self.hidden, self.ngram_width)
            for norm in ("norm_key", "norm_query", "norm_conv"):
                shapes[f"{ple}{norm}.weight"] = (wide,)
            shapes[ple + "conv1d.weight"] = (wide, 1, self.kernel)
            rows = -(-sum(self._sizes(place)) // self.divisor) * self.divisor
            assert rows % self.parts == 0
            for part in range(self.parts):
                shard = f"{ple}ple_embedding.ngram_embedding.shard_{part}.weight"
                shapes[shard] = (rows // self.parts, self.ngram_width // self._rows())
        return shapes

    def tensors(self):
        """As a Net's, and the constants of the hash as the release repeats them."""
        tensors = super().tensors()
        for place, number in enumerate(self.ngram_layers):
            sizes = self._sizes(place)
            offsets = np.cumsum([0, *sizes[:-1]])
            ple = f"{self.prefix}layers.{number - 1}.ple.ple_embedding."
            for name, numbers in (
                ("layer_multipliers", self._multipliers(place)),
                ("ngram_heads_vocab_sizes", sizes),
                ("ngram_heads_offsets", offsets),
            ):
                tensors[ple + name] = Stored("I64", np.array(numbers, np.int64))
        return tensors

    def _rows(self):
        return (self.ngram - 1) * self.ngram_heads

    def _sizes(self, place):
        prime = lambda n: n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))
        primes, number = [], self.base
        while len(primes) < (place + 1) * self._rows():
            if prime(number):
                primes.append(number)
            number += 1
        return primes[place * self._rows() :]

    def _multipliers(self, place):
        half = max(1, ((1 << 63) - 1) // self.vocabulary // 2)
        return [2 * (split_mix(1234 + 10007 * place + GAMMA * (i + 1)) % half) + 1 for i in range(self.ngram)]

    def _draw(self, name, shape):
        if ".ngram_embedding." in name:
            return super()._draw(name + ".embed_tokens.weight", shape)
        if name.endswith(("norm_key.weight", "norm_query.weight", "norm_conv.weight")):
            return super()._draw(name + ".norm.weight", shape)
        if name.endswith("ple.value_proj.weight"):
            return round_to_bf16(super()._draw(name, shape) * self.gain)
        return super()._draw(name, shape)


def split_mix(state):
    """SplitMix64, of 64 bits."""
    state = (state + GAMMA) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


class FirstOfEqual:
    """Makes torch.Tensor.topk take the first of equal scores of blocks, and watches how near the cut is."""

    def __init__(self):
        import torch

        self.smallest = float("inf")
        self.ties = 0
        # The stand-ins for CUDA libraries have no streams to ask.
        torch.cuda.is_current_stream_capturing = lambda: False
        torch.cuda.graphs.is_current_stream_capturing = lambda: False
        self.plain = plain = torch.Tensor.topk

        def topk(scores, k, dim=-1, largest=True, sorted=True):
            if scores.dim() != 1 or dim != 0:
                return plain(scores, k, dim, largest, sorted)
            best = torch.sort(scores, descending=True, stable=True)
            if k < len(scores):
                gap = float(best.values[k - 1] - best.values[k])
                self.ties += gap == 0
                # Equal scores are no near tie: both are nothing, however they are computed.
                self.smallest = min(self.smallest, gap or float("inf"))
            return type(plain(scores, k, 0))((best.values[:k], best.indices[:k]))

        torch.Tensor.topk = topk

    def take(self):
        """The smallest distance from the cut since this was last asked."""
        smallest, self.smallest = self.smallest, float("inf")
        return smallest
