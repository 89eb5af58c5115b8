"""The proof that every sample was trained exactly once per pass, from what the loaders really handed out.

Ranks append JSON lines (docs/protocol.md) below ``<checkpoint dir>/audit``. :func:`prove` reads only those lines and
knows nothing of the ledger. ``python -m fdl_trainer.audit DIR --samples N --epochs E`` prints the result.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

SHOWN = 10
"""Indices that a proof names of each fault."""


class AuditLog:
    """Appends one rank's lines. Each line reaches the kernel before the call returns, so that SIGKILL loses none.

    Args:
        directory: the audit directory; made if it is not there.
        member: name of the member's pod.
        local_rank: the rank within it.
        uid: the rank's UID.
        attempt: the run's attempt.
    """

    def __init__(self, directory: Path, member: str, local_rank: int, uid: str, attempt: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (directory / f"{member}-{local_rank}.jsonl").open("a", encoding="utf-8")
        self._head = {"uid": uid, "attempt": attempt}

    def batch(
        self, window: int, ordinal: int, data_epoch: int, indices: Sequence[int], skipped: Sequence[int] = ()
    ) -> None:
        """The loader handed out a micro-batch, number ``ordinal`` (from 0) of the rank in this window.

        ``skipped`` are the samples that belong to it and could not be read.
        """
        record = {"k": "batch", **self._head, "window": window, "n": ordinal, "dataEpoch": data_epoch}
        if skipped:
            record["skipped"] = list(map(int, skipped))
        self._write(record, indices)

    def commit(self, epoch: int, window: int, contributions: Mapping[str, int]) -> None:
        """The rank committed a window of these ranks' first batches."""
        self._write({"k": "commit", **self._head, "epoch": epoch, "window": window, "contributions": contributions})

    def void(self, window: int) -> None:
        """The rank gave up what it was handed in this window, which is not committed, and will be handed it anew."""
        self._write({"k": "void", **self._head, "window": window})

    def resume(self, window: int, epoch: int = 0) -> None:
        """The rank starts in this membership epoch from a checkpoint of this window (0: from nothing)."""
        self._write({"k": "resume", **self._head, "epoch": epoch, "window": window})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, record: dict[str, Any], indices: Sequence[int] | None = None) -> None:
        if indices is not None:
            record["indices"] = list(map(int, indices))
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()


@dataclass(frozen=True)
class EpochProof:
    """One pass over the data. ``skipped`` samples could not be read: they are neither committed nor missing."""

    data_epoch: int
    committed: int
    missing: int
    duplicated: int
    first_missing: tuple[int, ...] = ()
    first_duplicated: tuple[int, ...] = ()
    skipped: int = 0


