#!/usr/bin/env python3
"""Cost of asynchronous checkpoints: how much longer a run's steps were while a checkpoint was written."""

import argparse
import json
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

EPILOG = """\
A save begins with the step that takes the snapshot and ends when run.log reports that it is on disk. Its cost is the time of
its steps minus the same number of steps at the mean of the steps before and after it, up to the adjacent saves. It includes
the copy, waits, and the writer's share of the cores. A shared machine varies less over short times than between runs, so save
often, with long intervals between the saves.

  speedrun train configs/kjv.json --name cost --set checkpoint.every=80 --set schedule.steps=1600 --set checkpoint.last=false
  scripts/checkpoint_cost.py logs/cost"""

SAVED = re.compile(r"step-(\d+): ([\d.]+) MB from \d+ rank\(s\) on the disk after ([\d.]+) ms; this rank's took ([\d.]+) ms")


@dataclass
class Save:
    first: int  # first step that includes the snapshot
    end: int  # first step without any part of the save
    megabytes: float
    disk_ms: float
    core_ms: float


def read_steps(folder: Path) -> list[float]:
    events = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [event["step_ms"] for event in events if event.get("event") == "step"]


def read_saves(folder: Path, step_ms: list[float]) -> list[Save]:
    saves = []
    for step, *figures in SAVED.findall((folder / "run.log").read_text()):
        megabytes, disk_ms, core_ms = map(float, figures)
        first = end = int(step)
        passed = 0.0
        while end < len(step_ms) and passed < disk_ms:
            passed += step_ms[end]
            end += 1
        if passed >= disk_ms:  # otherwise the run ended first, and waited for the save
            saves.append(Save(first, end, megabytes, disk_ms, core_ms))
    return saves


def costs(step_ms: list[float], saves: list[Save], first: int) -> list[float]:
    """Returns the cost in ms of each save with steps on both sides; `first`: the first step that counts."""
    result = []
    for i, save in enumerate(saves):
        before = step_ms[saves[i - 1].end if i > 0 else first : save.first]
        after = step_ms[save.end : saves[i + 1].first if i + 1 < len(saves) else len(step_ms)]
        if before and after:
            usual = (statistics.fmean(before) + statistics.fmean(after)) / 2
            result.append(sum(step_ms[save.first : save.end]) - usual * (save.end - save.first))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run with checkpoint.every")
    parser.add_argument("--interval", type=float, default=30, metavar="SECONDS", help="between saves, of which to say the share (30)")
    parser.add_argument("--first", type=int, default=5, metavar="STEP", help="steps before this one do not count (5)")
    options = parser.parse_args()
    try:
        step_ms = read_steps(options.run)
        saves = read_saves(options.run, step_ms)
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {options.run} is not the folder of a run: {error}", file=sys.stderr)
        return 3
    cost = costs(step_ms, saves, options.first)
    if len(cost) < 2:
        print(f"error: {options.run}: {len(cost)} saves have other steps on both sides, 2 are needed; save more or less often", file=sys.stderr)
        return 3
    mean, error = statistics.fmean(cost), statistics.stdev(cost) / len(cost) ** 0.5
    median = statistics.median
    print(f"{len(cost)} saves of {median(s.megabytes for s in saves):.0f} MB, on the disk after {median(s.disk_ms for s in saves):.0f} ms, "
          f"{median(s.core_ms for s in saves):.0f} ms of a core (medians)")
    print(f"steps (median {median(step_ms):.1f} ms) took {mean:.0f} ms longer for a save, standard error {error:.0f} ms")
    print(f"saving every {options.interval:g} s: {mean / options.interval / 10:.2f}% +- {error / options.interval / 10:.2f}% of the time of steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
