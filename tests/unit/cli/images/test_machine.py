"""What a build is told about this machine."""

import os
import subprocess
import sys
from pathlib import Path

from fdl_cli.images.machine import (
    Machine,
    apt_conf,
    ca_bundle,
    local_find_links,
    parse_apt_dump,
    parse_pip_list,
    pip_conf,
    write_secrets,
)


def test_pip_options_come_from_files_and_variables_win() -> None:
    text = (
        "global.cert='/ca.pem'\nglobal.timeout='20'\n:env:.timeout='180'\n"
        "install.find-links='/a\\n/b'\nuser.index-url='https://elsewhere.example'\nno line\n"
    )
    assert parse_pip_list(text) == {"timeout": "180", "find-links": "/a /b"}


def test_pip_conf_points_at_the_bundle_inside_the_build() -> None:
    assert pip_conf({"find-links": "/a /b", "no-index": "1", "timeout": "180"}, has_ca=True) == (
        "[global]\ndisable-pip-version-check = true\ncert = /run/secrets/ca.pem\n"
        "find-links =\n    /a\n    /b\nno-index = 1\ntimeout = 180\n"
    )
    assert "cert" not in pip_conf({}, has_ca=False)


def test_pip_takes_every_line_of_its_conf(tmp_path: Path) -> None:
    """pip itself reads it, as in a build."""
    settings = {"find-links": f"{tmp_path} /b", "no-index": "1", "timeout": "20", "retries": "2"}
    (conf := tmp_path / "pip.conf").write_text(pip_conf(settings, has_ca=False))
    command = [sys.executable, "-m", "pip", "download", "--dest", str(tmp_path), "no-such-package"]
    environment = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": str(conf)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "No matching distribution found for no-such-package" in done.stderr
    assert f"Looking in links: {tmp_path}, /b" in done.stdout


def test_apt_options_are_those_about_reaching_mirrors() -> None:
    dump = (
        'Acquire "";\nAcquire::Check-Date "false";\nAcquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::CAInfo "/etc/ca.pem";\nAcquire::GzipIndexes "true";\nDir::Etc "etc";\n'
    )
    assert parse_apt_dump(dump) == {
        "Acquire::Check-Date": "false",
        "Acquire::http::Proxy": "http://proxy.example:3128",
    }


def test_apt_conf_is_in_apts_own_form() -> None:
    text = apt_conf({"Acquire::Check-Date": "false"}, has_ca=True)
    assert 'Acquire::https::CAInfo "/run/secrets/ca.pem";\n' in text
    assert text.endswith('Acquire::Check-Date "false";\n')


def test_the_bundle_is_the_first_variable_that_names_a_file(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    assert ca_bundle({"SSL_CERT_FILE": str(tmp_path / "gone"), "PIP_CERT": str(bundle)}) == bundle
    assert ca_bundle({}) is None


def test_only_local_folders_with_packages_are_shown_to_the_build(tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "a.whl").touch()
    assert local_find_links({"find-links": f"{full} {empty} {tmp_path / 'gone'} https://wheels.example"}) == [full]


def test_secrets_are_for_the_owner_only_and_the_bundle_is_not_copied(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    secrets = write_secrets(Machine(bundle, {}, {}, {}), tmp_path / "secrets")
    assert secrets["ca.pem"] == bundle
    assert {name: path.stat().st_mode & 0o777 for name, path in secrets.items() if name != "ca.pem"} == {
        "pip.conf": 0o600,
        "apt.conf": 0o600,
    }


def test_without_a_bundle_there_is_no_such_secret(tmp_path: Path) -> None:
    assert set(write_secrets(Machine(None, {}, {}, {}), tmp_path / "secrets")) == {"pip.conf", "apt.conf"}
