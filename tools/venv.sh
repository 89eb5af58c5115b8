#!/usr/bin/env bash
# Makes or refreshes .venv: pinned, hash-checked requirements and the project itself, editable.
# Does nothing while requirements/dev.txt and pyproject.toml are as they were. Safe to run twice at once
# and after an interruption: the stamp is written last.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.fdl-stamp
exec 9>.venv.lock
flock 9
wanted=$(cat requirements/dev.txt pyproject.toml tools/venv.sh | sha256sum | cut -d' ' -f1)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "fdl needs Python 3.11 or newer and found no '$python'; install it, or set PYTHON=/path/to/python3" >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "fdl needs Python 3.11 or newer; '$python' is $("$python" -V 2>&1). Set PYTHON=/path/to/a/newer/python3" >&2
  exit 1
fi
echo "Making the virtual environment .venv from requirements/dev.txt (1-3 minutes the first time; torch is large)"
if [ ! -x .venv/bin/pip ] && ! "$python" -m venv .venv; then
  # Debian keeps venv's pip in a package of its own.
  rm -rf .venv
  echo "python3-venv is missing; installing it with apt-get"
  apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv
  "$python" -m venv .venv
fi
.venv/bin/pip install --disable-pip-version-check --no-input --require-hashes -q -r requirements/dev.txt
.venv/bin/pip install --disable-pip-version-check --no-input --no-deps --no-build-isolation -q -e .
echo "$wanted" >"$stamp"
