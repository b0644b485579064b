#!/bin/sh
# Create .venv-clients for `make test-full`: Python clients in the versions of requirements-clients.lock, and the tests of
# the Cloudflare SDK's source distribution. Install Playwright, which drives the browser, and other large packages that
# only long tests need into .venv. If the machine has no Chromium, install it with apt where that is allowed, or else with
# npm into the project's folder.
set -eu

env=.venv-clients
python=${PYTHON:-.venv/bin/python}
SDK=cloudflare==$(sed -n 's/^cloudflare==//p' requirements-clients.lock)
LARGE="playwright==1.65.2 kubernetes-validate==1.37.0 rapidocr==3.10.0"  # 350 MB, so not in requirements.lock
CHROMIUM="@sparticuz/chromium@153.0.0"

pip() { $env/bin/python -m pip --disable-pip-version-check --quiet "$@"; }

if [ ! -x $env/bin/python ]; then
  echo "clients: making $env"
  "$python" -m venv $env
fi
echo "clients: installing the versions of requirements-clients.lock"
pip install --no-deps --requirement requirements-clients.lock

echo "clients: installing $LARGE"
"$python" -m pip --disable-pip-version-check --quiet install --constraint requirements.lock $LARGE

if [ ! -d $env/sdk ]; then
  echo "clients: bringing the test files of $SDK"
  pip download --no-deps --no-binary cloudflare --dest $env/download "$SDK"
  mkdir -p $env/sdk.part
  tar -xzf $env/download/cloudflare-*.tar.gz -C $env/sdk.part --strip-components=1
  mv $env/sdk.part $env/sdk
fi

has_chromium() {
  [ -n "${HEARTH_CHROMIUM:-}" ] || [ -x $env/chromium ] || command -v chromium >/dev/null || command -v google-chrome >/dev/null
}
if ! has_chromium && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "clients: installing chromium with apt"
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium; } >/dev/null ||
    echo "clients: apt cannot install chromium" >&2
fi
if ! has_chromium; then
  if command -v npm >/dev/null 2>&1 && npm install --silent --no-audit --no-fund --prefix $env/npm "$CHROMIUM"; then
    echo "clients: unpacking $CHROMIUM"
    node -e '
      const { createReadStream, createWriteStream } = require("node:fs");
      const { pipeline } = require("node:stream/promises");
      const [from, to] = process.argv.slice(1);
      pipeline(createReadStream(from), require("node:zlib").createBrotliDecompress(), createWriteStream(to, { mode: 0o755 }));
    ' $env/npm/node_modules/@sparticuz/chromium/bin/chromium.br $env/chromium.part
    mv $env/chromium.part $env/chromium
  else
    echo "clients: no Chromium here, and no npm that brings one: the tests in a browser will be skipped" >&2
  fi
fi

touch $env/.setup
