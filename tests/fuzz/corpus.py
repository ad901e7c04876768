#!/usr/bin/env python3
"""Writes the seeds of a fuzz target into a folder: small files that its parser accepts, or nearly.

Usage: corpus.py TARGET FOLDER    TARGET: checkpoint, config, dataset, files, hf, measured, metrics, network, record,
                                  safetensors, text, trace, vocabulary
"""

import base64
import gzip
import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).parents[2]
SHARD_MAGIC = 20240520


def config():
    for path in sorted((ROOT / "configs").glob("*.json")):
        if path.name != "schema.json":
            yield path.read_bytes() + b"\nmodel.layers.count=3"
    groups = {"optimizers": {"groups": [{"params": ["*"]}]}}
    yield json.dumps(groups).encode() + b"\noptimizers.groups.0.lr=1e-3"
    yield json.dumps({**groups, "model": {"preset": "gpt2"}, "parallel": {"shard": 2}, "seed": 9}).encode() + b"\ndata.train=[\"a\"]"


def dataset():
    info = {"name": "x", "tokenizer": "bytes", "vocab_size": 257, "separator": 256, "vocabulary_sha256": "0" * 64,
            "shards": [{"file": "a.bin", "split": "train", "tokens": 3, "sha256": "0" * 64}]}
    yield b"j" + json.dumps(info).encode()
    yield b"l" + b"".join(b"%064x %d %s\n" % (i, 1024 + 2 * i, name) for i, name in enumerate((b"a_val_0.bin", b"a_train_1.bin")))
    yield b"j" + json.dumps({**info, "separators": "before"}).encode()
    split = {"tokenizer": "bytes", "vocab_size": 257, "separator": 256, "separators": "after", "vocabulary_sha256": "", "hashed_at_start": True,
             "shards": [{"file": "a.bin", "tokens": 3, "sha256": "0" * 64, "sampled_sha256": "1" * 64}]}
    yield b"i" + json.dumps({"train": split, "val": {**split, "shards": []}}).encode()
    for tokens in ([], [1, 2, 256], [299, 300]):
        header = struct.pack("<3i", SHARD_MAGIC, 1, len(tokens)) + bytes(1012)
        yield b"s" + header + struct.pack(f"<{len(tokens)}H", *tokens)


def checkpoint():
    yield json.dumps({
        "format": "speedrun-checkpoint", "format_version": 3, "written_by": "x", "step": 2, "tokens": 9, "loader": {"next_row": 3}, "seed": 1,
        "schedule": {"next_lr_factor": 0.5}, "train_loss": 2.0, "precision": "f32", "ranks": 1, "mesh": "1", "strategy": "ddp",
        "config": {"seed": 1}, "tensors": [{"name": "master/a", "shape": [2, 3], "dtype": "bf16"}],
        "files": [{"file": "rank-00000.safetensors", "bytes": 70}],
        "measured": {"train_ms": 1, "data_ms": 0, "optimizer_ms": 0, "comm_exposed_ms": 0, "time_to_target_ms": None}}).encode()


def files():
    yield b"s" + b"0123456789abcdef" * 2 + b"  rank-00000.safetensors\n"
    yield b"hnode0 slots=8  # the first\n\nnode1\n"


def hf():
    yield json.dumps({"model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_layer": 2, "n_embd": 64,
                      "n_head": 2, "vocab_size": 300, "n_positions": 64, "n_inner": 128, "tie_word_embeddings": False}).encode()
    yield b"i" + json.dumps({"metadata": {"total_size": 8}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}}).encode()


def measured():
    case = {"kind": "op", "dtype": "bf16", "status": "passed", "name": "n", "op": "matmul", "flops": 9, "bytes": 9, "share_of_floor": 0.5,
            "products": "cublaslt", "attention": "hand"}
    ceilings = {"kind": "ceilings", "dtype": "bf16", "tflops": 1, "gb_per_s": 1}
    yield json.dumps(ceilings).encode() + b"\n" + json.dumps(case).encode() + b"\n"
    yield json.dumps({"ceilings": [ceilings], "ops": [case]}).encode()


def metrics():
    lines = [{"event": "step", "step": 0, "loss": 2.0, "train_ms": 1.0}, {"event": "val", "step": 1, "loss": 1.5, "train_ms": 2.0}]
    yield b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b'{"event":"step","step":1,{"event"\n'


