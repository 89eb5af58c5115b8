"""NVML libraries that are old, broken or lie: each is compiled and asked through the real path."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fdl_api.report import Report
from fdl_api.report import parse as parse_report
from fdl_prober import decide, nvml
from fdl_prober.children import nvml as child
from fdl_prober.nvml import NvmlReport

from .stories import NOW, facts, seen

LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
FAKE = Path(__file__).parents[3] / "tools/cluster/fake-nvml/nvml.c"
BASE = """
#include <stdio.h>
#include <string.h>
typedef struct { char old[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned long long total, free, used; } memory;
static int handles[8];
#define EACH(name, type) int name(void *handle, type *to)
"""
WORKS = (
    BASE
    + """
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { strcpy(to, "580.65.06"); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) { *to = &handles[index]; return 0; }
EACH(nvmlDeviceGetMemoryInfo, memory) { to->total = 1ull << 36; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
"""
)
COUNT = "int nvmlDeviceGetCount_v2(unsigned *to) { *to = %d; return 0; }\n"
NAME = "int nvmlDeviceGetName(void *handle, char *to, unsigned size) { %s return 0; }\n"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler to build the libraries")


def compiled(root: Path, source: str) -> str:
    """Build a library below a driver root; returns the root."""
    (root / LIBRARY).parent.mkdir(parents=True)
    (root / "driver.c").write_text(source)
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", "-o", root / LIBRARY, root / "driver.c", "-ldl"], check=True, timeout=120
    )
    return str(root)


async def asked(root: Path, source: str) -> NvmlReport:
    return await nvml.observe([compiled(root, source)])


def reported(answer: NvmlReport) -> tuple[dict[str, str], Report]:
    """Labels and report of a node with such a driver; both have to be what a server takes."""
    labels, made = decide.desired(facts(seen(nvml=answer, plugged={"nvidia": 1})), NOW)
    assert parse_report(made.render()) == made
    return labels, made


async def test_an_old_driver_without_newer_calls(tmp_path: Path) -> None:
    source = WORKS.replace("nvmlInitWithFlags(unsigned flags)", "nvmlInit_v2(void)") + COUNT % 2
    answer = await asked(tmp_path, source)
    assert answer.loaded and [device.arch for device in answer.devices] == ["sm_90"] * 2
    first = answer.devices[0]
    assert (first.name, first.uuid, first.pci, first.mig, first.partitions) == ("unknown", "", "", False, ())
    labels, _ = reported(answer)
    assert labels["fdl.dev/count.nvidia"] == "2"


async def test_an_old_driver_that_does_not_start(tmp_path: Path) -> None:
    answer = await asked(tmp_path, BASE + "int nvmlInit_v2(void) { return 999; }\n")
    assert (answer.loaded, answer.unknown) == (False, False) and "Unknown" in answer.error


async def test_a_device_that_is_lost_costs_itself_only(tmp_path: Path) -> None:
    source = WORKS.replace("*to = &handles[index]; return 0;", "*to = &handles[index]; return index == 1 ? 15 : 0;")
    answer = await asked(tmp_path, source + COUNT % 3)
    assert [device.index for device in answer.devices] == [0, 2]
    assert [(lost.index, lost.error) for lost in answer.lost] == [(1, "GPU is lost")]


async def test_a_number_of_devices_that_cannot_be(tmp_path: Path) -> None:
    answer = await asked(tmp_path, WORKS + COUNT % -1)
    assert (answer.loaded, answer.unknown, answer.devices) == (False, True, ())
    assert "4294967295 devices" in answer.error
    labels, made = reported(answer)
    assert not [key for key in labels if key.startswith(("fdl.dev/count", "fdl.dev/vendor.nv", "fdl.dev/libtorch"))]
    assert [check.severity for check in made.checks if check.name == "gpu-driver"] == ["unknown"]


@pytest.mark.parametrize(("major", "minor"), [(-1, 0), (0, 0), (9, 77), (100000, 1), (9, -3)])
async def test_an_architecture_that_cannot_be_is_none(tmp_path: Path, major: int, minor: int) -> None:
    source = WORKS.replace("*major = 9; *minor = 0;", f"*major = {major}; *minor = {minor};") + COUNT % 1
    answer = await asked(tmp_path, source)
    assert [device.arch for device in answer.devices] == [""]
    labels, _ = reported(answer)
    assert not [key for key in labels if key.startswith("fdl.dev/arch")]


@pytest.mark.parametrize(
    ("fill", "name"),
    [
        ('strcpy(to, "NVIDIA \\xff\\xfe H100");', "unknown"),
        ('strcpy(to, "Gr\\xc3\\xbc\\xc3\\x9f e \\xe6\\xb1\\x89");', "Grüß e 汉"),
        ('strcpy(to, "a\\nb\\x1b[31m\\"c");', 'ab[31m"c'),
        ("memset(to, 'x', size);", "x" * 96),
        ("", "unknown"),
    ],
    ids=["no UTF-8", "another alphabet", "control characters", "no end", "empty"],
)
async def test_names_of_any_kind(tmp_path: Path, fill: str, name: str) -> None:
    answer = await asked(tmp_path, WORKS + COUNT % 1 + NAME % fill)
    assert [device.name for device in answer.devices] == [name]
    reported(answer)


async def test_numbers_that_cannot_be_cost_their_own_answer_only(tmp_path: Path) -> None:
    source = (
        WORKS.replace("to->total = 1ull << 36", "to->total = ~0ull")
        + COUNT % 1
        + """
EACH(nvmlDeviceGetMinorNumber, unsigned) { *to = 4294967295u; return 0; }
EACH(nvmlDeviceGetMaxMigDeviceCount, unsigned) { *to = 4294967295u; return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *next) { *now = 1; *next = 77; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **to) { *to = &handles[0]; return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = -13; return 0; }
int nvmlDeviceGetUUID(void *handle, char *to, unsigned size) { memset(to, '\\xff', size); return 0; }
EACH(nvmlDeviceGetPciInfo_v3, pci) { memset(to, '\\xff', sizeof *to); return 0; }
int nvmlDeviceGetTotalEccErrors(void *h, int kind, int counter, unsigned long long *to) { *to = ~0ull; return 0; }
int nvmlDeviceGetRemappedRows(void *h, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
  *a = *b = *c = *d = 4294967295u;
  return 0;
}
"""
    )
    answer = await asked(tmp_path, source)
    (device,) = answer.devices
    assert (answer.cuda, device.device_node, device.arch, device.uuid) == ("", "", "sm_90", "")
    assert (device.memory_bytes, len(device.partitions)) == (2**64 - 1, 64)
    labels, _ = reported(answer)
    assert labels["fdl.dev/count.nvidia"] == "1"


async def test_a_driver_that_hangs_at_one_device_costs_one_look(tmp_path: Path) -> None:
    """It starts, counts, tells the first device, and never comes back from the second."""
    source = "#include <unistd.h>\n" + WORKS.replace(
        "*to = &handles[index]; return 0;", "if (index) for (;;) pause(); *to = &handles[index]; return 0;"
    )
    answer = await nvml.observe([compiled(tmp_path, source + COUNT % 2)], timeout_seconds=3)
    assert (answer.loaded, answer.unknown, answer.devices) == (False, True, ())
    labels, made = reported(answer)
    assert not [key for key in labels if key.startswith(("fdl.dev/count", "fdl.dev/vendor.nv", "fdl.dev/arch"))]
    assert [check.reason for check in made.checks if check.name == "gpu-driver"] == ["no-answer"]


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability"],
)
async def test_a_call_that_fails_costs_its_own_answer_only(tmp_path: Path, call: str) -> None:
    lines = [line for line in WORKS.splitlines() if call not in line]
    failing = f"int {call}(void *a, void *b, unsigned c) {{ return 999; }}\n"
    answer = await asked(tmp_path, "\n".join(lines) + "\n" + COUNT % 1 + failing)
    assert len(answer.devices) == 1


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("abort();", "ended by SIGABRT"),
        ("raise(11);", "ended by SIGSEGV"),
        ("exit(0);", "code 0"),
        ('puts("{}x"); fflush(0); _exit(0);', "code 0"),
    ],
    ids=["aborts", "crashes", "ends the process", "writes nonsense"],
)
async def test_a_library_that_takes_its_process_along(tmp_path: Path, start: str, told: str) -> None:
    headers = "#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
    source = f"{headers}int nvmlInitWithFlags(unsigned f) {{ {start} return 0; }}\n"
    answer = await asked(tmp_path, source)
    assert (answer.loaded, answer.unknown) == (False, True) and told in answer.error


@pytest.mark.parametrize("does", ['puts("driver of a node");', "close(1);"], ids=["prints", "closes the output"])
async def test_a_library_that_meddles_with_the_output_is_heard_all_the_same(tmp_path: Path, does: str) -> None:
    source = (
        f"#include <unistd.h>\n{WORKS}{COUNT % 1}__attribute__((constructor)) static void start(void) {{ {does} }}\n"
    )
    answer = await asked(tmp_path, source)
    assert answer.loaded and [device.arch for device in answer.devices] == ["sm_90"]


async def test_a_library_whose_loading_never_ends(tmp_path: Path) -> None:
    source = "#include <unistd.h>\n__attribute__((constructor)) static void start(void) { for (;;) pause(); }\n"
    answer = await nvml.observe([compiled(tmp_path, source)], timeout_seconds=2)
    assert answer.unknown and "did not answer within 2 s" in answer.error


async def test_two_hundred_devices_fit_into_a_report(tmp_path: Path) -> None:
    source = FAKE.read_text().replace("MOST_DEVICES = 64", "MOST_DEVICES = 256")
    root = compiled(tmp_path, source)
    (tmp_path / "usr/etc").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/fdl-fake-nvml.conf").write_text(
        "count 200\narch 9.0\nname NVIDIA H100 80GB HBM3\nmemory 85899345920\ndriver 580.65.06\ncuda 13000\nseed 1\n"
    )
    answer = await nvml.observe([root])
    assert len(answer.devices) == 200 and answer.devices[199].index == 199
    labels, made = reported(answer)
    assert labels["fdl.dev/count.nvidia"] == "200"
    # All annotations of an object together may have 256 KiB.
    assert len(made.render().encode()) < 200_000


async def test_mig_instances_and_faults(tmp_path: Path) -> None:
    source = (
        WORKS
        + COUNT % 1
        + """
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *next) { *now = 1; *next = 0; return 0; }
EACH(nvmlDeviceGetMaxMigDeviceCount, unsigned) { *to = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **to) {
  if (index > 1) return 6;
  *to = &handles[index];
  return 0;
}
int nvmlDeviceGetName(void *handle, char *to, unsigned size) { strcpy(to, "NVIDIA A100 MIG 1g.5gb"); return 0; }
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *to) {
  *to = kind == 1 && counter == 0 ? 3 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(void *h, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
  *a = *b = *failed = 0;
  *pending = 1;
  return 0;
}
"""
    )
    (device,) = (await asked(tmp_path, source)).devices
    assert (device.mig, device.mig_pending, len(device.partitions)) == (True, True, 2)
    assert (device.faults.ecc_uncorrected, device.faults.remap_pending, device.faults.remap_failed) == (3, True, False)


async def test_processes_that_hold_memory(tmp_path: Path) -> None:
    source = (
        WORKS
        + COUNT % 1
        + """
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process *to) {
  if (!to) { *count = 1; return 7; }
  to[0].pid = 42;
  to[0].used = 1ull << 30;
  *count = 1;
  return 0;
}
"""
    )
    root = compiled(tmp_path, source)
    (held,) = (await nvml.observe([root], processes=True)).holdings
    assert (held.vendor, held.device, held.pid, held.bytes) == ("nvidia", 0, 42, 1 << 30)


async def test_processes_of_a_driver_that_knows_the_older_call_only(tmp_path: Path) -> None:
    source = (
        WORKS
        + COUNT % 1
        + """
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process;
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, process *to) {
  if (!to) { *count = 1; return 7; }
  to[0].pid = 4294967295u;
  to[0].used = ~0ull;
  *count = 1;
  return 0;
}
"""
    )
    (held,) = (await nvml.observe([compiled(tmp_path, source)], processes=True)).holdings
    assert (held.pid, held.bytes) == (2**32 - 1, 0), "all bits set is NVML's word for not known"


async def test_processes_are_asked_for_only_where_somebody_wants_to_know(tmp_path: Path) -> None:
    """The call that lists them takes its process along here, as one of a broken driver may."""
    call = "int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *to) { abort(); }\n"
    root = compiled(tmp_path, "#include <stdlib.h>\n" + WORKS + COUNT % 1 + call)
    assert (await nvml.observe([root])).loaded
    asked_for = await nvml.observe([root], processes=True)
    assert asked_for.unknown and "SIGABRT" in asked_for.error


def test_a_library_that_only_the_loader_would_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files tell whether it is there; nothing is loaded into this process."""
    assert not nvml.loadable("libnone-of-ours.so.1")
    (tmp_path / "libnone-of-ours.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}")
    assert nvml.loadable("libnone-of-ours.so.1")


def test_texts_are_shown_as_they_can_be() -> None:
    assert child.text(b"\xff\x00a") == "\ufffda"
    assert child.text(None) == ""
    assert child.arch(None) == ""
