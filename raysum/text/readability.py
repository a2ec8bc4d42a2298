"""What a sentence needs to be read alone: clean text, and no reference to sentences that are left out.

Rules remove marks of citations and fillers of speech, and find sentences that continue another one, speak in the first
person or are no sentences. Closed classes of words, by language, decide that; other languages follow those of English.
"""

import html
import re

from raysum.text.names import FUNCTION_WORDS, is_letter, word_set

_YEAR = r"(?:1[5-9]|20)\d\d[a-z]?"
_MONTHS = "Jan Feb Mar Apr May June July Aug Sept Oct Nov Dec January February March April August September October"
_NAME = rf"(?!(?:{_MONTHS.replace(' ', '|')}|November|December)\b)[A-ZÀ-Ž][\w'’.-]*"
_AUTHORS = rf"{_NAME}(?:\s+(?:et\s+al\.?|(?:and|und|&|et|y)\s+{_NAME}|{_NAME}))*"
_PAGES = r"(?:\s*[,:]\s*(?:pp?\.|henceforth|ch)[^;()]*)?"
_CITED = rf"(?:{_AUTHORS}\s*[,.]?\s*(?:\({_YEAR}\)|{_YEAR})(?:\s*,\s*(?:{_YEAR}|\d+))*{_PAGES})"
_HINTS = r"(?:(?:see(?:\s+also)?|cf\.?|e\.g\.,?|i\.e\.,?|among\s+others|for\s+example|inter\s+alia|,)\s*)*"
# (Smith et al., 2007; Wu and Li, 2010), (see Smith (2007)), [Li 2007], and a number of a footnote after it.
_AUTHOR_YEAR = re.compile(
    rf"\s*[(\[]{_HINTS}{_CITED}(?:\s*[;,]\s*{_HINTS}(?:{_CITED}|{_YEAR}))*\s*,?\s*[)\]](?:\s\d\d?(?=\s[a-z]|[.,]))?"
)
# The year of "Smith et al. (2007) show".
_YEAR_ALONE = re.compile(
    rf"(?<=[\w.])\s*[(\[]\s*{_YEAR}(?:\s*[,;]\s*(?:{_YEAR}|henceforth[^()]*|pp?\.\s*[\d–-]+))*\s*[)\]]"
)
_SCHOLARLY, _CITATIONS = re.compile(rf"\bet\s+al\b|[a-z],?\s{_YEAR}[;)\]]"), 3
_VERB = re.compile(r"\s*(?:\w+ly\s+)?(?:\w+(?:s|ed)|have|are|show|use|propose|report|describe|present|introduce)\b")
_GOVERNED = re.compile(r"\b(?:in|by|from|of|to|with|and|as|see|than|on|while|following|like|both|for)\s*$", re.I)
_KEY = r"(?:\d{1,3}|[A-Z][A-Za-z+]{1,7}\d\d[a-z]?|[A-Z]\d[A-Z]\d\d)"
_BRACKETS = re.compile(rf"\s*\[\s*{_KEY}(?:\s*[-–,;]\s*{_KEY})*\s*\]")
_PART = r"(?:fig(?:ures?|\.)?|tab(?:les?|\.)|sec(?:tions?|t\.)|eq(?:uations?|n?\.)|algorithm|appendix|§)\s*\(?\d[\d.]*"
_NOTES = re.compile(
    r"\s*\[(?:citation needed|edit|note \d+|[a-z]|\d\d?:\d\d(?::\d\d)?|laugh\w*|applause|inaudible|crosstalk)\]"
    rf"|\{{[a-z]+\}}|\s*\((?:see\s+)?{_PART}[a-z]?\)?\)",
    re.I,
)
_POINTS = re.compile(rf"(?<!\w){_PART}|\bclick(?:ing)? here\b|https?://\S+$", re.I)
# Links of templates: [text]({{ "/address" | url }})
_TEMPLATE = re.compile(r"\[([^\[\]]+)\]\(\{\{.{0,200}?\}\}[^()]{0,50}\)|\{[{%].{0,200}?[%}]\}")
_LABEL = re.compile(r"^(?:TL;?\s?DR|P\.?S\.?|N\.?B\.?|Update|Edit)\s*[:;–—-]\s+(?=\S)", re.I)
_FILLERS = re.compile(r"(?<![\w-])(?:um+|uh+|erm?|hmm+|mm+(?:-hmm+)?|uh-huh)(?![\w-])\s*[,.]?\s*", re.I)
_STUTTER = re.compile(r"(?<![\w'’])([B-HJ-Zb-hj-z])[,-]?\s+(?=\1\w)")  # "w we", not "don't think"
_REPEATED = re.compile(r"\b(\w+(?:['’]\w+)?)(?:\s+\1\b(?!['’]))+", re.I)
_SPACED = re.compile(r"\s+([.,;:!?](?![\w=])|(?<=\d\s)%(?!\w)|[)\]}»”’])|([(\[{«“])\s+")
_CLITIC = re.compile(r"(?<=\w)\s*(['’])\s+(ll|s|t|re|ve|d|m)\b|(?<=\w)\s+(['’](?:ll|s|re|ve|d|m)|n['’]t)\b")
_EMPTY = re.compile(r"[,;]\s*(?=[,;.])|\(\s*[,;]*\s*\)")

