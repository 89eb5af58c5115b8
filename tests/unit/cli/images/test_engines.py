"""Which program builds, and what it is told."""

from pathlib import Path

import pytest

from fdl_cli.images.engines import BuildRequest, Choice, Engine, EngineName, Probe, choose
from fdl_cli.images.errors import ImageError

YES = Probe(True, "1.0")
NO = Probe(False, "not installed")
DEAF = Probe(False, "Cannot connect to the Docker daemon")


def probes(docker: Probe = NO, podman: Probe = NO, buildah: Probe = NO) -> dict[EngineName, Probe]:
    return {"docker": docker, "podman": podman, "buildah": buildah}


@pytest.mark.parametrize(
    ("seen", "can_install", "expected"),
    [
        (probes(docker=YES, podman=YES, buildah=YES), True, Choice("docker")),
        (probes(docker=DEAF, podman=YES), True, Choice("podman")),
        (probes(docker=DEAF, buildah=YES), False, Choice("buildah")),
        (probes(docker=DEAF), True, Choice("buildah", install=True)),
    ],
)
def test_auto_takes_the_first_that_works_and_installs_only_as_a_last_resort(
    seen: dict[EngineName, Probe], can_install: bool, expected: Choice
) -> None:
    assert choose("auto", seen, can_install) == expected


def test_nothing_that_works_is_told_with_what_each_said() -> None:
    with pytest.raises(ImageError, match=r"docker: Cannot connect to the Docker daemon; podman: not installed"):
        choose("auto", probes(docker=DEAF), False)


def test_a_requested_engine_is_never_replaced_by_another() -> None:
    with pytest.raises(ImageError, match=r"docker cannot build here: Cannot connect"):
        choose("docker", probes(docker=DEAF, buildah=YES), True)


def test_a_requested_buildah_is_installed_where_that_is_possible() -> None:
    assert choose("buildah", probes(docker=YES), True) == Choice("buildah", install=True)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ImageError, match="no engine 'kaniko'"):
        choose("kaniko", probes(docker=YES), True)


REQUEST = BuildRequest(
    reference="fdl.local/x:dev",
    context=Path("/c"),
    dockerfile=Path("/c/images/x/Dockerfile"),
    build_args={"BASE_IMAGE": "b"},
    labels={"k": "v"},
    secrets={"ca.pem": Path("/ca")},
    volumes=[Path("/wheels")],
)
BUILDAH = Engine("buildah", storage=Path("/s"), runroot=Path("/r"))


def test_buildah_builds_in_its_own_storage_by_chroot() -> None:
    command = " ".join(BUILDAH.build(REQUEST))
    assert command.startswith("buildah --root /s --runroot /r --storage-driver overlay bud ")
    assert "--isolation chroot" in command
    assert "--layers" in command
    assert "--volume /wheels:/wheels:ro" in command


def test_plain_copies_keep_no_layer_of_each_step() -> None:
    plain = Engine("buildah", storage=Path("/s"), runroot=Path("/r"), driver="vfs")
    assert "--layers" not in plain.build(REQUEST)


@pytest.mark.parametrize("engine", [Engine("docker"), Engine("podman"), BUILDAH])
def test_every_engine_gets_arguments_labels_secrets_and_the_context(engine: Engine) -> None:
    command = " ".join(engine.build(REQUEST))
    assert "--tag fdl.local/x:dev --file /c/images/x/Dockerfile" in command
    assert "--build-arg BASE_IMAGE=b" in command
    assert "--label k=v" in command
    assert "--secret id=ca.pem,src=/ca" in command
    assert command.endswith(" /c")


def test_docker_gets_no_volume_because_it_has_none_in_builds() -> None:
    assert "--volume" not in Engine("docker").build(REQUEST)


def test_without_cache_every_step_runs_again() -> None:
    fresh = BuildRequest("r", Path("/c"), Path("/c/Dockerfile"), use_cache=False)
    assert "--no-cache" in BUILDAH.build(fresh)
    assert "--no-cache" not in BUILDAH.build(REQUEST)


def test_export_is_uncompressed() -> None:
    command = " ".join(BUILDAH.export("fdl.local/x:dev", Path("/t")))
    assert "--disable-compression" in command
    assert command.endswith("fdl.local/x:dev dir:/t")
    assert Engine("docker").export("r", Path("/t.tar")) == ["docker", "save", "--output", "/t.tar", "r"]
