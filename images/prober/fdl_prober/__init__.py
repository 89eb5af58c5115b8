"""The prober: says what a node can really run (docs/node-labels.md).

Top layer first:

* :mod:`fdl_prober.loop`: look, decide, write what changed; :mod:`fdl_prober.pace` and :mod:`fdl_prober.hotplug` say
  when;
* :mod:`fdl_prober.local`: look and decide once, on a machine outside of any cluster;
* :mod:`fdl_prober.decide`, :mod:`fdl_prober.checks`, :mod:`fdl_prober.deep`, :mod:`fdl_prober.history`: labels, checks,
  deep checks and vanished devices, pure;
* :mod:`fdl_prober.facts`: an observation in the report's terms, pure;
* :mod:`fdl_prober.observe`: one look at every source, without judgement: devices (:mod:`fdl_prober.nvml`,
  :mod:`fdl_prober.kfd`, :mod:`fdl_prober.pci`, :mod:`fdl_prober.devfiles`, :mod:`fdl_prober.kernellog`,
  :mod:`fdl_prober.processes`), the machine (:mod:`fdl_prober.host`, :mod:`fdl_prober.net`), volumes
  (:mod:`fdl_prober.volumes`), and what counts only outside of a cluster (:mod:`fdl_prober.box`);
* :mod:`fdl_prober.child`, :mod:`fdl_prober.children`, :mod:`fdl_prober.bounded`: looks that may hang or crash;
* :mod:`fdl_prober.server`, :mod:`fdl_prober.access`: the few calls to the API server.
"""
