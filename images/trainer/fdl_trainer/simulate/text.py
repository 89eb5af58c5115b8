"""A simulation's result, for people and as JSON data."""

from collections.abc import Sequence
from typing import Any

from fdl_trainer.simulate.account import SHOWN, Account, WindowRow
from fdl_trainer.simulate.world import World

MAX_ROWS = 40
"""Rows of the table of windows, at most."""


def data(world: World) -> dict[str, Any]:
    """The result as JSON data; times in milliseconds of virtual time."""
    account, elche = world.account, world.control.elche
    journal = elche.guard.journal.to_json()
    return {
        "efficiency": round(account.efficiency, 4),
        "steadyEfficiency": round(account.steady_efficiency, 4),
        "windows": len(account.rows),
        "virtualMs": round(world.now, 1),
        "batches": sum(row.batches for row in account.rows),
        "anchor": elche.anchor,
        "anchorRank": elche.anchor_rank,
        "phase": str(elche.phase),
        "timeShares": {str(what): round(share, 4) for what, share in account.shares().items()},
        "guard": journal,
        "ranks": [
            {
                "rank": rank.number,
                "ms": round(rank.ms, 4),
                "estimatedMs": round(elche.ms_per_batch(uid), 4),
                "quota": elche.ranks[uid].quota if uid in elche.ranks else 0,
            }
            for uid, rank in world.ranks.items()
        ],
        "table": [
            {
                "window": row.window,
                "endedMs": round(row.ended_ms, 1),
                "wallMs": round(row.wall_ms, 2),
                "ranks": row.ranks,
                "anchor": row.anchor,
                "batches": row.batches,
                "efficiency": round(row.efficiency, 4),
                "quotas": {str(number): quota for number, quota in row.quotas.items()},
                "notes": list(row.notes),
            }
            for row in account.rows
        ],
    }


def render(world: World, *, every: bool = False) -> str:
    """The result as text: figures, where the time went, the ranks, and the windows in which something changed."""
    return "\n".join([*_figures(world), "", *_ranks(world), "", *_windows(world.account, every=every)])


def _figures(world: World) -> list[str]:
    account, elche = world.account, world.control.elche
    shares = ", ".join(f"{what} {share:.1%}" for what, share in account.shares().items() if share >= 0.0005)
    lines = [
        f"efficiency      {account.efficiency:.3f} of the sum of the ranks' own rates "
        f"({account.steady_efficiency:.3f} in the second half)",
        f"windows         {len(account.rows)} in {world.now / 1000.0:.1f} s of virtual time, "
        f"{sum(row.batches for row in account.rows)} batches",
        f"anchor          {elche.anchor} batches of {_name(elche.anchor_rank)}, phase {elche.phase}",
        f"where time went {shares}",
    ]
    counts = elche.guard.journal.counts
    if counts:
        lines.append("guards          " + ", ".join(f"{action} {count}x" for action, count in counts.items()))
    return lines


def _ranks(world: World) -> list[str]:
    elche = world.control.elche
    rows = [
        (rank.number, f"{rank.ms:.2f}", f"{elche.ms_per_batch(uid):.2f}", elche.ranks[uid].quota)
        for uid, rank in list(world.ranks.items())[:SHOWN]
        if uid in elche.ranks
    ]
    more = [f"... and {len(world.ranks) - SHOWN} more"] if len(world.ranks) > SHOWN else []
    return [*_table(["rank", "ms/batch", "estimate", "quota"], rows), *more]


def _windows(account: Account, *, every: bool) -> list[str]:
    rows = account.rows
    chosen = [i for i in range(len(rows)) if every or _is_news(rows, i)]
    left_out = max(0, len(chosen) - MAX_ROWS) if not every else 0
    shown = [
        (
            row.window,
            f"{row.ended_ms / 1000.0:.2f}",
            row.ranks,
            row.anchor,
            row.batches,
            f"{row.efficiency:.3f}",
            " ".join(str(quota) for quota in row.quotas.values()) + (" ..." if row.ranks > SHOWN else ""),
            ", ".join(row.notes),
        )
        for row in (rows[i] for i in (chosen[:-left_out] if left_out else chosen))
    ]
    more = [f"... and {left_out} more windows with changes (--every shows all)"] if left_out else []
    return [*_table(["window", "at s", "ranks", "anchor", "batches", "eff.", "quotas", "what"], shown), *more]


def _is_news(rows: Sequence[WindowRow], place: int) -> bool:
    """Whether a window differs from the one before: its anchor, its ranks, their batches by a tenth, or an event."""
    row = rows[place]
    if place in (0, len(rows) - 1) or row.notes:
        return True
    before = rows[place - 1]
    if (row.anchor, row.ranks) != (before.anchor, before.ranks) or row.quotas.keys() != before.quotas.keys():
        return True
    return any(abs(quota - before.quotas[number]) > 0.1 * quota for number, quota in row.quotas.items())


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _name(uid: str) -> str:
    return f"rank {uid[1:]}" if uid else "no rank yet"
