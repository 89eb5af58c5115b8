"""What every Dockerfile of the repository has to hold."""

import re
from pathlib import Path

import pytest

from fdl_cli.images.build import Plan, plan_image, project_version
from fdl_cli.images.catalog import CATALOG, Image
from fdl_cli.images.dockerfile import Instruction, copied_paths, instructions
from fdl_cli.images.errors import ImageError
from fdl_cli.images.inputs import find_source
from fdl_cli.images.workshop import Options

ROOT = find_source(Path(__file__).resolve())
IMAGES = pytest.mark.parametrize("image", CATALOG.values(), ids=CATALOG)
FROM_BASE = pytest.mark.parametrize("image", [i for i in CATALOG.values() if i.parent is None], ids=lambda i: i.name)
PROGRAMS = pytest.mark.parametrize("image", [i for i in CATALOG.values() if not i.needs_nccl], ids=lambda i: i.name)
PROGRAMS_FROM_BASE = pytest.mark.parametrize(
    "image", [i for i in CATALOG.values() if not (i.parent or i.needs_nccl)], ids=lambda i: i.name
)


def text_of(image: Image) -> str:
    return (ROOT / image.dockerfile).read_text()


def stages(image: Image) -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for instruction in instructions(text_of(image)):
        if instruction.word == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


@IMAGES
def test_runs_as_a_numeric_user_that_is_not_root(image: Image) -> None:
    users = [instruction.rest for instruction in stages(image)[-1] if instruction.word == "USER"]
    assert users[-1] == "65532:65532"


@PROGRAMS
def test_starts_its_program_without_a_shell(image: Image) -> None:
    if image.parent:  # inherits the trainer's
        assert not any(instruction.word in ("CMD", "ENTRYPOINT") for instruction in stages(image)[-1])
        return
    commands = [instruction.rest for instruction in stages(image)[-1] if instruction.word == "CMD"]
    module = {"operator": "fdl_operator", "prober": "fdl_prober"}.get(image.name, "fdl_trainer.agent")
    assert commands == [f'["python", "-m", "{module}"]']


@FROM_BASE
def test_the_first_stage_is_the_same_so_that_its_layer_is_shared(image: Image) -> None:
    assert stages(image)[0] == stages(CATALOG["operator"])[0]


@FROM_BASE
def test_stands_on_debian_unless_told_otherwise(image: Image) -> None:
    assert instructions(text_of(image))[0] == Instruction("ARG", "BASE_IMAGE=debian:trixie-slim")


@PROGRAMS_FROM_BASE
def test_our_code_is_the_last_layer_with_files(image: Image) -> None:
    layers = [i.rest for i in stages(image)[-1] if i.word in ("COPY", "ADD", "RUN")]
    assert layers[-1] == "--from=code /opt/fdl/lib /opt/fdl/lib"


@FROM_BASE
def test_no_build_tool_reaches_the_final_stage(image: Image) -> None:
    final = "\n".join(instruction.rest for instruction in stages(image)[-1])
    assert "python3-venv" not in final
    assert "/opt/pip" not in final


@IMAGES
def test_names_no_registry_and_takes_this_machines_settings_only_as_secrets(image: Image) -> None:
    text = text_of(image)
    assert not re.search(r"https?://", text)
    for instruction in instructions(text):
        if "/run/secrets/" in instruction.rest:
            assert instruction.word == "RUN"
            assert "--mount=type=secret" in instruction.rest


@IMAGES
def test_every_copied_path_exists(image: Image) -> None:
    assert [path for path in copied_paths(text_of(image)) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("image-*.txt")), ids=lambda path: path.name)
def test_pinned_packages_carry_hashes_and_no_address(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    packages = re.findall(r"^[A-Za-z0-9_.-]+==\S+ (.*)$", text, re.MULTILINE)
    assert packages
    assert all(rest.startswith("\\") for rest in packages)
    assert len(re.findall(r"^[A-Za-z0-9]", text, re.MULTILINE)) == len(packages)


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("image-*.txt")), ids=lambda path: path.name)
def test_images_run_the_versions_that_the_tests_run(path: Path) -> None:
    pin = re.compile(r"^([A-Za-z0-9_.-]+==[^\s;]+)", re.MULTILINE)
    tested = set(pin.findall((ROOT / "requirements/dev.txt").read_text()))
    assert set(pin.findall(path.read_text())) - tested == set()


def test_rocm_asks_for_the_index_that_the_repository_does_not_know() -> None:
    settings = {"parent_hash": "", "base_identity": "b", "version": project_version(ROOT)}
    with pytest.raises(ImageError, match="--torch-index"):
        plan_image(CATALOG["trainer-rocm"], ROOT, options=Options(), **settings)
    plan = plan_image(CATALOG["trainer-rocm"], ROOT, options=Options(torch_index="i"), **settings)
    assert plan.build_args["TORCH_INDEX"] == "i"


@pytest.mark.parametrize(
    "wheel",
    [
        "",
        "nvidia-nccl-cu12",
        "nccl==2.28.9",
        "nvidia-nccl-cu12==2.28",
        "-r evil==1.2.3",
        "nvidia-nccl-cu\u0661==2.28.9",
    ],
)
def test_a_bridge_asks_for_a_wheel_with_its_version(wheel: str) -> None:
    with pytest.raises(ImageError, match=r"such as --nccl nvidia-nccl-cu12==2\.28\.9"):
        bridge(wheel)


def test_a_bridge_of_another_release_is_another_image() -> None:
    plan, other = bridge("nvidia-nccl-cu12==2.28.9"), bridge("nvidia-nccl-cu13==2.26.2.post1")
    assert plan.build_args["NCCL"] == "nvidia-nccl-cu12==2.28.9"
    assert plan.hash != other.hash


def bridge(wheel: str) -> Plan:
    return plan_image(
        CATALOG["nccl-bridge"], ROOT, parent_hash="", base_identity="b", options=Options(nccl=wheel), version="1"
    )


def test_a_new_parent_or_base_means_a_new_image() -> None:
    def hash_of(name: str, parent: str, base: str) -> str:
        return plan_image(
            CATALOG[name], ROOT, parent_hash=parent, base_identity=base, options=Options(), version="1"
        ).hash

    assert hash_of("examples", "a", "x") != hash_of("examples", "b", "x")
    assert hash_of("operator", "", "x") != hash_of("operator", "", "y")
    assert hash_of("operator", "", "x") == hash_of("operator", "", "x")
