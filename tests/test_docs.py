"""The documentation: generated tables and schemas are current, links lead to pages, files follow their schemas."""

import json
import re

import jsonschema
import pytest
import yaml

from helpers.project import ROOT
from raysum.cli.reference import SCHEMAS, fill_tables, schema
from raysum.prepare.config import PrepareConfig
from raysum.teach.config import TeachConfig

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def files_with_schemas():
    return [*sorted((ROOT / "raysum" / "presets").glob("*.yaml")), *sorted((ROOT / "tune_spaces").glob("*.yaml"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_option_tables_are_current(page):
    text = page.read_text()
    assert fill_tables(text) == text, "run `python -m raysum.cli.reference`"


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_current(name):
    assert (ROOT / name).read_text() == schema(SCHEMAS[name]), "run `python -m raysum.cli.reference`"


@pytest.mark.parametrize("path", files_with_schemas(), ids=lambda path: path.stem)
def test_presets_and_spaces_follow_the_schema_that_they_name(path):
    name = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())[1]
    jsonschema.validate(yaml.safe_load(path.read_text()), json.loads((path.parent / name).read_text()))


def test_a_wrong_key_breaks_the_schema():
    rules = json.loads((ROOT / "raysum" / "presets" / "config.schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"train": {"stepz": 5}}, rules)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_listed_in_the_readme():
    listed = set(re.findall(r"\]\(docs/(\w+)\.md\)", PAGES[0].read_text()))
    assert listed == {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index", "api"}
    assert len(PAGES[0].read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_in_python_use_no_old_names(page):
    old = {"prepare": PrepareConfig.ALIASES, "teach": TeachConfig.ALIASES}
    for name, arguments in re.findall(r"raysum\.(prepare|teach)\((.*)\)", page.read_text()):
        assert not old[name].keys() & {*re.findall(r"(\w+)=", arguments)}, arguments
