"""scripts/to_wandb.py: the offline runs have exactly the values of metrics.jsonl.
Usage: wandb_test.py SPEEDRUN. Skipped (77) where the packages of scripts/requirements_wandb.txt are missing."""

import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from datetime import datetime
from pathlib import Path

from made_runs import ROOT, SCRIPTS, copy_run, make_record, prepare, require, train

require("wandb", requirements="scripts/requirements_wandb.txt")
from wandb.proto import wandb_internal_pb2

BLOCK = 32768  # the file is a log in LevelDB's format after a header of 7 bytes


def convert(*arguments) -> subprocess.CompletedProcess:
    # A proxy that does not answer: a run with network access would fail.
    environment = os.environ | {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "to_wandb.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


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
    """Reads an offline run."""

    def __init__(self, folder: Path):
        self.values, self.times, self.config, self.summary, self.name = {}, {}, {}, {}, ""
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
        step = row.pop("_step")
        self.times[step] = row.pop("_timestamp")
        row.pop("_runtime")
        self.values |= {(key, step): value for key, value in row.items()}


def expected_of(run: Path) -> tuple[dict, dict]:
    """Returns values and times, read independently of the script."""
    environment, summary = (json.loads((run / f"{name}.json").read_text()) for name in ("environment", "summary"))
    start = datetime.fromisoformat(environment["time_utc"]).timestamp() + summary["startup_ms"] / 1e3
    values, times, tokens = {}, {}, 0
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        event, step = line.pop("event"), line.pop("step")
        if event == "step":
            tokens = line["tokens"]
        else:
            line["tokens"] = tokens
        sent = line.pop("bytes", {})
        line |= {f"bytes/{kind}": value for kind, value in sent.items()}
        for key, value in line.items():
            values[("train/" if event == "step" else "val/") + key, step] = math.nan if value is None else value
        times[step] = max(times.get(step, 0), start + line["train_ms"] / 1e3)
    return values, times


class ToWandbTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.work = Path(cls.temporary.name)
        prepare(sys.argv[1], cls.work)
        cls.runs = [train(sys.argv[1], cls.work, f"narrow-s{seed}", seed) for seed in (1, 2)]

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def offline(self, out: Path) -> dict[str, Offline]:
        runs = [Offline(folder) for folder in out.glob("wandb/offline-run-*")]
        return {run.name: run for run in runs}

    def same(self, found: Offline, run: Path) -> int:
        values, times = expected_of(run)
        self.assertEqual(set(found.values), set(values))
        for key, value in values.items():
            self.assertTrue(found.values[key] == value or (math.isnan(value) and math.isnan(found.values[key])), key)
        for step, time in times.items():
            self.assertAlmostEqual(found.times[step], time, delta=1e-3, msg=step)
        return len(values)

    def test_every_value_comes_back(self):
        out = self.work / "offline"
        done = convert(*self.runs, "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self.offline(out)
        self.assertEqual(sorted(found), ["narrow-s1", "narrow-s2"])
        compared = sum(self.same(found[run.name], run) for run in self.runs)
        self.assertGreater(compared, 300)
        print(f"{compared} values of {len(self.runs)} runs are the same")
        config, summary = (json.loads((self.runs[0] / f"{name}.json").read_text()) for name in ("config", "summary"))
        self.assertEqual(found["narrow-s1"].config | {"_wandb": {}}, config | {"_wandb": {}})
        self.assertEqual(found["narrow-s1"].summary["speedrun"]["val_loss"], summary["val_loss"])
        again = convert(self.runs[0], "--out", out)
        self.assertEqual((again.returncode, "already" in again.stderr), (2, True), again.stderr)

    def test_losses_that_are_not_finite(self):
        run = copy_run(self.runs[0], "../nan/run")
        text = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(re.sub(r'("step":3,"loss":)[^,]*', r"\1null", text, count=1))
        self.assertEqual(convert(run, "--out", self.work / "nan_out").returncode, 0)
        found = self.offline(self.work / "nan_out")["run"]
        self.same(found, run)
        self.assertTrue(math.isnan(found.values["train/loss", 3]))

    def test_record(self):
        record = make_record(self.work / "records" / "toy", "ant", [self.runs[0]], [self.runs[1]])
        out = self.work / "of_record"
        self.assertEqual(convert(record, "--out", out).returncode, 0)
        found = self.offline(out)
        for side, run in (("candidate-seed1", self.runs[0]), ("baseline-seed2", self.runs[1])):
            self.assertEqual(found[f"{record.name}/{side}"].values, expected_of(run)[0])

    def test_damage_and_bad_usage(self):
        broken = copy_run(self.runs[0], "../damaged/broken")
        (broken / "metrics.jsonl").write_text("no metrics\n")
        done = convert(broken, self.runs[1], "--out", self.work / "some")
        self.assertEqual((done.returncode, "broken/metrics.jsonl:1: no valid JSON" in done.stderr), (0, True), done.stderr)
        self.assertEqual(list(self.offline(self.work / "some")), ["narrow-s2"])
        for folder, code, text in (
            (broken, 3, "broken/metrics.jsonl:1"),
            (ROOT / "logs" / "README.md", 2, "README.md: is no folder"),
            ("no/such", 2, "no/such: no such folder"),
        ):
            done = convert(folder, "--out", self.work / "none")
            self.assertEqual((done.returncode, text in done.stderr), (code, True), done.stderr)
            self.assertFalse((self.work / "none").exists())
        for line in (convert("no/such").stderr, convert(ROOT / "docs").stderr):
            self.assertEqual(line.count("\n"), 1, line)
        (self.work / "file").write_text("")
        done = convert(self.runs[0], "--out", self.work / "file")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
