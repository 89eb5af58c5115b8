"""Devices that vanish: what is remembered, for how long, and when nothing is concluded."""

from fdl_api.report import Device, GoneDevice, Report
from fdl_prober import decide, history

from .stories import HOST, NOW, facts, nvidia, seen

FIRST = Device(vendor="nvidia", index=0, uuid="GPU-a", pci="0000:10:00.0", name="NVIDIA")
SECOND = FIRST.model_copy(update={"index": 1, "uuid": "GPU-b", "pci": "0000:20:00.0"})
BOOT = HOST.model_copy(update={"boot_id": "one"})


def report(*devices: Device, gone: tuple[GoneDevice, ...] = ()) -> Report:
    return Report(node="n1", time=NOW, host=BOOT, devices=devices, gone=gone)


def test_a_device_that_was_there_is_missed() -> None:
    known = history.update((), (FIRST, SECOND))
    (gone,) = history.gone(known, (FIRST,), {"nvidia"})
    assert (gone.uuid, gone.pci, gone.name) == ("GPU-b", "0000:20:00.0", "NVIDIA")
    assert history.gone(known, (SECOND, FIRST), {"nvidia"}) == ()


def test_nothing_is_concluded_while_the_driver_is_silent() -> None:
    known = history.update((), (FIRST,))
    assert history.gone(known, (), set()) == ()


def test_what_is_known_survives_the_probers_restart_but_not_the_machines() -> None:
    known = history.remembered(report(FIRST, gone=history.update((), (SECOND,))), "one")
    assert {device.uuid for device in known} == {"GPU-a", "GPU-b"}
    assert history.remembered(report(FIRST), "two") == ()
    assert history.remembered(report(FIRST), "") == ()
    assert history.remembered(None, "one") == ()


def test_partitions_that_come_and_go_are_the_same_card() -> None:
    parts = [FIRST.model_copy(update={"uuid": f"GPU-a/{i}", "index": i}) for i in range(8)]
    known = history.update((), parts)
    assert history.gone(known, (FIRST,), {"nvidia"}) == ()


def test_a_device_without_any_identity_is_not_remembered() -> None:
    assert history.update((), (Device(vendor="nvidia", index=0),)) == ()


def test_a_vanished_device_is_in_the_report_until_it_is_back() -> None:
    known = history.update((), (FIRST, SECOND))
    one = nvidia("sm_90").model_copy(update={"devices": (FIRST,)})
    _, made = decide.desired(facts(seen(nvml=one), known=known), NOW)
    assert [device.uuid for device in made.gone] == ["GPU-b"]
    both = one.model_copy(update={"devices": (FIRST, SECOND)})
    assert decide.desired(facts(seen(nvml=both), known=known), NOW)[1].gone == ()
