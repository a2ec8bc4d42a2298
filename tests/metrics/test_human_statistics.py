"""Agreement and significance against numbers from elsewhere, or by hand."""

import math

import pytest

from raysum.metrics.significance import anova, binomial, holm, krippendorff, paired_t, tukey

# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), section E: four observers, twelve units.
OBSERVERS = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]


def test_alpha_of_krippendorffs_own_example():
    given = [(unit, int(value)) for row in OBSERVERS for unit, value in enumerate(row) if value != "."]
    assert krippendorff(given, "nominal") == pytest.approx(0.743, abs=5e-4)
    assert krippendorff(given, "ordinal") == pytest.approx(0.815, abs=5e-4)


def test_alpha_at_its_ends():
    assert krippendorff([("a", 1), ("a", 1), ("b", 2), ("b", 2)], "ordinal") == 1
    assert krippendorff([("a", 1), ("b", 2)], "nominal") is None  # one judge
    assert krippendorff([("a", 1), ("a", 1)], "nominal") is None  # nothing varies
    # Two judges who always differ on two units: observed 1, expected 2 * 2 * 2 / (4 * 3).
    assert krippendorff([("a", 1), ("a", 2), ("b", 2), ("b", 1)], "nominal") == pytest.approx(1 - 1 / (2 / 3))


def test_variance_and_tukey_by_hand():
    values = {"a": [1.0, 2, 3], "b": [2.0, 3, 4], "c": [6.0, 7, 8]}
    # Means 2, 3, 7, of all 4: between 3 * (4 + 1 + 9) / 2 = 21, within 6 / 6 = 1; F(2, 6) has p = (1 + 2 F / 6)^-3.
    found = anova(values)
    assert found["F"] == pytest.approx(21) and found["p"] == pytest.approx((1 + 21 / 3) ** -3)
    compared = tukey(values)
    assert compared["a", "c"]["difference"] == -5 and compared["a", "c"]["p"] < 0.01 < compared["a", "b"]["p"]
    # Critical studentized range of 3 means and 6 degrees: 4.339 at 0.05, so 4.339 / sqrt(3) apart.
    edge = {"a": [-1.0, 0, 1], "b": [4.339 / math.sqrt(3) + step for step in (-1, 0, 1)], "c": [-1.0, 0, 1]}
    assert tukey(edge)["a", "b"]["p"] == pytest.approx(0.05, abs=1e-4)


def test_too_little_is_unknown():
    assert anova({"a": [1.0], "b": [2.0, 3.0]}) == {"F": None, "p": None} and tukey({"a": [], "b": [1.0]}) == {}
    assert anova({"a": [1.0, 1.0], "b": [1.0, 1.0]}) == {"F": None, "p": None}
    assert paired_t({"a": {1: 2.0}, "b": {1: 3.0}}) == {} and binomial({("a", "b"): (0, 0)}) == {}


def test_paired_t_by_hand():
    found = paired_t({"a": {1: 1.0, 2: 2.0, 3: 5.0, 4: 9.0}, "b": {3: 2.0, 2: 1.0, 1: 2.0}})["a", "b"]
    # Differences -1, 1, 3: mean 1, deviation 2, t = 1 / (2 / sqrt(3)); of 2 degrees p = 1 - t / sqrt(2 + t^2).
    t = math.sqrt(3) / 2
    assert found["difference"] == 1 and found["t"] == pytest.approx(t)
    assert found["p"] == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert paired_t({"a": {1: 1.0, 2: 2.0}, "b": {1: 1.0, 2: 2.0}})["a", "b"]["p"] == 1


def test_binomial_and_holm_by_hand():
    found = binomial({("a", "b"): (9, 1), ("a", "c"): (10, 0), ("b", "c"): (5, 5)})
    assert found["a", "b"]["share"] == 90 and found["a", "b"]["p_alone"] == pytest.approx(22 / 1024)
    assert found["a", "c"]["p"] == pytest.approx(3 * 2 / 1024) and found["a", "b"]["p"] == pytest.approx(2 * 22 / 1024)
    assert found["b", "c"]["p"] == 1
    steps = holm({("a", "b"): {"p": 0.04}, ("a", "c"): {"p": 0.03}, ("b", "c"): {"p": None}})
    assert [one["p"] for one in steps.values()] == [0.06, 0.06, None]
