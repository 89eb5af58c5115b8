"""Deep checks: which are wanted, and which pods answer them."""

from datetime import timedelta
from typing import Any

import pytest

from fdl_api import labels
from fdl_api.report import DeepDevice, DeepFacts, DeepResult, deep_pod_name
from fdl_prober import decide, deep
from fdl_prober.facts import Facts

from .stories import ALL, CPU, CUDA, NOW, amd, facts, nvidia, result, seen

GPU = seen(nvml=nvidia("sm_90", "sm_90"), plugged={"nvidia": 2})


def wanted(found: Facts) -> dict[str, Any]:
    return {want.variant: want for want in deep.wanted(found, NOW)}


def test_what_covers_and_was_not_checked_is_wanted() -> None:
    assert set(wanted(facts())) == {"cpu"}
    found = wanted(facts(GPU))
    assert set(found) == {"cpu", "cuda"}
    assert (found["cuda"].devices, found["cuda"].image, found["cuda"].attempt) == (2, CUDA.image, 0)
    assert found["cuda"].fingerprint == decide.report(facts(GPU), NOW).fingerprints["nvidia"]
    assert found["cpu"].devices == 0


def test_what_has_a_gap_is_not_wanted() -> None:
    assert set(wanted(facts(seen(kfd=amd("gfx1100"), plugged={"amd": 1})))) == {"cpu"}


def test_simulated_devices_are_checked_as_such() -> None:
    found = wanted(facts(GPU, simulated=True))
    assert (found["cuda"].simulated, found["cpu"].simulated) == (True, False)


def test_in_place_of_a_simulated_device_the_image_that_members_run_there_is_checked() -> None:
    node = facts(GPU, simulated=True)
    want = wanted(node)["cuda"]
    assert want.image == CPU.image
    told = answer(variant="cuda", vendor="nvidia", simulated=True, torch_version="2.6.0+debian", torch_build="cpu")
    done = deep.collect({}, "n1", [want], deep.finished([pod(deep_pod_name("n1", want), told.render())], "n1"), NOW)
    after = facts(GPU, simulated=True, deep=done)
    made, report = decide.desired(after, NOW)
    assert report.deep["cuda"].outcome == "passed"
    assert made["fdl.dev/variant.cuda"] == "simulated"
    assert (made["fdl.dev/libtorch-version"], made["fdl.dev/nccl.cuda"]) == ("2.10.0", "2.27")
    assert "cuda" not in wanted(after)
    assert set(wanted(facts(GPU, simulated=True, variants=(CUDA,)))) == set()


def passed(found: Facts, **changes: Any) -> DeepResult:
    return result(decide.report(found, NOW), CUDA, **changes)


def test_what_passed_is_not_wanted_again_until_image_or_hardware_change() -> None:
    done = {"cuda": passed(facts(GPU))}
    assert "cuda" not in wanted(facts(GPU, deep=done))
    newer = tuple(v.model_copy(update={"image": "r/cuda:2"}) if v.name == "cuda" else v for v in ALL)
    assert "cuda" in wanted(facts(GPU, deep=done, variants=newer))
    assert "cuda" in wanted(facts(seen(nvml=nvidia("sm_90")), deep=done))


@pytest.mark.parametrize(
    ("failures", "minutes", "again"),
    [(1, 9, False), (1, 10, True), (2, 19, False), (2, 20, True), (3, 40, True), (50, 359, False), (50, 360, True)],
)
def test_what_failed_is_wanted_again_ever_later(failures: int, minutes: int, again: bool) -> None:
    old = passed(facts(GPU), outcome="no-result", facts=None, failures=failures, time=NOW - timedelta(minutes=minutes))
    found = wanted(facts(GPU, deep={"cuda": old}))
    assert ("cuda" in found) is again
    if again:
        assert found["cuda"].attempt == failures


def test_a_variant_whose_own_torch_has_no_kernels_is_asked_again_for_new_hardware_only() -> None:
    good = passed(facts(GPU))
    assert good.facts is not None
    poor = good.model_copy(update={"facts": good.facts.model_copy(update={"archs": ("sm_75",)})})
    assert "cuda" not in wanted(facts(GPU, deep={"cuda": poor}))


# --- answers --------------------------------------------------------------------------------------------------------


def answer(**changes: Any) -> DeepFacts:
    return DeepFacts(
        variant="cpu", vendor="cpu", torch_version="2.6.0", devices=(DeepDevice(index=0, ok=True),)
    ).model_copy(update=changes)


def pod(name: str, message: str = "", **changes: Any) -> dict[str, Any]:
    values = {"phase": "Succeeded", "node": "n1", "role": labels.ROLE_DEEP_CHECK, "image": CPU.image, "reason": None}
    values |= changes
    return {
        "metadata": {"name": name, "labels": {labels.ROLE: values["role"]}},
        "spec": {"nodeName": values["node"], "containers": [{"image": values["image"]}]},
        "status": {
            "phase": values["phase"],
            "reason": values["reason"],
            "containerStatuses": [{"state": {"terminated": {"message": message, "reason": "Completed"}}}],
        },
    }


WANT = deep.wanted(facts(), NOW)[0]
NAME = deep_pod_name("n1", WANT)


def collected(*pods: dict[str, Any]) -> DeepResult | None:
    return deep.collect({}, "n1", [WANT], deep.finished(pods, "n1"), NOW).get("cpu")


def test_a_finished_pod_answers() -> None:
    got = collected(pod(NAME, answer().render()))
    assert got is not None
    assert (got.outcome, got.failures, got.image, got.time) == ("passed", 0, CPU.image, NOW)
    assert got.fingerprint == WANT.fingerprint
    assert got.message == "torch 2.6.0 ran a kernel on 1 device"


