#!/usr/bin/env python3
"""Writes metrics of runs as TensorBoard events. Packages: scripts/requirements.txt."""

import argparse
import sys
from pathlib import Path

from speedrun_report.command import exit_code_of, parser_of, writing
from speedrun_report.runs import Run, UsageError
from speedrun_report.scalars import events_of, names_of
from speedrun_report.tracks import collect

DESCRIPTION = """\
Writes every number of metrics.jsonl as a scalar: train/KEY of steps (train/loss, train/step_ms, train/bytes/all_gather ...),
val/KEY of validations. TensorBoard's scalars are 32-bit floats. The time of an event is the run's start plus start-up plus
training time, so that "Relative" is the training time. A non-finite loss is written as NaN."""

EPILOG = """\
A damaged run is reported in a warning and skipped.
Exit codes: 0 written; 2 bad usage; 3 no run could be read.

  scripts/to_tensorboard.py logs/* --out tensorboard && tensorboard --logdir tensorboard"""


def write_run(run: Run, folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    try:
        for wall_time, step, scalars in events_of(run):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.add_event(Event(wall_time=wall_time, step=step, summary=Summary(value=values)))
    finally:
        writer.close()


def convert(arguments: argparse.Namespace) -> None:
    collection = collect(arguments.folders)
    folders: dict[Path, Run] = {}
    for run in collection.runs:
        folder = arguments.out.joinpath(*names_of(run))
        if folder in folders:
            raise UsageError(f"{run.path} and {folders[folder].path} would both go to {folder}: convert them apart")
        if folder.exists():  # TensorBoard would show both sets of lines in one chart
            raise UsageError(f"{folder} exists and is not overwritten: remove it, or name another --out")
        folders[folder] = run
    with writing(arguments.out, "scripts/requirements.txt"):
        for folder, run in folders.items():
            write_run(run, folder)
    for problem in collection.problems:
        print(f"warning: {problem}", file=sys.stderr)
    print(f"{len(folders)} runs in {arguments.out}; tensorboard --logdir {arguments.out}")


def main() -> int:
    parser = parser_of(DESCRIPTION, EPILOG)
    parser.add_argument(
        "--out", type=Path, default=Path("tensorboard"), metavar="DIR", help="gets one folder per run (default: %(default)s)"
    )
    return exit_code_of(lambda: convert(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
