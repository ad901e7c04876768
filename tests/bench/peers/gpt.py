"""Both presets of train/model in idiomatic PyTorch. Parameters have the names of our parameter table.

Mixed precision: weights are float32 and are cast when used. Activations, including the residual stream, have the compute
type, as in our own model. (autocast would keep norms and residual stream in float32, which is slower.)
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

EPSILON = 1e-5  # epsilon of every norm
BLOCK = 128  # queries and keys per block of flex_attention
PADDING = 64  # rows of the vocabulary are padded to a multiple

# Without compilation flex_attention computes all scores, so the uncompiled model calls it compiled.
compiled_flex_attention = torch.compile(flex_attention, dynamic=False)


class Linear(nn.Module):
    def __init__(self, inputs, outputs, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x):
        return F.linear(x, self.weight.type_as(x), None if self.bias is None else self.bias.type_as(x))


class Norm(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.rms = m["norm"] == "rmsnorm"
        self.gain = nn.Parameter(torch.empty(m["model_dim"])) if m["norm_parameters"] else None
        self.bias = nn.Parameter(torch.empty(m["model_dim"])) if m["norm_parameters"] and m["biases"] else None

    def forward(self, x):
        gain, bias = (None if p is None else p.type_as(x) for p in (self.gain, self.bias))
        if not self.rms:
            return F.layer_norm(x, x.shape[-1:], gain, bias, EPSILON)
        x = F.rms_norm(x, x.shape[-1:], gain, EPSILON)
        return x if bias is None else x + bias


class Attention(nn.Module):
    def __init__(self, m, mixes_value):
        super().__init__()
        width = m["model_dim"]
        self.heads, self.size = m["num_heads"], width // m["num_heads"]
        self.scale = m["attention_scale"] or self.size**-0.5
        self.qk_norm = m["qk_norm"]
        self.qkv = Linear(width, 3 * width, m["biases"])
        self.out = Linear(width, width, m["biases"])
        self.value_mix = nn.Parameter(torch.empty(2)) if mixes_value else None

    def forward(self, x, value, rotary, attend):
        q, k, v = self.qkv(x).chunk(3, -1)
        if value is not None:
            v = self.value_mix[0] * v + self.value_mix[1] * value
        q, k, v = (u.unflatten(-1, (self.heads, self.size)).transpose(1, 2) for u in (q, k, v))
        if self.qk_norm:
            q, k = (F.rms_norm(u, (self.size,), None, EPSILON) for u in (q, k))
        if rotary is not None:
            q, k = (rotate(u, rotary) for u in (q, k))
        return self.out(attend(q, k, v, self.scale).transpose(1, 2).flatten(-2))


def rotate(x, rotary):
    cos, sin = rotary
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Mlp(nn.Module):
    def __init__(self, m):
        super().__init__()
        width, hidden = m["model_dim"], m["mlp_ratio"] * m["model_dim"]
        self.gelu = m["activation"] == "gelu_tanh"
        self.up = Linear(width, hidden, m["biases"])
        self.down = Linear(hidden, width, m["biases"])

    def forward(self, x):
        x = self.up(x)
        return self.down(F.gelu(x, approximate="tanh") if self.gelu else F.relu(x).square())


class Block(nn.Module):
    def __init__(self, m, mixes_value):
        super().__init__()
        self.mix = nn.Parameter(torch.empty(2)) if m["mix_first_embedding"] else None
        self.attn_norm, self.mlp_norm = Norm(m), Norm(m)
        self.attn, self.mlp = Attention(m, mixes_value), Mlp(m)

    def forward(self, x, first, value, rotary, attend):
        if self.mix is not None:
            x = self.mix[0] * x + self.mix[1] * first
        x = x + self.attn(self.attn_norm(x), value, rotary, attend)
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """forward(tokens, targets, mask): float32 mean loss. tokens, targets: int64 (rows, sequence). mask: result of mask()."""

    def __init__(self, config, dtype):
        super().__init__()
        m = self.m = config["model"]
        self.dtype = dtype
        self.document_mask, self.compiled = config["data"]["document_mask"], False
        width, vocab = m["model_dim"], -(-m["vocab_size"] // PADDING) * PADDING
        self.embed = nn.Embedding(vocab, width)
        self.position = nn.Embedding(config["batch"]["sequence_length"], width) if m["position"] == "learned" else None
        self.value_embed = nn.ModuleList(nn.Embedding(vocab, width) for _ in range(m["value_embeddings"]))
        plain = m["num_layers"] - m["value_embeddings"]
        self.blocks = nn.ModuleList(Block(m, i >= plain) for i in range(m["num_layers"]))
        self.final_norm = Norm(m)
        self.head = None if m["tied_head"] else Linear(width, vocab, False)
        if m["position"] == "rotary":
            half = width // m["num_heads"] // 2
            frequencies = m["rotary_base"] ** (-torch.arange(half, dtype=torch.float64) / half)
            angles = torch.arange(config["batch"]["sequence_length"], dtype=torch.float64)[:, None] * frequencies
            self.register_buffer("cos", angles.cos().to(dtype), persistent=False)
            self.register_buffer("sin", angles.sin().to(dtype), persistent=False)

    def mask(self, documents):
        """Attention mask in the format of the fastest suitable attention; None: plain causal. `documents`: int64 (rows,
        sequence), never decreasing. Not part of the compiled graph; shared by all blocks."""
        (rows, length), window = documents.shape, self.m["window"] or documents.shape[1]
        if not self.document_mask and not self.m["window"]:
            return None
        if not self.document_mask:
            documents = torch.zeros_like(documents)

        def visible(row, _, query, key):
            return (key <= query) & (query - key < window) & (documents[row, query] == documents[row, key])

        at = torch.arange(length, device=documents.device)
        if not self.use_flex(documents):
            row = torch.arange(rows, device=documents.device)
            return visible(row[:, None, None], None, at[:, None], at)[:, None]
        # Blocks with some visible pairs, and with only visible pairs, from each block's first and last
        # document.
        first, last = documents[:, None, ::BLOCK], documents[:, None, BLOCK - 1 :: BLOCK]
        distance = at[::BLOCK, None] - at[::BLOCK]
        some = (distance >= 0) & (distance - BLOCK + 1 < window) & (first[..., None] <= last[..., None, :])
        whole = (distance > 0) & (distance + BLOCK - 1 < window) & (last[..., None] == first[..., None, :])
        parts = []
        for blocks in (some & ~whole, whole):
            parts += [blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True).int()]
        return BlockMask.from_kv_blocks(*parts, BLOCK_SIZE=BLOCK, mask_mod=visible)

    def use_flex(self, documents):
        return documents.is_cuda and self.dtype != torch.float32 and documents.shape[1] % BLOCK == 0

    def attend(self, q, k, v, mask, scale):
        if isinstance(mask, BlockMask):
            flex = flex_attention if self.compiled else compiled_flex_attention
            return flex(q, k, v, block_mask=mask, scale=scale)
        # f32 matmuls use no TF32.
        with sdpa_kernel(SDPBackend.MATH) if q.is_cuda and q.dtype == torch.float32 else nullcontext():
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale)

    def forward(self, tokens, targets, mask):
        def attend(q, k, v, scale):
            return self.attend(q, k, v, mask, scale)

        rotary = (self.cos, self.sin) if self.m["position"] == "rotary" else None
        x = self.embed(tokens).to(self.dtype)
        if self.position is not None:
            x = x + self.position.weight.to(self.dtype)
        if self.m["norm_embedding"]:
            x = F.rms_norm(x, x.shape[-1:], None, EPSILON) if self.m["norm"] == "rmsnorm" else F.layer_norm(
                x, x.shape[-1:], None, None, EPSILON)
        first, plain = x, len(self.blocks) - len(self.value_embed)
        for i, block in enumerate(self.blocks):
            value = self.value_embed[i - plain](tokens).to(self.dtype) if i >= plain else None
            x = block(x, first, value, rotary, attend)
        head = self.embed.weight if self.head is None else self.head.weight
        logits = F.linear(self.final_norm(x), head.to(self.dtype))[..., : self.m["vocab_size"]].float()
        if self.m["logit_softcap"] > 0:
            # In place: a copy of the logits in f32 is 6.6 GB.
            logits = logits.div_(self.m["logit_softcap"]).tanh_() * self.m["logit_softcap"]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
