"""How figures are written on the page: with unit, interval and number of values. Pure."""

from bench.training.stats import Interval


def figure(interval: Interval, unit: str = "", digits: int = 2) -> str:
    """Value, unit, interval and n; one value has no interval."""
    value = f"{interval.value:.{digits}f}{unit}"
    if interval.count == 1:
        return f"{value}, n = 1"
    return f"{value} ({interval.low:.{digits}f} to {interval.high:.{digits}f}), n = {interval.count}"


def milliseconds(interval: Interval) -> str:
    """With three significant digits for small ones."""
    return figure(interval, " ms", 2 if interval.value < 10 else 1 if interval.value < 100 else 0)
