"""Scalars of a run for other programs' loggers: tag, step, time and value."""

import datetime
import math
import re

from .runs import Run


def scalars_of(line: dict) -> dict[str, float]:
    """Returns tag and value of all numbers in a line of metrics.jsonl."""
    prefix = "train" if line["event"] == "step" else "val"
    scalars = {}
    for key, value in line.items():
        if key in ("event", "step"):
            continue
        for inner, number in value.items() if isinstance(value, dict) else [("", value)]:
            tag = f"{prefix}/{key}/{inner}" if inner else f"{prefix}/{key}"
            if number is None and key == "loss":
                scalars[tag] = math.nan
            elif isinstance(number, (int, float)) and not isinstance(number, bool):
                scalars[tag] = float(number)
    return scalars


def start_of(run: Run) -> float:
    """Returns the start of training in seconds since 1970; 0 if unknown."""
    try:
        began = datetime.datetime.fromisoformat(run.environment["time_utc"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return 0.0
    return began + (run.summary or {}).get("startup_ms", 0.0) / 1e3


def events_of(run: Run) -> list[tuple[float, int, dict[str, float]]]:
    """Returns wall time in seconds, step and scalars, in training order."""
    start = start_of(run)
    # The validation of step n is after the line of step n - 1 and before the line of step n.
    lines = sorted(run.steps + run.validations, key=lambda line: (line["step"], line["event"] == "step"))
    return [(start + line["train_ms"] / 1e3, line["step"], scalars_of(line)) for line in lines]


def names_of(run: Run) -> list[str]:
    """Returns the run's name; for a record's run, the record's folder and the run in it. Each is a valid file name."""
    parts = [run.name] if run.place is None else [run.place.folder, f"{run.place.side}-seed{run.seed}"]
    return [re.sub(r"[^\w.+=-]", "_", part) for part in parts]
