"""What speedrun declares of its metrics (train/runlog/metrics.h): keys, units, titles and meanings."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

_SCALES = {("ms", "s"): 1e3, ("ms", "min"): 60e3, ("ms", "h"): 3600e3}


@dataclass(frozen=True)
class Field:
    """A key of metrics.jsonl or summary.json."""

    key: str
    unit: str
    title: str
    meaning: str

    def heading(self, unit: str | None = None) -> str:
        """Title with the unit, or with another one that the values are shown in."""
        shown = self.unit if unit is None else unit
        return self.title if shown in ("", self.title) else f"{self.title} [{shown}]"

    def scale(self, unit: str) -> float:
        """What a value is divided by to be in this unit."""
        return _SCALES[self.unit, unit]


def _read(kind: str) -> dict[str, Field]:
    """Reads the output of `speedrun plan --metrics`, which a build of the program writes."""
    path = Path(__file__).with_name("metric_fields.json")
    if not path.is_file():
        sys.exit(f"error: {path} is missing: build the program, or run: speedrun plan --metrics >{path}")
    declared = json.loads(path.read_text(encoding="utf-8"))
    return {one["key"]: Field(one["key"], one["unit"], one["title"], one["meaning"]) for one in declared[kind]}


STEP, VALIDATION, SUMMARY = _read("step"), _read("val"), _read("summary")
