"""Versions of the product and of the wire protocol."""

from typing import Final

VERSION: Final = "0.1.0"
"""Version of every package and image of a release; equals ``project.version`` in pyproject.toml."""

WIRE_VERSION: Final = 1
"""Version of the messages in :mod:`fdl_api.wire`. Two programs talk only when theirs are equal; a new field with
a default leaves it as it is."""

GROUP: Final = "fdl.dev"
API_VERSION: Final = "v1alpha1"
GROUP_VERSION: Final = f"{GROUP}/{API_VERSION}"
