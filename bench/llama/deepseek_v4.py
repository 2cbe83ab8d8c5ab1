"""Tensors and keys of a GGUF of DeepSeek-V4-Flash's shape (experts MXFP4, the rest 8 bits), for make_gguf.py."""
from gguf import GGMLQuantizationType as Type

ARCHITECTURE = "deepseek4"
HIDDEN, VOCABULARY, INNER = 4096, 129280, 2048
HEADS, HEAD, ROTATED, WINDOW = 64, 512, 64, 128
QUERY_RANK, OUTPUT_RANK, OUTPUT_GROUPS = 1024, 1024, 8
INDEX_HEADS, INDEX_HEAD, INDEX_TOP = 64, 128, 512
EXPERTS, TOP_K, HASHED, STREAMS = 256, 6, 3, 4
SQRT_SOFTPLUS = 4   # llama.cpp's number of the router's score


def ratio(layer):
    """Tokens of a compressed row."""
    return 0 if layer < 2 else 4 if layer % 2 == 0 else 128


def compressor(prefix, dim, ratio):
    width = 2 * dim if ratio == 4 else dim
    yield prefix + "_kv.weight", (width, HIDDEN), Type.Q8_0
    yield prefix + "_gate.weight", (width, HIDDEN), Type.Q8_0
    yield prefix + "_ape.weight", (ratio, width), (0.0, 0.1)
    yield prefix + "_norm.weight", (dim,), (1.0, 0.1)


def tensors(layers):
    """(name, shape with the input dimension last, kind): kind is a type, the mean and deviation of f32 values, or a range
    of integers below which 32-bit ones are."""
    trunk, small, one = Type.Q8_0, (0.0, 0.02), (1.0, 0.1)
    mixed = (2 + STREAMS) * STREAMS
    yield "token_embd.weight", (VOCABULARY, HIDDEN), trunk
    yield "output_norm.weight", (HIDDEN,), one
    yield "output.weight", (VOCABULARY, HIDDEN), trunk
    yield "output_hc_fn.weight", (STREAMS, STREAMS * HIDDEN), small
    yield "output_hc_base.weight", (STREAMS,), small
    yield "output_hc_scale.weight", (1,), one
    for i in range(layers):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", (HIDDEN,), one
        yield b + "ffn_norm.weight", (HIDDEN,), one
        yield b + "attn_sinks.weight", (HEADS,), one
        yield b + "attn_q_a.weight", (QUERY_RANK, HIDDEN), trunk
        yield b + "attn_q_a_norm.weight", (QUERY_RANK,), one
        yield b + "attn_q_b.weight", (HEADS * HEAD, QUERY_RANK), trunk
        yield b + "attn_kv.weight", (HEAD, HIDDEN), trunk
        yield b + "attn_kv_a_norm.weight", (HEAD,), one
        yield b + "attn_output_a.weight", (OUTPUT_GROUPS * OUTPUT_RANK, HEADS // OUTPUT_GROUPS * HEAD), trunk
        yield b + "attn_output_b.weight", (HIDDEN, OUTPUT_GROUPS * OUTPUT_RANK), trunk
        for site in ("attn", "ffn"):
            yield f"{b}hc_{site}_fn.weight", (mixed, STREAMS * HIDDEN), small
            yield f"{b}hc_{site}_base.weight", (mixed,), small
            yield f"{b}hc_{site}_scale.weight", (3,), one
        if ratio(i):
            yield from compressor(b + "attn_compressor", HEAD, ratio(i))
        if ratio(i) == 4:
            yield b + "indexer.proj.weight", (INDEX_HEADS, HIDDEN), trunk
            yield b + "indexer.attn_q_b.weight", (INDEX_HEADS * INDEX_HEAD, QUERY_RANK), trunk
            yield from compressor(b + "indexer_compressor", INDEX_HEAD, 4)
        yield b + "ffn_gate_inp.weight", (EXPERTS, HIDDEN), small
        if i < HASHED:
            yield b + "ffn_gate_tid2eid.weight", (VOCABULARY, TOP_K), range(EXPERTS)
        else:
            yield b + "exp_probs_b.bias", (EXPERTS,), small
        yield b + "ffn_gate_exps.weight", (EXPERTS, INNER, HIDDEN), Type.MXFP4
        yield b + "ffn_up_exps.weight", (EXPERTS, INNER, HIDDEN), Type.MXFP4
        yield b + "ffn_down_exps.weight", (EXPERTS, HIDDEN, INNER), Type.MXFP4
        yield b + "ffn_gate_shexp.weight", (INNER, HIDDEN), trunk
        yield b + "ffn_up_shexp.weight", (INNER, HIDDEN), trunk
        yield b + "ffn_down_shexp.weight", (HIDDEN, INNER), trunk


def metadata(writer, layers):
    numbers(writer, layers)
    writer.add_float32(f"{ARCHITECTURE}.swiglu_clamp_exp", 10.0)
    writer.add_string("tokenizer.ggml.model", "no_vocab")


def numbers(writer, layers):
    """What a file of any types and vocabulary has."""
    counts = {
        "block_count": layers, "context_length": 1048576, "embedding_length": HIDDEN, "vocab_size": VOCABULARY,
        "attention.head_count": HEADS, "attention.head_count_kv": 1, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.q_lora_rank": QUERY_RANK, "attention.output_lora_rank": OUTPUT_RANK,
        "attention.output_group_count": OUTPUT_GROUPS, "attention.sliding_window": WINDOW,
        "attention.indexer.head_count": INDEX_HEADS, "attention.indexer.key_length": INDEX_HEAD,
        "attention.indexer.top_k": INDEX_TOP, "rope.dimension_count": ROTATED, "expert_count": EXPERTS,
        "expert_used_count": TOP_K, "expert_shared_count": 1, "expert_feed_forward_length": INNER,
        "expert_gating_func": SQRT_SOFTPLUS, "hash_layer_count": HASHED, "hyper_connection.count": STREAMS,
        "hyper_connection.sinkhorn_iterations": 20, "rope.scaling.original_context_length": 65536}
    for key, value in counts.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    reals = {
        "attention.layer_norm_rms_epsilon": 1e-6, "hyper_connection.epsilon": 1e-6, "rope.freq_base": 1e4,
        "attention.compress_rope_freq_base": 1.6e5, "rope.scaling.factor": 16.0, "expert_weights_scale": 1.5,
        "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}
    for key, value in reals.items():
        writer.add_float32(f"{ARCHITECTURE}.{key}", value)
    writer.add_bool(f"{ARCHITECTURE}.expert_weights_norm", True)
    writer.add_array(f"{ARCHITECTURE}.attention.compress_ratios", [ratio(i) for i in range(layers)])
    writer.add_string(f"{ARCHITECTURE}.rope.scaling.type", "yarn")
