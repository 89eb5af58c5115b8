"""Generated files of the project, written by ``make generate`` and compared by ``make verify``.

* ``crds/*.yaml``, ``docs/reference/fdlrun.md`` and ``fdlcluster.md``: from the models, by :mod:`fdl_api.crd`;
* ``charts/fdl/templates/crds/*.yaml``: the same CRDs with the chart's marks (:mod:`tools.generate.chart`);
* ``charts/fdl/values.schema.json``, ``docs/reference/chart-values.md``: from :mod:`tools.generate.values`;
* ``docs/reference/checks.md``: from the catalogue of checks (:mod:`fdl_api.checks.page`);
* ``docs/reference/cli.md``: from the commands themselves (:mod:`tools.generate.cli`).
"""
