"""Training-time Qwen3.5-MoE text model: the same mathematics as transformers' Qwen3_5MoeForCausalLM, arranged for speed.

What differs from the reference is only how the work is laid out:
- experts: tokens are sorted by expert and multiplied with one grouped matrix product per projection;
- GatedDeltaNet: the chunked form of the delta rule (64 tokens a chunk), batched over rows, heads and chunks;
- rows hold several documents.  A document starts at a multiple of the chunk length, so the recurrent state is
  reset between chunks only; attention and the convolution are masked by document;
- weights can be passed through the fake quantisation of `quantize.py` (quantisation-aware training).
`Demo.step` is the recurrent form, one token at a time, used for greedy decoding.  `check.py` compares both forms
with transformers.  Norm weights are kept as the factor itself (1 + w in the released layout).
"""
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from quantize import fake_quantize

CHUNK = 64  # tokens per delta-rule chunk; documents are aligned to it


@dataclass(frozen=True)
class Config:
    """Shape of the model; names follow the released text_config."""
    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 12
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    num_experts: int = 64
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 128
    full_attention_interval: int = 4
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.25
    rms_norm_eps: float = 1e-6

    def as_dict(self):
        return asdict(self)

    def is_full(self, layer):
        return (layer + 1) % self.full_attention_interval == 0


class Linear(nn.Module):
    """Bias-free linear map, optionally fake-quantised; `shape` is [out, in] or [experts, out, in]."""

    def __init__(self, *shape, bits=4, gain=1.0):
        super().__init__()
        self.bits = bits
        self.quantized = False
        self.weight = nn.Parameter(torch.randn(*shape) * gain * shape[-1] ** -0.5)

    def value(self, dtype):
        weight = fake_quantize(self.weight, self.bits) if self.quantized else self.weight
        return weight.to(dtype)

    def forward(self, x):
        return F.linear(x, self.value(x.dtype))


class Norm(nn.Module):
    """RMS norm in f32; `weight` multiplies directly."""

    def __init__(self, size, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x, dtype):
        x = x.float()
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(dtype)


class _GatherTokens(torch.autograd.Function):
    """[N, h] -> [N*k, h] in expert order; the backward pass gathers instead of scattering with atomics."""

    @staticmethod
    def forward(ctx, x, order, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x[order // k]

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        return grad[inverse].view(-1, ctx.k, grad.shape[-1]).sum(1), None, None, None


class _Permute(torch.autograd.Function):
    """x[index] for a permutation `index` whose inverse is `inverse`."""

    @staticmethod
    def forward(ctx, x, index, inverse):
        ctx.save_for_backward(inverse)
        return x[index]

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.saved_tensors[0]], None, None


def grouped_product(x, weight, ends):
    """Rows ends[e-1]..ends[e] of x [M, in] times weight[e]^T; weight [experts, out, in] -> [M, out]."""
    if x.is_cuda:
        return torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends)
    pieces, start = [], 0
    for matrix, end in zip(weight.unbind(0), ends.tolist()):
        pieces.append(x[start:end] @ matrix.T)
        start = end
    return torch.cat(pieces)


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, shared = c.hidden_size, c.shared_expert_intermediate_size
        ff, e = c.moe_intermediate_size, c.num_experts
        depth = (2 * c.num_hidden_layers) ** -0.5
        self.k, self.n_experts = c.num_experts_per_tok, e
        self.gate = Linear(e, h, bits=8)
        self.experts_gate, self.experts_up = Linear(e, ff, h), Linear(e, ff, h)
        self.experts_down = Linear(e, h, ff, gain=depth)
        self.shared_gate_proj, self.shared_up_proj = Linear(shared, h), Linear(shared, h)
        self.shared_down_proj = Linear(h, shared, gain=depth)
        self.shared_gate = Linear(1, h, bits=8)

    def forward(self, x, live):
        """x [N, h]; live [N] marks real tokens.  Returns output, balance loss, tokens per expert."""
        n = x.shape[0]
        probability = F.softmax(self.gate(x.float()), -1)
        top, index = torch.topk(probability, self.k, dim=-1)
        top = top / top.sum(-1, keepdim=True)
        flat = index.reshape(-1)
        expert_sorted, order = torch.sort(flat)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(n * self.k, device=x.device))
        experts = torch.arange(self.n_experts, device=x.device)
        ends = torch.searchsorted(expert_sorted, experts, right=True).to(torch.int32)
        xs = _GatherTokens.apply(x, order, inverse, self.k)
        gate_up = torch.cat([self.experts_gate.value(x.dtype), self.experts_up.value(x.dtype)], 1)
        gate, up = grouped_product(xs, gate_up, ends).chunk(2, -1)
        weight = _Permute.apply(top.reshape(-1), order, inverse)
        inner = (F.silu(gate.float()) * up.float() * weight[:, None]).to(x.dtype)
        y = grouped_product(inner, self.experts_down.value(x.dtype), ends)
        y = _Permute.apply(y, inverse, order).view(n, self.k, -1).float().sum(1)
        shared = self.shared_down_proj(F.silu(self.shared_gate_proj(x)) * self.shared_up_proj(x))
        y = y + torch.sigmoid(self.shared_gate(x.float())) * shared.float()
        count = torch.zeros(self.n_experts, device=x.device).scatter_add_(
            0, flat, live.repeat_interleave(self.k))
        total = live.sum()
        balance = self.n_experts * (count / (total * self.k) * (probability * live[:, None]).sum(0) / total).sum()
        return y, balance, count


