"""Names and numbers: what counts as one, and what stands in the sources as it is written."""

import pytest

from raysum.metrics.names import Sources, names, unsupported

CASES = {
    "The bridge Firnir crosses Nonru.": ["Firnir", "Nonru"],
    "It was designed by Nin Telfon in 1,820.5 days.": ["Nin Telfon", "1,820.5"],
    "Vu Tanpar, Ra Sol and O'Neil met in the U.S. The mill stood.": ["Vu Tanpar", "Ra Sol", "O'Neil", "U.S"],
    "Sheep graze. Near Rome an iPhone rang; the mRNA of 193or": ["Sheep", "Rome", "iPhone", "mRNA", "193or"],
    "Мост Фирнир пересекает Нонру": ["Мост Фирнир", "Нонру"],
    "大桥 1908 年，一月三日": ["1908"],
    "": [],
}


@pytest.mark.parametrize("text", CASES)
def test_names_of_a_text(text):
    assert [text[start:end] for start, end in names(text)] == CASES[text]


def test_a_name_stands_in_the_sources_only_as_it_is_written():
    sources = Sources(["Vu Tanpar built\nthe mill in 1914-1918.", "The Hague is old; sheep graze on 12,000 fields."])
    for text in ("Vu Tanpar came.", "Tanpar came in 1918.", "The Hague is far.", "Sheep graze.", "The Vu Tanpar"):
        assert not unsupported(text, sources), text
    wrong = {
        "Tan Tanpar came.": ["Tan Tanpar"],
        "Vu built it in 191.": ["191"],
        "Vu Vu came with 12 others, 12,000 in all": ["Vu Vu"],
        "There Sheep graze near Mill": ["Sheep", "Mill"],
        "Old mills. Goats graze": ["Goats"],
        "Sheep Tanpar": [],
        "Sheep Sol": ["Sol"],
    }
    for text, expected in wrong.items():
        assert [text[start:end] for start, end in unsupported(text, sources)] == expected, text
