"""What a build has to know of this machine: proxies, certificate bundle, settings of pip and apt.

All of it reaches the build as secrets (files that single steps see) or as the proxy arguments that every engine leaves
out of an image, so none of it ends in a layer. An image built here and one built elsewhere are the same.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CA_IN_BUILD: Final = "/run/secrets/ca.pem"
_CA_VARIABLES: Final = ("FDL_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_PIP_OPTIONS: Final = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "proxy",
    "timeout",
    "retries",
)
_APT_OPTIONS: Final = re.compile(r"^Acquire::(?:Check-Date|Check-Valid-Until|Retries|https?::\S+)$", re.IGNORECASE)
_APT_FILES: Final = re.compile(r"(?:CAInfo|CAPath|SslCert|SslKey|Proxy-?Auto-?Detect)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Machine:
    """Settings of this machine as a build needs them."""

    ca_bundle: Path | None
    pip: Mapping[str, str]
    """pip's options by long name without dashes in front (``index-url``)."""
    apt: Mapping[str, str]
    """apt's options by full name (``Acquire::Check-Date``)."""
    proxies: Mapping[str, str]


def pip_conf(pip: Mapping[str, str], has_ca: bool) -> str:
    """Text of the build's pip.conf."""
    lines = ["[global]", "disable-pip-version-check = true"]
    if has_ca:
        lines.append(f"cert = {CA_IN_BUILD}")
    for key in _PIP_OPTIONS:
        values = pip[key].split() if key in pip else []
        # One value stands in the line itself: pip takes no yes or no from the next one.
        lines += [f"{key} = {values[0]}"] if len(values) == 1 else []
        lines += [f"{key} =", *(f"    {value}" for value in values)] if len(values) > 1 else []
    return "\n".join(lines) + "\n"


def apt_conf(apt: Mapping[str, str], has_ca: bool) -> str:
    """Text of the build's apt.conf."""
    lines = ['Acquire::Languages "none";']
    if has_ca:
        lines.append(f'Acquire::https::CAInfo "{CA_IN_BUILD}";')
    lines += [f'{key} "{value}";' for key, value in sorted(apt.items())]
    return "\n".join(lines) + "\n"


def parse_pip_list(text: str) -> dict[str, str]:
    """Options out of ``pip config list``; a variable (``:env:``) wins over a file, as in pip."""
    options: dict[str, str] = {}
    from_environment: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"^(?P<section>[^.=]+)\.(?P<key>[\w-]+)=(?P<value>.*)$", line)
        if not match or match["key"] not in _PIP_OPTIONS:
            continue
        value = match["value"].strip("'\"").replace("\\n", " ").strip()
        if match["section"] == ":env:":
            from_environment[match["key"]] = value
        elif match["section"] in ("global", "install"):
            options[match["key"]] = value
    return options | from_environment


def parse_apt_dump(text: str) -> dict[str, str]:
    """Options out of ``apt-config dump`` that say how to reach the mirrors; names of local files are left out."""
    options: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r'^(?P<key>\S+) "(?P<value>.*)";$', line)
        if match and match["value"] and _APT_OPTIONS.match(match["key"]) and not _APT_FILES.search(match["key"]):
            options[match["key"]] = match["value"]
    return options


def ca_bundle(environment: Mapping[str, str]) -> Path | None:
    """The certificate bundle that this machine's programs are told to use, if any variable names an existing file."""
    for variable in _CA_VARIABLES:
        path = Path(environment.get(variable, ""))
        if environment.get(variable) and path.is_file():
            return path
    return None


def local_find_links(pip: Mapping[str, str]) -> list[Path]:
    """Folders of this machine that pip looks for packages in, those that exist and are not empty."""
    folders = [Path(value) for value in pip.get("find-links", "").split() if value.startswith("/")]
    return [folder for folder in folders if folder.is_dir() and any(folder.iterdir())]


def read_machine() -> Machine:
    """Read this machine's settings. Tools that are not there count as tools without settings."""
    pip = parse_pip_list(_output([sys.executable, "-m", "pip", "config", "list"]))
    if "find-links" in pip:  # a folder that has nothing would only make pip complain inside the build
        remote = [value for value in pip["find-links"].split() if not value.startswith("/")]
        kept = remote + [str(folder) for folder in local_find_links(pip)]
        pip = {key: value for key, value in pip.items() if key != "find-links"}
        if kept:
            pip["find-links"] = " ".join(kept)
    apt = parse_apt_dump(_output(["apt-config", "dump"])) if shutil.which("apt-config") else {}
    proxies = {name: os.environ[name] for name in _PROXY_VARIABLES if os.environ.get(name)}
    return Machine(ca_bundle(os.environ), pip, apt, proxies)


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def write_secrets(machine: Machine, folder: Path) -> dict[str, Path]:
    """Write the secrets of a build into ``folder`` (readable by its owner only) and return them by id."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    texts = {
        "pip.conf": pip_conf(machine.pip, machine.ca_bundle is not None),
        "apt.conf": apt_conf(machine.apt, machine.ca_bundle is not None),
    }
    secrets: dict[str, Path] = {}
    for name, text in texts.items():
        secrets[name] = folder / name
        secrets[name].write_text(text, encoding="utf-8")
        secrets[name].chmod(0o600)
    if machine.ca_bundle is not None:
        secrets["ca.pem"] = machine.ca_bundle
    return secrets
