"""A fleet of the core: meters learn under a robust rule with local noise, and forecast.

``python -m tools.core_alone`` runs it where no folder of extensions is.
"""

PRIVACY = {
    "mode": "honest",
    "mechanism": {
        "name": "gaussian",
        "point": "update",
        "clip_norm": 0.1,
        "noise_multiplier": 1.0,
    },
    "budget": {"epsilon": 30.0, "delta": 1e-5},
}


def test_meters_learn_under_a_robust_rule_with_local_noise_and_forecast(world):
    run = {"rounds": 2, "rule": {"name": "trimmed_mean", "f": 1}}
    one = world(devices=3, run=run, privacy=PRIVACY)
    one.start_all()
    one.until(lambda: one.version >= 2)
    for client in one.clients.values():
        client.forecast()
        assert client.status()["spent"] > 0
