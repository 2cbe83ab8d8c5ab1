"""The checkpoints that the reference checks run over: which nets, in which layouts.

A `Case` knows how to write its checkpoint into a folder. The nets differ in what implementations
get wrong: the ratio of value heads to key heads (head order), expert counts that are no power of
two, experts per token, widths that are no multiple of a vector, layer patterns. The layouts cover
what is found in the wild: fused and un-fused experts, each float type, shards, flat and nested
configurations, and every bit width and group size that MLX writes.
"""

import dataclasses
import functools
import pathlib
import typing

import deepseek_v4
import flash_next
import gemma4
import gptoss
import hugging_face
import kimi_linear
import latent
import mlx_format
import plain
import release
from nets import Net

FLOATS = ("f32", "f16", "bf16")
TOKENS = 150  # two chunks of the delta rule (64 tokens) and a part of one


@dataclasses.dataclass(frozen=True)
class Case:
    """One checkpoint. `quantized` selects the tolerance; `mlx_reference` asks for the logits of
    mlx-lm beside those of transformers."""

    name: str
    net: Net
    write: typing.Callable[[pathlib.Path], None]
    quantized: bool = False
    mlx_reference: bool = False
    tokens: int = TOKENS

    @property
    def calm(self):
        return self.net.gain < 1


BASE = Net("base")
RATIO_1 = Net(
    "ratio1", hidden=256, experts=13, top_k=3, expert_width=128, shared_width=128,
    heads=4, key_heads=4, value_heads=4, linear_dim=64,
)
RATIO_2 = Net(
    "ratio2", hidden=256, experts=32, top_k=6, expert_width=128, shared_width=256,
    heads=4, kv_heads=2, head_dim=128, key_heads=2, value_heads=4, linear_dim=128,
)
RATIO_3 = Net(
    "ratio3", hidden=256, layers=8, experts=16, top_k=4, expert_width=128, shared_width=128,
    heads=4, kv_heads=2, key_heads=2, value_heads=6, linear_dim=64,
)
RATIO_4 = Net(
    "ratio4", hidden=384, experts=19, top_k=5, expert_width=128, shared_width=128, interval=2,
    heads=6, kv_heads=2, key_heads=2, value_heads=8, linear_dim=64,
)
RAGGED = Net(
    "ragged", vocabulary=301, hidden=88, layers=5, experts=7, top_k=3, expert_width=40,
    shared_width=72, heads=3, kv_heads=3, head_dim=48, key_heads=1, value_heads=3, linear_dim=24,
    interval=3,
)
TIED = Net("tied", tied=True, flat=True)
TIED_NESTED = dataclasses.replace(TIED, name="tied-nested", flat=False)  # mlx-lm reads no other
ALL_EXPERTS = Net("all-experts", experts=4, top_k=4, layers=2, interval=1)
QWEN3 = Net(
    "qwen3", family="qwen3_moe", experts=11, top_k=3, expert_width=128, heads=4, kv_heads=2,
)
NEXT = Net(
    "next", family="qwen3_next", hidden=256, layers=8, experts=16, top_k=4, expert_width=128,
    shared_width=128, heads=4, kv_heads=2, key_heads=2, value_heads=6, linear_dim=64,
)
QWEN3_STRETCHED = dataclasses.replace(QWEN3, name="qwen3-stretched", stretched=True)
QWEN3_RAW_WEIGHTS = dataclasses.replace(QWEN3, name="qwen3-raw-weights", norm_topk=False, tied=True)
# Rows of every matrix are whole blocks of 256 values.
BLOCKS = Net(
    "blocks", hidden=256, experts=9, top_k=3, expert_width=256, shared_width=256, heads=4, kv_heads=2,
    key_heads=2, value_heads=4, linear_dim=64,
)
QWEN3_BLOCKS = dataclasses.replace(
    QWEN3, name="qwen3-blocks", hidden=256, expert_width=256, head_dim=64
)
NETS = [
    BASE, RATIO_1, RATIO_2, RATIO_3, RATIO_4, RAGGED, TIED, ALL_EXPERTS, QWEN3, QWEN3_RAW_WEIGHTS, NEXT,
]


def hugging_face_case(net, suffix="", **layout):
    write = functools.partial(hugging_face.write, net=net, **layout)
    return Case(f"{net.name}-hf{suffix}", net, write)


