"""How figures are written on the page: with unit, interval and number of values. Pure."""

from bench.training.stats import Interval


def figure(interval: Interval, unit: str = "", digits: int = 2) -> str:
    """Value, unit, interval and n."""
    return f"{span(interval, unit, digits)}, n = {interval.count}"


def span(interval: Interval, unit: str = "", digits: int = 2) -> str:
    """Value, unit and interval; one value has no interval."""
    value = f"{interval.value:.{digits}f}{unit}"
    return value if interval.count == 1 else f"{value} ({interval.low:.{digits}f} to {interval.high:.{digits}f})"


def milliseconds(interval: Interval) -> str:
    """With three significant digits for small ones."""
    return span(interval, " ms", 2 if interval.value < 10 else 1 if interval.value < 100 else 0)
