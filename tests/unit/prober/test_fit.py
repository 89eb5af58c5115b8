"""Reports of nodes that are not sane still fit into an annotation, and still say what counts."""

import pytest

from fdl_api.report import Device, Faults, GoneDevice, Interface, RdmaDevice, Report
from fdl_api.report import parse as parse_report
from fdl_prober import decide, fit
from fdl_prober.nvml import NvmlReport

from .stories import HOST, NOW, facts, nvidia, seen


def device(index: int, **more: object) -> Device:
    values = {"name": "N" * 96, "arch": "sm_90", "uuid": f"{index:096d}", "pci": f"{index:04x}:00:00.0"}
    return Device.model_validate({"vendor": "nvidia", "index": index, **values, **more})


def driver(*devices: Device) -> NvmlReport:
    return NvmlReport(library="x", loaded=True, devices=devices)


def many(count: int, **more: object) -> NvmlReport:
    return driver(*(device(number, **more) for number in range(count)))


ADDRESSES = tuple(f"fd00::{number:x}:{number:x}" for number in range(20_000))
ODD = {
    "partitions": seen(nvml=many(200, mig=True, partitions=["P" * 96] * 64)),
    "faults": seen(nvml=many(512, faults=Faults(ecc_uncorrected=3, recovery="gpu-reset"))),
    "letters": seen(nvml=many(512, name="\u6c49" * 96)),
    "addresses": seen(
        host=HOST.model_copy(update={"interfaces": (Interface(name="v", addresses=ADDRESSES, up=True),)})
    ),
    "rdma": seen(host=HOST.model_copy(update={"rdma": (RdmaDevice(name="m", rate="r" * 90),) * 4000})),
    "libraries": seen(host=HOST.model_copy(update={"nccl": {f"/{n}/{'n' * 200}": "2.1" for n in range(2000)}})),
    "processor": seen(host=HOST.model_copy(update={"cpu_model": "x" * 1_000_000})),
}


@pytest.mark.parametrize("name", ODD)
def test_it_fits_and_keeps_what_placement_needs(name: str) -> None:
    found = facts(ODD[name])
    labels, made = decide.desired(found, NOW)
    assert len(made.render().encode()) <= fit.MAX_BYTES
    assert parse_report(made.render()) == made
    assert [each.arch for each in made.devices] == [each.arch for each in found.devices]
    assert [each.index for each in made.devices] == [each.index for each in found.devices]
    assert (labels["fdl.dev/ready"] == "true") is made.ready and made.deep_wanted
    assert made == decide.report(found, NOW), "the same node is told in the same words"


def test_devices_that_vanished_are_cut_and_counted() -> None:
    known = tuple(GoneDevice(vendor="nvidia", uuid="u" * 96, pci=str(number), name="n" * 96) for number in range(1024))
    made = decide.report(facts(seen(nvml=nvidia("sm_90")), known=known), NOW)
    assert len(made.render().encode()) <= fit.MAX_BYTES and len(made.gone) == 64
    assert any(check.subject == "others" for check in made.checks)


def test_a_report_that_fits_stays_as_it_is() -> None:
    made = decide.report(facts(seen(nvml=nvidia("sm_90"))), NOW)
    assert fit.fitted(made) is made


def test_problems_outlive_what_is_well() -> None:
    checks = decide.report(facts(seen(nvml=nvidia("")), variants=()), NOW).checks
    made = fit.fitted(Report(node="n", time=NOW, checks=checks * 20), limit=100)
    assert made.checks and all(check.severity != "pass" for check in made.checks)
