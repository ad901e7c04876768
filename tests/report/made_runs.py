"""Run folders for the tests: runs of the tested binary, and damaged copies."""

import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

CONFIG = {
    "model": {"preset": "modern", "model_dim": 32, "vocab_size": 257, "layers": {"count": 1, "each": {"attention": {"heads": 2}}}},
    "data": {"train": ["tiny/train_*.bin"], "val": ["tiny/val_*.bin"]},
    "batch": {"sequence_length": 64, "microbatch_tokens": 256, "tokens_per_step": 256},
    "optimizers": {
        "groups": [{"type": "muon", "params": ["blocks.*.weight"], "lr": 0.02}, {"type": "adamw", "params": ["*"], "lr": 0.01}]
    },
    "schedule": {"steps": 24},
    "eval": {"every": 8},
    "checkpoint": {"last": False},
    "record": {"target_loss": 4.0},
}


def require(*modules: str, requirements: str = "scripts/requirements.txt") -> None:
    """Skips the test if a package is missing."""
    for module in modules:
        try:
            __import__(module)
        except ImportError:
            print(f"skipped: {sys.executable} has no {module} ({requirements}; REPORT_PYTHON names another Python)")
            sys.exit(77)


class WorkTest(unittest.TestCase):
    """Tests in a temporary folder `work`, filled by set_up()."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.work = Path(cls.temporary.name)
        cls.set_up()

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def set_up(cls):
        pass

    def ended(self, done: subprocess.CompletedProcess, code: int = 0, words: str = ""):
        """The program ended with this code and these words in its errors."""
        self.assertEqual((done.returncode, words in done.stderr), (code, True), done.stderr)


def ran(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)


def speedrun(binary: str, *arguments: str, folder: Path, launcher: str = "") -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = ran(*shlex.split(launcher), binary, *arguments, cwd=folder, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"speedrun {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def prepare(binary: str, folder: Path) -> None:
    lines = []
    for i in range(400):
        lines.append(f"chapter {i}: the quick brown fox jumps over the lazy dog, and over {i} more.")
        if i % 4 == 3:
            lines.append("%%")
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tiny.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    options = "--input text.txt --out tiny --document-marker %% --val-every 10".split()
    speedrun(binary, "prepare", *options, folder=folder)


def train(binary: str, folder: Path, name: str, seed: int, *settings: str, launcher: str = "", trace: str = "") -> Path:
    options = ["--name", name, "--seed", str(seed)] + [word for setting in settings for word in ("--set", setting)]
    options += ["--trace", trace] if trace else []
    speedrun(binary, "train", "tiny.json", "--quiet", *options, folder=folder, launcher=launcher)
    return folder / "logs" / name


def make_runs(binary: str, folder: Path, mpiexec: str = "") -> Path:
    """folder/logs: two configs with two seeds each and, with MPI, one run of two ranks with a trace."""
    prepare(binary, folder)
    for seed in (1, 2):
        train(binary, folder, f"narrow-s{seed}", seed)
        train(binary, folder, f"wide-s{seed}", seed, "model.model_dim=64", "schedule.steps=32")
    if mpiexec:
        launcher = f"{mpiexec} --oversubscribe --bind-to none -np 2"
        settings = ("parallel.strategy=zero1", "batch.microbatch_tokens=128")
        train(binary, folder, "sharded", 1, *settings, trace="10:13", launcher=launcher)
    return folder / "logs"


def copy_run(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.parent / name))


def without_loss(run: Path, name: str) -> Path:
    """A copy of the run in which the loss of step 3 was not finite."""
    copy = copy_run(run, name)
    text = (copy / "metrics.jsonl").read_text()
    (copy / "metrics.jsonl").write_text(re.sub(r'("step":3,"loss":)[^,]*', r"\1null", text, count=1))
    return copy


def make_record(track: Path, name: str, candidates: list[Path], baselines: list[Path], before: str | None = None) -> Path:
    """A record folder in the layout of train/records/record_json.cpp. Its statistics are made up, as they are only
    displayed."""
    folder = track / f"2026-01-02_{name}"
    folder.mkdir(parents=True)
    entries = []
    for side, runs in (("candidate", candidates), ("baseline", baselines)):
        for run in runs:
            config, summary = (json.loads((run / f"{file}.json").read_text()) for file in ("config", "summary"))
            data = gzip.compress((run / "metrics.jsonl").read_bytes(), mtime=0)
            file = f"{side}-seed{config['seed']}.jsonl.gz"
            (folder / file).write_bytes(data)
            entries.append(
                {
                    "side": side,
                    "order": len(entries),
                    "seed": config["seed"],
                    "status": "done",
                    "loss": summary["val_loss"],
                    "train_ms": summary["train_ms"],
                    "startup_ms": summary["startup_ms"],
                    "steps": summary["steps"],
                    "began_utc": "2026-01-02T03:04:05Z",
                    "metrics": {"file": file, "sha256": hashlib.sha256(data).hexdigest(), "every": 1},
                    "validations": [],
                }
            )
    moments = {"count": 2, "mean": 3000.0, "std": 20.0}
    side = {"runs": 2, "failed": 0, "loss": moments | {"mean": 1.5, "std": 0.01}, "train_ms": moments}
    environment = json.loads((candidates[0] / "environment.json").read_text())
    record = {
        "schema": 1,
        "name": name,
        "track": track.name,
        "date": "2026-01-02",
        "what": f"what {name} changes",
        "systems_only": False,
        "record_before": before or "",
        "target_loss": 4.0,
        "git_sha": "0" * 40,
        "dirty": True,
        "binary_sha256": "1" * 64,
        "statistics": {
            "candidate": side,
            "baseline": side if baselines else None,
            "loss_below_target": {"t": -9.0, "df": 1.0, "p": 0.0042},
            "time_below_baseline": {"t": -9.0, "df": 1.9, "p": 1e-9} if baselines else None,
            "loss_within_margin": None,
            "speedup": 1.25 if baselines else None,
        },
        "verdict": {
            "is_record": False,
            "rules": [{"rule": "data", "met": True, "why": ""}, {"rule": "build", "met": False, "why": "dirty"}],
        },
        "runs": entries,
        "interrupted": [{"side": "candidate", "seed": 9, "steps": 3}],
        "baseline": {
            "name": "the one before",
            "record": before,
            "config": json.loads((baselines[0] / "config.json").read_text()),
        }
        if baselines
        else None,
        "changes": [],
        "hardware": {key: environment[key] for key in ("host", "os", "ranks", "memory_bytes", "cpu")} | {"gpus": []},
        "build": environment["build"],
        "data": [],
        "config": json.loads((candidates[0] / "config.json").read_text()),
    }
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    (track / "track.json").write_text(json.dumps({"name": track.name, "description": "A track for tests."}), encoding="utf-8")
    return folder