def trace():
    yield json.dumps({"traceEvents": [
        {"ph": "M", "pid": 0, "tid": 1, "name": "process_name", "args": {"name": "rank 0"}},
        {"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": "compute"}},
        {"ph": "M", "pid": 0, "tid": 1, "name": "clock", "args": {"error_us": 1.5}},
        {"ph": "X", "pid": 0, "tid": 1, "name": "matmul", "ts": 0, "dur": 2, "args": {"step": 1, "phase": "forward"}},
        {"ph": "X", "pid": 0, "tid": 2, "name": "all_reduce", "ts": 1, "dur": 2, "cat": "communication",
         "args": {"step": 1, "phase": "reduce", "bucket": "b", "bytes": 7}}]}).encode()


def network():
    yield b"{}"
    yield json.dumps({"name": "n", "source": "s", "ranks_per_host": 4, "start_us": 1, "inside": {"latency_us": 1, "gb_s": 2},
                      "between": {"latency_us": 1, "gb_s": 0.5}, "spread": 0.1}).encode()


def record():
    for track in ("kjv", "fineweb"):
        yield b"t" + (ROOT / "records" / track / "track.json").read_bytes()
    lines = [{"event": "step", "step": i, "loss": 2.0, "train_ms": i + 1.0} for i in range(5)]
    lines.append({"event": "val", "step": 5, "loss": 1.5, "train_ms": 5.0})
    metrics = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    yield b"m" + metrics
    yield b"z" + gzip.compress(metrics)
    run = {"side": "candidate", "order": 0, "seed": 1, "status": "done", "loss": 1.5, "train_ms": 5.0, "startup_ms": 1.0,
           "steps": 5, "began_utc": "", "metrics": {"file": "a.gz", "sha256": "", "every": 1},
           "validations": [{"step": 5, "loss": 1.5, "train_ms": 5.0}]}
    runs = [{**run, "side": side, "seed": seed} for side in ("candidate", "baseline") for seed in (1, 2)]
    config = {"data": {"val_tokens": 0}, "schedule": {"steps": 5}}
    yield b"r" + json.dumps({
        "schema": 1, "name": "n", "track": "t", "date": "2026-01-01", "what": "", "systems_only": True, "record_before": "",
        "target_loss": 2, "git_sha": "ab", "dirty": False, "binary_sha256": "", "runs": runs, "hardware": {}, "build": {},
        "interrupted": [{"side": "candidate", "seed": 1, "steps": 2}], "baseline": {"name": "b", "record": None, "config": config},
        "data": [{"file": "t.bin", "split": "train", "tokens": 9, "sha256": "aa"}], "config": config}).encode()


def safetensors():
    for header, data in (
        ({}, b""),
        ({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
          "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}, "__metadata__": {"format": "pt"}}, bytes(22)),
        ({"i": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]}, "e": {"dtype": "F32", "shape": [0, 5], "data_offsets": [4, 4]}}, bytes(4)),
        ({"a[0:2,1:3]": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
          "a[3:5]": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]}}, bytes(24)),
    ):
        text = json.dumps(header).encode()
        yield struct.pack("<Q", len(text)) + text + data
    yield struct.pack("<Q", 2**63 - 2) + b"{}"  # 2^63 - 2 + 8 exceeds int64
    for shape in ([2**62, 4], [-2, -2], [2**63 - 1]):
        text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}).encode()
        yield struct.pack("<Q", len(text)) + text + bytes(16)


def text():
    yield b"m%%\r\none\n%%\ntwo\r%%\r"
    yield b"t\xef\xbb\xbftext \xe2\x82\xac <|endoftext|>"
    yield b"t" + "\ufefftext \U0001f642".encode("utf-16-le")
    lines = json.dumps({"text": "one\nline", "id": 1}).encode() + b"\n\n" + json.dumps({"text": ""}).encode() + b"\n"
    yield b"j" + lines
    yield b"j" + gzip.compress(lines) + gzip.compress(b"")
    yield b"t" + bytes.fromhex("28b52ffd04582100007465787452afcc88")  # a Zstandard frame of 4 bytes


def vocabulary():
    yield b"".join(base64.b64encode(bytes([i])) + f" {i}\n".encode() for i in range(256)) + b"YWI= 256\n"
    small = json.loads((ROOT / "tests/data/fixtures/small_tokenizer.json").read_text())
    small["model"]["vocab"] = {t: i for t, i in small["model"]["vocab"].items() if i < 260}
    small["model"]["merges"] = small["model"]["merges"][:2]
    yield json.dumps(small, ensure_ascii=False, separators=(",", ":")).encode()
    yield json.dumps({**small["model"]["vocab"], "<|endoftext|>": 260}).encode() + b"\0#version: 0.2\n" + "\n".join(small["model"]["merges"]).encode()


def main():
    target, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(globals()[target]()):
        (folder / f"seed{i}").write_bytes(seed)


if __name__ == "__main__":
    main()
