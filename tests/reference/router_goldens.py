#!/usr/bin/env python3
"""Writes tests/golden/routers.json: logits, biases, and what transformers' routers of sigmoids make of them.

    router_goldens.py tests/golden/routers.json

Cases in which the choice is a near tie are drawn again: there two correct implementations may part.
"""

import json
import sys

import numpy as np
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

TOKENS, HIDDEN, MARGIN = 8, 16, 1e-4
# Experts, chosen, groups, groups that stay, whether weights are normalised, their scale.
CASES = [(32, 6, 8, 4, True, 2.5), (24, 4, 1, 1, True, 1.0), (16, 4, 2, 1, False, 2.827), (8, 8, 4, 4, True, 1.8)]


def settled(scores, k, groups, kept):
    """True where neither the last group that stays nor the last expert chosen is close to the next."""
    by_group = scores.reshape(len(scores), groups, -1)
    best = np.sort(np.sort(by_group, axis=2)[..., -2:].sum(axis=2), axis=1)[:, ::-1]
    if kept < groups and (best[:, kept - 1] - best[:, kept]).min() < MARGIN:
        return False
    return np.abs(np.diff(np.sort(scores, axis=1), axis=1)).min() > MARGIN


def case(experts, k, groups, kept, normalise, scale):
    config = DeepseekV3Config(
        hidden_size=HIDDEN, n_routed_experts=experts, num_experts_per_tok=k, n_group=groups, topk_group=kept,
        norm_topk_prob=normalise, routed_scaling_factor=scale,
    )
    router = DeepseekV3TopkRouter(config)
    for seed in range(100):
        torch.manual_seed(seed)
        router.weight.data = torch.randn(experts, HIDDEN) * 0.4
        # Large against sigmoids, so that choices of the biased scores differ from those of the plain.
        router.e_score_correction_bias.data = torch.randn(experts) * 0.4 - 0.3
        with torch.no_grad():
            logits, weights, ids = router(torch.randn(TOKENS, HIDDEN))
        scores = logits.sigmoid().numpy() + router.e_score_correction_bias.numpy()
        if settled(scores, k, groups, kept):
            break
    else:
        raise RuntimeError("no logits without a near tie")
    order = np.argsort(-np.take_along_axis(scores, ids.numpy(), axis=1), axis=1)
    sort = lambda values: np.take_along_axis(values.numpy(), order, axis=1).tolist()
    return {
        "experts": experts, "k": k, "groups": groups, "kept": kept, "normalise": normalise, "scale": scale,
        "bias": router.e_score_correction_bias.tolist(), "logits": logits.tolist(), "ids": sort(ids),
        "weights": sort(weights),
    }


def main():
    with open(sys.argv[1], "w") as file:
        json.dump([case(*values) for values in CASES], file)
        file.write("\n")


if __name__ == "__main__":
    main()
