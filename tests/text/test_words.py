"""Words of scripts with combining marks, and of those without spaces."""

import pytest

from raysum.text.tfidf import count_words, words


@pytest.mark.parametrize(
    ("text", "expected", "number"),
    [
        ("हिन्दी में लिखा", ["हिन्दी", "में", "लिखा"], 3),
        ("Cafe\u0301 noir", ["cafe\u0301", "noir"], 2),
        ("สวัสดี ครับ", ["ส", "วั", "ส", "ดี", "ค", "รั", "บ"], 7),
        ("東京 is big", ["東", "京", "is", "big"], 4),
    ],
)
def test_marks_belong_to_their_letters(text, expected, number):
    assert words(text) == expected
    assert count_words(text) == number
