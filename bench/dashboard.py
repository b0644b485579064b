"""Measure the dashboard in headless Chromium: first load, scrolling of 10,000 rows, a fleet of 1,000 nodes.

Starts a platform, and replaces the usage route by one with 10,000 rows, and the nodes and their events by simulated
ones. Times are measured in the page. They and the frames per second depend on other load of the machine; the CPU time
of the page's main thread does not.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.screenshots import origin_of, running_platform, sign_in
from tests.clients.browser import CHROMIUM_OPTIONS, find_chromium

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Route

NUM_ROWS = 10_000
NUM_NODES = 1_000
NUM_UPDATES = 10
STATIC = Path(__file__).parent.parent / "gateway" / "static"
COUNTS = ("num_calls", "num_useful", "prompt_tokens", "cached_tokens", "completion_tokens", "num_attempts", "device_ms")
_SCROLL = """async () => {
  const region = document.querySelector('[aria-label="Usage, scrollable"]');
  const started = performance.now();
  let numFrames = 0;
  while (performance.now() - started < 4000) {
    region.scrollTop += 120;
    numFrames += 1;
    await new Promise(requestAnimationFrame);
  }
  return {frames: numFrames, per_s: 1000 * numFrames / (performance.now() - started)};
}"""

# Remembers when the heading of a screen was there.
_WATCH_HEADING = """new MutationObserver((_, observer) => {
  if (!document.querySelector('h1')) return;
  window.headingAt = performance.now();
  observer.disconnect();
}).observe(document, {childList: true, subtree: true});"""
# Answers `GET /nodes` with simulated nodes, and offers `sendNodes`, which sends an event in which all have changed.
_SIMULATE_FLEET = """(() => {
  const replica = (model) => ({model: `@cf/simulated/model-${model}`, revision: '0'.repeat(64), state: 'ready',
    num_running: 1 + Math.floor(Math.random() * 99), num_waiting: Math.floor(Math.random() * 9), queued_tokens: 5,
    num_blocks: 20000, num_free_blocks: Math.floor(Math.random() * 20000), num_cached_blocks: 900, busy_ratio: 0.5,
    cache_hit_ratio: Math.random(), weight_bytes: 2 ** 34, kv_bytes: 2 ** 33, is_pinned: false, detail: ''});
  const node = (number) => ({node_id: `sim-${number}`, pop: ['fra', 'iad', 'nrt'][number % 3], state: 'ready',
    is_reachable: true, device: 'cuda', device_name: 'NVIDIA H200', memory_bytes: 141 * 2 ** 30,
    weight_bytes: 5 * 2 ** 34, kv_bytes: 5 * 2 ** 33, kv_free_ratio: Math.random(), version: '0.0',
    started_at: '2026-01-01T00:00:00Z', num_calls: Math.floor(Math.random() * 200), queued_tokens: 25,
    cache_hit_ratio: Math.random(), replicas: [1, 2, 3, 4, 5].map(replica)});
  const nodes = () => Array.from({length: NUM_NODES}, (_, number) => node(number));
  const fetchReally = window.fetch;
  window.fetch = (request, options) => new URL(request.url ?? request, location).pathname === '/client/v4/nodes'
    ? Promise.resolve(new Response(JSON.stringify({success: true, errors: [], messages: [], result: nodes()})))
    : fetchReally(request, options);
  window.EventSource = class extends EventTarget {
    constructor() {
      super();
      window.sendNodes = () => this.dispatchEvent(new MessageEvent('nodes', {data: this.text}));
      window.prepareNodes = () => { this.text = JSON.stringify(nodes()); };
      setTimeout(() => this.onopen?.(), 0);
    }
    close() {}
  };
})()"""
_OPEN_FLEET = """async () => {
  const started = performance.now();
  document.querySelector('nav a[href*="/fleet"]').click();
  while (!document.querySelector('table[aria-label="Nodes"] tbody td')) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - started;
}"""
_UPDATE_FLEET = """async () => {
  const started = performance.now();
  window.sendNodes();
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));
  return performance.now() - started;
}"""


def main() -> int:
    """Print the figures."""
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory() as folder,
        running_platform(Path(folder)) as platform,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=list(CHROMIUM_OPTIONS), chromium_sandbox=False
        )
        state = sign_in(browser, platform, Path(folder))
        url = f"{origin_of(platform)}/dashboard/"
        _measure_first_load(browser.new_context(storage_state=state), url)
        _measure_scrolling(browser.new_context(storage_state=state), url)
        _measure_fleet(browser.new_context(storage_state=state), url)
    return 0


def _measure_first_load(context: BrowserContext, url: str) -> None:
    page = context.new_page()
    scripts: set[str] = set()
    page.on("response", lambda response: scripts.add(response.url.rpartition("/")[2]))
    page.add_init_script(_WATCH_HEADING)
    page.goto(f"{url}health")
    page.get_by_role("heading", name="Health").wait_for()
    interactive_s = page.evaluate("window.headingAt") / 1000
    compressed = [(STATIC / "assets" / f"{name}.gz").stat().st_size for name in scripts if name.endswith(".js")]
    print(f"script on first load: {sum(compressed) / 1000:.0f} kB gzip in {len(compressed)} files")
    print(f"interactive: {interactive_s:.2f} s")


def _measure_scrolling(context: BrowserContext, url: str) -> None:
    page = context.new_page()
    page.route("**/client/v4/usage?*", _send_rows)
    page.goto(f"{url}usage?by=token")
    page.get_by_role("table", name="Usage").wait_for()
    devtools = context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before_s = _main_thread_s(devtools)
    scrolled: dict[str, float] = page.evaluate(_SCROLL)
    cpu_ms = 1000 * (_main_thread_s(devtools) - before_s) / scrolled["frames"]
    print(f"usage table of {NUM_ROWS:,} rows: {scrolled['per_s']:.0f} frames/s, {cpu_ms:.1f} ms CPU per frame")
    _check_is_virtual(page)


def _measure_fleet(context: BrowserContext, url: str) -> None:
    page = context.new_page()
    page.add_init_script(_SIMULATE_FLEET.replace("NUM_NODES", str(NUM_NODES)))
    page.goto(f"{url}finetunes")
    page.get_by_role("heading", name="Finetunes").wait_for()
    page.wait_for_timeout(1000)
    devtools = context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before_s = _main_thread_s(devtools)
    opened_ms: float = page.evaluate(_OPEN_FLEET)
    opened_cpu_ms = 1000 * (_main_thread_s(devtools) - before_s)
    page.wait_for_timeout(1000)
    times: list[list[float]] = []
    for _ in range(NUM_UPDATES):
        page.evaluate("window.prepareNodes()")
        page.wait_for_timeout(200)
        before_s = _main_thread_s(devtools)
        elapsed_ms: float = page.evaluate(_UPDATE_FLEET)
        times.append([elapsed_ms, 1000 * (_main_thread_s(devtools) - before_s)])
    updated_ms, updated_cpu_ms = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"fleet of {NUM_NODES:,} nodes and {5 * NUM_NODES:,} replicas:")
    print(f"opened in {opened_ms:.0f} ms, {opened_cpu_ms:.0f} ms CPU")
    print(f"update of all nodes in {updated_ms:.0f} ms, {updated_cpu_ms:.0f} ms CPU (medians of {NUM_UPDATES})")


def _main_thread_s(devtools: Any) -> float:
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def _check_is_virtual(page: Page) -> None:
    num_rendered = page.locator("table[aria-label=Usage] tbody tr").count()
    assert num_rendered < NUM_ROWS / 10, f"{num_rendered} rows are rendered"


def _send_rows(route: Route) -> None:
    """Respond to sums by token with NUM_ROWS rows, and to other sums with none."""
    rows = []
    if "by=token" in route.request.url:
        for i in range(NUM_ROWS):
            amounts = {"neurons": i / 10, "usd": i / 1000, "usd_per_useful_reply": 0.001}
            rows.append({"token": f"{i:032x}", **dict.fromkeys(COUNTS, i * 7 % 1000), **amounts})
    by = "token" if rows else "day"
    result = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-08T00:00:00Z", "by": by, "sums": rows}
    body = {"success": True, "errors": [], "messages": [], "result": result}
    route.fulfill(body=json.dumps(body), content_type="application/json")


if __name__ == "__main__":
    sys.exit(main())
