"""The plan of the house: imports go down only, what is light stays light."""

import ast
import configparser
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.project import ROOT

PACKAGE = ROOT / "raysum"
# From top to bottom; rooms of one line import nothing of each other.
ROOMS = [
    ("__main__",),
    ("cli",),
    ("quickstart",),
    ("research",),
    ("auto", "bench", "report"),
    ("tune", "serve"),
    ("examples",),
    ("train",),
    ("evaluate",),
    ("extract",),
    ("decode",),
    ("importing",),
    ("stream", "teach"),
    ("prepare",),
    ("sources",),
    ("runs",),
    ("data",),
    ("config",),
    ("models",),
    ("tokenizers",),
    ("systems",),
    ("metrics",),
    ("pages", "text"),
    ("runtime",),
    ("errors", "verbs", "presets", "spaces"),
]
# Names in several rooms: entry points of processes and trainers, and the same function for several formats of files.
REPEATED = {"main", "train", "load", "save", "convert"}
FLOOR = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
LIGHT = ["models", "metrics", "decode", "extract", "stream/plan.py"]  # never import Ray or DeepSpeed
PUBLIC = {"os._exit", "torch.utils._python_dispatch.TorchDispatchMode"}  # documented under these names
# Libraries as they are imported, where packages have other names; those that come with one; those of extras.
OTHERWISE = {"protobuf": "google", "scikit-learn": "sklearn", "PyYAML": "yaml", "markdown-it-py": "markdown_it"}
BROUGHT = {"starlette", "uvicorn", "pydantic_core", "triton"}  # triton by a torch that has CUDA
OF_EXTRAS = {"pypdfium2", "transformers", "ctranslate2", "lxml", "openai"}
OPERATORS = re.compile(r"\b(torch\.ops|_aten)\.[\w.]*")  # operators of torch are known by their schema's names
OWN = re.compile(r"\b(self|cls|super\(\)|job|space|summarizer|searcher|base)\._")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        yield file, ast.parse(file.read_text())


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named_in_strings(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that strings name, which may be imported by them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and re.fullmatch(r"raysum(\.\w+)+(:\w+)?", str(node.value)):
            yield node.value.replace(":", ".")


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_go_down_only():
    for file, tree in modules():
        if file == PACKAGE / "__init__.py":
            continue  # the face: each verb is imported when it is called
        for name in (*imported(tree), *named_in_strings(tree)):
            parts = name.split(".")
            if parts[0] != "raysum" or len(parts) < 2 or parts[1] == "__version__":
                continue
            here, there = room_of(file), parts[1]
            assert there == here or FLOOR.get(there, len(ROOMS)) > FLOOR[here], (
                f"{file.relative_to(PACKAGE)} imports {name}"
            )


def test_no_two_rooms_have_a_class_or_public_function_of_one_name():
    rooms = defaultdict[str, set[str]](set)
    for file, tree in modules():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                rooms[node.name].add(room_of(file))
    repeated = {name: found for name, found in rooms.items() if len(found - {"cli"}) > 1}
    assert repeated.keys() <= REPEATED, f"rename {repeated}"


def test_every_file_says_its_subject():
    for file, tree in modules():
        assert not file.read_text() or ast.get_docstring(tree), f"{file} does not say what it is about"


def test_models_metrics_decoding_and_the_plan_know_neither_ray_nor_deepspeed():
    for file, tree in modules():
        if any(file.relative_to(PACKAGE).as_posix().startswith(room) for room in LIGHT):
            assert not {name.split(".")[0] for name in imported(tree)} & {"ray", "deepspeed"}, file


def test_other_libraries_private_names_are_touched_in_one_place():
    for file, tree in modules():
        if file == PACKAGE / "runtime" / "compat.py":
            continue
        for name in set(imported(tree)) - PUBLIC:
            hidden = [part for part in name.split(".") if part.startswith("_") and not part.startswith("__")]
            assert name.startswith("raysum") or not hidden, f"{file} imports {name}"
        for node in ast.walk(tree):
            named = isinstance(node, ast.Attribute) and node.attr not in ("_replace", "_asdict")  # of named tuples
            if named and node.attr.startswith("_") and not node.attr.startswith("__"):
                said = ast.unparse(node)
                assert OWN.match(said) or OPERATORS.match(said) or said in PUBLIC, f"{file}:{node.lineno}: {said}"


@pytest.mark.parametrize("code", ["import raysum.cli.app", "import raysum; raysum.train, raysum.Client"])
def test_what_is_imported_first_is_light(code):
    heavy = "('torch', 'ray', 'deepspeed', 'pandas', 'pyarrow', 'sklearn', 'fastapi')"
    check = f"{code}; import sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_rooms_that_are_verbs_are_called_as_their_functions():
    import inspect

    import raysum
    import raysum.train.checkpoints
    from raysum.train.fit import train

    assert inspect.signature(raysum.train) == inspect.signature(train)
    with pytest.raises(raysum.errors.UserError, match="training needs out=RUN"):
        raysum.train("pht", data="none")
    assert raysum.train.checkpoints.__name__ == "raysum.train.checkpoints"
    assert {"evaluate", "load", "prepare", "serve", "train", "tune"} <= set(raysum.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = raysum.trian


def test_all_public_names_are_listed_with_their_settings():
    import inspect
    import pydoc

    import raysum
    from raysum.errors import UserError

    check = (
        "import raysum; names = dir(raysum); from raysum import *; print(set(raysum.__all__) <= {*names, *globals()})"
    )
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "True\n"
    for name in raysum.__all__:
        verb = getattr(raysum, name)
        parameters = inspect.signature(verb).parameters.values()
        assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters), name
        shown = pydoc.plain(pydoc.render_doc(verb))
        assert all(one.name in shown for one in parameters) and len(inspect.getdoc(verb) or "") > 40, name
    prepare = inspect.signature(raysum.prepare).parameters
    assert (prepare["valid"].default, prepare["max_paragraphs"].default) == (0.0, 40)
    assert prepare["normalize"].kind is inspect.Parameter.KEYWORD_ONLY
    assert inspect.signature(raysum.serve).parameters["port"].default == 8000
    assert inspect.signature(raysum.load).parameters["num_beams"].default == 5
    assert "share of clusters of no named split held out for validation" in pydoc.render_doc(raysum.prepare)
    for call, near in (
        (lambda: raysum.prepare("none.jsonl", "data", max_paragraph=3), "max_paragraphs"),
        (lambda: raysum.evaluate("lead", "data", spilt="test"), "split"),
        (lambda: raysum.serve("lead", prot=1), "port"),
        (lambda: raysum.teach("none.jsonl", "out.jsonl", "http://127.0.0.1:1", "m", word=3), "words"),
        (lambda: raysum.train("pht", dta="data"), "data"),
        (lambda: raysum.tune("beta", exmples=3), "examples"),
        (lambda: raysum.reproduce("all", "data", "out", minute=3), "minutes"),
        (lambda: raysum.human_sheets("x", design="rating", out="out", item=3), "items"),
        (lambda: raysum.load("lead", wrods=3), "words"),
    ):
        with pytest.raises(UserError, match=f"did you mean '{near}'"):
            call()


def test_every_package_is_installed():
    parser = configparser.ConfigParser()
    parser.read(PACKAGE.parent / "setup.cfg")
    folders = {".".join(file.parent.relative_to(PACKAGE.parent).parts) for file in PACKAGE.rglob("*.py")}
    assert set(parser["options"]["packages"].split()) - {"raysum.spaces"} == folders


def test_every_library_is_installed_or_of_an_extra():
    parser = configparser.ConfigParser()
    parser.read(PACKAGE.parent / "setup.cfg")
    told = {re.split(r"[^\w-]", line)[0] for line in parser["options"]["install_requires"].split()}
    told = {OTHERWISE.get(name, name).replace("-", "_").lower() for name in told}
    used = {name.split(".")[0].lower() for _, tree in modules() for name in imported(tree)}
    assert used - told - BROUGHT - sys.stdlib_module_names - {"raysum"} == OF_EXTRAS


def test_every_data_file_is_installed():
    parser = configparser.ConfigParser()
    parser.read(PACKAGE.parent / "setup.cfg")
    patterns = dict(parser["options.package_data"])
    for file in PACKAGE.rglob("*.*"):
        if file.suffix not in (".py", ".pyc", ".md"):
            folder = next(parent for parent in file.parents if (parent / "__init__.py").is_file())
            package = ".".join(folder.relative_to(PACKAGE.parent).parts)
            told = re.split(r"[,\n]\s*", patterns.get(package, "").strip())  # as setuptools reads it, not at blanks
            found = any(pattern and file.relative_to(folder).match(pattern) for pattern in told)
            assert found, f"{file} is missing in an installed raysum"
