#!/usr/bin/env python3
"""Converts HellaSwag's published lines to items for `speedrun eval --multiple-choice`. Needs no packages."""

import argparse
import json
import sys
from pathlib import Path

DESCRIPTION = """\
Reads lines with ctx, endings and label (hellaswag_val.jsonl of HellaSwag's authors) and writes lines with context, endings and label.
Inserts a space before every ending, so that context and ending form one text. Lines of the test split have no label and are
refused."""

EPILOG = """\
Exit codes: 0 written; 2 bad usage; 3 a bad line, reported by its number; nothing is written.

  scripts/hellaswag_to_jsonl.py hellaswag_val.jsonl hellaswag.jsonl"""


class LineError(Exception):
    """An error in a line."""


def item_of(line: str) -> dict:
    try:
        source = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"no valid JSON: {error}") from None
    if not isinstance(source, dict):
        raise LineError(f"a JSON object is expected, this is a {type(source).__name__}")
    for key in ("ctx", "endings", "label"):
        if key not in source:
            raise LineError(f'no "{key}"')
    context, endings, label = source["ctx"], source["endings"], source["label"]
    if not isinstance(context, str):
        raise LineError(f"ctx: text is expected, found {str(context)[:40]!r}")
    if not isinstance(endings, list) or len(endings) < 2 or not all(isinstance(e, str) and e for e in endings):
        raise LineError("endings: a list of two texts or more is expected")
    try:
        index = int(label)  # text in some copies
    except (TypeError, ValueError):
        raise LineError(f"label: a number is expected, found {str(label)[:40]!r}") from None
    if isinstance(label, float) or not 0 <= index < len(endings):
        raise LineError(f"label: {label}, there are {len(endings)} endings, counted from 0")
    return {"context": context, "endings": [" " + ending for ending in endings], "label": index}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="HELLASWAG.jsonl")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    arguments = parser.parse_args()
    items = []
    try:
        for number, line in enumerate(arguments.source.read_text(encoding="utf-8").split("\n"), 1):
            if line.strip():
                try:
                    items.append(item_of(line))
                except LineError as error:
                    print(f"error: {arguments.source}:{number}: {error}", file=sys.stderr)
                    return 3
        if not items:
            print(f"error: {arguments.source}: no item in it", file=sys.stderr)
            return 3
        if arguments.out.exists():
            print(f"error: {arguments.out} exists and is not overwritten: remove it, or name another file", file=sys.stderr)
            return 2
        arguments.out.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    except UnicodeDecodeError as error:
        print(f"error: {arguments.source}: no UTF-8: {error.reason}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{len(items)} items in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
