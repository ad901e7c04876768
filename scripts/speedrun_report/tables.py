"""The page's tables. Every text of a run must be passed through escape()."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from . import curves
from .groups import Group, differences
from .metric_fields import SUMMARY
from .runs import Run, percentile

NONE = "–"

_MARKERS = {
    "circle": '<circle cx="14" cy="6" r="4"/>',
    "square": '<rect x="10" y="2" width="8" height="8"/>',
    "diamond": '<path d="M14 1l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M14 1l5 9H9z"/>',
    "x": '<path d="M10 2l8 8M18 2l-8 8" stroke-width="3"/>',
}
_DASHES = {"solid": "", "dash": "6 3", "dot": "2 2", "dashdot": "6 2 2 2", "longdash": "9 3"}


def swatch(group: Group) -> str:
    """Returns the group's line and marker, as in the charts."""
    color = curves.color(group)
    return (
        f'<svg class="swatch" width="28" height="12" aria-hidden="true" stroke="{color}" fill="{color}">'
        f'<path d="M0 6h28" stroke-width="2.5" stroke-dasharray="{_DASHES[curves.dash(group)]}"/>'
        f"{_MARKERS[curves.symbol(group)]}</svg>"
    )


def cell(text: str, key: object = None, kind: str = "") -> str:
    """text: HTML. key: sort key of the column; None: last in both directions."""
    sort = "" if key is None else f' data-key="{escape(str(key))}"'
    style = f' class="{kind}"' if kind else ""
    return f"<td{sort}{style}>{text}</td>"


def number(value: float | None, pattern: str, kind: str = "number") -> str:
    return cell(NONE, None, kind) if value is None else cell(format(value, pattern), f"{value:.12g}", kind)


def mean_cell(pair: tuple[float | None, float | None], pattern: str) -> str:
    mean, deviation = pair
    if mean is None:
        return cell(NONE, None, "number")
    text = format(mean, pattern)
    if deviation is not None:
        text += f' <span class="spread">± {format(deviation, pattern)}</span>'
    return cell(text, f"{mean:.12g}", "number")


@dataclass(frozen=True)
class Column:
    title: str
    holds_numbers: bool = False
    meaning: str = ""  # tooltip of the title


def metric(key: str, unit: str | None = None) -> Column:
    """Returns the column of a value of summary.json, in this unit."""
    field = SUMMARY[key]
    return Column(field.heading(unit), True, field.meaning)


def table(name: str, head: list[Column], rows: list[str], sortable: bool = True) -> str:
    cells = []
    for column in head:
        inner = f'<button type="button">{escape(column.title)}</button>' if sortable else escape(column.title)
        sort = ' aria-sort="none"' if sortable else ""
        kind = " class=number" if column.holds_numbers else ""
        meaning = f' title="{escape(column.meaning)}"' if column.meaning else ""
        cells.append(f'<th scope="col"{sort}{kind}{meaning}>{inner}</th>')
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table{kind} id="{name}"><thead><tr>'
        f"{''.join(cells)}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
    )


def _seconds(value: Callable[[Run], float | None]) -> Callable[[Run], float | None]:
    def seconds(run: Run) -> float | None:
        ms = value(run)
        return None if ms is None else ms / 1e3

    return seconds


