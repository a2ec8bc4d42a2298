"""A scorer of another package: the share of a title's words that a summary has."""

from raysum.metrics.scorer import Scorer
from raysum.metrics.statistics import Figure


class Title(Scorer):
    figures = {"title_recall": Figure("title words", 1, ("title_words_used",), ("title_words",))}

    def score(self, rows, summaries):
        return [
            _score(row["title"].lower().split(), summary.summary) for row, summary in zip(rows, summaries, strict=True)
        ]


def _score(title, summary):
    words = set(summary.lower().replace(".", "").split())
    return {"title_words": len(title), "title_words_used": sum(word in words for word in title)}
