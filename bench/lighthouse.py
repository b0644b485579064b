"""Measure the dashboard's screens with Lighthouse: performance, accessibility and best practices, 0 to 100.

    python -m bench.lighthouse FOLDER [--screens overview,models] [--rounds 3]

FOLDER is one in which `npm install lighthouse` was run (needs `node`). Starts a platform and signs in with Playwright;
Lighthouse then opens each screen in the same browser, with its settings for desktops. Prints the medians. Performance
depends on other load of the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.platform_under_test import free_port
from scripts.screenshots import origin_of, running_platform, sign_in
from tests.clients.browser import CHROMIUM_OPTIONS, find_chromium

SCREENS = "overview,models,playground,fleet,accounts,tokens,usage,logs,jobs,finetunes,audit,settings,health"
CATEGORIES = ("performance", "accessibility", "best-practices")


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with node_modules/lighthouse")
    parser.add_argument("--screens", default=SCREENS)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_platform(Path(folder)) as platform,
        sync_playwright() as playwright,
    ):
        chromium = find_chromium()
        browser = playwright.chromium.launch(
            executable_path=chromium, args=list(CHROMIUM_OPTIONS), chromium_sandbox=False
        )
        state = json.loads(sign_in(browser, platform, Path(folder)).read_text())
        browser.close()
        context = playwright.chromium.launch_persistent_context(
            f"{folder}/profile",
            executable_path=chromium,
            args=[*CHROMIUM_OPTIONS, f"--remote-debugging-port={port}"],
            chromium_sandbox=False,
        )
        context.add_cookies(state["cookies"])
        for screen in arguments.screens.split(","):
            url = f"{origin_of(platform)}/dashboard/{screen}"
            found = [scores(arguments.folder, url, port) for _ in range(arguments.rounds)]
            medians = {name: statistics.median(each[name] for each in found) for name in CATEGORIES}
            print(f"{screen}: " + ", ".join(f"{name} {score:.0f}" for name, score in medians.items()), flush=True)


def scores(folder: Path, url: str, port: int) -> dict[str, float]:
    """Return the score of each category for the page at `url`, opened in the browser at `port`."""
    command = [str(folder / "node_modules/.bin/lighthouse"), url, f"--port={port}", "--preset=desktop", "--quiet"]
    command += ["--disable-storage-reset", "--output=json", f"--only-categories={','.join(CATEGORIES)}"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    if report["finalDisplayedUrl"].partition("?")[0] != url:
        raise SystemExit(f"lighthouse: {url} led to {report['finalDisplayedUrl']}")
    return {name: 100 * report["categories"][name]["score"] for name in CATEGORIES}


if __name__ == "__main__":
    main()
