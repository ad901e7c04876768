"""Groups of runs that differ only in their seed: one colour, one mean."""

import json
import re
import statistics
from dataclasses import dataclass

from .runs import Run


@dataclass
class Group:
    """Runs of one config, program and kind of machine. Means are over finished runs only."""

    label: str
    runs: list[Run]
    index: int = 0  # index of its colour and marker

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.finished]

    @property
    def seeds(self) -> list:
        return [run.seed for run in self.runs]

    @property
    def repeated_seeds(self) -> list:
        """Repeated seeds of finished runs: such runs are not independent."""
        seeds = [run.seed for run in self.finished]
        return sorted({seed for seed in seeds if seeds.count(seed) > 1}, key=str)

    @property
    def is_baseline(self) -> bool:
        return self.runs[0].place is not None and self.runs[0].place.side == "baseline"

    @property
    def reached(self) -> int:
        return sum(run.time_to_target_ms is not None for run in self.finished)

    def mean_and_deviation(self, value) -> tuple[float | None, float | None]:
        """Mean and deviation of value(run) over finished runs; (None, None) if a value is None. A single run has no
        deviation."""
        values = [value(run) for run in self.finished]
        if not values or any(v is None for v in values):
            return None, None
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None

    def order(self) -> tuple:
        """Leaderboard order: mean time to the target, then loss."""
        time = self.mean_and_deviation(lambda run: run.time_to_target_ms)[0]
        loss = self.mean_and_deviation(lambda run: run.val_loss)[0]
        return time is None, time or 0.0, loss is None, loss or 0.0, self.label


def flatten(value, prefix: str = "") -> dict[str, object]:
    """Flattens nested objects and lists of objects to dotted keys; lists of plain values are kept."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        items = enumerate(value)
    else:
        return {prefix: value}
    flat = {}
    for key, inner in items:
        flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def settings_of(run: Run) -> dict[str, object]:
    """Key of comparable runs: config without seed, ranks, program, machine."""
    flat = flatten({key: value for key, value in run.config.items() if key != "seed"})
    environment = run.environment
    flat["(ranks)"] = run.ranks
    flat["(program)"] = environment.get("git_sha", "unknown")
    build = environment.get("build") or {}
    flat["(build)"] = " ".join(str(build.get(key, "")) for key in ("type", "compiler", "flags")).strip()
    devices = [place.get("device", "") for place in environment.get("ranks") or []]
    cpu = (environment.get("cpu") or {}).get("model", "")
    flat["(machine)"] = ", ".join(dict.fromkeys([environment.get("host", "unknown"), cpu, *devices]))
    return flat


def label_of(names: list[str]) -> str:
    """The name without the seed at its end ("base-s3", "base_seed3", "base3") that most of a group's runs share."""
    if len(names) == 1:
        return names[0]
    stems = [re.sub(r"[-_. ]*(seed|run|s|r)?[-_. ]*\d+$", "", name) for name in names]
    return max(stems, key=stems.count) or names[0]


def group_runs(runs: list[Run]) -> list[Group]:
    """Returns the groups in leaderboard order; groups of records in the order of runs, baselines last. Runs of different
    records are never grouped, as they did not run alternately."""
    by_key: dict[str, list[Run]] = {}
    for run in runs:
        side = run.place and [run.place.folder, run.place.side]
        by_key.setdefault(json.dumps([side, settings_of(run)], sort_keys=True), []).append(run)
    groups, used = [], set()
    for members in by_key.values():
        place = members[0].place
        label = place.config if place else label_of([run.name for run in members])
        if place and place.side == "baseline":
            label += f" (baseline of {place.record})"
        unique, number = label, 2
        while unique in used:
            unique, number = f"{label} ({number})", number + 1
        used.add(unique)
        groups.append(Group(unique, members))
    if all(run.place for run in runs):
        groups.sort(key=lambda group: group.is_baseline)
    else:
        groups.sort(key=lambda group: (group.is_baseline, *group.order()))
    for index, group in enumerate(groups):
        group.index = index
    return groups


# Keys listed for an element that other lists lack (e.g. an optimizer group); other keys are mostly defaults.
TOLD_OF_ELEMENT = ("type", "params", "lr")


def _untold(key: str, flats: list[dict[str, object]]) -> bool:
    match = re.match(r"(.*\.\d+)\.(.*)", key)
    if not match or match[2] in TOLD_OF_ELEMENT:
        return False
    having = [flat for flat in flats if any(other.startswith(match[1] + ".") for other in flat)]
    values = [flat.get(key) for flat in having]
    return len(having) < len(flats) and all(value == values[0] for value in values)


def differences(groups: list[Group]) -> list[tuple[str, list]]:
    """Returns the keys with different values between groups, each with the groups' values (None: missing key)."""
    flats = [settings_of(group.runs[0]) for group in groups]
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    rows = [(key, [flat.get(key) for flat in flats]) for key in keys if not _untold(key, flats)]
    return [(key, values) for key, values in rows if any(v != values[0] for v in values)]
