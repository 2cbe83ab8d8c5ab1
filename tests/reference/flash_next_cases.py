"""Networks of Qwen3.8-Flash-Next in the layouts of its files."""

import dataclasses

import flash_next
from cases import FLOATS, Case, every_width_and_group, hugging_face_case, own_mlx_case


def flash_gguf_case(net, suffix, kind, table):
    """A net of flash_next.py as llama.cpp's converter writes it, its table in a type of its own."""

    def write(folder):
        import flash_next_gguf

        flash_next_gguf.write(folder, net, kind, table)

    return Case(f"{net.name}-gguf-{suffix}", net, write, quantized=suffix not in FLOATS)


def flash_fp8_case(net):
    """A net of flash_next.py as released in 8-bit floats."""

    def write(folder):
        import flash_next_fp8  # torch is loaded only by those who need it

        flash_next_fp8.write(folder, net)

    return Case(f"{net.name}-fp8", net, write, quantized=True)


def table_in_groups_of_32(path):
    """Rows of 160 values have no groups of 64."""
    return (4, 32) if "ngram_embedding" in path else None


def wide_table(path):
    """Rows in 8 bits, the rest by `every_width_and_group`, whose groups divide 128."""
    return (8, 32) if "ngram_embedding" in path else every_width_and_group(path)


def cases():
    flash = flash_next.FlashNextNet("flash-next")
    # Two layers of n-grams, other lengths and distances, more streams, an odd number of layers.
    wide = dataclasses.replace(
        flash, name="flash-next-wide", layers=7, interval=2, hidden=96, streams=3, rank=17, heads=6, kv_heads=2,
        head_dim=48, index_heads=3, index_dim=24, budget=24, block=8, ngram_layers=(1, 5), ngram=4, ngram_heads=2,
        ngram_width=96, kernel=3, divisor=6, parts=3, experts=11, top_k=3, key_heads=1, value_heads=3, seed=7,
    )
    # Rows as wide as the release's, and more value heads than key heads, which the converter moves.
    rows = dataclasses.replace(flash, name="flash-next-rows", ngram_heads=2, ngram_width=640, value_heads=6).calm()
    even = dataclasses.replace(rows, name="flash-next-even-calm", expert_width=128, shared_width=128, value_heads=4)
    tables = ("F16", "BF16", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")
    return [
        # Tiles that are cut at both edges.
        flash_fp8_case(dataclasses.replace(rows, expert_width=192, hidden=160)),
        own_mlx_case(rows, "4bit", table_in_groups_of_32, shifted=False),
        own_mlx_case(rows, "4bit-shifted", table_in_groups_of_32),
        own_mlx_case(even, "every-width", wide_table, shifted=False),
        flash_gguf_case(rows, "f32", "F32", "F32"),
        flash_gguf_case(rows, "q8", "Q8_0", "Q4_0"),
        *(flash_gguf_case(rows, f"table-{table.lower()}", "BF16", table) for table in tables),
        *(hugging_face_case(net) for net in (flash, wide)),
        *(hugging_face_case(net.calm()) for net in (flash, wide)),
        hugging_face_case(flash.calm(), "-sharded", shards=3, skipped=True),
        hugging_face_case(flash.calm(), "-f32", dtype="F32", fused=False),
    ]
