"""The console in a real browser: every page at phone and desk width, acts by keyboard, no script."""

import re
import shutil

import pytest

from aggregator.console.rendering import PAGES
from aggregator.operations.control_queue import waiting
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.common.by import By  # noqa: E402 - only where it is installed
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="chromium and chromium-driver are not installed"
    ),
]
ADDRESSES = [*(address for address, _ in PAGES), "/run?run=1", "/round?run=1&round=1"]
ADDRESSES += ["/device?id=meter-1", "/refusals?reason=NORM_EXCEEDED"]
PATIENCE = 120  # s


def started(tmp_path, *arguments):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for one in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(one)
    for one in (f"--user-data-dir={tmp_path}/profile", *arguments):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(PATIENCE)
    return driver


@pytest.fixture
def driver(tmp_path):
    made = started(tmp_path)
    yield made
    made.quit()


def complaints(driver):
    """What the browser complains about, such as a violated policy; a missing icon is none."""
    return [
        one["message"]
        for one in driver.get_log("browser")
        if one["level"] in {"SEVERE", "WARNING"} and "favicon" not in one["message"]
    ]


@pytest.mark.parametrize("width", [360, 1920])
def test_every_page_fits_and_violates_no_policy(served, driver, width):
    address, _, _ = served
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    for page in ADDRESSES:
        driver.get(f"{address}{page}")
        assert driver.find_element(By.TAG_NAME, "h1").text
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, (page, wide)
    assert complaints(driver) == []


def test_times_are_in_the_zone_of_the_viewer(served, driver):
    address, _, _ = served
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    driver.get(f"{address}/run?run=1")
    shown = driver.find_element(By.CSS_SELECTOR, "time")
    assert shown.get_attribute("title").endswith("UTC")
    utc = re.search(r"(\d\d):(\d\d):\d\d UTC", shown.get_attribute("title"))
    assert f":{(int(utc[2]) + 30) % 60:02}:" in shown.text, "half an hour of the zone's offset"


def test_an_order_is_given_by_keyboard_alone(served, driver):
    address, config, _ = served
    driver.get(address)
    active = driver.switch_to.active_element
    for _ in range(100):
        active.send_keys(Keys.TAB)
        active = driver.switch_to.active_element
        if active.get_attribute("name") == "why":
            break
    active.send_keys("storm", Keys.ENTER)
    WebDriverWait(driver, PATIENCE).until(lambda d: d.current_url.endswith("/orders"))
    assert "storm" in driver.find_element(By.TAG_NAME, "main").text
    ((_, order),) = waiting(config.inbox)
    assert (order.do, order.why) == ("pause", "storm")


def test_a_page_shows_a_change_by_itself(served, driver):
    address, config, _ = served
    driver.get(address)
    assert "1 quarantined" in driver.find_element(By.TAG_NAME, "main").text
    with open_store(config.database) as store:
        store.put_client(EnrolledDevice("new", (bytes(range(32)),), state="quarantined", why="x"))
    WebDriverWait(driver, PATIENCE, ignored_exceptions=[Exception]).until(
        lambda d: "2 quarantined" in d.find_element(By.TAG_NAME, "main").text
    )


def test_pages_work_without_scripts(served, tmp_path):
    address, _, _ = served
    driver = started(tmp_path, "--blink-settings=scriptEnabled=false")
    try:
        driver.get(address)
        for _, name in PAGES[1:]:
            driver.find_element(By.LINK_TEXT, name).click()
            WebDriverWait(driver, PATIENCE).until(
                lambda d, name=name: d.find_element(By.TAG_NAME, "h1").text == name
            )
        driver.get(f"{address}/run?run=1")
        assert driver.find_element(By.CSS_SELECTOR, "time").text.endswith("UTC")
    finally:
        driver.quit()
