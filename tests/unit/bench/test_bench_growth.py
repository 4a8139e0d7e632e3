"""A plot has a line for each name, whose points rise with the seconds."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

from bench.growth import plot


def test_a_plot_has_a_line_for_each_name_and_a_point_for_each_size() -> None:
    series = {"ours": {10: 0.01, 100: 0.1, 1000: 1.0}, "torch < 3": {1000: 5.0}}
    picture = ET.fromstring(plot("Copies of the state", "MB", series))
    lines = [line.get("points", "").split() for line in picture.iter("{http://www.w3.org/2000/svg}polyline")]
    places = [tuple(map(float, point.split(","))) for point in lines[0]]
    assert [len(points) for points in lines] == [3, 1]
    (x1, y1), (x2, y2), (x3, y3) = places
    assert math.isclose(x2 - x1, x3 - x2)
    assert math.isclose(y1 - y2, y2 - y3, abs_tol=0.2)
    assert y1 > y2
