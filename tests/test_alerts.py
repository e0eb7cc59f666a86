"""The alert rules that we ship: on metrics that there are, and loud at the right time."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aggregator.operations.operator_alerts import OperatorAlerts
from tests.all_metrics import all_metrics

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
pytest.importorskip("aggregator.metrics", exc_type=ImportError)

FILE = Path(__file__).resolve().parents[1] / "examples" / "alerts.yml"
(GROUP,) = yaml.safe_load(FILE.read_text("utf-8"))["groups"]
RULES = {rule["alert"]: rule for rule in GROUP["rules"]}
DAY = 86_400


def exported(tmp_path) -> dict[str, set[str]]:
    """Return every sample's name with its labels, as a daemon with one file that expires has it."""
    from edge_sdk.link.tls_validity import Watch, files  # noqa: PLC0415 - as above

    own = all_metrics()
    own.unanswered.labels("-").set(0)
    OperatorAlerts(watch=Watch(files("mqtts://broker", tmp_path / "ca.pem"))).measure(own)
    found: dict[str, set[str]] = {}
    for family in own.registry.collect():
        found.setdefault(family.name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_every_expression_names_an_exported_metric_and_its_labels(rule, tmp_path):
    known = exported(tmp_path)
    named = re.findall(r"(gridfed_\w+)(?:\{([^}]*)\})?", rule["expr"])
    assert named
    labels: set[str] = set()
    for name, matchers in named:
        assert name in known
        assert set(re.findall(r"(\w+)=", matchers)) <= known[name]
        labels |= known[name]
    told = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= labels


def test_every_alert_has_a_severity_and_a_summary():
    for rule in RULES.values():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].rstrip(".")[0].isprintable()
    assert len(RULES) == len(GROUP["rules"])


@pytest.fixture
def promtool():
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool (of Prometheus) is not installed")

    def run(*words, given=b""):
        words = [found, *map(str, words)]
        done = subprocess.run(words, input=given, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()

    return run


def test_promtool_accepts_the_exported_metrics(promtool):
    promtool("check", "metrics", given=all_metrics().text())


def test_promtool_accepts_the_alert_rules(promtool):
    promtool("check", "rules", FILE)


QUIET = {
    "gridfed_training": "1x600",
    "gridfed_round": "1+1x600",
    "gridfed_model_version": "0+1x600",
    'gridfed_run_training{run="b"}': "1x600",
    'gridfed_run_round{run="b"}': "1+1x600",
    'gridfed_run_version{run="b"}': "0+1x600",
    "gridfed_build_info": "1x600",
    "gridfed_broker_connected": "1x600",
    "gridfed_disk_free_bytes": f"{2**40}x600",
    'gridfed_certificate_expires_timestamp_seconds{file="a",kind="ca"}': f"{90 * DAY}x600",
    'gridfed_certificate_expires_timestamp_seconds{file="r",kind="crl"}': f"{6 * DAY}x600",
    "gridfed_config_last_reload_successful": "1x600",
    "gridfed_devices_quarantined": "0x600",
    'gridfed_unanswered_rounds{run="-"}': "1x600",
    "gridfed_root_refused_devices": "0x600",
    "gridfed_devices_flooding": "0x600",
    "gridfed_internal_errors_total": "0x600",
    "gridfed_run_halted": "0x600",
    "gridfed_rollout_harmful": "0x600",
}
LOUD = {
    "GridfedNoRoundCloses": {"gridfed_round": "7x600"},
    "GridfedModelStandsStill": {"gridfed_model_version": "7x600"},
    "GridfedRoundsUnanswered": {'gridfed_unanswered_rounds{run="-"}': "2x600"},
    "GridfedRootRefused": {"gridfed_root_refused_devices": "1x600"},
    "GridfedDown": {"gridfed_build_info": "_x600"},
    "GridfedLinkDown": {"gridfed_broker_connected": "0x600"},
    "GridfedDiskLow": {"gridfed_disk_free_bytes": f"{2**29}x600"},
    "GridfedDiskFull": {"gridfed_disk_free_bytes": f"{2**26}x600"},
    "GridfedCertificateExpires": {
        'gridfed_certificate_expires_timestamp_seconds{file="a",kind="ca"}': f"{29 * DAY}x600"
    },
    "GridfedCertificateExpiresNow": {
        'gridfed_certificate_expires_timestamp_seconds{file="a",kind="ca"}': "0x600"
    },
    "GridfedRevocationListExpires": {
        'gridfed_certificate_expires_timestamp_seconds{file="r",kind="crl"}': f"{2 * DAY}x600"
    },
    "GridfedConfigurationRefused": {"gridfed_config_last_reload_successful": "0x600"},
    "GridfedDevicesQuarantined": {"gridfed_devices_quarantined": "2x600"},
    "GridfedDeviceFloods": {"gridfed_devices_flooding": "1x600"},
    "GridfedDefect": {"gridfed_internal_errors_total": "0+1x600"},
    "GridfedRunHalted": {"gridfed_run_halted": "1x600"},
    "GridfedRolloutStopped": {"gridfed_rollout_harmful": "1x600"},
}


LOUD_TOO = (
    ("GridfedNoRoundCloses", {'gridfed_run_round{run="b"}': "7x600"}),
    ("GridfedModelStandsStill", {"gridfed_model_version": "0x600"}),
    ("GridfedModelStandsStill", {'gridfed_run_version{run="b"}': "0x600"}),
)
"""The same alerts for a model that has never moved, and for the second of two runs."""


def rehearsal(changes, loud, states="firing|pending"):
    """A unit test of promtool: series a minute apart from 1970 on, and what fires after 9 h."""
    series = [{"series": name, "values": told} for name, told in {**QUIET, **changes}.items()]
    fires = f'count by (alertname) (ALERTS{{alertname="{loud}",alertstate="firing"}}) > bool 0'
    sample = {"labels": f'{{alertname="{loud}"}}', "value": 1}
    anything = f'count(ALERTS{{alertstate=~"{states}"}})'
    wanted = [{"expr": fires, "eval_time": "9h", "exp_samples": [sample]}]
    silent = [{"expr": anything, "eval_time": "9h", "exp_samples": []}]
    one = {"interval": "1m", "input_series": series}
    return one | {"promql_expr_test": wanted if loud else silent}


@pytest.mark.slow
def test_each_alert_fires_on_its_fault_and_none_for_a_healthy_fleet(promtool, tmp_path):
    assert set(LOUD) == set(RULES)
    cases = [*LOUD.items(), *LOUD_TOO]
    tests = [rehearsal({}, ""), *(rehearsal(changes, loud) for loud, changes in cases)]
    document = {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}
    path = tmp_path / "rehearsal.yml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    promtool("test", "rules", path)


def test_a_paused_fleet_and_one_whose_nightly_round_has_just_begun_raise_no_alert(
    promtool, tmp_path
):
    still = LOUD["GridfedNoRoundCloses"] | LOUD["GridfedModelStandsStill"]
    nightly = {"gridfed_training": "0x520 1x80", "gridfed_round": "7x520 8x80"}
    tests = [
        rehearsal({"gridfed_training": "0x600"} | still, ""),
        rehearsal(still | nightly, "", "firing"),
    ]
    document = {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}
    path = tmp_path / "rehearsal.yml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    promtool("test", "rules", path)
