"""The deep check: exact comparison, and the whole program with the torch of this environment."""

import json
from pathlib import Path

import pytest

from fdl_api.coverage import covers
from fdl_api.report import DeepFacts
from fdl_trainer import deepcheck

torch = pytest.importorskip("torch", reason="this environment has no torch")


def test_the_product_is_exact_in_half_precision_with_float_sums() -> None:
    left, right = deepcheck.operands(deepcheck.SIZE)
    expected = deepcheck.product(left, right)
    a, b = torch.tensor(left, dtype=torch.bfloat16), torch.tensor(right, dtype=torch.bfloat16)
    assert (a.to(torch.float32) @ b.to(torch.float32)).tolist() == expected
    assert (a.to(torch.int64) @ b.to(torch.int64)).tolist() == expected
    assert len({value for row in expected for value in row}) > 20


@pytest.mark.parametrize("wrong", [float("nan"), 1.5, 0.0])
def test_one_wrong_number_is_found(wrong: float) -> None:
    expected = [[1, 2], [3, 4]]
    computed = [[1.0, 2.0], [wrong, 4.0]]
    assert deepcheck.mismatch([[1.0, 2.0], [3.0, 4.0]], expected) == ""
    assert "[1][0]" in deepcheck.mismatch(computed, expected)


def test_a_device_that_raises_is_the_finding() -> None:
    found = deepcheck.check_device(torch, "cuda:99", 3)
    assert (found.index, found.ok) == (3, False)
    assert found.error


def run(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, DeepFacts]:
    log, variant = tmp_path / "termination-log", tmp_path / "variant.json"
    log.touch()
    variant.write_text(json.dumps({"name": "c", "torchVersion": "2", "build": "cu128", "archs": ["sm_80", "sm_90"]}))
    monkeypatch.setenv("FDL_TERMINATION_LOG", str(log))
    monkeypatch.setenv("FDL_VARIANT_FILE", str(variant))
    code = deepcheck.main(arguments)
    assert capsys.readouterr().out.strip() == log.read_text()
    return code, DeepFacts.model_validate_json(log.read_text())


def test_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, facts = run(["--variant", "cpu", "--vendor", "cpu"], tmp_path, monkeypatch, capsys)
    assert (code, facts.passed, facts.variant, facts.simulated) == (0, True, "cpu", False)
    assert facts.torch_version == torch.__version__
    assert len(facts.devices) == 1


def test_a_simulated_device_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, facts = run(["--variant", "c", "--vendor", "nvidia", "--simulated"], tmp_path, monkeypatch, capsys)
    assert (code, facts.passed, facts.simulated) == (0, True, True)
    assert (facts.archs, facts.variant_file) == (("sm_80", "sm_90"), "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device")
def test_no_device_is_a_failure_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, facts = run(["--variant", "cuda", "--vendor", "nvidia"], tmp_path, monkeypatch, capsys)
    assert (code, facts.passed, facts.devices) == (1, False, ())
    assert "sees no nvidia device" in facts.error


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no device")
def test_a_real_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    vendor = "amd" if torch.version.hip else "nvidia"
    code, facts = run(["--variant", "gpu", "--vendor", vendor], tmp_path, monkeypatch, capsys)
    assert (code, facts.passed) == (0, True)
    assert len(facts.devices) == torch.cuda.device_count()
    assert all(covers(facts.archs, device.arch) for device in facts.devices)
    assert facts.nccl_version


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "it cannot be read: No such file or directory"),
        (b'{"name": "cpu", "arc', "it is no JSON"),
        (b"\xff\xfe\x00", "it is no JSON"),
        (b'{"name": "cpu", "torchVersion": "2", "build": "cpu"}', "it lacks archs"),
        (b'{"name": "cpu", "torchVersion": 2, "build": "cpu", "archs": []}', "torchVersion: of a wrong type"),
    ],
    ids=["none", "half-written", "no text", "a field missing", "a wrong type"],
)
def test_a_bad_description_of_the_image_is_told_and_the_kernel_runs_all_the_same(
    content: bytes | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "variant.json"
    if content is not None:
        file.write_bytes(content)
    assert deepcheck.described(file).archs == ()
    monkeypatch.setenv("FDL_VARIANT_FILE", str(file))
    monkeypatch.setenv("FDL_TERMINATION_LOG", str(tmp_path / "none"))
    assert deepcheck.main(["--variant", "cpu", "--vendor", "cpu"]) == 0
    facts = DeepFacts.model_validate_json(capsys.readouterr().out)
    assert facts.passed and facts.variant_file.startswith(told)
