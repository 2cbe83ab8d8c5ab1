"""Tensors and keys of a GGUF of DeepSeek-V4-Flash's shape in the types that ds4 reads (experts IQ2_XXS and Q2_K, trunk
Q8_0 and F16), for make_gguf.py. ds4 has its number of layers compiled in: set DS4_N_LAYER in ds4.c to that of the file."""
from gguf import GGMLQuantizationType as Type, TokenType

import deepseek_v4

ARCHITECTURE = deepseek_v4.ARCHITECTURE
# ds4 takes these in 16-bit floats alone.
HALVES = ("token_embd", "hc_attn_fn", "hc_ffn_fn", "output_hc_fn", "compressor_kv", "compressor_gate", "compressor_ape",
          "indexer.attn_q_b", "indexer.proj", "ffn_gate_inp")
CONTROL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"]


def tensors(layers):
    for name, shape, kind in deepseek_v4.tensors(layers):
        part = name.removesuffix(".weight").split(".", 2)[-1]
        if part in HALVES or part.removeprefix("attn_").removeprefix("indexer_") in HALVES:
            kind = Type.F16
        elif part in ("ffn_gate_exps", "ffn_up_exps"):
            kind = Type.IQ2_XXS
        elif part == "ffn_down_exps":
            kind = Type.Q2_K
        yield name, shape, kind


def metadata(writer, layers):
    deepseek_v4.numbers(writer, layers)
    writer.add_array(f"{ARCHITECTURE}.swiglu_clamp_exp", [10.0] * layers)
    # ds4's benchmark reads a text: bytes are tokens of their own, and so no text needs a merge.
    bytes_as_text = [chr(byte) if 33 <= byte < 127 or 161 <= byte < 173 or 174 <= byte else None for byte in range(256)]
    spare = iter(range(256, 512))
    words = [text or chr(next(spare)) for text in bytes_as_text] + ["ee"]
    words += [f"w{number}" for number in range(deepseek_v4.VOCABULARY - len(words) - len(CONTROL))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("joyai-llm")
    writer.add_token_list(words + CONTROL)
    writer.add_token_types([TokenType.NORMAL] * len(words) + [TokenType.CONTROL] * len(CONTROL))
    writer.add_token_merges(["e e"])
    writer.add_bos_token_id(len(words))
    writer.add_eos_token_id(len(words) + 1)
