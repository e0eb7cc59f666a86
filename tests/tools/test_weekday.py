"""The net with the day of the week: seven inputs, of which one is 1."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytestmark = pytest.mark.torch


def test_the_day_of_the_target_is_one_hot():
    from tools.experiments.weekday import WeekdayMlp  # noqa: PLC0415 - needs torch

    net, seen = WeekdayMlp(), []
    net.body.register_forward_hook(lambda _module, given, _out: seen.append(given[0]))
    x = torch.rand(7, 3, 5)
    x[:, -1, 3] = torch.arange(7) / 6
    net(x)
    torch.testing.assert_close(seen[0][:, 6:], torch.eye(7))
    torch.testing.assert_close(seen[0][:, :3], x[:, :, 4])
