"""The prober: says what a node can really run (docs/node-labels.md).

Top layer first:

* :mod:`fdl_prober.loop`: look, decide, write what changed; :mod:`fdl_prober.pace` says when;
* :mod:`fdl_prober.local`: look and decide once, on a machine outside of any cluster;
* :mod:`fdl_prober.decide`, :mod:`fdl_prober.checks`, :mod:`fdl_prober.deep`: labels, checks and deep checks, pure;
* :mod:`fdl_prober.facts`: an observation in the report's terms, pure;
* :mod:`fdl_prober.observe`: one look at every source (:mod:`fdl_prober.nvml`, :mod:`fdl_prober.kfd`,
  :mod:`fdl_prober.pci`, :mod:`fdl_prober.host`, :mod:`fdl_prober.sentinel`), without judgement;
* :mod:`fdl_prober.server`: the few calls to the API server.
"""
