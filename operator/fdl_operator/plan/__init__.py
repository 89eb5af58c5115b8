"""Every rule of the product: pure functions from what is observed to what is to be done.

:func:`plan` looks at one run and answers with actions, in the order in which they must happen. It does no I/O and
reads no clock. One policy lives in one module:

* :mod:`~fdl_operator.plan.members`: how many members, who died, who replaces them;
* :mod:`~fdl_operator.plan.deaths` and :mod:`~fdl_operator.plan.budgets`: why, and who pays;
* :mod:`fdl_api.placement` (shared with ``fdl explain``): where new members may go;
* :mod:`~fdl_operator.plan.coordinator`, :mod:`~fdl_operator.plan.objects`: what else a run needs;
* :mod:`~fdl_operator.plan.verdict`, :mod:`~fdl_operator.plan.lifecycle`: the end, suspending, clearing up;
* :mod:`~fdl_operator.plan.phases`, :mod:`~fdl_operator.plan.training`: what the status says.
"""

from fdl_operator.plan.pass_ import plan

__all__ = ["plan"]