def leaderboard(groups: list[Group]) -> str:
    has_target = bool(curves.targets(groups))
    target = [metric("target_reached"), metric("time_to_target_ms", "s")] if has_target else []
    head = [
        Column("config"),
        Column("runs", True),
        *target,
        metric("val_loss"),
        metric("train_ms", "s"),
        metric("tokens"),
        metric("tokens_per_s"),
        metric("step_ms.p50"),
        metric("ranks"),
    ]
    rows = []
    for group in groups:
        runs = group.finished
        times = [ms for run in runs for ms in run.step_ms()]
        tokens = runs[0].steps[-1]["tokens"] if runs and runs[0].steps else None
        seeds = ", ".join(str(seed) for seed in group.seeds)
        cells = [
            cell(f'{swatch(group)} <span title="seeds {escape(seeds)}">{escape(group.label)}</span>', group.label, "name"),
            number(len(runs), "d"),
        ]
        if has_target:
            cells += [
                cell(f"{group.reached} of {len(runs)}", group.reached, "number") if runs else cell(NONE, None, "number"),
                mean_cell(group.mean_and_deviation(_seconds(lambda run: run.time_to_target_ms)), ".2f"),
            ]
        cells += [
            mean_cell(group.mean_and_deviation(lambda run: run.val_loss), ".4f"),
            mean_cell(group.mean_and_deviation(_seconds(lambda run: run.train_ms)), ".2f"),
            number(tokens, ",d"),
            number(group.mean_and_deviation(tokens_per_s)[0], ",.0f"),
            number(percentile(times, 0.5) if times else None, ",.2f"),
            number(group.runs[0].ranks, "d"),
        ]
        rows.append("".join(cells))
    return table("leaderboard", head, rows)


def tokens_per_s(run: Run) -> float | None:
    return run.steps[-1]["tokens"] / run.train_ms * 1e3 if run.steps and run.train_ms > 0 else None


def all_runs(groups: list[Group]) -> str:
    head = [
        Column("run"),
        Column("seed", True),
        Column(SUMMARY["status"].title),
        metric("val_loss"),
        metric("time_to_target_ms", "s"),
        metric("train_ms", "s"),
        metric("steps"),
        metric("tokens_per_s"),
        metric("step_ms.p50"),
        metric("step_ms.p99"),
        metric("step_ms.max"),
        metric("startup_ms", "s"),
        Column("notes"),
    ]
    rows = []
    for group in groups:
        for run in group.runs:
            times = run.step_ms()
            slowest = max(run.steps, key=lambda line: line["step_ms"], default=None)
            startup = (run.summary or {}).get(SUMMARY["startup_ms"].key)
            status = f'<span class="badge {"good" if run.finished else "bad"}">{escape(run.status)}</span>'
            note = "; ".join(run.notes)
            rows.append(
                "".join(
                    [
                        cell(f"{swatch(group)} {escape(run.name)}", run.name, "name"),
                        number(run.seed, "d"),
                        cell(status, run.status),
                        number(run.val_loss, ".4f"),
                        number(_seconds(lambda r: r.time_to_target_ms)(run), ".2f"),
                        number(run.train_ms / 1e3, ".2f"),
                        number(run.num_steps, ",d"),
                        number(tokens_per_s(run), ",.0f"),
                        number(percentile(times, 0.5) if times else None, ",.2f"),
                        number(percentile(times, 0.99) if times else None, ",.2f"),
                        cell(
                            f'{slowest["step_ms"]:,.2f} <span class="spread">step {slowest["step"]}</span>',
                            slowest["step_ms"],
                            "number",
                        )
                        if slowest
                        else cell(NONE, None, "number"),
                        number(None if startup is None else startup / 1e3, ".2f"),
                        cell(escape(note), note or None, "notes"),
                    ]
                )
            )
    return table("runs", head, rows)


def _value(value: object) -> str:
    if value is None:
        return NONE
    return escape(value if isinstance(value, str) else json.dumps(value))


def config_differences(groups: list[Group]) -> str:
    """Compares the other groups with the first group of the leaderboard."""
    rows = []
    for key, values in differences(groups):
        parts = re.sub(r"([._])", r"\1<wbr>", escape(key))  # line break points for narrow screens
        cells = [f'<th scope="row">{parts}</th>']
        for value in values:
            differs = value != values[0]
            text = _value(value)
            cells.append(cell(f"<mark>{text}</mark>" if differs else text, None, "value"))
        rows.append("".join(cells))
    if not rows:
        return ""
    head = "".join(
        f'<th scope="col">{swatch(g)} {escape(g.label)}{" <small>(reference)</small>" if g is groups[0] else ""}</th>'
        for g in groups
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="differences of configs">'
        '<table id="differences"><thead><tr>'
        f'<th scope="col">key</th>{head}</tr></thead><tbody>{"".join(f"<tr>{row}</tr>" for row in rows)}</tbody></table></div>'
    )
