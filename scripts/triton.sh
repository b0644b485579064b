#!/bin/sh
# Install Triton into .cache/triton if this machine's torch has none (CPU builds have none). `make test-full` runs Triton
# kernels in interpreter mode and compiles them for sm_90. Changes only the project's folder.
set -eu

INTERPRETER="triton==3.9.0"  # 3.6, which GPU machines have, does not interpret beside NumPy 2.4
COMPILER="triton==3.6.0"  # the version of GPU machines; others allocate registers differently
folder=.cache/triton
python=${PYTHON:-.venv/bin/python}

install() {
  echo "triton: installing $1 to $folder/$2 (650 MB unpacked)"
  "$python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile --upgrade --target "$folder/$2" "$1"
}

mkdir -p $folder
if ! "$python" -c 'import triton' 2>/dev/null; then
  install "$INTERPRETER" site
fi
if ! "$python" -c 'import sys, triton; sys.exit(not triton.__version__.startswith("3.6."))' 2>/dev/null; then
  install "$COMPILER" sm90
fi
touch $folder/.setup
