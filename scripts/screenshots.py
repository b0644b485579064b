"""Write pictures of every screen of the dashboard: light, dark, and on a phone. `make screenshots` runs this.

Starts a platform with three nodes in a temporary folder, makes calls so that the screens have something to show, signs
in, and visits every screen in headless Chromium. Needs Playwright and Chromium: `sh scripts/clients.sh` installs them.
With `--readme`, writes only the pictures of README.md, into docs/images.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.clients.browser import CHROMIUM_OPTIONS, find_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / ".cache" / "screenshots"
IMAGES = ROOT / "docs" / "images"
MAX_README_BYTES = 200_000
READY_TIMEOUT_S = 180
POPS = "fra,iad,nrt"
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
MODES: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light"},
}
LOAD_TIMEOUT_MS = 20_000
_IS_LOADED = (
    "() => document.querySelector('h1, [role=alert]') && "
    "!document.querySelector('.mantine-Skeleton-root, .mantine-Loader-root, [role=status][aria-label*=oading]')"
)
README = (("overview", "light"), ("playground", "light"), ("fleet", "dark"), ("usage", "light"))
QUESTIONS = ("What is the capital of France?", "Name three colors.", "Who wrote Hamlet?", "What is two plus three?")


def main() -> int:
    """Write the pictures and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readme", action="store_true", help="write the pictures of README.md into docs/images")
    parser.add_argument("--only", default="", help="write only screens whose names contain this text")
    arguments = parser.parse_args()
    command = find_chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        command = None
    if command is None:
        print("screenshots: no Chromium or no Playwright: run `sh scripts/clients.sh`", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="hearth-screenshots-") as folder,
        running_platform(Path(folder)) as platform,
    ):
        _make_calls(platform)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=command, args=list(CHROMIUM_OPTIONS), chromium_sandbox=False
            )
            state = sign_in(browser, platform, Path(folder))
            if arguments.readme:
                return _write_readme_images(browser, platform, state)
            for mode in MODES:
                _write_mode(browser, platform, state, mode, arguments.only)
    print(f"screenshots: wrote {len(list(OUTPUT.glob('*.png')))} pictures to {OUTPUT}")
    return 0


@contextlib.contextmanager
def running_platform(folder: Path) -> Iterator[dict[str, Any]]:
    """Run a platform and return its `dev.json`."""
    data = folder / "data"
    command = [sys.executable, "-m", "cli.main", "up", "--port", "0", "--data", str(data), "--no-starter"]
    command += ["--pops", POPS]
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    try:
        yield _wait_until_ready(process, data / "dev.json", folder / "up.log") | {"data": str(data)}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _wait_until_ready(process: subprocess.Popen[bytes], dev: Path, log: Path) -> dict[str, Any]:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            platform: dict[str, Any] = json.loads(dev.read_text())
            if httpx.get(f"{origin_of(platform)}/readyz", timeout=5).status_code == 200:
                return platform
        time.sleep(0.2)
    raise SystemExit(f"screenshots: the platform did not start: {log.read_text()[-2000:]}")


def origin_of(platform: dict[str, Any]) -> str:
    return str(platform["base_url"]).removesuffix("/client/v4")


def _make_calls(platform: dict[str, Any]) -> None:
    """Make calls to both models: some with a long prompt, a few that fail."""
    account = f"{platform['base_url']}/accounts/{platform['account_id']}"
    headers = {"authorization": f"Bearer {platform['api_token']}"}
    with httpx.Client(headers=headers, timeout=120) as client:
        for number, question in zip(range(60), itertools.cycle(QUESTIONS), strict=False):
            messages = [{"role": "user", "content": question}]
            if number % 3 == 2:
                body: dict[str, Any] = {"text": [f"{question} " * (number % 7 + 1)]}
                client.post(f"{account}/ai/run/{platform['embed_model']}", json=body)
            else:
                messages[0]["content"] *= 400 if number % 20 == 7 else 1
                body = {"messages": messages, "max_tokens": 16 + number % 5 * 12}
                client.post(f"{account}/ai/run/{platform['chat_model']}", json=body)


