"""Environment of the runs: one row per machine, processor, program and build."""

from html import escape

from .groups import Group
from .runs import Run
from .tables import NONE, Column, cell, table


def _environment(run: Run) -> tuple[str, ...]:
    """Cells of the environment table: constant properties of machines and builds."""
    environment = run.environment
    cpu, cuda, build = (environment.get(key) or {} for key in ("cpu", "cuda", "build"))
    sha = str(environment.get("git_sha", "unknown"))
    dirty = sha.endswith("-dirty")
    clean = sha.removesuffix("-dirty")
    badge = '<span class="badge bad">uncommitted changes</span>' if dirty else '<span class="badge good">clean</span>'
    gpus = [gpu.get("name", "?") for gpu in cuda.get("gpus") or []]
    devices = dict.fromkeys(place.get("device", "?") for place in environment.get("ranks") or [])
    memory = environment.get("memory_bytes")
    # Older builds only record whether the processor supports it.
    isa = cpu.get("isa") or ("avx512_bf16" if cpu.get("avx512_bf16") else "")
    program = f'<code title="{escape(clean)}">{escape(clean[:12])}</code> {badge if clean != "unknown" else ""}'
    return (
        escape(str(environment.get("host", NONE))),
        escape(f"{cpu.get('model', '?')}, {cpu.get('cores', '?')} cores" + (f", {isa}" if isa else "")),
        escape(", ".join(gpus) or "none"),
        escape("; ".join(devices) or NONE),
        f"{memory / 2**30:.1f} GiB" if memory else NONE,
        program,
        escape(" ".join(str(build.get(key, "")) for key in ("compiler", "type", "flags"))),
        escape(str(environment.get("os", NONE))),
    )


def environments(groups: list[Group]) -> tuple[str, int]:
    """Returns the table, and the number of distinct hosts, processors and builds."""
    by_environment: dict[tuple[str, ...], list[str]] = {}
    comparable = set()
    for group in groups:
        for run in group.runs:
            cells = _environment(run)
            by_environment.setdefault(cells, []).append(run.name)
            comparable.add((cells[0], cells[1], cells[2], cells[6]))
    head = [
        Column(title)
        for title in (
            "runs",
            "host",
            "processor",
            "GPUs",
            "computed on",
            "memory",
            "program (git)",
            "compiler, build",
            "system",
        )
    ]
    rows = []
    for cells, names in by_environment.items():
        who = ", ".join(names) if len(names) < 4 else f"{len(names)}: {names[0]} … {names[-1]}"
        rows.append("".join(cell(text) for text in (f'<span title="{escape(", ".join(names))}">{escape(who)}</span>', *cells)))
    return table("environment", head, rows, sortable=False), len(comparable)
