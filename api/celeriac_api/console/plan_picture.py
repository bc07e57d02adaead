"""A plan as a picture: a box for each step, layer below layer, and lines from what is needed.

It is made here, so that it needs no script: lengths are pixels, and how it looks the style says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from celeriac.plan.standing import Node

BOX_WIDTH = 172
BOX_HEIGHT = 62
LANE_WIDTH = 10  # of a line on its way through a layer
GAP = 16  # between neighbours
LAYER_GAP = 40
MARGIN = 4  # for what is drawn around a box that has the focus

MOST_BOXES = 100
MOST_LINES = 400  # beyond that nobody follows them, and lanes would grow by boxes times layers


@dataclass(frozen=True, slots=True)
class Box:
    node: Node
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    path: str
    has_end: bool  # at a box; else it goes on
    is_done: bool  # what is needed has completed


@dataclass(frozen=True, slots=True)
class Picture:
    width: float
    height: float
    boxes: Sequence[Box]
    lines: Sequence[Line]
    box_width: float = BOX_WIDTH
    box_height: float = BOX_HEIGHT


def picture_of(steps: Sequence[Node]) -> Picture | None:
    """The steps, which come by layer; None if there are too many to draw."""
    if len(steps) > MOST_BOXES or sum(len(step.needs) for step in steps) > MOST_LINES:
        return None
    places = _places(steps)
    rows = [_width(row) for row in places]
    width = max(rows, default=0) + 2 * MARGIN
    middles: list[dict[str, float]] = []
    for row, row_width in zip(places, rows, strict=True):
        left = (width - row_width) / 2
        middles.append({})
        for name, is_box in row.items():
            taken = BOX_WIDTH if is_box else LANE_WIDTH
            middles[-1][name] = left + taken / 2
            left += taken + GAP
    return Picture(
        width,
        len(places) * (BOX_HEIGHT + LAYER_GAP) - LAYER_GAP + 2 * MARGIN,
        [
            Box(step, middles[step.layer][step.id] - BOX_WIDTH / 2, _top(step.layer))
            for step in steps
        ],
        [*_lines(steps, places, middles)],
    )


Row = Mapping[str, bool]
"""The steps in a layer, from left to right; False: only a line comes through, from that step."""


def _places(steps: Sequence[Node]) -> list[Row]:
    """Each row in the order of what it hangs on above, so that few lines cross."""
    needs = {step.id: step.needs for step in steps}
    layers = {step.id: step.layer for step in steps}
    last = dict(layers)  # the layer down to which each step's line goes
    for step in steps:
        for need in step.needs:
            last[need] = max(last[need], step.layer)
    rows: list[Row] = []
    for layer in range(1 + max(layers.values(), default=-1)):
        here = {
            name: layers[name] == layer for name in needs if layers[name] <= layer < last[name]
        } | {name: True for name in needs if layers[name] == layer}
        above = {name: at for at, name in enumerate(rows[-1])} if rows else {}

        def place(name: str, above: Mapping[str, int] = above, row: Row = here) -> float:
            hangs_on = needs[name] if row[name] else [name]
            known = [above[each] for each in hangs_on if each in above]
            return sum(known) / len(known) if known else 0

        rows.append({name: here[name] for name in sorted(here, key=place)})
    return rows


def _width(row: Row) -> float:
    return sum(BOX_WIDTH if is_box else LANE_WIDTH for is_box in row.values()) + GAP * (
        len(row) - 1
    )


def _top(layer: int) -> float:
    return MARGIN + layer * (BOX_HEIGHT + LAYER_GAP)


def _lines(
    steps: Sequence[Node], places: Sequence[Row], middles: Sequence[Mapping[str, float]]
) -> Iterator[Line]:
    states = {step.id: step.state for step in steps}
    for layer, row in enumerate(places):
        for name in (name for name, is_box in row.items() if not is_box):
            down = f"{_curve(middles, name, layer, middles[layer][name])} v {BOX_HEIGHT}"
            yield Line(down, has_end=False, is_done=states[name] == "completed")
    for step in steps:
        for need in step.needs:
            curve = _curve(middles, need, step.layer, middles[step.layer][step.id])
            yield Line(curve, has_end=True, is_done=states[need] == "completed")


def _curve(middles: Sequence[Mapping[str, float]], name: str, layer: int, to: float) -> str:
    """From where `name` is in the layer above down to the top of this one."""
    came, down = middles[layer - 1][name], _top(layer)
    begin, half = down - LAYER_GAP, down - LAYER_GAP / 2
    return f"M {came:g} {begin:g} C {came:g} {half:g} {to:g} {half:g} {to:g} {down:g}"
