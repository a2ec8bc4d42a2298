"""Optional libraries, which extras of setup.cfg install."""

from importlib import import_module
from types import ModuleType

from raysum.errors import UserError

_EXTRAS = {
    **{"transformers": "bert", "openai": "teach", "mlflow": "mlflow", "wandb": "wandb"},
    "opentelemetry": "tracing",
    **dict.fromkeys(("s3fs", "gcsfs", "huggingface_hub"), "remote"),
}
_PACKAGES = {
    "mlflow": "mlflow-skinny",
    "docx": "python-docx",
    "pptx": "python-pptx",
    "python_calamine": "python-calamine",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",
}  # library -> package, if the names differ


def needs(library: str, what: str) -> ModuleType:
    """Return the ``library`` or a module of it. Raises UserError with the command that installs what ``what`` needs."""
    try:
        return import_module(library)
    except ImportError:
        name = library.partition(".")[0]
        package, extra = _PACKAGES.get(name, name), _EXTRAS.get(name, "documents")
        command = f'pip install -c constraints.txt ".[{extra}]" in the clone of raysum'
        raise UserError(f"{what} needs {package}, which is not installed: {command}") from None
