"""Logits and greedy continuation of a checkpoint, by transformers in float32 on the CPU.

Which token ids are scored is not left to chance. Where the k-th and the (k+1)-th logit of a router,
or the two best logits of a greedy step, agree to within rounding, two correct implementations may
decide differently and part from there. `reference` therefore draws token ids from consecutive
seeds until no decision is that close.
"""

import json
import os
import pathlib
import tempfile

# Some virtual machines advertise AMX but hide its CPUID leaf, on which oneDNN stops.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers

import chosen_rows
import deepseek_v4
import families_gguf
import flash_next
import flash_next_fp8
import flash_next_gguf
import gemma4
import gemma4_gguf
import gguf_format
import glm_next
import gptoss
import kimi_linear
import latent
import mlx_format
import release
import rounded_rows
from safetensors_file import Stored

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

GREEDY_TOKENS = 32
ROUTER_MARGIN = 2e-4  # between the logits of the last expert chosen and the first left out
INDEX_MARGIN = 2e-5  # between the scores of the last compressed row seen and the first not seen
GREEDY_MARGIN = 2e-3  # between the best and the second logit of a generated token
SEED_ATTEMPTS = 200
SPECIAL_TOKENS = 3  # ids below are control tokens, which the scored text does not contain


def load(folder):
    """The checkpoint in `folder`, Hugging Face, MLX or GGUF, as a transformers model in float32."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    text = config["model_type"].removesuffix("_text")
    model_class = {
        "qwen3_5_moe": transformers.Qwen3_5MoeForCausalLM,
        "qwen3_moe": transformers.Qwen3MoeForCausalLM,
        "qwen3_next": transformers.Qwen3NextForCausalLM,
        "qwen4_exp": transformers.Qwen4ExpForCausalLM,
        "gpt_oss": transformers.GptOssForCausalLM,
        "gemma4": transformers.Gemma4ForCausalLM,
        "deepseek_v4": transformers.DeepseekV4ForCausalLM,
        "deepseek_v3": transformers.DeepseekV3ForCausalLM,
        "deepseek_v32": transformers.DeepseekV32ForCausalLM,
        "glm_moe_dsa": transformers.GlmMoeDsaForCausalLM,
        "glm5_next": transformers.Glm5NextForConditionalGeneration,
        "kimi_k2": transformers.DeepseekV3ForCausalLM,
        "minimax_m2": transformers.MiniMaxM2ForCausalLM,
        "glm4_moe": transformers.Glm4MoeForCausalLM,
        "glm4_moe_lite": transformers.Glm4MoeLiteForCausalLM,
        "olmoe": transformers.OlmoeForCausalLM,
        "dots1": transformers.Dots1ForCausalLM,
        "solar_open": transformers.SolarOpenForCausalLM,
        "hy_v3": transformers.HYV3ForCausalLM,
        "ernie4_5_moe": transformers.Ernie4_5_MoeForCausalLM,
        "exaone_moe": transformers.ExaoneMoeForCausalLM,
        "kimi_linear": transformers.KimiLinearForCausalLM,
        "bailing_hybrid": transformers.BailingHybridForCausalLM,
        "qwen3_vl_moe": transformers.Qwen3VLMoeForConditionalGeneration,
    }[text]
    if text == "kimi_k2":  # transformers has it under the name of the model whose parts it has
        config["model_type"] = "deepseek_v3"
    if text == "glm5_next" and "quantization_config" in config:
        with tempfile.TemporaryDirectory() as floats:
            glm_next.write_floats(folder, pathlib.Path(floats))
            return load(floats)
    in_gguf = gguf_format.is_gguf(folder)
    gpt_oss = release.is_family(folder, "gpt_oss")
    v4 = release.is_family(folder, "deepseek_v4")
    gemma = text == "gemma4"
    flash_fp8 = text == "qwen4_exp" and "quantization_config" in config and "quantization" not in config
    if not flash_fp8 and not gemma and not in_gguf and not gpt_oss and not v4 and not mlx_format.is_mlx(folder):
        model = model_class.from_pretrained(
            folder,
            config=transformers.AutoConfig.for_model(**config) if text == "kimi_k2" else None,
            dtype=torch.float32,
            attn_implementation="eager",
        )
        return model.eval()
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    if v4:
        config = deepseek_v4.settings(folder)
    if gemma:
        config = dict(gemma4.text_config(config))
        # The stand-in for CUDA does not know the question that this model's masks ask.
        torch.cuda.is_current_stream_capturing = lambda: False
        torch.cuda.graphs.is_current_stream_capturing = lambda: False
    settings = transformers.AutoConfig.for_model(**config).get_text_config()
    model = model_class(settings).float()
    model.set_attn_implementation("eager")
    if families_gguf.is_of_these(folder):
        tensors = families_gguf.read(folder)
    elif gpt_oss:
        tensors = gptoss.read(folder)
    elif flash_fp8:
        tensors = flash_next_fp8.read(folder)
    elif text == "qwen4_exp" and in_gguf:
        tensors = flash_next_gguf.read(folder)
    elif gemma and in_gguf:
        tensors = gemma4_gguf.read(folder)
    elif gemma and not mlx_format.is_mlx(folder):
        tensors = gemma4.read(folder)
    elif v4:
        tensors = deepseek_v4.read(folder)
    else:
        tensors = (gguf_format if in_gguf else mlx_format).read_as_hugging_face(folder)
        tensors = latent.joined(tensors, config.get("qk_nope_head_dim"))
    if text == "kimi_linear":
        tensors = kimi_linear.as_modules(tensors)
    if settings.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    state = {name: torch.from_numpy(np.array(value)) for name, value in tensors.items()}
    model.load_state_dict(state, strict=True)
    return model.eval()


class RouterMargins:
    """Watches the routers of a model and keeps the smallest margin of any decision."""

    def __init__(self, model, top_k):
        self.smallest = float("inf")
        self.top_k = top_k
        kinds = ("topkrouter", "gemma4textrouter")
        routers = [m for m in model.modules() if type(m).__name__.lower().endswith(kinds)]
        config = model.config.get_text_config()
        kinds = getattr(config, "mlp_layer_types", None) or []
        others = kinds.count("dense") or getattr(config, "first_k_dense_replace", 0)
        others += kinds.count("hash_moe") + getattr(config, "moe_layer_start_index", 0)
        assert len(routers) == config.num_hidden_layers - others, "a router was not found"
        blocks = [m for m in model.modules() if hasattr(m, "e_score_correction_bias") and not hasattr(m, "score_fn")]
        self.biases = {id(getattr(m, "gate", m)): m.e_score_correction_bias for m in blocks}
        self.handles = [router.register_forward_hook(self.watch) for router in routers]
        scorers = [m for m in model.modules() if type(m).__name__ == "DeepseekV4IndexerScorer"]
        self.handles += [scorer.register_forward_hook(self.watch_rows) for scorer in scorers]
        indexers = [m for m in model.modules() if type(m).__name__.endswith("QSAIndexer")]
        if indexers:
            choices = flash_next.FirstOfEqual()
            watch = lambda *_: self.keep(torch.tensor(choices.take() * ROUTER_MARGIN / INDEX_MARGIN))
            self.handles += [indexer.register_forward_hook(watch) for indexer in indexers]
        choosers = [m for m in model.modules() if type(m).__name__ in chosen_rows.INDEXERS]
        if choosers:
            rows = chosen_rows.FirstOfEqual(choosers)
            watch = lambda *_: self.keep(torch.tensor(rows.take() * ROUTER_MARGIN / INDEX_MARGIN))
            self.handles += [chooser.register_forward_hook(watch) for chooser in choosers]
            self.handles += rows.handles
        if scorers:
            self.rate = model.config.compress_rates["compressed_sparse_attention"]
            self.index_top = model.config.index_topk

    def watch_rows(self, _scorer, _inputs, scores):
        """Scores `[batch, tokens, rows]` of compressed rows; a prompt is one call, a step has one token."""
        tokens, rows = scores.shape[1:]
        for token in range(tokens):
            visible = rows if tokens == 1 else (token + 1) // self.rate
            if visible > self.index_top:
                best = scores[0, token, :visible].topk(self.index_top + 1).values
                margin = float(best[-2] - best[-1]) * ROUTER_MARGIN / INDEX_MARGIN
                self.smallest = min(self.smallest, margin)

    def watch(self, router, inputs, output):
        if type(router).__name__ == "Gemma4TextRouter":
            return self.keep_best(output[0].log())  # probabilities of all experts
        logits = inputs[0].reshape(-1, router.weight.shape[1]) @ router.weight.T
        if id(router) in self.biases:
            return self.watch_groups(router, logits, self.biases[id(router)])
        if getattr(router, "bias", None) is not None:
            logits = logits + router.bias
        if hasattr(router, "moe_statics"):
            # A probability changes by a quarter of what its logit changes by, at most.
            logits = 4 * router.moe_statics(logits.softmax(-1))
        if getattr(router, "e_score_correction_bias", None) is not None:
            logits = router.score_fn(logits) + router.e_score_correction_bias
        self.keep_best(logits)

    def keep_best(self, logits):
        """The margin between the last of the best `logits` that is chosen and the first that is not."""
        if logits.shape[1] > self.top_k:
            best = logits.topk(self.top_k + 1).values
            self.keep(best[:, -2] - best[:, -1])

    def watch_groups(self, router, logits, bias):
        """Margins of groups and of experts in those that stay, as what logits would have to change by at least."""
        scores = logits.sigmoid() + bias
        count = getattr(router, "num_group", 1)
        groups = scores.reshape(len(scores), count, -1)
        if count > 1:
            sums = groups.topk(2).values.sum(-1)
            best = sums.topk(router.topk_group + 1).values
            self.keep(4 * (best[:, -2] - best[:, -1]))
            out = torch.ones_like(sums, dtype=torch.bool)
            out.scatter_(1, sums.topk(router.topk_group).indices, False)
            groups = groups.masked_fill(out[..., None], float("-inf"))
        best = groups.flatten(1).topk(self.top_k + 1).values
        self.keep(4 * (best[:, -2] - best[:, -1]))

    def keep(self, margins):
        self.smallest = min(self.smallest, float(margins.min()))

    def remove(self):
        for handle in self.handles:
            handle.remove()


@torch.no_grad()
def reference(model, tokens):
    """Draws `tokens` token ids and returns {ids, logits, greedy} as Stored tensors."""
    config = model.config.get_text_config()
    vocabulary = config.vocab_size
    top_k = getattr(config, "top_k_experts", None) or config.num_experts_per_tok
    margins = RouterMargins(model, top_k)
    for seed in range(SEED_ATTEMPTS):
        random = np.random.default_rng(seed)
        ids = torch.from_numpy(random.integers(SPECIAL_TOKENS, vocabulary - 16, (1, tokens)))
        if getattr(model.config, "ple_layer_ids", None):
            ids[0, list(flash_next.ENDS)] = flash_next.END
        margins.smallest = float("inf")
        logits = model(ids).logits
        if margins.smallest < ROUTER_MARGIN:
            continue
        greedy, greedy_margin = generate(model, ids)
        if margins.smallest >= ROUTER_MARGIN and greedy_margin >= GREEDY_MARGIN:
            break
    else:
        raise RuntimeError(f"no ids without a near tie in {SEED_ATTEMPTS} seeds")
    margins.remove()
    assert bool(logits.isfinite().all())
    return {
        "ids": Stored("I32", ids[0].numpy().astype(np.int32)),
        "logits": Stored("F32", logits[0].numpy().copy()),
        "greedy": Stored("I32", np.array(greedy, np.int32)),
    }


@torch.no_grad()
def rounded(model, ids):
    """Logits of token ids with the cache rounded as in training: {logits}."""
    with rounded_rows.rounding(model.config):
        logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits
    return {"logits": Stored("F32", logits[0].numpy().copy())}


def generate(model, ids):
    """Greedy continuation and the smallest margin between the best two logits on the way."""
    output = model(ids, use_cache=True)
    tokens, margin = [], float("inf")
    for _ in range(GREEDY_TOKENS):
        best = output.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        margin = min(margin, float(best.values[0] - best.values[1]))
        step = torch.tensor([[tokens[-1]]])
        output = model(step, past_key_values=output.past_key_values, use_cache=True)
    return tokens, margin
