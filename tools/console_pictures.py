"""Take the pictures of the console's documentation, from a simulated fleet with an attack.

    python -m tools.console_pictures [--out docs/images/console]
    python -m tools.console_pictures --rollout      # the picture of the page Rollout alone

Twenty devices learn on a broker, and four of them send "A little is enough" under the mean. The pictures
are taken while the fleet learns, in a real browser (see ``tools/chromium.py``). The page Rollout shows
another fleet: the gate judges 200 devices whose lost days are drawn, a third of them at first, then
four fifths.
"""

from __future__ import annotations

import argparse
import base64
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.config import AggregatorConfig
from aggregator.extensions.rollouts.rollout_control import RolloutGate, day_results
from aggregator.extensions.rollouts.rollout_table import DeviceTrial, RolloutChange, RolloutTable
from aggregator.extensions.rollouts.stages import RolloutState
from aggregator.rounds.announcements import Ends
from aggregator.store.opener import open_store
from aggregator.store.store import Store
from edge_sdk.extensions.rollouts.messages import RolloutMessage
from edge_sdk.extensions.rollouts.rollout_roles import role
from edge_sdk.protocol import keys, topics
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import ROOT as ROOT_ID
from edge_sdk.protocol.envelope import digest, ref
from firmware_sim.fleet.federation import free_port
from tools import chromium
from tools.console_load import new_fleet
from tools.distributions import ROOT

DAY = 86_400  # s

OUT = ROOT / "docs" / "images" / "console"
ROUNDS, SHOWN = 40, 8  # rounds of the fleet; rounds that have closed when the pictures are taken
WIDTH, QUALITY = 1000, 70
LONGEST = 300.0  # s until the fleet has closed them
FLEET = ("fleet", "--devices", "20", "--in-process", "--byzantine", "0.2", "--attack", "alie")


def wait(what: str, done: Callable[[], object]) -> Any:  # noqa: ANN401 - whatever it waits for
    """Return the first true value of a function.

    Raises:
        SystemExit: It has none within ``LONGEST`` seconds.
    """
    ends = time.monotonic() + LONGEST
    while time.monotonic() < ends:
        found = done()
        if found:
            return found
        time.sleep(0.5)
    raise SystemExit(f"{what}: not within {LONGEST:g} s")


def is_served(base: str, path: str, text: str) -> bool:
    """Return whether a page of the console is there and contains a text."""
    try:
        with urllib.request.urlopen(f"{base}{path}", timeout=30) as page:  # noqa: S310 - our own console
            return text in page.read().decode("utf-8")
    except (urllib.error.URLError, OSError):
        return False


def configuration(folder: Path, port: int) -> Path | None:
    """Return a copy of the attacked fleet's configuration with the console's address, once it is there."""
    found = [one for one in folder.glob("*alie*/fleet/aggregator.toml") if one.stat().st_size]
    if not found or not (found[0].parent / "aggregator" / "aggregator.db").exists():
        return None
    copy = found[0].with_name("console.toml")
    text = found[0].read_text("utf-8")
    copy.write_text(f'{text}\n[console]\nlisten = "127.0.0.1:{port}"\n', "utf-8")
    return copy


def take(
    driver: Any,  # noqa: ANN401
    out: Path,
    name: str,
    *,
    scheme: str = "light",
    width: int = WIDTH,
    height: int = 0,
) -> Path:
    """Write a picture of the page in the driver; return its file."""
    chromium.set_scheme(driver, scheme)
    chromium.set_width(driver, width, height or (760 if width > 600 else 900))
    options = {"format": "webp", "quality": QUALITY}
    found = driver.execute_cdp_cmd("Page.captureScreenshot", options)
    path = out / f"{name}.webp"
    path.write_bytes(base64.b64decode(found["data"]))
    return path


