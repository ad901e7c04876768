#!/usr/bin/env python3
"""Contribution of each part of a config: compares the whole config with the config without one item, for each item of a
list."""

import argparse
import json
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHOLE = "whole"
TURNS = 6

EPILOG = """\
ITEMS is a JSON list of {"name": "smear", "what": "smear of the input", "set": {"model.input": [...]}}: the keys of
`speedrun plan --options` that remove the item. Runs are in OUT/NAME/seed=N, made by sweep.sh: a repeated call skips finished
runs, continues stopped ones and repeats failed ones. Seeds are the outer loop, so that all items run under similar load of a
shared machine.

The table is Markdown on standard output. Columns: the loss after the last step; its difference from the whole config's, as
the mean over seeds with its standard error; the mean step time; the training time to the target in seconds, "-" if a run did
not reach it. Times are not the runs' own, which depend on the machine's load. `speedrun bench --run` measures every item's
steps, all items six times alternately; the fastest counts. The number of steps to the target is interpolated linearly between
two validations, and averaged over seeds. The machine must be otherwise idle during the measurement.

  scripts/ablation.py configs/kjv_newest.json records/ablation/kjv_newest.json --svg docs/kjv_newest_ablation.svg -- --set record.target_loss=1.25"""


@dataclass
class Item:
    name: str
    what: str
    options: list[str]


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def read_items(path: Path) -> list[Item]:
    try:
        entries = json.loads(path.read_text())
        items = [Item(WHOLE, "nothing", [])]
        for entry in entries:
            options = []
            for key, value in entry["set"].items():
                options += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"]
            items.append(Item(entry["name"], entry["what"], options))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fail(f'{path}: expected a list of {{"name": ..., "what": ..., "set": {{...}}}}: {error!r}')
    names = [item.name for item in items]
    for name in names:
        if names.count(name) > 1 or not name or "/" in name or name.startswith("."):
            fail(f"{path}: the name '{name}' is given twice, is '{WHOLE}', or cannot be a folder's")
    return items


def train(arguments: argparse.Namespace, items: list[Item]) -> bool:
    succeeded = True
    for seed in arguments.seeds:
        for item in items:
            print(f"seed {seed}, without {item.what}", file=sys.stderr, flush=True)
            command = ["sh", str(ROOT / "scripts/sweep.sh"), str(arguments.config), f"seeds={seed}"]
            command += ["--out", str(arguments.out), "--name", item.name, "--jobs", "1"]
            if arguments.speedrun:
                command += ["--speedrun", str(arguments.speedrun)]
            result = subprocess.run(command + ["--"] + arguments.options + item.options, stdout=subprocess.PIPE, text=True)
            if result.returncode in (129, 130, 143):
                raise SystemExit(result.returncode)
            if result.returncode == 2:
                fail(f"sweep.sh refused {item.name}, see above")
            if result.returncode != 0:
                print(result.stdout, file=sys.stderr)
                succeeded = False
    return succeeded


def summaries(folder: Path, seeds: list[int]) -> dict[int, dict]:
    found = {}
    for seed in seeds:
        path = folder / f"seed={seed}" / "summary.json"
        if path.is_file():
            summary = json.loads(path.read_text())
            if summary["status"] == "done" and summary["val_loss"] is not None:
                found[seed] = summary
    return found


def time_steps(arguments: argparse.Namespace, items: list[Item]) -> None:
    program = arguments.speedrun or ROOT / "build/release/speedrun"
    if not Path(program).is_file():
        program = "speedrun"
    for turn in range(TURNS):
        for item in items:
            path = arguments.out / item.name / "times.json"
            times = json.loads(path.read_text()) if path.is_file() else []
            if len(times) > turn:
                continue
            print(f"steps without {item.what}, turn {turn + 1} of {TURNS}", file=sys.stderr, flush=True)
            command = [str(program), "bench", str(arguments.config), "--run", str(arguments.step_seconds), "--json"]
            result = subprocess.run(command + arguments.options + item.options, stdout=subprocess.PIPE, text=True)
            if result.returncode != 0:
                raise SystemExit(result.returncode)
            path.write_text(json.dumps(times + [json.loads(result.stdout)["stages"]]) + "\n")


def steps_to(target: float, run: Path) -> float | None:
    before = None
    for line in (run / "metrics.jsonl").read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # incomplete line, as after a full disk
            print(f"warning: {run / 'metrics.jsonl'}: a damaged line is left out", file=sys.stderr)
            continue
        if not isinstance(event, dict) or event.get("event") != "val" or not isinstance(event.get("loss"), float):
            continue
        if event["loss"] <= target:
            if before is None:
                return event["step"]
            share = (before["loss"] - target) / (before["loss"] - event["loss"])
            return before["step"] + share * (event["step"] - before["step"])
        before = event
    return None


