"""Trains the demo model on one GPU.

  python3 train.py --state DIR --steps 12000 [--stop-after SECONDS] [--resume DIR] [--out DIR]

Worker processes generate, tokenise and pack documents from the seed; no document is ever repeated.  AdamW, linear
warm-up and cosine decay; from QUANTIZE_FROM of the steps on, the weights pass through the fake quantisation of the
shipped format.  A run can stop after a number of seconds and go on later: DIR/state.pt holds everything (f32 weights
and optimiser), and `--out` also gets the weights in 8 bits in small files, enough to go on after a warm-up.
"""
import argparse
import json
import math
import multiprocessing
import os
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from batches import pack_rows, to_batch
from data import documents
from model import Config, Demo
from quantize import affine, dequantize, pack, unpack
from words import Source

SEED = 20261121
ROW, ROWS = 1024, 64          # 65,536 token places a step
PEAK_RATE, LAST_RATE, WARM_UP = 1.5e-3, 1.5e-5, 300
WEIGHT_DECAY = 0.05
BALANCE = 0.01                # per layer
QUANTIZE_FROM = 0.6           # share of the steps after which the weights are fake-quantised
HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def produce(queue, seed):
    """Worker: fills the queue with row arrays of exactly ROWS rows."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(os.path.join(HOME, "tokenizer.json"))
    source, pool = Source(seed), []
    while True:
        while len(pool) < 700:
            pool += documents(tokenizer, source, 200)
        source.random.shuffle(pool)
        pool.sort(key=lambda d: -len(d["ids"]) // 64 + source.random.random() * 4)
        rows, places = pack_rows(pool, ROW)
        order = sorted(range(len(pool)), key=lambda i: places[i])
        kept = {key: value[:ROWS] for key, value in rows.items()}
        pool = [pool[i] for i in order if places[i][0] >= ROWS]
        if len(kept["ids"]) == ROWS:
            queue.put(kept)


def batches(workers, seed):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(maxsize=4 * workers)
    for index in range(workers):
        context.Process(target=produce, args=(queue, seed * 1000 + index), daemon=True).start()
    while True:
        yield queue.get()


def learning_rate(step, steps, since_start):
    """`since_start`: steps since the optimiser was last empty."""
    ramp = min(1, (since_start + 1) / WARM_UP)
    return ramp * (LAST_RATE + (PEAK_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1, step / steps))))


def save_small(model, folder, steps_done):
    """Weights in 8 bits (f32 where not a matrix), in files below 16 MiB."""
    os.makedirs(folder, exist_ok=True)
    part, size, files = {}, 0, 0
    for name, value in model.state_dict().items():
        value = value.detach().cpu()
        if value.dim() >= 2 and value.shape[-1] % 64 == 0:
            q, scale, bias = affine(value, 8)
            entry = {name + ".q": pack(q, 8), name + ".s": scale.bfloat16(), name + ".b": bias.bfloat16()}
        else:
            entry = {name: value}
        bytes_ = sum(t.numel() * t.element_size() for t in entry.values())
        if size + bytes_ > 15 << 20:
            save_file(part, os.path.join(folder, f"small-{files}.safetensors"))
            part, size, files = {}, 0, files + 1
        part.update(entry)
        size += bytes_
    part["steps_done"] = torch.tensor(steps_done)
    save_file(part, os.path.join(folder, f"small-{files}.safetensors"))


def load_small(model, folder):
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.startswith("small-"):
            tensors.update(load_file(os.path.join(folder, name)))
    steps_done = int(tensors.pop("steps_done"))
    state = {}
    for name, value in tensors.items():
        if name.endswith(".q"):
            base = name[:-2]
            state[base] = dequantize(unpack(value, 8), tensors[base + ".s"].float(), tensors[base + ".b"].float())
        elif not name.endswith((".s", ".b")):
            state[name] = value
    model.load_state_dict(state, strict=True)
    return steps_done


def optimizer_for(model):
    plain = [p for p in model.parameters() if p.dim() < 2 or p.shape[-1] % 64]
    matrices = [p for p in model.parameters() if not (p.dim() < 2 or p.shape[-1] % 64)]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=torch.cuda.is_available())


def weighted_loss(logits, targets, weight):
    loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none") * weight.flatten()
    spoken = weight.flatten() == 1
    return loss.sum() / weight.sum(), (loss * spoken).sum() / spoken.sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stop-after", type=float, default=1e9)
    parser.add_argument("--resume", help="folder of small-*.safetensors")
    parser.add_argument("--out", help="folder for small-*.safetensors and log.jsonl")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--tiny", action="store_true", help="a few small rows, to try the code on a CPU")
    a = parser.parse_args()
    begin = time.time()
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Demo(Config(), torch.bfloat16 if device.type == "cuda" else torch.float32).to(device)
    optimizer = optimizer_for(model)
    os.makedirs(a.state, exist_ok=True)
    path, step, empty_since = os.path.join(a.state, "state.pt"), 0, 0
    if os.path.exists(path):
        saved = torch.load(path, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, empty_since = saved["step"], saved["empty_since"]
    elif a.resume:
        step = empty_since = load_small(model, a.resume)
    loss_of = weighted_loss
    if not a.eager:
        for layer in model.layers:
            layer.compile(dynamic=False)
        loss_of = torch.compile(weighted_loss, dynamic=False)
    log_path = os.path.join(a.out or a.state, "log.jsonl")
    os.makedirs(os.path.dirname(log_path), exist_ok=True)
    rows = batches(1 if a.tiny else a.workers, SEED + step)
    print(f"from step {step}", flush=True)
    sums, since, clock = torch.zeros(4, device=device), 0, time.time()
    while step < a.steps and time.time() - begin < a.stop_after:
        data = next(rows)
        if a.tiny:
            data = {key: value[:4] for key, value in data.items()}
        batch = to_batch(data, device)
        model.set_quantized(step >= QUANTIZE_FROM * a.steps)
        rate = learning_rate(step, a.steps, step - empty_since)
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits, balance, count = model(batch)
        loss, spoken = loss_of(logits, batch["targets"], batch["weight"])
        (loss + BALANCE * len(model.layers) * balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            least = (count / count.mean(1, keepdim=True)).min()
            sums += torch.stack([loss.detach(), spoken.detach(), norm, least])
        step, since = step + 1, since + 1
        if step % 50 == 0 or step in (1, 2, 5, 10) or a.tiny:
            values = (sums / since).tolist()
            used = (time.time() - clock) / since
            line = {"step": step, "loss": round(values[0], 5), "answer_loss": round(values[1], 5),
                    "gradient": round(values[2], 3), "least_load": round(values[3], 3), "rate": round(rate, 6),
                    "ms": round(used * 1000, 1)}
            with open(log_path, "a") as file:
                file.write(json.dumps(line) + "\n")
            if step % 500 == 0 or step <= 200:
                print(line, flush=True)
            sums.zero_()
            since, clock = 0, time.time()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                "empty_since": empty_since}, path)
    if a.out:
        save_small(model, a.out, step)
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    print(f"stopped at step {step} of {a.steps} after {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
