"""``fdl demo``: from nothing to a trained model on a real Kubernetes, with a death on the way.

* :mod:`fdl_cli.demo.command`: the command; the steps in order;
* :mod:`fdl_cli.demo.setup`: images, cluster, chart, run;
* :mod:`fdl_cli.demo.follow`: follows the training, kills one member, and shows both;
* :mod:`fdl_cli.demo.story`: pure: what happened between two states of a run;
* :mod:`fdl_cli.demo.screen`: pure: a state as text and as a table;
* :mod:`fdl_cli.demo.proof`: checks what the run left behind;
* :mod:`fdl_cli.demo.kube`, :mod:`fdl_cli.demo.peek`: the API server and the coordinator's ``/state.json``.
"""