def test_a_wrong_kernel_is_a_failure() -> None:
    bad = answer(devices=(DeepDevice(index=3, ok=False, error="CUDA error"),))
    got = collected(pod(NAME, bad.render(), phase="Failed"))
    assert got is not None
    assert (got.outcome, got.failures, got.message) == ("failed", 1, "device 3: CUDA error")


def test_kernels_that_go_wrong_in_a_row_are_counted_and_nothing_else_is() -> None:
    bad = answer(devices=(DeepDevice(index=0, ok=False, error="wrong sum"),))
    broken = answer(devices=(), error="torch does not load")
    later = NOW + timedelta(hours=1)

    def after(known: dict[str, DeepResult], message: str) -> dict[str, DeepResult]:
        want = WANT.model_copy(update={"attempt": known["cpu"].failures if known else 0})
        found = deep.finished([pod(deep_pod_name("n1", want), message, phase="Failed")], "n1")
        return deep.collect(known, "n1", [want], found, NOW if not known else later)

    once = after({}, bad.render())
    assert (once["cpu"].wrong, once["cpu"].wrong_at) == (1, NOW)
    silent = after(once, "Killed")
    assert (silent["cpu"].outcome, silent["cpu"].wrong, silent["cpu"].wrong_at) == ("no-result", 1, NOW)
    unloaded = after(silent, broken.render())
    assert (unloaded["cpu"].outcome, unloaded["cpu"].wrong) == ("failed", 1), "that is the image's fault"
    twice = after(unloaded, bad.render())
    assert (twice["cpu"].wrong, twice["cpu"].wrong_at) == (2, later)
    assert (after(twice, answer().render())["cpu"].wrong, after(twice, answer().render())["cpu"].wrong_at) == (0, None)
    other = {"cpu": twice["cpu"].model_copy(update={"fingerprint": "another"})}
    assert after(other, bad.render())["cpu"].wrong == 1, "other hardware starts anew"


@pytest.mark.parametrize("message", ["", "Killed", "{", answer(variant="other").render()])
def test_a_pod_that_leaves_no_answer_is_no_verdict_on_the_device(message: str) -> None:
    got = collected(pod(NAME, message, phase="Failed", reason="DeadlineExceeded"))
    assert got is not None
    assert (got.outcome, got.failures) == ("no-result", 1)
    assert "DeadlineExceeded" in got.message


@pytest.mark.parametrize(
    "changes",
    [{"phase": "Running"}, {"phase": "Pending"}, {"node": "n2"}, {"role": "member"}, {"image": "evil:1"}],
    ids=lambda changes: next(iter(changes)),
)
def test_other_pods_are_no_answer(changes: dict[str, Any]) -> None:
    assert collected(pod(NAME, answer().render(), **changes)) is None


def test_a_pod_of_an_earlier_attempt_answers_nothing_twice() -> None:
    again = WANT.model_copy(update={"attempt": 1})
    pods = deep.finished([pod(NAME, "", phase="Failed")], "n1")
    assert deep.collect({}, "n1", [again], pods, NOW) == {}


def test_a_pod_that_never_had_a_container_is_read() -> None:
    evicted = pod(NAME, phase="Failed", reason="Evicted")
    del evicted["status"]["containerStatuses"]
    got = collected(evicted)
    assert got is not None
    assert "Evicted" in got.message


def test_results_of_others_stay() -> None:
    other = {"cuda": passed(facts(GPU))}
    assert deep.collect(other, "n1", [WANT], {}, NOW) == other


def waiting(name: str, reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "changes with every try"}}
    return {"metadata": {"name": name}, "status": {"phase": "Pending", "containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("ErrImagePull", "ImagePullBackOff (r/cuda:1)"),
        ("ImagePullBackOff", "ImagePullBackOff (r/cuda:1)"),
        ("InvalidImageName", "InvalidImageName (r/cuda:1)"),
        ("ContainerCreating", None),
    ],
)
def test_an_image_that_cannot_be_pulled_is_told_for_its_variant(reason: str, told: str | None) -> None:
    want = wanted(facts(GPU))["cuda"]
    found = deep.image_trouble([waiting(deep_pod_name("n1", want), reason)], "n1", [want])
    assert found == ({} if told is None else {"cuda": told})


def test_the_image_of_another_question_is_nobodys_trouble() -> None:
    want = wanted(facts(GPU))["cuda"]
    assert deep.image_trouble([waiting("fdl-deep-cuda-other", "ErrImagePull")], "n1", [want]) == {}
    assert deep.image_trouble([{"metadata": {"name": deep_pod_name("n1", want)}}], "n1", [want]) == {}


@pytest.mark.parametrize("away", [timedelta(days=365), -timedelta(days=365)])
def test_a_failure_that_was_read_by_a_clock_far_off_is_made_again(away: timedelta) -> None:
    result = passed(facts(GPU), outcome="failed", failures=1).model_copy(update={"time": NOW + away})
    assert deep.retry_due(result, NOW)
    assert not deep.retry_due(result.model_copy(update={"time": NOW}), NOW)


def test_a_failure_that_was_read_in_the_future_counts_from_now_on_and_then_stays() -> None:
    ahead = DeepResult(
        image="i", fingerprint="f", time=NOW, outcome="failed", wrong=2, wrong_at=NOW + timedelta(days=9)
    )
    before = ahead.model_copy(update={"wrong_at": NOW - timedelta(days=1)})
    never = ahead.model_copy(update={"wrong": 0, "wrong_at": None})
    known = {"ahead": ahead, "before": before, "never": never}
    once = deep.settled(known, NOW)
    assert once == known | {"ahead": ahead.model_copy(update={"wrong_at": NOW})}
    assert deep.settled(once, NOW + timedelta(minutes=5)) == once
