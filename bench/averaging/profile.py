"""Where a window's time goes: what each step has the device do, and how else a model could be copied."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import DeviceType, ProfilerActivity, profile, record_function

from bench.averaging.window import Window
from fdl_trainer.averaging.lines import Lines
from fdl_trainer.averaging.live import views

WINDOWS = 3
"""Windows under the profiler, which slows the host down: their times are not reported, only what they are made of."""
KERNELS = 25
"""The longest that are reported."""
KINDS = {
    "kernels": ("LaunchKernel", "ModuleLaunch"),
    "copies": ("Memcpy",),
    "fills": ("Memset",),
    "waits": ("Synchronize",),
    "allocations": ("cudaMalloc", "cudaHostAlloc", "hipMalloc", "hipHostMalloc"),
}
"""Calls of the device's library by what they are, by parts of their names."""


@dataclass(frozen=True)
class Event:
    """One thing that the profiler saw.

    Attributes:
        name: of a step, a library call or a kernel.
        start: microseconds.
        end: likewise.
        on_device: the device did it.
    """

    name: str
    start: float
    end: float
    on_device: bool


def calls(events: Iterable[Event], steps: Iterable[str], windows: int) -> dict[str, dict[str, float]]:
    """Library calls a window, by step and kind."""
    events = [event for event in events if not event.on_device]
    spans = {step: [event for event in events if event.name == step] for step in steps}
    result = {}
    for step, spells in spans.items():
        inside = [event for event in events if any(spell.start <= event.start < spell.end for spell in spells)]
        count = Counter(
            kind for event in inside for kind, parts in KINDS.items() if any(p in event.name for p in parts)
        )
        result[step] = {kind: count[kind] / windows for kind in KINDS if count[kind]}
    return result


def kernels(events: Iterable[Event], steps: Iterable[str], windows: int) -> dict[str, dict[str, float]]:
    """What the device did a window, the longest first: how often, and milliseconds together."""
    names, times = set(steps), defaultdict[str, list[float]](list)
    for event in events:
        if event.on_device and event.name not in names:
            times[event.name].append((event.end - event.start) / 1000.0)
    longest = sorted(times.items(), key=lambda entry: -sum(entry[1]))[:KERNELS]
    return {name: {"times": len(each) / windows, "ms": sum(each) / windows} for name, each in longest}


def watch(window: Window, together: Callable[[], None]) -> dict[str, Any]:
    """Profile some windows.

    Args:
        window: warmed up.
        together: waits for the other ranks.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as seen:
        for _ in range(WINDOWS):
            together()
            window.run(record_function)
        together()
    found = [
        Event(event.name, event.time_range.start, event.time_range.end, event.device_type != DeviceType.CPU)
        for event in seen.events() or ()
    ]
    return {"calls": calls(found, window.steps, WINDOWS), "kernels": kernels(found, window.steps, WINDOWS)}


def ways(tensors: list[Tensor], flat: Tensor) -> dict[str, Callable[[], object]]:
    """How a model can be copied to a flat buffer and back: by joining and splitting, and by operations over the list;
    and what it costs to look whether its memory has moved.
    """
    lines, parts = [tensor.view(-1) for tensor in tensors], views(flat, tensors)
    sizes = [line.numel() for line in lines]
    look = Lines(tensors, flat.dtype)
    return {
        "copy in: cat": partial(torch.cat, lines, out=flat),
        "copy in: foreach": partial(torch._foreach_copy_, parts, tensors),
        "copy out: split": partial(torch.split_with_sizes_copy, flat, sizes, out=lines),
        "copy out: foreach": partial(torch._foreach_copy_, tensors, parts),
        "look for moved memory": look.renew,
    }
