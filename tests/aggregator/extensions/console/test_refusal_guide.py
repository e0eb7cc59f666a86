"""The refusals that the console explains are those of the manual."""

import re
from pathlib import Path

from aggregator.extensions.console.refusal_guide import ADVICE
from edge_sdk.errors import Reason

PAGE = Path(__file__).resolve().parents[4] / "docs" / "operating.md"
ROW = re.compile(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \| (?:yes|no) \| (.*) \| (.*) \|$", re.MULTILINE)


def plain(text):
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")


def test_every_reason_has_advice():
    assert set(ADVICE) == set(Reason) - {Reason.ACCEPTED}


def test_advice_is_that_of_the_page():
    listed = set()
    for names, meaning, remedy in ROW.findall(PAGE.read_text("utf-8")):
        for name in re.findall("[A-Z_]+", names):
            listed.add(Reason[name])
            advice = ADVICE[Reason[name]]
            assert advice.meaning == plain(meaning)
            if "see a cloned device" not in plain(remedy) and remedy != "as above":
                assert advice.remedy == plain(remedy)
    assert listed == set(ADVICE)
