"""Networks of Ling-3 in the layouts of its files."""

import dataclasses

import ling
from cases import hugging_face_case


def golden():
    """What fits into a repository."""
    net = ling.LingNet(
        "ling", vocabulary=288, hidden=32, layers=4, attends=(2, 4), linear_heads=3, linear_dim=16, experts=8, top_k=2,
        expert_width=24, dense_width=40, heads=3, rank=32, plain=16, rotated=8, value=12,
    ).calm()
    return dataclasses.replace(hugging_face_case(net, skipped=True), tokens=70)


def cases():
    net = ling.LingNet("ling", linear_heads=4)
    # Other widths in the two kinds of layers, decays without a bound, fewer taps, two layers without experts.
    other = dataclasses.replace(
        net, name="ling-other", layers=6, attends=(1, 4), linear_heads=3, heads=3, linear_dim=40, kernel=3, dense=2,
        groups=2, kept=1, shared=2, bounded=False, norm_topk=False, scale=1.0,
    )
    less = dataclasses.replace(net, name="ling-less", bound=-2.5)
    return [
        *(hugging_face_case(it) for it in (net, other)),
        *(hugging_face_case(it.calm()) for it in (net, other, less)),
        hugging_face_case(net.calm(), "-sharded", shards=3, skipped=True),
        hugging_face_case(net.calm(), "-f32", dtype="F32"),
    ]
