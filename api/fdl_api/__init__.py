"""The contract between fdl's programs: resources, labels, reasons, exit codes and wire messages.

Everything here is data and pure functions. Nothing in this package performs I/O or imports another
package of the project, so that every program (and every walk-in box) can carry it.

Top layer first:

* :mod:`fdl_api.run`, :mod:`fdl_api.cluster`: the two resources, from which ``crds/`` is generated;
* :mod:`fdl_api.runconfig`: the resolved run that the operator hands to coordinator and members;
* :mod:`fdl_api.wire`: the messages between agents, ranks, coordinator and operator (docs/protocol.md);
* :mod:`fdl_api.termination`, :mod:`fdl_api.exitcodes`: what a member's pod says when it ends;
* :mod:`fdl_api.labels`, :mod:`fdl_api.names`, :mod:`fdl_api.reasons`: the shared vocabulary.
"""

from fdl_api.version import VERSION, WIRE_VERSION

__all__ = ["VERSION", "WIRE_VERSION"]
