"""The split of a cluster: by option, row, file or held-out share."""

import pickle

import pytest

from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.prepare.config import PrepareConfig
from raysum.sources.record import Record


def split_of(told: object, by_file: str | None, name: str = "a", **settings: object) -> str | None:
    return PrepareConfig(out="x", **settings).choose_split(Record("c:1", {"id": name, "split": told}), by_file)


def test_split_comes_from_the_option_then_the_row_then_the_file():
    assert split_of("train", "valid", split="test") == "test"
    assert split_of("Dev", "train") == "valid"
    assert split_of("fold 3", "train") is None
    assert split_of(None, "valid") == "valid"
    assert split_of("", None) == "train"


def test_held_out_shares_are_stable_and_of_the_right_size():
    splits = [split_of(None, None, f"id{i}", valid=0.1, test=0.2) for i in range(4000)]
    assert splits == [split_of(None, None, f"id{i}", valid=0.1, test=0.2) for i in range(4000)]
    shares = [splits.count(split) / 4000 for split in ("train", "valid", "test")]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.02)
    records = [Record(f"c:{i}", {"id": f"id{i}"}) for i in range(52)]
    for many, valid, test, counts in ((9, 0.2, 0.2, (2, 2)), (52, 0.1, 0.1, (5, 5)), (20, 0, 0.01, (0, 1))):
        config = PrepareConfig(out="x", valid=valid, test=test).drawn(records[:many])
        found = [config.choose_split(one, None) for one in records[:many]]
        assert (found.count("valid"), found.count("test")) == counts
        again = pickle.loads(
            pickle.dumps(PrepareConfig(out="x", valid=valid, test=test).drawn(records[many - 1 :: -1]))
        )
        assert found == [again.choose_split(one, None) for one in records[:many]]
    with pytest.raises(UserError, match="hold out all clusters"):
        section_of(PrepareConfig, {"out": "x", "valid": 0.6, "test": 0.6})
