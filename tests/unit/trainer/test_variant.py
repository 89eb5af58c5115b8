"""Facts about a torch, from what it says of itself."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fdl_trainer.variant import arch_list, blas_name, build_name, detect, main, nccl_text


@pytest.mark.parametrize(
    ("cuda", "hip", "expected"),
    [(None, None, "cpu"), ("12.8", None, "cu128"), ("13.2.1", None, "cu132"), (None, "7.0.51831-a3e329ad8", "rocm7.0")],
)
def test_build_name(cuda: str | None, hip: str | None, expected: str) -> None:
    assert build_name(cuda, hip) == expected


@pytest.mark.parametrize(
    ("version", "expected"), [((2, 30, 7), "2.30.7"), (22703, "2.27.3"), (2708, "2.7.8"), (None, None), ("x", None)]
)
def test_nccl_version_in_every_form_that_torch_gave_it(version: object, expected: str | None) -> None:
    assert nccl_text(version) == expected


NCCL = """
int ncclGetVersion(int *version) { *version = 22803; return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler makes a library to load")
def test_the_version_of_a_preloaded_library_is_its_own_word(tmp_path: Path) -> None:
    (tmp_path / "nccl.c").write_text(NCCL)
    library = tmp_path / "libnccl.so.2"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", str(library), str(tmp_path / "nccl.c")]
    subprocess.run(command, check=True, timeout=60)
    ask = "from fdl_trainer.variant import loaded_nccl, nccl_text; print(nccl_text(loaded_nccl('libnccl.so.2')))"

    def answer(**environment: str) -> str:
        own = dict(os.environ) | environment
        command = [sys.executable, "-c", ask]
        return subprocess.run(command, env=own, check=True, timeout=60, capture_output=True, text=True).stdout.strip()

    assert answer(LD_PRELOAD=str(library)) == "2.28.3"
    assert answer() == "None"


def test_architectures_are_sorted_by_number_and_lose_feature_suffixes() -> None:
    assert arch_list("sm_100 sm_90 compute_120 sm_90") == ("sm_90", "sm_100", "compute_120")
    assert arch_list("gfx942:xnack- gfx90a") == ("gfx90a", "gfx942")
    assert arch_list(None) == ()


@pytest.mark.parametrize(
    ("config", "mapped", "expected"),
    [
        ("BLAS_INFO=mkl, x", "/numpy.libs/libscipy_openblas64_.so", "mkl"),
        ("BLAS_INFO=open, x", "", "open"),
        ("BLAS_INFO=generic, x", "/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3", "openblas"),
        ("BLAS_INFO=generic, x", "/usr/lib/x86_64-linux-gnu/blas/libblas.so.3", "reference"),
        ("", "", "unknown"),
    ],
)
def test_blas_is_the_compiled_one_unless_the_system_chooses(config: str, mapped: str, expected: str) -> None:
    assert blas_name(config, mapped) == expected


def test_the_torch_of_this_interpreter_tells_the_truth() -> None:
    facts = detect("here")
    assert facts.torchVersion == torch.__version__
    assert (facts.build == "cpu") == (torch.version.cuda is None and torch.version.hip is None)
    assert bool(facts.archs) == (facts.build != "cpu")
    assert (facts.ncclVersion is not None) <= (facts.build != "cpu")


def test_the_program_prints_the_facts_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--name", "mine"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["name"] == "mine"
    assert set(facts) == {"name", "torchVersion", "build", "archs", "ncclVersion", "pythonVersion", "blas"}
