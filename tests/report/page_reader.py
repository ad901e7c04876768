"""Runs scripts/report.py and reads its page."""

import json
import sys
from html.parser import HTMLParser
from pathlib import Path

from made_runs import SCRIPTS, ran


class Page(HTMLParser):
    """Cells of the page's tables by the table's id, text of #notices, charts, and all elements that could load resources."""

    def __init__(self, path: Path):
        super().__init__()
        self.tables, self.loads, self.notices, self.figures = {}, [], "", {}
        self._table, self._inside = None, None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.loads += [known[key] for key in ("src", "href", "action", "srcset") if key in known]
        if tag == "table":
            self._table = self.tables.setdefault(known["id"], [])
        if self._table is not None and tag == "tr":
            self._table.append([])
        if self._table is not None and tag in ("td", "th"):
            self._table[-1].append("")
            self._inside = "cell"
        if tag in ("section", "script") and known.get("id") in ("notices", "figures"):
            self._inside = known["id"]

    def handle_endtag(self, tag):
        if tag == "table":
            self._table = None
        if tag in ("td", "th", "section", "script"):
            self._inside = None

    def handle_data(self, data):
        if self._inside == "cell":
            self._table[-1][-1] += data
        elif self._inside == "notices":
            self.notices += data + "\n"
        elif self._inside == "figures":
            self.figures = json.loads(data)

    def row(self, table: str, first: str) -> list[str]:
        return next(row for row in self.tables[table] if row[0].strip() == first)


def report(*arguments):
    return ran(sys.executable, SCRIPTS / "report.py", *arguments)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def lines_of(run: Path, event: str) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["event"] == event]
