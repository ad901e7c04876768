#!/usr/bin/env python3
"""scripts/checkpoint_cost.py on a run folder with made-up steps and saves. Usage: checkpoint_cost_test.py"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "checkpoint_cost.py"


def run(folder, *options):
    return subprocess.run([sys.executable, SCRIPT, folder, *options], capture_output=True, text=True, check=False)


def write(folder, step_ms, saved):
    lines = [json.dumps({"event": "step", "step": i, "step_ms": ms}) for i, ms in enumerate(step_ms)]
    lines.insert(3, json.dumps({"event": "val", "step": 3, "loss": 2.0}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    text = "step-{:08}: 990.0 MB from 1 rank(s) on the disk after 350.0 ms; this rank's took 40.0 ms of a core\n"
    (folder / "run.log").write_text("".join("2026-11-26 23:10:04.327 " + text.format(step) for step in saved))


def check(what, holds, done):
    if not holds:
        sys.exit(f"{what}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    # Steps take 100 ms, and from the second save on 120; a save's three steps take 50, 20 and 20 ms longer. The first steps are
    # not counted.
    steps = [900.0] * 5 + [100.0] * 15
    for usual in (100.0, 120.0, 120.0):
        steps += [usual + 50, usual + 20, usual + 20] + [usual] * 17
    write(folder, steps, [20, 40, 60, 80])  # the last one completed when no step was left
    done = run(folder)
    check("costs", done.returncode == 0 and "3 saves of 990 MB, on the disk after 350 ms, 40 ms of a core" in done.stdout, done)
    # Steps take 100 ms before the second save and 120 after it: the usual step is 110, and the save took 90 + 30.
    check("mean", "took 100 ms longer for a save, standard error 10 ms" in done.stdout, done)
    check("share", "saving every 30 s: 0.33% +- 0.03% of the time of steps" in done.stdout, done)
    done = run(folder, "--interval", "10")
    check("interval", "saving every 10 s: 1.00% +- 0.10%" in done.stdout, done)
    write(folder, steps, [20])
    done = run(folder)
    check("too few", done.returncode == 3 and "1 saves have other steps on both sides, 2 are needed" in done.stderr, done)
    done = run(folder / "absent")
    check("no run", done.returncode == 3 and "is not the folder of a run" in done.stderr, done)
