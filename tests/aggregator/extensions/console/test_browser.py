"""The console in a real browser: axe, three widths, two colour schemes, every act, no script.

Acts are done by mouse and by keyboard: with the keyboard only Tab, Enter, Space, arrows and letters.
"""

import re
from urllib.parse import quote

import pytest

from aggregator.extensions.console.app import users_file
from aggregator.extensions.console.rendering import PAGES
from aggregator.extensions.console.users import new_user, write_users
from aggregator.operations.control_queue import waiting
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from tests.aggregator.extensions.console.conftest import BROUGHT, HOSTILE
from tools import chromium

MISSING = chromium.missing()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)

from selenium.common.exceptions import (  # noqa: E402 - only where it is installed
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow
WIDTHS = (360, 768, 1920)
PASSWORD = "correct horse battery"
ADDRESSES = [*(address for address, _ in PAGES), *BROUGHT, "/run?run=1", "/round?run=1&round=1"]
ADDRESSES += ["/device?id=meter-1", "/refusals?reason=NORM_EXCEEDED"]
ADDRESSES += [f"/device?id={quote(HOSTILE, safe='')}", "/devices?q=meter&label=kind&page=1"]
OF_A_SCHEME = ("color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size")
"""Rules of axe whose result a scheme of colours or a width can change."""
HEADS = "return Array.from(document.querySelectorAll('.wide th')).map((one) => one.offsetHeight)"
FLEET, DEVICE = "/", "/device?id=meter-1"
ORDERS = [
    (FLEET, {"do": "pause"}, {"why": "storm"}),
    (FLEET, {"do": "resume"}, {"why": "calm"}),
    (FLEET, {"do": "round"}, {"why": "soon"}),
    ("/rollout", {"do": "rollout", "op": "pause"}, {"why": "holiday"}),
    ("/rollout", {"do": "rollout", "op": "abort"}, {"why": "complaints"}),
    (DEVICE, {"do": "command"}, {"op": "budget", "releases": "40", "why": "asked"}),
    (DEVICE, {"do": "label"}, {"labels": "site=a", "why": "moved"}),
    (DEVICE, {"do": "revoke"}, {"why": "sold"}),
]
"""Page, hidden fields and visible fields of every order that a page offers."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = chromium.start(tmp_path_factory.mktemp("profile"))
    yield made
    made.quit()


@pytest.fixture
def driver(browser):
    """The module's browser as new: no cookie, scripts allowed, no message left."""
    browser.get("about:blank")
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
    chromium.allow_scripts(browser, allowed=True)
    chromium.set_scheme(browser, "light")
    chromium.set_width(browser, 1280)
    chromium.complaints(browser)
    return browser


def require_good_page(driver, name):
    """Judge the page in the driver in both schemes and at every width."""
    assert driver.find_element(By.TAG_NAME, "h1").text
    for width in WIDTHS:
        chromium.set_width(driver, width)
        assert chromium.width(driver) <= width, (name, width)
        heads = driver.execute_script(HEADS)
        assert max(heads, default=0) < 110, (name, width, "a word of a heading is not broken")
    chromium.set_scheme(driver, "light")
    chromium.set_width(driver, WIDTHS[0])
    assert chromium.violations(driver) == [], (name, "light")
    chromium.set_scheme(driver, "dark")
    chromium.set_width(driver, WIDTHS[2])
    assert chromium.violations(driver, *OF_A_SCHEME) == [], (name, "dark")


def until(driver, condition):
    gone = (NoSuchElementException, StaleElementReferenceException)
    return WebDriverWait(driver, chromium.PATIENCE, ignored_exceptions=gone).until(condition)


def heading(driver):
    return driver.find_element(By.TAG_NAME, "h1").text


def leave(driver, act):
    """Act, and wait until another page is there."""
    before = driver.find_element(By.TAG_NAME, "html")
    act()
    until(driver, lambda d: d.find_element(By.TAG_NAME, "html") != before)
    until(driver, lambda d: d.execute_script("return document.readyState") == "complete")


def form_with(driver, action, hidden):
    """Return the page's form with an action and values of hidden fields or of its buttons."""
    for form in driver.find_elements(By.CSS_SELECTOR, f"form[action='{action}']"):
        found = {
            (one.get_attribute("name"), one.get_attribute("value"))
            for one in form.find_elements(By.CSS_SELECTOR, "input[type=hidden], button[name]")
        }
        if hidden.items() <= found:
            return form
    raise AssertionError((action, hidden))


def button_of(form, hidden):
    """Return the button of a form that sends the wanted act."""
    named = form.find_elements(By.CSS_SELECTOR, f"button[value='{hidden.get('do')}']")
    return named[0] if named else form.find_element(By.CSS_SELECTOR, "button")


class Mouse:
    """Clicks on what it sees."""

    def __init__(self, driver):
        self.driver = driver

    def follow(self, name):
        leave(self.driver, self.driver.find_element(By.LINK_TEXT, name).click)

    def send(self, action, hidden, fields):
        form = form_with(self.driver, action, hidden)
        for name, value in fields.items():
            field = form.find_element(By.NAME, name)
            if field.tag_name == "select":
                Select(field).select_by_visible_text(value)
            else:
                field.click()
                field.clear()
                field.send_keys(value)
        leave(self.driver, button_of(form, hidden).click)


class Keyboard:
    """Presses Tab until the wanted element has the focus; never touches an element otherwise."""

    def __init__(self, driver):
        self.driver = driver

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def reach(self, wanted):
        for _ in range(150):
            self.press(Keys.TAB)
            at = self.driver.switch_to.active_element
            if at == wanted:
                outline = at.value_of_css_property("outline-style")
                assert outline != "none", "the focus is visible"
                return
        raise AssertionError(f"no Tab leads to {wanted.get_attribute('outerHTML')}")

    def follow(self, name):
        self.reach(self.driver.find_element(By.LINK_TEXT, name))
        leave(self.driver, lambda: self.press(Keys.ENTER))

    def send(self, action, hidden, fields):
        form = form_with(self.driver, action, hidden)
        for name, value in fields.items():
            field = form.find_element(By.NAME, name)
            if self.driver.switch_to.active_element != field:
                self.reach(field)
            if field.tag_name == "select":
                self.press(value)
                assert field.get_attribute("value") == value
            else:
                self.press(Keys.CONTROL, "a", Keys.NULL, value)
        self.reach(button_of(form, hidden))
        leave(self.driver, lambda: self.press(Keys.SPACE))


def offered(driver):
    """Return the acts that the page offers."""
    found = set()
    for form in driver.find_elements(By.TAG_NAME, "form"):
        do = form.find_elements(By.CSS_SELECTOR, "input[name=do], button[name=do]")
        action = form.get_attribute("action").partition("?")[0].rpartition("/")[2]
        found |= {(action, one.get_attribute("value")) for one in do} or {(action, "")}
    return found


def test_every_page_fits_and_axe_finds_nothing(served, driver):
    address, _, _ = served
    for page in ADDRESSES:
        driver.get(f"{address}{page}")
        require_good_page(driver, page)
    assert chromium.complaints(driver) == [], "no error, no violated policy"


def test_pages_of_errors_and_of_the_sign_in_fit_as_well(served, driver):
    address, config, _ = served
    for page in ("/none", "/device?id=none"):
        driver.get(f"{address}{page}")
        assert heading(driver) == "Not found"
        require_good_page(driver, page)
    write_users(users_file(config), {"selma": new_user("selma", "security", PASSWORD)})
    driver.get(address)
    assert heading(driver) == "Sign in"
    require_good_page(driver, "sign in")
    Mouse(driver).send("/sign-in", {}, {"name": "selma", "password": "wrong"})
    require_good_page(driver, "failed sign-in")
    refused = [one for one in chromium.complaints(driver) if "status of 40" not in one]
    assert refused == []


@pytest.mark.parametrize(
    ("means", "scripts"),
    [
        pytest.param(Mouse, False, id="mouse, without scripts"),
        pytest.param(Keyboard, True, id="keyboard"),
        pytest.param(Mouse, True, id="mouse", marks=pytest.mark.soak),
        pytest.param(Keyboard, False, id="keyboard, without scripts", marks=pytest.mark.soak),
    ],
)
def test_every_act_is_done(served, driver, means, scripts):
    address, config, _ = served
    write_users(users_file(config), {"selma": new_user("selma", "security", PASSWORD)})
    chromium.allow_scripts(driver, allowed=scripts)
    person = means(driver)
    driver.get(address)
    person.send("/sign-in", {}, {"name": "selma", "password": PASSWORD})
    assert heading(driver) == "Fleet"
    acts = {("sign-in", "")}
    for page, hidden, fields in ORDERS:
        driver.get(f"{address}{page}")
        person.send("/order", hidden, fields)
        assert heading(driver) == "Orders"
        assert fields["why"] in driver.find_element(By.TAG_NAME, "main").text
        order = next(
            one
            for _, one in waiting(config.inbox)
            if (one.do, one.why) == (hidden["do"], fields["why"])
        )
        assert order.who == "selma"
        given = {**hidden, **fields}
        assert (order.op, order.labels) == (given.get("op", ""), given.get("labels", ""))
        acts.add(("order", hidden["do"]))
    person.follow("Devices")
    person.send("/devices", {}, {"q": "meter-3"})
    rows = driver.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert ["meter-3" in one.text for one in rows] == [True]
    person.follow("meter-3")
    assert heading(driver) == "meter-3"
    person.follow("Audit log")
    person.send("/audit-log", {}, {"actor": "no person has this name"})
    assert "No record." in driver.find_element(By.TAG_NAME, "main").text
    acts |= {("devices", ""), ("audit-log", "")}
    seen = set()
    for page in ADDRESSES:
        driver.get(f"{address}{page}")
        seen |= offered(driver)
    person.send("/sign-out", {}, {})
    assert heading(driver) == "Sign in"
    acts |= {("sign-out", "")}
    assert seen | {("sign-in", "")} == acts, "an act that pages offer is done here"


def test_times_are_in_the_zone_of_the_viewer(served, driver):
    address, _, _ = served
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    driver.get(f"{address}/run?run=1")
    shown = driver.find_element(By.CSS_SELECTOR, "time")
    assert shown.get_attribute("title").endswith("UTC")
    utc = re.search(r"(\d\d):(\d\d):\d\d UTC", shown.get_attribute("title"))
    assert f":{(int(utc[2]) + 30) % 60:02}:" in shown.text, "half an hour of the zone's offset"


def test_a_page_shows_a_change_by_itself(served, driver):
    address, config, _ = served
    driver.get(address)
    figure = "a[href='/devices?state=quarantined'] b"
    assert driver.find_element(By.CSS_SELECTOR, figure).text == "1"
    with open_store(config.database) as store:
        store.devices.save(EnrolledDevice("new", (bytes(range(32)),), state="quarantined", why="x"))
    WebDriverWait(driver, chromium.PATIENCE, ignored_exceptions=[Exception]).until(
        lambda d: d.find_element(By.CSS_SELECTOR, figure).text == "2"
    )


def test_pages_and_orders_work_without_scripts(served, driver):
    """Every page has the same text without scripts, but for its times, which are in UTC."""
    address, config, _ = served
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    texts = {}
    for allowed in (True, False):
        chromium.allow_scripts(driver, allowed=allowed)
        for page in ADDRESSES:
            driver.get(f"{address}{page}")
            main = driver.find_element(By.TAG_NAME, "main")
            times = [one.text for one in main.find_elements(By.TAG_NAME, "time")]
            assert all(one.endswith("UTC") != allowed for one in times if one), page
            plain = main.text
            for one in sorted(times, key=len, reverse=True):
                plain = plain.replace(one, "") if one else plain
            texts.setdefault(page, []).append(" ".join(plain.split()))
    assert {page: found[0] == found[1] for page, found in texts.items()} == dict.fromkeys(
        texts, True
    )
    driver.get(address)
    for _, name in PAGES[1:]:
        driver.find_element(By.LINK_TEXT, name).click()
        until(driver, lambda d, name=name: heading(d) == name)
    driver.get(address)
    form = form_with(driver, "/order", {"do": "pause"})
    form.find_element(By.NAME, "why").send_keys("storm")
    form.find_element(By.TAG_NAME, "button").click()
    until(driver, lambda d: heading(d) == "Orders")
    ((_, order),) = waiting(config.inbox)
    assert (order.do, order.why) == ("pause", "storm")
