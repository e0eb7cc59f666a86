"""An incident replay in a real browser: the page has the command's numbers, and axe finds nothing on it."""

import json
import signal

import pytest

from aggregator.commands import main as cli
from firmware_sim.fleet.federation import free_port
from tests.fleet.test_replay_command import incident
from tools import chromium

pytest.importorskip("starlette", reason="the console extra is not installed")
if chromium.missing():
    pytest.skip(chromium.missing(), allow_module_level=True)

from selenium.webdriver.support.ui import WebDriverWait

from tools.console_load import RunningConsole

pytestmark = pytest.mark.slow


def numbers(driver):
    """Return step and distance of every course of every round, as the tables have them."""
    rows = driver.find_elements("css selector", ".wide tbody tr")
    cells = [[one.text for one in row.find_elements("css selector", "td")] for row in rows]
    return [(one[0], one[2], one[3]) for one in cells]


def shown(value):
    return f"{value:#.4g}"


def test_the_page_has_the_numbers_of_the_command(world, tmp_path, capsys):
    one = incident(world)
    words = ["replay", str(one.config), "--rounds", "1:3", "--rule", "nnm+krum", "--f", "1"]
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    port = free_port()
    config = one.config.with_name("console.toml")
    text = one.config.read_text("utf-8")
    config.write_text(f'{text}\n[console]\nlisten = "127.0.0.1:{port}"\n', "utf-8")
    console = RunningConsole(config, port).wait()
    driver = chromium.start(tmp_path / "profile")
    try:
        driver.get(f"http://127.0.0.1:{port}/replay?run=1&rounds=1:3")
        form = driver.find_element("css selector", "form[action='/replay']")
        form.find_element("name", "rule").send_keys("nnm+krum")
        form.find_element("name", "f").send_keys("1")
        form.find_element("tag name", "button").click()
        WebDriverWait(driver, chromium.PATIENCE).until(
            lambda d: d.find_elements("css selector", "figure svg")
        )
        wanted = []
        for round_ in found["rounds"]:
            wanted.append(("recorded", shown(round_["recorded"]["step"]), "-"))
            wanted += [
                (name, shown(round_[name]["step"]), shown(round_[f"{name}_distance"]))
                for name in ("single", "chained")
            ]
        assert numbers(driver) == wanted
        captions = [one.text for one in driver.find_elements("css selector", ".wide caption")]
        assert "both courses are exact" in captions[0]
        assert all("another model" in one for one in captions[1:]), "where answers would differ"
        for scheme, width in (("light", 360), ("dark", 1920)):
            chromium.set_scheme(driver, scheme)
            chromium.set_width(driver, width)
            assert chromium.width(driver) <= width
            assert chromium.violations(driver) == []
        assert chromium.complaints(driver) == []
    finally:
        driver.quit()
        console.end(signal.SIGKILL)
