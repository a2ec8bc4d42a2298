"""Names of specifications for entry points of earlier installations."""

from raysum.models.family.spec import FamilySpec  # noqa: F401
