#!/usr/bin/env python3
"""Compares the GPU's answers with the processor's: logits of the golden checkpoints and of 4,000 positions, greedy
answers of the demo model, and tokens over GPU and RAM budgets and with prediction, which must not change them.

Run in the repository's root on a machine with a GPU: bench/cuda/check.py PATH_OF_FLASHMOE [GGUF ..]. Compares small
random nets of the block encodings that the GPU reads, and the GGUF files that are named, in the same way; with --only
WORD the cases whose name has it. Prints a line per case and ends with an error when one differs. Needs numpy and
safetensors."""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file

BOUND = 2e-3
# Of rounded caches: the median of positions, the share of them that may be beyond the bound, and the mean divergence.
MEDIAN, MOVED, DIVERGENCE = 2e-4, 0.05, 1e-4
PROMPTS = 50
CONTINUED = 1000
DEPTH = 4000
# Nets of DEPTH positions, and those of their positions that may be ties.
SEEDS = (0, 1)
TIES = 4
# Where 16 rows of up to 4,000 are chosen, more positions are near the cut.
NEAR_CUTS = {"tiny-rows": 40}
# Types of the cache by shape.
DEEP = {"tiny": ("f32", "f16", "bf16", "q8"), "tiny-latent": ("f32", "f16", "bf16", "q8"),
        "tiny-oss": ("f32", "f16", "bf16", "q8"), "tiny-gemma": ("f32", "f16", "bf16", "q8"), "tiny-v4": ("f32",),
        "tiny-flash-next": ("f32",), "tiny-kimi": ("f32", "f16", "bf16", "q8"), "tiny-rows": ("f32",)}
# Shapes whose last layer is not as their first ones.
WHOLE = ("tiny-gemma",)
# Rows that are not whole groups of 64.
GROUPS = {"tiny-oss": ["--group", 32]}
BUDGETS = [["--vram", "200M"], ["--vram", "200M", "--slots", "128"], ["--vram", "230M", "--slots", "128"]]
# Encodings of experts and of everything else.
BLOCKS = [("q4_k", "q4_k"), ("q4_k", "q6_k"), ("q6_k", "q8_0"), ("q8_0", "q5_k"), ("q5_k", "q4_k"), ("q4_0", "q4_1"),
          ("q5_0", "q5_1"), ("q4_1", "q5_0"), ("q2_k", "q3_k"), ("q3_k", "q2_k"), ("iq4_nl", "iq4_xs"),
          ("iq4_xs", "q8_0"), ("q5_1", "q4_0"), ("f16", "q4_k"), ("4bit", "q6_k"), ("q4_k", "8bit"),
          ("iq2_xxs", "iq3_xxs"), ("iq2_xs", "iq2_s"), ("iq3_s", "iq1_s"), ("tq2_0", "q5_k"), ("q4_k", "tq1_0")]
# Families by shapes of `synth`; encodings of their experts and of everything else.
PLANES = [("bf16", "bf16"), ("fp8:128:f32", "fp8:128:f32"), ("mxfp4:planes", "fp8:128:e8m0"), ("int4", "bf16")]
FAMILIES = ["tiny-glm", "tiny-minimax", "tiny-latent", "tiny-oss", "tiny-gemma", "tiny-v4", "tiny-flash-next",
            "tiny-kimi", "tiny-ling", "tiny-rows"]
# Shapes that packs have no place for: what folders hold of the planes is the first of them.
UNPACKED = ("tiny-flash-next",)
# Small configurations of families of known parts: what all have, and what each adds.
COMMON = dict(vocab_size=512, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
              hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000, max_position_embeddings=4096,
              tie_word_embeddings=False)
SIGMOID = dict(intermediate_size=384, moe_intermediate_size=128, num_experts_per_tok=4, first_k_dense_replace=1,
               n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5)
