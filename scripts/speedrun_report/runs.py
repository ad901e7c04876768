"""Reads the folder of a run, written by train/runlog/run_folder.h."""

import gzip
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from . import metric_fields

# Numbers that every line needs for drawing; other keys are kept for to_tensorboard.py.
NEEDED = {
    "step": [metric_fields.STEP[key].key for key in ("step", "loss", "step_ms", "train_ms", "tokens")],
    "val": list(metric_fields.VALIDATION),
}


class UsageError(Exception):
    """The requested item does not exist (exit 2)."""


class DataError(Exception):
    """A file is missing or damaged (exit 3); the message names it."""


@dataclass(frozen=True)
class Place:
    """Location of a run in a record."""

    folder: str  # folder of the record
    record: str  # its name
    side: str  # "candidate", or "baseline": its opponent
    config: str  # name of the side's config
    digest: str  # SHA-256 of the metrics file


@dataclass
class Run:
    """One run. Times in ms of training, losses in nats per token; None where a loss was not finite."""

    name: str
    path: Path
    config: dict
    environment: dict
    summary: dict | None  # None: the run has not ended, or was killed
    steps: list[dict]  # the "step" lines of metrics.jsonl
    validations: list[dict]  # "val" lines of metrics.jsonl, each with "tokens" added
    place: Place | None = None  # None: not of a record
    notes: list[str] = field(default_factory=list)

    @property
    def damage(self) -> list[str]:
        return [note for note in self.notes if "damaged lines left out" in note]

    @property
    def status(self) -> str:
        if not self.summary:
            return "unfinished"
        # Older builds report "done" even if the last loss is not a number.
        if self.summary["status"] == "done" and self.validations and self.val_loss is None:
            return "diverged"
        return self.summary["status"]

    @property
    def finished(self) -> bool:
        return self.status == "done"

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def ranks(self) -> int:
        if self.summary and "ranks" in self.summary:
            return self.summary["ranks"]
        return max(1, len(self.environment.get("ranks", [])))

    @property
    def target(self) -> float | None:
        target = self.config.get("record", {}).get("target_loss")
        return target if target else None  # 0: not set

    @property
    def train_ms(self) -> float:
        return max([line["train_ms"] for line in self.steps + self.validations], default=0.0)

    @property
    def val_loss(self) -> float | None:
        return self.validations[-1]["loss"] if self.validations else None

    @property
    def time_to_target_ms(self) -> float | None:
        """Training time at the first validation at or below the target."""
        for line in self.validations:
            if self.target is not None and line["loss"] is not None and line["loss"] <= self.target:
                return line["train_ms"]
        return None

    @property
    def num_steps(self) -> int:
        return self.steps[-1]["step"] + 1 if self.steps else 0

    def total_ms(self, key: str) -> float:
        """Returns a step time summed over all steps; 0 if the run is older than the key. For thinned metrics (records store
        every n-th step of long runs): the mean times the number of steps."""
        if not self.steps:
            return 0.0
        return sum(line.get(metric_fields.STEP[key].key) or 0.0 for line in self.steps) * self.num_steps / len(self.steps)

    def step_ms(self) -> list[float]:
        return [line["step_ms"] for line in self.steps]


def percentile(values: list[float], share: float) -> float:
    """Nearest rank, as StepTimes::percentile of train/runlog/train_clock.cpp."""
    ordered = sorted(values)
    rank = math.ceil(share * len(ordered))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON object is expected, this is a {type(value).__name__}")
    return value


def _bytes_of_metrics(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except OSError as error:  # base class of gzip.BadGzipFile
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError) as error:
        raise DataError(f"{path}: damaged: {error}") from None
    except Exception as error:  # zlib.error has no public base
        raise DataError(f"{path}: damaged: {error}") from None


def _checked(line: object, where: str) -> dict:
    if not isinstance(line, dict) or line.get("event") not in NEEDED:
        raise DataError(f'{where}: an object with "event": "step" or "val" is expected')
    for key in NEEDED[line["event"]]:
        value = line.get(key)
        if value is None and key == "loss" and key in line:  # not finite: JSON has no NaN
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
            raise DataError(f"{where}: {key} is {str(value)[:60]!r}, a number is expected")
    return line


def _parsed(text: bytes, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: no valid JSON: {error}") from None


def read_metrics(path: Path) -> tuple[list[dict], list[dict], list[str]]:
    """Returns steps, validations and notes. Damaged lines are skipped, with a note."""
    steps, validations, notes, damaged = [], [], [], []
    lines = _bytes_of_metrics(path).split(b"\n")
    for number, bytes_of_line in enumerate(lines, 1):
        if not bytes_of_line.strip():
            continue
        where = f"{path}:{number}"
        try:
            line = _checked(_parsed(bytes_of_line, where), where)
        except DataError as error:
            if number == len(lines):  # no newline at the end
                notes.append(f"{path.name}: line {number} was cut short and is left out")
            else:
                damaged.append((number, error))
            continue
        (steps if line["event"] == "step" else validations).append(line)
    if not steps and not validations:
        raise damaged[0][1] if damaged else DataError(f"{path}: no step and no validation in it")
    if damaged:
        notes.append(f"{path}: {len(damaged)} damaged lines left out, the first is line {damaged[0][0]}")
    for lines_of_kind in (steps, validations):
        numbers = [line["step"] for line in lines_of_kind]
        if any(a >= b for a, b in zip(numbers, numbers[1:])):
            raise DataError(f"{path}: its steps do not ascend")
    # A validation at step n follows n steps: it has seen the tokens up to the line of step n - 1.
    tokens = {line["step"] + 1: line["tokens"] for line in steps} | {0: 0}
    for line in validations:
        line["tokens"] = tokens.get(line["step"])
    return steps, validations, notes


def is_run_folder(folder: Path) -> bool:
    return (folder / "config.json").exists() or (folder / "metrics.jsonl").exists()


def read_run(folder: Path) -> Run:
    config = read_json(folder / "config.json")
    environment = read_json(folder / "environment.json")
    summary = None
    if (folder / "summary.json").exists():
        summary = read_json(folder / "summary.json")
        if not isinstance(summary.get("status"), str):
            raise DataError(f"{folder / 'summary.json'}: no status in it")
    steps, validations, notes = read_metrics(folder / "metrics.jsonl")
    # The message is empty unless the run diverged; then it names step and parameter.
    if summary and summary.get("message"):
        notes.append(summary["message"])
    return Run(folder.name, folder, config, environment, summary, steps, validations, notes=notes)
