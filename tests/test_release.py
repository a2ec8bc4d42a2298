"""The files of a release: the wheel and the sdist are complete, the citation follows its format, the versions agree."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import jsonschema
import pytest
import yaml

import raysum
from helpers.project import ROOT

# Of Citation File Format 1.2.0, without the keys that raysum does not use.
PERSON = {
    "type": "object",
    "properties": {key: {"type": "string"} for key in ("family-names", "given-names", "name")},
    "additionalProperties": False,
    "minProperties": 1,
}
WORK = {
    "title": {"type": "string"},
    "authors": {"type": "array", "items": PERSON, "minItems": 1},
    "doi": {"type": "string", "pattern": r"^10\.\d{4,9}/\S+$"},
}
REFERENCE = {
    "type": "object",
    "properties": WORK
    | {"type": {"enum": ["article", "conference-paper"]}, "year": {"type": "integer"}}
    | {"collection-title": {"type": "string"}},
    "required": ["type", "title", "authors"],
    "additionalProperties": False,
}
CITATION = {
    "type": "object",
    "properties": WORK
    | {key: {"type": "string"} for key in ("message", "abstract", "version", "license")}
    | {"cff-version": {"const": "1.2.0"}, "type": {"enum": ["software", "dataset"]}}
    | {"keywords": {"type": "array", "items": {"type": "string"}}, "references": {"type": "array", "items": REFERENCE}},
    "required": ["cff-version", "message", "title", "authors"],
    "additionalProperties": False,
}

SECRETS = ("ray-token", "grafana-password")  # an operator writes them to cluster/compose


def test_the_citation_follows_its_format_and_a_misspelt_key_is_found():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    jsonschema.validate(citation, CITATION)
    for key in citation:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({name + "z" * (name == key): value for name, value in citation.items()}, CITATION)


def test_versions_agree():
    setup = re.search(r"^version = (\S+)", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[1]
    assert {setup, yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]} == {raysum.__version__}


def built(kind: str, source: Path, out: Path) -> Path:
    """Build the ``kind`` of file as `python -m build` does, with the installed setuptools; return its path."""
    program = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_sdist_has_the_files_of_the_project_and_its_wheel_those_of_the_package(tmp_path):
    source, folders = tmp_path / "source", ("cluster", "docs", "raysum", "tests", "tune_spaces")
    for folder in folders:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", *SECRETS))
    needed = {path.name for path in ROOT.iterdir() if path.is_file() and path.name[0] != "."}
    assert {"LICENSE", "SECURITY.md", "CITATION.cff", "constraints.txt"} < needed
    for name in needed:
        shutil.copyfile(ROOT / name, source / name)
    archive = built("sdist", source, tmp_path)
    needed = files(source) - {name for name in files(source) if name.startswith("raysum.egg-info/")}
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    unpacked = tmp_path / "unpacked" / f"raysum-{raysum.__version__}"
    assert needed - files(unpacked) == set()
    with zipfile.ZipFile(built("wheel", unpacked, tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    spaces = {f"raysum/spaces/{name.partition('/')[2]}" for name in needed if name.startswith("tune_spaces/")}
    package = spaces | {name for name in needed if name.startswith("raysum/")}
    assert names == {name for name in package if not name.endswith((".md", ".png"))}
