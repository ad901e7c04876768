"""Builds the page: one self-contained HTML file."""

import json
from html import escape
from pathlib import Path

import plotly.offline

from . import curves, loss_charts, tables, timing_charts
from .environment_table import environments
from .groups import Group, group_runs
from .overlap import overlaps_of
from .record_table import record_table
from .tracks import Collection

# The browser refuses all requests from the page.
CONTENT_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
HERE = Path(__file__).parent


def _section(title: str, text: str, body: str, kind: str = "") -> str:
    return f"<section{kind}><h2>{escape(title)}</h2>{f'<p>{text}</p>' if text else ''}{body}</section>"


def _chart(identity: str, label: str) -> str:
    return f'<div class="chart" id="{identity}" role="img" aria-label="{escape(label)}"></div>'


def _tile(value: str, text: str) -> str:
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(text)}</span></div>'


def _tiles(groups: list[Group]) -> str:
    tiles = []
    of_records = all(run.place for group in groups for run in group.runs)
    what = "training time of a config whose runs all reach the target" if of_records else "time to the target"
    times = [
        (group.mean_and_deviation(lambda run: run.train_ms if of_records else run.time_to_target_ms)[0], group)
        for group in groups
        if group.finished and group.reached == len(group.finished)
    ]
    if times:
        ms, group = min(times, key=lambda pair: pair[0])
        tiles.append(_tile(f"{ms / 1e3:.{2 if ms >= 1e3 else 3}f} s", f"shortest mean {what}: {group.label}"))
    losses = [(group.mean_and_deviation(lambda run: run.val_loss)[0], group) for group in groups]
    losses = [(loss, group) for loss, group in losses if loss is not None]
    if losses:
        loss, group = min(losses, key=lambda pair: pair[0])
        tiles.append(_tile(f"{loss:.4f}", f"lowest mean validation loss [nats per token]: {group.label}"))
    runs = [run for group in groups for run in group.runs]
    finished = sum(run.finished for run in runs)
    tiles.append(_tile(f"{finished} of {len(runs)}", f"runs are finished; configs: {len(groups)}"))
    targets = curves.targets(groups)
    if targets:
        tiles.append(_tile(", ".join(f"{target:g}" for target in targets), "target, validation loss in nats per token"))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _controls(groups: list[Group]) -> str:
    kinds = "".join(
        f'<button type="button" data-kind="{kind}" aria-pressed="{str(kind == "both").lower()}">{text}</button>'
        for kind, text in (("both", "validation and training"), ("val", "validation"), ("train", "training"))
    )
    # Baselines repeat another record's config: included, but initially hidden.
    chips = "".join(
        f'<button type="button" data-group="{group.index}" aria-pressed="{str(not group.is_baseline).lower()}">'
        f"{tables.swatch(group)}{escape(group.label)}</button>"
        for group in groups
    )
    return (
        f'<div class="controls"><div class="kinds" role="group" aria-label="kind of loss">{kinds}</div>'
        f'<div role="group" aria-label="configs shown">{chips}</div></div>'
    )


def _notices(collection: Collection, groups: list[Group], machines: int) -> str:
    notices = list(collection.problems)
    for group in groups:
        if group.repeated_seeds:
            notices.append(
                f"{group.label}: seed {', '.join(map(str, group.repeated_seeds))} was run more than once; such runs are "
                "not independent, and the ± is too small"
            )
        left_out = [run.name for run in group.runs if not run.finished]
        if left_out:
            notices.append(f"{group.label}: in no mean, because not finished: {', '.join(left_out)}")
    if machines > 1:
        notices.append(
            "The runs were made on different machines or by different builds (see the environment): their times cannot "
            "be compared as they stand."
        )
    if not notices:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in notices)
    return _section("Before you read on", "", f"<ul>{items}</ul>", ' class="notice" id="notices"')