def sign_in(browser: Browser, platform: dict[str, Any], folder: Path) -> Path:
    """Sign in with a link, create what the screens show, and return the file with the session's cookies."""
    command = [sys.executable, "-m", "cli.main", "dashboard", "--data", platform["data"], "--json"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    context = browser.new_context()
    page = context.new_page()
    page.goto(json.loads(shown.stdout)["sign_in_link"])
    page.wait_for_url("**/overview*")
    _create_objects(context, platform)
    state = folder / "cookies.json"
    context.storage_state(path=state)
    context.close()
    return state


def _create_objects(context: BrowserContext, platform: dict[str, Any]) -> None:
    """Create accounts, a member, API tokens and a budget, with the requests that the dashboard sends."""
    origin, account = origin_of(platform), f"{platform['base_url']}/accounts/{platform['account_id']}"
    session = context.request.get(f"{origin}/admin/session").json()["result"]
    headers = {"x-hearth-csrf": session["csrf_token"], "origin": origin}

    def send(method: str, url: str, body: dict[str, Any]) -> None:
        response = context.request.fetch(url, method=method, headers=headers, data=body)
        if not response.ok:
            raise SystemExit(f"screenshots: {method} {url} failed: {response.text()}")

    for name in ("Research", "Support assistant", "Search"):
        send("POST", f"{platform['base_url']}/accounts", {"name": name})
    groups = context.request.get(f"{account}/tokens/permission_groups").json()["result"]
    policy = {
        "effect": "allow",
        "permission_groups": [{"id": groups[0]["id"]}],
        "resources": {f"com.cloudflare.api.account.{platform['account_id']}": "*"},
    }
    for name in ("production", "nightly evaluation"):
        send("POST", f"{account}/tokens", {"name": name, "policies": [policy]})
    send("POST", f"{account}/members", {"email": "ann@example.com", "roles": [_viewer_role(context, account)]})
    send("PUT", f"{account}/ai/usage/budgets", {"amount": 25, "unit": "usd"})


def _viewer_role(context: BrowserContext, account: str) -> str:
    roles = context.request.get(f"{account}/roles").json()["result"]
    return str(roles[-1]["id"])


def _screens(platform: dict[str, Any]) -> dict[str, str]:
    """Return the path of every screen, by the name of its picture."""
    account = platform["account_id"]
    names = "overview fleet models playground finetunes tokens usage logs jobs accounts audit settings health".split()
    return {name: name for name in names} | {
        "new-token": f"tokens/new?account={account}",
        "playground": f"playground?model={platform['chat_model']}",
        "model": f"models/{platform['chat_model']}?account={account}",
        "account-usage": f"usage?account={account}",
        "budgets": f"usage?account={account}&view=budgets",
        "account": f"accounts/{account}?account={account}",
        "members": f"accounts/{account}?account={account}&tab=members",
        "plan": f"accounts/{account}?account={account}&tab=operation",
        "not-found": "no-such-page",
    }


def _write_mode(browser: Browser, platform: dict[str, Any], state: Path, mode: str, only: str) -> None:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with _page(browser, mode, state) as page:
        for name, path in _screens(platform).items():
            if only in name:
                _open(page, platform, path)
                _chat_if_playground(page, path)
                page.screenshot(path=OUTPUT / f"{name}-{mode}.png", full_page=mode == "phone")
    with _page(browser, mode, None) as page:
        if only in "sign-in":
            _open(page, platform, "sign-in")
            page.screenshot(path=OUTPUT / f"sign-in-{mode}.png")


def _write_readme_images(browser: Browser, platform: dict[str, Any], state: Path) -> int:
    """Write the pictures of README.md. Returns 1 if one of them is too large."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    paths = _screens(platform)
    too_large = []
    for name, mode in README:
        file = IMAGES / f"dashboard-{name}.png"
        with _page(browser, mode, state) as page:
            _open(page, platform, paths[name])
            _chat_if_playground(page, name)
            page.screenshot(path=file)
        size = file.stat().st_size
        print(f"screenshots: {file.relative_to(ROOT)}: {size} bytes")
        if size > MAX_README_BYTES:
            too_large.append(file.name)
    if too_large:
        print(f"screenshots: larger than {MAX_README_BYTES} bytes: {', '.join(too_large)}", file=sys.stderr)
    return 1 if too_large else 0


@contextlib.contextmanager
def _page(browser: Browser, mode: str, state: Path | None) -> Iterator[Page]:
    context = browser.new_context(storage_state=state, **MODES[mode])
    try:
        yield context.new_page()
    finally:
        context.close()


def _open(page: Page, platform: dict[str, Any], path: str) -> None:
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    page.goto(f"{origin_of(platform)}/dashboard/{path}")
    # An open event stream keeps the network busy, so the page tells when nothing is loading anymore.
    with contextlib.suppress(PlaywrightTimeout):
        page.wait_for_function(_IS_LOADED, timeout=LOAD_TIMEOUT_MS)
    page.wait_for_timeout(500)


def _chat_if_playground(page: Page, path: str) -> None:
    """Ask a question, so that the playground shows a response."""
    if not path.startswith("playground"):
        return
    page.get_by_role("textbox", name="Message").first.fill("What is the capital of France?")
    page.keyboard.press("Enter")
    page.get_by_text("tokens/s").first.wait_for(timeout=LOAD_TIMEOUT_MS)


if __name__ == "__main__":
    sys.exit(main())
