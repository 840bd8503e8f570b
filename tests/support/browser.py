"""A page in a real headless Chromium (Debian's)."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.runs import DEADLINE

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
MISSING = [path for path in (CHROMIUM, DRIVER) if not os.access(path, os.X_OK)]
MISSING += ["selenium"] if importlib.util.find_spec("selenium") is None else []

# The contrast of each visible text: 4.5 to 1 is required (WCAG 2.2, 1.4.3), 3 to 1 for large text.
CONTRAST = """
const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
const parsed = (text) => { const n = numbers(text); return n.length === 3 ? [...n, 1] : n; };
const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
function ground(element) {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(parsed(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((under, layer) => (layer.length === 4 ? over(layer, under) : under), [255, 255, 255]);
}
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const text = walker.currentNode.textContent.trim();
  if (!text || !element.getClientRects().length || element.closest("title, desc, style, script, noscript")) continue;
  const style = getComputedStyle(element);
  const under = ground(element);
  const ink = over(parsed(element.closest("svg") ? style.fill : style.color), under);
  const [a, b] = [light(ink), light(under)].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  const ratio = (a + 0.05) / (b + 0.05);
  found.push([text.slice(0, 40), Math.round(ratio * 100) / 100, large ? 3 : 4.5]);
}
return found;
"""


class Page:
    """A tab of the browser."""

    def __init__(self, driver: Any, shots: Path) -> None:
        self.driver, self._shots = driver, shots

    def open(self, url: str) -> None:
        self.leave()
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.resize(1280)
        self.scheme("light")
        self.driver.get(url)

    def leave(self) -> None:
        """Leave the page before its server ends, which would be an error in the console."""
        self.driver.get("about:blank")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """The visible text."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)).strip()

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def all(self, selector: str) -> list[Any]:
        """The visible elements."""
        found = self.steadily(
            lambda: [one for one in self.driver.find_elements("css selector", selector) if one.is_displayed()]
        )
        return list(found)

    def steadily(self, look: Callable[[], Any]) -> Any:
        """What `look` finds; it looks again where the page replaced an element meanwhile."""
        from selenium.common.exceptions import StaleElementReferenceException

        until = time.monotonic() + DEADLINE
        while True:
            try:
                return look()
            except StaleElementReferenceException:
                if time.monotonic() >= until:
                    raise

    def scheme(self, name: str) -> None:
        """Light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width: int, height: int = 900) -> None:
        """In CSS pixels: 640 is a zoom of 200 % on a screen of 1280."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def shot(self, name: str) -> Path:
        """A PNG of the full page."""
        width, height = self.run("const e = document.documentElement; return [innerWidth, e.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        wanted = {"captureBeyondViewport": True, "clip": clip}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", wanted)
        path = self._shots / f"{name}.png"
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def faint(self) -> list[Any]:
        """Texts with too little contrast: each with its contrast, and the required one."""
        found = self.run(CONTRAST)
        assert len(found) > 2
        return [one for one in found if one[1] < one[2]]

    def complaints(self) -> list[str]:
        """The errors and warnings in the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def hosts(self) -> set[str]:
        """The hosts of all requests."""
        found = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                url = message["params"].get("request", message["params"])["url"]
                found.add(urlsplit(url).hostname or urlsplit(url).scheme)
        return found - {"about"}


@contextmanager
def chromium(shots: Path) -> Iterator[Page]:
    """A browser with a temporary profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    folder = tempfile.mkdtemp(prefix="ftrun-chromium-")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder}/profile"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = None
    try:
        driver = webdriver.Chrome(options, Service(DRIVER, env=os.environ | {"TMPDIR": folder}))
        driver.set_script_timeout(60)
        yield Page(driver, shots)
    finally:
        if driver is not None:
            driver.quit()
        shutil.rmtree(folder, ignore_errors=True)
