"""Start Debian's chromium without a window, and judge pages with axe-core.

Needs the Debian packages chromium and chromium-driver, selenium and axe-playwright-python (``make browser``).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PATIENCE = 120  # s until a page has loaded
SCHEMES = ("light", "dark")
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
_RUN = """
const [rules, done] = arguments;
const options = rules.length ? {runOnly: {type: "rule", values: rules}} : {};
const line = (one) => `${one.id} (${one.nodes.length}): ${one.nodes[0].html.slice(0, 200)}`;
axe.run(options).then((found) => done(found.violations.map(line)), (error) => done([String(error)]));
"""


def missing() -> str:
    """Return the missing programs as the reason of a skip; empty if none is missing."""
    if find_spec("selenium") is None:
        return "selenium is not installed (make browser)"
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return "chromium and chromium-driver are not installed"
    return "" if _axe_file().exists() else "axe-playwright-python is not installed (make browser)"


def start(profile: Path) -> Any:  # noqa: ANN401 - selenium is not there for every installation
    """Start a browser; the caller quits it.

    Returns:
        A selenium driver that keeps the messages of the page's console.
    """
    from selenium import webdriver  # noqa: PLC0415 - see above

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for one in (*_OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver") or "")
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(PATIENCE)
    driver.set_script_timeout(PATIENCE)
    return driver


def set_width(driver: Any, width: int, height: int = 900) -> None:  # noqa: ANN401 - as ``start``
    """Give the window a size in CSS pixels; below 600 it is a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def set_scheme(driver: Any, scheme: str) -> None:  # noqa: ANN401 - as ``start``
    """Let the viewer prefer ``light`` or ``dark`` colours."""
    wish = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)


def allow_scripts(driver: Any, *, allowed: bool) -> None:  # noqa: ANN401 - as ``start``
    """Let the pages' scripts run, or not."""
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not allowed})


def width(driver: Any) -> int:  # noqa: ANN401 - as ``start``
    return int(driver.execute_script("return document.documentElement.scrollWidth"))


def violations(driver: Any, *rules: str) -> Sequence[str]:  # noqa: ANN401 - as ``start``
    """Return axe's violations on the page: rule, count and the first element."""
    if not driver.execute_script("return typeof axe === 'object'"):
        driver.execute_script(_axe_file().read_text("utf-8"))
    return [str(one) for one in driver.execute_async_script(_RUN, rules)]


def complaints(driver: Any) -> Sequence[str]:  # noqa: ANN401 - as ``start``
    """Return the warnings and errors since the last call, such as a violated policy."""
    return [
        str(one["message"])
        for one in driver.get_log("browser")
        if one["level"] in {"SEVERE", "WARNING"}
    ]


def _axe_file() -> Path:
    found = find_spec("axe_playwright_python")
    places = (found.submodule_search_locations or []) if found is not None else []
    return Path(*places[:1]) / "axe.min.js"
