"""What is read from a Dockerfile and from an engine's output."""

from fdl_cli.images.dockerfile import Instruction, StepCounter, copied_paths, count_steps, instructions, short_step

TEXT = """# a comment
ARG BASE=debian
FROM ${BASE} AS one
RUN a; \\
    # a comment inside
    b

COPY api/fdl_api /lib/fdl_api
FROM one
COPY --from=one /x /y
COPY --chown=1:1 examples requirements/a.txt /opt/
"""


def test_continued_lines_are_joined_and_comments_left_out() -> None:
    assert instructions(TEXT)[2] == Instruction("RUN", "a;  b")


def test_inputs_are_the_copies_from_the_context_and_not_those_from_stages() -> None:
    assert copied_paths(TEXT) == ["api/fdl_api", "examples", "requirements/a.txt"]


def test_steps_count_every_instruction_from_the_first_from() -> None:
    assert count_steps(TEXT) == 6


def test_a_dockerfile_without_from_has_no_steps() -> None:
    assert count_steps("ARG A=1\n") == 0


def test_steps_of_buildah_are_counted_as_they_come_across_stages() -> None:
    counter = StepCounter(4)
    lines = [
        "[1/2] STEP 1/2: FROM debian AS one",
        "some output of a step",
        "[2/2] STEP 1/2: FROM 8ab",
        "[1/2] STEP 2/2: RUN b",
        "[1/2] STEP 2/2: RUN b",
    ]
    assert [counter.read(line) for line in lines] == [
        (1, "FROM debian AS one"),
        None,
        (2, "FROM 8ab"),
        (3, "RUN b"),
        (3, "RUN b"),
    ]


def test_steps_of_docker_are_counted_and_never_exceed_the_total() -> None:
    counter = StepCounter(1)
    assert counter.read("#7 [build 2/5] RUN apt-get update") == (1, "RUN apt-get update")
    assert counter.read("#8 [build 3/5] COPY a b") == (1, "COPY a b")


def test_a_step_is_shown_without_mounts_and_preamble() -> None:
    step = (
        "RUN --mount=type=secret,id=a,mode=0444 set -eu; "
        "if [ -f /run/x ]; then export A=/run/x; fi; apt-get install -qy python3-torch"
    )
    assert short_step(step) == "RUN apt-get install -qy python3-torch"


def test_a_long_step_is_cut() -> None:
    assert short_step("RUN " + "x" * 100, width=10) == "RUN xxxxx…"
