"""Which sentences a summary prints, and how: after their predecessors, with their speakers, each content once."""

import pytest

import raysum
from raysum.extract.candidates import Candidates


def summary_of(documents, title="", system="lead", **settings):
    return raysum.load(system).summarize(title, documents, **settings)


def printed(documents, **settings):
    return [sentence.text for sentence in summary_of(documents, **settings).sentences]


BRIDGE = "The city opened the old bridge on Monday. But it stays closed to trucks. The mayor praised the builders."


def test_a_sentence_that_continues_another_comes_only_after_it():
    assert printed([BRIDGE], words=30) == BRIDGE.replace(". ", ".|").split("|")
    later = "Photographs of the town hall are missing today!\n\n# Traffic\n\nBut it stays closed to trucks."
    assert printed([later]) == ["Photographs of the town hall are missing today!"]
    gone = BRIDGE.split(". ", 1)[1]
    assert printed([gone]) == ["The mayor praised the builders."]


def test_a_connective_is_printed_only_after_the_sentence_before_it():
    text = "The bridge needs new cables next year. However, the city council has no money left."
    assert printed([text], words=30)[1] == "However, the city council has no money left."
    assert printed([text.split(". ")[1]]) == ["The city council has no money left."]


def test_the_first_person_has_its_speaker():
    documents = [
        {"source": "reports/heritage_society.txt", "text": "We ask for a second gate. We collected many signatures."},
        {"source": "", "text": "I saw the old gate fall down."},
        {"source": "Daily News", "text": "The gate fell down at night."},
    ]
    assert printed(documents, words=40) == [
        "Heritage society: We ask for a second gate.",
        "We collected many signatures.",
        "Document 2: I saw the old gate fall down.",
        "The gate fell down at night.",
    ]
    documents = [
        {"source": "posts/Survey-launch_2021-05.md", "text": "We ask for a second gate."},
        "The gate fell down at night.",
    ]
    assert "Survey launch 2021-05: We ask for a second gate." in printed(documents, words=40)
    assert printed(["We measured the gate of the city."]) == ["We measured the gate of the city."]


def test_papers_that_cite_the_subject_do_not_speak():
    documents = [
        {"source": "1 Introduction", "text": "We present a parser for trees."},
        {"source": "2 Methods", "text": "The parser reads words from left to right."},
        {
            "source": "cited by P01-1",
            "text": "We use another tagger here. Smith describes a parser for trees of words.",
        },
    ]
    assert printed(documents, words=60) == [
        "We present a parser for trees.",
        "The parser reads words from left to right.",
        "Smith describes a parser for trees of words.",
    ]


def test_turns_of_a_dialogue_have_their_speakers():
    text = (
        "Anna: Um , the remote should be yellow and small.\nBen: Yeah , okay.\n"
        "Ben: The the battery must last two years. A lamp needs too much power.\nAnna: The price is twelve euros.\n"
    )
    summary = summary_of([{"source": "meeting.txt", "text": text}])
    assert [sentence.text for sentence in summary.sentences] == [
        "Anna: The remote should be yellow and small.",
        "Ben: The battery must last two years.",
        "A lamp needs too much power.",
        "Anna: The price is twelve euros.",
    ]
    for sentence in summary.sentences:
        (citation,) = sentence.citations
        assert text[citation.start : citation.end] == citation.quote


def test_turns_in_brackets_and_lower_case_have_their_speakers():
    text = "[doctor] the last scan of your leg was clear . tell me about the pain in your knee .\n"
    text += "[patient] the joint hurts most at night .\n[doctor] the knee looks swollen and red .\n"
    assert [sentence.text for sentence in summary_of([{"source": "visit.txt", "text": text}]).sentences] == [
        "Doctor: The last scan of your leg was clear.",
        "Tell me about the pain in your knee.",
        "Patient: The joint hurts most at night.",
        "Doctor: The knee looks swollen and red.",
    ]


def test_long_turns_continue_in_paragraphs_without_a_mark():
    texts, paragraphs = list[str](), list[int]()
    for turn, name in enumerate(["Anna", "Ben"] * 3):
        for paragraph in range(2):
            texts += [f"{name}: We rebuilt it in May." if paragraph == 0 else "I paid for it.", *["It was tested."] * 5]
            paragraphs += [2 * turn + paragraph] * 6
    starts = [len(" ".join(texts[:number])) for number in range(len(texts))]
    row = {"text": texts, "document": [0] * 72, "paragraph": paragraphs, "char_start": starts, "source": ["talk.txt"]}
    candidates = Candidates(row)
    assert [candidates.speaker(number) for number in range(72)] == [
        name for name in ["Anna", "Ben"] * 3 for _ in "x" * 12
    ]
    assert candidates.text(0) == "We rebuilt it in May."
    note = Candidates(row | {"text": [text.replace("Ben:", f"Note {n}:") for n, text in enumerate(texts)]})
    assert note.speaker(6) == "", "one repeated name is no dialogue"


def test_equal_contents_are_one_sentence_with_both_citations():
    said = "The storm destroyed forty houses near the harbour of Lisbon."
    near = "Near the harbour of Lisbon, the storm destroyed forty houses."
    summary = summary_of([said, f"{near} Schools remain closed until Friday morning."], system="lexrank")
    (merged,) = [sentence for sentence in summary.sentences if "forty" in sentence.text]
    assert sorted(citation.document for citation in merged.citations) == [0, 1]
    assert sum(citation.weight for citation in merged.citations) == pytest.approx(1)
    other = summary_of([said, near.replace("forty", "50")], system="lexrank")
    assert all(len(sentence.citations) == 1 for sentence in other.sentences)