PLAIN = {
    "OlmoeForCausalLM": dict(model_type="olmoe", attention_bias=False, clip_qkv=None, intermediate_size=128,
                             num_experts=16, num_experts_per_tok=4, norm_topk_prob=False),
    "Dots1ForCausalLM": dict(SIGMOID, model_type="dots1", attention_bias=False, n_routed_experts=16,
                             n_shared_experts=2, scoring_func="noaux_tc", max_window_layers=4, sliding_window=None),
    "HYV3ForCausalLM": dict(model_type="hy_v3", attention_bias=False, head_dim=64, intermediate_size=384,
                            moe_intermediate_size=128, num_experts=16, num_experts_per_tok=4, num_shared_experts=1,
                            first_k_dense_replace=1, route_norm=True, router_scaling_factor=2.8),
    "Ernie4_5_MoeForCausalLM": dict(model_type="ernie4_5_moe", intermediate_size=384, moe_intermediate_size=128,
                                    moe_num_experts=16, moe_k=4, moe_num_shared_experts=2, moe_layer_start_index=1,
                                    moe_layer_end_index=-1, moe_layer_interval=1, use_bias=False),
    "ExaoneMoeForCausalLM": dict(SIGMOID, model_type="exaone_moe", head_dim=64, num_experts=16, num_shared_experts=1,
                                 scoring_func="sigmoid", sliding_window=32,
                                 layer_types=["sliding_attention", "full_attention"] * 2,
                                 rope_parameters=dict(rope_type="default", rope_theta=10000)),
    "SolarOpenForCausalLM": dict(SIGMOID, model_type="solar_open", attention_bias=False, head_dim=64,
                                 first_k_dense_replace=0, n_routed_experts=16, n_shared_experts=1,
                                 scoring_func="sigmoid",
                                 rope_scaling=dict(rope_type="yarn", factor=2.0,
                                                   original_max_position_embeddings=2048)),
    "Qwen3VLMoeForConditionalGeneration": dict(model_type="qwen3_vl_moe_text", attention_bias=False, head_dim=64,
                                               intermediate_size=384, moe_intermediate_size=128, num_experts=16,
                                               num_experts_per_tok=4, norm_topk_prob=True, decoder_sparse_step=1,
                                               mlp_only_layers=[]),
}
# Heads of Gemma-4's release.
WIDE = dict(head_dim=256, global_head_dim=512)
# Tiles of 8-bit floats would be cut through by the groups of its output matrix.
UNCUT = ("tiny-v4",)
# Golden checkpoints and shapes whose caches are rounded as in training unless another type is asked for.
ROUNDED = ("dsv4", "tiny-v4")
# Golden checkpoints with operations for which there are no kernels.
REFUSED = ("glm-next",)
# Nets at once, of those that take little.
AT_ONCE = 4
PREDICT = [[], ["--predict", "on"]]
PREDICTED = [[*budget, "--predict", "on"] for budget in BUDGETS[:2]]


class Refused(Exception):
    """The device has no kernels for an operation of the model, as the program says by name."""


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if "the CUDA kernels do not compute" in done.stderr:
        raise Refused(done.stderr.strip().splitlines()[-1])
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def scores(program, model, ids, choices, always=()):
    """The processor's logits and greedy ids, then each choice's with its options; `always`: options of both."""
    with tempfile.TemporaryDirectory() as place:
        def score(name, *options):
            out = pathlib.Path(place) / name
            run(program, "score", model, "--ids", ids, "--greedy", 32, "--logits", out, *always, *options)
            found = load_file(out)
            return found["logits"].astype(numpy.float64), found["greedy"]

        yield score("cpu", "--device", "cpu", "--arithmetic", "f32")
        for options in choices:
            yield options, *score("gpu", "--device", "cuda", *options)


def compare(program, name, model, ids, choices, greedy=True, always=()):
    found = scores(program, model, ids, choices, always)
    reference, answer = next(found)
    for options, logits, chosen in found:
        error = numpy.linalg.norm(logits - reference) / numpy.linalg.norm(reference)
        same = not greedy or bool((chosen == answer).all())
        yield f"{name} {' '.join(options)}: relative {error:.1e}", error <= BOUND and same


def divergence(found, reference):
    """Mean over positions of the divergence (KL) of what the GPU expects from what the processor does."""
    def logarithms(logits):
        moved = logits - logits.max(axis=1, keepdims=True)
        return moved - numpy.log(numpy.exp(moved).sum(axis=1, keepdims=True))

    expected, other = logarithms(reference), logarithms(found)
    return float((numpy.exp(expected) * (expected - other)).sum(axis=1).mean())


def rounded(program, name, model, ids, choices):
    """A cache that is rounded as in training: a difference in the last bit of a value becomes a step of its rounding,
    now and then, and one row of 8 bits is then another. The roundings are compared bit by bit elsewhere (the crate's
    test `device`); here most positions agree closely, and what is expected agrees as a whole."""
    found = scores(program, model, ids, choices, ["--kv-type", "fp8"])
    reference, _ = next(found)
    for options, logits, _ in found:
        errors = numpy.linalg.norm(logits - reference, axis=1) / numpy.linalg.norm(reference, axis=1)
        middle, moved, kl = numpy.median(errors), float((errors > BOUND).mean()), divergence(logits, reference)
        text = f"median {middle:.1e}, {100 * moved:.1f} % of positions beyond {BOUND}, KL {kl:.1e}"
        yield f"{name} {' '.join(options)}: {text}", middle <= MEDIAN and moved <= MOVED and kl <= DIVERGENCE


