"""Common parts of the scripts' command lines."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from speedrun_report.runs import DataError, UsageError


def add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="a run (logs/NAME), a folder of runs (logs), a track (records/NAME) or one of its records",
    )


def exit_code_of(command: Callable[[], None]) -> int:
    """Runs the command. Returns 0, 2 for bad usage or 3 for bad data; prints the error."""
    try:
        command()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0
