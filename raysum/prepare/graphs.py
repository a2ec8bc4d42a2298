"""Given graphs over the paragraphs of a cluster, for graph-informed attention (HT, section 3)."""

from collections.abc import Sequence

import numpy as np

from raysum.prepare.ranking import TfIdf

_THRESHOLD = 0.1  # cosines below are no edge: the threshold of Erkan and Radev (2004)


def similarity_graph(paragraphs: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges between paragraphs (given as words) of tf-idf cosine above 0.1: rows, columns (int16), values (float32).

    Symmetric, without self loops, sorted by row and column.
    """
    edges = TfIdf(paragraphs).similarity().tocoo()
    kept = (edges.row != edges.col) & (edges.data > _THRESHOLD)
    rows, columns, values = edges.row[kept], edges.col[kept], edges.data[kept]
    order = np.lexsort((columns, rows))
    return rows[order].astype(np.int16), columns[order].astype(np.int16), values[order].astype(np.float32)
