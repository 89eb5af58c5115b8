"""Whether the whole dataset is kept on the rank's device, and how far ahead batches are read. Pure rules."""

from dataclasses import dataclass

SHARE = 0.75
"""Share of the free memory that a resident dataset may take."""
AHEAD_SHARE = 0.25
"""Share of the free host memory that batches read ahead may take."""
MIN_AHEAD, MAX_AHEAD = 2, 64
"""Batches read ahead. Two hide the fetch behind the step; with worker processes, two for each."""
MODEL_COPIES = 4
"""Copies of the parameters that training still has to allocate: gradients, two optimizer moments, the wire buffer."""


MAX_NOTE = 96
"""Characters of a note: the run's status has one for each rank."""


@dataclass(frozen=True)
class Residency:
    """What was decided.

    Args:
        resident: whether the dataset is kept on the device.
        sentence: says so, with all figures, for the log.
        why: the reason in a few words, for the run's status.
    """

    resident: bool
    sentence: str
    why: str = ""

    @property
    def note(self) -> str:
        """What was decided and why, in a few words."""
        return f"{'resident' if self.resident else 'streamed'}: {self.why}"[:MAX_NOTE]


@dataclass(frozen=True)
class Facts:
    """What the decision rests on.

    Args:
        device: of the rank, for the sentence.
        dataset_bytes: bytes of the whole dataset on the device; None when it cannot be held in tensors.
        free_bytes: bytes free on the device now.
        reserved_bytes: bytes of them that training will need besides the data.
        placed: the dataset is on the device already.
        tensors: the dataset consists of tensors, so that a sample is the same each time it is read.
        wish: True, False, or None for the rule.
        obstacle: why the dataset cannot be held in tensors.
        shards: number of its shards, if it can only be iterated shard by shard.
    """

    device: str
    dataset_bytes: int | None
    free_bytes: int
    reserved_bytes: int = 0
    placed: bool = False
    tensors: bool = True
    wish: bool | None = None
    obstacle: str = ""
    shards: int = 0


def decide(facts: Facts) -> Residency:
    """Resident when the dataset is at most 75 % of what is free on the device after training has its part."""
    if (streamed := _streamed_anyway(facts)) is not None:
        return streamed
    if facts.placed:
        sentence = f"The dataset is resident: its tensors are on {facts.device} already."
        return Residency(True, sentence, f"on {facts.device} already")
    needed = facts.dataset_bytes or 0
    limit = max(0, int(SHARE * (facts.free_bytes - facts.reserved_bytes)))
    sizes = (
        f"{_size(needed)} against {_size(limit)}, {SHARE:.0%} of the {_size(facts.free_bytes)} free on "
        f"{facts.device} less {_size(facts.reserved_bytes)} for training"
    )
    if needed <= limit:
        why = f"{_size(needed)}; up to {_size(limit)} of {_size(facts.free_bytes)} free"
        return Residency(True, f"The dataset is resident: {sizes}.", why)
    return Residency(
        False,
        f"The dataset is streamed, since it is too large to be resident: {sizes}.",
        f"{_size(needed)} are more than {_size(limit)} of {_size(facts.free_bytes)} free",
    )


def _streamed_anyway(facts: Facts) -> Residency | None:
    """The decision for a dataset that is streamed whatever is free; None if that decides."""
    if facts.wish is False:
        sentence = "The dataset is streamed: the script asked for it (resident=False)."
        return Residency(False, sentence, "resident=False")
    if facts.shards:
        sentence = (
            f"The dataset is streamed by iterating over {facts.shards} shards: each is read at least once in a pass, "
            "and taken up at its first uncommitted record after a failure."
        )
        return Residency(False, sentence, f"{facts.shards} shards")
    if not facts.tensors and facts.wish is None:
        sentence = (
            "The dataset is streamed: its samples are read anew in each pass, since they may differ then (random "
            "augmentation). If they do not, session.setup(resident=True) reads them once."
        )
        return Residency(False, sentence, "samples may differ from pass to pass")
    return impossible(facts.obstacle) if facts.dataset_bytes is None else None


def impossible(obstacle: str) -> Residency:
    """The script asked for a resident dataset, and it cannot be held in tensors."""
    return Residency(False, f"The dataset is streamed, although the script asked otherwise: {obstacle}.", obstacle)


def fallback(dataset_bytes: int, device: str, error: str) -> Residency:
    """The device ran out of memory while the dataset was loaded, though by the figures it should have fitted."""
    return Residency(
        False,
        f"The dataset is streamed: {device} ran out of memory while its {_size(dataset_bytes)} were loaded ({error}).",
        f"memory ran out while {_size(dataset_bytes)} were loaded",
    )


def ahead(workers: int, batch_bytes: int, free_bytes: int) -> int:
    """Batches to read ahead: enough for all readers, in at most a quarter of the free host memory, at least two."""
    wanted = min(MAX_AHEAD, MIN_AHEAD * max(1, workers))
    fitting = int(AHEAD_SHARE * free_bytes) // max(1, batch_bytes)
    return max(MIN_AHEAD, min(wanted, fitting))


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
