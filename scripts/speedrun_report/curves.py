"""Loss curves and the palette, for the page and the pictures."""

import statistics
from dataclasses import dataclass

from .groups import Group
from .metric_fields import STEP, Field
from .runs import Run

# Okabe and Ito, "Color Universal Design" (2008), without yellow and black, which are invisible on one of the page's
# backgrounds.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# A second distinction besides colour; 6 x 5 groups are distinct.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
# Colours of the parts of the training time, in the order of the stack.
PART_COLORS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00")
TARGET_COLOR = "#8A8F98"


def color(group: Group) -> str:
    return PALETTE[group.index % len(PALETTE)]


def symbol(group: Group) -> str:
    return SYMBOLS[(group.index + group.index // len(PALETTE)) % len(SYMBOLS)]


def dash(group: Group) -> str:
    return DASHES[group.index // len(PALETTE) % len(DASHES)]


@dataclass
class Curve:
    """Points of a loss curve, aligned lists; loss in nats per token, None where it was not finite."""

    step: list[int]
    train_ms: list[float]
    tokens: list[float | None]
    loss: list[float | None]


def validation_curve(run: Run) -> Curve:
    lines = run.validations
    return Curve(*([line[key] for line in lines] for key in ("step", "train_ms", "tokens", "loss")))


def training_curve(run: Run, most_points: int) -> Curve:
    """Reduces a curve to a maximum number of points: each is the mean loss of equally many consecutive steps, at the last of
    them."""
    lines = run.steps
    size = -(-len(lines) // most_points) if lines else 1
    curve = Curve([], [], [], [])
    for begin in range(0, len(lines), size):
        bucket = lines[begin : begin + size]
        losses = [line["loss"] for line in bucket]
        curve.step.append(bucket[-1]["step"] + 1)
        curve.train_ms.append(bucket[-1]["train_ms"])
        curve.tokens.append(bucket[-1]["tokens"])
        curve.loss.append(None if None in losses else statistics.fmean(losses))
    return curve


def mean_curve(curves: list[Curve]) -> Curve:
    """Returns mean time and mean loss at the steps common to all curves. A loss of None makes the mean None."""
    mean = Curve([], [], [], [])
    if not curves:
        return mean
    points = [{step: i for i, step in enumerate(curve.step)} for curve in curves]
    for step in curves[0].step:
        if not all(step in p for p in points):
            continue
        at = [(curve, p[step]) for curve, p in zip(curves, points)]
        losses = [curve.loss[i] for curve, i in at]
        mean.step.append(step)
        mean.train_ms.append(statistics.fmean(curve.train_ms[i] for curve, i in at))
        mean.tokens.append(at[0][0].tokens[at[0][1]])
        mean.loss.append(None if None in losses else statistics.fmean(losses))
    return mean


def targets(groups: list[Group]) -> list[float]:
    return sorted({run.target for group in groups for run in group.runs if run.target is not None})


def x_field(axis: str) -> Field:
    """Returns the metric of the horizontal axis: "time" or "tokens"."""
    return STEP["train_ms" if axis == "time" else "tokens"]


def time_unit(groups: list[Group]) -> tuple[str, float]:
    """Returns name and milliseconds of a suitable time unit for the longest run."""
    longest = max((run.train_ms for group in groups for run in group.runs), default=0.0)
    unit = "s" if longest < 20 * 60e3 else "min" if longest < 10 * 3600e3 else "h"
    return unit, STEP["train_ms"].scale(unit)


def token_unit(groups: list[Group]) -> tuple[str, float]:
    most = max((run.steps[-1]["tokens"] for group in groups for run in group.runs if run.steps), default=0)
    if most < 1e6:
        return "thousand", 1e3
    return ("million", 1e6) if most < 1e10 else ("billion", 1e9)


def loss_range(groups: list[Group]) -> list[float] | None:
    """Returns the range from below the lowest loss to the median group's first validation. The start of training, and
    diverging groups, are outside the picture instead of flattening it. None: no validations."""
    runs = [run for group in groups for run in group.runs]
    validated = [[line["loss"] for line in run.validations if line["loss"] is not None] for run in runs]
    firsts = [losses[0] for losses in validated if len(losses) > 1]
    if not firsts:
        return None
    lowest = min(min(losses) for losses in validated if losses)
    lowest = min([lowest, *targets(groups)])
    highest = max([statistics.median_low(firsts), *targets(groups)])
    room = 0.06 * (highest - lowest) or 0.1
    return [lowest - room, highest + room]
