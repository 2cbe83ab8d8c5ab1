"""Writes a GGUF of the Qwen3.5-35B-A3B shape with random weights, for speed comparisons with llama.cpp.

  python3 make_gguf.py OUT.gguf [--layers 40] [--mix q4|q4_k_m|iq|gpt-oss|deepseek-v4|ds4]    (needs numpy and gguf; 19.6, 21 and 11 GB)

Every matrix that `flashmoe synth 35B-A3B` stores in 4 bits (groups of 64, bf16 scale and bias: 4.5 bits a weight) is Q4_K
here: 4.5 bits a weight as well. `--mix q4_k_m` has Q6_K where llama-quantize's Q4_K_M has it: the output head, values of
attention and down of the experts in the layers that it gives more bits. With `--mix iq` the experts are IQ2_XXS (gate, up)
and IQ3_XXS (down) and the rest Q5_K, as files for small memories have them. Routers, norms and recurrent parameters are f32, as converters write them. Blocks come
from pools of random ones whose scale and minimum centre the values on zero, so the logits stay finite. The router is
random too, so its choice is nearly uniform: compare with a synthetic flashmoe model whose own router decides.
`--mix gpt-oss` is the shape of gpt-oss-120b as released instead (36 layers, 61 GB: name fewer), `--mix deepseek-v4` that
of DeepSeek-V4-Flash (43 layers, 150 GB), `--mix ds4` the same in the types that ds4 reads (81 GB).
There is no vocabulary, but for ds4: llama-bench draws random token ids.
"""
import argparse

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter, quants
from gguf import GGMLQuantizationType as Type

import deepseek_v4
import ds4
import gpt_oss

ARCHITECTURE = "qwen35moe"
HIDDEN, VOCABULARY = 2048, 248320
HEADS, KEY_VALUE_HEADS, HEAD = 16, 2, 256
KEY_HEADS, VALUE_HEADS, DELTA_HEAD, TAPS = 16, 32, 128, 4
EXPERTS, TOP_K, INNER, SHARED = 256, 8, 512, 512
FULL_EVERY = 4

POOL_BYTES = 72 << 20                   # larger than a second-level cache
DEVIATION = 0.02
# Byte of a block's scale, and of its minimum, in binary16; and what a minimum is in scales to centre the values.
SCALES = {Type.Q4_K: (0, 2, 7.5), Type.Q5_K: (0, 2, 15.5), Type.Q6_K: (208, None, 0), Type.IQ2_XXS: (0, None, 0),
          Type.IQ3_XXS: (0, None, 0), Type.Q2_K: (80, 82, 1.5), Type.Q8_0: (0, None, 0)}
# A block of MXFP4 begins with an exponent: 2^(this - 127) times 4-bit floats of deviation 3.
MXFP4_EXPONENT = 120
# The types of trunk, of gate and up of experts, of their down, and of what gets more bits (or none does).
MIXES = {"q4": [*[Type.Q4_K] * 3, None], "q4_k_m": [*[Type.Q4_K] * 3, Type.Q6_K],
         "iq": [Type.Q5_K, Type.IQ2_XXS, Type.IQ3_XXS, None]}
# Other models' shapes.
SHAPES = {"gpt-oss": gpt_oss, "deepseek-v4": deepseek_v4, "ds4": ds4}


