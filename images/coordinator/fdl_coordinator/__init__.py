"""The coordinator of a run: join gate, membership epochs, rendezvous store, and what people are told.

Modules, top layer first:

* :mod:`fdl_coordinator.server`: TLS WebSocket server; moves messages, decides nothing;
* :mod:`fdl_coordinator.engine`: the state machine: events in, messages out, no I/O and no clock of its own;
* :mod:`fdl_coordinator.opening`, :mod:`fdl_coordinator.succession`, :mod:`fdl_coordinator.ending`,
  :mod:`fdl_coordinator.runstate`: the layers it is built of;
* :mod:`fdl_coordinator.epochs`: numbers and contents of membership epochs;
* :mod:`fdl_coordinator.gate`, :mod:`fdl_coordinator.formation`: pure rules of admission and of the start;
* :mod:`fdl_coordinator.report`: the snapshot for the operator;
* :mod:`fdl_coordinator.rendezvous`: the key-value store that groups are formed over;
* :mod:`fdl_coordinator.seats`: the records all of them share.
"""