def golden(program, folder):
    choices = [[], ["--prefill-chunk", "5"], *BUDGETS[:2], *PREDICTED]
    name, place = folder.name, (folder / "model", folder / "ids.json")
    if not name.startswith(ROUNDED):
        yield from compare(program, name, *place, choices)
        return
    yield from compare(program, f"{name} f32", *place, choices, always=["--kv-type", "f32"])
    yield from rounded(program, f"{name} fp8", *place, choices)


def gguf(program, file):
    with tempfile.TemporaryDirectory() as place:
        ids = pathlib.Path(place) / "ids.json"
        ids.write_text(json.dumps([7 * i % 4000 + 5 for i in range(90)]))
        yield from compare(program, pathlib.Path(file).name, file, ids, [[], ["--prefill-chunk", "37"], *BUDGETS[:1]])


def blocks(program):
    """Random nets whose rows are whole blocks. Their answers are near ties: logits alone are compared."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        run(program, "synth", "tiny", place / "tiny", "--layers", 4)
        config = json.loads((place / "tiny" / "config.json").read_text())
        text = config.get("text_config", config)
        text.update(hidden_size=512, moe_intermediate_size=256, shared_expert_intermediate_size=256)
        (place / "config.json").write_text(json.dumps(config))
        ids = place / "ids.json"
        ids.write_text(json.dumps([7 * i % 500 + 5 for i in range(90)]))
        for experts, trunk in BLOCKS:
            model = place / f"{experts}-{trunk}"
            run(program, "synth", place / "config.json", model, "--layout", "native", "--experts", experts, "--trunk",
                trunk)
            choices = [[], ["--prefill-chunk", "37"], ["--vram", "240M", "--slots", "32"]]
            yield from compare(program, f"experts {experts}, trunk {trunk}", model, ids, choices, greedy=False)


def families(program):
    """Random nets of families whose releases have planes: logits alone, as of the blocks. Some at a time: a run is
    short, and most of it is the start."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        ids = place / "ids.json"
        ids.write_text(json.dumps([7 * i % 500 + 5 for i in range(90)]))
        choices = [[], ["--prefill-chunk", "37"], *([*BUDGETS[0], "--slots", "24", *more] for more in PREDICT)]

        def net(job):
            shape, planes = job
            experts, trunk = planes or ("4bit", "4bit")
            if shape in UNCUT and trunk.startswith("fp8"):
                trunk = "bf16"
            model = place / f"{shape}-{experts}-{trunk}".replace(":", "-")
            layout = ["--layout", "native"] if planes and shape not in UNPACKED else []
            run(program, "synth", shape, model, *layout, "--group", 32, "--experts", experts, "--trunk", trunk)
            always = ["--kv-type", "f32"] if shape in ROUNDED else []
            name = f"{shape} with experts {experts}, trunk {trunk}"
            return list(compare(program, name, model, ids, choices, greedy=False, always=always))

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = [(shape, planes) for shape in FAMILIES for planes in (None, *PLANES)]
            held = [job for job in jobs if job[0] not in UNPACKED or job[1] in (None, PLANES[0])]
            for rows in pool.map(net, held):
                yield from rows


