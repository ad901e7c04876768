"""Forward pass of a model that `speedrun export` wrote, part by part as its config describes it. The formulas are those of
docs/model-parts.md of speedrun. Parameters have the names of `speedrun plan --parameters`, after "model.".

There is no cache of keys and values: generate() computes each token from the last `max_position_embeddings` tokens, as
`speedrun sample` does.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_speedrun import SpeedrunConfig

ACTIVATIONS = {
    "relu_squared": lambda x: F.relu(x).square(),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
}


def shifted(x, back, fill):
    """Entry t - back of each entry t of (rows, tokens), and `fill` before the first one."""
    return F.pad(x, (back, 0), value=fill)[:, : x.shape[1]]


def signed(number):
    """The 64-bit integer of these bits: torch multiplies and adds it modulo 2^64."""
    return number - (1 << 64) if number >> 63 else number


def mix_bits(x):
    """Finalizer of 64-bit MurmurHash3."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ (x >> 33 & 0x7FFFFFFF)) * signed(factor)
    return x ^ (x >> 33 & 0x7FFFFFFF)


def before(x):
    """Row t - 1 of each row t, and zeros for the first one. x: (rows, tokens, ...)."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def by_head(rows, v):
    """The first columns of each head of rows, in the shape of v: (rows, tokens, heads, size)."""
    return rows.unflatten(-1, (v.shape[-2], -1))[..., : v.shape[-1]]


def rotate(x, frequencies, positions):
    """Rotates the pairs (i, i + half) of a head. x: (rows, tokens, heads, size); positions: (tokens, heads or 1)."""
    angles = positions.double()[..., None] * torch.tensor(frequencies, dtype=torch.float64, device=x.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class SpeedrunForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = SpeedrunConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.parts = config.model
        self.model = nn.Module()
        for name, shape in config.parameters.items():
            *folders, last = name.split(".")
            owner = self.model
            for folder in folders:
                if folder not in owner._modules:
                    owner.add_module(folder, nn.Module())
                owner = owner._modules[folder]
            owner.register_parameter(last, nn.Parameter(torch.empty(shape)))
        self.post_init()

    def _init_weights(self, module):
        """All values are in the weights' file."""

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **kwargs):
        longest = self.config.max_position_embeddings
        mask = None if attention_mask is None else attention_mask[:, -longest:]
        return {"input_ids": input_ids[:, -longest:], "attention_mask": mask}

    def forward(self, input_ids, attention_mask=None, labels=None, **kwargs):
        """Logits (rows, tokens, vocabulary), of rows with positions 0, 1, 2, ...; with labels the mean loss of the next tokens."""
        parts = self.parts
        self.tokens = input_ids
        self.documents = self.document_of(input_ids)
        self.shown = None if attention_mask is None else attention_mask.bool()
        self.places = {}
        x = self.read_input()
        for layer in parts["layers"]:
            x = self.layer(layer, x)
            self.places[f"after {layer['number']}"] = x
        for part in parts["output"]:
            x = self.norm("final_norm", x) if part["type"] == "norm" else self.sum(part["terms"], x)
        logits = F.linear(x, self.weight(parts["head"]["weight"])).float()
        if (cap := parts["head"]["softcap"]) is not None:
            logits = cap["cap"] * torch.tanh((logits + cap["shift"]) / cap["scale"])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    # ---- parameters

    def weight(self, name):
        return self.model.get_parameter(name)

    def linear(self, name, x):
        bias = f"{name}.bias"
        return F.linear(x, self.weight(f"{name}.weight"), self.weight(bias) if bias in self.config.parameters else None)

    def norm(self, name, x):
        gain, bias = (self.weight(key) if (key := f"{name}.{kind}") in self.config.parameters else None for kind in ("gain", "bias"))
        epsilon = self.parts["norm"]["epsilon"]
        if self.parts["norm"]["type"] == "layernorm":
            return F.layer_norm(x, x.shape[-1:], gain, bias, epsilon)
        x = F.rms_norm(x, x.shape[-1:], gain, epsilon)
        return x if bias is None else x + bias

    # ---- stream

    def document_of(self, tokens):
        """Number of each token's document in its row; a document begins with its separator."""
        separator = self.parts["separator"]
        return torch.zeros_like(tokens) if separator is None else (tokens == separator).cumsum(-1)

    def rows_of(self, table):
        """Rows of a table for each token; of a table of n-grams the sum over n."""
        weight, how = self.weight(f"{table}.weight"), self.parts["tables"][table]
        if how["rows"] == "positions":
            return weight[: self.tokens.shape[1]]
        if how["rows"] == "tokens":
            return F.embedding(self.tokens, weight)
        if how["hash"] == "products":
            return F.embedding(self.bigrams(how["num_rows"]), weight)
        return sum(F.embedding(self.ngrams(n, how["num_rows"]), weight) for n in range(2, how["max_ngram"] + 1))

    def ngrams(self, n, num_rows):
        """Hashes of the last n tokens; tokens of another document are absent."""
        hashes = torch.full_like(self.tokens, n)
        for back in range(n):
            visible = shifted(self.documents, back, -1) == self.documents
            hashes = mix_bits(hashes + signed(0x9E3779B97F4A7C15) + torch.where(visible, shifted(self.tokens, back, 0) + 1, 0))
        # The remainder of the 64 bits as an unsigned number.
        return (hashes % num_rows + torch.where(hashes < 0, (1 << 64) % num_rows, 0)) % num_rows

    def bigrams(self, num_rows):
        """Hashes of two tokens in wrapping 32 bits, also across documents; the last row for the first token."""
        hashes = 36313 * self.tokens ^ 27191 * shifted(self.tokens, 1, 0)
        rows = (((hashes + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)) % (num_rows - 1)
        rows[:, 0] = num_rows - 1
        return rows

    def read_input(self):
        x = None
        for part in self.parts["input"]:
            if part["type"] == "sum":
                self.places.setdefault("first", x)
                x = self.sum(part["terms"], x)
            elif part["type"] == "table":
                rows = self.rows_of(part["table"])
                x = rows if x is None else x + rows
            elif part["type"] == "norm":
                x = self.norm("", x)
            else:  # smear
                gate = torch.sigmoid(self.linear("smear.gate", x[..., : part["columns"]]))
                x = x + self.weight("smear.scale") * gate * before(x)
        self.places.setdefault("first", x)
        self.places["input"] = x
        return x

    def sum(self, terms, stream, output=None):
        total = None
        for term in terms:
            source = {"stream": stream, "output": output}.get(term["of"])
            if term["table"]:
                source = self.rows_of(term["table"])
            elif source is None:
                source = self.places[term["of"]]
            factor = term["constant"]
            for kind in ("scale", "gain", "gate"):
                if term[kind] is not None:
                    name, element = term[kind]
                    number = self.weight(name).flatten()[element]
                    factor = factor * (torch.sigmoid(number) if kind == "gate" else number)
            total = factor * source if total is None else total + factor * source
        return total

    # ---- layers

    def layer(self, layer, x):
        prefix, attention, mlp = f"blocks.{layer['number']}.", layer["attention"], layer["mlp"]
        for terms in layer["enter"]:
            x = self.sum(terms, x)
        if attention is not None:
            x = self.joined(attention["after"], x, self.attention(attention, prefix, x))
        if mlp is not None:
            x = self.joined(mlp["after"], x, self.mlp(mlp, prefix, self.norm(prefix + "mlp_norm", x)))
        return x

    def joined(self, terms, stream, output):
        return self.sum(terms, stream, output) if terms else stream + output

    def mlp(self, mlp, prefix, x):
        up = self.linear(prefix + "mlp.up", x)
        if mlp["swiglu"]:
            hidden = F.silu(self.linear(prefix + "mlp.gate", x)) * up
        else:
            hidden = ACTIVATIONS[mlp["activation"]](up)
        return self.linear(prefix + "mlp.down", hidden)

    def attention(self, a, prefix, stream):
        u = self.norm(prefix + "attn_norm", self.places[a["reads"]] if a["reads"] else stream)
        starts = a["qk_columns"], 2 * a["qk_columns"]  # of k and v
        q, k, v = (z.unflatten(-1, (a["heads"], -1)) for z in self.linear(prefix + "attn.qkv", u).tensor_split(starts, -1))
        v = self.values(a, prefix, u, v, stream)
        if a["qk_norm"]:
            q, k = (F.rms_norm(z, z.shape[-1:], None, self.parts["norm"]["epsilon"]) for z in (q, k))
        if a["frequencies"] is not None:
            positions = torch.arange(q.shape[1], device=q.device)[:, None]
            if a["paired"]:
                positions = 2 * positions + torch.arange(a["heads"], device=q.device) % 2
            q, k = (rotate(z, a["frequencies"], positions) for z in (q, k))
        if a["offset_from"] is not None:  # dimensions of k that do not rotate are the previous token's
            half = torch.arange(k.shape[-1], device=k.device) % (k.shape[-1] // 2)
            first = torch.arange(k.shape[1], device=k.device)[:, None, None] == 0
            k = torch.where((half >= a["offset_from"]) & ~first, before(k), k)
        y = self.attend(a, q, k, v)
        if a["exclude_own_value"]:
            share = torch.tanh(self.weight(prefix + "attn.own_value").flatten())[:, None]
            y = y - share * (y * v).sum(-1, True) / (v * v).sum(-1, True).clamp(min=1e-8) * v
        if a["gate_columns"]:
            y = y * torch.sigmoid(self.linear(prefix + "attn.gate", u[..., : a["gate_columns"]]))[..., None]
        return self.linear(prefix + "attn.out", y.flatten(-2))

    def values(self, a, prefix, u, v, stream):
        """v with the rows of its table and further terms. u: input of attention; v: (rows, tokens, heads, size)."""
        rows = self.rows_of(a["value_table"]) if a["value_table"] else None
        if a["value_mix"]:
            mix = self.weight(prefix + "attn.value_mix")
            v = mix[0] * v + mix[1] * by_head(rows, v)
        elif a["value_scale"]:
            v = self.weight(prefix + "attn.value_scale") * v
        if columns := a["value_gate_columns"]:
            gate = 2 * torch.sigmoid(self.linear(prefix + "attn.value_gate", torch.cat([u[..., :columns], rows[..., :columns]], -1)))
            v = v + gate[..., None] * by_head(rows, v)
        if a["values"]:
            v = v + self.sum(a["values"], stream).unflatten(-1, v.shape[-2:])
        return v

    def attend(self, a, q, k, v):
        """Attention within documents and the window, (rows, tokens, heads, size). Paired heads j and j + half are one head over two
        positions per token."""
        shape, per_token = v.shape, 2 if a["paired"] else 1
        if a["paired"]:
            q, k, v = (z.unflatten(2, (2, -1)).flatten(1, 2) for z in (q, k, v))
        documents = self.documents.repeat_interleave(per_token, 1)
        at = torch.arange(documents.shape[1], device=q.device)
        distance = at[:, None] - at
        visible = (distance >= 0) & (documents[:, :, None] == documents[:, None])
        if a["window"] > 0:
            visible &= distance < a["window"]
        if self.shown is not None:
            visible &= self.shown.repeat_interleave(per_token, 1)[:, None]
        visible |= distance == 0  # a row of padding without keys would be NaN
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, visible[:, None], scale=a["scale"])
        return y.transpose(1, 2).reshape(shape)
