"""The survey of a machine outside of a cluster, as a program of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdl_api.report import Check, Report, worst
from fdl_prober import local

DATA = Path(__file__).parent / "data"
CLUSTER = """
apiVersion: fdl.dev/v1alpha1
kind: FdlCluster
metadata: {name: default}
spec:
  variants:
    - {name: cpu, vendor: cpu, image: r/cpu:1}
    - {name: rocm, vendor: amd, image: r/rocm:1, archs: [gfx90a, gfx1030]}
"""


def survey(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program, with no NVIDIA driver in reach unless ``env`` says so."""
    return subprocess.run(
        [sys.executable, "-m", "fdl_prober", "--local", *words],
        env=os.environ | {"FDL_DRIVER_ROOT": "/nonexistent"} | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_json_is_one_report_with_all_its_fields() -> None:
    done = survey("--json", FDL_SYSFS_ROOT=str(DATA / "mixed/sys"), FDL_NODE_NAME="box")
    report = Report.model_validate_json(done.stdout)
    assert (report.node, report.local) == ("box", True)
    assert [device.arch for device in report.devices] == ["gfx90a", "gfx1030"]
    assert set(json.loads(done.stdout)) == {field.alias or name for name, field in Report.model_fields.items()}
    assert done.returncode == (0 if worst(report.checks) in ("pass", "warn") else 1)


def test_a_real_kernel_is_run_by_the_torch_of_this_python(tmp_path: Path) -> None:
    done = survey(
        "--json", "--deep", "--data", str(tmp_path), "--checkpoints", str(tmp_path), FDL_SYSFS_ROOT=str(tmp_path)
    )
    report = Report.model_validate_json(done.stdout)
    assert report.deep["this-python-cpu"].outcome == "passed"
    assert {"deep-check", "data-path", "disk-space"} <= {check.name for check in report.checks}


def test_a_gpu_without_its_driver_is_exit_code_1_with_a_remedy() -> None:
    done = survey(FDL_SYSFS_ROOT=str(DATA / "mixed/sys"))
    assert done.returncode == 1
    assert "FAIL    gpu-driver" in done.stdout and "Install NVIDIA's driver" in done.stdout


def test_variants_come_from_a_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "cluster.yaml"
    manifest.write_text(CLUSTER)
    done = survey("--json", "--cluster", str(manifest), FDL_SYSFS_ROOT=str(DATA / "mixed/sys"))
    covered = [check for check in Report.model_validate_json(done.stdout).checks if check.name == "kernel-coverage"]
    assert [check.severity for check in covered] == ["pass", "pass"]


@pytest.mark.parametrize("text", ["", "kind: FdlRun\n", "spec: [", "spec: {variants: [{name: x}]}\n", "- 1\n"])
def test_a_manifest_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(local.UsageError, match="FdlCluster that can be used"):
        local.cluster_spec(tmp_path / "cluster.yaml")


@pytest.mark.parametrize(
    "text", ["a: !!int ''", "a: !!timestamp x", "[1]", "spec: {variants: 3}", "spec: null", "a: \0", "[" * 3000]
)
def test_what_is_no_cluster_at_all_is_told_on_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(local.UsageError, match=r"FdlCluster that can be used: .") as told:
        local.cluster_spec(tmp_path / "cluster.yaml")
    assert "\n" not in str(told.value) and len(str(told.value)) < 600


def test_wrong_words_and_settings_are_exit_code_2(tmp_path: Path) -> None:
    assert survey("--cluster", str(tmp_path / "none")).returncode == 2
    assert survey("--colour").returncode == 2
    assert survey(FDL_PERIOD_SECONDS="soon").returncode == 2


def test_no_package_of_the_cluster_client_is_loaded() -> None:
    """The DaemonSet would pay for them with memory on every node, and a machine outside may not have them."""
    code = (
        "import fdl_prober.local, fdl_prober.__main__, sys\n"
        "print([name for name in ('kubernetes', 'aiohttp', 'pynvml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_worst_severity() -> None:
    order = ("pass", "warn", "unknown", "fail")
    made = [Check(name="x", severity=severity, message="m") for severity in order]
    assert [worst(made[: index + 1]) for index in range(4)] == list(order)
    assert worst([]) == "pass"
