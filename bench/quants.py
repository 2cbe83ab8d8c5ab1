"""Which quantisation for which machine: what `flashmoe plan` says of GGUF files that have no weights.

  python3 bench/quants.py FLASHMOE [--models 35B-A3B ...] [--disk 3] [--memory-speed 40]

Each file is the header of a published shape with every tensor of one type, and a hole where the weights would be: a few
megabytes on disk. Experts are of the type named; what every token reads (attention, shared expert, embedding, output)
is Q6_K, or the experts' type where that has more bits, as the usual recipes have it; routers and norms are f32. `plan`
gives what a model takes beside its experts, the least memory and the bytes of a token. Speeds are its formula and its hit
curve (predict.rs, sweep.rs) for machines of several sizes, at the disk and the memory bandwidth given here: those of the
machine that this runs on do not matter, and a hole is read at no cost.
"""
import argparse
import json
import re
import struct
import subprocess
import tempfile
from pathlib import Path

# Number, values and bytes of a block; docs/formats.md.
TYPES = {
    "F32": (0, 1, 4), "Q8_0": (8, 32, 34), "Q6_K": (14, 256, 210), "Q5_K": (13, 256, 176), "Q4_K": (12, 256, 144),
    "IQ4_XS": (23, 256, 136), "Q3_K": (11, 256, 110), "IQ3_XXS": (18, 256, 98), "Q2_K": (10, 256, 84),
    "IQ2_XS": (17, 256, 74)}
TRUNK = "Q6_K"
# Hidden, layers, query heads, value heads of the delta rule, experts, top k, inner width: as `flashmoe synth` has them.
SHAPES = {
    "35B-A3B": (2048, 40, 16, 32, 256, 8, 512),
    "122B-A10B": (3072, 48, 32, 64, 256, 8, 1024),
    "397B-A17B": (4096, 60, 32, 64, 512, 10, 1024)}
KEY_VALUE_HEADS, HEAD, KEY_HEADS, DELTA_HEAD, TAPS, FULL_EVERY = 2, 256, 16, 128, 4, 4
VOCABULARY, CONTEXT, ALIGNMENT = 248320, 262144, 32
# What is expected of a machine lies between these shares of its formula; predict.rs.
SLOWEST, REACHED = 0.85, 0.95
# And between so many seconds of each layer beside its bytes.
LAYER_SECONDS = 30e-6, 200e-6
# What flashmoe takes of the machine's memory by itself, and the context planned for.
BUDGET, PLANNED = 0.85, 32768


