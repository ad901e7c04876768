"""Reads a run of `speedrun` for the twin: weights, and tokens in their order."""

import glob
import json
import os
import struct

import numpy as np
import torch

from known_config import require

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
SHARD_MAGIC, SHARD_HEADER_BYTES = 20240520, 1024
FINEWEB_SEPARATOR = 50256  # separator of shards without a dataset.json


def read_weights(folder):
    """Reads model.safetensors of a checkpoint folder: {name: float32 tensor}. The format is 8 bytes of header length, a
    JSON header, then the tensors' bytes (github.com/huggingface/safetensors)."""
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
    """Microbatches in the order of data/batch_loader.h without shuffling: row r is window r modulo N. The N windows have
    sequence_length + 1 tokens and start at multiples of sequence_length in each shard."""

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
        """Tokens, targets, and each token's document index in its row: int64 (rows, sequence) each."""
        window = np.empty((self.rows, self.sequence + 1), np.int64)
        for row in window:
            shard, begin = self.windows[self.next_row % len(self.windows)]
            row[:] = self.shards[shard][begin : begin + self.sequence + 1]
            self.next_row += 1
        tokens, targets = window[:, :-1], window[:, 1:]
        documents = np.cumsum(tokens == self.separator, 1)
        return tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in (tokens, targets, documents))
