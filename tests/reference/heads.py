#!/usr/bin/env python3
"""Draft heads of the golden Qwen3.5 and Qwen3-Next nets, and what they compute.

    heads.py tests/golden

transformers has no forward pass of a head (`mtp.*`), so this is one, in numpy and binary64, of the net and of its head.
The net's part is compared with the golden logits of transformers before anything is written. For each net:

    heads/NAME/mtp.safetensors        the tensors of the head, as the releases name them
    heads/NAME/reference.safetensors  logits [tokens - 1, vocabulary] f32: row t has what the head says behind token
                                      t + 1, given the trunk's output at token t; chains [starts, 3] i32 and
                                      chain_logits [starts, 3, vocabulary] f32: greedy drafts behind tokens `starts`,
                                      the second and third of the head's own output
"""

import dataclasses
import json
import pathlib
import sys

import numpy as np

import nets
import safetensors_file
from nets import Net
from safetensors_file import Stored, encode

CHAIN = 3
STARTS = (1, 2, 9, 40, 63, 64, 78)
TOKENS = 80


def rms(x, weight, epsilon=1e-6):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


class Model:
    """A net with its head in binary64, token by token."""

    def __init__(self, net):
        self.net = net
        self.values = {name: value.astype(np.float64) for name, value in net.tensors().items()}
        self.head = {name: value.astype(np.float64) for name, value in head_tensors(net).items()}

    def attention(self, get, x, start, keys, values):
        """Causal attention of the tokens `x`, the first at position `start`; appends to the lists of keys and values."""
        net, dim = self.net, self.net.head_dim
        both = (x @ get("q_proj").T).reshape(len(x), net.heads, 2, dim)
        query, gate = both[:, :, 0], both[:, :, 1].reshape(len(x), -1)
        key = (x @ get("k_proj").T).reshape(len(x), net.kv_heads, dim)
        value = (x @ get("v_proj").T).reshape(len(x), net.kv_heads, dim)
        query, key = rms(query, 1 + get("q_norm")), rms(key, 1 + get("k_norm"))
        rotated = dim // 4
        angles = np.arange(0, rotated, 2) / rotated
        out = np.zeros((len(x), net.heads, dim))
        for t in range(len(x)):
            angle = (start + t) * 1e7 ** -angles
            cos, sin = np.cos(angle), np.sin(angle)

            def turn(row):
                a, b = row[..., : rotated // 2], row[..., rotated // 2 : rotated]
                return np.concatenate([a * cos - b * sin, b * cos + a * sin, row[..., rotated:]], -1)

            keys.append(turn(key[t]))
            values.append(value[t])
            seen, summed = np.stack(keys), np.stack(values)
            for head in range(net.heads):
                group = head * net.kv_heads // net.heads
                scores = seen[:, group] @ turn(query[t])[head] / np.sqrt(dim)
                weights = np.exp(scores - scores.max())
                out[t, head] = weights @ summed[:, group] / weights.sum()
        return (out.reshape(len(x), -1) * sigmoid(gate)) @ get("o_proj").T

    def inputs(self, get, x):
        """What the delta rule reads: query, key and value before the convolution, z, write strengths, decays."""
        net = self.net
        key, each = net.key_heads * net.linear_dim, net.value_heads // net.key_heads
        if net.family == "qwen3_5_moe":
            return [x @ get(f"in_proj_{part}").T for part in ("qkv", "z", "b", "a")]
        grouped = (x @ get("in_proj_qkvz").T).reshape(len(x), net.key_heads, -1)
        cuts = np.cumsum([net.linear_dim, net.linear_dim, each * net.linear_dim])
        q, k, v, z = [part.reshape(len(x), -1) for part in np.split(grouped, cuts, -1)]
        assert q.shape[1] == key
        b, a = np.split((x @ get("in_proj_ba").T).reshape(len(x), net.key_heads, -1), 2, -1)
        return [np.concatenate([q, k, v], -1), z, b.reshape(len(x), -1), a.reshape(len(x), -1)]

    def delta(self, get, x):
        net, dim = self.net, self.net.linear_dim
        mixed, z, b, a = self.inputs(get, x)
        taps = get("conv1d")[:, 0]
        padded = np.concatenate([np.zeros((3, mixed.shape[1])), mixed])
        mixed = silu(sum(padded[i : i + len(x)] * taps[:, i] for i in range(4)))
        key = net.key_heads * dim
        q, k, v = np.split(mixed, [key, 2 * key], -1)
        heads = lambda rows, count: rows.reshape(len(x), count, dim)
        unit = lambda rows: rows / np.sqrt((rows * rows).sum(-1, keepdims=True) + 1e-6)
        each = net.value_heads // net.key_heads
        q = np.repeat(unit(heads(q, net.key_heads)), each, 1) / np.sqrt(dim)
        k = np.repeat(unit(heads(k, net.key_heads)), each, 1)
        v, strength = heads(v, net.value_heads), sigmoid(b)
        decay = np.exp(-np.exp(get("A_log")) * np.logaddexp(0, a + get("dt_bias")))
        state = np.zeros((net.value_heads, dim, dim))
        out = np.zeros_like(v)
        for t in range(len(x)):
            state *= decay[t][:, None, None]
            read = np.einsum("hkv,hk->hv", state, k[t])
            state += np.einsum("hk,hv->hkv", k[t], (v[t] - read) * strength[t][:, None])
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        out = rms(out, get("norm")) * silu(heads(z, net.value_heads))
        return out.reshape(len(x), -1) @ get("out_proj").T

    def mixture(self, get, x):
        net, out = self.net, np.zeros_like(x)
        logits = x @ get("gate").T
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        for t, row in enumerate(x):
            chosen = np.argsort(-weights[t])[: net.top_k]
            total = weights[t][chosen].sum()
            for expert in chosen:
                gate, up = np.split(get("experts.gate_up_proj")[expert] @ row, 2)
                out[t] += weights[t][expert] / total * (get("experts.down_proj")[expert] @ (silu(gate) * up))
            inner = silu(get("shared_expert.gate_proj") @ row) * (get("shared_expert.up_proj") @ row)
            out[t] += sigmoid(get("shared_expert_gate") @ row) * (get("shared_expert.down_proj") @ inner)
        return out

    @staticmethod
    def below(values, prefix):
        return lambda part: values.get(f"{prefix}{part}.weight", values.get(f"{prefix}{part}"))

    def layer(self, values, prefix, x, mixer):
        """x += mixer(norm(x)); x += mixture(norm(x))."""
        get = self.below(values, prefix)
        x = x + mixer(rms(x, 1 + get("input_layernorm")))
        return x + self.mixture(self.below(values, prefix + "mlp."), rms(x, 1 + get("post_attention_layernorm")))

    def embed(self, ids):
        return self.values[self.net.prefix + "embed_tokens.weight"][ids]

    def logits(self, x):
        return x @ self.values["lm_head.weight"].T

    def outputs(self, ids):
        """The trunk's output at every token, normed."""
        x = self.embed(ids)
        for i in range(self.net.layers):
            prefix = f"{self.net.prefix}layers.{i}."
            if self.net.is_full_attention(i):
                get = self.below(self.values, prefix + "self_attn.")
                x = self.layer(self.values, prefix, x, lambda x: self.attention(get, x, 0, [], []))
            else:
                get = self.below(self.values, prefix + "linear_attn.")
                x = self.layer(self.values, prefix, x, lambda x: self.delta(get, x))
        return rms(x, 1 + self.values[self.net.prefix + "norm.weight"])

    def drafts(self, ids, outputs, position, keys, values):
        """The head's normed output of pairs (token, output before it), the first token at `position`."""
        get = self.below(self.head, "mtp.")
        embedding = rms(self.embed(ids), 1 + get("pre_fc_norm_embedding"))
        hidden = rms(outputs, 1 + get("pre_fc_norm_hidden"))
        x = np.concatenate([embedding, hidden], -1) @ get("fc").T
        own = self.below(self.head, "mtp.layers.0.self_attn.")
        attend = lambda x: self.attention(own, x, position, keys, values)
        return rms(self.layer(self.head, "mtp.layers.0.", x, attend), 1 + get("norm"))


def head_tensors(net):
    """{name: float32 array} of a head, experts fused."""
    h, out = net.hidden, {}
    shapes = {
        "mtp.fc.weight": (h, 2 * h),
        "mtp.pre_fc_norm_embedding.weight": (h,),
        "mtp.pre_fc_norm_hidden.weight": (h,),
        "mtp.norm.weight": (h,),
        "mtp.layers.0.input_layernorm.weight": (h,),
        "mtp.layers.0.post_attention_layernorm.weight": (h,),
    }
    shapes |= net._attention_shapes("mtp.layers.0.self_attn.") | net._moe_shapes("mtp.layers.0.mlp.")
    for name, shape in shapes.items():
        norm = name.endswith(("norm_embedding.weight", "norm_hidden.weight"))
        # Drawn as every norm is.
        out[name] = net._draw(name.replace(".weight", "_norm.weight") if norm else name, shape)
    return out


def make(name, net, fused, golden):
    folder = golden / "heads" / name
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.array(json.loads((golden / name / "ids.json").read_text()))
    expected = safetensors_file.read(golden / name / "reference.safetensors")["logits"].values()
    model = Model(net)
    outputs = model.outputs(ids)
    error = np.linalg.norm(model.logits(outputs) - expected) / np.linalg.norm(expected)
    assert error < 1e-5, f"{name}: the trunk is {error} from its reference"
    ids, outputs = ids[:TOKENS], outputs[:TOKENS]
    keys, values = [], []
    own = model.drafts(ids[1:], outputs[:-1], 1, keys, values)
    logits = model.logits(own)
    chains, chain_logits, margin = [], [], np.inf
    for start in STARTS:
        # Rows of the tokens up to `start`, whose row is the last but for those of drafts.
        seen, summed = keys[:start], values[:start]
        output, tokens, rows = own[start - 1], [], []
        for depth in range(CHAIN):
            row = model.logits(output)
            best = np.sort(row)
            margin = min(margin, best[-1] - best[-2])
            tokens.append(int(row.argmax()))
            rows.append(row)
            if depth + 1 < CHAIN:
                pair = np.array([tokens[-1]]), output[None]
                output = model.drafts(*pair, start + 1 + depth, seen, summed)[0]
        chains.append(tokens)
        chain_logits.append(rows)
    assert margin > 2e-3, f"{name}: a draft is a near tie ({margin})"
    tensors = head_tensors(net)
    tensors = tensors if fused else nets.unfuse_experts(tensors)
    stored = {key: encode(value, "BF16") for key, value in tensors.items()}
    safetensors_file.write(folder / "mtp.safetensors", stored, metadata={"format": "pt"})
    result = {
        "logits": Stored("F32", logits.astype(np.float32)),
        "starts": Stored("I32", np.array(STARTS, np.int32)),
        "chains": Stored("I32", np.array(chains, np.int32)),
        "chain_logits": Stored("F32", np.array(chain_logits).astype(np.float32)),
    }
    safetensors_file.write(folder / "reference.safetensors", result)
    print(f"{name}: trunk {error:.1e} from its reference, closest draft {margin:.3f}")


def main():
    golden = pathlib.Path(sys.argv[1])
    small = Net("qwen35", hidden=64, experts=6, expert_width=32, shared_width=32, head_dim=32, linear_dim=16)
    following = dataclasses.replace(small, name="qwen3next", family="qwen3_next")
    make("qwen35-calm-hf", small.calm(), True, golden)
    make("qwen3next-calm-hf", following.calm(), False, golden)


if __name__ == "__main__":
    main()