def pictures(driver: Any, base: str, out: Path) -> Sequence[Path]:  # noqa: ANN401 - a selenium driver
    """Write the pictures of the key pages; return their files."""
    made = []
    driver.get(f"{base}/")
    made += [take(driver, out, "fleet"), take(driver, out, "fleet-phone", scheme="dark", width=390)]
    driver.get(f"{base}/devices")
    made.append(take(driver, out, "devices"))
    device = driver.find_element("css selector", "tbody a").get_attribute("href")
    driver.get(device)
    made.append(take(driver, out, "device"))
    driver.get(f"{base}/run?run=1")
    made.append(take(driver, out, "run", scheme="dark"))
    return made


def main(words: Sequence[str] | None = None) -> None:
    """Take the pictures into the folder of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder (docs/images/console)")
    parser.add_argument("--rollout", action="store_true", help="only the page Rollout")
    args = parser.parse_args(words)
    out = args.out
    if chromium.missing():
        raise SystemExit(chromium.missing())
    out.mkdir(parents=True, exist_ok=True)
    path = rollout_picture(out)
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
    if args.rollout:
        return
    python, running, port = (sys.executable, "-m"), [], free_port()
    base = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        program = (*python, "firmware_sim", *FLEET, "--rounds", str(ROUNDS), "--out", str(folder))
        try:
            running.append(
                subprocess.Popen([*program, "--rule", "mean"], stdout=subprocess.DEVNULL)
            )
            config = wait("the attacked fleet", lambda: configuration(folder, port))
            running.append(
                subprocess.Popen(
                    [*python, "aggregator.extensions.console", "--config", str(config)]
                )
            )
            wait(f"round {SHOWN}", lambda: is_served(base, "/run?run=1", f"round={SHOWN}"))
            with closing(_Browser(folder / "profile")) as browser:
                for path in pictures(browser.driver, base, out):
                    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
        finally:
            for one in reversed(running):
                one.terminate()
                one.wait(60)


def rollout_picture(out: Path) -> Path:
    """Let a version out in a database until harm stops it, and write the picture of its page."""
    with tempfile.TemporaryDirectory() as place:
        console = new_fleet(Path(place), devices=200)
        try:
            config = AggregatorConfig.load(console.config)
            with open_store(config.database) as store:
                let_out(store, config.fleet)
            with closing(_Browser(Path(place) / "profile")) as browser:
                browser.driver.get(f"http://127.0.0.1:{console.port}/rollout")
                return take(browser.driver, out, "rollout", height=1250)
        finally:
            console.end()


def let_out(store: Store, fleet: str, seed: int = 0) -> None:
    """Write a rollout whose members lose a third of their days, and four fifths from day 8 on."""
    rng, today = np.random.default_rng(seed), int(time.time()) // DAY
    begun = today - 10
    gate = RolloutGate()
    plan = RolloutMessage(
        1, "load-week-1", 2, b"t" * 32, 66_000, b"s" * 32, rng.bytes(16), gate.waves, gate.shadow,
        gate.days, gate.least, gate.margin, gate.bound,
    )  # fmt: skip
    of, state = ref(digest(encode(plan))), RolloutState(since=begun, why="start")
    described = {
        topics.common(fleet, plan.kind): Ends(fleet, keys.generate()).to_all(plan, ROOT_ID)
    }

    def save(after: RolloutState, who: str = "") -> None:
        change = (of, after.phase, after.stage, after.since, after.why, who)
        at = 1000 * (DAY * after.since + 9 * 3600)
        store.table(RolloutTable).change(RolloutChange(*change, at))
        store.announce(described if who else {})

    save(state, "ann")
    names = [one.id for one in store.devices.all()]
    for day in range(begun + 1, today):
        with store.transaction():
            for name in names:
                place = role(plan, state.stage, name)
                if place != "none":
                    is_lost = rng.random() < (0.33 if day < begun + 8 else 0.8)
                    result = {day: (bool(is_lost), place == "serve")}
                    store.table(RolloutTable).record(of, DeviceTrial(name, place, day, result))
        after = state.advanced(
            plan, day_results(plan, state, store.table(RolloutTable).trials(of)), day + 1
        )
        if after != state:
            save(after)
        state = after


class _Browser:
    """A browser that is closed."""

    def __init__(self, profile: Path) -> None:
        self.driver = chromium.start(profile)

    def close(self) -> None:
        self.driver.quit()


if __name__ == "__main__":
    main()