def pool(random, kind):
    """Random blocks of deviation about 0.02."""
    size = GGML_QUANT_SIZES[kind][1]
    if kind is Type.F16:
        return random.normal(0, DEVIATION, POOL_BYTES // size).astype(np.float16).view(np.uint8).reshape(-1, size)
    blocks = random.integers(0, 256, (POOL_BYTES // size, size), dtype=np.uint8)
    if kind is Type.MXFP4:
        blocks[:, 0] = MXFP4_EXPONENT
        return blocks
    at, minimum, share = SCALES[kind]
    scale = 1e-3
    for _ in range(2):   # the second time to account for the rounding of the scale
        blocks[:, at:at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        if minimum is not None:
            blocks[:, minimum:minimum + 2] = np.frombuffer(np.float16(share * scale).tobytes(), np.uint8)
        scale *= DEVIATION / float(quants.dequantize(blocks[:4096].reshape(1, -1), kind).std())
    return blocks


def gets_more_bits(layer, layers):
    """llama-quantize's choice for its mixes: the first and last eighth, and each third layer between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors(layers, mix):
    """(name, shape with the input dimension last, kind): kind is a type or the mean and deviation of f32 values."""
    (trunk, first, last, better), small, one = mix, (0.0, 0.02), (1.0, 0.1)
    channels, width = 2 * KEY_HEADS * DELTA_HEAD + VALUE_HEADS * DELTA_HEAD, VALUE_HEADS * DELTA_HEAD
    yield "token_embd.weight", (VOCABULARY, HIDDEN), trunk
    yield "output_norm.weight", (HIDDEN,), one
    yield "output.weight", (VOCABULARY, HIDDEN), better or trunk
    for i in range(layers):
        b = f"blk.{i}."
        more = better if gets_more_bits(i, layers) else None
        yield b + "attn_norm.weight", (HIDDEN,), one
        yield b + "post_attention_norm.weight", (HIDDEN,), one
        if (i + 1) % FULL_EVERY == 0:
            yield b + "attn_q.weight", (2 * HEADS * HEAD, HIDDEN), trunk
            yield b + "attn_k.weight", (KEY_VALUE_HEADS * HEAD, HIDDEN), trunk
            yield b + "attn_v.weight", (KEY_VALUE_HEADS * HEAD, HIDDEN), more or trunk
            yield b + "attn_output.weight", (HIDDEN, HEADS * HEAD), trunk
            yield b + "attn_q_norm.weight", (HEAD,), one
            yield b + "attn_k_norm.weight", (HEAD,), one
        else:
            yield b + "attn_qkv.weight", (channels, HIDDEN), trunk
            yield b + "attn_gate.weight", (width, HIDDEN), trunk
            yield b + "ssm_conv1d.weight", (channels, TAPS), (0.0, 0.3)
            yield b + "ssm_dt.bias", (VALUE_HEADS,), (0.0, 0.5)
            yield b + "ssm_a", (VALUE_HEADS,), (-2.0, 0.5)
            yield b + "ssm_beta.weight", (VALUE_HEADS, HIDDEN), trunk
            yield b + "ssm_alpha.weight", (VALUE_HEADS, HIDDEN), trunk
            yield b + "ssm_norm.weight", (DELTA_HEAD,), one
            yield b + "ssm_out.weight", (HIDDEN, width), trunk
        yield b + "ffn_gate_inp.weight", (EXPERTS, HIDDEN), small
        yield b + "ffn_gate_exps.weight", (EXPERTS, INNER, HIDDEN), first
        yield b + "ffn_up_exps.weight", (EXPERTS, INNER, HIDDEN), first
        yield b + "ffn_down_exps.weight", (EXPERTS, HIDDEN, INNER), more or last
        yield b + "ffn_gate_inp_shexp.weight", (HIDDEN,), small
        yield b + "ffn_gate_shexp.weight", (SHARED, HIDDEN), trunk
        yield b + "ffn_up_shexp.weight", (SHARED, HIDDEN), trunk
        yield b + "ffn_down_shexp.weight", (HIDDEN, SHARED), trunk


def metadata(writer, layers):
    numbers = {
        "block_count": layers, "context_length": 262144, "embedding_length": HIDDEN, "vocab_size": VOCABULARY,
        "attention.head_count": HEADS, "attention.head_count_kv": KEY_VALUE_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "rope.dimension_count": HEAD // 4, "expert_count": EXPERTS,
        "expert_used_count": TOP_K, "expert_feed_forward_length": INNER, "expert_shared_feed_forward_length": SHARED,
        "ssm.conv_kernel": TAPS, "ssm.state_size": DELTA_HEAD, "ssm.group_count": KEY_HEADS,
        "ssm.time_step_rank": VALUE_HEADS, "ssm.inner_size": VALUE_HEADS * DELTA_HEAD, "full_attention_interval": FULL_EVERY}
    for key, value in numbers.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base", 1e7)
    writer.add_array(f"{ARCHITECTURE}.rope.dimension_sections", [11, 11, 10, 0])
    writer.add_string("tokenizer.ggml.model", "no_vocab")


def byte_size(shape, kind):
    values = int(np.prod(shape))
    if not isinstance(kind, Type):
        return 4 * values
    of_block, size = GGML_QUANT_SIZES[kind]
    return values // of_block * size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--mix", choices=[*MIXES, *SHAPES], default="q4")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    if shape := SHAPES.get(arguments.mix):
        writer = GGUFWriter(arguments.out, shape.ARCHITECTURE)
        shape.metadata(writer, arguments.layers)
        all_tensors = list(shape.tensors(arguments.layers))
    else:
        writer = GGUFWriter(arguments.out, ARCHITECTURE)
        metadata(writer, arguments.layers)
        all_tensors = list(tensors(arguments.layers, MIXES[arguments.mix]))
    for name, shape, kind in all_tensors:
        if isinstance(kind, Type):
            packed = (*shape[:-1], byte_size(shape[-1:], kind))
            writer.add_tensor_info(name, packed, np.dtype(np.uint8), byte_size(shape, kind), kind)
        else:
            value = np.int32 if isinstance(kind, range) else np.float32
            writer.add_tensor_info(name, shape, np.dtype(value), byte_size(shape, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file, total = writer.fout[0], 0
    writer.write_padding(file, file.tell())
    pools = {kind: pool(random, kind) for kind in {kind for *_, kind in all_tensors if isinstance(kind, Type)}}
    for name, shape, kind in all_tensors:
        size = byte_size(shape, kind)
        if isinstance(kind, Type):
            blocks, left = pools[kind], size
            while left:
                start = int(random.integers(0, len(blocks)))
                piece = blocks[start:start + left // blocks.shape[1]]   # whole blocks: half of one reads values as a scale
                file.write(np.ascontiguousarray(piece).data)
                left -= piece.nbytes
        elif isinstance(kind, range):
            # Numbers of a row differ, as those of a token's experts do.
            rows = random.integers(0, len(kind), (shape[0], 1)) + np.arange(shape[1])
            file.write((rows % len(kind)).astype(np.int32).tobytes())
        else:
            mean, deviation = kind
            file.write(random.normal(mean, deviation, int(np.prod(shape))).astype(np.float32).tobytes())
        writer.write_padding(file, size)
        total += size
    writer.close()
    print(f"{arguments.out}: {total} bytes of tensors")


if __name__ == "__main__":
    main()
