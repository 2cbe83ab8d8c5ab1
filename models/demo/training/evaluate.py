"""Greedy evaluation of a checkpoint over eval.jsonl: exact checks per task, tool-call validity, expert load, perplexity.

  python3 evaluate.py FOLDER [--items N] [--failures N] [--per-task N]

All items run as one batch through the recurrent form: at step t every sequence consumes its t-th token, which is
a prompt token or the token it has just chosen, so no padding is ever seen by the model.
"""
import argparse
import json
import math
import os
import re

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import checkpoint
from batches import pack_rows, to_batch
from data import Weights, render

LONGEST_ANSWER = 420
CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.S)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.S)


def read(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        for message in line["messages"]:
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return lines


def parse_calls(text, tools):
    """(content before the calls, calls) with arguments typed by the schema; None where the markup is broken."""
    if "<tool_call>" not in text:
        return text.strip(), []
    content, markup = text.split("<tool_call>", 1)
    markup = "<tool_call>" + markup
    schemas = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools}
    calls = []
    for name, body in CALL.findall(markup):
        arguments = {}
        for key, value in PARAMETER.findall(body):
            kind = schemas.get(name, {}).get(key, {}).get("type", "string")
            try:
                arguments[key] = value if kind == "string" else json.loads(value)
            except json.JSONDecodeError:
                return content.strip(), None
        if PARAMETER.sub("", body) or name not in schemas or any(key not in schemas[name] for key in arguments):
            return content.strip(), None
        calls.append({"name": name, "arguments": arguments})
    return content.strip(), calls if not CALL.sub("", markup).strip() else None


def passes(check, content, calls):
    if check["kind"] == "tool_calls":
        return calls == check["calls"]
    if calls != []:
        return False
    if check["kind"] == "exact":
        return content == check["value"]
    if check["kind"] == "contains":
        return all(value in content for value in check["values"])
    try:
        return json.loads(content) == check["value"]
    except json.JSONDecodeError:
        return False


@torch.no_grad()
def greedy(model, prompts, end, device):
    """Generated token lists and tokens per expert [layers, experts]."""
    n, longest = len(prompts), max(map(len, prompts))
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    tokens = torch.zeros(n, longest + LONGEST_ANSWER, dtype=torch.long, device=device)
    for i, prompt in enumerate(prompts):
        tokens[i, :len(prompt)] = torch.tensor(prompt, device=device)
    states, done = model.empty_state(n, tokens.shape[1], device), torch.zeros(n, dtype=torch.bool, device=device)
    load, stop = 0, lengths + LONGEST_ANSWER
    for t in range(tokens.shape[1] - 1):
        logits, count = model.step(tokens[:, t], states, t, (~done).float())
        load = load + count
        choosing = (t + 1 >= lengths) & ~done
        tokens[:, t + 1] = torch.where(choosing, logits.argmax(-1), tokens[:, t + 1])
        done |= choosing & ((tokens[:, t + 1] == end) | (t + 2 >= stop))
        if t % 16 == 0 and done.all():
            break
    tokens = tokens.tolist()
    outputs = [row[len(p):] for row, p in zip(tokens, prompts)]
    return [out[:out.index(end)] if end in out else out[:LONGEST_ANSWER] for out in outputs], load


@torch.no_grad()
def perplexity(model, tokenizer, lines, device):
    """exp(mean negative log likelihood) over all tokens and over assistant tokens."""
    weights, documents = Weights(tokenizer), []
    for line in lines:
        ids = tokenizer.encode(render(line["messages"], line.get("tools", ()))[:-1], add_special_tokens=False).ids
        documents.append({"ids": ids, "weights": weights.of(ids)})
    batch = to_batch(pack_rows(documents, 1024)[0], device)
    total, count = torch.zeros(2, device=device), torch.zeros(2, device=device)
    for row in range(len(batch["ids"])):
        part = {key: value[row:row + 1] for key, value in batch.items()}
        loss = F.cross_entropy(model(part)[0][0].float(), part["targets"][0], reduction="none")
        for i, mask in enumerate((part["weight"][0] > 0, part["weight"][0] == 1)):
            total[i] += (loss * mask).sum()
            count[i] += mask.sum()
    return (total / count).exp().tolist()


def evaluate(folder, device, failures=0, per_task=None, batch=1000):
    """Prints the table; returns {task: (passed, items)}."""
    model = checkpoint.load(folder, torch.bfloat16 if device.type == "cuda" else torch.float32).to(device)
    home = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    tokenizer = Tokenizer.from_file(os.path.join(home, "tokenizer.json"))
    items, taken = [], {}
    for item in read(os.path.join(home, "eval.jsonl")):
        taken[item["task"]] = taken.get(item["task"], 0) + 1
        if per_task is None or taken[item["task"]] <= per_task:
            items.append(item)
    prompts = [tokenizer.encode(render(i["messages"], i.get("tools", ()), i["enable_thinking"]),
                                add_special_tokens=False).ids for i in items]
    end = tokenizer.token_to_id("<|im_end|>")
    outputs, load = [], 0
    for start in range(0, len(prompts), batch):
        part, count = greedy(model, prompts[start:start + batch], end, device)
        outputs, load = outputs + part, load + count
    scores, valid, expected, shown = {}, 0, 0, 0
    for item, ids in zip(items, outputs):
        text = tokenizer.decode(ids, skip_special_tokens=False)
        answer = text.split("</think>", 1)[-1].lstrip("\n") if item["enable_thinking"] else text
        content, calls = parse_calls(answer, item.get("tools", []))
        good = passes(item["check"], content, calls)
        if item["check"]["kind"] == "tool_calls":
            expected += 1
            valid += bool(calls)
        passed, count = scores.get(item["task"], (0, 0))
        scores[item["task"]] = (passed + good, count + 1)
        if not good and shown < failures:
            shown += 1
            print(f"--- {item['task']} thinking={item['enable_thinking']}: {item['messages'][-1]['content']!r}\n"
                  f"want {json.dumps(item['check'], ensure_ascii=False)}\ngot  {text!r}")
    for task, (passed, count) in scores.items():
        print(f"{task:16s} {passed:4d} / {count:4d}  {100 * passed / count:6.1f} %")
    passed, count = (sum(v) for v in zip(*scores.values()))
    share = load / load.sum(1, keepdim=True) * load.shape[1]
    print(f"{'all':16s} {passed:4d} / {count:4d}  {100 * passed / count:6.1f} %")
    print(f"valid tool calls {valid} / {expected}; expert load relative to 1/E: smallest {share.min():.3f}, "
          f"largest {share.max():.2f}, smallest by layer {[round(v, 2) for v in share.amin(1).tolist()]}")
    everything, spoken = perplexity(model, tokenizer, read(os.path.join(home, "heldout.jsonl")), device)
    print(f"held-out perplexity: all tokens {everything:.4f}, assistant tokens {spoken:.5f}", flush=True)
    assert not math.isnan(everything)
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--failures", type=int, default=0, help="print this many failed items")
    parser.add_argument("--per-task", type=int, help="evaluate only the first N items of every task")
    parser.add_argument("--batch", type=int, default=1000, help="sequences decoded together")
    arguments = parser.parse_args()
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    evaluate(arguments.folder, place, arguments.failures, arguments.per_task, arguments.batch)
