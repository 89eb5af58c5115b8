"""Cost of everything but compute in a window, against what nobody can do without.

The floor is one bare fused all-reduce of the parameters plus the passes over memory that an average with a guard takes
(copy in, scale, look whether finite, divide, difference, two norms, copy out), each measured by itself as one flat
operation. A window is everything that the trainer does between two batches: packing, tail, reduce, commit.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench.averaging.processes import explain, run
from bench.averaging.report import medians, report
from bench.averaging.shapes import by_size, by_tensors
from bench.averaging.worker import Wiring


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.averaging", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--nccl", action="store_true", help="models and buffers on devices, one a rank")
    parser.add_argument("--sizes", default="", help="comma-separated numbers of parameters instead of the two models")
    parser.add_argument("--profile", action="store_true", help="what each step of a window has the device do")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    sizes = tuple(int(float(size)) for size in options.sizes.split(",") if size)
    loads = by_size(sizes, options.rounds) if sizes else by_tensors(options.rounds)
    wiring, seen = Wiring.NCCL if options.nccl else Wiring.GLOO, dict[str, dict[str, Any]]()
    if options.profile:
        times, seen = explain(options.ranks, loads, wiring)
    else:
        times = run(options.ranks, loads, wiring)
    result = report({name: medians(found) for name, found in times.items()})
    for name, row in result.items():
        print(f"\n{name}: window {row['windowMs']:.3f} ms, floor {row['floorMs']:.3f} ms, ratio {row['ratio']:.2f}")
        for work, milliseconds in row["medianMs"].items():
            calls = seen.get(name, {}).get("calls", {}).get(work.removeprefix("step: "), {})
            print(f"  {work:32} {milliseconds:9.3f} ms  " + ", ".join(f"{n:g} {kind}" for kind, n in calls.items()))
        _explain(seen.get(name, {}))
        row["profile"] = seen.get(name, {})
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


def _explain(seen: dict[str, Any]) -> None:
    for kernel, spent in seen.get("kernels", {}).items():
        print(f"    {spent['ms']:9.3f} ms in {spent['times']:5g}  {kernel[:90]}")
    for way, spent in seen.get("ways", {}).items():
        print(f"    {way:30} {spent['ms']:9.3f} ms, the host {spent['hostMs']:.3f} ms")


if __name__ == "__main__":
    main()
