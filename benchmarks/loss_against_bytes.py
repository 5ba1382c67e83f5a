#!/usr/bin/env python3
"""What do fewer bytes cost? Draws the loss of each case that local_steps.py --points has measured against the bytes
that a peer sent for a step.

    benchmarks/loss_against_bytes.py POINTS --svg FILE

The bytes are on a logarithmic axis, the loss is what it is more than that of one process. Needs nothing but Python.
"""

import argparse
import html
import json
import math
import sys
from pathlib import Path

from loss_curves import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, frame, level, ticks, value_below

TITLE = "Loss beside one process, against the bytes that a peer sends for a step"
LINE, LETTER, POINT = 15, 7, 5  # of text, and a point's radius
UNITS = ((1e6, "MB"), (1e3, "kB"), (1, "B"))


def size(count):
    unit, name = next(one for one in UNITS if count >= one[0])
    return f"{count / unit:g} {name}"


def place_of_text(x, y, name, taken):
    """Where the text of a point begins and on which line it stands: it covers neither a point nor another text."""
    width = LETTER * len(name)
    begin = x - 9 - width if x > WIDTH / 2 else x + 9  # there is no room to the right
    for shift in (0, -LINE, LINE, -2 * LINE, 2 * LINE):
        box = (begin, y + shift - LINE / 2, begin + width, y + shift + LINE / 2)
        if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
            break
    taken.append(box)
    return begin, y + shift + 4


def chart(points):
    """An SVG of points: name to what local_steps.outcome() returns."""
    sizes = [math.log10(one["bytes_per_step"]) for one in points.values()]
    first, last = math.floor(min(sizes)), math.ceil(max(sizes))
    percents = [100 * one["more"] for one in points.values()]
    margin = (max(percents) - min(0, *percents)) * 0.1
    low, high = min(0, *percents) - margin, max(percents) + margin

    def at(logarithm, percent):
        return (LEFT + (WIDTH - LEFT - RIGHT) * (logarithm - first) / (last - first),
                TOP + (HEIGHT - TOP - BOTTOM) * (high - percent) / (high - low))

    out = frame(TITLE)
    for percent in ticks(low, high):
        out.append(level(at(first, percent)[1], f"{percent:+g} %", ' stroke-dasharray="6 4"' if percent == 0 else ""))
    for logarithm in range(first, last + 1):
        x, _ = at(logarithm, low)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#dddddd"/>'
                   + value_below(x, size(10**logarithm)))
    places = {name: at(math.log10(one["bytes_per_step"]), 100 * one["more"]) for name, one in points.items()}
    taken = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in places.values()]
    for number, (name, (x, y)) in enumerate(places.items()):
        begin, line = place_of_text(x, y, name, taken)
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{POINT}" fill="{COLOURS[number % len(COLOURS)]}"/>'
                   f'<text x="{begin:.1f}" y="{line:.1f}">{html.escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", type=Path)
    parser.add_argument("--svg", type=Path, required=True)
    given = parser.parse_args()
    given.svg.write_text(chart(json.loads(given.points.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
