"""Tables: columns without values are left out, and each value names its column for narrow screens."""

from helpers.browsing import Page
from raysum.pages import parts


def test_a_column_without_values_is_left_out():
    page = Page(parts.table(["run", "loss", "note", "speed"], [["a", "2.0", "", "–"], ["b", "", "", "3"]]))
    assert page.cells[""] == [["run", "loss", "speed"], ["a", "2.0", "–"], ["b", "", "3"]]
    columns = [own["data-column"] for tag, own in page.tags if tag == "td"]
    assert columns == ["loss", "speed"] * 2
    assert Page(parts.table(["run", "loss"], [])).cells[""] == [["run", "loss"]]