def seconds_of(steps: float, stages: list[dict]) -> float:
    return sum(stage["step_ms"] * max(0, min(steps, stage["end_step"]) - stage["first_step"]) for stage in stages) / 1000


@dataclass
class Row:
    item: Item
    seeds: int
    parameters: int
    loss: float
    difference: float
    error: float  # standard error of the difference; 0 with one seed
    step_ms: float
    seconds: float | None  # to the target


def rows_of(arguments: argparse.Namespace, items: list[Item]) -> list[Row]:
    runs = {item.name: summaries(arguments.out / item.name, arguments.seeds) for item in items}
    rows = []
    for item in items:
        done = {seed: run for seed, run in runs[item.name].items() if seed in runs[WHOLE]}
        if not done:
            continue
        differences = [run["val_loss"] - runs[WHOLE][seed]["val_loss"] for seed, run in done.items()]
        error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
        path = arguments.out / item.name / "times.json"
        turns = json.loads(path.read_text()) if path.is_file() else []
        total = done[min(done)]["steps"]
        reached = [
            steps_to(arguments.target or run["target_loss"], arguments.out / item.name / f"seed={seed}")
            for seed, run in done.items()
        ]
        to_target = None if None in reached else statistics.mean(reached)
        # NaN without times.
        fastest = min(turns, key=lambda stages: seconds_of(total, stages), default=[{"first_step": 0, "end_step": total, "step_ms": math.nan}])
        rows.append(
            Row(
                item,
                len(done),
                next(iter(done.values()))["parameters"],
                statistics.mean(run["val_loss"] for run in done.values()),
                statistics.mean(differences),
                error,
                seconds_of(total, fastest) * 1000 / total,
                None if to_target is None else seconds_of(to_target, fastest),
            )
        )
    return rows


def markdown(rows: list[Row]) -> str:
    lines = ["| without | loss | difference | step | to target | parameters |", "|---|---|---|---|---|---|"]
    for row in rows:
        difference = "" if row.item.name == WHOLE else f"{row.difference:+.4f} ± {row.error:.4f}"
        seconds = "-" if row.seconds is None else f"{row.seconds:.1f} s"
        lines.append(
            f"| {row.item.what} | {row.loss:.4f} | {difference} | {row.step_ms:.1f} ms | {seconds} | {row.parameters:,} |"
        )
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ablation", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    items = sorted((row for row in rows if row.item.name != WHOLE), key=lambda row: row.difference)
    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.24 * len(items)))
    colours = ["#1f77b4" if row.difference > 2 * row.error else "#d62728" if row.difference < -2 * row.error else "#999999" for row in items]
    axes.barh([row.item.what for row in items], [row.difference for row in items], xerr=[row.error for row in items], color=colours, ecolor="#333333", capsize=2)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("loss without it, less that of the whole, nats per token\n(right: it helps; grey: less than two standard errors)")
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def seeds_of(text: str) -> list[int]:
    seeds = [int(seed) for seed in text.split(",")]
    if len(set(seeds)) < len(seeds):
        raise ValueError
    return seeds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        usage="ablation.py CONFIG ITEMS [--seeds 1,2,3] [--target LOSS] [--out DIR] [--svg FILE] [--step-seconds S] [--table-only]"
        " [--speedrun FILE] [-- OPTIONS of speedrun train]",
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("items", type=Path, metavar="ITEMS")
    parser.add_argument("--seeds", type=seeds_of, default=[1, 2, 3], metavar="1,2,3", help="default: 1,2,3")
    parser.add_argument("--target", type=float, metavar="LOSS", help="default: record.target_loss; needs no training again")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: logs/ablation-CONFIG's name)")
    parser.add_argument("--step-seconds", type=float, default=2, metavar="S", help="of each turn that measures an item's steps (default: 2)")
    parser.add_argument("--speedrun", type=Path, metavar="FILE", help="the program (default: as sweep.sh finds it)")
    parser.add_argument("--table-only", action="store_true", help="train nothing: the table of what is there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="a picture of the differences; needs requirements.txt")
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:own])
    arguments.options = words[own + 1 :]
    arguments.out = arguments.out or Path("logs") / f"ablation-{arguments.config.stem}"
    return arguments


def main() -> int:
    arguments = parse()
    if not arguments.config.is_file():
        fail(f"{arguments.config}: no such config")
    items = read_items(arguments.items)
    succeeded = arguments.table_only or train(arguments, items)
    if succeeded and not arguments.table_only:
        time_steps(arguments, items)
    rows = rows_of(arguments, items)
    if not rows or rows[0].item.name != WHOLE:
        fail(f"{arguments.out / WHOLE}: no run of the whole config is done")
    print(markdown(rows))
    if arguments.svg:
        draw(rows, arguments.svg)
    return 0 if succeeded and len(rows) == len(items) and all(row.seeds == len(arguments.seeds) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
