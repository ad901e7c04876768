"""Parts of the command lines that the scripts have in common."""

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
    """Runs the command. Returns 0, or after an error, which is printed, 2 for bad usage and 3 for bad data."""
    try:
        command()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0
