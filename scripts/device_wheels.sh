#!/bin/sh
# Download the wheels that a bare GPU machine (Python 3.12 with torch, Triton, NumPy, safetensors and tokenizers) needs
# to run the engine and its benchmarks, into .cache/wheels312. There: pip install --no-index --no-deps .cache/wheels312/*.whl
set -eu

python=${PYTHON:-.venv/bin/python}
folder=.cache/wheels312
mkdir -p $folder
platforms=""
for glibc in 17 27 28 31 34 35; do platforms="$platforms --platform manylinux_2_${glibc}_x86_64"; done
names="msgspec llguidance starlette uvicorn httptools python-multipart anyio sniffio h11 uvloop prometheus-client"
wanted=$(for name in $names; do grep -i "^$name==" requirements.lock || echo "$name"; done)
# shellcheck disable=SC2086 # the lists are words
"$python" -m pip --disable-pip-version-check --quiet download --no-deps --only-binary=:all: --python-version 3.12 \
  --implementation cp --abi cp312 --abi abi3 --abi none $platforms --platform manylinux2014_x86_64 --dest $folder $wanted
du -sh $folder