class _UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A [..., 64, 64]: Neumann products on 16-blocks, then block merges.

    Plain doubling over all 64 would be exact only without rounding: for repeated keys A^32 reaches 1e17."""

    @staticmethod
    def forward(ctx, a):
        size, block = a.shape[-1], 16
        eye = torch.eye(block, device=a.device, dtype=a.dtype)
        tiles = a.unflatten(-1, (-1, block)).unflatten(-3, (-1, block))           # [.., r, 16, c, 16]
        x = torch.diagonal(tiles, dim1=-4, dim2=-2).movedim(-1, -3)               # [.., r, 16, 16]
        power, inverse = x, eye - x
        for _ in range(3):
            power = power @ power
            inverse = inverse + inverse @ power
        while block < size:
            tiles = a.unflatten(-1, (-1, 2, block)).unflatten(-4, (-1, 2, block))  # [.., r, 2, b, c, 2, b]
            low = torch.diagonal(tiles[..., 1, :, :, 0, :], dim1=-4, dim2=-2).movedim(-1, -3)
            first, second = inverse.unflatten(-3, (-1, 2)).unbind(-3)
            corner = -(second @ low @ first)
            top = torch.cat([first, torch.zeros_like(first)], -1)
            inverse = torch.cat([top, torch.cat([corner, second], -1)], -2)
            block *= 2
        inverse = inverse.squeeze(-3)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        t = ctx.saved_tensors[0].transpose(-1, -2)
        return -(t @ grad @ t).tril(-1)


def delta_rule(q, k, v, g, beta, keep):
    """Chunked gated delta rule.  q, k, v [B, H, T, d] f32 (q scaled, q and k normalised), g, beta [B, H, T];
    keep [B, T / CHUNK] is 0 where a chunk starts a document.  Returns [B, H, T, d]."""
    q, k, v = (t.unflatten(2, (-1, CHUNK)) for t in (q, k, v))
    g, beta = (t.unflatten(2, (-1, CHUNK)) for t in (g, beta))
    total = g.cumsum(-1)
    difference = total[..., :, None] - total[..., None, :]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = difference.masked_fill(~lower, -1e30).exp()
    k_beta = k * beta[..., None]
    a = (k_beta @ k.transpose(-1, -2) * decay).tril(-1)
    t = _UnitLowerInverse.apply(a)
    u = t @ (v * beta[..., None])
    w = t @ (k_beta * total.exp()[..., None])
    last = total[..., -1:]
    k_out = (k * (last - total).exp()[..., None]).transpose(-1, -2)
    state_decay = last.exp()[..., None]
    state = torch.zeros_like(u[:, :, 0, :1]).expand(-1, -1, q.shape[-1], -1)
    states, news = [], []
    for u_c, w_c, k_c, decay_c, keep_c in zip(*(t.unbind(2) for t in (u, w, k_out, state_decay)), keep.unbind(1)):
        state = state * keep_c[:, None, None, None]
        new = u_c - w_c @ state
        states.append(state)
        news.append(new)
        state = state * decay_c + k_c @ new
    states, news = torch.stack(states, 2), torch.stack(news, 2)
    out = (q * total.exp()[..., None]) @ states + (q @ k.transpose(-1, -2) * decay) @ news
    return out.flatten(2, 3)


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class DeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.d = c.hidden_size, c.linear_key_head_dim
        self.nk, self.nv = c.linear_num_key_heads, c.linear_num_value_heads
        self.kernel = c.linear_conv_kernel_dim
        channels = (2 * self.nk + self.nv) * self.d
        self.in_proj_qkv, self.in_proj_z = Linear(channels, h), Linear(self.nv * self.d, h)
        self.in_proj_a, self.in_proj_b = Linear(self.nv, h), Linear(self.nv, h)
        self.conv = nn.Parameter(torch.randn(channels, self.kernel) * 0.5)
        # decays from exp(-0.01) to exp(-1) a token: some heads remember whole documents
        self.A_log = nn.Parameter(torch.linspace(0.05, 4, self.nv).log())
        self.dt_bias = nn.Parameter(torch.full((self.nv,), -1.0))
        self.norm = Norm(self.d, c.rms_norm_eps)
        self.out_proj = Linear(h, self.nv * self.d, gain=(2 * c.num_hidden_layers) ** -0.5)

    def heads(self, mixed):
        """Convolved [.., C] -> q, k, v [.., nv, d] in f32."""
        q, k, v = F.silu(mixed).split([self.nk * self.d, self.nk * self.d, self.nv * self.d], -1)
        q, k = (unit(t.unflatten(-1, (self.nk, self.d))).repeat_interleave(self.nv // self.nk, -2) for t in (q, k))
        return q * self.d ** -0.5, k, v.unflatten(-1, (self.nv, self.d))

    def gates(self, x):
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        return g, torch.sigmoid(self.in_proj_b(x).float())

    def finish(self, o, x):
        z = self.in_proj_z(x).float().unflatten(-1, (self.nv, self.d))
        return self.out_proj((self.norm(o, torch.float32) * F.silu(z)).flatten(-2).to(x.dtype))

    def forward(self, x, batch):
        raw = self.in_proj_qkv(x).float()
        mixed = raw * self.conv[:, -1]
        for back in range(1, self.kernel):
            earlier = F.pad(raw, (0, 0, back, 0))[:, :-back]
            mixed = mixed + earlier * self.conv[:, -1 - back] * (batch["position"] >= back)[..., None]
        q, k, v = (t.transpose(1, 2) for t in self.heads(mixed))
        g, beta = (t.transpose(1, 2) for t in self.gates(x))
        live = batch["live"][:, None]
        o = delta_rule(q, k, v, g * live, beta * live, batch["keep"])
        return self.finish(o.transpose(1, 2), x)

    def step(self, x, state, _):
        raw = self.in_proj_qkv(x).float()
        window = torch.cat([state["conv"], raw[:, None]], 1)
        q, k, v = self.heads((window * self.conv.T).sum(1))
        g, beta = self.gates(x)
        s = state["s"] * g.exp()[..., None, None]
        d = beta[..., None] * (v - (s * k[..., None]).sum(-2))
        s = s + k[..., None] * d[..., None, :]
        state["s"], state["conv"] = s, window[:, 1:]
        return self.finish((s * q[..., None]).sum(-2), x)

    def empty_state(self, n, _, device):
        channels = (2 * self.nk + self.nv) * self.d
        return {"conv": torch.zeros(n, self.kernel - 1, channels, device=device),
                "s": torch.zeros(n, self.nv, self.d, self.d, device=device)}


def rotate(x, cos, sin):
    """Partial rotary embedding on the first 2 * cos.shape[-1] values of x [.., T, d], pairs (j, j + half)."""
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half:2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.d = c.hidden_size, c.head_dim
        self.nh, self.nkv = c.num_attention_heads, c.num_key_value_heads
        self.q_proj = Linear(2 * self.nh * self.d, h)
        self.k_proj, self.v_proj = Linear(self.nkv * self.d, h), Linear(self.nkv * self.d, h)
        self.o_proj = Linear(h, self.nh * self.d, gain=(2 * c.num_hidden_layers) ** -0.5)
        self.q_norm, self.k_norm = Norm(self.d, c.rms_norm_eps), Norm(self.d, c.rms_norm_eps)
        self.rotated, self.theta = int(self.d * c.partial_rotary_factor), c.rope_theta

    def project(self, x, position):
        """x [.., h], position [..] -> q, k, v, gate, each [.., heads, d] (gate flattened)."""
        q, gate = self.q_proj(x).unflatten(-1, (self.nh, 2 * self.d)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (self.nkv, self.d))
        v = self.v_proj(x).unflatten(-1, (self.nkv, self.d))
        rate = self.theta ** (-torch.arange(0, self.rotated, 2, device=x.device) / self.rotated)
        angle = position[..., None, None].float() * rate
        q, k = (rotate(norm(t, torch.float32), angle.cos(), angle.sin()).to(x.dtype)
                for norm, t in ((self.q_norm, q), (self.k_norm, k)))
        return q, k, v, gate.flatten(-2)

    def forward(self, x, batch):
        q, k, v, gate = self.project(x, batch["position"])
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(self.nh // self.nkv, 1) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=batch["mask"])
        return self.o_proj(o.transpose(1, 2).flatten(2) * torch.sigmoid(gate))

    def step(self, x, state, t):
        position = torch.full(x.shape[:1], t, device=x.device)
        q, k, v, gate = self.project(x, position)
        state["k"][:, :, t], state["v"][:, :, t] = k, v
        k, v = (state[name][:, :, :t + 1].repeat_interleave(self.nh // self.nkv, 1) for name in "kv")
        o = F.scaled_dot_product_attention(q[:, :, None], k, v)[:, :, 0]
        return self.o_proj(o.flatten(1) * torch.sigmoid(gate))

    def empty_state(self, n, length, device):
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return {name: torch.zeros(n, self.nkv, length, self.d, device=device, dtype=dtype) for name in "kv"}


class Block(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.input_norm, self.post_norm = (Norm(c.hidden_size, c.rms_norm_eps) for _ in range(2))
        self.mixer = Attention(c) if full else DeltaNet(c)
        self.moe = Moe(c)

    def forward(self, x, batch, dtype):
        x = x + self.mixer(self.input_norm(x, dtype), batch).float()
        y, balance, count = self.moe(self.post_norm(x, dtype).flatten(0, 1), batch["live"].flatten())
        return x + y.view_as(x), balance, count

    def step(self, x, state, t, dtype, live):
        x = x + self.mixer.step(self.input_norm(x, dtype), state, t).float()
        y, _, count = self.moe(self.post_norm(x, dtype), live)
        return x + y, count


class Demo(nn.Module):
    def __init__(self, c, dtype=torch.float32):
        super().__init__()
        self.c, self.dtype = c, dtype
        self.embed = Linear(c.vocab_size, c.hidden_size, gain=4.0)  # standard deviation 0.25
        self.layers = nn.ModuleList(Block(c, c.is_full(i)) for i in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.head = Linear(c.vocab_size, c.hidden_size)

    def set_quantized(self, on):
        for module in self.modules():
            if isinstance(module, Linear):
                module.quantized = on

    def forward(self, batch):
        """batch: ids, position, live [B, T], keep [B, T / CHUNK], mask [B, 1, T, T].
        Returns logits [B, T, V], mean balance loss, tokens per expert [layers, experts]."""
        x = F.embedding(batch["ids"], self.embed.value(torch.float32))
        balances, counts = [], []
        for layer in self.layers:
            x, balance, count = layer(x, batch, self.dtype)
            balances.append(balance)
            counts.append(count)
        return self.head(self.norm(x, self.dtype)), torch.stack(balances).mean(), torch.stack(counts)

    def empty_state(self, n, length, device):
        return [layer.mixer.empty_state(n, length, device) for layer in self.layers]

    def step(self, ids, states, t, live):
        """One token for every sequence: ids, live [N], t the common position.  Returns logits and expert counts."""
        x, counts = F.embedding(ids, self.embed.value(torch.float32)), []
        for layer, state in zip(self.layers, states):
            x, count = layer.step(x, state, t, self.dtype, live)
            counts.append(count)
        return self.head(self.norm(x, self.dtype)).float(), torch.stack(counts)
