#!/usr/bin/env python3
"""Writes metrics of runs as offline runs of Weights & Biases. Packages: scripts/requirements_wandb.txt."""

import argparse
import hashlib
import os
import sys
from pathlib import Path

from speedrun_report.command import exit_code_of, parser_of, writing
from speedrun_report.runs import Run, UsageError
from speedrun_report.scalars import events_of, names_of
from speedrun_report.tracks import collect

DESCRIPTION = """\
Writes every number of metrics.jsonl under the keys that to_tensorboard.py uses: train/KEY of steps, val/KEY of validations, by step.
config.json becomes the run's config, summary.json its summary under "speedrun". _timestamp is the run's start plus start-up plus
training time. Nothing is uploaded without `wandb sync DIR/wandb/offline-run-*`. A run's id is derived from its folder's name
and its metrics, so that a repeated upload makes no second run. A non-finite loss is written as NaN."""

EPILOG = """\
A damaged run is reported in a warning and skipped.
Exit codes: 0 written; 2 bad usage; 3 no run could be read.

  scripts/to_wandb.py logs/* --project kjv && wandb sync wandb_runs/wandb/offline-run-*"""


def id_of(run: Run) -> str:
    digest = hashlib.sha256("/".join(names_of(run)).encode())
    for _, step, scalars in events_of(run):
        digest.update(repr((step, sorted(scalars.items()))).encode())
    return digest.hexdigest()[:16]


def write_run(wandb, run: Run, identity: str, arguments: argparse.Namespace) -> None:
    # Only contents of the run's folder: nothing about the machine, the program or the repository of the conversion.
    disabled = ("disable_git", "disable_code", "x_disable_stats", "x_disable_meta", "x_disable_machine_info")
    settings = wandb.Settings(
        silent=True, console="off", host=str(run.environment.get("host", "")), x_save_requirements=False, **dict.fromkeys(disabled, True)
    )
    names = names_of(run)
    logged = wandb.init(
        project=arguments.project,
        name="/".join(names),
        group=names[0] if len(names) > 1 else None,
        id=identity,
        mode="offline",
        dir=str(arguments.out),
        config=run.config,
        settings=settings,
    )
    for wall_time, step, scalars in events_of(run):
        logged.log(scalars | {"_timestamp": wall_time}, step=step)
    if run.summary:
        logged.summary.update({"speedrun": run.summary})
    logged.finish()


def package():
    """Returns wandb with its own reporting disabled."""
    os.environ.update({"WANDB_ERROR_REPORTING": "false", "WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    import wandb

    return wandb


def convert(arguments: argparse.Namespace) -> None:
    collection = collect(arguments.folders)
    runs: dict[str, Run] = {}
    for run in collection.runs:
        identity = id_of(run)
        if identity in runs:
            raise UsageError(f"{run.path} and {runs[identity].path} are the same run: convert one of them")
        for there in arguments.out.glob(f"wandb/offline-run-*-{identity}"):
            raise UsageError(f"{run.path} is in {there} already: remove that, or name another --out")
        runs[identity] = run
    with writing(arguments.out, "scripts/requirements_wandb.txt"):
        wandb = package()
        arguments.out.mkdir(parents=True, exist_ok=True)  # otherwise wandb writes to the system's temporary folder
        try:
            for identity, run in runs.items():
                write_run(wandb, run, identity, arguments)
        except wandb.Error as error:
            raise UsageError(f"{arguments.out}: wandb: {str(error).splitlines()[0]}") from None
    for problem in collection.problems:
        print(f"warning: {problem}", file=sys.stderr)
    print(f"{len(runs)} runs in {arguments.out}/wandb; wandb sync {arguments.out}/wandb/offline-run-*")


def main() -> int:
    parser = parser_of(DESCRIPTION, EPILOG)
    parser.add_argument("--project", default="speedrun", help="that the runs are uploaded to (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("wandb_runs"), metavar="DIR", help="gets wandb/offline-run-* (default: %(default)s)"
    )
    return exit_code_of(lambda: convert(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
