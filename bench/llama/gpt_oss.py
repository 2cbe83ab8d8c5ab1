"""Tensors and keys of a GGUF of gpt-oss-120b's shape as it is released (experts MXFP4, the rest 8 bits), for make_gguf.py."""
from gguf import GGMLQuantizationType as Type

ARCHITECTURE = "gpt-oss"
HIDDEN, VOCABULARY, INNER = 2880, 201088, 2880
HEADS, KEY_VALUE_HEADS, HEAD = 64, 8, 64
EXPERTS, TOP_K, WINDOW = 128, 4, 128


def tensors(layers):
    """(name, shape with the input dimension last, kind): kind is a type or the mean and deviation of f32 values."""
    trunk, small, one = Type.Q8_0, (0.0, 0.02), (1.0, 0.1)
    query, key = HEADS * HEAD, KEY_VALUE_HEADS * HEAD
    yield "token_embd.weight", (VOCABULARY, HIDDEN), trunk
    yield "output_norm.weight", (HIDDEN,), one
    yield "output.weight", (VOCABULARY, HIDDEN), trunk
    for i in range(layers):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", (HIDDEN,), one
        yield b + "post_attention_norm.weight", (HIDDEN,), one
        for name, rows, columns in (("q", query, HIDDEN), ("k", key, HIDDEN), ("v", key, HIDDEN), ("output", HIDDEN, query)):
            yield f"{b}attn_{name}.weight", (rows, columns), trunk
            yield f"{b}attn_{name}.bias", (rows,), small
        yield b + "attn_sinks.weight", (HEADS,), one
        yield b + "ffn_gate_inp.weight", (EXPERTS, HIDDEN), small
        yield b + "ffn_gate_inp.bias", (EXPERTS,), small
        for name in ("gate", "up", "down"):
            yield f"{b}ffn_{name}_exps.weight", (EXPERTS, INNER, HIDDEN), Type.MXFP4
            yield f"{b}ffn_{name}_exps.bias", (EXPERTS, INNER), small


def metadata(writer, layers):
    numbers = {
        "block_count": layers, "context_length": 131072, "embedding_length": HIDDEN, "vocab_size": VOCABULARY,
        "feed_forward_length": INNER, "attention.head_count": HEADS, "attention.head_count_kv": KEY_VALUE_HEADS,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "attention.sliding_window": WINDOW,
        "rope.dimension_count": HEAD, "expert_count": EXPERTS, "expert_used_count": TOP_K,
        "expert_feed_forward_length": INNER, "rope.scaling.original_context_length": 4096}
    for key, value in numbers.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base", 150000.0)
    writer.add_float32(f"{ARCHITECTURE}.rope.scaling.factor", 32.0)
    writer.add_string(f"{ARCHITECTURE}.rope.scaling.type", "yarn")
    writer.add_string("tokenizer.ggml.model", "no_vocab")
