"""scripts/to_wandb.py: the offline runs have exactly the values of metrics.jsonl.
Usage: wandb_test.py SPEEDRUN. Skipped (77) where the packages of scripts/requirements_wandb.txt are missing."""

import json
import os
import struct
import sys
import unittest
from pathlib import Path

from converters import Converter
from made_runs import ROOT, WorkTest, prepare, require, train

require("wandb", requirements="scripts/requirements_wandb.txt")
from wandb.proto import wandb_internal_pb2

BLOCK = 32768  # the file is a log in LevelDB's format after a header of 7 bytes


def messages(file: Path):
    data, at, whole = file.read_bytes(), 7, b""
    while at < len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, last part
            message = wandb_internal_pb2.Record()
            message.ParseFromString(whole)
            whole = b""
            yield message


class Offline:
    """Reads an offline run. values: value and time by key and step."""

    def __init__(self, folder: Path):
        self.values, self.config, self.summary, self.name = {}, {}, {}, ""
        (file,) = folder.glob("run-*.wandb")
        for message in messages(file):
            if message.WhichOneof("record_type") == "run":
                self.name = message.run.display_name
                self.config = {item.key: json.loads(item.value_json) for item in message.run.config.update}
            elif message.WhichOneof("record_type") == "history":
                self._add({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in message.history.item})
            elif message.WhichOneof("record_type") == "summary":
                for item in message.summary.update:
                    self.summary["/".join(item.nested_key) or item.key] = json.loads(item.value_json)

    def _add(self, row: dict) -> None:
        step, time = row.pop("_step"), row.pop("_timestamp")
        row.pop("_runtime")
        self.values |= {(key, step): (value, time) for key, value in row.items()}


class ToWandbTest(Converter, WorkTest):
    SCRIPT, DELTA_S = "to_wandb.py", 1e-3

    @classmethod
    def set_up(cls):
        prepare(sys.argv[1], cls.work)
        cls.first, cls.second = (train(sys.argv[1], cls.work, f"narrow-s{seed}", seed) for seed in (1, 2))

    def convert(self, *arguments):
        # A proxy that does not answer: a run with network access would fail.
        proxies = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        return super().convert(*arguments, env=os.environ | proxies)

    def offline(self, out: Path) -> dict[str, Offline]:
        runs = [Offline(folder) for folder in out.glob("wandb/offline-run-*")]
        return {run.name: run for run in runs}

    def read(self, out):
        return {name: run.values for name, run in self.offline(out).items()}

    def stored(self, expected):
        """A step has one time, that of its last value."""
        times = {}
        for (_, step), (_, time) in expected.items():
            times[step] = max(times.get(step, 0), time)
        return {(key, step): (value, times[step]) for (key, step), (value, _) in expected.items()}

    def test_every_value_comes_back(self):
        self.every_value([self.first, self.second], [self.first, self.second], "already", 300)
        found = self.offline(self.work / "all")["narrow-s1"]
        config, summary = (json.loads((self.first / f"{name}.json").read_text()) for name in ("config", "summary"))
        self.assertEqual(found.config | {"_wandb": {}}, config | {"_wandb": {}})
        self.assertEqual(found.summary["speedrun"]["val_loss"], summary["val_loss"])

    def test_damage_and_bad_usage(self):
        self.refused(3, "broken/metrics.jsonl:1", self.damaged())
        self.refused(2, "README.md: is no folder", ROOT / "logs" / "README.md")
        self.refused(2, "no/such: no such folder", "no/such")
        for line in (self.convert("no/such").stderr, self.convert(ROOT / "docs").stderr):
            self.assertEqual(line.count("\n"), 1, line)
        (self.work / "file").write_text("")
        done = self.convert(self.first, "--out", self.work / "file")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
