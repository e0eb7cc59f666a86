"""Split models: an encoder before the graph model on the server, a decoder behind it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Halves(nn.Module):
    """An ``encoder`` and a ``decoder``; the server's input between them is optional."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder  # ``x [B, lookback, channels]`` to activations ``h [B, F, L]``
        self.decoder = decoder  # ``h`` and ``z``, both ``[B, F, L]``, to a forecast

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Forecast; without the server ``z`` is zero."""
        h = self.encoder(x)
        out: Tensor = self.decoder(h, torch.zeros_like(h) if z is None else z)
        return out


class ConvEncoder(nn.Module):
    """One convolution along time, and ReLU: the encoder of PFGL.

    >>> sum(p.numel() for p in ConvEncoder(7, 64).parameters())
    1408
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Encode ``[B, L, channels]`` as ``[B, width, L]``."""
        return torch.relu(self.conv(x.transpose(1, 2)))


class LstmEncoder(nn.Module):
    """Two LSTM layers, the first half as wide as the second; the output has every step.

    >>> LstmEncoder(7, 64)(torch.zeros(5, 32, 7)).shape
    torch.Size([5, 64, 32])
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.LSTM(channels, width // 2, batch_first=True)
        self.second = nn.LSTM(width // 2, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Encode ``[B, L, channels]`` as ``[B, width, L]``."""
        steps: Tensor = self.second(self.first(x)[0])[0]
        return steps.transpose(1, 2)


class ConvDecoder(nn.Module):
    """Concatenation of z and h, one convolution along time, two dense layers: PFGL's decoder.

    >>> sum(p.numel() for p in ConvDecoder(64, 32, 64, horizon=6, levels=3).parameters())
    156946
    """

    def __init__(self, width: int, steps: int, hidden: int, horizon: int, levels: int) -> None:
        super().__init__()
        self.shape = (horizon, levels)
        self.conv = nn.Conv1d(2 * width, width, 3, padding=1)
        self.body = nn.Linear(width * steps, hidden)
        self.head = nn.Linear(hidden, horizon * levels)

    def forward(self, h: Tensor, z: Tensor) -> Tensor:
        """Forecast ``[B, horizon, levels]``."""
        mixed = torch.relu(self.conv(torch.cat([z, h], 1)))
        out: Tensor = self.head(torch.relu(self.body(mixed.flatten(1))))
        return out.view(out.shape[0], *self.shape)


class GruEncoder(nn.Module):
    """A GRU whose last state is the activation ``[B, width, 1]``: CNFGNN's encoder."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.body = nn.GRU(channels, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Encode ``[B, L, channels]`` as ``[B, width, 1]``."""
        last: Tensor = self.body(x)[0][:, -1]
        return last[:, :, None]


class GruDecoder(nn.Module):
    """A GRU that starts at h beside z and reads its own last output: CNFGNN's decoder.

    Its first input is zeros: the last reading is in the encoder's state.
    """

    def __init__(self, width: int, horizon: int, levels: int) -> None:
        super().__init__()
        self.horizon = horizon
        self.cell = nn.GRU(levels, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, levels)

    def forward(self, h: Tensor, z: Tensor) -> Tensor:
        """Forecast ``[B, horizon, levels]``."""
        state = torch.cat([h, z], 1).flatten(1)[None]
        outputs = [h.new_zeros(h.shape[0], self.head.out_features)]
        for _ in range(self.horizon):
            out, state = self.cell(outputs[-1][:, None], state)
            outputs.append(self.head(out[:, 0]))
        return torch.stack(outputs[1:], 1)


class Lstm(nn.Module):
    """Two LSTM layers and a dense one on the last step: the model of LSTM-FedAvg and LSTM-PFL.

    >>> Lstm(7, 64, horizon=6, levels=3)(torch.zeros(5, 32, 7)).shape
    torch.Size([5, 6, 3])
    """

    def __init__(self, channels: int, width: int, horizon: int, levels: int) -> None:
        super().__init__()
        self.shape = (horizon, levels)
        self.body = LstmEncoder(channels, width)
        self.head = nn.Linear(width, horizon * levels)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast ``[B, horizon, levels]`` from ``[B, lookback, channels]``."""
        out: Tensor = self.head(self.body(x)[:, :, -1])
        return out.view(out.shape[0], *self.shape)
