"""A state of a run as a live table, or as plain lines where there is no terminal. Pure."""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fdl_api.wire import State
from fdl_cli.demo.story import Row

_COLOURS = {"active": "green", "joining": "yellow", "ready": "yellow", "leaving": "yellow", "finished": "cyan"}
_BAR_CELLS = 18
NEWEST = 6
"""Events below the table while the run goes on."""


def live(state: State, rows: list[Row], events: list[str], shown: int = NEWEST) -> RenderableType:
    """The table of members, the figures, and the newest ``shown`` events below."""
    table = Table(box=None, pad_edge=False)
    for name in ("member", "node", "state"):
        table.add_column(name)
    table.add_column("share of the work")
    for name in ("ms/batch", "batches"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.member,
            row.node,
            Text(row.state, style=_COLOURS.get(row.state, "red")),
            _share(row.share),
            _number(row.ms_per_batch),
            str(row.batches),
        )
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=max(state.total_samples, 1), completed=state.samples, width=28), Text(figures(state)))
    return Group(table, Text(""), bar, *(Text(f"· {event}", style="dim") for event in events[-shown:]))


def lines(state: State, rows: list[Row]) -> list[str]:
    """The same as plain text: one line a member, one with the figures."""
    told = [
        f"  {row.member:<22} {row.node:<10} {row.state:<9} "
        f"share {_percent(row.share):>5}  {_number(row.ms_per_batch):>7} ms/batch  {row.batches:>6} batches"
        for row in rows
    ]
    return [*told, f"  {figures(state)}"]


def figures(state: State) -> str:
    """Progress, loss, speed and time left in one line."""
    done = 100 * state.samples / state.total_samples if state.total_samples else 0.0
    parts = [f"{done:.0f} %", f"pass {state.data_epoch + 1}", f"window {state.window}"]
    if state.loss is not None:
        parts.append(f"loss {state.loss:.3f}")
    if state.samples_per_second > 0:
        parts.append(f"{state.samples_per_second:.0f} samples/s")
    if state.eta_seconds is not None and state.samples < state.total_samples:
        parts.append(f"ETA {state.eta_seconds:.0f} s")
    return " | ".join(parts)


def _share(share: float | None) -> Text:
    if share is None:
        return Text("-")
    return Text("█" * max(1, round(share * _BAR_CELLS)) + f" {_percent(share)}", style="blue")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
