"""The little that has to be known of a Dockerfile: what it copies from the repository, and how many steps it has."""

import re
import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines joined."""

    word: str
    """Upper case, such as ``RUN``."""
    rest: str


def instructions(text: str) -> list[Instruction]:
    """Instructions of a Dockerfile in order; comments and empty lines are left out, also inside continued lines."""
    found: list[Instruction] = []
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        word, _, rest = pending.partition(" ")
        found.append(Instruction(word.upper(), rest.strip()))
        pending = ""
    return found


def copied_paths(text: str) -> list[str]:
    """Paths of the build context that the image takes in, sorted, each once.

    They are the image's inputs: a file that no ``COPY`` or ``ADD`` names cannot change the image. Copies from other
    stages (``--from``) are left out.
    """
    paths: set[str] = set()
    for instruction in instructions(text):
        if instruction.word not in ("COPY", "ADD"):
            continue
        words = shlex.split(instruction.rest)
        if any(word.startswith("--from=") for word in words):
            continue
        operands = [word for word in words if not word.startswith("--")]
        paths.update(operands[:-1])
    return sorted(paths)


def count_steps(text: str) -> int:
    """Steps of all stages, each ``FROM`` included, as buildah and podman count them."""
    words = [instruction.word for instruction in instructions(text)]
    return len(words) - words.index("FROM") if "FROM" in words else 0


_STEPS = (
    re.compile(r"^(?P<label>(?:\[\d+/\d+\] )?STEP \d+/\d+): (?P<text>.*)$"),  # buildah, podman
    re.compile(r"^#\d+ \[(?P<label>[^\]]*\d+/\d+)\] (?P<text>.*)$"),  # docker, plain progress
)


class StepCounter:
    """Follows an engine's output and says how many steps of the whole build have begun.

    Engines run the stages in an order of their own, so steps are counted as they come.
    """

    def __init__(self, total: int) -> None:
        """Args: total: of :func:`count_steps`."""
        self.total = total
        self._labels: set[str] = set()

    def read(self, line: str) -> tuple[int, str] | None:
        """Number (from 1, at most ``total``) and text of the step that ``line`` announces; None for other lines."""
        for pattern in _STEPS:
            match = pattern.match(line)
            if match:
                self._labels.add(match["label"])
                return min(len(self._labels), self.total), match["text"]
        return None


_NOISE = re.compile(r"--mount=\S+\s*|set -eu;|export \S+;?|if \[.*?\bfi;|DEBIAN_FRONTEND=\S+\s*|PIP_CONFIG_FILE=\S+\s*")


def short_step(text: str, width: int = 76) -> str:
    """A step's text for a progress line: without mounts and shell preamble, cut to ``width`` characters."""
    plain = " ".join(_NOISE.sub(" ", text.replace("\\", " ")).split())
    return plain if len(plain) <= width else plain[: width - 1] + "…"
