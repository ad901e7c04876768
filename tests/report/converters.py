"""Tests of the scripts that write the values of metrics.jsonl for other programs."""

import json
import math
import sys
from datetime import datetime
from pathlib import Path

from made_runs import SCRIPTS, copy_run, make_record, ran, without_loss


def expected_of(run: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Returns value and wall time by tag and step, read independently of the scripts."""
    environment, summary = (json.loads((run / f"{name}.json").read_text()) for name in ("environment", "summary"))
    start = datetime.fromisoformat(environment["time_utc"]).timestamp() + summary["startup_ms"] / 1e3
    expected, tokens = {}, 0
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        event, step = line.pop("event"), line.pop("step")
        if event == "step":
            tokens = line["tokens"]
        else:
            line["tokens"] = tokens  # before this validation
        line |= {f"bytes/{kind}": value for kind, value in line.pop("bytes", {}).items()}
        for key, value in line.items():
            number = math.nan if value is None else value
            expected[("train/" if event == "step" else "val/") + key, step] = (number, start + line["train_ms"] / 1e3)
    return expected


class Converter:
    """Tests of one script; a mixin of a WorkTest. `first` and `second`: runs of it."""

    SCRIPT = ""

    def read(self, out: Path) -> dict[str, dict[tuple[str, int], tuple[float, float]]]:
        """Returns value and wall time by tag and step, by name of run."""
        raise NotImplementedError

    def stored(self, expected: dict) -> dict:
        """Returns the values and times as the format stores them."""
        return expected

    def convert(self, *arguments, **options):
        return ran(sys.executable, SCRIPTS / self.SCRIPT, *arguments, **options)

    def same(self, found: dict, run: Path) -> int:
        expected = self.stored(expected_of(run))
        self.assertEqual(set(found), set(expected))
        for key, (value, time) in expected.items():
            self.assertTrue(found[key][0] == value or (math.isnan(value) and math.isnan(found[key][0])), (key, found[key], value))
            self.assertAlmostEqual(found[key][1], time, delta=self.DELTA_S, msg=key)
        return len(expected)

    def every_value(self, runs: list[Path], sources: list[Path], refusal: str, least: int):
        out = self.work / "all"
        self.ended(self.convert(*sources, "--out", out))
        found = self.read(out)
        self.assertEqual(sorted(found), sorted(run.name for run in runs))
        compared = sum(self.same(found[run.name], run) for run in runs)
        self.assertGreater(compared, least)
        print(f"{compared} values of {len(runs)} runs are the same")
        self.ended(self.convert(*sources, "--out", out), 2, refusal)

    def test_losses_that_are_not_finite(self):
        run = without_loss(self.first, "../nan/run")
        self.ended(self.convert(run, "--out", self.work / "nan_out"))
        found = self.read(self.work / "nan_out")["run"]
        self.same(found, run)
        self.assertTrue(math.isnan(found["train/loss", 3][0]))

    def test_record(self):
        record = make_record(self.work / "records" / "toy", "ant", [self.first], [self.second])
        self.ended(self.convert(record, "--out", self.work / "of_record"))
        found = self.read(self.work / "of_record")
        for side, run in (("candidate", self.first), ("baseline", self.second)):
            seed = json.loads((run / "config.json").read_text())["seed"]
            values = {key: value for key, (value, _) in found[f"{record.name}/{side}-seed{seed}"].items()}
            self.assertEqual(values, {key: value for key, (value, _) in self.stored(expected_of(run)).items()})

    def damaged(self) -> Path:
        broken = copy_run(self.first, "../damaged/broken")
        (broken / "metrics.jsonl").write_text("no metrics\n")
        self.ended(self.convert(broken, self.second, "--out", self.work / "some"), 0, "broken/metrics.jsonl:1: no valid JSON")
        self.assertEqual(list(self.read(self.work / "some")), [self.second.name])
        return broken

    def refused(self, code: int, words: str, *sources):
        self.ended(self.convert(*sources, "--out", self.work / "none"), code, words)
        self.assertFalse((self.work / "none").exists())
