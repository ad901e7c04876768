"""scripts/report.py on real runs of the binary: compares the page's figures with the runs' files; damaged folders.
Usage: report_test.py SPEEDRUN [MPIEXEC]. Skipped (77) where the packages of scripts/requirements.txt are missing."""

import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import unittest

from made_runs import ROOT, WorkTest, copy_run, make_runs, require, without_loss
from page_reader import Page, lines_of, read, report

require("plotly", "matplotlib")
BINARY, MPIEXEC = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""


class ReportTest(WorkTest):
    @classmethod
    def set_up(cls):
        cls.logs = make_runs(BINARY, cls.work, MPIEXEC)
        cls.out = cls.work / "page.html"
        options = ("--speedrun", BINARY, "--title", "A <title> & more", "--svg", cls.work, "--png", cls.work)
        done = report(cls.logs, "--out", cls.out, *options)
        assert done.returncode == 0, done.stderr
        cls.page = Page(cls.out)

    def refused(self, code: int, text: str, *arguments):
        done = report(*arguments, "--out", self.work / "refused.html")
        self.ended(done, code, text)
        self.assertNotIn("Traceback", done.stderr)
        self.assertFalse((self.work / "refused.html").exists())

    def test_runs_table_has_the_figures_of_the_summaries(self):
        for name in ("narrow-s1", "wide-s2"):
            summary = read(self.logs / name / "summary.json")
            row = self.page.row("runs", name)
            seed = str(read(self.logs / name / "config.json")["seed"])
            seconds = [f"{summary[key] / 1e3:.2f}" for key in ("time_to_target_ms", "train_ms")]
            self.assertEqual(row[1:6], [seed, "done", f"{summary['val_loss']:.4f}"] + seconds)
            self.assertEqual(row[8:10], [f"{summary['step_ms'][key]:,.2f}" for key in ("p50", "p99")])
            self.assertEqual(row[10], f"{summary['step_ms']['max']:,.2f} step {summary['step_ms']['max_at_step']}")

    def test_leaderboard_has_means_over_seeds(self):
        for group in ("narrow", "wide"):
            losses = [read(self.logs / f"{group}-s{seed}" / "summary.json")["val_loss"] for seed in (1, 2)]
            row = self.page.row("leaderboard", group)
            self.assertEqual(row[1:3], ["2", "2 of 2"])
            self.assertEqual(row[4], f"{statistics.fmean(losses):.4f} ± {statistics.stdev(losses):.4f}")

    def test_curves_are_the_metrics(self):
        data = self.page.figures["loss-time"]["data"]
        narrow = [trace for trace in data if "narrow" in trace["name"]]
        self.assertEqual(len(narrow), 6)  # training and validation of two seeds and of their mean
        self.assertEqual(len({trace["line"]["color"] for trace in narrow}), 1)
        self.assertNotIn(narrow[0]["line"]["color"], {t["line"]["color"] for t in data if "wide" in t["name"]})
        vals = [lines_of(self.logs / f"narrow-s{seed}", "val") for seed in (1, 2)]
        mean = next(t for t in narrow if "mean of 2" in t["name"] and t["meta"]["kind"] == "val")
        for i, pair in enumerate(zip(*vals)):
            self.assertAlmostEqual(mean["y"][i], statistics.fmean(v["loss"] for v in pair), delta=1e-4)  # six digits
            self.assertAlmostEqual(mean["x"][i], statistics.fmean(v["train_ms"] for v in pair) / 1e3, delta=1e-4)
        tokens = next(t for t in self.page.figures["loss-tokens"]["data"] if t["name"] == mean["name"])
        self.assertEqual(tokens["x"], [round(256 * v["step"] / 1e3, 6) for v in vals[0]])
        training = next(t for t in narrow if "narrow-s1" in t["name"] and t["meta"]["kind"] == "train")
        self.assertEqual(training["y"], [float(f"{s['loss']:.6g}") for s in lines_of(self.logs / "narrow-s1", "step")])
        for chart in ("loss-time", "loss-tokens"):
            layout = self.page.figures[chart]["layout"]
            self.assertEqual([shape["y0"] for shape in layout["shapes"]], [4.0])
            self.assertIn("[nats/token]", layout["yaxis"]["title"]["text"])

    def test_parts_sum_to_the_training_time(self):
        bars = self.page.figures["where"]["data"]
        self.assertEqual(
            [bar["name"] for bar in bars],
            ["forward and backward", "host waited for data", "communication exposed", "optimizer after backward"],
        )
        for i, label in enumerate(bars[0]["y"]):
            runs = [run for run in self.logs.iterdir() if re.sub(r"-s\d$", "", run.name) == label]
            summaries = [read(run / "summary.json") for run in runs]
            self.assertAlmostEqual(
                sum(bar["x"][i] for bar in bars), statistics.fmean(s["train_ms"] for s in summaries) / 1e3, delta=2e-5
            )
            self.assertAlmostEqual(bars[3]["x"][i], statistics.fmean(s["optimizer_ms"] for s in summaries) / 1e3, delta=1e-5)
            # Ranks that share a core may wait for longer than they trained.
            exposed = [min(s["comm_exposed_ms"], s["train_ms"] - s["optimizer_ms"]) for s in summaries]
            self.assertAlmostEqual(bars[2]["x"][i], statistics.fmean(exposed) / 1e3, delta=1e-5)

    def test_overlap_is_that_of_the_metrics_and_of_the_trace(self):
        if not MPIEXEC:
            self.assertNotIn("overlap", self.page.figures)
            self.skipTest("no MPI")
        hidden, exposed = self.page.figures["overlap"]["data"]
        self.assertEqual(hidden["y"], ["sharded, metrics", "sharded, trace"])
        summary = read(self.logs / "sharded" / "summary.json")
        self.assertAlmostEqual(hidden["x"][0] + exposed["x"][0], summary["comm_ms"] / summary["steps"], delta=1e-4)
        self.assertAlmostEqual(
            exposed["x"][0], min(summary["comm_exposed_ms"], summary["comm_ms"]) / summary["steps"], delta=1e-4
        )
        traced = json.loads(
            subprocess.run([BINARY, "trace", str(self.logs / "sharded"), "--json"], capture_output=True, check=True).stdout
        )
        self.assertAlmostEqual(exposed["x"][1], traced["stalled_ms"], delta=1e-4)

    def test_differences_are_the_keys_that_differ(self):
        rows = {row[0]: row[1:] for row in self.page.tables["differences"][1:]}
        expected = {"model.model_dim", "schedule.steps"}
        if MPIEXEC:
            expected |= {"parallel.strategy", "batch.microbatch_tokens", "(ranks)", "(machine)"}
        self.assertLessEqual({"model.model_dim", "schedule.steps"}, set(rows))
        self.assertLessEqual(set(rows), expected)
        labels = [re.sub(r" \(reference\)$", "", label.strip()) for label in self.page.tables["differences"][0][1:]]
        self.assertEqual(dict(zip(labels, rows["model.model_dim"]))["wide"], "64")

    def test_page_is_one_file_that_loads_nothing(self):
        self.assertEqual(self.page.loads, ["data:,"])  # the empty icon
        text = self.out.read_text(encoding="utf-8")
        self.assertIn("Content-Security-Policy\" content=\"default-src 'none'", text)
        self.assertIn("<h1>A &lt;title&gt; &amp; more</h1>", text)

    def test_same_runs_give_the_same_files(self):
        again = self.work / "again"
        report(
            self.logs, "--out", self.work / "again.html", "--speedrun", BINARY, "--title", "A <title> & more", "--svg", again
        )
        self.assertEqual((self.work / "again.html").read_bytes(), self.out.read_bytes())
        for name in ("loss_time", "loss_tokens"):
            svg = (again / f"{name}.svg").read_bytes()
            self.assertEqual(svg, (self.work / f"{name}.svg").read_bytes())
            self.assertIn(b"nats/token", svg)
            self.assertNotIn(b"<dc:date>", svg)
            self.assertTrue((self.work / f"{name}.png").read_bytes().startswith(b"\x89PNG"))

    def test_damaged_and_unfinished_runs_are_listed(self):
        logs = self.work / "some"
        logs.mkdir()
        good = copy_run(self.logs / "narrow-s1", "../some/good-s1")
        killed = copy_run(good, "good-s2 <script>alert(1)</script>".replace("/", "_"))
        (killed / "summary.json").unlink()
        config = read(killed / "config.json")
        (killed / "config.json").write_text(json.dumps(config | {"seed": 2}))
        text = (good / "metrics.jsonl").read_text()
        (killed / "metrics.jsonl").write_text(text[: len(text) // 2])
        broken = copy_run(good, "broken")
        (broken / "metrics.jsonl").write_text(text.replace("\n", "\n{", 1))
        nothing = copy_run(good, "nothing")
        (nothing / "metrics.jsonl").unlink()
        wrong = copy_run(good, "wrong")
        (wrong / "metrics.jsonl").write_text(text.replace('"train_ms":', '"train_ms":"soon","x":', 1))
        done = report(logs, "--out", self.work / "some.html")
        self.ended(done)
        page = Page(self.work / "some.html")
        for words in (
            "broken/metrics.jsonl: 1 damaged lines left out, the first is line 2",
            "nothing/metrics.jsonl: missing",
            "wrong/metrics.jsonl: 1 damaged lines left out, the first is line 1",
        ):
            self.assertIn(words, done.stderr)
            self.assertIn(words, page.notices)
        self.assertIn("not finished: good-s2 <script>", page.notices)
        row = next(row for row in page.tables["runs"] if row[0].strip() == killed.name)
        self.assertEqual(row[2], "unfinished")
        self.assertIn("was cut short", row[12])
        self.assertNotIn("<script>alert", (self.work / "some.html").read_text(encoding="utf-8"))
        self.assertEqual(page.row("leaderboard", "broken")[1], "3")  # without the unfinished run and the missing one
        (broken / "metrics.jsonl").write_bytes(b'\xff\n{"event": "step", "step": 1e999}\n[]\n')
        self.refused(3, "no run could be read", broken, nothing)

    def test_a_pattern_that_matches_other_files_too(self):
        logs = self.work / "pattern"
        copy_run(self.logs / "narrow-s1", "../pattern/narrow-s1")
        shutil.copy(ROOT / "logs" / "README.md", logs)
        (logs / "attempts").mkdir()
        out = self.work / "pattern.html"
        done = report(*sorted(logs.glob("*")), "--out", out)  # as expanded from logs/* by a shell
        self.ended(done, 0, "README.md: is no folder")
        self.assertIn("attempts: no run in it", done.stderr)
        self.assertEqual([row[0].strip() for row in Page(out).tables["runs"][1:]], ["narrow-s1"])

    def test_a_loss_that_is_not_finite_makes_a_gap(self):
        run = without_loss(self.logs / "narrow-s1", "../gap/gap")
        self.ended(report(run, "--out", self.work / "gap.html"))
        training = Page(self.work / "gap.html").figures["loss-time"]["data"][0]
        self.assertEqual([i for i, loss in enumerate(training["y"]) if loss is None], [3])

    def test_a_last_loss_that_is_not_finite_is_a_divergence(self):
        run = copy_run(self.logs / "narrow-s1", "../nan/nan")
        lines = (run / "metrics.jsonl").read_text().splitlines()
        self.assertIn('"event":"val"', lines[-1])
        lines[-1] = re.sub(r'("loss":)[^,]*', r"\1null", lines[-1])
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        self.ended(report(run, "--out", self.work / "nan.html"))
        self.assertEqual(Page(self.work / "nan.html").row("runs", "nan")[2], "diverged")

    def test_equal_seeds_and_other_machines_are_pointed_out(self):
        twin = copy_run(self.logs / "narrow-s1", "../twins/first")
        copy_run(twin, "second")
        away = copy_run(twin, "away")
        environment = read(away / "environment.json")
        (away / "environment.json").write_text(json.dumps(environment | {"host": "elsewhere"}))
        self.ended(report(twin.parent, "--out", self.work / "twins.html"))
        notices = Page(self.work / "twins.html").notices
        self.assertIn("seed 1 was run more than once", notices)
        self.assertIn("different machines", notices)
        self.assertNotIn("different machines", self.page.notices)

    def test_bad_usage(self):
        self.refused(2, "no/such: no such folder", "no/such")
        self.refused(2, "no run in it", self.work / "tiny")
        self.refused(2, "is no folder", self.work / "tiny.json")
        self.refused(2, "is no folder", self.work / "tiny.json", ROOT / "logs" / "README.md")
        self.refused(2, "no/such: no such folder", self.logs, "no/such")
        self.refused(2, "--speedrun no/such", self.logs, "--speedrun", "no/such")
        done = report(self.logs, "--out", self.work / "no" / "such" / "page.html")
        self.ended(done, 2, "page.html: cannot be written")

    def test_pictures_stay_small(self):
        many = self.work / "many"
        for i in range(40):
            run = copy_run(self.logs / "narrow-s1", f"../many/c{i % 8}-s{i}")
            config = read(run / "config.json")
            (run / "config.json").write_text(json.dumps(config | {"seed": i, "threads": i % 8}))
            steps, vals = lines_of(run, "step"), lines_of(run, "val")
            steps = [steps[0] | {"step": n, "train_ms": 7.0 * n, "loss": 5 + math.sin(n * (i + 1))} for n in range(900)]
            vals = [vals[0] | {"step": n, "train_ms": 7.0 * n, "loss": 5 - n / 900} for n in range(0, 900, 30)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps + vals))
        done = report(many, "--out", self.work / "many.html", "--svg", many)
        self.assertIn("40 runs of 8 configs", done.stdout, done.stderr)
        for name in ("loss_time", "loss_tokens"):
            self.assertLess((many / f"{name}.svg").stat().st_size, 200_000)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
