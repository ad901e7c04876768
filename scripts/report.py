#!/usr/bin/env python3
"""One HTML page, and pictures, from runs of speedrun. Packages: scripts/requirements.txt."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from speedrun_report.command import exit_code_of, parser_of
from speedrun_report.runs import UsageError
from speedrun_report.tracks import collect

ROOT = Path(__file__).resolve().parent.parent

DESCRIPTION = """\
Compares runs: leaderboard, loss against training time and against tokens, step times, where the time went, overlap of
communication, differences between the configs, environment. The page opens offline and sends no requests.
Runs that differ only in their seed are one config, in one colour, with their mean."""

EPILOG = """\
A damaged run is listed on the page and in a warning; the report contains the others.
Exit codes: 0 written; 2 bad usage, or an unsupported folder; 3 no run could be read.

  scripts/report.py logs/* --out report.html
  scripts/report.py records/kjv --title "King James track" --svg records/kjv"""


def parse() -> argparse.Namespace:
    parser = parser_of(DESCRIPTION, EPILOG)
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page, overwritten (default: %(default)s)"
    )
    parser.add_argument("--title", help="heading of page and pictures (default: of the track, or speedrun report)")
    parser.add_argument("--png", type=Path, metavar="DIR", help="also DIR/loss_time.png and DIR/loss_tokens.png")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="the same two as SVG, each below 200 kB")
    parser.add_argument(
        "--speedrun",
        type=Path,
        metavar="FILE",
        help="binary that measures overlap in runs' trace.json and knows the classes of records (default: build/release/speedrun, if there)",
    )
    return parser.parse_args()


def binary_of(arguments: argparse.Namespace) -> Path | None:
    if arguments.speedrun is not None:
        if not arguments.speedrun.is_file():
            raise UsageError(f"--speedrun {arguments.speedrun}: no such file")
        return arguments.speedrun.resolve()
    built = ROOT / "build" / "release" / "speedrun"
    return built if built.is_file() else None


def boards_of(folders: list[Path], binary: Path | None) -> dict[str, list[str]]:
    """Returns the boards of open classes with a target, in the track's order, with their folders of records. A class with
    records of several hardware classes has a board for each. Empty without the program, and unless all folders are tracks."""
    if binary is None or not all((folder / "track.json").exists() for folder in folders):
        return {}
    boards: dict[str, list[str]] = {}
    for folder in folders:
        done = subprocess.run([binary, "records", "list", folder, "--json"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"warning: no classes of {folder}: {done.stderr.strip()}", file=sys.stderr)
            return {}
        records = json.loads(done.stdout)
        for name in drawn_classes(folder):
            of_class = [record for record in records if name in record.get("classes", [])]
            hardware = list(dict.fromkeys(record["hardware_class"] for record in of_class))
            for level in hardware:
                board = f"{name}, {level}" if len(hardware) > 1 else name
                boards[board] = [record["folder"] for record in of_class if record["hardware_class"] == level]
    return boards


def drawn_classes(track: Path) -> list[str]:
    """Returns the names of the open classes with a target, in the track's order."""
    classes = json.loads((track / "track.json").read_text()).get("classes", [{"name": "open"}])
    left_out = ("ended", "budget_s", "budget_tokens")
    return [c["name"] for c in classes if not any(key in c for key in left_out)]


def run(arguments: argparse.Namespace) -> None:
    binary = binary_of(arguments)
    collection = collect(arguments.folders)
    pictured = arguments.png is not None or arguments.svg is not None
    # Imported late, so that usage errors are reported before the slow imports.
    try:
        from speedrun_report.page import write_page

        if pictured:
            from speedrun_report.pictures import write_pictures
    except ImportError as error:
        raise UsageError(f"{error}: install the packages of {ROOT / 'scripts' / 'requirements.txt'}") from None
    boards = boards_of(arguments.folders, binary) if pictured else {}
    title = arguments.title or (f"{collection.track['name']} track" if collection.track else "speedrun report")
    try:
        groups = write_page(collection, title, arguments.out, binary)
        written = [arguments.out]
        for kind, folder in (("png", arguments.png), ("svg", arguments.svg)):
            if folder is not None:
                written += write_pictures(groups, title, folder, [kind], boards)
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from None
    for problem in collection.problems:
        print(f"warning: {problem}", file=sys.stderr)
    print(f"{len(collection.runs)} runs of {len(groups)} configs: {', '.join(map(str, written))}")


def main() -> int:
    return exit_code_of(lambda: run(parse()))


if __name__ == "__main__":
    sys.exit(main())
