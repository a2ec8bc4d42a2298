"""Names of specifications for entry points of earlier installations."""

from raysum.models.systems.specs import GraphSumSpec, TdmcaSpec, TxlSpec  # noqa: F401
