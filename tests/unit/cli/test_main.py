import json

from click.testing import CliRunner

from fdl_cli.main import found, main


def test_commands_of_other_packages_are_found_by_their_entry_points() -> None:
    assert found()["simulate"] == ("fdl_trainer.simulate.command:simulate", "")
    listed = CliRunner().invoke(main, ["--help"]).output
    assert "simulate  Play a cohort in virtual time" in listed
    played = CliRunner().invoke(main, ["simulate", "1:2.3", "--windows", "5", "--json"])
    assert json.loads(played.output)["windows"] == 5
