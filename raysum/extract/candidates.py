"""The sentences of a cluster as a summary prints them: clean, with their speakers, and after those that they continue.

M sentences of a row of kind extraction, in order.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from raysum.extract.unprinted import unprinted
from raysum.text.languages import OTHER, language
from raysum.text.readability import (
    clean,
    continues,
    is_first_person,
    is_fragment,
    is_question,
    is_scholarly,
    without_connective,
)

# "Anna:" or "[anna]" at the beginning of a line
_TURN = re.compile(
    r"(?:[\[(]?[\d:.,]+[\])]?\s+)?(?:\[([^\W\d][\w.' -]{0,39})\]|(#?\w[\w.#' -]{0,39}?)\s*:)\s+(?=\S)"
    r"|([A-Z]{2,4}):(?=[A-Z])"
)
_FEWEST_TURNS = 3  # sentences with a speaker before them that make a document a dialogue, with one of these shares:
_TURNS, _LONG_TURNS = 0.2, 0.3  # of the sentences; of the paragraphs, if two speakers have half of the turns
_HEADING = re.compile(
    r"\W*(?:\d+(?:\.\d+)*\.?\s+\w|(?:abstract|introduction|background|related work|methods?|results?|discussion"
    r"|conclusions?|summary|acknowledge?ments?)\b)",
    re.IGNORECASE,
)
_OTHER_PAPER = re.compile(r"(?:cited by|citing|cites)\b", re.IGNORECASE)
_GENERIC = re.compile(r"(?:paragraph|text|document|doc|page|file|standard input)?[\s_.#-]*\d*", re.IGNORECASE)
_ADJACENT = 2  # characters, at most, between a sentence and the next one
_SAMPLED, _CHARACTERS = 20, 4000  # sentences and characters that show the language
_LOWER = 0.3  # share of sentences in lower case in texts that have no capitals
_CHAIN = 2  # sentences that one may continue
_LONGEST_NAME = 40


class Candidates:
    """The sentences [M] of a row that a summary may print. A sentence is read when it is asked for.

    ``documents`` [M] are their documents, ``languages`` [M] those of their documents.
    """

    def __init__(self, row: Mapping[str, Any]):
        self.raw: Sequence[str] = row["text"]
        self.documents = [int(document) for document in row["document"]]
        self.language, self.languages = _languages(self.raw, self.documents)
        self._scholarly = is_scholarly(" ".join(self.raw))
        self._turns, self._previous = _turns(row, self.documents), _previous(row, self.documents)
        self._voices = _voices(row["source"], {*self.documents})
        places = [*zip(self.documents, map(int, row["paragraph"]), strict=True)]
        self._unprinted = unprinted(self.raw, places, self.languages)
        self._texts = dict[int, str]()
        sizes, lower = Counter(self.documents), Counter[int]()
        lower.update(document for document, text in zip(self.documents, self.raw, strict=True) if text[:1].islower())
        self._uncased = {document for document, count in lower.items() if count > _LOWER * sizes[document]}

    def text(self, number: int) -> str:
        """Return a sentence, clean and without the mark of its speaker."""
        if number not in self._texts:
            mark, speaker = self._turns[number]
            raw = self.raw[number][len(mark) :]
            text = clean(raw, self._scholarly, self.languages[number], is_spoken=bool(speaker))
            is_uncased = bool(speaker) or self.documents[number] in self._uncased
            self._texts[number] = text[:1].upper() + text[1:] if is_uncased else text
        return self._texts[number]

    def speaker(self, number: int) -> str | None:
        """Return who says a sentence if readers have to know, otherwise ""; None if it is not known."""
        if turn := self._turns[number][1]:
            return turn
        is_personal = is_first_person(self.text(number), self.languages[number])
        return self._voices[self.documents[number]] if is_personal else ""

    def personal(self) -> list[bool]:
        """Return for each sentence whether it is in the first person, and so needs the name of its document."""
        if not any(self._voices.values()):
            return [False] * len(self.raw)
        return [
            not speaker and is_first_person(text, name)
            for text, name, (_, speaker) in zip(self.raw, self.languages, self._turns, strict=True)
        ]

    def spoken(self) -> list[bool]:
        """Return for each sentence whether it is in a turn of a dialogue."""
        return [bool(speaker) for _, speaker in self._turns]

    def group(self, number: int, taken: Sequence[int]) -> list[int]:
        """Return a sentence after those that it continues and that are not ``taken``; [] if it cannot be printed."""
        if is_question(self.text(number)):
            return []
        group = [number]
        while continues(without_connective(self.text(group[0])), self.languages[group[0]]):
            before = self._previous[group[0]]
            if before in taken:
                break
            if before < 0 or len(group) > _CHAIN:
                return []
            group.insert(0, before)
        return group if all(map(self._is_usable, group)) else []

    def _is_usable(self, number: int) -> bool:
        text = without_connective(self.text(number))
        is_sentence = not (text[:1].islower() or is_fragment(text, bool(self._turns[number][1])))
        return is_sentence and number not in self._unprinted and self.speaker(number) is not None

    def printed(self, numbers: Sequence[int]) -> list[str]:
        """Return the sentences ``numbers`` in this order. A speaker is named once for adjacent sentences."""
        texts, before = list[str](), -1
        for number in numbers:
            follows = before >= 0 and self._previous[number] == before
            text = self.text(number) if follows else without_connective(self.text(number))
            is_same = follows and self.speaker(before) == self.speaker(number)
            speaker = "" if is_same else self.speaker(number)
            texts.append(f"{speaker}: {text}" if speaker else text)
            before = number
        return texts


def _languages(texts: Sequence[str], documents: Sequence[int]) -> tuple[str, list[str]]:
    """Return the language of most texts, and that of the document of each text; it is the former if not detected."""
    by_document = defaultdict[int, list[str]](list)
    for document, text in zip(documents, texts, strict=True):
        by_document[document].append(text)
    found = {document: language(_sample(own)) for document, own in by_document.items()}
    sizes = Counter[str]()
    for document, own in by_document.items():
        if found[document] != OTHER:
            sizes[found[document]] += sum(map(len, own))
    usual = sizes.most_common(1)[0][0] if sizes else language(_sample(texts))
    return usual, [usual if found[document] == OTHER else found[document] for document in documents]


def _sample(texts: Sequence[str]) -> str:
    return " ".join(texts[:: max(1, len(texts) // _SAMPLED)])[:_CHARACTERS]


def _turns(row: Mapping[str, Any], documents: Sequence[int]) -> list[tuple[str, str]]:
    """Return for each sentence the speaker mark at its beginning, and the speaker of its turn, if it is a dialogue.

    If the turns of a dialogue are long, paragraphs without a mark continue the turn before them.
    """
    found = [_TURN.match(text) for text in row["text"]]
    names = [
        (match[1].capitalize() if match[1] else (match[2] or match[3]).strip("# ")) if match else "" for match in found
    ]
    paragraphs = [*zip(documents, map(int, row["paragraph"]), strict=True)]
    dialogues, long_turns = _dialogues(paragraphs, names)
    turns, speaker, before = list[tuple[str, str]](), "", (-1, -1)
    for match, name, place in zip(found, names, paragraphs, strict=True):
        document = place[0]
        if document not in dialogues:
            turns.append(("", ""))
            continue
        if match:
            speaker = name
        elif place != before and (document != before[0] or document not in long_turns):
            speaker = ""
        before = place
        turns.append((match[0] if match else "", speaker))
    return turns


def _dialogues(paragraphs: Sequence[tuple[int, int]], names: Sequence[str]) -> tuple[set[int], set[int]]:
    """Return the documents that are dialogues, and those of them with long turns.

    ``paragraphs`` are the document and paragraph of each sentence, ``names`` the speakers in the marks, or "".
    """
    counts = defaultdict[int, Counter[str]](Counter)
    for (document, _), name in zip(paragraphs, names, strict=True):
        counts[document].update([name] if name else [])
    num_sentences = Counter(document for document, _ in paragraphs)
    num_paragraphs = Counter(document for document, _ in {*paragraphs})
    short, long = set[int](), set[int]()
    for document, turns in counts.items():
        total, most = turns.total(), [count for _, count in turns.most_common(2)]
        if total >= max(_FEWEST_TURNS, _TURNS * num_sentences[document]):
            short.add(document)
        elif total >= _LONG_TURNS * num_paragraphs[document] and len(most) == 2 and min(most) >= _FEWEST_TURNS:
            long |= {document} if 2 * sum(most) >= total else set()
    return short | long, long


def _previous(row: Mapping[str, Any], documents: Sequence[int]) -> list[int]:
    """Return the number of the sentence directly before each sentence, or -1 if other text or nothing is there."""
    starts = [int(start) for start in row["char_start"]]
    numbers = [-1] * len(starts)
    for number in range(1, len(starts)):
        gap = starts[number] - starts[number - 1] - len(row["text"][number - 1])
        if documents[number] == documents[number - 1] and gap <= _ADJACENT:
            numbers[number] = number - 1
    return numbers


def _voices(names: Sequence[str], used: set[int]) -> dict[int, str | None]:
    """Return who speaks in the first person in each document: its name, "" for the subject itself, None if unknown.

    The subject speaks in its only document and in the sections of a paper, but not in papers that cite it.
    """
    others = {number for number in used if _OTHER_PAPER.match(names[number] or "")}
    own = used - others
    is_paper = 2 * sum(_HEADING.match(names[number] or "") is not None for number in own) >= len(own) > 0
    if is_paper or len(used) == 1:
        return {number: None if number in others else "" for number in used}
    return {number: None if number in others else _speaker(names[number], number) for number in used}


def _speaker(name: str | None, number: int) -> str:
    """Return the name of a document as a speaker: without folders and the suffix of a file, and with spaces."""
    plain = re.sub(r"\.\w{1,8}$", "", PurePath(name or "").name)
    plain = re.sub(r"^\d{4}-\d\d-\d\d[-_ ]", "", plain)
    plain = (plain if " " in plain else re.sub(r"(?<!\d)-|-(?!\d)", " ", plain)).replace("_", " ").strip()
    if not plain or _GENERIC.fullmatch(plain):
        return f"Document {number + 1}"
    if len(plain) > _LONGEST_NAME:
        plain = plain[:_LONGEST_NAME].rpartition(" ")[0] or plain[:_LONGEST_NAME]
    return plain[:1].upper() + plain[1:]