def own_mlx_case(net, suffix, recipe, **layout):
    write = functools.partial(mlx_format.write, net=net, recipe=recipe, **layout)
    return Case(f"{net.name}-mlx-{suffix}", net, write, quantized=True)


def mlx_lm_case(net, suffix, dtype="bfloat16", **options):
    """Converted by mlx-lm itself from the net's Hugging Face checkpoint."""

    def write(folder):
        import mlx_lm_reference  # MLX is loaded only by those who need it

        mlx_lm_reference.convert(net, folder, dtype=dtype, **options)

    quantized = "q_bits" in options or "recipe" in options
    return Case(
        f"{net.name}-mlxlm-{suffix}", net, write, quantized, mlx_reference=dtype == "float32"
    )


def gguf_case(net, suffix, *kinds, **layout):
    """Written with the format's own package; tensors take the types of `kinds` in turn."""

    def write(folder):
        import gguf_format  # the package is loaded only by those who need it

        def kind(name):
            return gguf_format.Type[kinds[sum(name.encode()) % len(kinds)]]

        gguf_format.write(folder, net, kind, **layout)

    return Case(f"{net.name}-gguf-{suffix}", net, write, quantized=suffix not in FLOATS)


def gpt_oss_case(net):
    """As released: 4-bit floats for experts, bfloat16 for the rest."""
    write = functools.partial(release.write, net=net)
    return Case(f"{net.name}-mxfp4", net, write, quantized=True)


def gpt_oss_gguf_case(net, suffix, trunk, experts):
    """As llama.cpp's converter writes it."""

    def write(folder):
        import gptoss_gguf

        kinds = gptoss_gguf.Type
        gptoss_gguf.write(folder, net, kinds[trunk], kinds[experts])

    return Case(f"{net.name}-gguf-{suffix}", net, write, quantized=experts not in ("F32", "BF16"))


def deepseek_v4_case(net, tokens=90):
    """Under the names of the release, in floats."""
    write = functools.partial(release.write, net=net, end=1)
    return Case(f"{net.name}-hf", net, write, quantized=net.published, tokens=tokens)


def family_gguf_case(net, suffix, *arguments, tokens=TOKENS):
    """A net of latent.py or deepseek_v4.py as llama.cpp's converter writes it."""

    def write(folder):
        import families_gguf

        v4 = net.family == "deepseek_v4"
        (families_gguf.write_v4 if v4 else families_gguf.write)(folder, net, *arguments)

    return Case(f"{net.name}-gguf-{suffix}", net, write, quantized=suffix not in FLOATS, tokens=tokens)


def gemma_gguf_case(net, suffix, *arguments):
    """A net of gemma4.py as llama.cpp's converter writes it."""

    def write(folder):
        import gemma4_gguf

        gemma4_gguf.write(folder, net, *arguments)

    return Case(f"{net.name}-gguf-{suffix}", net, write, quantized=suffix not in FLOATS)


def every_width_and_group(path):
    """A recipe that walks through all bit widths and group sizes from tensor to tensor."""
    sizes = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
    return sizes[sum(path.encode()) % len(sizes)]


def low_bit_experts(path):
    """2 and 3 bits for experts, 6 for the rest, 8 for the routers: four widths in one file."""
    if path.endswith(("mlp.gate", "shared_expert_gate")):
        return (8, 64)
    if "switch_mlp" in path:
        return (3, 64) if path.endswith("down_proj") else (2, 64)
    return (6, 64)


def plain_trunk(path):
    """Only the experts are quantised."""
    return None if "switch_mlp" in path else False


def four_bit_routers(_path):
    """As an early 397B conversion had it: no override for anything."""
    return None


