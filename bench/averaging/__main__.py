"""Cost of everything but compute in a window, against what nobody can do without.

The floor is one bare fused all-reduce of the parameters plus the passes over memory that an average with a guard takes
(copy in, scale, look whether finite, divide, difference, two norms, copy out), each measured by itself as one flat
operation. A window is everything that the trainer does between two batches: packing, tail, reduce, commit.
"""

import argparse
import json
import multiprocessing
import socket
from pathlib import Path
from typing import Any

from bench.averaging import worker

TARGET = 1.2


def report(figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Floor, window and their ratio by model, with the parts."""
    result = {}
    for name, medians in figures.items():
        passes = sum(value for work, value in medians.items() if work.startswith("pass: "))
        floor = medians["all-reduce"] + passes
        result[name] = {
            "floorMs": floor,
            "passesMs": passes,
            "windowMs": medians["window"],
            "ratio": medians["window"] / floor,
            "target": TARGET,
            "medianMs": medians,
        }
    return result


def run(ranks: int, rounds: int, *, nccl: bool) -> dict[str, dict[str, float]]:
    """Measure in processes of their own; the figures are those of rank 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with multiprocessing.get_context("spawn").Pool(ranks) as pool:
        pending = [pool.apply_async(worker.measure, (rank, ranks, port, rounds, nccl)) for rank in range(ranks)]
        figures, *_ = [one.get(timeout=1800) for one in pending]
        return figures


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.averaging", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--nccl", action="store_true", help="models and buffers on devices, one a rank")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    result = report(run(options.ranks, options.rounds, nccl=options.nccl))
    for name, row in result.items():
        print(f"\n{name}: window {row['windowMs']:.2f} ms, floor {row['floorMs']:.2f} ms, ratio {row['ratio']:.2f}")
        for work, milliseconds in row["medianMs"].items():
            print(f"  {work:32} {milliseconds:9.2f} ms")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