def test_two_sentences_do_not_begin_alike():
    documents = [
        "The new report says that rivers are clean.",
        "The new report says nothing about lakes and ponds of the north.",
    ]
    assert len(printed(documents)) == 1 and len(printed(documents, redundancy=1)) == 2


def test_rules_do_not_apply_if_they_leave_nothing_or_are_switched_off():
    gone = "But it stays closed to trucks. They wait at home."
    assert printed([gone]) == gone.replace(". ", ".|").split("|")
    assert printed([BRIDGE.split(". ", 1)[1]], readable=False)[0] == "But it stays closed to trucks."


@pytest.mark.parametrize("length", [{"characters": 100}, {"percent": 50}, {"sentences": 1}, {"words": 9}])
def test_lengths_are_in_whole_sentences(length):
    text = " ".join(f"The river number {number} is {number} kilometres long." for number in range(1, 11))
    summary = summary_of([text], **length, redundancy=1)
    (unit,) = length
    sizes = {
        "characters": len(summary.summary),
        "sentences": len(summary.sentences),
        "words": len(summary.summary.split()),
    }
    sizes["percent"] = 100 * sizes["words"] / len(text.split())
    assert 0 < sizes[unit] <= length[unit] and summary.summary.endswith("long.")
    assert sizes[unit] > 0.6 * length[unit] and not summary.warnings


def test_each_document_follows_the_rules_of_its_language():
    english = "The council of the city opened the gate on Monday. Mr Der of the council paid for all of it in May."
    german = "Das Tor der Stadt ist auf dem Platz. Er hat es mit dem Rat der Stadt gebaut. Der Rat ist in den Ferien."
    documents = [english, german.split(". ", 1)[1], english.replace("gate", "wall")]
    found = printed(documents, words=200)
    assert "Der Rat ist in den Ferien." in found
    assert not any(sentence.startswith("Er hat") for sentence in found)
    assert printed([german], words=200) == german.replace(". ", ".|").split("|")


HINDI = "दिल्ली भारत की राजधानी है और यहाँ बहुत से लोग रहते हैं। यमुना नदी के किनारे पुराना किला बना हुआ है।"
THAI = "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย แม่น้ำเจ้าพระยาไหลผ่านกลางเมืองไปยังทะเล"


@pytest.mark.parametrize(("text", "mark", "words"), [(HINDI, "।", 15), (THAI, "", 40)], ids=["Hindi", "Thai"])
def test_sentences_of_scripts_without_capitals_are_printed_whole(text, mark, words):
    summary = summary_of([text], sentences=5, readable=True)
    expected = [part + mark for part in text.strip(mark).split(f"{mark} ")]
    assert [sentence.text for sentence in summary.sentences] == expected
    assert summary_of([text], words=words).summary in expected


def test_without_capitals_only_equal_words_are_the_same_content():
    first, other = "यमुना नदी के किनारे पुराना किला बना हुआ है।", "यमुना नदी के किनारे नया किला बना हुआ है।"
    same, unlike = summary_of([first, first], sentences=1), summary_of([first, other], sentences=1)
    assert [len(each.sentences[0].citations) for each in (same, unlike)] == [2, 1]


def test_a_headline_that_the_article_repeats_is_left_out():
    rest = "The work takes two years. A ferry replaces it. The council pays for the ferry. Cars take the new road."
    headline, lead = "Council closes the old bridge.", "The council of the town closes the old bridge over the river."
    assert printed([f"{headline} {lead} {rest}"], sentences=1) == [lead]
    other = "Photographs of the harbour were sold on Monday."
    assert printed([f"{other} {lead} {rest}"], sentences=1) == [other]


@pytest.mark.parametrize("dateline", ["Wien – ", "LONDON (AP) -- ", "Banda Aceh (dpa) - "])
def test_what_is_before_a_dateline_is_left_out(dateline):
    rest = "The work takes two years. A ferry replaces it. The council pays for the ferry. Cars take the new road."
    lead = f"{dateline}The old bridge is closed since Monday."
    assert printed([f"New way over the water. Walkers like boats. {lead} {rest}"], sentences=1) == [lead]


def test_of_a_story_narration_is_printed():
    """Neither what persons say, also in the middle of a speech, nor the narrator."""
    scenes = [
        f"“Where is the key number {number}?” asked the guard. I saw the {name} of the house.\n\n"
        f"“The guard holds key {number}. It opens the {name}.”\n\n{name.capitalize()} and key belong to the guard."
        for number, name in enumerate(["gate", "cellar", "tower", "kitchen", "garden", "stable", "roof", "bridge"])
    ]
    found = printed(["\n\n".join(scenes)], words=200)
    assert len(found) >= 4 and all(text.endswith("and key belong to the guard.") for text in found)


def test_a_question_is_printed_only_before_its_answer():
    asked = "Why is the bridge closed to trucks? Because its cables are rusty and too weak."
    assert printed([f"{asked} The mayor praised the builders."], words=40) == [
        "Why is the bridge closed to trucks?",
        "Because its cables are rusty and too weak.",
        "The mayor praised the builders.",
    ]
    assert printed(["Why is the bridge closed to trucks? The mayor praised the builders."]) == [
        "The mayor praised the builders."
    ]
