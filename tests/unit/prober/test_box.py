"""What counts outside of a cluster: this Python's torch, NCCL's files, the named description."""

from pathlib import Path

import pytest

from fdl_prober import box

CUDA = "__version__ = '2.10.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
ROCM = "__version__ = '2.10.0+rocm7.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.0.51831-a3e329ad8'\n"


@pytest.mark.parametrize(("text", "build"), [(CUDA, "cu128"), (ROCM, "rocm7.0"), ("cuda = None\n", "cpu"), ("", "cpu")])
def test_the_build_of_torch_without_starting_it(text: str, build: str) -> None:
    assert box.parse_build(text) == build


@pytest.mark.parametrize(
    ("tags", "needs"),
    [
        ("Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_x86_64\n", (2, 28)),
        ("Tag: cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64\n", (2, 17)),
        ("Tag: cp311-cp311-manylinux1_x86_64\n", (2, 5)),
        ("Tag: cp311-cp311-linux_x86_64\n", None),
        ("", None),
    ],
)
def test_the_c_library_that_a_package_needs(tags: str, needs: tuple[int, int] | None) -> None:
    assert box.needed_glibc(tags) == needs


def test_the_torch_of_this_python() -> None:
    found = box.torch()
    assert found is not None and found.version and found.build


def test_nccls_file_fills_in_what_the_environment_does_not_have(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_PROTO=LL128  # fast\n# NCCL_ALGO=NVLS\nNCCL_SOCKET_IFNAME==eth0\n")
    found = box.environment({"NCCL_CONF_FILE": str(conf), "NCCL_PROTO": "Simple"})
    assert (found["NCCL_PROTO"], found["NCCL_SOCKET_IFNAME"], "NCCL_ALGO" in found) == ("Simple", "=eth0", False)


def test_a_named_description(tmp_path: Path) -> None:
    assert box.variant_file(None) is None
    missing = box.variant_file(tmp_path / "none")
    assert missing is not None and (missing.text, missing.error) == (None, "No such file or directory")
    (tmp_path / "v.json").write_text("{}")
    there = box.variant_file(tmp_path / "v.json")
    assert there is not None and there.text == "{}"
