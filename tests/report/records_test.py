"""scripts/report.py on tracks: made-up records, damaged ones, and a record of `speedrun records attempt`.
Usage: records_test.py SPEEDRUN. Skipped (77) where the packages of scripts/requirements.txt are missing."""

import json
import re
import sys
import unittest

from made_runs import WorkTest, make_record, make_runs, ran, require, speedrun
from page_reader import Page, read, report

require("plotly", "matplotlib")
BINARY = sys.argv[1]


class RecordsTest(WorkTest):
    @classmethod
    def set_up(cls):
        cls.logs = make_runs(BINARY, cls.work)

    def track_of_two(self, name: str):
        """A track with the records zebra and ant, and the folder of ant."""
        track = self.work / name / "toy"
        runs = {name: [self.logs / f"{name}-s{seed}" for seed in (1, 2)] for name in ("narrow", "wide")}
        make_record(track, "zebra", runs["wide"], [])
        return track, make_record(track, "ant", runs["narrow"], runs["wide"], before="2026-01-02_zebra")

    def test_track(self):
        track, second = self.track_of_two("records")
        done = report(track, "--out", self.work / "track.html", "--svg", track)
        self.ended(done)
        self.assertIn("4 runs of 2 configs", done.stdout)  # the baseline's runs are the first record's
        page = Page(self.work / "track.html")
        self.assertEqual([row[0] for row in page.tables["records"][1:]], ["ant", "zebra"])  # baseline first
        row = page.row("records", "ant")
        self.assertEqual(row[3:5], ["2", "3.00 ± 0.02"])
        self.assertEqual(row[6:], ["0.0042", "the one before", "1.250", "< 0.0001", "no record build"])
        self.assertIn("seed 9 was interrupted after 3 steps", page.notices)
        self.assertIn("uncommitted changes", str(page.tables["environment"]))
        # A single record includes its baseline.
        self.assertEqual(report(second, "--out", self.work / "record.html").returncode, 0)
        self.assertEqual(len(Page(self.work / "record.html").row("leaderboard", "the one before (baseline of ant)")), 10)

    def test_record_of_the_binary(self):
        """Reads a record of `speedrun records attempt`."""
        if "records" not in ran(BINARY, "--help").stdout:
            self.skipTest("this binary has no records")
        shards = read(self.work / "tiny" / "dataset.json")["shards"]
        tokens = sum(shard["tokens"] for shard in shards if shard["split"] == "val") - 1
        track = self.work / "tracks" / "tiny"
        track.mkdir(parents=True)
        members = {
            "name": "tiny",
            "dataset": {"name": "tiny", "tokenizer": "bytes", "vocab_size": 257, "separator": 256, "shards": shards},
            "validation": {"split": "val", "tokens": tokens},
            "target_loss": 4.0,
            "hardware_class": "any",
            "classes": [{"name": "whole"}, {"name": "open"}, {"name": "small", "max_parameters": 1000000}, {"name": "gpu", "gpus": 1},
                        {"name": "quick", "budget_s": 600}, {"name": "old", "ended": "a test", "ended_on": "2999-12-31"}],
            "rules": {"min_runs": 2, "max_loss_p": 0.01, "max_time_p": 0.01, "systems_only": {"loss_margin": 0.01, "max_p": 0.05}},
        }
        (track / "track.json").write_text(json.dumps(members))
        options = "--runs 2 --against tiny.json --against-set schedule.steps=32 --set record.track=tiny --against-set record.track=tiny"
        options += " --name short --baseline-name long --out tracks --work attempts"
        texts = ["--what", "fewer steps", "--baseline-what", "the first"]
        speedrun(BINARY, "records", "attempt", "tiny.json", *options.split(), *texts, folder=self.work)
        done = report(track, "--out", self.work / "real.html", "--svg", self.work, "--speedrun", BINARY)
        self.ended(done)
        self.assertEqual(done.stderr, "")
        self.assertIn("4 runs of 2 configs", done.stdout)
        picture = (self.work / "loss_time.svg").read_text()
        # Open classes with a target and a record, in the track's order.
        panels = re.findall(r"tiny track: (\w+)", re.sub(r"<!--.*?-->", "", picture))
        self.assertEqual(panels, ["whole", "open", "small"])
        page = Page(self.work / "real.html")
        record = read(next(track.glob("*_short")) / "record.json")
        row = page.row("records", "short")
        self.assertEqual(row[2:4], ["fewer steps", "2"])
        self.assertEqual(row[8], f"{record['statistics']['speedup']:.3f}")
        mean, deviation = (record["statistics"]["candidate"]["loss"][key] for key in ("mean", "std"))
        self.assertEqual(row[5], f"{mean:.4f} ± {deviation:.4f}")
        self.assertEqual(page.row("leaderboard", "short")[4], row[5])  # computed from the metrics
        for run in record["runs"]:
            if run["side"] == "candidate":
                self.assertEqual(page.row("runs", f"short, seed {run['seed']}")[5], f"{run['train_ms'] / 1e3:.2f}")

    def test_damaged_record(self):
        track, second = self.track_of_two("damaged_records")
        first = second / "candidate-seed1.jsonl.gz"
        whole = first.read_bytes()
        for damage, words in ((whole[:-20], "damaged"), (b"plain", "cannot be read"), (None, "missing")):
            first.unlink() if damage is None else first.write_bytes(damage)
            self.ended(report(track, "--out", self.work / "track.html"), 0, f"{first}: {words}")
        first.write_bytes((track / "2026-01-02_zebra" / "candidate-seed1.jsonl.gz").read_bytes())
        self.assertIn(f"{first}: is not the file", report(track, "--out", self.work / "track.html").stderr)
        (second / "record.json").write_text('{"schema": 7}')
        self.assertIn("schema 7, this report knows 1", report(track, "--out", self.work / "track.html").stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
