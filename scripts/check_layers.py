#!/usr/bin/env python3
"""Checks the tree against ARCHITECTURE.md: a folder may include only folders listed below it.

Usage: check_layers.py [ROOT]      (default: the repository of this script)

Reports every instance of
- an #include of a folder further up, of an unlisted folder, or of tests/ (this excludes cycles, as the list is ordered);
- JSON parsed outside data/json_text.cpp, which limits depth, size and keys;
- a source or script of more than 400 lines;
- a source of train/, kernels/ or data/ without a test of its stem that no test lists in "Covers: PATTERN..." (paths from
  the root, * for any part of a name); a pattern without such a source.
Exit: 0 no findings, 1 findings, 2 bad usage.
"""
import fnmatch
import re
import sys
from pathlib import Path

LAYERED = ("train", "kernels", "data")
CODE = (".cpp", ".h", ".cu", ".cuh")
MOST_LINES = 400
JSON_READER = "data/json_text.cpp"
COVERS = re.compile(r"^(?://|#) Covers: (.*)")


def layers(root):
    """Returns the layers of the first block of ARCHITECTURE.md, top first: folders and patterns of files, joined by commas."""
    block = (root / "ARCHITECTURE.md").read_text().split("```")[1]
    return [line.split()[0] for line in block.splitlines() if line[:1].strip()]


def layer_of(path, order):
    """Returns the index of the layer that contains a path; None: no layer."""
    patterns = [(pattern, i) for i, layer in enumerate(order) for pattern in layer.split(",")]
    inside = [(len(p), i) for p, i in patterns if (path.startswith(p) if p.endswith("/") else fnmatch.fnmatch(path, p))]
    return max(inside, default=(0, None))[1]


def files(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes or path.name == "CMakeLists.txt" and "CMakeLists.txt" in suffixes:
                yield path.relative_to(root).as_posix()


def upward_includes(root):
    order = layers(root)
    for path in files(root, LAYERED, CODE):
        own = layer_of(path, order)
        if own is None:
            yield f"{path}: lies in no layer of ARCHITECTURE.md"
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            included = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not included:
                continue
            other = layer_of(included[1], order)
            if other is None:
                yield f"{path}:{number}: includes {included[1]}, which lies in no layer"
            elif other < own:
                yield f"{path}:{number}: includes {included[1]}, but {order[own]} lies below {order[other]}"


def raw_json(root):
    parses = re.compile(r"\b(\w*[jJ]son)::(parse|accept|sax_parse|from_\w+)\(|>>\s*\w*json\b")
    for path in files(root, (*LAYERED, "examples"), CODE):
        if path == JSON_READER:
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            if parses.search(line.split("//")[0]):
                yield f"{path}:{number}: parses JSON by itself: parse_json() of data/json_text.h has the limits"


def long_files(root):
    folders = (*LAYERED, "tests", "scripts")
    for path in files(root, folders, (*CODE, ".py", ".sh", ".cmake", "CMakeLists.txt")):
        lines = len((root / path).read_text().splitlines())
        if lines > MOST_LINES:
            yield f"{path}: {lines} lines, at most {MOST_LINES}"


def untested_sources(root):
    tests = {path.stem for path in (root / "tests").rglob("*_test.*")}
    rest = [path for path in files(root, LAYERED, (".cpp", ".cu")) if f"{Path(path).stem}_test" not in tests]
    covered = set()
    for test in sorted((root / "tests").rglob("*_test.*")) + sorted((root / "tests").rglob("*_conformance.cpp")):
        if test.suffix not in (*CODE, ".sh", ".py"):
            continue
        for number, line in enumerate(test.read_text().splitlines(), 1):
            found = COVERS.match(line)
            for pattern in found[1].split() if found else ():
                sources = fnmatch.filter(rest, pattern)
                covered.update(sources)
                if not sources:
                    yield f"{test.relative_to(root)}:{number}: covers {pattern}: no source without a test of its own"
    for path in rest:
        if path not in covered:
            yield f"{path}: no test is named {Path(path).stem}_test, and none has it in a line 'Covers:'"


def main(arguments):
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(__doc__, file=sys.stdout if arguments and arguments[0] in ("-h", "--help") else sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    root = Path(arguments[0] if arguments else __file__).resolve()
    root = root if arguments else root.parent.parent
    if not (root / "ARCHITECTURE.md").is_file():
        print(f"error: {root} has no ARCHITECTURE.md: give the root of the repository", file=sys.stderr)
        return 2
    problems = [p for check in (upward_includes, raw_json, long_files, untested_sources) for p in check(root)]
    print("\n".join(problems) or "layers, lengths and tests are as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
