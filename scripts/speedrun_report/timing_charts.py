"""Charts of time: distribution of step times, parts of the training time, overlapped communication."""

import statistics

import plotly.graph_objects as go

from . import curves
from .groups import Group
from .loss_charts import AXIS, LAYOUT, escaped
from .metric_fields import STEP
from .overlap import Overlap
from .runs import Run, percentile

PARTS = ("forward and backward", *(STEP[key].title for key in ("data_ms", "comm_exposed_ms", "optimizer_ms")))
MOST_TIMES = 4000  # maximum step times of one group in the page


def parts_of(run: Run) -> tuple[float, float, float, float]:
    """Returns the training time in ms by PARTS, with the sum train_ms. The host may wait for data while the device is busy,
    as steps are enqueued ahead. Its wait is therefore part of forward and backward, and limited to it. A wait may extend into
    the next step: on a busy machine, sums above the training time are truncated."""
    optimizer = min(run.total_ms("optimizer_ms"), run.train_ms)
    exposed = min(run.total_ms("comm_exposed_ms"), run.train_ms - optimizer)
    compute = run.train_ms - optimizer - exposed
    data = min(run.total_ms("data_ms"), compute)
    return compute - data, data, exposed, optimizer


# Layout of stacked bars with a legend above.
BARS = {
    "barmode": "stack",
    "bargap": 0.35,
    "showlegend": True,
    "legend": {"orientation": "h", "traceorder": "normal", "y": 1, "yanchor": "bottom", "x": 0},
    "uniformtext": {"minsize": 11, "mode": "hide"},  # no label for a share that is too small for it
}
BAR_TEXT = {"orientation": "h", "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}


def _rows(count: int) -> int:
    return 90 + 46 * count


def _category_axis() -> dict:
    return {**AXIS, "autorange": "reversed", "ticks": "", "showgrid": False, "showline": False}


def _spread(times: list[float]) -> list[float]:
    """Returns at most MOST_TIMES values, evenly spaced in sorted order, with minimum and maximum."""
    ordered = sorted(times)
    if len(ordered) <= MOST_TIMES:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(i * last / (MOST_TIMES - 1))] for i in range(MOST_TIMES)]


def step_time_chart(groups: list[Group]) -> go.Figure:
    figure = go.Figure()
    all_times = []
    for group in groups:
        times = [ms for run in group.runs for ms in run.step_ms()]
        if not times:
            continue
        all_times += times
        quartiles = {
            name: percentile(times, share) for name, share in (("q1", 0.25), ("median", 0.5), ("q3", 0.75), ("p99", 0.99))
        }
        name = escaped(group.label)
        figure.add_trace(
            go.Violin(
                x=[float(f"{ms:.5g}") for ms in _spread(times)],
                y0=name,
                name=name,
                orientation="h",
                meta={"group": group.index},
                points="outliers",
                spanmode="hard",
                scalemode="width",
                width=0.85,
                line={"color": curves.color(group), "width": 1.2},
                fillcolor=curves.color(group),
                opacity=0.75,
                marker={"size": 3, "symbol": "line-ns-open"},
                box={"visible": True, "width": 0.25},
                hoveron="points",
                hovertemplate="%{x:.3f} ms<extra>" + name + "</extra>",
            )
        )
        # Tooltip in the middle of a violin.
        figure.add_trace(
            go.Scatter(
                x=[quartiles["median"]],
                y=[name],
                mode="markers",
                meta={"group": group.index},
                marker={
                    "color": curves.color(group),
                    "size": 11,
                    "symbol": curves.symbol(group),
                    "line": {"color": "#FFFFFF", "width": 1.5},
                },
                hovertemplate=f"<b>{name}</b><br>{len(times):,} steps<br>median %{{x:.3f}} ms<br>"
                f"quarters {quartiles['q1']:.3f} and {quartiles['q3']:.3f} ms<br>99% {quartiles['p99']:.3f} ms<br>"
                f"largest {max(times):.3f} ms<extra></extra>",
            )
        )
    # Few slow steps must not compress all others.
    far = bool(all_times) and max(all_times) > 20 * max(statistics.median(all_times), 1e-9) and min(all_times) > 0
    figure.update_layout(
        **LAYOUT,
        height=_rows(len(groups)) + 30 * len(groups),
        violingap=0.1,
        xaxis={**AXIS, "title": {"text": STEP["step_ms"].heading()}, "type": "log" if far else "linear"},
        yaxis=_category_axis(),
    )
    return figure


def where_time_went_chart(groups: list[Group]) -> go.Figure:
    """Means over a group's finished runs, or over all its runs if none is finished."""
    figure = go.Figure()
    unit, scale = curves.time_unit(groups)
    shown = [(group, group.finished or group.runs) for group in groups]
    means = [[statistics.fmean(values) for values in zip(*(parts_of(run) for run in runs))] for _, runs in shown]
    for part, name in enumerate(PARTS):
        x, text, detail = [], [], []
        for (_, runs), mean in zip(shown, means):
            share = mean[part] / sum(mean) if sum(mean) > 0 else 0.0
            steps = statistics.fmean(run.num_steps for run in runs)
            x.append(float(f"{mean[part] / scale:.6g}"))
            text.append(f"{100 * share:.1f}%" if share >= 0.03 else "")
            detail.append([f"{100 * share:.2f}%", f"{mean[part] / steps:.3f}" if steps else "?", len(runs)])
        figure.add_trace(
            go.Bar(
                x=x,
                y=[escaped(group.label) for group in groups],
                name=name,
                text=text,
                customdata=detail,
                **BAR_TEXT,
                textfont={"color": "#FFFFFF" if part in (0, 2) else "#111111"},
                marker={"color": curves.PART_COLORS[part], "pattern": {"shape": "/" if part == 1 else "", "solidity": 0.3}},
                hovertemplate=f"<b>%{{y}}</b><br>{name}<br>%{{x:.4g}} {unit}, %{{customdata[0]}} of the training time<br>"
                "%{customdata[1]} ms per step<br>runs: %{customdata[2]}<extra></extra>",
            )
        )
    figure.update_layout(
        **LAYOUT | BARS,
        height=_rows(len(groups)) + 40,
        xaxis={**AXIS, "title": {"text": STEP["train_ms"].heading(unit)}},
        yaxis=_category_axis(),
    )
    return figure


def overlap_chart(overlaps: list[Overlap]) -> go.Figure:
    figure = go.Figure()
    rows = [escaped(overlap.row) for overlap in overlaps]
    for name, values, color in (
        ("hidden behind computing", [o.hidden_ms for o in overlaps], curves.PALETTE[2]),
        ("exposed", [o.exposed_ms for o in overlaps], curves.PALETTE[1]),
    ):
        shares = [value / o.total_ms if o.total_ms > 0 else 0.0 for value, o in zip(values, overlaps)]
        figure.add_trace(
            go.Bar(
                x=[float(f"{value:.6g}") for value in values],
                y=rows,
                name=name,
                marker={"color": color},
                **BAR_TEXT,
                text=[f"{100 * share:.0f}%" if share >= 0.04 else "" for share in shares],
                textfont={"color": "#FFFFFF"},
                customdata=[[f"{100 * share:.1f}%"] for share in shares],
                hovertemplate=f"<b>%{{y}}</b><br>{name}: %{{x:.3f}} ms per step, %{{customdata[0]}} of the communication"
                "<extra></extra>",
            )
        )
    figure.update_layout(
        **LAYOUT | BARS,
        height=_rows(len(rows)) + 40,
        xaxis={**AXIS, "title": {"text": "communication [ms per step]"}},
        yaxis=_category_axis(),
    )
    return figure
