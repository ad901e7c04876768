"""speedrun records export --mlperf: MLPerf's own compliance checker accepts the log of every run of every committed record,
and refuses damaged ones; times equal record.json's. Usage: mlperf_test.py SPEEDRUN. Skipped (77) without mlperf-logging."""

import json
import sys
import unittest
from datetime import datetime
from pathlib import Path
from shutil import copytree

from made_runs import ROOT, WorkTest, ran, require

require("mlperf_logging", requirements="scripts/requirements_mlperf.txt")
from mlperf_logging.compliance_checker.mlp_compliance import main, make_checker

RULES = "6.1.0"
NARROW = ROOT / "records" / "kjv" / "2026-11-26_narrow"


def export(*arguments):
    return ran(sys.argv[1], "records", "export", *arguments)


def lines_of(log: Path) -> list[dict]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]


def milliseconds(run: dict) -> float:
    return datetime.fromisoformat(run["began_utc"]).timestamp() * 1e3


class MlperfTest(WorkTest):
    def accepted(self, log: Path) -> bool:
        """Runs the checker as a program."""
        checker = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", RULES, "--werror"]
        return ran(*checker, log, cwd=self.work).returncode == 0

    def test_every_run_of_every_record(self):
        checked = 0
        for file in sorted(ROOT.glob("records/*/*/record.json")):
            out = self.work / file.parent.name
            self.ended(export("--mlperf", file.parent, "--out", out))
            made = {"candidate": 0, "baseline": 0}
            for run in json.loads(file.read_text())["runs"]:
                log = out / run["side"] / f"result_{made[run['side']]}.txt"
                made[run["side"]] += 1
                # The checker runs in this process: starting Python a hundred times takes minutes.
                valid, *_ = main(str(log), f"training_{RULES}/common.yaml", make_checker("training", RULES, False, True))
                self.assertTrue(valid, log)
                by_key = {line["key"]: line for line in lines_of(log)}
                self.assertEqual(by_key["seed"]["value"], run["seed"])
                self.assertEqual(by_key["init_start"]["time_ms"], milliseconds(run))
                startup = by_key["run_start"]["time_ms"] - milliseconds(run)
                self.assertAlmostEqual(startup, run["startup_ms"], delta=0.5)
                trained = by_key["run_stop"]["time_ms"] - by_key["run_start"]["time_ms"]
                self.assertAlmostEqual(trained, run["train_ms"], delta=1)
                self.assertEqual(by_key["eval_accuracy"]["metadata"]["loss"], run["loss"])
                checked += 1
        self.assertGreaterEqual(checked, 90)
        print(f"the checker takes the logs of {checked} runs")

    def test_the_program_refuses_what_is_damaged(self):
        out = self.work / "whole"
        self.ended(export("--mlperf", NARROW, "--out", out, "--org", "us"))
        log = out / "candidate" / "result_0.txt"
        self.assertTrue(self.accepted(log))
        whole = log.read_text()
        for key in ("eval_accuracy", "run_stop", "submission_org", "eval_samples", "tensor_parallelism"):
            log.write_text("".join(line for line in whole.splitlines(True) if f'"key":"{key}"' not in line))
            self.assertNotEqual(log.read_text(), whole)
            self.assertFalse(self.accepted(log), key)

    def test_bad_usage(self):
        self.assertIn("say the format: --mlperf", export(NARROW).stderr)
        self.ended(export("--mlperf", ROOT / "records" / "kjv"), 2, "no record.json in it")
        out = self.work / "log"
        self.ended(export("--mlperf", NARROW, "--out", out))
        self.ended(export("--mlperf", NARROW, "--out", out), 2, "is not overwritten")
        track = Path(copytree(NARROW.parent, self.work / "kjv"))
        metrics = track / NARROW.name / "baseline-seed2.jsonl.gz"
        metrics.write_bytes((track / NARROW.name / "baseline-seed1.jsonl.gz").read_bytes())
        done = export("--mlperf", track / NARROW.name, "--out", self.work / "none")
        self.assertEqual((done.returncode, "baseline-seed2.jsonl.gz: SHA-256" in done.stderr), (3, True), done.stderr)
        self.assertFalse((self.work / "none").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
