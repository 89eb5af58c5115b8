"""What a run does when labels and reports of nodes change."""

import dataclasses

from .builders import World, member_name


def test_labels_that_flap_do_not_touch_members_that_run() -> None:
    world = World().training()
    world.nodes = {name: dataclasses.replace(each, labels={}) for name, each in world.nodes.items()}
    world.settle()
    assert world.status.phase == "Running" and set(world.pods) == {
        "run-coordinator-1",
        member_name(0, 1),
        member_name(1, 1),
    }


def test_the_sentence_of_an_old_report_does_not_change_with_time() -> None:
    world = World()
    world.unprobed = {"n1", "n2"}
    world.step(1000)
    world.settle()
    assert world.condition("Placeable").reason == "ReportTooOld"
    assert world.step(7) == []
