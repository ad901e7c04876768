"""Reads records/<track>: record.json, written by train/records/record_json.cpp, and the metrics of its runs."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from .runs import DataError, Place, Run, UsageError, is_run_folder, read_json, read_metrics, read_run

SCHEMA = 1  # kRecordSchema of train/records/record.h


@dataclass
class Record:
    """Attempt data of a record.json; `speedrun records verify` checks the values."""

    folder: str
    json: dict

    @property
    def is_record(self) -> bool:
        return bool(self.json["verdict"]["is_record"])

    @property
    def unmet_rule(self) -> str:
        return next((rule["rule"] for rule in self.json["verdict"]["rules"] if not rule["met"]), "")


@dataclass
class Collection:
    """The requested runs, their records, and errors with file names."""

    runs: list[Run]
    records: list[Record]
    problems: list[str]
    track: dict | None = None


def _run_of_record(folder: Path, record: dict, entry: dict, problems: list[str]) -> Run:
    metrics = entry["metrics"]
    if Path(metrics["file"]).name != metrics["file"]:
        raise DataError(f"{folder / 'record.json'}: the metrics file {metrics['file']!r} is outside of the record")
    path = folder / metrics["file"]
    steps, validations, notes = read_metrics(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != metrics["sha256"]:
        problems.append(f"{path}: is not the file that record.json was made from (its SHA-256 differs)")
    if metrics["every"] > 1:
        notes.append(f"every {metrics['every']}th step is kept")
    config = record["config"] if entry["side"] == "candidate" else record["baseline"]["config"]
    sha = record["git_sha"] + ("-dirty" if record["dirty"] else "")
    environment = record["hardware"] | {
        "build": record["build"],
        "git_sha": sha,
        "time_utc": entry["began_utc"],
        "cuda": {"gpus": record["hardware"].get("gpus")},
    }
    summary = {"status": entry["status"], "startup_ms": entry["startup_ms"]}
    name = record["name"] if entry["side"] == "candidate" else record["baseline"]["name"]
    place = Place(folder.name, record["name"], entry["side"], name, metrics["sha256"])
    return Run(
        f"{name}, seed {entry['seed']}",
        folder,
        config | {"seed": entry["seed"]},
        environment,
        summary,
        steps,
        validations,
        place,
        notes,
    )


def read_record(folder: Path, collection: Collection) -> None:
    """Adds the record and its readable runs."""
    path = folder / "record.json"
    json = read_json(path)
    if json.get("schema") != SCHEMA:
        raise DataError(f"{path}: schema {json.get('schema')!r}, this report knows {SCHEMA}")
    problems, runs = [], []
    try:
        for entry in json["runs"]:
            try:
                runs.append(_run_of_record(folder, json, entry, problems))
            except DataError as error:
                problems.append(str(error))
        for entry in json["interrupted"]:
            problems.append(
                f"{folder}: {entry['side']} with seed {entry['seed']} was interrupted after {entry['steps']} steps "
                "and started afresh"
            )
        _ = json["verdict"]["rules"], json["statistics"]["candidate"], json["name"], json["date"], json["what"]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged: {type(error).__name__}: {error}") from None
    collection.records.append(Record(folder.name, json))
    collection.runs += runs
    collection.problems += problems


def _folders_in(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir())


def _add_readable(collection: Collection, folder: Path) -> None:
    """Lists damaged files without ending the report."""
    try:
        if (folder / "record.json").exists():
            read_record(folder, collection)
        else:
            run = read_run(folder)
            collection.runs.append(run)
            collection.problems += run.damage
    except DataError as error:
        collection.problems.append(str(error))


def _put_in_order(collection: Collection) -> None:
    """Sorts records from first to last, and removes duplicate runs."""
    records = {record.folder: record for record in collection.records}

    def depth(folder: str, seen: tuple = ()) -> int:
        """Returns the length of the chain of previous records, as several may have one date."""
        json, seen = records[folder].json, (*seen, folder)
        before = [json.get("record_before"), (json.get("baseline") or {}).get("record")]
        return max((1 + depth(name, seen) for name in before if name in records and name not in seen), default=0)

    position = {folder: i for i, folder in enumerate(sorted(records, key=lambda f: (records[f].json["date"], depth(f), f)))}
    collection.records = [records[folder] for folder in position]
    # A run given twice, by pattern and by name, is merged; a baseline's runs may also belong to its own record.
    collection.runs.sort(
        key=lambda run: (run.place.side == "baseline", position[run.place.folder]) if run.place else (False, -1)
    )
    unique = {run.place.digest if run.place else run.path.resolve(): run for run in reversed(collection.runs)}
    collection.runs = [run for run in collection.runs if any(run is kept for kept in unique.values())]


def _add(collection: Collection, path: Path) -> None:
    """Throws UsageError for a path without runs and records."""
    if not path.exists():
        raise UsageError(f"{path}: no such folder")
    if not path.is_dir():
        raise UsageError(f"{path}: is no folder; a run's folder, a folder of runs, or records/<track> is expected")
    if (path / "record.json").exists() or is_run_folder(path):
        _add_readable(collection, path)
        return
    inner = [f for f in _folders_in(path) if (f / "record.json").exists() or is_run_folder(f)]
    if (path / "track.json").exists():
        if not inner:
            raise UsageError(f"{path}: this track has no record yet")
        collection.track = read_json(path / "track.json")
    elif not inner:
        raise UsageError(f"{path}: no run in it (config.json, metrics.jsonl) and no record (record.json)")
    for folder in inner:
        _add_readable(collection, folder)


def collect(paths: list[Path]) -> Collection:
    """Each path is a run folder, a record folder, a track, or a folder of runs such as logs. Other paths are listed as
    problems, since patterns like logs/* match files too. Throws UsageError if there are only other paths, or if a path does
    not exist, and DataError if nothing could be read."""
    collection = Collection([], [], [])
    others: list[UsageError] = []
    for path in paths:
        try:
            _add(collection, path)
        except UsageError as error:
            if not path.exists():
                raise
            others.append(error)
    if others and len(others) == len(paths):
        raise others[0]
    collection.problems += [f"left out: {error}" for error in others]
    _put_in_order(collection)
    if not collection.runs:
        raise DataError("no run could be read:\n  " + "\n  ".join(collection.problems))
    return collection
