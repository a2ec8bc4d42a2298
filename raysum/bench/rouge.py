"""Scoring speed, compared with the package `rouge-score`, which gives the same figures."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from raysum.bench.base import Bench, Number, Row
from raysum.bench.inputs import clusters
from raysum.bench.machine import Machine, timed
from raysum.errors import UserError
from raysum.metrics import rouge
from raysum.text.sentences import sentence_spans

_BLOCK = 100  # pairs scored in turn by each package, so that both run under the same load


class RougeBench(Bench):
    """A row for each length: the first words of a cluster, scored against its summary.

    Each sentence is a line; the protocol is google.
    """

    NAME: ClassVar[str] = "rouge"
    data: list[str] = Field([], description="files of clusters with summaries; default: generated ones")
    words: list[Number] = Field([140, 20], min_length=1, description="most words of both texts")
    pairs: int = Field(400, gt=0, description="most pairs of texts to score")
    repeats: int = Field(2, gt=0, description="repetitions; the fastest counts")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        return [(words,) for words in self.words]

    def row(self, _: Machine, words: int) -> Row:
        """Return the figures of one length, measured in this process. Raises UserError if no cluster has a summary."""
        from rouge_score.rouge_scorer import RougeScorer

        summarized = (cluster for cluster in clusters(self.data, self.pairs) if cluster.summaries)
        pairs = [
            (_lines(" ".join(text for _, text in cluster.documents), words), _lines(cluster.summaries[0], words))
            for cluster in islice(summarized, self.pairs)
        ]
        if not pairs:
            raise UserError(f"no cluster of {', '.join(self.data)} has documents and a summary: name other files")
        theirs = RougeScorer(rouge.METRICS, use_stemmer=True)
        ours_s = theirs_s = different = 0.0
        for start in range(0, len(pairs), _BLOCK):
            texts, summaries = map(list, zip(*pairs[start : start + _BLOCK], strict=True))
            seconds, own_scores = self._fastest(lambda: rouge.score(texts, summaries))  # noqa: B023
            ours_s += seconds
            seconds, expected = self._fastest(lambda: [*map(theirs.score, summaries, texts)])  # noqa: B023
            theirs_s += seconds
            for row, scores in zip(own_scores.to_dict("records"), expected, strict=True):
                different += any(row[metric] != 100 * scores[metric].fmeasure for metric in rouge.METRICS)
        return {
            "words": words,
            "pairs": len(pairs),
            "threads": 1,
            "counted_by": type(rouge.library().scorer).__module__.partition(".")[0],
            "pairs_per_s": len(pairs) / ours_s,
            "rouge_score_pairs_per_s": len(pairs) / theirs_s,
            "times_rouge_score": theirs_s / ours_s,
            "different": int(different),
            "seconds": ours_s,
        }

    def _fastest(self, work: Callable[[], Any]) -> tuple[float, Any]:
        results = list[Any]()
        seconds = min(timed(lambda: results.append(work())) for _ in range(self.repeats))
        return seconds, results[-1]


def _lines(text: str, words: int) -> str:
    """Return the first ``words`` of a text, each sentence in a line."""
    text = " ".join(text.split()[:words])
    return "\n".join(text[start:end] for start, end in sentence_spans(text))
