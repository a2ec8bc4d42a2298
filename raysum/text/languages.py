"""Detect the language of a text by its script and by short words.

For Latin letters, the commonest short words of seven languages decide (Grefenstette, 1995: right for nearly all texts
of twenty words). For other scripts, the Unicode names of most letters decide.
"""

import unicodedata
from collections import Counter

from raysum.text.names import FUNCTION_WORDS
from raysum.text.tfidf import words

LANGUAGE = "language "  # prefix of the counts of sampled texts by language
_MIN_WORDS = 2  # short words that identify a language
_LATIN_END = "\u024f"
_LANGUAGES = {"CJK": "Chinese", "HIRAGANA": "Japanese", "KATAKANA": "Japanese", "HANGUL": "Korean"}
_SMALL_WORDS = {
    "English": "the of and to in a is that for it was on with as by at be this from are he which an were has not its",
    "German": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an wurde war",
    "French": "de la le et les des en un du une que est pour qui dans par il au sur plus ne ce pas avec son sont aux",
    "Spanish": "de la que el en y a los del se las por un para con no una su al lo como más es fue entre desde pero",
    "Italian": "di e il la che in un a per è una del sono con si non le della i da dei nel al come gli alla anche",
    "Portuguese": "de a o que e do da em um para com não uma os no se na por mais as dos como foi ao das à pelo são",
    "Dutch": "de van het een en in is op te dat die voor met zijn aan niet door was ook naar uit om bij er werd tot",
}
_OF = {name: frozenset(small.split()) for name, small in _SMALL_WORDS.items()}
OTHER = "not detected"
_STEM = 5  # letters of a word that are compared, so that its endings do not count
_NO_CONTENT = {**_OF, "English": FUNCTION_WORDS | _OF["English"]}


def language(text: str) -> str:
    """Return the language, or a script such as "Cyrillic script"; "not detected" if the short words do not decide.

    Languages are English, German, French, Spanish, Italian, Portuguese, Dutch, Chinese, Japanese and Korean.
    """
    non_latin = [sign for sign in text if sign > _LATIN_END and sign.isalpha()]
    if 2 * len(non_latin) > sum(map(str.isalpha, text)):
        scripts = Counter(unicodedata.name(sign, OTHER).partition(" ")[0] for sign in non_latin)
        script = max(scripts, key=lambda name: (name in ("HIRAGANA", "KATAKANA"), scripts[name]))
        return _LANGUAGES.get(script, f"{script.capitalize()} script")
    found = words(text)
    counts = {name: sum(map(small.__contains__, found)) for name, small in _OF.items()}
    first, second = sorted(counts, key=counts.__getitem__, reverse=True)[:2]
    return first if counts[first] >= _MIN_WORDS and counts[first] > counts[second] else OTHER


def content_words(text: str, name: str) -> list[str]:
    """Return the first five letters of each word of ``text`` that is no function word of the language ``name``."""
    excluded = function_words(name)
    return [word[:_STEM] for word in words(text) if word not in excluded]


def function_words(name: str) -> frozenset[str]:
    """Return the function words of the language ``name``, as far as they are known."""
    return _NO_CONTENT.get(name, frozenset())
