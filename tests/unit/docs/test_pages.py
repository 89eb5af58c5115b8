"""Pages and examples say nothing that is not so: links lead somewhere, manifests fit the schema, scripts stay short."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdl_api.run import FdlRun

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
SCRIPTS = sorted(ROOT.glob("examples/*/train.py"))
LINE = 150
NOTES = ROOT / "charts" / "fdl" / "templates" / "NOTES.txt"


def runs(text: str) -> list[dict[str, Any]]:
    """All FdlRuns in a YAML text."""
    return [item for item in yaml.safe_load_all(text) if item and item.get("kind") == "FdlRun"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    dead = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_can_be_read_in_an_editor(page: Path) -> None:
    if page.parent.name == "reference":
        return  # generated
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        assert fenced or line.startswith("|") or len(line) <= LINE, f"{page}:{number} has {len(line)} characters"


@pytest.mark.parametrize("manifest", sorted(ROOT.glob("examples/*/fdlrun.yaml")), ids=lambda path: path.parent.name)
def test_the_examples_fit_the_schema(manifest: Path) -> None:
    (run,) = runs(manifest.read_text())
    spec = FdlRun.model_validate(run).spec
    assert spec.trainer.source.image is not None
    script = ROOT / spec.trainer.source.image.path.removeprefix("/opt/fdl/")
    assert script.is_file(), f"{manifest} names a script that is not in the examples image"


def test_the_run_of_the_readme_is_short_and_fits_the_schema() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "kind: FdlRun" in block]
    assert len(block.splitlines()) <= 20
    FdlRun.model_validate(runs(block)[0])


def test_the_first_manifest_of_the_notes_fits_the_schema() -> None:
    body = re.search(r"<<EOF\n(.*?)\n  EOF", NOTES.read_text(), re.DOTALL)
    assert body is not None
    text = re.sub(r"\{\{.*?\}\}", "x", body[1])
    FdlRun.model_validate(runs("\n".join(line[2:] for line in text.splitlines()))[0])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_an_example_is_under_sixty_lines(script: Path) -> None:
    assert len(script.read_text().splitlines()) < 60


def test_no_page_names_a_condition_reason_that_does_not_exist() -> None:
    words = set(re.findall(r"class \w+\(StrEnum\)|= \"(\w+)\"", (ROOT / "api" / "fdl_api" / "reasons.py").read_text()))
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = set(
        re.findall(r"\b((?:Script|NoCheckpoint|Checkpoint|Report|Child|PodTemplate|Model|NoFitting)[A-Z]\w+)", page)
    )
    assert named, json.dumps(sorted(words))
    assert named - words - {"CheckpointDurable"} == set()
