"""Overlapped share of the communication of a run of several ranks: by its metrics, and by its trace."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .runs import Run


@dataclass
class Overlap:
    """Values of rank 0, in ms per step, with the definition of exposed in train/trace/intervals.h.
    "metrics", over all steps: by time stamps around waits and collectives.
    "trace", over the traced steps: by the spans of the trace."""

    run: Run
    source: str
    total_ms: float
    exposed_ms: float

    @property
    def hidden_ms(self) -> float:
        return max(0.0, self.total_ms - self.exposed_ms)

    @property
    def row(self) -> str:
        return f"{self.run.name}, {self.source}"


def overlap_of_metrics(run: Run) -> Overlap | None:
    total = run.total_ms("comm_ms")
    if total <= 0:
        return None
    exposed = min(run.total_ms("comm_exposed_ms"), total)
    return Overlap(run, "metrics", total / run.num_steps, exposed / run.num_steps)


def overlap_of_trace(run: Run, binary: Path) -> Overlap | None:
    """Measures the overlap by `speedrun trace`. None: no communication. Throws ValueError, with the program's message, if it
    cannot read the trace."""
    command = [str(binary), "trace", str(run.path), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(str(error)) from None
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"{binary} trace: exit {done.returncode}")
    traced = json.loads(done.stdout)
    total = traced["total"]
    communication = total["reduce_ms"] + total["gather_ms"]
    if communication <= 0:
        return None
    return Overlap(run, "trace", communication, traced["stalled_ms"])


def overlaps_of(runs: list[Run], binary: Path | None) -> tuple[list[Overlap], list[str]]:
    """Returns overlaps, and errors."""
    found, problems = [], []
    for run in runs:
        counted = overlap_of_metrics(run)
        if counted:
            found.append(counted)
        if run.place is not None or not (run.path / "trace.json").exists():
            continue
        if binary is None:
            problems.append(f"{run.path / 'trace.json'}: not read, no speedrun binary (--speedrun FILE)")
            continue
        try:
            traced = overlap_of_trace(run, binary)
        except ValueError as error:
            problems.append(f"{run.path / 'trace.json'}: not read: {error}")
            continue
        if traced:
            found.append(traced)
    return found, problems
