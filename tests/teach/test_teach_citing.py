"""What is understood of a teacher's answer about citations, and of the time that a server wants to be left alone."""

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from threading import Thread

import httpx
import numpy as np
import pytest

from raysum.decode.summary import Citation, Sentence, Summary
from raysum.evaluate.scorers import Cited
from raysum.prepare.paragraphs import Paragraph
from raysum.runtime.compat import openai_client
from raysum.teach.asking import CostBudget, Spent
from raysum.teach.citing import citations_of, reference_places
from raysum.teach.server import Stopped

PARAGRAPHS = [Paragraph(n // 2, n % 2, n % 2, 0, 4, "text", ["text"]) for n in range(5)]


def places(answer: str) -> list | None:
    found = citations_of(answer, ["One.", "Two."], PARAGRAPHS)
    return None if found is None else [one["paragraphs"] for one in found]


@pytest.mark.parametrize(
    "answer",
    [
        '{"1": [2], "2": [1, 5]}',
        'Sure! Here is the JSON:\n```json\n{"1": [2], "2": [1, 5]}\n```\nTell me {if} [you] need more.',
        '{"1": 2, "2": ["1", "[5]", 99, 0, -3, 5]}',
        '{"citations": {"1": [2], "2": [5, 1, 1]}}',
        "[[2], [1, 5]]",
        '{not json} {"1": "2", "2": [true, null, 1, 5, 2.5, {"a": 1}]}',
        'Sentence [1] is odd, {"3": [1]} too: {"1": [2], "2": [1, 5], "3": [4]}',
    ],
)
def test_what_is_understood(answer):
    assert places(answer) == [[[0, 1]], [[0, 0], [2, 0]]]


@pytest.mark.parametrize(
    "answer",
    ["", "I do not know.", "{}", "[]", '{"1": [], "2": []}', '{"1": [9], "2": [0]}', "[[1], [2], [3]]", '{"1": [2',
     "[" * 100_000, "{" * 100_000, '{"1": ' + "9" * 5000 + "}", "3"],
)  # fmt: skip
def test_what_is_not(answer):
    assert places(answer) is None


def test_a_sentence_may_rest_on_nothing():
    assert places('{"2": [3]}') == [[], [[1, 0]]]


def test_reference_citations_of_rows_of_any_origin():
    assert reference_places('{"citations": [{"sentence": "a", "paragraphs": [[0, 1], [2, 0]]}]}') == {(0, 1), (2, 0)}
    for extra in ("", "{}", '{"citations": ["Smith 2001"]}', '{"citations": 7}', '{"citations": [{"paragraphs": 3}]}'):
        assert reference_places(extra) == set()


def test_citations_are_scored_against_the_teachers():
    """Of three that the teacher names one is not in the row; of two that are given one is right."""
    extra = (
        '{"citations": [{"sentence": "a", "paragraphs": [[0, 1], [2, 0]]}, {"sentence": "b", "paragraphs": [[9, 9]]}]}'
    )
    row = {"document": np.array([0, 0, 2]), "paragraph": np.array([0, 1, 0]), "extra": extra}
    given = [Citation(document=0, paragraph=1, weight=0.5), Citation(document=0, paragraph=0, weight=0.5)]
    sentences = [Sentence(text="a", citations=given[:1]), Sentence(text="b", citations=given)]
    summary = Summary(id="1", summary="a b", sentences=sentences, attention=[], score=0)
    silent = summary.model_copy(update={"sentences": []})
    empty = silent.model_copy(update={"summary": ""})
    scores = Cited().score([row, row | {"extra": ""}, row, row], [summary, summary, silent, empty])
    none = {"cited_correct": 0, "cited_given": 0, "cited_true": 2}
    assert scores == [{"cited_correct": 1, "cited_given": 2, "cited_true": 2}, {}, {}, none]


def retry_after(header: str) -> float | None:
    """The seconds that the OpenAI client reads from a header before it tries again."""
    response, waits = httpx.Response(429, headers={"Retry-After": header}), list[float | None]()

    def before_retry(error: BaseException | None, seconds: float | None) -> None:
        assert isinstance(error, httpx.HTTPStatusError)
        waits.append(seconds)
        raise Stopped

    http = httpx.Client(transport=httpx.MockTransport(lambda request: response))
    client = openai_client(before_retry, api_key="k", base_url="http://127.0.0.1/v1", http_client=http)
    with pytest.raises(Stopped):
        client.chat.completions.create(model="m", messages=[])
    return waits[0]


def test_a_server_tells_seconds_or_a_date():
    assert retry_after("2.5") == 2.5
    then = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=30), usegmt=True)
    assert 28 < retry_after(then) <= 30
    assert retry_after("86400") == 86400
    assert retry_after("-5") == 0
    for header in ("", "soon", "nan", "Mon, 99 Foo"):
        assert retry_after(header) is None


def test_a_budget_waits_for_what_may_come_back_and_ends_when_nothing_does():
    budget = CostBudget(100, 0)
    first = budget.take(100, 30)  # 30 for the prompt, as nothing is known yet
    assert first == 60
    waiting = list[int]()
    other = Thread(target=lambda: waiting.append(budget.take(100, 30)))
    other.start()
    other.join(0.05)
    assert not waiting
    budget.settle(first, 100, 10, 10)
    other.join(5)
    assert waiting == [40] and budget.spent == 20  # a tenth of a token a character
    budget.settle(40, 100, 10, 30)
    with pytest.raises(Spent):
        budget.take(100, 31)
    assert budget.take(100, 30) == 40
