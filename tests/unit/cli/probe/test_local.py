"""``fdl probe --local`` runs the prober as a program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fdl_api.report import Report
from fdl_cli.probe import local
from fdl_cli.probe.command import probe


def test_the_real_prober_surveys_this_machine() -> None:
    found = local.survey()
    assert isinstance(found, Report) and found.host.cpus > 0 and found.checks


def test_a_survey_of_this_machine_loads_no_client_of_clusters() -> None:
    """A box outside of a cluster may not have it, and it takes longer to load than everything else of the command."""
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from fdl_cli.main import main\n"
        "told = CliRunner().invoke(main, ['probe', '--local', '--json'])\n"
        "print(told.exit_code, '\"checks\"' in told.output, 'kubernetes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() in ("0 True False", "1 True False")


def test_the_command_prints_it_and_ends_by_the_worst_check() -> None:
    plain = CliRunner().invoke(probe, ["--local"])
    assert plain.exit_code in (0, 1) and "CHECK" in plain.output and " CPUs, " in plain.output
    told = json.loads(CliRunner().invoke(probe, ["--local", "--json"]).output)
    bad = [check for check in told["checks"] if check["severity"] not in ("pass", "warn")]
    assert plain.exit_code == (1 if bad else 0)


def program(folder: Path, text: str) -> str:
    """An interpreter that runs a script of ours in place of any module."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("sys.exit(\"No module named 'pynvml'\")", "is not installed here .* pip install 'fdl\\[prober\\]'"),
        ("print('x'); sys.exit('boom')", "ended with 1 and without a report: boom"),
        ("sys.exit(3)", "ended with 3 and without a report: it said nothing"),
        ("import time; time.sleep(60)", "did not end within 1 s; a driver may hang"),
    ],
)
def test_what_goes_wrong_is_a_sentence(
    tmp_path: Path, script: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LIMIT_SECONDS", 1.0)
    with pytest.raises(local.LocalError, match=sentence):
        local.survey(python=program(tmp_path, script))


def test_a_python_without_the_prober_says_what_to_install(tmp_path: Path) -> None:
    bare = program(tmp_path, f"import os; os.execv({sys.executable!r}, ['python', '-S', '-I', *sys.argv[1:]])")
    with pytest.raises(local.LocalError, match=r"is not installed here \(.*No module named"):
        local.survey(python=bare)
    with pytest.raises(local.LocalError, match="cannot be started"):
        local.survey(python=str(tmp_path / "none"))


def test_a_cluster_file_is_for_a_machine_outside_of_clusters(tmp_path: Path) -> None:
    done = CliRunner().invoke(probe, ["--cluster", str(tmp_path / "x.yaml")])
    assert done.exit_code == 2 and "--cluster goes with --local" in done.output
    missing = CliRunner().invoke(probe, ["--local", "--cluster", str(tmp_path / "x.yaml")])
    assert missing.exit_code == 1 and "x.yaml" in missing.output
