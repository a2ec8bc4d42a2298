"""Names and numbers: which tokens count, and which of them occur in the sources as they are written."""

import pytest

from raysum.text.names import Sources, name_spans, unsupported

CASES = {
    "The bridge Firnir crosses Nonru.": "Firnir|Nonru",
    "It was designed by Nin Telfon in 1,820.5 days.": "Nin Telfon|1,820.5",
    "Vu Tanpar, Ra Sol and O'Neil met in the U.S. The mill stood.": "Vu Tanpar|Ra Sol|O'Neil|U.S",
    "Sheep graze. Near Rome an iPhone rang; the mRNA of 193or": "Sheep|Rome|iPhone|mRNA|193or",
    "Мост Фирнир пересекает Нонру": "Мост Фирнир|Нонру",
    "大桥 1908 年，一月三日": "1908",
    "": "",
    "It fell by 1.5bn to 1,820. Of 12:30, 3/4, 2019-2021 and": "1.5bn|1,820|12:30|3/4|2019-2021",
    "-5, −5, (-5), $5; 5%, 5 %, US$5, x-5, p.5, .5": "-5|−5|-5|$5|5%|5 %|US$5|5|5|.5",
    "10km, 10 km, 10 km/h, 1.5 million, 10 kites, 10 k": "10km|10 km|10 km/h|1.5 million|10|10 k",
    "a 1956-born 37-year-old of mid-1956, COVID-19, B2, 3rd": "1956|37|1956|COVID-19|B2|3rd",
    "1\u202f820 or 1\xa0820, 12 345, 1820 100": "1\u202f820|1\xa0820|12 345|1820 100",
    "٣٫٥ or १,८२०, １，８２０": "٣٫٥|१,८२०|１，８２０",
    "of Vu–Tanpar, Vu−Ra and E\u0301lodie Ra\u0301; ǅaba came": "Vu–Tanpar|Vu−Ra|E\u0301lodie Ra\u0301|ǅaba",
}


@pytest.mark.parametrize("text", CASES)
def test_names_of_a_text(text):
    assert "|".join(text[start:end] for start, end in name_spans(text)) == CASES[text]


MILL = ["Vu Tanpar built\nthe mill in 1914-1918.", "The Hague is old; sheep graze on 12,000 fields."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Vu Tanpar came. Tanpar came in 1914-1918. The Hague is far. Sheep graze. The Vu Tanpar", ""),
        ("Tan Tanpar came.", "Tan Tanpar"),
        ("Vu built it in 191.", "191"),
        ("Vu Vu came with 12 others, 12,000 in all", "Vu Vu|12"),
        ("There Sheep graze near Mill", "Sheep|Mill"),
        ("Old mills. Goats graze", "Goats"),
        ("Sheep Tanpar", "Sheep Tanpar"),
        ("Sheep Sol", "Sheep Sol"),
        ("Built 1914-1918", ""),
        ("Built 1914", "Built 1914"),
    ],
)
def test_a_name_occurs_in_the_sources_only_as_it_is_written(text, expected):
    assert "|".join(text[start:end] for start, end in unsupported(text, Sources(MILL))) == expected


def test_a_name_is_not_composed_at_the_start_of_a_sentence_or_at_a_dash():
    sources = Sources(
        ["Vu Tanpar grew a rose, will run in may, and then Ra Sol came with 37 goats", "yesterday Tanpar"]
    )
    composed = "Rose Tanpar came.|Will Tanpar came|May Sol ran|He won. Rose Sol|Vu–Ra|Vu−Sol|Rose-Sol"
    other = "Roses|Vu\xa0Sol|Ra\u0301 Sol|Goats grew. Then–Sol|ǅ"
    separate = "Rose and Tanpar|Yesterday Tanpar|Then Sol and the Tanpar|Goats of 37.|Run, Ra\xa0Sol|And 37"
    for text in f"{composed}|{other}".split("|"):
        assert unsupported(text, sources), text
    for text in separate.split("|"):
        assert not unsupported(text, sources), text


@pytest.mark.parametrize(
    ("source", "fragments"),
    [
        ("paid 1,820 in", "820 1 182 1,82"), ("of 1.5bn a", "5bn 1.5 1 5 bn5"), ("at 37.5 or", "37 5 7.5"),
        ("from 2019-2021, 2022–2024", "2019 2021 2022 2024 -2021 2019–2021"),
        ("at 12:30 and", "12 30"), ("3/4 of", "3 4"),
        ("at -5 or", "5 −5"), ("at −7 or", "7 -7"), ("for $5 or", "5"), ("by 5% or 6 %", "5 6"), ("of 10km", "10"),
        ("of 10 km, 3 million", "10 3"), ("of 1\u202f820 a", "1 820"), ("with COVID-19 or", "19"), ("a B2 of", "2"),
        ("the 3rd of", "3"), ("٣٫٥ or", "٣ ٥"), ("x १,८२० x", "१ ८२०"), ("US$5 for", "5 $5"),
        ("5%-10% of", "5% 10% 5"),
    ],
)  # fmt: skip
def test_a_part_of_a_number_is_unsupported(source, fragments):
    sources = Sources(["A title", source])
    for fragment in fragments.split():
        assert unsupported(f"it is {fragment}, so", sources), fragment
    assert not unsupported(f"It is {source}.", sources)
    assert not unsupported(f"It is {source.replace(chr(0x202F), ' ')}", sources)
