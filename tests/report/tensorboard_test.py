"""scripts/to_tensorboard.py: the event files have exactly the values of metrics.jsonl.
Usage: tensorboard_test.py SPEEDRUN. Skipped (77) where the packages of scripts/requirements.txt are missing."""

import json
import math
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from datetime import datetime
from pathlib import Path

from made_runs import ROOT, SCRIPTS, copy_run, make_record, make_runs, require

require("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def convert(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "to_tensorboard.py"), *map(str, arguments)], capture_output=True, text=True, check=False
    )


def as_float32(value: float) -> float:
    """TensorBoard's scalars have 32 bits."""
    return struct.unpack("f", struct.pack("f", value))[0]


def scalars_in(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Returns value and wall time by tag and step."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})  # 0: all of them
    accumulator.Reload()
    return {
        (tag, event.step): (event.value, event.wall_time)
        for tag in accumulator.Tags()["scalars"]
        for event in accumulator.Scalars(tag)
    }


def expected_of(run: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Reads the file independently of the script."""
    environment, summary = (json.loads((run / f"{name}.json").read_text()) for name in ("environment", "summary"))
    start = datetime.fromisoformat(environment["time_utc"]).timestamp() + summary["startup_ms"] / 1e3
    expected, tokens = {}, 0
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        event, step = line.pop("event"), line.pop("step")
        if event == "step":
            tokens = line["tokens"]
        else:
            line["tokens"] = tokens  # before this validation
        sent = line.pop("bytes", {})
        line |= {f"bytes/{kind}": value for kind, value in sent.items()}
        for key, value in line.items():
            number = math.nan if value is None else as_float32(value)
            expected[("train/" if event == "step" else "val/") + key, step] = (number, start + line["train_ms"] / 1e3)
    return expected


class ToTensorBoardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.work = Path(cls.temporary.name)
        cls.logs = make_runs(sys.argv[1], cls.work, sys.argv[2] if len(sys.argv) > 2 else "")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def same(self, folder: Path, run: Path) -> int:
        found, expected = scalars_in(folder), expected_of(run)
        self.assertEqual(set(found), set(expected))
        for key, (value, wall_time) in expected.items():
            self.assertTrue(
                found[key][0] == value or (math.isnan(value) and math.isnan(found[key][0])), (key, found[key], value)
            )
            self.assertAlmostEqual(found[key][1], wall_time, delta=1e-6, msg=key)  # seconds since 1970 as a double
        return len(expected)

    def test_every_value_comes_back(self):
        out = self.work / "events"
        self.assertEqual(convert(self.logs, "--out", out).returncode, 0)
        runs = sorted(self.logs.iterdir())
        self.assertEqual([folder.name for folder in sorted(out.iterdir())], [run.name for run in runs])
        compared = sum(self.same(out / run.name, run) for run in runs)
        self.assertGreater(compared, 1000)
        print(f"{compared} values of {len(runs)} runs are the same")
        again = convert(self.logs, "--out", out)  # two files in one folder would be drawn in one chart
        self.assertEqual((again.returncode, "exists and is not overwritten" in again.stderr), (2, True), again.stderr)

    def test_losses_that_are_not_finite(self):
        run = copy_run(self.logs / "narrow-s1", "../nan/run")
        text = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(re.sub(r'("step":3,"loss":)[^,]*', r"\1null", text, count=1))
        self.assertEqual(convert(run, "--out", self.work / "nan_events").returncode, 0)
        self.same(self.work / "nan_events" / "run", run)
        self.assertTrue(math.isnan(scalars_in(self.work / "nan_events" / "run")["train/loss", 3][0]))

    def test_record(self):
        record = make_record(self.work / "records" / "toy", "ant", [self.logs / "narrow-s1"], [self.logs / "wide-s1"])
        self.assertEqual(convert(record, "--out", self.work / "of_record").returncode, 0)
        for side, run in (("candidate", "narrow-s1"), ("baseline", "wide-s1")):
            found = scalars_in(self.work / "of_record" / record.name / f"{side}-seed1")
            expected = expected_of(self.logs / run)
            self.assertEqual(
                {key: value for key, (value, _) in found.items()}, {key: value for key, (value, _) in expected.items()}
            )

    def test_damage_and_bad_usage(self):
        broken = copy_run(self.logs / "narrow-s1", "../damaged/broken")
        (broken / "metrics.jsonl").write_text("no metrics\n")
        done = convert(broken, self.logs / "narrow-s2", "--out", self.work / "some")
        self.assertEqual((done.returncode, "broken/metrics.jsonl:1: no valid JSON" in done.stderr), (0, True), done.stderr)
        self.assertEqual([folder.name for folder in (self.work / "some").iterdir()], ["narrow-s2"])
        done = convert(broken, "--out", self.work / "none")
        self.assertEqual((done.returncode, "broken/metrics.jsonl:1" in done.stderr), (3, True), done.stderr)
        readme = ROOT / "logs" / "README.md"  # matched by logs/*
        done = convert(readme, self.logs / "narrow-s2", "--out", self.work / "pattern")
        self.assertEqual((done.returncode, "README.md: is no folder" in done.stderr), (0, True), done.stderr)
        self.assertEqual([folder.name for folder in (self.work / "pattern").iterdir()], ["narrow-s2"])
        done = convert(readme, "--out", self.work / "none")
        self.assertEqual((done.returncode, "README.md: is no folder" in done.stderr), (2, True), done.stderr)
        done = convert("no/such", "--out", self.work / "none")
        self.assertEqual((done.returncode, "no/such: no such folder" in done.stderr), (2, True), done.stderr)
        self.assertFalse((self.work / "none").exists())
        copy_run(self.logs / "narrow-s2", "../elsewhere/narrow-s2")
        done = convert(self.logs / "narrow-s2", self.work / "elsewhere" / "narrow-s2", "--out", self.work / "none")
        self.assertEqual((done.returncode, "would both go to" in done.stderr), (2, True), done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