@dataclass(frozen=True)
class Proof:
    """What the logs prove.

    Args:
        epochs: one entry for each pass.
        windows: committed windows that count.
        void: commits that an earlier attempt or a lost holder made and that do not count.
        uncommitted: samples handed out in vain (work of the dead, of void windows).
        problems: sentences; faults of the logs themselves.
    """

    epochs: tuple[EpochProof, ...]
    windows: int
    void: int
    uncommitted: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Every sample exactly once in each pass, and nothing in the logs contradicts itself."""
        return not self.problems and all(epoch.missing == 0 and epoch.duplicated == 0 for epoch in self.epochs)

    def to_json(self) -> dict[str, Any]:
        """The proof as JSON data."""
        return {
            "ok": self.ok,
            "windows": self.windows,
            "void": self.void,
            "uncommittedSamples": self.uncommitted,
            "problems": list(self.problems),
            "epochs": [
                {
                    "dataEpoch": epoch.data_epoch,
                    "committed": epoch.committed,
                    "skipped": epoch.skipped,
                    "missing": epoch.missing,
                    "duplicated": epoch.duplicated,
                    "firstMissing": list(epoch.first_missing),
                    "firstDuplicated": list(epoch.first_duplicated),
                }
                for epoch in self.epochs
            ],
        }


@dataclass
class _Logs:
    """The lines of all files, by kind."""

    batches: dict[tuple[int, str, int], dict[int, tuple[int, list[int], list[int]]]] = field(default_factory=dict)
    """(attempt, uid, window) -> ordinal -> (data epoch, indices, skipped indices)."""
    commits: dict[tuple[int, int], dict[int, dict[str, int]]] = field(default_factory=dict)
    """(attempt, window) -> epoch -> contributions."""
    resumes: dict[tuple[int, int], int] = field(default_factory=dict)
    """(attempt, epoch of the start) -> window from which it started. An attempt may start again when all had died."""
    void: int = 0
    """Samples that ranks were handed and gave up again."""
    problems: list[str] = field(default_factory=list)


def prove(files: Iterable[Path], samples: int, data_epochs: int) -> Proof:
    """Check the logs of a run against its dataset.

    A batch counts when a commit that counts names its rank with more batches than its ordinal. Of a window, the
    commit of the highest epoch counts (an earlier one was held by the dead alone, and the window was done again), and
    none of a lower epoch from the first window on that a higher one committed; of
    an attempt, the commits up to the window from which the next one resumed.

    Args:
        files: the audit files of the run.
        samples: samples in the dataset.
        data_epochs: passes over it that the run should have made.

    Raises:
        OSError: if a file cannot be read.
    """
    logs = _Logs()
    for path in sorted(files):
        _read(path, logs)
    counted = _counting_commits(logs)
    seen: list[Counter[int]] = [Counter() for _ in range(data_epochs)]
    left_out = [0] * data_epochs
    committed = 0
    for (attempt, window), contributions in sorted(counted.items()):
        for uid, batches in sorted(contributions.items()):
            handed_out = logs.batches.get((attempt, uid, window), {})
            for ordinal in range(batches):
                if ordinal not in handed_out:
                    logs.problems.append(
                        f"Window {window} counts {batches} batches of rank {uid}, but its loader did not log batch "
                        f"{ordinal}."
                    )
                    continue
                data_epoch, indices, skipped = handed_out[ordinal]
                every = [*indices, *skipped]
                if not 0 <= data_epoch < data_epochs or not all(0 <= index < samples for index in every):
                    logs.problems.append(
                        f"Batch {ordinal} of rank {uid} in window {window} lies outside of {data_epochs} passes over "
                        f"{samples} samples."
                    )
                    continue
                seen[data_epoch].update(every)
                left_out[data_epoch] += len(skipped)
                committed += len(indices)
    handed_out_total = sum(len(item[1]) for window in logs.batches.values() for item in window.values())
    return Proof(
        epochs=tuple(_epoch_proof(i, counts, samples, left_out[i]) for i, counts in enumerate(seen)),
        windows=len(counted),
        void=sum(len(by_epoch) for by_epoch in logs.commits.values()) - len(counted),
        uncommitted=handed_out_total + logs.void - committed,
        problems=tuple(logs.problems),
    )


def _epoch_proof(data_epoch: int, counts: Counter[int], samples: int, skipped: int) -> EpochProof:
    missing = [index for index in range(samples) if index not in counts]
    duplicated = sorted(index for index, count in counts.items() if count > 1)
    return EpochProof(
        data_epoch=data_epoch,
        committed=sum(counts.values()) - skipped,
        skipped=skipped,
        missing=len(missing),
        duplicated=len(duplicated),
        first_missing=tuple(missing[:SHOWN]),
        first_duplicated=tuple(duplicated[:SHOWN]),
    )


def _counting_commits(logs: _Logs) -> dict[tuple[int, int], dict[str, int]]:
    """Contributions of each (attempt, window) that is part of the final model."""
    result: dict[tuple[int, int], dict[str, int]] = {}
    superseded = _superseded(logs)
    for (attempt, window), by_epoch in logs.commits.items():
        valid = [
            epoch
            for epoch in by_epoch
            if window <= _floor(logs, attempt, epoch, window) and window < superseded[attempt, epoch]
        ]
        if valid:
            result[attempt, window] = by_epoch[max(valid)]
    windows = Counter(window for _, window in result)
    for window, count in sorted(windows.items()):
        if count > 1:
            logs.problems.append(f"Window {window} was committed by {count} attempts, and no resume voids one.")
    attempts = sorted({attempt for attempt, _ in logs.commits})
    for attempt in attempts[1:]:
        if attempt not in {started for started, _ in logs.resumes}:
            logs.problems.append(f"Attempt {attempt} does not say from which window it resumed.")
    for window in range(1, max(windows, default=0) + 1):
        if window not in windows:
            logs.problems.append(f"No rank logged the commit of window {window}.")
    return result


def _superseded(logs: _Logs) -> dict[tuple[int, int], float]:
    """(attempt, epoch) -> the first window that a later epoch of the attempt committed: from there on its own are void.

    They may reach beyond it where a part of the cohort was cut off and went on with a coordinator that was replaced.
    """
    first: dict[tuple[int, int], int] = {}
    for (attempt, window), by_epoch in logs.commits.items():
        for epoch in by_epoch:
            first[attempt, epoch] = min(window, first.get((attempt, epoch), window))
    bounds: dict[tuple[int, int], float] = {}
    lowest: dict[int, float] = {}
    for attempt, epoch in sorted(first, reverse=True):
        bounds[attempt, epoch] = lowest.get(attempt, math.inf)
        lowest[attempt] = min(first[attempt, epoch], bounds[attempt, epoch])
    return bounds


def _floor(logs: _Logs, attempt: int, epoch: int, window: int) -> int:
    """Lowest window from which a later start resumed; commits above it are void."""
    return min((start for point, start in logs.resumes.items() if point > (attempt, epoch)), default=window)


def _read(path: Path, logs: _Logs) -> None:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            _take(json.loads(line), logs)
        except (ValueError, KeyError, TypeError) as error:
            # A rank that is killed or out of space may leave half a line at the end of its file.
            if number < len(lines):
                logs.problems.append(f"Line {number} of {path.name} cannot be read: {error!r}.")


def _take(record: dict[str, Any], logs: _Logs) -> None:
    attempt, uid, window = int(record["attempt"]), str(record["uid"]), int(record["window"])
    kind = record["k"]
    if kind == "batch":
        ordinals = logs.batches.setdefault((attempt, uid, window), {})
        item = (int(record["dataEpoch"]), list(record["indices"]), list(record.get("skipped", [])))
        if ordinals.setdefault(int(record["n"]), item) is not item:
            logs.problems.append(f"Rank {uid} was handed batch {record['n']} of window {window} twice.")
    elif kind == "commit":
        contributions = {str(rank): int(count) for rank, count in record["contributions"].items() if count}
        by_epoch = logs.commits.setdefault((attempt, window), {})
        if by_epoch.setdefault(int(record["epoch"]), contributions) != contributions:
            logs.problems.append(f"Ranks disagree on who contributed to window {window} in epoch {record['epoch']}.")
    elif kind == "resume":
        if logs.resumes.setdefault((attempt, int(record.get("epoch", 0))), window) != window:
            logs.problems.append(f"Ranks disagree on the window from which attempt {attempt} started.")
    elif kind == "void":
        logs.void += sum(len(item[1]) for item in logs.batches.pop((attempt, uid, window), {}).values())
    else:
        raise ValueError(f"unknown kind {kind!r}")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0 when the proof holds."""
    parser = argparse.ArgumentParser(prog="python -m fdl_trainer.audit", description=__doc__)
    parser.add_argument("directory", type=Path, help="the audit directory of the run")
    parser.add_argument("--samples", type=int, required=True, help="samples in the dataset")
    parser.add_argument("--epochs", type=int, required=True, help="passes over the data")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    files = sorted(options.directory.glob("*.jsonl"))
    if not files:
        print(f"error: there are no audit files (*.jsonl) in {options.directory}", file=sys.stderr)
        return 1
    proof = prove(files, options.samples, options.epochs)
    if options.json:
        print(json.dumps(proof.to_json()))
    else:
        _print_table(proof)
    return 0 if proof.ok else 1


def _print_table(proof: Proof) -> None:
    print(f"{'epoch':>5} {'committed':>10} {'skipped':>8} {'missing':>8} {'twice':>8}")
    for epoch in proof.epochs:
        print(
            f"{epoch.data_epoch:>5} {epoch.committed:>10} {epoch.skipped:>8} {epoch.missing:>8} {epoch.duplicated:>8}"
        )
    for problem in proof.problems:
        print(f"problem: {problem}")
    verdict = "every sample exactly once per epoch" if proof.ok else "the samples do NOT add up"
    print(f"{verdict} ({proof.windows} windows; {proof.uncommitted} samples handed out in vain)")


if __name__ == "__main__":
    sys.exit(main())
