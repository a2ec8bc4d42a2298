"""What an extractor learns to predict of each sentence."""

import numpy as np
import pytest

from raysum.config.loading import load_config
from raysum.errors import UserError
from raysum.extract.targets import sentence_targets

SENTENCES = ["The Arno runs to Pisa in 1987.", "In Pisa, the Arno runs.", "Nothing of it.", "!"]
REFERENCES = ["The Arno runs slowly to Pisa.", "Pisa is old."]


def longest(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence, by the table of the textbook."""
    lengths = np.zeros((len(one) + 1, len(other) + 1), int)
    for i, word in enumerate(one):
        for j, same in enumerate(other):
            lengths[i + 1, j + 1] = lengths[i, j] + 1 if word == same else max(lengths[i, j + 1], lengths[i + 1, j])
    return int(lengths[-1, -1])


def test_bigrams_count_for_each_word_of_the_sentence():
    # the arno, arno runs, to pisa; the arno, arno runs. Each sentence has five words more.
    expected = [3 / (7 + 5), 2 / (5 + 5), 0, 0]
    np.testing.assert_allclose(sentence_targets("rouge2", SENTENCES, REFERENCES), expected)


def test_common_subsequences_are_those_of_the_textbook():
    np.testing.assert_allclose(sentence_targets("rougeL", SENTENCES, REFERENCES), [5 / 12, 3 / 10, 0, 0])
    generator = np.random.default_rng(0)
    for _ in range(50):
        one, other = (generator.choice([*"abcde"], size).tolist() for size in generator.integers(1, 90, 2))
        found = sentence_targets("rougeL", [" ".join(one)], [" ".join(other)])
        np.testing.assert_allclose(found, longest(one, other) / (len(one) + 5))


def test_support_counts_names_three_times_and_repeated_parts_once():
    found = sentence_targets("support", [*SENTENCES, "Pisa is old, Pisa is old."], REFERENCES)
    # Of the first reference Arno, Pisa (names) and runs, or, of the second, Pisa and old; a first word is no name.
    np.testing.assert_allclose(found, [7 / 12, 7 / 10, 0, 0, 3 / 11])
    assert sentence_targets("support", SENTENCES[:1], ["Pisa is old."]).tolist() == [1 / 12]


def test_the_target_is_a_setting():
    assert load_config("extractor", (), {}).model.target == "rouge2"
    with pytest.raises(UserError, match=r"model.target.*rouge2"):
        load_config("extractor", ("model.target=bleu",), {})