def write_page(collection: Collection, title: str, out: Path, binary: Path | None) -> list[Group]:
    groups = group_runs(collection.runs)
    overlaps, trace_problems = overlaps_of(collection.runs, binary)
    collection.problems += trace_problems
    environment_table, machines = environments(groups)
    figures = {
        "loss-time": loss_charts.loss_chart(groups, "time"),
        "loss-tokens": loss_charts.loss_chart(groups, "tokens"),
        "step-times": timing_charts.step_time_chart(groups),
        "where": timing_charts.where_time_went_chart(groups),
    }
    times = sorted(str(run.environment["time_utc"]) for run in collection.runs if run.environment.get("time_utc"))
    ends = list(dict.fromkeys(time[:16].replace("T", " ") for time in (times[:1] + times[-1:])))
    intro = [collection.track.get("description", "").rstrip(".")] if collection.track else []
    intro.append(f"Started {'between ' * (len(ends) - 1)}{' and '.join(ends)} UTC" if ends else "")
    intro = "".join(f"{sentence}. " for sentence in intro if sentence)

    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="muted">{escape(intro)}Training time leaves out '
        "start-up and validation. Means and ± (standard deviation of one run) are over finished runs.</p>",
        _tiles(groups),
        _notices(collection, groups, machines),
    ]
    if collection.records:
        body.append(
            _section(
                "Records",
                "As <code>record.json</code> has them; <code>speedrun records verify</code> computes every figure again.",
                record_table(collection.records),
            )
        )
    body += [
        _section(
            "Leaderboard",
            "One row per config, whatever the seed. Time to target: training time at the first validation at "
            "or below it. Click a heading to sort.",
            tables.leaderboard(groups),
        ),
        _controls(groups),
        '<div class="pair">',
        _section(
            "Loss against training time",
            "Thick with markers: mean validation loss; thin: single runs and training loss. The "
            "view starts at the first validation; double-click shows it again, drag zooms.",
            _chart("loss-time", "Loss in nats per token against training time, one colour per config"),
        ),
        _section(
            "Loss against tokens",
            "The same losses by the tokens seen: what a config learns from its data, however fast the machine.",
            _chart("loss-tokens", "Loss in nats per token against tokens, one colour per config"),
        ),
        "</div>",
        _section(
            "Step times",
            "Every step of every run of a config. The white-edged marker is the median; ticks are outliers.",
            _chart("step-times", "Distribution of step times in milliseconds, one row per config"),
        ),
        _section(
            "Where the time went",
            "Mean training time of a run. Optimizer: compute waits for a step of a bucket; "
            "exposed communication: compute waits for collectives; the host's wait for data may be hidden behind computing.",
            _chart("where", "Training time by part, one bar per config"),
        ),
    ]
    if overlaps:
        figures["overlap"] = timing_charts.overlap_chart(overlaps)
        body.append(
            _section(
                "Overlap of communication",
                "Of rank 0: exposed is the time in which compute waits, a collective runs and the optimizer does not work. "
                "<i>metrics</i>: over all steps, by time stamps. <i>trace</i>: over the traced steps, by their spans.",
                _chart("overlap", "Communication per step, hidden and exposed, one bar per run"),
            )
        )
    changes = tables.config_differences([group for group in groups if not group.is_baseline] or groups)
    if changes:
        body.append(
            _section(
                "What differs",
                "Only the keys that are not the same everywhere; marked is what is not as in the "
                "reference. In brackets: not of the config.",
                changes,
            )
        )
    body += [
        _section("Runs", "All of them. Click a heading to sort.", tables.all_runs(groups)),
        _section("Environment", "", environment_table),
    ]

    # Plotly writes < as \u003c: no run name can close the element.
    data = "{" + ",".join(f"{json.dumps(name)}:{figure.to_json()}" for name, figure in figures.items()) + "}"
    page = (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}"><link rel="icon" href="data:,">'
        f"<style>{(HERE / 'page.css').read_text(encoding='utf-8')}</style>"
        f"<script>{plotly.offline.get_plotlyjs()}</script></head><body><main>{''.join(body)}</main>"
        f'<script type="application/json" id="figures">{data}</script>'
        f"<script>{(HERE / 'page.js').read_text(encoding='utf-8')}</script></body></html>\n"
    )
    out.write_text(page, encoding="utf-8")
    return groups