_CONNECTIVE = re.compile(
    "(?:however|moreover|furthermore|additionally|also|finally|lastly|thus|therefore|hence|consequently|accordingly"
    "|nevertheless|nonetheless|instead|meanwhile|similarly|likewise|in addition|in fact|indeed|of course|for example"
    "|for instance|in particular|specifically|as a result|in contrast|by contrast|on the other hand|on the one hand"
    "|then|besides|overall|alternatively|regardless|as such|anyways?|still|again|"
    "in short|that is|in other words|first|second|third|secondly|thirdly|firstly|well|yeah"
    "|jedoch|allerdings|außerdem|zudem|cependant|toutefois|en outre|sin embargo|además|tuttavia|inoltre|no entanto)"
    r"\s*,\s*",
    re.I,
)
_CONTINUING = {
    "English": "but and or nor so yet it its it's they them their they're he she him his her hers this that that's "
    "these those such both another others former latter neither either however therefore thus hence then instead "
    "otherwise moreover furthermore nevertheless consequently because which who whose where also too similarly yes no "
    "again even presently later afterwards soon previously",
    "German": "aber und oder doch denn sondern er sie es ihr ihre ihrer sein seine seiner dies diese dieser dieses "
    "diesen jene jener dort dabei dazu damit dadurch deshalb daher jedoch allerdings außerdem zudem trotzdem dennoch",
    "French": "mais et ou donc or ni car il elle ils elles ce cet cette ces cela ceci leur leurs son sa ses celui "
    "celle ceux cependant toutefois ainsi pourtant",
    "Spanish": "pero y o e ni sino él ella ellos ellas ello esto este esta estos estas eso ese esa esos esas su sus "
    "aquel aquella así además también",
    "Italian": "ma e o però egli lui lei loro essi esso essa questo questa questi queste quello quella ciò suo sua "
    "così inoltre tuttavia quindi",
    "Portuguese": "mas e ou ele ela eles elas isto isso este esta estes estas esse essa seu sua assim também porém",
    "Dutch": "maar en of want hij zij ze het dit dat deze die hun haar zijn daarom echter bovendien toch",
    "Cyrillic script": "но и а или он она оно они это эти этот эта эту его её их однако поэтому также тогда там",
}
_CONTINUING_SETS = {language: frozenset(listed.split()) for language, listed in _CONTINUING.items()}
_STARTS = {  # without spaces between words
    "Chinese": ("但", "然而", "因此", "所以", "他", "她", "它", "这", "那", "此外", "而且", "不过"),
    "Japanese": ("しかし", "これ", "それ", "この", "その", "彼", "また", "だが", "ただし"),
}
_FIRST_PERSON = {
    "English": r"\b(?:i|me|my|mine|myself|we|us|our|ours|ourselves|i['’]\w+|we['’]\w+)\b",
    "German": r"\b(?:ich|mich|mir|mein\w*|wir|uns|unser\w*)\b",
    "French": r"\b(?:je|j['’]\w+|moi|mon|ma|mes|nous|notre|nos)\b",
    "Spanish": r"\b(?:yo|mi|mis|nosotr[oa]s|nos|nuestr\w+)\b",
    "Italian": r"\b(?:io|mio|mia|noi|nostr\w+)\b",
    "Portuguese": r"\b(?:eu|meu|minha|nós|noss\w+)\b",
    "Dutch": r"\b(?:ik|mij|mijn|wij|we|ons|onze)\b",
    "Cyrillic script": r"\b(?:я|мне|меня|мой|моя|мы|нас|нам|наш\w*)\b",
    "Chinese": "我",
    "Japanese": "[私僕]",
}
# Words near the beginning of a sentence that point to the one before it, as in "Beyond that," and "Eine davon".
_POINTING = {
    "English": re.compile(
        r"(?:[\w'’]+,? ){1,4}(?:this|these|those)\b"
        r"|(?:beyond|after|before|with|from|in|on|like|since|despite|because of|given|apart from) that,"
        r"|(?:a|the) (?:second|third|fourth|other|latter|former|same)\b|there (?:is|are) (?:also|other|another)\b"
        r"|(?:[\w'’]+ ){0,3}(?:here|there)(?: is| are|,)",
        re.I,
    ),
    "German": re.compile(
        r"(?:\w+ ){0,3}(?:da(?:von|bei|mit|zu|nach|für|gegen|runter|ran|rin|rüber|rauf|raufhin)|ihnen|ihm|ihn|demnach"
        r"|hingegen|diese[mnrs]?|jene[mnrs]?|deren|dessen|solche[mnrs]?)\b|(?:auch|so|dann|nun|hier) \w+"
        r"|das (?:ist|war|hat|habe|wird|gilt|gab|bedeutet|\w+t[ea]) ",
        re.I,
    ),
}
# What a speaker says before the sentence itself: "So I think", "Yeah, I don't know if".
_HEDGED = re.compile(
    r"(?:(?:so|and|but|yeah|well|okay|right|maybe|also"
    r"|i(?: definitely| really)? (?:think|guess|believe|mean|agree|feel)"
    r"|i don['’]t (?:think|know|see|believe)(?: if| how| why)?|i['’]m (?:not )?sure(?: if)?"
    r"|(?<=[a-z] )that(?!['’]s| is\b| was\b| would\b))\b,?\s*)+",
    re.I,
)
_SHORT_POINTING = re.compile(r"(?:\S+ ){1,7}(?:it|him|her|them|this|that|so)[.!]")
_DATES = re.compile(
    r"\b(?:this|these) (?:year|month|week|day|morning|time|century|decade|season|summer|winter)s?\b", re.I
)
_ELSEWHERE = re.compile(
    r"(?:thanks|thank you|many thanks|see|click|read (?:more|on)|please|check out"
    r"|for (?:more|further) (?:details|information)|you can (?:find|read)|more (?:details|information))\b(?! by\b)",
    re.I,
)  # thanks, and where more can be read
_NO_SENTENCES = (
    _ELSEWHERE,
    re.compile(r"\[[A-Z]|(?:Describes|Introduces|Adds|Defines|Proposes|Specifies|Allows|Provides|Enables|Delivers)\b"),
    re.compile(r"(?:D['’]|De )[a-zà-ÿ]+(?:er|ir|re)\b"),  # an item of a French list
    re.compile(r"[\w ]{1,20}: (?:\S+\s){0,2}\S+$"),
)
_PERSONS = {language: re.compile(pattern, re.I) for language, pattern in _FIRST_PERSON.items()}
_NO_PERSON = re.compile(
    r"\"[^\"]*\"|“[^“”]*”|„[^„“]*“|«[^«»]*»|「[^「」]*」|\bUS\b|\bI(?=[.,)])|\bI{2,}\b"
)  # quotations, a country and Roman numerals
_TEXTS = r"(?:\w+ )?(?:paper|article|work|study|thesis|report|survey|chapter)\b"
_ITSELF = re.compile(rf"\b(?:this|these|our|the present) {_TEXTS}", re.I)
_OWN_OPENING = re.compile(rf"this (?:{_TEXTS}|(?:book|document|year|week|month)\b)", re.I)
_SAID = re.compile(r"[\"”’'] (?:said|asked|answered|cried|replied|returned|remarked|murmured) (?:I|he|she|they)\b")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")

