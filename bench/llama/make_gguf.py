"""Writes a GGUF of the Qwen3.5-35B-A3B shape with random weights, for speed comparisons with llama.cpp.

  python3 make_gguf.py OUT.gguf [--layers 40]      (needs numpy and gguf; about 19 GB, written at disk speed)

Every matrix that `flashmoe synth 35B-A3B` stores in 4 bits (groups of 64, bf16 scale and bias: 4.5 bits a weight) is Q4_K
here: 4.5 bits a weight as well. Routers, norms and recurrent parameters are f32, as converters write them. Blocks come
from a pool of random ones whose scale and minimum centre the values on zero, so the logits stay finite. The router is
random too, so its choice is nearly uniform: compare with a synthetic flashmoe model whose own router decides.
There is no vocabulary: llama-bench draws random token ids.
"""
import argparse

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

ARCHITECTURE = "qwen35moe"
HIDDEN, VOCABULARY = 2048, 248320
HEADS, KEY_VALUE_HEADS, HEAD = 16, 2, 256
KEY_HEADS, VALUE_HEADS, DELTA_HEAD, TAPS = 16, 32, 128, 4
EXPERTS, TOP_K, INNER, SHARED = 256, 8, 512, 512
FULL_EVERY = 4

BLOCK_VALUES, BLOCK_BYTES = 256, 144    # Q4_K: f16 d, f16 dmin, 12 bytes of 6-bit scales, 128 bytes of nibbles
POOL_BLOCKS = 1 << 19                   # 72 MiB: larger than a second-level cache


def pool(random):
    """Random Q4_K blocks of deviation about 0.02: w = d * scale * q - dmin * minimum, both 6-bit numbers uniform."""
    blocks = random.integers(0, 256, (POOL_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    d = np.float16(0.02 / (36.5 * 7.5))   # root mean square of scale and of q
    blocks[:, 0:2] = np.frombuffer(d.tobytes(), np.uint8)
    blocks[:, 2:4] = np.frombuffer(np.float16(7.5 * d).tobytes(), np.uint8)
    return blocks


def tensors(layers):
    """(name, shape with the input dimension last, kind): kind is `q4` or the mean and deviation of f32 values."""
    q4, small, one = "q4", (0.0, 0.02), (1.0, 0.1)
    channels, width = 2 * KEY_HEADS * DELTA_HEAD + VALUE_HEADS * DELTA_HEAD, VALUE_HEADS * DELTA_HEAD
    yield "token_embd.weight", (VOCABULARY, HIDDEN), q4
    yield "output_norm.weight", (HIDDEN,), one
    yield "output.weight", (VOCABULARY, HIDDEN), q4
    for i in range(layers):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", (HIDDEN,), one
        yield b + "post_attention_norm.weight", (HIDDEN,), one
        if (i + 1) % FULL_EVERY == 0:
            yield b + "attn_q.weight", (2 * HEADS * HEAD, HIDDEN), q4
            yield b + "attn_k.weight", (KEY_VALUE_HEADS * HEAD, HIDDEN), q4
            yield b + "attn_v.weight", (KEY_VALUE_HEADS * HEAD, HIDDEN), q4
            yield b + "attn_output.weight", (HIDDEN, HEADS * HEAD), q4
            yield b + "attn_q_norm.weight", (HEAD,), one
            yield b + "attn_k_norm.weight", (HEAD,), one
        else:
            yield b + "attn_qkv.weight", (channels, HIDDEN), q4
            yield b + "attn_gate.weight", (width, HIDDEN), q4
            yield b + "ssm_conv1d.weight", (channels, TAPS), (0.0, 0.3)
            yield b + "ssm_dt.bias", (VALUE_HEADS,), (0.0, 0.5)
            yield b + "ssm_a", (VALUE_HEADS,), (-2.0, 0.5)
            yield b + "ssm_beta.weight", (VALUE_HEADS, HIDDEN), q4
            yield b + "ssm_alpha.weight", (VALUE_HEADS, HIDDEN), q4
            yield b + "ssm_norm.weight", (DELTA_HEAD,), one
            yield b + "ssm_out.weight", (HIDDEN, width), q4
        yield b + "ffn_gate_inp.weight", (EXPERTS, HIDDEN), small
        yield b + "ffn_gate_exps.weight", (EXPERTS, INNER, HIDDEN), q4
        yield b + "ffn_up_exps.weight", (EXPERTS, INNER, HIDDEN), q4
        yield b + "ffn_down_exps.weight", (EXPERTS, HIDDEN, INNER), q4
        yield b + "ffn_gate_inp_shexp.weight", (HIDDEN,), small
        yield b + "ffn_gate_shexp.weight", (SHARED, HIDDEN), q4
        yield b + "ffn_up_shexp.weight", (SHARED, HIDDEN), q4
        yield b + "ffn_down_shexp.weight", (HIDDEN, SHARED), q4


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
    return values // BLOCK_VALUES * BLOCK_BYTES if kind == "q4" else 4 * values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    writer = GGUFWriter(arguments.out, ARCHITECTURE)
    metadata(writer, arguments.layers)
    all_tensors = list(tensors(arguments.layers))
    for name, shape, kind in all_tensors:
        if kind == "q4":
            packed = (*shape[:-1], shape[-1] // BLOCK_VALUES * BLOCK_BYTES)
            writer.add_tensor_info(name, packed, np.dtype(np.uint8), byte_size(shape, kind), GGMLQuantizationType.Q4_K)
        else:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), byte_size(shape, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file, total = writer.fout[0], 0
    writer.write_padding(file, file.tell())
    blocks = pool(random).reshape(-1)
    for name, shape, kind in all_tensors:
        size = byte_size(shape, kind)
        if kind == "q4":
            left = size
            while left:
                start = int(random.integers(0, POOL_BLOCKS)) * BLOCK_BYTES
                piece = blocks[start:start + left]   # whole blocks: half a block would read values as a scale
                assert len(piece) % BLOCK_BYTES == 0
                file.write(piece.data)
                left -= len(piece)
        else:
            mean, deviation = kind
            file.write(random.normal(mean, deviation, int(np.prod(shape))).astype(np.float32).tobytes())
        writer.write_padding(file, size)
        total += size
    writer.close()
    print(f"{arguments.out}: {total} bytes of tensors")


if __name__ == "__main__":
    main()