def known_parts(program):
    """Random nets of families of known parts, and of Gemma-4 with the heads of its release: logits alone."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        ids = place / "ids.json"
        ids.write_text(json.dumps([7 * i % 500 + 5 for i in range(90)]))
        run(program, "synth", "tiny-gemma", place / "gemma")
        gemma = json.loads((place / "gemma" / "config.json").read_text())
        configs = {name: dict(COMMON, architectures=[name], **own) for name, own in PLAIN.items()}
        configs["Gemma-4 with heads of 256 and 512"] = dict(gemma, **WIDE)
        choices = [[], ["--prefill-chunk", "37"], *([*BUDGETS[0], "--slots", "24", *more] for more in PREDICT)]
        for name, config in configs.items():
            file, model = place / f"{config['model_type']}.json", place / f"{config['model_type']}-net"
            file.write_text(json.dumps(config))
            run(program, "synth", file, model)
            yield from compare(program, name, model, ids, choices, greedy=False)
            for kept in ("f32", "bf16", "q8"):
                always = ["--kv-type", kept]
                yield from compare(program, f"{name} {kept}", model, ids, [[]], greedy=False, always=always)


def deep(program, shape, types):
    """Random nets of a shape over DEPTH positions with every type of their cache: logits alone, as of the blocks.

    Of so many positions one or two lie so near a tie between two experts that the last bit of a score decides: the
    processor differs from itself there when its activations have 16 bits. Such positions differ from net to net. What
    is wrong with a position is wrong in every net: so TIES may be beyond the bound, or NEAR_CUTS, and none
    in both nets."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        ids = place / "ids.json"
        ids.write_text(json.dumps([(7 * i + i // 500) % 500 + 5 for i in range(DEPTH)]))
        for seed in SEEDS:
            layers = [] if shape in WHOLE else ["--layers", 4]
            run(program, "synth", shape, place / f"net{seed}", *layers, "--seed", seed, *GROUPS.get(shape, []))
        most = NEAR_CUTS.get(shape, TIES)
        for kept in types:
            beyond = []
            for seed in SEEDS:
                choices, always = [[], ["--prefill-chunk", "333"]], ["--kv-type", kept]
                found = scores(program, place / f"net{seed}", ids, choices, always)
                reference, _ = next(found)
                for options, logits, _ in found:
                    squares = numpy.linalg.norm(logits - reference, axis=1), numpy.linalg.norm(reference, axis=1)
                    far = squares[0] > BOUND * squares[1]
                    error = numpy.linalg.norm(squares[0][~far]) / numpy.linalg.norm(squares[1][~far])
                    beyond.append((seed, far))
                    name = f"{shape}, seed {seed}, {DEPTH} positions, {kept} {' '.join(options)}"
                    ties = f", without positions {numpy.nonzero(far)[0].tolist()}" if far.any() else ""
                    yield f"{name}: relative {error:.1e}{ties}", error <= BOUND and far.sum() <= most
            both = numpy.logical_and.reduce([sum(far for of, far in beyond if of == seed) > 0 for seed in SEEDS])
            yield f"{shape}, {kept}: positions beyond in both nets: {numpy.nonzero(both)[0].tolist()}", not both.any()
        if shape in ROUNDED:
            yield from rounded(program, f"{shape}, {DEPTH} positions, fp8", place / "net0", ids, [[]])


def answers(program, model):
    tasks = [json.loads(line) for line in (model / "eval.jsonl").read_text().splitlines()]
    plain = [t["messages"][0]["content"] for t in tasks if len(t["messages"]) == 1 and "tools" not in t]
    prompts = list(dict.fromkeys(plain))[:PROMPTS]

    def ask(prompt, device):
        threads = ["--threads", 2] if device == "cpu" else []
        return run(program, "run", model, prompt, "--temperature", 0, "--max-tokens", 64, "--device", device, *threads)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda p: ask(p, "cpu") == ask(p, "cuda"), prompts))
    yield f"demo model: {sum(found)} of {len(found)} greedy answers as on the processor", all(found)


def budgets(program, model):
    with tempfile.TemporaryDirectory() as place:
        ids = pathlib.Path(place) / "ids.json"
        ids.write_text(json.dumps(list(range(40, 60))))
        results = []
        for options in [[], *BUDGETS, *PREDICTED]:
            out = run(program, "score", model, "--ids", ids, "--greedy", CONTINUED, "--device", "cuda", *options)
            results.append(json.loads(out)["greedy"])
        same = all(result == results[0] for result in results)
        yield f"demo model: {CONTINUED} tokens over {len(results)} budgets", same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("gguf", nargs="*")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    asked = parser.parse_args()
    program, demo, failed = asked.program, pathlib.Path("models/demo"), 0
    folders = [folder.parent for folder in sorted(pathlib.Path("tests/golden").glob("*/model"))]
    cases = [(folder.name, golden(program, folder)) for folder in folders]
    cases += [(f"deep {shape}", deep(program, shape, types)) for shape, types in DEEP.items()]
    cases += [("blocks", blocks(program)), ("families", families(program)), ("known parts", known_parts(program))]
    cases += [(file, gguf(program, file)) for file in asked.gguf]
    cases += [("answers", answers(program, demo)), ("budgets", budgets(program, demo))]
    for name, case in cases:
        try:
            for text, good in case if asked.only in name else ():
                print(text, "" if good else "FAILED", flush=True)
                failed += not good
        except Refused as refusal:
            print(name, refusal, "" if name.startswith(REFUSED) else "FAILED", flush=True)
            failed += not name.startswith(REFUSED)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
