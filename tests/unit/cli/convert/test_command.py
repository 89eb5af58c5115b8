"""``fdl convert`` as it is called."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fdl_cli.convert.command import convert
from fdl_cli.main import main

GOOD = """\
cluster:
  controller: {host: 10.0.0.1, path: /opt/flodl}
  workers:
    - {host: a, local_devices: [0], nccl_socket_ifname: eth0, path: /opt/flodl, arch: precompiled/cu128}
commands:
  train: {cluster: true, run: cargo run}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fdl.cluster.yml"
    path.write_text(GOOD)
    return path


def test_manifests_go_to_stdout_and_the_account_to_stderr(file: Path) -> None:
    done = CliRunner().invoke(main, ["convert", str(file)])
    assert done.exit_code == 0, done.output
    assert [each["kind"] for each in yaml.safe_load_all(done.stdout)] == ["FdlCluster", "FdlRun"]
    assert done.stdout.startswith("# Made by fdl convert from fdl.cluster.yml.\n# Before you apply it:\n# - image ")
    summary = re.match(
        r"fdl.cluster.yml: (\d+) keys carried over, (\d+) without a counterpart, 0 not understood", done.stderr
    )
    assert summary is not None and int(summary[1]) + int(summary[2]) == 10
    assert "cluster.controller.host (line 2)" in done.stderr
    assert "\x1b[" not in done.stderr


def test_unknown_keys_are_told_with_their_line_and_end_with_1(file: Path) -> None:
    file.write_text(GOOD + "  # a comment\nclusterr: {}\n")
    done = CliRunner().invoke(convert, [str(file)])
    assert done.exit_code == 1
    assert "line 8: clusterr is no key of floDl's, and was left out; did you mean cluster?" in done.stderr
    assert len(list(yaml.safe_load_all(done.stdout))) == 2


def test_several_files_are_laid_over_each_other_and_places_name_the_file(file: Path, tmp_path: Path) -> None:
    base = tmp_path / "fdl.yml"
    base.write_text("ddp: {mode: cpu-async}\nzzz: 1\n")
    done = CliRunner().invoke(convert, [str(base), str(file)])
    assert done.exit_code == 1 and "fdl.yml:2: zzz is no key" in done.stderr
    assert list(yaml.safe_load_all(done.stdout))[1]["spec"]["mode"] == "cpu-async"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a: [", "is no YAML that can be read"), ("ddp: {}\n", "there is no block 'cluster'"), ("", "no block 'cluster'")],
)
def test_what_cannot_be_converted_ends_with_2_and_writes_nothing(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    done = CliRunner().invoke(convert, [str(file)])
    assert (done.exit_code, done.stdout) == (2, "") and sentence in done.stderr


def test_a_file_that_exists_is_not_overwritten(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.yml"
    assert CliRunner().invoke(convert, [str(file), "-o", str(target)]).exit_code == 0
    written = target.read_text()
    again = CliRunner().invoke(convert, [str(file), "-o", str(target)])
    assert again.exit_code == 2 and "exists and is not overwritten" in again.stderr
    assert target.read_text() == written
    nowhere = CliRunner().invoke(convert, [str(file), "-o", str(tmp_path / "no" / "out.yml")])
    assert nowhere.exit_code == 2 and "cannot be written: No such file" in nowhere.stderr


def test_a_name_that_is_none_is_refused_with_one_that_is(file: Path) -> None:
    done = CliRunner().invoke(convert, [str(file), "--name", "My Run"])
    assert done.exit_code == 2 and "for example my-run" in done.stderr


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_keep_to_the_width(file: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(convert, [str(file)])
    assert max(len(line) for line in done.stderr.splitlines()) <= width


def test_what_files_say_steers_no_terminal_and_ends_no_comment(tmp_path: Path) -> None:
    file = tmp_path / "a\n---\nkind: Evil"
    file.write_text(GOOD + '"\\e[2J\\ePwned": 1\n')
    done = CliRunner().invoke(convert, [str(file)])
    assert "\x1b" not in done.output and "Pwned is no key" in done.output
    assert all(each["kind"] != "Evil" for each in yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("number", ["1" + "0" * 400, "0x" + "f" * 6000, "-" + "9" * 400])
def test_numbers_that_nobody_can_count_with_are_left_out(file: Path, number: str) -> None:
    file.write_text(f"{GOOD}ddp: {{overhead_target: {number}, anchor: {number}}}\n")
    done = CliRunner().invoke(convert, [str(file)])
    assert done.exit_code == 1, done.output
    assert " ".join(done.stderr.split()).count("a number beyond all measure, not") == 2


def test_objects_whose_names_would_be_alike_are_told_apart(file: Path) -> None:
    many = "builds/sm61-sm70-sm75-sm80-sm86-sm"
    workers = "".join(
        f"    - {{host: {host}, local_devices: [0], arch: {many}{arch}, nccl_socket_ifname: eth{at}}}\n"
        for at, (host, arch) in enumerate([("a", 89), ("A", 90), ("a", 120)])
    )
    file.write_text(
        f"cluster:\n  workers:\n{workers}commands:\n  Train!: {{cluster: true}}\n  train?: {{cluster: true}}\n"
    )
    done = CliRunner().invoke(convert, [str(file)])
    assert done.exit_code == 0, done.output
    cluster, *runs = yaml.safe_load_all(done.stdout)
    assert [run["metadata"]["name"] for run in runs] == ["train", "train-2"]
    assert "numbered: train, train-2" in " ".join(done.stderr.split())
    assert [group["name"] for group in cluster["spec"]["fabric"]["groups"]] == ["a", "a-2", "a-3"]
    names = [variant["name"] for variant in cluster["spec"]["variants"]]
    assert len(set(names)) == 3 and all(len(name) <= 30 for name in names)
    assert [cohort["variant"] for cohort in runs[0]["spec"]["cohorts"]] == names