# Two sentences or a heading and a sentence without a break: "factorization.1 At", "end.The", "2005Through".
_GLUED = re.compile(r"[a-z]{3}\.\d{1,2}\s+[A-Z]|[a-z]\.[A-Z][a-z]|[a-z]{2}\d\.?\s+[A-Z][a-z]|\d\d[A-Z][a-z]{2}")
_BROKEN_END = re.compile(r"(?:\b[A-Z]\.){2,}$|['’][A-Z]\.$|\b(?:Fig|Eq|No|vs|e\.g|i\.e|Dr|Mr|Mrs|cf)\.$")
_MOJIBAKE = re.compile("\ufffd|[ÃÂâ][\u0080-\u00bf€™œ\u2018-\u201e]")
_OPEN_QUOTE, _CLOSED_QUOTE = re.compile(r"(?<!\w)['‘](?=[A-Z])"), re.compile(r"(?<=[\w.,;!?])['’](?!\w)")
_END_OF_SPEECH = re.compile(r"[.,!?]['’](?!\w)")
_PAIRS = ("()", "[]", "{}", "“”", "«»")
_QUESTION = re.compile(r"[?？؟][\"”’'»«)]*$")
_MIN_WRITTEN, _MIN_SPOKEN = 2, 3  # words other than function words and those that only answer
_NAMES, _CAPITALIZED = 5, 0.7  # words of a list of names, and the share of capitalized ones
_MIN_LETTERS = 0.55  # share of letters in the characters of a sentence, without blanks
_MAX_SIGNS = 0.4  # share of words of one letter or sign; a formula has more
_ONE_LETTER = frozenset("aieoyà")  # words
_EMPTY_WORDS = FUNCTION_WORDS | word_set(
    "yeah yes no okay ok right sure well oh ah hm hmm mm uh um like know think mean really actually just agree "
    "thing things kind sort lot way good want going get got make makes sense point need don "
    "didn doesn isn guess feel"
)


