import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fdl_trainer.simulate.command import simulate


def test_it_prints_a_page_for_people_or_json() -> None:
    arguments = ["1:2.3", "--windows", "30", "--event", "swap@w20", "--elche", "maxAnchor=20"]
    page = CliRunner().invoke(simulate, arguments)
    assert page.exit_code == 0
    assert page.output.startswith("efficiency      0.")
    assert "swap" in page.output
    data = json.loads(CliRunner().invoke(simulate, [*arguments, "--json"]).output)
    assert data["anchor"] == 10
    assert [row["window"] for row in data["table"]] == list(range(1, 31))
    assert data["table"][25]["quotas"] == {"0": 23, "1": 10}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["1:x"], "'x' in '1:x' is no rate"),
        (["1:2", "--event", "nova@w1"], "'nova@w1' is no event"),
        (["1:2", "--event", "death:2@w5"], "the event 'death' in window 5 is of rank 2, and there are only 2 from the"),
        (["1:2", "--elche", "anchor=0"], "spec.elche.anchor: Input should be greater than or equal to 1"),
        (["1:2", "--elche", "anchor"], "'anchor' is no knob"),
        (["1:2", "--elche", "anhcor=3"], "spec.elche has no field anhcor"),
        (["1:2", "--elche", "guard=nobody"], "spec.elche.guard"),
    ],
)
def test_what_it_cannot_read_is_said_in_a_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(simulate, arguments)
    assert result.exit_code == 2
    assert sentence in result.output


def test_it_does_not_import_torch() -> None:
    code = "import sys, fdl_trainer.simulate.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_the_page_shows_what_the_command_prints() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "tasks" / "simulate.md").read_text()
    block = re.search(r"```\n\$ fdl simulate (.*?)\n(.*?)```", page, re.DOTALL)
    assert block is not None
    assert CliRunner().invoke(simulate, block[1].split()).output == block[2]
