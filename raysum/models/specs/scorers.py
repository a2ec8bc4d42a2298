"""Names of specifications for entry points of earlier installations."""

from raysum.models.systems.specs import BertSpec, ExtractorSpec, HibertSpec, PredictorSpec, RankerSpec  # noqa: F401