def is_scholarly(text: str) -> bool:
    """Return whether ``text`` cites by author and year."""
    return len(_SCHOLARLY.findall(text)) >= _CITATIONS


def clean(text: str, scholarly: bool = False, language: str = "English", is_spoken: bool = False) -> str:
    """Return a sentence on one line, without entities of HTML, marks of citations and fillers of speech.

    If it is ``scholarly``, author-year citations are removed too: "(Li, 2007)" wholly, "Li (2007) shows" becomes "Li
    shows". If it ``is_spoken``, repeated words are printed once.
    """
    text = html.unescape(html.unescape(text)) if "&" in text else text
    text = _TEMPLATE.sub(lambda found: found[1] or "", text) if "{" in text else text
    text = _NOTES.sub("", _BRACKETS.sub(_unless_governed, " ".join(text.lstrip("*").split())))
    if scholarly:
        text = _YEAR_ALONE.sub("", _AUTHOR_YEAR.sub(_authors, text))
        text = re.sub(r"\bet al\b\.?(?=\s|$)", "et al.", text)
    text = _LABEL.sub("", text)
    if language == "English":
        text = _capitalized(_FILLERS.sub("", text), text)
    if is_spoken:
        text = _REPEATED.sub(r"\1", _STUTTER.sub("", text))
    text = _CLITIC.sub(lambda found: (found[1] or "") + (found[2] or found[3] or ""), text)
    text = _SPACED.sub(lambda found: found[1] or found[2], _EMPTY.sub("", text))
    return " ".join(text.split())


def _unless_governed(found: re.Match[str]) -> str:
    """Return nothing, or the mark as it is if it is a part of the sentence ("developed in [12]")."""
    is_governed = _GOVERNED.search(found.string, max(0, found.start() - 12), found.start())
    return found[0] if is_governed or not found.string[: found.start()].strip() else ""


