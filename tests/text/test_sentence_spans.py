"""Ends of sentences, by syntok and by the quick splitter."""

import random

import pytest
import syntok.segmenter

from raysum.text.sentences import _ASCII_CANDIDATE, _CANDIDATE, quick_sentence_spans, sentence_spans


def test_sentences_of_a_summary_are_those_of_syntok():
    hard = "Dr. A. Smith met J. K. Doe, e.g. in Rome (cf. Fig. 3). They paid 3.5 euros. It was late."
    starts = [s[0].offset for p in syntok.segmenter.process(hard) for s in p]
    assert [a for a, _ in sentence_spans(hard)] == starts and len(starts) > 2
    plain = "It was opened in 1966. The bridge is painted. Nobody knows why!"
    assert [plain[a:b] for a, b in sentence_spans(plain)] == plain.replace(". ", ".|").split("|")
    assert sentence_spans("   ") == []


def test_candidates_of_plain_texts_are_those_of_all_texts():
    draw, found = random.Random(1), 0
    for _ in range(300):
        text = "".join(draw.choices("aB1.!?\"')]{} \n\t\x1c", k=40))
        spans = [candidate.span() for candidate in _ASCII_CANDIDATE.finditer(text)]
        assert spans == [candidate.span() for candidate in _CANDIDATE.finditer(text)]
        found += len(spans)
    assert found > 300


@pytest.mark.parametrize(
    "sentences",
    [
        "А. С. Пушкин родился в 1799 г. и умер в Петербурге.|Он жил на ул. Мойка, т.е. в центре.|Это правда?|Да!",
        "佛罗伦萨位于阿诺河畔。|价格是3.5元！|他问：“真的吗？”|是的。",
        "東京は首都です。|本当ですか？！|はい。",
        "هل زرتها من قبل؟|إنها عاصمة توسكانا!|نعم، د. أحمد هناك.",
        "दिल्ली राजधानी है।|यहाँ लोग रहते हैं।",
        "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย|แม่น้ำเจ้าพระยา ไหลผ่านกลางเมืองไปยังทะเล",
        "မြန်မာနိုင်ငံ၏ မြို့တော်။|နေပြည်တော် ဖြစ်သည်။",
        "Rapid gewann in der 3. Runde.|Sie waren 12.|Am 2. Spieltag folgte mehr.",
        "Am 3. Oktober kam z. B. Dr. Müller.|Im 19. Jahrhundert war es u.a. Nr. 5.",
        "The U.S. Army came at 5 p.m.|It left St. Paul, e.g. by bus.|They had maps, food, etc.|The end.",
        "1. Take the first of 12.|Then stop.",
        "by using our services you agree.|if you are under 13 , a parent agrees , e.g. your father .|see fig. 2 .",
        "¿Está en la Av. Libertad?|¡Sí, con el Sr. López!",
        'Prof. E. Ito et al. (2001) met Inc. boards.|"Why?" he asked.|1999 was late',
    ],
)
def test_sentences_of_many_languages(sentences):
    is_spaced = not any("\u3040" < character < "\u9fff" for character in sentences)
    text = sentences.replace("|", " " if is_spaced else "")
    assert "|".join(text[a:b] for a, b in quick_sentence_spans(text)) == sentences
    if not is_spaced:
        assert sentence_spans(text) == quick_sentence_spans(text)
