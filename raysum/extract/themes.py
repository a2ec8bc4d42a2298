"""The sentences of a summary by theme, and a label for each theme. M sentences of a cluster, U units of a summary."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from raysum.decode.summary import Summary, Theme
from raysum.extract.source_texts import SourceTexts
from raysum.text.languages import function_words
from raysum.text.readability import continues
from raysum.text.tfidf import words

_MOST, _UNITS = 6, 3  # themes; units of each but one
_REPORTS = frozenset(("said", "says", "told", "according", "reported", "reports"))  # are in no label
_LABELS = 2  # phrases of a label
_PAIR = 1.5  # factor of the score of two words beside one
_Phrase = tuple[str, ...]  # one word, or two neighbours
_LETTERS = 4  # of a word of a label, in scripts with spaces


def themes(summary: Summary, source: SourceTexts) -> list[Theme]:
    """Return the themes in the order of their first sentences; all sentences are in one theme each.

    A sentence stays with the one that it continues. Units are clustered by Ward's method on their profiles (tf-idf
    cosines with all sentences of the cluster); the number of themes has the highest mean silhouette (Rousseeuw, 1987).
    """
    if not summary.sentences:
        return []
    units = _units(summary, source)
    texts = [" ".join(summary.sentences[number].text for number in unit) for unit in units]
    profiles = np.stack([source.profile(text) for text in texts])
    groups = _groups(profiles)
    labels = _labels(groups, texts, profiles, source)
    return [
        Theme(label=label, sentences=[number for unit in group for number in units[unit]])
        for group, label in zip(groups, labels, strict=True)
    ]


def _units(summary: Summary, source: SourceTexts) -> list[list[int]]:
    """Return the numbers of the sentences, those together that continue each other or follow the name of a speaker."""
    units, speaker = list[list[int]](), ""
    for number, sentence in enumerate(summary.sentences):
        document = sentence.citations[0].document if sentence.citations else None
        own = next(iter(re.findall(r"^[^:]{1,40}(?=: )", sentence.text)), "")
        before = summary.sentences[number - 1].citations if number else []
        same = bool(before) and before[0].document == document
        follows = continues(sentence.text, source.language_of(document)) or (same and speaker and not own)
        if units and follows:
            units[-1].append(number)
        else:
            units.append([number])
        speaker = own or (speaker if same else "")
    return units


def _groups(profiles: np.ndarray) -> list[list[int]]:
    """Return the rows of ``profiles`` [U, M] in groups, each in order."""
    if len(profiles) < 3:
        return [[*range(len(profiles))]]
    from scipy.cluster.hierarchy import fcluster, linkage
    from sklearn.metrics import silhouette_score

    distances = np.clip(1 - profiles @ profiles.T, 0, 1)
    np.fill_diagonal(distances, 0)
    tree = linkage(profiles, "ward")
    best, found = -1.0, np.ones(len(profiles), int)
    for count in range(2, min(_MOST, len(profiles) // _UNITS + 1) + 1):
        named = fcluster(tree, count, "maxclust")
        if 1 < len({*named.tolist()}) < len(profiles):
            score = float(silhouette_score(distances, named, metric="precomputed"))
            best, found = max((best, found), (score, named), key=lambda pair: pair[0])
    return [np.flatnonzero(found == name).tolist() for name in dict.fromkeys(found.tolist())]


def _labels(
    groups: Sequence[Sequence[int]], texts: Sequence[str], profiles: np.ndarray, source: SourceTexts
) -> list[str]:
    """Return for each group its most characteristic phrases: those in most sentences near it, and in few others."""
    nearness = np.stack([profiles[[*group]].mean(0) for group in groups])
    nearest = np.where(nearness.max(0) > 0, nearness.argmax(0), -1)
    inside, everywhere = [Counter[_Phrase]() for _ in groups], Counter[_Phrase]()
    excluded = _REPORTS.union(function_words(source.language_of(None)), words(source.title))
    for text, group in zip(source.texts, nearest, strict=True):
        phrases = _phrases(text, excluded)
        everywhere.update(phrases)
        if group >= 0:
            inside[group].update(phrases)
    return [
        _label(" ".join(texts[unit] for unit in group), counts, everywhere, excluded)
        for group, counts in zip(groups, inside, strict=True)
    ]


def _label(text: str, inside: Counter[_Phrase], everywhere: Counter[_Phrase], excluded: frozenset[str]) -> str:
    def score(phrase: _Phrase) -> float:
        return (_PAIR if len(phrase) == 2 else 1) * inside[phrase] ** 2 / max(everywhere[phrase], 1)

    taken, shown = set[str](), list[str]()
    for phrase in sorted(sorted(_phrases(text, excluded)), key=score, reverse=True):
        printed = _printed(phrase, text)
        if printed and not taken.intersection(phrase) and len(shown) < _LABELS:
            taken.update(phrase)
            shown.append(printed)
    return ", ".join(shown)[:1].upper() + ", ".join(shown)[1:]


def _phrases(text: str, excluded: frozenset[str]) -> set[_Phrase]:
    """Return the words of a text that are not ``excluded``, and pairs of neighbours; single signs only in pairs."""
    found = words(text)
    usable = [word not in excluded and _is_usable(word) for word in found]
    single = {(word,) for word, is_usable in zip(found, usable, strict=True) if is_usable and len(word) > 1}
    pairs = zip(pairwise(found), pairwise(usable), strict=True)
    return single | {pair for pair, both in pairs if all(both)}


def _is_usable(word: str) -> bool:
    """Return whether a word can be in a label: four letters or more, or any letters of a script without capitals."""
    return word.isalpha() and (len(word) >= _LETTERS or not word.islower())


def _printed(phrase: _Phrase, text: str) -> str:
    """Return a phrase as ``text`` has it, or "" if other signs separate its words."""
    found = re.search(r"(?<!\w)" * phrase[0].isascii() + " ?".join(map(re.escape, phrase)), text, re.I)
    return " ".join(found[0].split()) if found else ""
