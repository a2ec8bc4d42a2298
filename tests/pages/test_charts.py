"""Charts: every mark is inside the drawing, with its tooltip, and values that are not finite are left out."""

import math
import re

import pytest

from raysum.pages.charts import Chart, Line, ParallelChart, Point, RowChart, save


def marks(html: str) -> list[tuple[float, float]]:
    """The positions of the dots."""
    return [(float(x), float(y)) for x, y in re.findall(r'<use [^>]*x="([^"]+)" y="([^"]+)"', html)]


@pytest.mark.parametrize("log", ["", "xy"])
@pytest.mark.parametrize(
    "values", [(0, 1), (0.00071, 0.00089), (3, 3), (0, 0), (-5, 12), (1e-5, 4), (900, 12e6), (0.0, 1e-9), (1, 1e30)]
)
def test_points_of_any_range_are_inside(values, log):
    points = [Point(value, value, f"<{value}>", value / 2, 2 * value) for value in values]
    html = Chart("a & b", [Line("a", points), Line("b", points[:1], 3)], "x", "y", log).html()
    assert len(marks(html)) == 3 and all(0 < x < 480 and 0 < y < 270 for x, y in marks(html))
    assert html.count(f"<title>&lt;{values[0]}&gt;</title>") == (3 if values[0] == values[1] else 2)
    assert "a &amp; b" in html and 'class="k3"' in html and len(re.findall("<text", html)) >= 4


def test_what_is_not_finite_is_not_drawn():
    points = [Point(1.0, math.nan), Point(math.inf, 1.0)]
    row = Line("a", [Point(math.nan, 0.0, "", 0.0, 1.0)])
    assert Chart("x", [Line("a", points)]).html() == RowChart("x", [row], "x").html() == ""
    html = Chart("x", [Line("a", [*points, Point(1.0, 2.0, "here")])]).html()
    assert len(marks(html)) == 1 and "nan" not in html and "<title>here</title>" in html


def test_rows_and_parallel_axes_have_names_and_tooltips():
    long = "a name of more than thirty letters"
    rows = [Line(name, [Point(value, 0, "", value - 1, value + 2)]) for name, value in (("first", 3.0), (long, 7.0))]
    html = RowChart("rows", rows, "score").html()
    assert [y for _, y in marks(html)] == sorted(y for _, y in marks(html))  # the first is at the top
    assert f"<title>{long}: 7 [6, 9]</title>" in html and f">{long[:29]}…<" in html
    drawn = [(Line(f"line {mix}", ()), (mix, width, loss)) for mix, width, loss in (("LL", 8, 2.0), ("LG", 512, 1.5))]
    html = ParallelChart("all", ["mix", "width", "loss"], drawn, upward=False).html()
    worse, better = (path.split()[-1] for path in re.findall('<path d="([^"]+)" clip', html)[-2:])
    assert float(better) < float(worse)  # the lower loss is at the top
    assert {"mix", "width", "loss", "LL", "LG"} <= {*re.findall(">([^<>]+)</text>", html)}
    assert "<title>line LL</title>" in html


def test_charts_side_by_side_as_png(tmp_path):
    save(tmp_path / "none.png", "none", [RowChart("x", [], "x")])
    save(
        tmp_path / "charts.png", "both", [Chart("x", [Line("a", [Point(1, 2)])], "x", "y"), RowChart("x", [], "x")] * 2
    )
    assert not (tmp_path / "none.png").exists()
    assert (tmp_path / "charts.png").read_bytes().startswith(b"\x89PNG")


def test_differences_are_drawn_beside_zero():
    rows = [Line("a - b", [Point(-12.0, 0, "", -14.0, -10.0)])]
    without, beside = RowChart("Scores", rows, "points"), RowChart("Differences", rows, "points", from_zero=True)
    assert marks(without.html())[0][0] > marks(beside.html())[0][0]  # zero is at the right
