"""Clean sentences, and what a sentence needs to be read alone. Expected texts are written by hand."""

import pytest

from raysum.text.readability import (
    clean,
    continues,
    is_first_person,
    is_fragment,
    is_question,
    is_scholarly,
    without_connective,
)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Tom &amp; Jerry said [12, 13] &quot;no&quot; to all.", 'Tom & Jerry said "no" to all.'),
        ("The hotel , isn ' t it , was cheap .", "The hotel, isn't it, was cheap."),
        ("Use %R or a != b ; 5 % of .NET .", "Use %R or a != b; 5% of .NET."),
        ("So um , the remote {disfmarker} is yellow .", "So the remote is yellow."),
        ("Rates rose[citation needed] (see Figure 3) in May (May 2003).", "Rates rose in May (May 2003)."),
        ('See [our guide]({{"/a/b" | url }}) of {{ site.name }} rules.', "See our guide of rules."),
        ("TL;DR: The guide has ten rules.", "The guide has ten rules."),
        ("Update: The guide says Edit: only once.", "The guide says Edit: only once."),
        ("It was developed in [Sid83].", "It was developed in [Sid83]."),
        ("He was born (in 1987) in Paris.", "He was born (in 1987) in Paris."),
    ],
)
def test_marks_entities_and_fillers_are_removed(raw, expected):
    assert clean(raw) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Models (Wu, 2002; Lee et al., 2003) 1 by words.", "Models by words."),
        ("Liu et al (2006) propose trees.", "Liu et al. propose trees."),
        ("In (Hulth, 2003), trees (see Kim (2001) for more) grow.", "In Hulth, trees (see Kim for more) grow."),
        ("In recent work, (Hulth, 2003) proposes features.", "In recent work, Hulth proposes features."),
        ("Olmsted (1903) and Kim (2001a; 2001b) agree [Church 1988].", "Olmsted and Kim agree."),
        ("It was held in Rome (May 2003).", "It was held in Rome (May 2003)."),
    ],
)  # fmt: skip
def test_author_year_citations_of_scholarly_texts_are_removed(raw, expected):
    assert clean(raw, scholarly=True) == expected


def test_a_text_is_scholarly_if_it_often_cites():
    assert is_scholarly("As Wu et al. and Lee et al. say (Kim, 2001), so do others.")
    assert not is_scholarly("The film (Titanic, 1997) won eleven prizes in March 1998.")


def test_spoken_repetitions_are_printed_once():
    assert clean("I I think w we should , you you know , go .", is_spoken=True) == "I think we should, you know, go."
    assert clean("They had had enough.") == "They had had enough."
    assert clean("[39:46] I know [laughter] that that's it.", is_spoken=True) == "I know that that's it."
    assert clean("I don't think it's so.", is_spoken=True) == "I don't think it's so."


@pytest.mark.parametrize(
    "text", ["But it rained.", "They left.", "Those are old.", "However it rained.", "This is bad."]
)
def test_a_sentence_that_continues_another_is_found(text):
    assert continues(text)
    assert not continues("The river is long.") and not continues("This paper presents a parser.")


@pytest.mark.parametrize(
    "text, language",
    [
        ("Beyond that, the ferry costs money.", "English"),
        ("Most of these ships are old.", "English"),
        ("The other bridge is closed.", "English"),
        ("The captain sold it.", "English"),
        ("Later the bridge fell down.", "English"),
        ("I think it's too late.", "English"),
        ("I don't know if that's the case.", "English"),
        ("Eine davon ist in Wien.", "German"),
        ("Bei ihnen handelt es sich um Fischer.", "German"),
        ("Das berichtete eine Zeitung.", "German"),
    ],
)
def test_words_that_point_back_are_found_near_the_beginning(text, language):
    assert continues(text, language)


@pytest.mark.parametrize(
    "text, language",
    [
        ("Beyond the town that lies on the river, the road ends.", "English"),
        ("Prices rose this year.", "English"),
        ("I think that the bridge is old.", "English"),
        ("The captain of the ship sold it in May.", "English"),
        ("Das Tor ist alt.", "German"),
    ],
)
def test_other_words_do_not_point_back(text, language):
    assert not continues(text, language)


def test_an_answer_and_an_unknown_speaker_continue():
    assert continues("Yes, the boat left at noon.") and continues('"It is a dummy," said he.')
    assert not continues('"Here is a dummy," said Holmes.') and not continues("The boat left at noon.")
    assert without_connective("Alternatively, the boat leaves at noon.") == "The boat leaves at noon."
    assert is_fragment("...while you are watching them code.")
    assert is_fragment("I went to the harbour and then...", is_spoken=True)
    assert not is_fragment("They went to the harbour and waited...")


def test_continuing_words_belong_to_languages():
    assert continues("Die Stadt ist alt.", "Dutch") and not continues("Die Stadt ist alt.", "German")
    assert continues("然而，河流很长。", "Chinese") and not continues("河流很长。", "Chinese")
    assert continues("Однако река длинная.", "Cyrillic script")


def test_a_connective_is_removed():
    assert without_connective("However, the river is long.") == "The river is long."
    assert without_connective("Finally the river is long.") == "Finally the river is long."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("We measured the river.", True),
        ("The river is ours.", True),
        ("In this paper, the river is measured.", True),
        ('"We measured the river," said Ann.', False),
        ("The US Army was in World War I, and in World War II.", False),
        ("The river is long.", False),
    ],
)
def test_the_first_person_is_found_outside_of_quotations(text, expected):
    assert is_first_person(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "The model uses factorization.1 At each step it reads.",
        "Yeah, yeah, okay.",
        "Results are in Table 3 of the appendix.",
        "The speed (in metres was high on all days.",
        "where p(x) = 0.3 · q / 2 + 1, for x > 0.",
        "The cafÃ© was closed in the summer.",
        "It was developed in [12] for text.",
        "D Allen (Trafford AC), S Claxton (Belgrave Harriers).",
        "Alternative: Cancel tokens.",
        "D'importer un flux de bénéficiaires.",
        "Describes the motivation of the proposal.",
        "[REJECT] the block has no hash.",
        "Thanks to all who sent us photographs of the bridge.",
        "The photographs of the bridge are on https://example.org/bridge",
        "Now it said: 'Found at the corner of Goodge Street, a goose and a hat.",
        "We shall want you to come by the last train.'",
    ],
)
def test_fragments_are_found(text):
    assert is_fragment(text)


@pytest.mark.timeout(10)
def test_a_very_long_word_is_read_soon():
    assert is_fragment("x" * 1_000_000)  # a minute for 100,000 letters, if each were a start of all others
    assert continues(f"They {'x' * 1_000_000} saw it.") and not is_question("?)" * 500_000 + "x")
    assert not is_fragment(f"Alternative: {'x' * 1_000_000} is long and wide enough here.")
    assert not is_first_person("“a " * 100_000 + "b.")
    assert clean("{{" * 100_000) == "{{" * 100_000


@pytest.mark.parametrize("text", ["Rome lies on the Tiber.", "大教堂于1436年完工！", "Волга впадает в море.", "It is the capital of Italy.", "'I see,' said the students' guide of '82."])  # fmt: skip  # noqa: E501
def test_sentences_are_no_fragments(text):
    assert not is_fragment(text)
