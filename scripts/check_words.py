#!/usr/bin/env python3
"""Measures how plainly comments, messages, help texts and pages are written, by folder.

Usage: check_words.py [--change COMMIT] [--list N] [PATH...]
  PATH       files or folders; default: the repository
  --change   lines added since COMMIT alone
  --list     print at most N findings of each rule (default 20)

Rules, each with its limit by folder. One finding of a rule is below every limit.
  headless   comments and messages that start without a noun ("Of the order", "What a rank sends")      0.5 in 100 texts
  relative   the words what, who, whose, those                                                          2 in 1,000 words
  long       sentences of more than 25 words                                                            5 in 100 texts
  private    words that the field does not use, each with a plain one                                   1 in 1,000 words
A text is a comment, a paragraph or table cell of a page, or a string of at least five words in C++ code. Pages may start a
paragraph with any word.
Exit: 0 every folder is below the limits, 1 a folder exceeds one, 2 bad usage.
"""
import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

CPP, SCRIPT, PAGE = {".h", ".cpp", ".cu", ".cuh"}, {".sh", ".py"}, {".md"}
EXCLUDED = ("records/", "build/")
LONG_SENTENCE = 25
LEAST_WORDS = 5  # of a string that counts as a message
HEADLESS = re.compile(
    r"[^\w{]*(of|what|whatever|who|whoever|whose|which|those|that|by|behind|between|likewise|where|nobody|nothing that|not of|"
    r"one of|as place|the same|so (has|is|does))\b", re.I)
RELATIVE = re.compile(r"\b(what|whatever|who|whoever|whose|those)\b", re.I)
PRIVATE = {
    r"behind (it|them|that|the|which|each|all|backward|forward)": "after",
    r"beside (it|them|the|others|computing|backward|forward)": "overlapped with, next to",
    "at hand": "current", "from here on": "from now on", "all the same": "anyway", "can be had": "is available",
    "is to be": "must be, will be", "goes? by": "uses", "is told": "is notified", "likewise": "as above", "hands? on": "passes",
    "in turns": "alternating", "(so|as|that) many": "n", "at once": "together, immediately", "(lies|stands) in": "is in",
    "whoever": "the user, any rank", "(has to be|is) mended": "is fixed", "passengers?": "piggybacked values",
    "lodg(er|ing)s?": "buffer assignment", "nothing but": "only",
}
PRIVATE = [(re.compile(rf"\b{words}\b", re.I), plain) for words, plain in PRIVATE.items()]
LIMITS = {"headless": ("texts", 0.005), "relative": ("words", 0.002), "long": ("texts", 0.05), "private": ("words", 0.001)}


def blocks_of_comments(comments):
    """Joins comments on adjacent lines. Takes and yields (line, text)."""
    first, last, parts = 0, -1, []
    for line, text in comments:
        if line != last + 1 and parts:
            yield first, " ".join(parts)
            parts = []
        if not parts:
            first = line
        parts.append(text)
        last = line
    if parts:
        yield first, " ".join(parts)


CPP_TOKEN = re.compile(r'R"\((?P<raw>.*?)\)"|"(?P<string>(?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\\n]|\\.)+\'|//(?P<comment>[^\n]*)', re.S)


def texts_of_cpp(source):
    whole, trailing, strings = [], [], []
    for token in CPP_TOKEN.finditer(source):
        line = source.count("\n", 0, token.start()) + 1
        if token["comment"] is not None:
            before = source[source.rfind("\n", 0, token.start()) + 1:token.start()]
            (trailing if before.strip() else whole).append((line, token["comment"].strip("/ ")))
        elif token["string"] and len(token["string"].split()) >= LEAST_WORDS:
            strings.append((line, token["string"]))
    yield from blocks_of_comments(whole)
    yield from trailing
    yield from strings


