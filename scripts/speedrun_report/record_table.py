"""The leaderboard of a track: one row per record."""

from html import escape

from .tables import NONE, Column, cell, mean_cell, metric, number, table
from .tracks import Record


def _p_value(test: dict | None) -> str:
    p = test.get("p") if test else None
    if p is None:
        return cell(NONE, None, "number")
    return cell("&lt; 0.0001" if p < 1e-4 else f"{p:.4f}", p, "number")


def _moments(moments: dict, scale: float, pattern: str) -> str:
    mean, deviation = moments.get("mean"), moments.get("std")
    if mean is None:
        return mean_cell((None, None), pattern)
    return mean_cell((mean / scale, None if deviation is None else deviation / scale), pattern)


# Number of visible characters of a folded text.
SHOWN = 90


def _what(text: str) -> str:
    if len(text) <= SHOWN:
        return escape(text)
    begin = text[:SHOWN].rsplit(" ", 1)[0]
    return f"<details><summary>{escape(begin)} …</summary>{escape(text[len(begin):])}</details>"


def record_table(records: list[Record]) -> str:
    head = [
        Column("record"),
        Column("date"),
        Column("what changed"),
        Column("runs", True),
        metric("train_ms", "s"),
        metric("val_loss"),
        Column("p: loss below target", True),
        Column("raced against"),
        Column("times as fast", True),
        Column("p: faster", True),
        Column("verdict"),
    ]
    rows = []
    for record in reversed(records):
        json = record.json
        statistics = json["statistics"]
        candidate = statistics["candidate"]
        baseline = (json.get("baseline") or {}).get("name")
        verdict = (
            '<span class="badge good">record</span>'
            if record.is_record
            else f'<span class="badge bad">no record</span> {escape(record.unmet_rule)}'
        )
        rows.append(
            "".join(
                [
                    cell(escape(json["name"]), json["name"], "name"),
                    cell(escape(json["date"]), record.folder),
                    cell(_what(json["what"]), json["what"], "notes what"),
                    number(candidate.get("runs"), "d"),
                    _moments(candidate.get("train_ms") or {}, 1e3, ".2f"),
                    _moments(candidate.get("loss") or {}, 1, ".4f"),
                    _p_value(statistics.get("loss_below_target")),
                    cell(escape(baseline or NONE), baseline),
                    number(statistics.get("speedup"), ".3f"),
                    _p_value(statistics.get("time_below_baseline")),
                    cell(verdict, str(record.is_record), "notes"),
                ]
            )
        )
    return table("records", head, rows)
