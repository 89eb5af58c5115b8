"""``fdl images``: builds fdl's container images and keeps them as OCI archives.

Where to look: :mod:`catalog` which images there are, :mod:`dockerfile` and :mod:`inputs` what an image is made of,
:mod:`engines` which program builds, :mod:`machine` what the build is told about this machine, :mod:`base` the tree that
replaces a registry, :mod:`store` the archives on disk, :mod:`build` the order of it all.
"""