def texts_of_script(source, is_python):
    lines = source.splitlines()
    yield from blocks_of_comments((n, line.strip(" \t#")) for n, line in enumerate(lines, 1)
                                  if line.lstrip().startswith("#") and not line.startswith("#!"))
    if not is_python:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and token.string.startswith('"""') and token.line.lstrip().startswith('"""'):
            for paragraph in re.split(r"\n\s*\n", token.string.strip('"')):
                if not re.search(r"\n {2,}\S+ {2,}", paragraph):  # a table or usage
                    yield token.start[0], " ".join(paragraph.split())


def texts_of_page(source):
    paragraph, first, in_code = [], 0, False
    for number, line in enumerate(source.splitlines() + [""], 1):
        if line.startswith("```"):
            in_code, line = not in_code, ""
        if in_code:
            continue
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in line.strip("|").split("|") if len(cell.split()) > 2)
        elif line.strip() and not line.startswith("#"):
            first = first if paragraph else number
            paragraph.append(line.strip())
        elif paragraph:
            yield first, " ".join(paragraph)
            paragraph = []


def texts_of(path, source):
    if path.suffix in CPP:
        return texts_of_cpp(source)
    return texts_of_page(source) if path.suffix in PAGE else texts_of_script(source, path.suffix == ".py")


def findings_of(text, is_page):
    """Yields (rule, reason, excerpt)."""
    if not is_page and HEADLESS.match(text):
        yield "headless", "starts without a noun", text
    for match in RELATIVE.finditer(text):
        yield "relative", f'"{match[0]}"', text
    for sentence in re.split(r"(?<=[.;:?!])\s+", text):
        if len(sentence.split()) > LONG_SENTENCE:
            yield "long", f"{len(sentence.split())} words", sentence
    for words, plain in PRIVATE:
        for match in words.finditer(text):
            yield "private", f'"{match[0]}": {plain}', text


def git(*arguments):
    result = subprocess.run(["git", *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"error: git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout


def added_lines(commit):
    """Returns the numbers of the lines that were added since a commit, by file."""
    added, path, number = defaultdict(set), "", 0
    for line in git("diff", "--relative", "-U0", commit).splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)", line):
            number = int(hunk[1])
        elif line.startswith("+"):
            added[path].add(number)
            number += 1
    return added


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("Usage: ")[1].split("\n")[0], description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--change", metavar="COMMIT")
    parser.add_argument("--list", type=int, default=20, metavar="N")
    options = parser.parse_args()
    for path in options.paths:
        if not Path(path).exists():
            parser.error(f"{path}: no such file or folder")
    added = added_lines(options.change) if options.change else None
    counts, found = defaultdict(lambda: defaultdict(int)), defaultdict(list)
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", *options.paths).splitlines()
    for name in sorted(set(listed) if added is None else set(listed) & set(added)):
        path = Path(name)
        if path.suffix not in CPP | SCRIPT | PAGE or name.startswith(EXCLUDED) or not path.exists():
            continue
        count = counts[path.parent.as_posix()]
        for line, text in texts_of(path, path.read_text(encoding="utf-8", errors="replace")):
            if added is not None and line not in added[name]:
                continue
            count["texts"] += 1
            count["words"] += len(text.split())
            for rule, reason, excerpt in findings_of(text, path.suffix in PAGE):
                count[rule] += 1
                found[rule].append(f"{name}:{line}: {rule}: {reason}: {excerpt[:140]}")
    over = False
    print(f"{'folder':28}{'texts':>7}{'words':>8}" + "".join(f"{rule:>10}" for rule in LIMITS))
    for folder, count in sorted(counts.items()):
        cells = []
        for rule, (unit, limit) in LIMITS.items():
            exceeds = count[rule] > 1 and count[rule] > limit * count[unit]
            over = over or exceeds
            cells.append(f"{count[rule]}{' !' if exceeds else '  '}")
        if count["texts"]:
            print(f"{folder:28}{count['texts']:7}{count['words']:8}" + "".join(f"{cell:>10}" for cell in cells))
    for rule in LIMITS:
        for finding in found[rule][:options.list]:
            print(finding)
    if over:
        print("error: a folder exceeds a limit, marked with !; see check_words.py --help", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
