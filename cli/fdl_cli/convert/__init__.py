"""``fdl convert``: manifests for an existing floDl set-up, and an account of every key that it had.

* :mod:`~fdl_cli.convert.source`: YAML files with the line of every key;
* :mod:`~fdl_cli.convert.keys`: every key of floDl, with what became of it;
* :mod:`~fdl_cli.convert.audit`: what is in the files, held against that table;
* :mod:`~fdl_cli.convert.build` and its helpers: the manifests;
* :mod:`~fdl_cli.convert.show`: the account as text.
"""
