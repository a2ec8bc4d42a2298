"""What a dataset tells of its clusters: languages, what of the references is left, and the lengths as a picture."""

import json

import pytest

from helpers.small_datasets import write_dataset
from raysum.data.inspection import Card, plot_lengths
from raysum.data.recipe import Recipe
from raysum.errors import UserError
from raysum.prepare.job import prepare
from raysum.prepare.row_builder import RowBuilder
from raysum.text.languages import OTHER, language
from raysum.tokenizers.sentence_piece import Vocabulary

TEXTS = {
    "English": "The old bridge was built by the king, and it is known for its towers.",
    "German": "Die alte Brücke wurde im Jahr 1357 gebaut und ist mit dem Turm verbunden.",
    "French": "Le vieux pont est connu pour les statues des saints qui ornent ses arches.",
    "Spanish": "El puente fue construido por los romanos y es el más antiguo del país.",
    "Italian": "Il ponte della città è stato costruito nel Trecento ed è una delle opere più note.",
    "Portuguese": "A ponte foi construída no século passado e não é mais usada pelos carros da cidade.",
    "Dutch": "De brug werd in de vorige eeuw gebouwd en is een van de bekendste van het land.",
    "Cyrillic script": "Мост был построен в 1357 году, as the guide says.",
    "Greek script": "Η γέφυρα χτίστηκε τον περασμένο αιώνα.",
    "Chinese": "这座桥建于1357年，是该市最著名的建筑。",
    "Japanese": "この橋は1357年に建設された。市の象徴である。",
    "Korean": "이 다리는 1357년에 지어졌다.",
    OTHER: "Lorem ipsum dolor sit amet 1357.",
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_language_of_a_text(name):
    assert language(TEXTS[name]) == name


def test_nothing_is_told_of_a_text_without_letters():
    assert language("") == language("1357 / 12.5 %") == OTHER


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([*TEXTS.values()] * 5, 300)


def test_the_share_of_the_reference_that_truncation_leaves(vocabulary):
    cluster = {
        "title": "red bridge",
        "documents": ["the red bridge of stone is very old and long\n\nnobody has seen that king of Spain since then"],
        "summary": "The red bridge of stone. That king of Spain had gold.",
    }
    recipe = Recipe(vocabulary_sha256=vocabulary.sha256, paragraph_separator="blank-lines")
    # the-red, red-bridge, bridge-of, of-stone in the first paragraph; that-king, king-of, of-spain in the second;
    # stone-that, spain-had, had-gold stand nowhere.
    for limits, kept in (({}, 7), ({"max_paragraphs": 1}, 4)):
        counts = RowBuilder(recipe.model_copy(update=limits), vocabulary).rows(cluster)[1]
        assert counts["reference_bigrams"] == 7 and counts["reference_bigrams_kept"] == kept
        assert counts["language English"] == 1
    title = len(vocabulary.encode("red bridge")) + 1
    cut = {"max_paragraphs": 1, "paragraph_tokens": title + len(vocabulary.encode("the red bridge of"))}
    (row,), counts = RowBuilder(recipe.model_copy(update=cut), vocabulary).rows(cluster)
    assert vocabulary.decode(row["ids"][title:].tolist()) == "the red bridge of"
    assert counts["reference_bigrams"] == 7 and counts["reference_bigrams_kept"] == 3
    without = RowBuilder(recipe, vocabulary).rows(cluster | {"summary": ""})[1]
    assert without["reference_bigrams"] == 0


def test_the_card_tells_languages_and_what_is_left_of_the_references(tmp_path):
    rows = [
        {"title": name, "documents": [text, text.lower()], "summary": "The old bridge was built."}
        for name, text in TEXTS.items()
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = prepare(tmp_path / "train.jsonl", tmp_path / "data", vocab_size=300, clone_recall=1).dataset
    card = Card.of(str(data.path))
    told = card.to_dict()["splits"]["train"]
    assert told["languages"] == {name: pytest.approx(1 / len(TEXTS), abs=1e-4) for name in TEXTS}
    assert told["reference_bigrams_kept"] == 1.0 and not any(name.startswith("language") for name in told["counts"])
    assert told["counts"]["reference_bigrams"] == 4


def test_lengths_are_drawn_as_png_or_svg(tmp_path):
    data = write_dataset(tmp_path / "data", {"train": 30, "test": 5})
    plot_lengths(data, tmp_path / "lengths.png")
    assert (tmp_path / "lengths.png").read_bytes()[:4] == b"\x89PNG"
    plot_lengths(data, tmp_path / "lengths.SVG")
    drawn = (tmp_path / "lengths.SVG").read_text()
    assert all(f"<!-- {axis} -->" in drawn for axis in ("source tokens", "paragraphs", "target tokens"))
    with pytest.raises(UserError, match="ends with .png or .svg"):
        plot_lengths(data, tmp_path / "lengths.jpeg")
    with pytest.raises(UserError, match="there is no folder .*absent; create it"):
        plot_lengths(data, tmp_path / "absent" / "lengths.png")