def _authors(found: re.Match[str]) -> str:
    """Return what remains of a citation: nothing, or the authors if a word before it needs them ("in (Li, 2007)")."""
    before = found.string[: found.start()].rstrip()
    is_subject = not before or (before[-1] == "," and _VERB.match(found.string, found.end()))
    if not (is_subject or _GOVERNED.search(before, max(0, len(before) - 12))):
        return ""
    authors = re.sub(rf"[\s,]*\(?{_YEAR}\)?", "", found[0].strip(" ()[]0123456789"))
    return f" {' and '.join(filter(None, map(str.strip, re.split('[;,]', authors))))}"


def without_connective(text: str) -> str:
    """Return a sentence without words such as "However," at its beginning."""
    return _capitalized(_CONNECTIVE.sub("", text, 1), text) if _CONNECTIVE.match(text) else text


def _capitalized(text: str, before: str) -> str:
    return text[:1].upper() + text[1:] if before[:1].isupper() else text


def continues(text: str, language: str = "English") -> bool:
    """Return whether a sentence refers to the one before it: by its first word ("But", "They"), or by "said he"."""
    if starts := _STARTS.get(language):
        return text.startswith(starts)
    if language == "English" and _SAID.search(text):
        return True
    hedge = _HEDGED.match(text) if language == "English" else None
    found = [_WORD.search(text), _WORD.search(text, hedge.end()) if hedge else None]
    if found[0] is None or _OWN_OPENING.match(text):
        return False
    continuing = _CONTINUING_SETS.get(language, _CONTINUING_SETS["English"])
    if any(word and word[0].lower().replace("’", "'") in continuing for word in found):
        return True
    if language == "English" and _SHORT_POINTING.fullmatch(text):
        return True
    pointing = _POINTING.get(language)
    return bool(pointing and pointing.match(_DATES.sub("", _ITSELF.sub("", text))))


def is_question(text: str) -> bool:
    """Return whether a sentence asks, and so needs its answer."""
    return _QUESTION.search(text) is not None


def is_first_person(text: str, language: str = "English") -> bool:
    """Return whether a sentence says "I" or "we" outside of quotation marks, or refers to its text as "this paper"."""
    spoken = _NO_PERSON.sub("", text)
    return bool(_PERSONS.get(language, _PERSONS["English"]).search(spoken) or _ITSELF.search(spoken))


def _is_list_of_names(text: str) -> bool:
    found = text.split()
    return len(found) >= _NAMES and sum(word.strip("(")[:1].isupper() for word in found) > _CAPITALIZED * len(found)


def is_fragment(text: str, is_spoken: bool = False) -> bool:
    """Return whether a clean text is no sentence to print: part of a formula, list or heading, or too little.

    It also is if it lists names, thanks, or says where more can be read, and if it has damaged characters, an open
    bracket, or points to a figure, table, section or equation.
    """
    if any(rule.match(text) for rule in _NO_SENTENCES) or _is_list_of_names(text):
        return True
    if text.startswith(("...", "…", "--")) or (is_spoken and text.endswith(("...", "…", "--"))):
        return True  # a part of a sentence
    if any(rule.search(text) for rule in (_BRACKETS, _GLUED, _MOJIBAKE, _POINTS, _BROKEN_END)):
        return True
    if any(text.count(pair[0]) != text.count(pair[1]) for pair in _PAIRS) or text.count('"') % 2:
        return True
    opened = len(_OPEN_QUOTE.findall(text))
    if opened > len(_CLOSED_QUOTE.findall(text)) or (not opened and _END_OF_SPEECH.search(text)):
        return True  # a part of a quotation
    dense = "".join(text.split())
    if sum(map(is_letter, dense)) - sum(map(str.isdigit, dense)) < _MIN_LETTERS * len(dense):
        return True
    if not re.search("[A-Za-zÀ-ɏ]", dense):
        return False  # the rest counts words between blanks
    tokens = text.split()
    signs = sum(len(token.strip(".,;:()")) < 2 and token.lower() not in _ONE_LETTER for token in tokens)
    content = {word.lower() for word in re.findall(r"\w+", text)} - _EMPTY_WORDS
    return signs > _MAX_SIGNS * len(tokens) or len(content) < (_MIN_SPOKEN if is_spoken else _MIN_WRITTEN)
