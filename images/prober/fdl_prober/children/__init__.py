"""Looks that may hang or crash: each module is a small program, run by :func:`fdl_prober.child.run_module`.

They import little, since each look starts one, and write one JSON object to standard output.
"""
