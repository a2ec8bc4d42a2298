"""How many parameters a spec has, in closed form: no torch, so `raysum config show` can print it at once."""

from raysum.models.specs import PredictorSpec, Seq2SeqSpec


def count_parameters(spec: Seq2SeqSpec | PredictorSpec) -> int:
    """Trainable numbers of the model that ``build(spec)`` makes; tied matrices count once."""
    if isinstance(spec, PredictorSpec):
        block = _attention(spec.width) + _ffn(spec.width, spec.ffn) + 2 * _norm(spec.width)
        return spec.layers * block + spec.width + 1
    d, v = spec.width, spec.vocabulary
    embedding = v * d + (v if spec.tied_output else d * v + v)
    final_norms = 2 * _norm(d) if spec.norm == "pre" else 0
    encoder = sum(_global(spec) if letter == "G" else _block(spec) for letter in spec.encoder)
    decoder = sum(_block(spec) + _norm(d) + _cross(spec, letter) for letter in spec.decoder)
    return embedding + final_norms + encoder + decoder + ("P" in spec.decoder) * _paragraph_pooling(spec)


def _norm(width: int) -> int:
    return 2 * width


def _square(width: int, bias: bool = True) -> int:
    return width * width + (width if bias else 0)


def _attention(width: int) -> int:
    return 4 * _square(width)  # query, key, value, output


def _ffn(width: int, hidden: int) -> int:
    return 2 * width * hidden + hidden + width


def _block(spec: Seq2SeqSpec) -> int:
    return _attention(spec.width) + _ffn(spec.width, spec.ffn) + 2 * _norm(spec.width)


def _global(spec: Seq2SeqSpec) -> int:
    d, heads = spec.width, spec.pooling_heads
    size, code = d // heads, spec.form == "code"
    score = heads * (d + code)
    # query, key, value shared by all heads; or those and W_c for each head
    inside = 3 * _square(size) if code else 4 * heads * _square(size, bias=False)
    norms = _norm(size) + _norm(d) * (2 if code or spec.norm == "pre" else 1)
    return score + 2 * _square(d, code) + inside + _ffn(d, spec.ffn) + norms


def _cross(spec: Seq2SeqSpec, letter: str) -> int:
    contexts_norm = _norm(spec.width) if letter == "V" and spec.form == "code" else 0
    return _attention(spec.width) * (1 if letter == "F" else 2) + contexts_norm


def _paragraph_pooling(spec: Seq2SeqSpec) -> int:
    d, code = spec.width, spec.form == "code"
    scorer = d if code else d // spec.pooling_heads
    return 2 * _square(d, code) + scorer + _ffn(d, spec.ffn) + _norm(d) * (2 if code else 1)
