"""Common parts of the scripts' command lines."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from speedrun_report.runs import DataError, UsageError


def parser_of(description: str, epilog: str) -> argparse.ArgumentParser:
    """Returns the parser of a script that reads runs, with their folders as arguments."""
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="a run (logs/NAME), a folder of runs (logs), a track (records/NAME) or one of its records",
    )
    return parser


@contextlib.contextmanager
def writing(out: Path, requirements: str) -> Iterator[None]:
    """Reports a missing package, or a file that cannot be written, as bad usage."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{error}: install the packages of {requirements}") from None
    except OSError as error:
        raise UsageError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from None


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
