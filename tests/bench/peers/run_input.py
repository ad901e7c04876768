"""What a run of `speedrun` left, as the twin reads it: resolved config, weights, and the order of its tokens."""

import glob
import json
import os
import struct

import numpy as np
import torch

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
SHARD_MAGIC, SHARD_HEADER_BYTES = 20240520, 1024
FINEWEB_SEPARATOR = 50256  # of shards that come without a dataset.json

# Sections that say where, how fast or how long, but nothing about the numbers of a step.
IGNORED = {"memory", "parallel", "eval", "record", "cuda", "checkpoint", "precision", "device", "threads", "seed"}
KNOWN = {
    "model": {"preset", "num_layers", "model_dim", "num_heads", "mlp_ratio", "vocab_size", "norm", "norm_parameters",
              "activation", "position", "rotary_base", "qk_norm", "tied_head", "biases", "logit_softcap",
              "attention_scale", "window", "zero_init_projections", "norm_embedding", "mix_first_embedding",
              "value_embeddings", "max_ngram", "ngram_rows", "init_scale", "init_from"},
    "data": {"train", "val", "val_tokens", "shuffle", "rows", "max_document_tokens", "document_mask"},
    "batch": {"sequence_length", "microbatch_tokens", "tokens_per_step"},
    "optimizers": {"clip", "clip_norm", "groups"},
    "schedule": {"steps", "warmup_steps", "decay", "cooldown_fraction", "final_lr_fraction", "stages", "lr_factor"},
}
GROUP = {"type", "params", "lr", "weight_decay", "beta1", "beta2", "epsilon", "momentum", "momentum_start",
         "momentum_warmup_steps", "nesterov", "cautious", "normuon", "every"}


def require(condition, message):
    if not condition:
        raise SystemExit(f"error: {message}")


def read_config(path):
    """The resolved config.json of a run: every key has a value. Refuses keys and values that the twin has no maths for."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    unknown = [key for key in config if key not in IGNORED and key not in KNOWN]
    for section, known in KNOWN.items():
        require(section in config, f"{path}: no section {section}; give the config.json of a run folder")
        unknown += [f"{section}.{key}" for key in config[section] if key not in known]
        missing = [f"{section}.{key}" for key in known if key not in config[section]]
        require(not missing, f"{path}: no {', '.join(missing)}; give the config.json of a run folder")
    for group in config["optimizers"]["groups"]:
        unknown += [f"optimizers.groups.{key}" for key in group if key not in GROUP]
        require(group["type"] in ("adamw", "muon"), f"optimizers.groups.type {group['type']}: adamw or muon")
        for key in ("cautious", "normuon"):
            require(not group[key], f"optimizers.groups.{key}: the twin has no {key}")
        require(group["every"] == 1, f"optimizers.groups.every {group['every']}: the twin steps every group at every step")
    require(config["model"]["max_ngram"] == 0, "model.max_ngram: the twin embeds no n-grams; set it to 0")
    require(not unknown, f"{path}: the twin does not know {', '.join(unknown)}")
    schedule = config["schedule"]
    require(not schedule["stages"], f"schedule.stages {schedule['stages']}: the twin has one stage; set it to []")
    require(schedule["lr_factor"] == 1, f"schedule.lr_factor {schedule['lr_factor']}: the twin has none; set it to 1")
    for group in config["optimizers"]["groups"]:
        require(not isinstance(group["momentum"], list), f"optimizers.groups.momentum {group['momentum']}: one number")
    require(config["data"]["rows"] == "stream", "data.rows: the twin reads windows of the shards; set it to stream")
    require(not config["data"]["shuffle"], "data.shuffle: the twin reads windows in file order; set it to false")
    return config


def read_weights(folder):
    """model.safetensors of a checkpoint folder: {name: float32 tensor}. The format is 8 bytes of header length, a JSON
    header, then the tensors' bytes (github.com/huggingface/safetensors)."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            flat = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]], offset=begin,
                                    count=(end - begin) // DTYPES[entry["dtype"]].itemsize)
            tensors[name] = flat.reshape(entry["shape"]).float().clone()
    return tensors


class Batches:
    """Microbatches in the order of data/batch_loader.h without shuffling: row r is window r modulo N, the N windows being
    sequence_length + 1 tokens on a grid of sequence_length in each shard."""

    def __init__(self, config):
        self.sequence = config["batch"]["sequence_length"]
        self.rows = config["batch"]["microbatch_tokens"] // self.sequence
        files = sorted({file for pattern in config["data"]["train"] for file in glob.glob(pattern)})
        require(files, f"data.train: {config['data']['train']} matches no file")
        self.shards = [self.tokens_of(file) for file in files]
        self.windows = [(shard, begin) for shard, tokens in enumerate(self.shards)
                        for begin in range(0, len(tokens) - self.sequence, self.sequence)]
        require(self.windows, f"{files[0]}: shorter than sequence_length {self.sequence}")
        info = os.path.join(os.path.dirname(files[0]), "dataset.json")
        self.separator = FINEWEB_SEPARATOR
        if os.path.exists(info):
            with open(info, encoding="utf-8") as file:
                self.separator = json.load(file)["separator"]
        self.next_row = 0

    @staticmethod
    def tokens_of(path):
        magic, version, count = struct.unpack("<3i", open(path, "rb").read(12))
        require(magic == SHARD_MAGIC and version == 1, f"{path}: not a token shard")
        return np.memmap(path, np.uint16, "r", SHARD_HEADER_BYTES, (count,))

    def next(self):
        """tokens, targets, document of each token (counted within its row): int64 (rows, sequence)."""
        window = np.empty((self.rows, self.sequence + 1), np.int64)
        for row in window:
            shard, begin = self.windows[self.next_row % len(self.windows)]
            row[:] = self.shards[shard][begin : begin + self.sequence + 1]
            self.next_row += 1
        tokens, targets = window[:, :-1], window[:, 1:]
        documents = np.cumsum(tokens == self.separator, 1)
        return tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in (tokens, targets, documents))
