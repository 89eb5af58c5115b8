"""Tests of the ways between ranks, before they form a group: who does not reach whom, and why.

A backend that cannot connect says nothing for minutes, or names an address. So each rank listens on a port of its own
from before its Hello on, and dials the others before it forms a group with them (docs/protocol.md, "Ways between
ranks").

* :mod:`~fdl_trainer.pairs.interface`: the address that the run's groups use;
* :mod:`~fdl_trainer.pairs.proof`: how both ends prove that they are of the run;
* :mod:`~fdl_trainer.pairs.exchange`: one test, seen from either end;
* :mod:`~fdl_trainer.pairs.tester`: which ways a rank tests, and when.
"""

from fdl_trainer.pairs.interface import group_address
from fdl_trainer.pairs.tester import Pairs

__all__ = ["Pairs", "group_address"]
