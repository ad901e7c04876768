"""The two main plots as PNG and SVG files, reproducible byte by byte."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator

from . import curves
from .groups import Group
from .metric_fields import STEP

MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X"}
LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3))}
# Points of a training curve, limited as noise would hide the rest; the second is the total, so that an SVG stays below 200 kB.
MOST_POINTS = 60
MOST_POINTS_OF_ALL = 3500
MOST_COLUMNS = 3  # number of panels
# Ratio of longest to shortest run from which the horizontal axis is logarithmic.
LOG_SPREAD = 8

STYLE = {
    "svg.hashsalt": "speedrun",  # identifiers of clip paths; random by default
    "svg.fonttype": "none",  # text remains text: small, in the reader's font
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8A8F98",
    "axes.grid": True,
    "grid.color": "#E8EBEF",
    "axes.axisbelow": True,
}


def _x(curve: curves.Curve, axis: str) -> list:
    return curve.train_ms if axis == "time" else curve.tokens


def _known(values: list) -> list:
    return [value for value in values if value is not None]


def _draw(axes, groups: list[Group], axis: str, most_points: int) -> None:
    unit, scale = curves.time_unit(groups) if axis == "time" else curves.token_unit(groups)
    top = (curves.loss_range(groups) or [None, None])[1]

    def line(curve: curves.Curve, **style) -> None:
        x = _x(curve, axis)
        # Points far above the picture are not written.
        points = [
            (a / scale, b) for a, b in zip(x, curve.loss) if a is not None and b is not None and (top is None or b < 2 * top)
        ]
        axes.plot([p[0] for p in points], [p[1] for p in points], **style)

    for group in groups:
        color, style = curves.color(group), LINES[curves.dash(group)]
        several = len(group.finished) > 1
        for run in group.runs:
            line(curves.training_curve(run, most_points), color=color, alpha=0.25 if several else 0.4, linewidth=0.7)
            if several or not run.finished:
                line(curves.validation_curve(run), color=color, alpha=0.4, linewidth=0.9, linestyle=style)
        shown = [curves.validation_curve(run) for run in group.finished]
        label = group.label if len(shown) < 2 else f"{group.label} (mean of {len(shown)})"
        line(
            curves.mean_curve(shown),
            color=color,
            linewidth=2.2,
            linestyle=style,
            marker=MARKERS[curves.symbol(group)],
            markersize=5,
            label=label if shown else f"{group.label} (not finished)",
        )
    for target in curves.targets(groups):
        axes.axhline(target, color=curves.TARGET_COLOR, linewidth=1.3, linestyle=(0, (5, 3)), zorder=1)
        # Placed on the side without the legend.
        axes.annotate(
            f"target {target:g}",
            (0, target),
            xycoords=("axes fraction", "data"),
            xytext=(5, 2),
            textcoords="offset points",
            color="#59636E",
            fontsize=10,
        )
    axes.set_xlabel(curves.x_field(axis).heading(unit))
    axes.set_ylabel(STEP["loss"].heading())
    if (limits := curves.loss_range(groups)) is not None:
        axes.set_ylim(*limits)
    ends = [max(x) / scale for g in groups for run in g.finished if (x := _known(_x(curves.validation_curve(run), axis)))]
    if ends and max(ends) > LOG_SPREAD * min(ends) > 0:  # otherwise the fastest would all be at the left edge
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlim(min(ends) / 4, max(ends) * 6)  # on the right, room for the legend
    else:
        axes.set_xlim(left=0)
    axes.legend(edgecolor="none", framealpha=0.9, fontsize=10, loc="upper right")


def _panels(groups: list[Group], boards: dict[str, list[str]]) -> list[tuple[str, list[Group]]]:
    """Returns one panel for each board, in order, with its records; a single panel has no name."""
    panels = [(name, [g for g in groups if g.runs[0].place.folder in folders]) for name, folders in boards.items()]
    panels = [(name, members) for name, members in panels if members]
    return panels if len(panels) > 1 else [("", groups)]


def write_pictures(
    groups: list[Group], title: str, folder: Path, formats: list[str], boards: dict[str, list[str]]
) -> list[Path]:
    """Writes loss_time and loss_tokens in each format ("png", "svg"), without the baselines of records. boards: ordered
    names, with their folders of records, if all runs belong to records."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = [group for group in groups if not group.is_baseline] or groups
    panels = _panels(shown, boards)
    num_runs = sum(len(group.runs) for _, members in panels for group in members)
    most_points = max(2, min(MOST_POINTS, MOST_POINTS_OF_ALL // num_runs))
    written = []
    with plt.rc_context(STYLE):
        for axis in ("time", "tokens"):
            columns = 2 if len(panels) == 4 else min(len(panels), MOST_COLUMNS)
            rows = -(-len(panels) // columns)
            size = (8, 4.5) if len(panels) == 1 else (6 * columns, 4.5 * rows)
            figure, all_axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
            for axes in all_axes.flat[len(panels) :]:
                axes.set_visible(False)
            for axes, (name, members) in zip(all_axes.flat, panels):
                _draw(axes, members, axis, most_points)
                heading = f"{title}: {name}" if name else title
                axes.set_title(heading.replace("$", r"\$"), loc="left", fontsize=12, fontweight="bold")
            for kind in formats:
                path = folder / f"loss_{axis}.{kind}"
                # The file contains neither the date nor the library's version.
                metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
                figure.savefig(path, dpi=150, metadata=metadata, facecolor="white")
                written.append(path)
            plt.close(figure)
    return written
