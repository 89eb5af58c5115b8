"""``make bench-smoke``: the figures of a small cluster on this machine, as a table and as JSON. Never a test.

* :mod:`bench.smoke.figures`: pure: the figures, their targets, table and JSON;
* :mod:`bench.smoke.lab`: a cluster with fdl, runs on it, and what the runs log;
* :mod:`bench.smoke.measure`: one function a figure.
"""
