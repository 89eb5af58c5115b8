#!/bin/sh
# Writes requirements/image-*.txt: what pip may install into each image, every file by its hash.
# Run it after a change of the dependencies in pyproject.toml or of requirements/dev.txt.
#
# The versions are those of requirements/dev.txt, so that the tests and the images run the same code. numpy and torch
# stay out of image-trainer.txt: Debian (cpu), image-trainer-cuda.txt or the index of the ROCm build brings them.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
sed -n 's/^\([A-Za-z0-9_.-]*==[^ ;]*\).*/\1/p' requirements/dev.txt > "$pins"

lock() {
  out=requirements/$1
  shift
  "$uv" pip compile "$@" --quiet --output-file "$out" --constraint "$pins" \
    --python-version 3.13 --python-platform x86_64-manylinux_2_28 \
    --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate
}

lock image-control.txt pyproject.toml --extra operator --extra coordinator --extra prober
lock image-trainer.txt pyproject.toml --extra trainer --no-emit-package numpy
echo 'torch>=2.6' | lock image-trainer-cuda.txt - pyproject.toml --extra trainer
