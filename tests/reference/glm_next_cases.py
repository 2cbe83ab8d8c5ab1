"""Networks of GLM-5.3-Flash in the layouts of its files."""

import dataclasses
import functools

import glm_next
from cases import Case, hugging_face_case, own_mlx_case


def fp8_case(net):
    return Case(f"{net.name}-fp8", net, functools.partial(glm_next.write_fp8, net=net), quantized=True)


def golden():
    """What fits into a repository."""
    net = glm_next.GlmNextNet(
        "glm-next", vocabulary=288, hidden=32, layers=5, attends=(2, 3, 5), shares=(3,), linear_heads=2, linear_dim=16,
        experts=5, top_k=2, expert_width=24, dense_width=40, heads=2, query_rank=24, rank=32, plain=16, value=12,
        index_heads=3, index_dim=16, streams=3,
    ).calm()
    return dataclasses.replace(hugging_face_case(net, skipped=True), tokens=90)


def cases():
    net = glm_next.GlmNextNet("glm-next")
    # The order of the release, pools of four, other widths, keys as transformers saves them, decays less bounded.
    other = dataclasses.replace(
        net, name="glm-next-other", layers=8, attends=(4, 8), shares=(), linear_heads=5, linear_dim=24, kernel=3, dense=3,
        heads=3, plain=40, value=24, pool=4, index_heads=7, index_top=40, streams=2, bound=-2.5, published=False,
        shared=2, experts=9, limit=10.0,
    )
    # Widths that MLX can group, and tiles that are cut at both edges.
    even = dataclasses.replace(
        net, name="glm-next-even", hidden=256, linear_dim=64, query_rank=128, rank=128, plain=64, value=64, dense_width=256,
        expert_width=128, index_dim=64,
    )
    cut = dataclasses.replace(even, name="glm-next-cut", hidden=160, expert_width=192, rank=144, plain=72, index_dim=40)
    return [
        *(hugging_face_case(it) for it in (net, other)),
        *(fp8_case(it.calm()) for it in (even, cut)),
        own_mlx_case(even.calm(), "4bit", lambda _: None),
        *(hugging_face_case(it.calm()) for it in (net, other)),
        hugging_face_case(net.calm(), "-sharded", shards=3, skipped=True),
        hugging_face_case(other.calm(), "-f32", dtype="F32"),
        # More positions than a page of the cache has.
        dataclasses.replace(
            hugging_face_case(dataclasses.replace(net, name="glm-next-long", layers=3, attends=(2,), shares=()).calm()),
            tokens=330,
        ),
    ]
