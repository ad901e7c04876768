"""Exported folders in the transformers library: tokens, losses and text are those of speedrun. Skipped without torch and
transformers. Usage: hf_export_test.py SPEEDRUN"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = ROOT / "tests" / "data" / "fixtures" / "small_tokenizer.json"
LENGTH = 64
TEXT = "".join(
    f"chapter {i}: the quick brown fox jumps over the lazy dog, and over {i} more.\n" + ("%%\n" if i % 4 == 3 else "")
    for i in range(400)
)
STRANGE = "It's 12 o'clock\r\n\n  été 😀\t\x01 <end>"
BASE = {
    "batch": {"sequence_length": LENGTH, "microbatch_tokens": 256, "tokens_per_step": 256},
    "optimizers": {"groups": [{"type": "adamw", "params": ["*"], "lr": 0.01}]},
    "schedule": {"steps": 60},
    "precision": "f32",
    "device": "cpu",
}
OUT = {"type": "uniform", "value": 0.5, "by_fan_in": True}
ROWS = {"init": {"type": "normal", "value": 1}}
# All parts that the exported code has, with numbers that are not neutral.
PARTS = {
    "preset": "none",
    "model_dim": 32,
    "tables": {"embed": ROWS, "place": {"rows": "positions", **ROWS}, "values": ROWS, "more": ROWS, "grams": {"rows": "ngrams", "max_ngram": 4, "num_rows": 999, **ROWS}},
    "windows": {"short": 16},
    "norms": {"type": "layernorm", "gain": True, "bias": True, "epsilon": 1e-4},
    "input": [
        {"type": "table", "table": "embed"},
        {"type": "table", "table": "place"},
        {"type": "table", "table": "grams"},
        {"type": "smear", "start": 0.7, "columns": 8},
        {"type": "norm"},
        {"type": "sum", "terms": [{"of": "stream", "scale": 0.9}, {"table": "more", "scale": 0.3, "gain": 1.2}]},
    ],
    "layers": {
        "count": 5,
        "each": {
            "enter": [
                {"terms": [{"of": "stream", "scale": 1, "name": "mix"}, {"of": "first", "scale": 0.2, "name": "mix"}]},
                {"terms": [{"of": "stream"}, {"of": "input", "gate": -1.5, "constant": 0.5}]},
            ],
            "attention": {"heads": 4, "bias": True, "out_init": OUT},
            "mlp": {"bias": True, "activation": "gelu_erf", "down_init": OUT},
        },
        "at": {
            "0": {
                "attention": {
                    "heads": 2, "qk_head_dim": 8, "paired": True, "window": "short", "value_table": "values", "value_gate": {"columns": 5}, "value_scale": True,
                },
            },
            "1": {
                "attention": {
                    "gate": {"columns": 7}, "exclude_own_value": {"start": 0.5}, "value_table": "values", "scale": 0.3,
                    "rotary": {"fraction": 0.5, "base": 100}, "key_offset": True, "qk_head_dim": 12, "v_head_dim": 6,
                },
                "mlp": {"swiglu": True},
            },
            "2": None,
            "3": {
                "attention": {
                    "reads": "after 0", "values": [{"of": "input", "scale": 0.4}, {"of": "stream", "scale": 0.2}],
                    "after": [{"of": "stream", "scale": 1.05}, {"of": "output", "scale": 1, "gain": 0.9}],
                },
            },
            "4": {
                "attention": {"rotary": {"endpoint": True}, "qk_norm": False, "value_scale": True},
                "mlp": {"after": [{"of": "stream"}, {"of": "output", "gate": 1.0, "scale": 0.8}], "activation": "gelu_tanh"},
            },
        },
    },
    "output": [{"type": "sum", "terms": [{"of": "stream"}, {"of": "after 1", "constant": -1, "scale": 0.3}]}, {"type": "norm"}],
    "head": {"tied_to": "embed", "softcap": 23, "softcap_function": "sigmoid", "logit_shift": 5, "logit_scale": 7.5},
}  # fmt: skip
HEADS = {"count": 2, "each": {"attention": {"heads": 2}}}
MODELS = {
    "gpt2": ("pieces", {"preset": "gpt2", "model_dim": 32, "layers": HEADS}),
    "gpt2_erf": ("tiny", {"preset": "gpt2", "model_dim": 32, "norms": {"epsilon": 1e-3},
                          "layers": {"count": 2, "each": {"attention": {"heads": 2}, "mlp": {"activation": "gelu_erf"}}}}),
    "modern": ("pieces", {"preset": "modern", "model_dim": 32, "layers": HEADS}),
    "parts": ("tiny", PARTS),
    "bigrams": ("pieces", {"preset": "modern", "model_dim": 32, "layers": HEADS,
                           "tables": {"two": {"rows": "ngrams", "hash": "products", "num_rows": 501, **ROWS}},
                           "input": [{"type": "table", "table": "embed"}, {"type": "norm"},
                                     {"type": "sum", "terms": [{"of": "stream"}, {"table": "two", "scale": 0.5}]}]}),
}  # fmt: skip


class HfExportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        transformers.logging.set_verbosity_error()
        cls.torch, cls.transformers = torch, transformers
        cls.temporary = tempfile.TemporaryDirectory()
        cls.work = Path(cls.temporary.name)
        os.environ["HF_MODULES_CACHE"] = str(cls.work / "modules")
        (cls.work / "text.txt").write_text(TEXT)
        cut = ("--document-marker", "%%", "--val-every", "10")
        cls.run_("prepare", "--input", "text.txt", "--out", "tiny", *cut)
        cls.run_("prepare", "--input", "text.txt", "--out", "pieces", "--tokenizer", "gpt2", "--vocab", str(VOCABULARY), *cut)
        for name, (data, model) in MODELS.items():
            config = BASE | {
                "model": model | {"vocab_size": {"tiny": 257, "pieces": 857}[data]},
                "data": {"train": [f"{data}/train_*.bin"], "val": [f"{data}/val_*.bin"], "document_mask": not name.startswith("gpt2")},
            }
            (cls.work / f"{name}.json").write_text(json.dumps(config))
            cls.run_("train", f"{name}.json", "--quiet", "--name", name)
            cls.run_("export", f"logs/{name}", f"hf_{name}")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def run_(cls, *arguments: str) -> str:
        done = subprocess.run(
            [sys.argv[1], *arguments],
            cwd=cls.work,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"exit {done.returncode}: {arguments}\n{done.stdout}{done.stderr}")
        return done.stdout

    def tokenizer(self, name: str):
        return self.transformers.AutoTokenizer.from_pretrained(self.work / f"hf_{name}", trust_remote_code=True)

    def model(self, folder: str):
        return self.transformers.AutoModelForCausalLM.from_pretrained(self.work / folder, trust_remote_code=True).eval()

    def shard(self, file: str) -> list[int]:
        data = (self.work / file).read_bytes()
        return list(struct.unpack(f"<{(len(data) - 1024) // 2}H", data[1024:]))

    def losses(self, name: str, row: list[int]) -> list[float]:
        (self.work / "row.bin").write_bytes(struct.pack(f"<{len(row)}H", *row))
        self.run_(
            "gradients", f"{name}.json", "--weights", f"logs/{name}/checkpoints/final/model.safetensors", "--tokens", "row.bin",
            "--out", "row.safetensors",
        )  # fmt: skip
        data = (self.work / "row.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        begin, end = json.loads(data[8 : 8 + size])["losses"]["data_offsets"]
        return list(struct.unpack(f"<{len(row) - 1}f", data[8 + size + begin : 8 + size + end]))

    def losses_there(self, model, row: list[int]) -> list[float]:
        torch = self.torch
        with torch.no_grad():
            log_p = torch.log_softmax(model(torch.tensor([row[:-1]])).logits[0].double(), -1)
        return [-log_p[i, token].item() for i, token in enumerate(row[1:])]

    def test_tokens(self):
        (self.work / "strange.txt").write_text(STRANGE, newline="")
        for name, (data, _) in MODELS.items():
            with self.subTest(name):
                tokenizer = self.tokenizer(name)
                self.assertEqual(len(tokenizer), {"tiny": 257, "pieces": 857}[data])
                for text in ("text.txt", "strange.txt"):
                    kind = ["bytes"] if data == "tiny" else ["gpt2", "--vocab", str(VOCABULARY)]
                    self.run_("prepare", "--input", text, "--out", "again", "--force", "--tokenizer", *kind)
                    here = self.shard("again/train_000000.bin")
                    self.assertEqual(here[-1], tokenizer.eos_token_id)
                    content = (self.work / text).read_bytes().decode()
                    self.assertEqual(tokenizer(content)["input_ids"], here[:-1], (name, text))
                    self.assertEqual(tokenizer.decode(here, skip_special_tokens=True), content)

    def test_losses(self):
        for name, (data, _) in MODELS.items():
            with self.subTest(name):
                model = self.model(f"hf_{name}")
                tokens = self.shard(f"{data}/val_000000.bin")
                separator = model.config.eos_token_id
                border = tokens.index(separator)  # the row has two documents
                row = tokens[max(0, border - LENGTH // 2) :][: LENGTH + 1]
                for here, there in zip(self.losses(name, row), self.losses_there(model, row), strict=True):
                    self.assertAlmostEqual(here, there, delta=1e-5 * (1 + abs(here)), msg=name)

    def test_text(self):
        for name in MODELS:
            with self.subTest(name):
                tokenizer, model = self.tokenizer(name), self.model(f"hf_{name}")
                # GPT-2 has no positions after its longest sequence; the other code reads the last tokens, as speedrun does.
                count = 40 if name.startswith("gpt2") else 80
                for prompt in ("the quick", "chapter 7: "):
                    here = self.run_("sample", f"logs/{name}", "--prompt", prompt, "--temperature", "0", "--tokens", str(count))
                    inputs = tokenizer("<|endoftext|>" + prompt, return_tensors="pt")
                    there = model.generate(**inputs, max_new_tokens=count, do_sample=False)[0]
                    self.assertEqual(here, tokenizer.decode(there, skip_special_tokens=True) + "\n", name)

    def test_labels_and_padding(self):
        model, torch = self.model("hf_modern"), self.torch
        row = self.shard("pieces/val_000000.bin")[:20]
        out = model(torch.tensor([row]), labels=torch.tensor([row]))
        losses = self.losses_there(model, row)
        self.assertAlmostEqual(out.loss.item(), sum(losses) / len(losses), places=5)
        padded = model(torch.tensor([[5] * 4 + row]), attention_mask=torch.tensor([[0] * 4 + [1] * len(row)]))
        self.assertLess((padded.logits[0, 4:] - out.logits[0]).abs().max().item(), 1e-4)

    def test_bf16(self):
        self.run_("export", "logs/modern", "hf_half", "--dtype", "bf16")
        model = self.model("hf_half")
        self.assertEqual(model.dtype, self.torch.bfloat16)
        row = self.shard("pieces/val_000000.bin")[:20]
        for here, there in zip(self.losses("modern", row), self.losses_there(model, row), strict=True):
            self.assertAlmostEqual(here, there, delta=0.15)  # weights and values with 8 bits

    def test_imports_the_librarys_files(self):
        """F16, BF16, several files, GELU by erf and another epsilon."""
        torch, transformers = self.torch, self.transformers
        torch.manual_seed(1)
        row = [256, *b"the quick brown fox"]
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for extra in ({}, {"activation_function": "gelu", "layer_norm_epsilon": 1e-6}):
                config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=LENGTH, vocab_size=257, **extra)
                folder = f"from_{dtype}_{len(extra)}".replace("torch.", "")
                model = transformers.GPT2LMHeadModel(config).to(dtype)
                model.save_pretrained(self.work / folder, max_shard_size="30KB")
                self.assertTrue((self.work / folder / "model.safetensors.index.json").exists())
                self.run_("import", folder, "--set", "precision=f32", "--set", "device=cpu")
                self.run_("export", f"logs/{folder}", f"{folder}_again")
                (self.work / f"{folder}.json").write_text((self.work / "logs" / folder / "config.json").read_text())
                there = self.losses_there(model.float().eval(), row)
                for got in (self.losses(folder, row), self.losses_there(self.model(f"{folder}_again"), row)):
                    for a, b in zip(got, there, strict=True):
                        self.assertAlmostEqual(a, b, delta=1e-5 * (1 + abs(b)), msg=folder)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