def tensors(model, kind):
    """(name, sizes from the innermost, type)."""
    hidden, layers, heads, value_heads, experts, _, inner = SHAPES[model]
    trunk = kind if bits(kind) > bits(TRUNK) else TRUNK
    channels, width = (2 * KEY_HEADS + value_heads) * DELTA_HEAD, value_heads * DELTA_HEAD
    yield "token_embd.weight", (hidden, VOCABULARY), trunk
    yield "output_norm.weight", (hidden,), "F32"
    yield "output.weight", (hidden, VOCABULARY), trunk
    for layer in range(layers):
        matrices, vectors = {}, {"attn_norm.weight": (hidden,), "post_attention_norm.weight": (hidden,)}
        if (layer + 1) % FULL_EVERY == 0:
            matrices |= {"attn_q": (hidden, 2 * heads * HEAD), "attn_k": (hidden, KEY_VALUE_HEADS * HEAD),
                         "attn_v": (hidden, KEY_VALUE_HEADS * HEAD), "attn_output": (heads * HEAD, hidden)}
            vectors |= {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
        else:
            matrices |= {"attn_qkv": (hidden, channels), "attn_gate": (hidden, width), "ssm_beta": (hidden, value_heads),
                         "ssm_alpha": (hidden, value_heads), "ssm_out": (width, hidden)}
            vectors |= {"ssm_conv1d.weight": (TAPS, channels), "ssm_dt.bias": (value_heads,), "ssm_a": (value_heads,),
                        "ssm_norm.weight": (DELTA_HEAD,)}
        matrices |= {"ffn_gate_shexp": (hidden, inner), "ffn_up_shexp": (hidden, inner), "ffn_down_shexp": (inner, hidden)}
        vectors |= {"ffn_gate_inp.weight": (hidden, experts), "ffn_gate_inp_shexp.weight": (hidden,)}
        for name, sizes in matrices.items():
            yield f"blk.{layer}.{name}.weight", sizes, trunk
        for name, sizes in vectors.items():
            yield f"blk.{layer}.{name}", sizes, "F32"
        for name, sizes in (("gate", (hidden, inner)), ("up", (hidden, inner)), ("down", (inner, hidden))):
            yield f"blk.{layer}.ffn_{name}_exps.weight", (*sizes, experts), kind


def bits(kind):
    _, values, size = TYPES[kind]
    return 8 * size / values


def byte_size(sizes, kind):
    _, values, size = TYPES[kind]
    count = 1
    for one in sizes:
        count *= one
    assert sizes[0] % values == 0, (sizes, kind)
    return count // values * size


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def write_file(path, model, kind):
    """The header, and a hole up to the length that the file would have."""
    hidden, layers, heads, value_heads, experts, top_k, inner = SHAPES[model]
    numbers = {
        "block_count": layers, "context_length": CONTEXT, "embedding_length": hidden, "vocab_size": VOCABULARY,
        "attention.head_count": heads, "attention.head_count_kv": KEY_VALUE_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "rope.dimension_count": HEAD // 4, "expert_count": experts,
        "expert_used_count": top_k, "expert_feed_forward_length": inner, "expert_shared_feed_forward_length": inner,
        "ssm.conv_kernel": TAPS, "ssm.state_size": DELTA_HEAD, "ssm.group_count": KEY_HEADS,
        "ssm.time_step_rank": value_heads, "ssm.inner_size": value_heads * DELTA_HEAD,
        "full_attention_interval": FULL_EVERY}
    texts = {"general.architecture": "qwen35moe", "tokenizer.ggml.model": "no_vocab"}
    floats = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e7}
    keys = [string(key) + struct.pack("<I", 8) + string(value) for key, value in texts.items()]
    keys += [string(f"qwen35moe.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    keys += [string(f"qwen35moe.{key}") + struct.pack("<If", 6, value) for key, value in floats.items()]
    keys.append(string("qwen35moe.rope.dimension_sections") + struct.pack("<IIQ4i", 9, 5, 4, 11, 11, 10, 0))
    entries, offset = [], 0
    for name, sizes, stored in tensors(model, kind):
        numbers = struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, TYPES[stored][0], offset)
        entries.append(string(name) + numbers)
        offset += -(-byte_size(sizes, stored) // ALIGNMENT) * ALIGNMENT
    header = struct.pack("<4sIqq", b"GGUF", 3, len(entries), len(keys)) + b"".join(keys + entries)
    start = -(-len(header) // ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(start + offset)
    return start + offset


def plan(program, path):
    """What `plan` says at some memory that this machine can give."""
    refused = ""
    for memory in (4, 6, 8, 10, 12, 14, 16):
        command = [program, "plan", str(path), "--memory", f"{memory}G", "--context", str(PLANNED), "--device", "cpu"]
        ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return json.loads(ran.stdout)
        refused = ran.stderr.strip()
    raise SystemExit(f"{' '.join(command)}: {refused}")


def hit_curve():
    """`plan`'s own: (share of the experts in memory, share of reads that find theirs)."""
    text = (Path(__file__).parents[1] / "crates/flashmoe/src/plan/sweep.rs").read_text()
    start = text.index("HIT_CURVE: ")
    curve = text[start:text.index("];", start)]
    return [(float(x), float(y)) for x, y in re.findall(r"\(([\d.]+), ([\d.]+)\)", curve)]


def hits(curve, share):
    for (x0, y0), (x1, y1) in zip(curve, curve[1:]):
        if share <= x1:
            return y0 + (y1 - y0) * (share - x0) / (x1 - x0)
    return 1.0


def speed(layers, trunk, routed, found, disk, memory):
    """Tokens per second of decoding once the cache is warm."""
    from_memory, from_disk = (trunk + routed) / memory, routed * (1 - found) / disk
    least, most = (seconds * layers for seconds in LAYER_SECONDS)
    return SLOWEST / (from_memory + from_disk + most), REACHED / (max(from_memory, from_disk) + least)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q6_K", "Q4_K", "IQ3_XXS", "IQ2_XS"])
    parser.add_argument("--memory", nargs="+", type=int, default=[8, 16, 32, 64, 128], help="GB of RAM")
    parser.add_argument("--disk", type=float, default=3.0, help="GB/s")
    parser.add_argument("--memory-speed", type=float, default=40.0, help="GB/s")
    arguments = parser.parse_args()
    curve = hit_curve()
    print("| model | experts | file, GB | least memory | " + " | ".join(f"{m} GB" for m in arguments.memory) + " |")
    print("|" + "---|" * (4 + len(arguments.memory)))
    for model in arguments.models:
        for kind in arguments.types:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.gguf"
                length = write_file(path, model, kind)
                said = plan(arguments.program, path)
            experts, top_k = SHAPES[model][4:6]
            whole = sum(byte_size(sizes, of) for name, sizes, of in tensors(model, kind) if "_exps" in name)
            fixed = said["total_bytes"] - said["slot_bytes"]
            cells = []
            for memory in arguments.memory:
                budget = BUDGET * memory * 1e9
                if budget < said["least_budget_bytes"]:
                    cells.append("-")
                    continue
                found = hits(curve, min((budget - fixed) / whole, 1.0))
                sizes = SHAPES[model][1], said["trunk_bytes_per_token"], whole / experts * top_k
                low, high = speed(*sizes, found, 1e9 * arguments.disk, 1e9 * arguments.memory_speed)
                cells.append(f"{low:.0f} to {high:.0f}" if low >= 9.5 else f"{low:.1f} to {high:.1f}")
            least = f"{said['least_budget_bytes'] / 2**30:.1f} GiB"
            print(f"| {model} | {kind} | {length / 1e9:.0f} | {least} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
