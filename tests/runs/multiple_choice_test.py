# Covers: train/commands/run_tokenizer.cpp
"""speedrun eval --multiple-choice on made-up items: its scores are sums of the losses of `speedrun gradients` for the same
tokens. If torch and transformers are installed, they equal the exported model's.
Usage: multiple_choice_test.py SPEEDRUN"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEPARATOR = 256  # of the tokenizer "bytes"
LENGTH = 64  # tokens of a row
CONFIG = {
    "model": {"preset": "gpt2", "model_dim": 32, "vocab_size": 257, "layers": {"count": 2, "each": {"attention": {"heads": 2}}}},
    "data": {"train": ["tiny/train_*.bin"], "val": ["tiny/val_*.bin"], "document_mask": False},
    "batch": {"sequence_length": LENGTH, "microbatch_tokens": 192, "tokens_per_step": 192},
    "optimizers": {"groups": [{"type": "adamw", "params": ["*"], "lr": 0.01}]},
    "schedule": {"steps": 60},
    "precision": "f32",
    "device": "cpu",
}
ITEMS = [
    {"context": "chapter 7: the quick brown fox", "endings": [" jumps over the lazy dog", " qqq", " is 12345"], "label": 0},
    {"context": "chapter 12: the quick", "endings": [" zebra", " brown fox jumps over the lazy dog, and over 12 more."], "label": 1},
    {"context": "", "endings": ["xxxx", "chapter"], "label": 0},
    {"context": "a context that no row has room for, because it is far too long", "endings": [" fox", "dog", "é", "?"], "label": 3},
]


class MultipleChoiceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.work = Path(cls.temporary.name)
        text = "".join(
            f"chapter {i}: the quick brown fox jumps over the lazy dog, and over {i} more.\n" + ("%%\n" if i % 4 == 3 else "")
            for i in range(400)
        )
        (cls.work / "text.txt").write_text(text)
        (cls.work / "tiny.json").write_text(json.dumps(CONFIG))
        cls.items = cls.work / "items.jsonl"
        cls.items.write_text("".join(json.dumps(item) + "\n\n" for item in ITEMS))
        cls.run_(
            cls, 0, "prepare", "--input", "text.txt", "--out", "tiny", "--document-marker", "%%", "--val-every", "10"
        )
        cls.run_(cls, 0, "train", "tiny.json", "--quiet", "--name", "run")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def run_(self, code: int, *arguments: str) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [sys.argv[1], *arguments],
            cwd=self.work,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != code:
            raise AssertionError(f"exit {done.returncode} instead of {code}: {arguments}\n{done.stdout}{done.stderr}")
        return done

    def answer(self, *arguments: str) -> dict:
        return json.loads(self.run_(0, "eval", "logs/run", "--multiple-choice", "items.jsonl", "--json", *arguments).stdout)

    @staticmethod
    def tokens_of(item: dict, ending: str) -> tuple[list[int], int]:
        """Returns a row of separator, context and ending, and the number of tokens of the ending."""
        row = [SEPARATOR, *item["context"].encode(), *ending.encode()]
        return row[-LENGTH - 1 :], len(ending.encode())

    def sum_by_gradients(self, row: list[int], scored: int) -> float:
        (self.work / "row.bin").write_bytes(struct.pack(f"<{len(row)}H", *row))
        self.run_(
            0, "gradients", "tiny.json", "--weights", "logs/run/checkpoints/final/model.safetensors", "--tokens", "row.bin",
            "--out", "row.safetensors",
        )  # fmt: skip
        data = (self.work / "row.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        begin, end = json.loads(data[8 : 8 + size])["losses"]["data_offsets"]
        losses = struct.unpack(f"<{len(row) - 1}f", data[8 + size + begin : 8 + size + end])
        return -sum(losses[-scored:])

    def same(self, sum_of) -> None:
        answer = self.answer()
        self.assertEqual((answer["items"], answer["texts_cut"]), (len(ITEMS), 3))
        right = right_by_sum = 0
        for item, scores in zip(ITEMS, answer["scores"], strict=True):
            sums, counts = [], []
            for ending, score in zip(item["endings"], scores, strict=True):
                row, scored = self.tokens_of(item, ending)
                sums.append(sum_of(row, scored))
                counts.append(scored)
                self.assertEqual(score["tokens"], scored)
                # Sums of f32 losses near 1, each rounded at 1e-7 of itself, from matmuls of another shape.
                self.assertAlmostEqual(score["sum"], sums[-1], delta=1e-4 * (1 + abs(sums[-1])), msg=ending)
            means = [a / n for a, n in zip(sums, counts)]
            right += means.index(max(means)) == item["label"]
            right_by_sum += sums.index(max(sums)) == item["label"]
        self.assertEqual(answer["accuracy"], right / len(ITEMS))
        self.assertEqual(answer["accuracy_unnormalised"], right_by_sum / len(ITEMS))
        self.assertNotEqual(right, right_by_sum)  # otherwise the test could not distinguish them

    def test_scores_are_sums_of_the_losses_of_gradients(self):
        self.same(self.sum_by_gradients)

    def test_scores_are_those_of_transformers(self):
        try:
            import torch
            from transformers import GPT2LMHeadModel
        except ImportError as error:
            self.skipTest(str(error))
        self.run_(0, "export", "logs/run", "hf")
        model = GPT2LMHeadModel.from_pretrained(self.work / "hf").eval()

        def sum_of(row: list[int], scored: int) -> float:
            with torch.no_grad():
                log_p = torch.log_softmax(model(torch.tensor([row[:-1]])).logits[0].double(), -1)
            return sum(log_p[len(row) - 1 - scored + i, row[len(row) - scored + i]].item() for i in range(scored))

        self.same(sum_of)

    def test_one_at_a_time_and_together(self):
        together = self.answer()["scores"]
        alone = self.answer("--set", f"batch.microbatch_tokens={LENGTH}", "--set", f"batch.tokens_per_step={LENGTH}")["scores"]
        for a, b in zip(together, alone, strict=True):
            for x, y in zip(a, b, strict=True):
                self.assertAlmostEqual(x["sum"], y["sum"], delta=1e-4)

    def test_the_run_folder_alone_has_the_same_scores(self):
        here = self.answer()
        (self.work / "tiny").rename(self.work / "away")
        try:
            self.assertEqual(self.answer(), here)
        finally:
            (self.work / "away").rename(self.work / "tiny")

    def test_text_says_the_same(self):
        answer = self.answer()
        done = self.run_(0, "eval", "logs/run", "--multiple-choice", "items.jsonl")
        self.assertIn(f"accuracy {answer['accuracy']:.4f} ({round(4 * answer['accuracy'])} of 4 items)", done.stdout)
        self.assertIn(f"without normalisation {answer['accuracy_unnormalised']:.4f}", done.stdout)
        self.assertEqual(done.stderr.count("cut from the left"), 1)

    def test_bad_lines(self):
        good = json.dumps(ITEMS[0])
        for line, text in (
            ("no json", "line 2"),
            ("[1]", "an object is expected"),
            ('{"context": "a", "endings": ["b", "c"]}', 'no "label"'),
            ('{"context": 1, "endings": ["b", "c"], "label": 0}', "context: text is expected"),
            ('{"context": "a", "endings": ["b"], "label": 0}', "two texts or more"),
            ('{"context": "a", "endings": ["b", ""], "label": 0}', "not empty"),
            ('{"context": "a", "endings": ["b", "c"], "label": 2}', "label: 2, there are 2 endings"),
            ('{"context": "a", "endings": ["b", "c"], "label": -1}', "label: -1"),
            (json.dumps({"context": "a", "endings": ["b", "c" * (LENGTH + 1)], "label": 0}), "an ending of 65 tokens"),
        ):
            (self.work / "bad.jsonl").write_text(good + "\n" + line + "\n")
            error = self.run_(3, "eval", "logs/run", "--multiple-choice", "bad.jsonl").stderr
            self.assertIn(text, error)
            self.assertTrue("line 2" in error or "65 tokens" in error, error)
            self.assertEqual(error.count("\n"), 1, error)
        (self.work / "bad.jsonl").write_text("\n")
        self.assertIn("no item in it", self.run_(3, "eval", "logs/run", "--multiple-choice", "bad.jsonl").stderr)
        self.run_(3, "eval", "logs/run", "--multiple-choice", "missing.jsonl")
        self.assertIn("--text excludes --multiple-choice", self.run_(2, "eval", "logs/run", "--text", "x", "--multiple-choice", "y").stderr)
        self.assertIn("--vocab: only with", self.run_(2, "eval", "logs/run", "--vocab", "x").stderr)

    def convert(self, *arguments: str) -> subprocess.CompletedProcess:
        script = str(ROOT / "scripts" / "hellaswag_to_jsonl.py")
        return subprocess.run(
            [sys.executable, script, *arguments], cwd=self.work, capture_output=True, text=True, check=False
        )

    def test_hellaswag(self):
        lines = [
            {"ind": 1, "ctx": "A man sits.", "endings": ["He stands.", "He flies."], "label": 0, "split": "val"},
            {"ctx": "A dog runs.", "endings": ["It barks.", "It sings."], "label": "1"},
        ]
        (self.work / "hs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.assertEqual(self.convert("hs.jsonl", "hs_items.jsonl").returncode, 0)
        written = [json.loads(line) for line in (self.work / "hs_items.jsonl").read_text().splitlines()]
        self.assertEqual(
            written,
            [
                {"context": "A man sits.", "endings": [" He stands.", " He flies."], "label": 0},
                {"context": "A dog runs.", "endings": [" It barks.", " It sings."], "label": 1},
            ],
        )
        self.assertIn("2 items", self.run_(0, "eval", "logs/run", "--multiple-choice", "hs_items.jsonl").stdout)
        self.assertEqual(self.convert("hs.jsonl", "hs_items.jsonl").returncode, 2)
        (self.work / "test_split.jsonl").write_text('{"ctx": "a", "endings": ["b", "c"]}\n')
        done = self.convert("test_split.jsonl", "none.jsonl")
        self.assertEqual((done.returncode, done.stderr), (3, 'error: test_split.jsonl:1: no "label"\n'))
        self.assertFalse((self.work / "none.jsonl").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