def all_cases():
    cases = []
    for net in NETS:
        cases += [hugging_face_case(net), hugging_face_case(net.calm())]
    calm = RATIO_3.calm()
    cases += [
        hugging_face_case(calm, "-f16", dtype="F16"),
        hugging_face_case(calm, "-f32", dtype="F32"),
        hugging_face_case(calm, "-unfused", fused=False),
        hugging_face_case(calm, "-sharded", shards=3, skipped=True),
        hugging_face_case(calm, "-all-bf16", linear_f32=False),
        hugging_face_case(
            dataclasses.replace(calm, name="ratio3-flat-calm", flat=True), "-unfused", fused=False
        ),
        hugging_face_case(QWEN3.calm(), "-fused", fused=True, shards=2),
    ]
    cases += [
        mlx_lm_case(calm, f"{bits}bit-g{group}", q_bits=bits, q_group_size=group)
        for bits in (2, 3, 4, 5, 6, 8)
        for group in (32, 64, 128)
    ]
    cases += [
        mlx_lm_case(calm, recipe, recipe=recipe, q_group_size=64)
        for recipe in ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")
    ]
    for net in (calm, RATIO_3):
        cases += [
            mlx_lm_case(net, "f32", "float32"),
            mlx_lm_case(net, "4bit-f32", "float32", q_bits=4, q_group_size=64),
        ]
    cases += [
        mlx_lm_case(calm, "bf16"),
        mlx_lm_case(calm, "4bit-f16", "float16", q_bits=4, q_group_size=64),
        mlx_lm_case(RATIO_1.calm(), "4bit-f32", "float32", q_bits=4, q_group_size=64),
        mlx_lm_case(RATIO_2.calm(), "4bit-g128", q_bits=4, q_group_size=128),
        mlx_lm_case(RATIO_4.calm(), "2bit-g32", q_bits=2, q_group_size=32),
        mlx_lm_case(TIED_NESTED.calm(), "4bit", q_bits=4, q_group_size=32),
        mlx_lm_case(QWEN3.calm(), "4bit-f32", "float32", q_bits=4, q_group_size=64),
        mlx_lm_case(NEXT.calm(), "4bit-f32", "float32", q_bits=4, q_group_size=64),
        mlx_lm_case(NEXT.calm(), "bf16"),
        mlx_lm_case(QWEN3.calm(), "3bit", q_bits=3, q_group_size=32),
    ]
    cases += [
        own_mlx_case(RATIO_1.calm(), "every-width", every_width_and_group),
        own_mlx_case(RATIO_4.calm(), "every-width-f32", every_width_and_group, dtype="F32"),
        own_mlx_case(RATIO_4.calm(), "f16-scales", lambda _: None, scale_dtype="F16", mode=False),
        own_mlx_case(RATIO_2.calm(), "low-bit-experts", low_bit_experts),
        own_mlx_case(RATIO_3.calm(), "plain-trunk", plain_trunk, group=32, bits=5),
        own_mlx_case(RATIO_1.calm(), "4bit-routers", four_bit_routers),
        own_mlx_case(QWEN3.calm(), "every-width", every_width_and_group),
        own_mlx_case(NEXT.calm(), "every-width", every_width_and_group),
    ]
    gpt_oss = gptoss.GptOssNet("gptoss")
    clamped = dataclasses.replace(gpt_oss, name="gptoss-clamped", limit=0.5)
    wide = dataclasses.replace(gpt_oss, name="gptoss-wide", window=100, heads=6, kv_heads=1, experts=7)
    whole = dataclasses.replace(gpt_oss, name="gptoss-truncated", truncate=True, head_dim=64, heads=8, kv_heads=1)
    plain = gpt_oss.calm()
    cases += [
        gpt_oss_case(gpt_oss),
        *(gpt_oss_case(net.calm()) for net in (gpt_oss, clamped, wide, whole)),
        gpt_oss_gguf_case(plain, "mxfp4", "BF16", "MXFP4"),
        gpt_oss_gguf_case(plain, "q8", "Q8_0", "Q8_0"),
        gpt_oss_gguf_case(plain, "f32", "F32", "F32"),
        gpt_oss_gguf_case(gpt_oss, "mxfp4", "Q8_0", "MXFP4"),
    ]
    v4 = deepseek_v4.DeepseekV4Net("dsv4")
    cases += [
        deepseek_v4_case(v4),
        deepseek_v4_case(v4.calm()),
        deepseek_v4_case(dataclasses.replace(v4, name="dsv4-clamped", limit=0.5, table="I32").calm()),
        deepseek_v4_case(
            dataclasses.replace(v4, name="dsv4-published", dtype="BF16", published=True, output_rank=128).calm()
        ),
        deepseek_v4_case(dataclasses.replace(v4, name="dsv4-bf16", dtype="BF16", iterations=3).calm(), 150),
        deepseek_v4_case(
            dataclasses.replace(v4, name="dsv4-long", ratios=(0, 128, 4), window=32, streams=3).calm(), 300
        ),
        # Ratios of the release: its GGUF files have no others.
        family_gguf_case(dataclasses.replace(v4, ratios=(0, 0, 4, 128, 4)).calm(), "f32", tokens=140),
        family_gguf_case(
            dataclasses.replace(v4, ratios=(0, 4, 128), dtype="BF16", published=True, output_rank=128).calm(),
            "mxfp4", tokens=140,
        ),
    ]
    cases.append(hugging_face_case(QWEN3_STRETCHED.calm()))
    import flash_next_cases  # which need what is above
    import glm_next_cases
    import ling_cases

    cases += flash_next_cases.cases() + glm_next_cases.cases() + ling_cases.cases()
    cases += latent_cases() + plain_cases() + gemma_cases() + kimi_linear_cases()
    blocks, qwen3 = BLOCKS.calm(), QWEN3_BLOCKS.calm()
    cases += [
        gguf_case(RATIO_3.calm(), "f32", "F32"),
        gguf_case(RATIO_4.calm(), "f16", "F16", fused=True),
        gguf_case(RATIO_1.calm(), "bf16", "BF16", parts=20),
        gguf_case(RATIO_3.calm(), "q8", "Q8_0"),
        gguf_case(TIED.calm(), "q8", "Q8_0", parts=16),
        gguf_case(NEXT.calm(), "f32", "F32"),
        gguf_case(NEXT.calm(), "mixed", "Q4_K", "Q6_K", "Q8_0", "IQ4_XS", whole=True),
        gguf_case(qwen3, "f32", "F32"),
        gguf_case(qwen3, "q8", "Q8_0", fused=True),
        gguf_case(qwen3, "legacy", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
        gguf_case(qwen3, "k-quants", "Q4_K", "Q6_K", "Q5_K", "Q3_K", "Q2_K"),
        gguf_case(qwen3, "tables", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0"),
        gguf_case(blocks, "legacy", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
        *(gguf_case(blocks, kind.lower(), kind) for kind in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")),
        gguf_case(blocks, "tables", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0"),
        gguf_case(blocks, "mixed", "Q4_K", "Q6_K", "Q8_0", "F16", "Q2_K", "Q5_K", "IQ4_XS", "F32", "Q3_K"),
    ]
    return cases


def latent_cases():
    deepseek = latent.LatentNet("deepseek")
    kimi = dataclasses.replace(
        deepseek, name="kimi", family="kimi_k2", groups=1, kept=1, experts=11, heads=3, scale=2.827
    )
    flash = dataclasses.replace(
        kimi, name="glm-flash", family="glm4_moe_lite", query_rank=48, plain=48, value=64, experts=9,
        stretched=False, scale=1.8, heads=5,
    )
    direct = dataclasses.replace(
        deepseek, name="deepseek-direct", query_rank=None, dense=2, shared=2, norm_topk=False, scale=1.0
    )
    glm = latent.LatentNet("glm", family="glm4_moe", groups=1, kept=1, dense=1, experts=9, stretched=False)
    glm_normed = dataclasses.replace(
        glm, name="glm-normed", head_norms=True, biases=False, dense=3, layers=5, scale=2.5
    )
    minimax = latent.LatentNet(
        "minimax", family="minimax_m2", dense=0, shared=0, groups=1, kept=1, experts=10, scale=1.0, biases=False,
        stretched=False,
    )
    # Widths that MLX can group.
    even = dataclasses.replace(
        deepseek, name="deepseek-even", hidden=256, query_rank=128, rank=128, plain=64, rotated=32, value=64,
        dense_width=256, expert_width=128,
    )
    even_flash = dataclasses.replace(
        even, name="glm-flash-even", family="glm4_moe_lite", groups=1, kept=1, stretched=False
    )
    chosen, shared = chosen_nets()
    even_chosen = dataclasses.replace(
        chosen, name="dsv32-even", hidden=256, query_rank=128, rank=128, plain=64, rotated=32, value=64, dense_width=256,
        expert_width=128, index_dim=64,
    )
    nets = [deepseek, kimi, flash, direct, glm, glm_normed, minimax, chosen, shared]
    return [
        *(hugging_face_case(net) for net in nets),
        *(hugging_face_case(net.calm()) for net in nets),
        hugging_face_case(deepseek.calm(), "-sharded", shards=3, skipped=True),
        hugging_face_case(shared.calm(), "-sharded", shards=3, skipped=True),
        # More positions than a page of the cache has.
        dataclasses.replace(
            hugging_face_case(dataclasses.replace(chosen, name="dsv32-long", layers=2, index_top=280).calm()), tokens=330,
        ),
        hugging_face_case(flash.calm(), "-f32", dtype="F32"),
        own_mlx_case(even.calm(), "4bit", lambda _: None),
        own_mlx_case(even.calm(), "every-width", every_width_and_group),
        mlx_lm_case(even.calm(), "4bit", q_bits=4, q_group_size=64),
        mlx_lm_case(even_flash.calm(), "4bit-f32", "float32", q_bits=4, q_group_size=64),
        mlx_lm_case(even_flash.calm(), "bf16"),
        mlx_lm_case(glm.calm(), "4bit", q_bits=4, q_group_size=32),
        family_gguf_case(dataclasses.replace(deepseek, stretched=False).calm(), "f32", "F32"),
        family_gguf_case(dataclasses.replace(direct, stretched=False).calm(), "q8", "Q8_0"),
        family_gguf_case(glm.calm(), "f32", "F32"),
        family_gguf_case(dataclasses.replace(glm_normed, seed=77).calm(), "q8", "Q8_0"),
        family_gguf_case(dataclasses.replace(chosen, stretched=False).calm(), "f32", "F32"),
        family_gguf_case(shared.calm(), "q8", "Q8_0"),
        own_mlx_case(even_chosen.calm(), "4bit", lambda _: None),
        # mlx-lm chooses otherwise than the scores of its own queries and keys say, at three positions of a hundred.
        mlx_lm_case(even_chosen.calm(), "4bit", q_bits=4, q_group_size=64),
        mlx_lm_case(even_chosen.calm(), "bf16"),
        family_gguf_case(minimax.calm(), "f32", "F32"),
        family_gguf_case(minimax, "bf16", "BF16"),
    ]


def chosen_nets():
    """Latent attention to rows that an indexer chooses: DeepSeek-V3.2, and GLM-5 with layers that share a choice."""
    chosen = latent.LatentNet("dsv32", family="deepseek_v32", heads=3, index_heads=4)
    shared = dataclasses.replace(
        chosen, name="glm5", family="glm_moe_dsa", layers=6, groups=1, kept=1, experts=9, heads=5, query_rank=48, value=64,
        stretched=False, index_heads=5, index_dim=40, index_top=30, index_frequency=3,
    )
    return chosen, shared


def plain_cases():
    """Families that are known parts under their own keys and names."""
    olmoe = plain.PlainNet("olmoe", dense=0, shared=0, norm_topk=False, kv_heads=4)
    dots1 = plain.PlainNet("dots1", family="dots1", kv_heads=4)
    solar = plain.PlainNet("solar", family="solar_open", dense=0, shared=1, scale=1.0, head_dim=48, stretched=True)
    exaone = plain.PlainNet("exaone", family="exaone_moe", layers=5, shared=1)
    ernie = plain.PlainNet("ernie", family="ernie4_5_moe", tied=True)
    vl = plain.PlainNet("qwen3vl", family="qwen3_vl_moe", dense=0, shared=0, head_dim=48)
    hy3 = plain.PlainNet("hy3", family="hy_v3", shared=1, scale=2.826, head_dim=48)
    return [
        *(hugging_face_case(net.calm()) for net in (olmoe, dots1, solar)),
        hugging_face_case(hy3.calm(), skipped=True),
        hugging_face_case(exaone.calm()),
        hugging_face_case(ernie.calm(), skipped=True),
        hugging_face_case(vl.calm(), fused=True, skipped=True),
        *(mlx_lm_case(net.calm(), "4bit", q_bits=4, q_group_size=32) for net in (olmoe, dots1, exaone)),
    ]


def gemma_cases():
    gemma = gemma4.GemmaNet("gemma4")
    # Every width odd in its way, a head for each query, a window that is no multiple of anything.
    ragged = dataclasses.replace(
        gemma, name="gemma4-ragged", vocabulary=301, hidden=88, layers=7, interval=6, heads=3, kv_heads=3, head_dim=20,
        full_kv_heads=3, full_head_dim=44, window=37, dense_width=72, experts=7, top_k=7, expert_width=40, rotary=0.5,
        softcap=None, flat=True,
    )
    # With a window of 1 the cache of transformers keeps everything (a slice from -0 on).
    projected = dataclasses.replace(
        gemma, name="gemma4-projected", keys_as_values=False, full_kv_heads=None, tied=False, window=2, layers=3
    )
    wide = dataclasses.replace(
        gemma, name="gemma4-wide", head_dim=256, full_head_dim=512, heads=2, kv_heads=2, window=100, softcap=20.0
    )
    # Widths that MLX can group.
    even = dataclasses.replace(gemma, name="gemma4-even", dense_width=160)
    nets = (gemma, ragged, projected, wide)
    return [
        *(hugging_face_case(net) for net in nets),
        *(hugging_face_case(net.calm()) for net in nets),
        hugging_face_case(gemma.calm(), "-sharded", shards=3, skipped=True),
        hugging_face_case(ragged.calm(), "-f32", dtype="F32"),
        dataclasses.replace(hugging_face_case(dataclasses.replace(gemma, name="gemma4-long", seed=5).calm()), tokens=700),
        mlx_lm_case(even.calm(), "4bit", q_bits=4, q_group_size=32),
        mlx_lm_case(even.calm(), "bf16"),
        gemma_gguf_case(gemma.calm(), "f32", "F32"),
        gemma_gguf_case(gemma.calm(), "q8", "Q8_0"),
        gemma_gguf_case(dataclasses.replace(ragged, vocabulary=320, keys_as_values=True).calm(), "bf16", "BF16"),
        gemma_gguf_case(dataclasses.replace(gemma, name="gemma4-equal", full_kv_heads=2, keys_as_values=False).calm(), "f32", "F32", False),
    ]


def kimi_linear_cases():
    kimi = kimi_linear.KimiLinearNet("kimi-linear")
    # Latents for queries, groups of experts, a layer list that begins with attention, fewer taps.
    other = dataclasses.replace(
        kimi, name="kimi-linear-other", layers=6, attends=(1, 4, 5), linear_heads=5, linear_dim=24, kernel=3,
        groups=4, kept=2, query_rank=56, heads=3, dense=2, shared=2, norm_topk=False, scale=1.0,
    )
    # Widths that MLX can group.
    even = dataclasses.replace(
        kimi, name="kimi-linear-even", hidden=128, linear_dim=32, rank=64, plain=32, rotated=32, value=64,
        dense_width=128,
    )
    return [
        *(hugging_face_case(net) for net in (kimi, other)),
        *(hugging_face_case(net.calm()) for net in (kimi, other)),
        hugging_face_case(kimi.calm(), "-sharded", shards=3),
        hugging_face_case(kimi.calm(), "-f32", dtype="F32"),
        mlx_lm_case(even.calm(), "4bit", q_bits=4, q_group_size=32),
        # The format has one number of heads.
        *(family_gguf_case(dataclasses.replace(kimi, heads=3).calm(), *kind) for kind in (("f32", "F32"), ("q8", "Q8_0"))),
    ]


def golden_cases():
    """The small committed set: what fits into a repository."""
    small = Net(
        "qwen35", hidden=64, experts=6, expert_width=32, shared_width=32, head_dim=32,
        linear_dim=16,
    )
    odd = dataclasses.replace(small, experts=5, top_k=3, key_heads=1, value_heads=3)
    grouped = dataclasses.replace(
        small, experts=5, expert_width=64, shared_width=64, key_heads=1, value_heads=4
    ).calm()
    qwen3 = Net(
        "qwen3", family="qwen3_moe", hidden=64, layers=3, experts=6, expert_width=32, heads=4,
        kv_heads=2, head_dim=32,
    ).calm()
    following = Net(
        "qwen3next", family="qwen3_next", hidden=64, experts=6, expert_width=32, shared_width=32,
        head_dim=32, linear_dim=16,
    ).calm()
    deepseek = latent.LatentNet(
        "deepseek", hidden=64, layers=3, experts=8, expert_width=32, dense_width=96, heads=3, query_rank=40,
        rank=48, plain=16, value=24,
    ).calm()
    flash = latent.LatentNet(
        "glm-flash", family="glm4_moe_lite", hidden=64, layers=3, experts=6, expert_width=32, dense_width=64, heads=2,
        groups=1, kept=1, query_rank=64, rank=64, plain=32, rotated=32, value=64, stretched=False, scale=1.8,
    ).calm()
    chosen = flash_next.FlashNextNet(
        "flash-next", hidden=32, layers=3, experts=4, expert_width=32, shared_width=32, head_dim=32, key_heads=1,
        value_heads=2, linear_dim=16, streams=2, rank=8, index_dim=16, budget=16, ngram_heads=2, ngram_width=32,
        base=20, divisor=2, parts=2,
    ).calm()
    rows = latent.LatentNet(
        "dsv32", family="deepseek_v32", vocabulary=288, hidden=32, layers=3, experts=6, groups=3, top_k=2,
        expert_width=32, dense_width=48, heads=2, query_rank=24, rank=32, plain=16, rotated=8, value=12,
        index_heads=4, index_dim=16,
    ).calm()
    shared = dataclasses.replace(
        rows, name="glm5-calm", family="glm_moe_dsa", layers=4, experts=4, expert_width=24, groups=1, kept=1, heads=3, value=20,
        stretched=False, index_heads=3, index_dim=20, index_top=17, index_frequency=3,
    )
    gemma = gemma4.GemmaNet(
        "gemma4", hidden=64, layers=3, head_dim=16, full_head_dim=32, window=20, dense_width=48, experts=5, top_k=2,
        expert_width=32,
    ).calm()
    known = dict(
        vocabulary=288, hidden=64, layers=3, experts=6, expert_width=32, dense_width=48, heads=4, kv_heads=2, head_dim=16,
    )
    glm = latent.LatentNet(
        "glm", family="glm4_moe", groups=1, kept=1, stretched=False, head_norms=True, scale=2.5, **known
    ).calm()
    olmoe = plain.PlainNet("olmoe", dense=0, shared=0, norm_topk=False, **known).calm()
    ernie = plain.PlainNet("ernie", family="ernie4_5_moe", tied=True, **known).calm()
    exaone = plain.PlainNet("exaone", family="exaone_moe", shared=1, **known | {"layers": 5}).calm()
    kimi = kimi_linear.KimiLinearNet(
        "kimi-linear", layers=4, attends=(3,), linear_heads=3, linear_dim=16, rank=32, plain=16, rotated=8, value=12,
        shared=1, **{key: known[key] for key in ("vocabulary", "hidden", "experts", "expert_width", "dense_width")},
        heads=2, top_k=2,
    ).calm()
    import glm_next_cases  # which need what is above
    import ling_cases

    cases = [
        glm_next_cases.golden(),
        ling_cases.golden(),
        hugging_face_case(kimi),
        *(hugging_face_case(net, skipped=net.family != "olmoe") for net in (glm, olmoe, ernie, exaone)),
        hugging_face_case(chosen, skipped=True),
        hugging_face_case(small.calm()),
        hugging_face_case(odd, fused=False),
        mlx_lm_case(grouped, "4bit", q_bits=4, q_group_size=64),
        own_mlx_case(grouped, "mixed", low_bit_experts),
        hugging_face_case(qwen3, shards=2),
        hugging_face_case(following),
        hugging_face_case(deepseek, skipped=True),
        hugging_face_case(rows, skipped=True),
        hugging_face_case(shared, skipped=True),
        deepseek_v4_case(
            deepseek_v4.DeepseekV4Net(
                "dsv4", hidden=64, heads=4, head_dim=32, query_rank=32, output_rank=16, index_dim=16,
                experts=6, expert_width=32, limit=0.5, dtype="BF16", ratios=(0, 4, 8, 4),
            ).calm()
        ),
        mlx_lm_case(flash, "4bit", q_bits=4, q_group_size=32),
        hugging_face_case(gemma, skipped=True),
        gpt_oss_case(gptoss.GptOssNet("gptoss", hidden=96, expert_width=96, experts=6, limit=0.5).calm()),
    ]
    lengths = {
        "qwen35-hf": 80,
        "qwen3-calm-hf": 80,
        "qwen3next-calm-hf": 100,
        "flash-next-calm-hf": 70,
        "deepseek-calm-hf": 100,
        "dsv32-calm-hf": 64,
        "glm5-calm-hf": 52,
        "dsv4-calm-hf": 100,
        "gemma4-calm-hf": 100,
        "glm-calm-hf": 70,
        "olmoe-calm-hf": 70,
        "ernie-calm-hf": 70,
        "exaone-calm-hf": 70,
        "kimi-linear-calm-hf": 70,
        "glm-flash-calm-mlxlm-4bit": 100,
    }
    return [dataclasses.replace(c, tokens=lengths.get(c.name, c.tokens)) for c in cases]
