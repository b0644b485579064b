#!/bin/sh
# Install Triton into .cache/triton if this machine's torch has none (CPU builds have none): `make test-full` runs Triton
# kernels in interpreter mode. Changes only the project's folder.
set -eu

TRITON="triton==3.9.0"  # 3.6, which GPU machines have, does not interpret beside NumPy 2.4
folder=.cache/triton
python=${PYTHON:-.venv/bin/python}

mkdir -p $folder
if ! "$python" -c 'import triton' 2>/dev/null; then
  echo "triton: installing $TRITON to $folder (650 MB unpacked)"
  "$python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile --upgrade --target $folder/site "$TRITON"
fi
touch $folder/.setup
