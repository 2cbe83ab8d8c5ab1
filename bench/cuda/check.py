#!/usr/bin/env python3
"""Compares the GPU's answers with the processor's: logits of the golden checkpoints and of 4,000 positions, greedy
answers of the demo model, and tokens over GPU and RAM budgets and with prediction, which must not change them.

Run in the repository's root on a machine with a GPU: bench/cuda/check.py PATH_OF_FLASHMOE [GGUF ..]. Compares small
random nets of the block encodings that the GPU reads, and the GGUF files that are named, in the same way. Prints a line
per case and ends with an error when one differs. Needs numpy and safetensors."""
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file

BOUND = 2e-3
PROMPTS = 50
CONTINUED = 1000
DEPTH = 4000
BUDGETS = [["--vram", "200M"], ["--vram", "200M", "--slots", "128"], ["--vram", "230M", "--slots", "128"]]
# Encodings of experts and of everything else.
BLOCKS = [("q4_k", "q4_k"), ("q4_k", "q6_k"), ("q6_k", "q8_0"), ("q8_0", "q5_k"), ("q5_k", "q4_k"), ("q4_0", "q4_1"),
          ("q5_0", "q5_1"), ("q4_1", "q5_0"), ("q2_k", "q3_k"), ("q3_k", "q2_k"), ("iq4_nl", "iq4_xs"),
          ("iq4_xs", "q8_0"), ("q5_1", "q4_0"), ("f16", "q4_k"), ("4bit", "q6_k"), ("q4_k", "8bit"),
          ("iq2_xxs", "iq3_xxs"), ("iq2_xs", "iq2_s"), ("iq3_s", "iq1_s"), ("tq2_0", "q5_k"), ("q4_k", "tq1_0")]
# Families by shapes of `synth`; encodings of their experts and of everything else.
PLANES = [("bf16", "bf16"), ("fp8:128:f32", "fp8:128:f32"), ("mxfp4:planes", "fp8:128:e8m0"), ("int4", "bf16")]
FAMILIES = ["tiny-glm", "tiny-minimax", "tiny-latent"]
# Golden checkpoints whose caches are rounded as in training unless another type is asked for.
ROUNDED = ("dsv4",)
PREDICT = [[], ["--predict", "on"]]
PREDICTED = [[*budget, "--predict", "on"] for budget in BUDGETS[:2]]


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def compare(program, name, model, ids, choices, greedy=True, always=()):
    """`always`: options of the reference as well."""
    with tempfile.TemporaryDirectory() as place:
        def score(name, *options):
            out = pathlib.Path(place) / name
            run(program, "score", model, "--ids", ids, "--greedy", 32, "--logits", out, *always, *options)
            return load_file(out)

        reference = score("cpu", "--device", "cpu", "--arithmetic", "f32")
        for options in choices:
            found = score("gpu", "--device", "cuda", *options)
            a, b = (x["logits"].astype(numpy.float64) for x in (found, reference))
            error = numpy.linalg.norm(a - b) / numpy.linalg.norm(b)
            same = not greedy or bool((found["greedy"] == reference["greedy"]).all())
            yield f"{name} {' '.join(options)}: relative {error:.1e}", error <= BOUND and same


def golden(program, folder):
    choices = [[], ["--prefill-chunk", "5"], *BUDGETS[:2], *PREDICTED]
    for kept in ("f32", "fp8") if folder.name.startswith(ROUNDED) else (None,):
        always = ["--kv-type", kept] if kept else []
        yield from compare(program, f"{folder.name} {kept or ''}", folder / "model", folder / "ids.json", choices,
                           always=always)


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
    """Random nets of families whose releases have planes: logits alone, as of the blocks."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        ids = place / "ids.json"
        ids.write_text(json.dumps([7 * i % 500 + 5 for i in range(90)]))
        choices = [[], ["--prefill-chunk", "37"], *([*BUDGETS[0], "--slots", "24", *more] for more in PREDICT)]
        for shape in FAMILIES:
            run(program, "synth", shape, place / shape)
            yield from compare(program, f"{shape} in 4 bits", place / shape, ids, choices, greedy=False)
            for index, (experts, trunk) in enumerate(PLANES):
                model = place / f"{shape}-{index}"
                run(program, "synth", shape, model, "--layout", "native", "--group", 32, "--experts", experts, "--trunk",
                    trunk)
                name = f"{shape} with experts {experts}, trunk {trunk}"
                yield from compare(program, name, model, ids, choices, greedy=False)


def deep(program, shape):
    """A random net of a shape over DEPTH positions with every type of its cache: logits alone, as of the blocks."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        run(program, "synth", shape, place / "net", "--layers", 4)
        ids = place / "ids.json"
        ids.write_text(json.dumps([(7 * i + i // 500) % 500 + 5 for i in range(DEPTH)]))
        for kept in ("f32", "f16", "bf16", "q8"):
            name, always = f"{shape}, {DEPTH} positions, {kept}", ["--kv-type", kept]
            choices = [[], ["--prefill-chunk", "333"]]
            yield from compare(program, name, place / "net", ids, choices, greedy=False, always=always)


def answers(program, model):
    tasks = [json.loads(line) for line in (model / "eval.jsonl").read_text().splitlines()]
    plain = [t["messages"][0]["content"] for t in tasks if len(t["messages"]) == 1 and "tools" not in t]
    prompts = list(dict.fromkeys(plain))[:PROMPTS]

    def ask(prompt, device):
        threads = ["--threads", 2] if device == "cpu" else []
        return run(program, "run", model, prompt, "--temperature", 0, "--max-tokens", 64, "--device", device, *threads)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
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
    program = sys.argv[1]
    failed = 0
    folders = [folder.parent for folder in sorted(pathlib.Path("tests/golden").glob("*/model"))]
    cases = [golden(program, folder) for folder in folders]
    cases += [deep(program, shape) for shape in ("tiny", "tiny-latent")]
    cases += [blocks(program), families(program), *(gguf(program, file) for file in sys.argv[2:])]
    for case in [*cases, answers(program, pathlib.Path("models/demo")), budgets(program, pathlib.Path("models/demo"))]:
        for text, good in case:
            print(text, "" if good else "FAILED", flush=True)
            failed += not good
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
