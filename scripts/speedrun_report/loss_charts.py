"""The two main charts: loss against training time and against tokens."""

import plotly.graph_objects as go

from . import curves
from .curves import Curve
from .groups import Group
from .metric_fields import STEP

MOST_POINTS = 600  # per training curve

# Shared with other charts. page.js sets the colours of text and grid for light and dark.
AXIS = {"showline": True, "ticks": "outside", "ticklen": 4, "zeroline": False, "automargin": True}
LAYOUT = {
    "showlegend": False,
    "hovermode": "closest",
    "margin": {"l": 8, "r": 12, "t": 34, "b": 8},
    "hoverlabel": {"align": "left"},
    "template": None,
}


def _x_values(curve: Curve, axis: str, scale: float) -> list[float | None]:
    values = curve.train_ms if axis == "time" else curve.tokens
    return [None if value is None else float(f"{value / scale:.6g}") for value in values]


def _line(figure: go.Figure, group: Group, curve: Curve, axis: str, scale: float, kind: str, who: str, **style) -> None:
    detail = [
        [step, f"{ms / 1e3:,.2f}", f"{tokens:,}" if tokens is not None else "?"]
        for step, ms, tokens in zip(curve.step, curve.train_ms, curve.tokens)
    ]
    name = "validation" if kind == "val" else "training"
    figure.add_trace(
        go.Scatter(
            x=_x_values(curve, axis, scale),
            y=[None if loss is None else float(f"{loss:.6g}") for loss in curve.loss],
            customdata=detail,
            name=f"{who}, {name}",
            meta={"group": group.index, "kind": kind},
            hovertemplate=f"<b>{who}</b><br>{name} loss %{{y:.4f}} nats per token<br>%{{customdata[1]}} s of training, "
            "%{customdata[2]} tokens, step %{customdata[0]}<extra></extra>",
            **style,
        )
    )


def escaped(text: str) -> str:
    """Escapes text for Plotly, which interprets HTML tags and %{ (variables)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("%{", "% {")


def loss_chart(groups: list[Group], axis: str) -> go.Figure:
    """axis: "time" or "tokens". A group's mean is thick, with markers; its single runs are thin."""
    figure = go.Figure()
    unit, scale = curves.time_unit(groups) if axis == "time" else curves.token_unit(groups)

    def pair(group: Group, who: str, training: Curve, validation: Curve, opacity: tuple[float, float], thin: bool, width: float):
        line = {"color": curves.color(group), "width": width}
        _line(figure, group, training, axis, scale, "train", who, mode="lines", opacity=opacity[0], line=line)
        thick = {"width": 1 if thin else 2.5, "dash": curves.dash(group)}
        marker = {"symbol": curves.symbol(group), "size": 4 if thin else 8}
        style = {"mode": "lines+markers", "opacity": opacity[1], "line": line | thick, "marker": marker}
        _line(figure, group, validation, axis, scale, "val", who, **style)

    for group in groups:
        several = len(group.finished) > 1
        for run in group.runs:
            who = escaped(run.name if not several else f"{group.label}, {run.name}")
            if not run.finished:
                who += f" ({run.status})"
            thin = several or not run.finished
            training, validation = curves.training_curve(run, MOST_POINTS), curves.validation_curve(run)
            pair(group, who, training, validation, (0.15 if several else 0.45, 0.45 if thin else 1.0), thin, 1)
        if several:
            who = escaped(f"{group.label}, mean of {len(group.finished)}")
            training = curves.mean_curve([curves.training_curve(run, MOST_POINTS) for run in group.finished])
            validation = curves.mean_curve([curves.validation_curve(run) for run in group.finished])
            pair(group, who, training, validation, (0.5, 1.0), False, 1.2)
    for target in curves.targets(groups):
        dashes = {"color": curves.TARGET_COLOR, "width": 1.5, "dash": "dash"}
        figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=target, y1=target, layer="below", line=dashes)
        place = {"xref": "paper", "x": 1, "y": target, "xanchor": "right", "yanchor": "bottom"}
        figure.add_annotation(**place, text=f"target {target:g}", showarrow=False, font={"size": 12})
    figure.update_layout(
        **LAYOUT,
        height=440,
        xaxis={**AXIS, "title": {"text": curves.x_field(axis).heading(unit)}, "rangemode": "tozero"},
        yaxis={**AXIS, "title": {"text": STEP["loss"].heading()}, "range": curves.loss_range(groups)},
    )
    return figure
