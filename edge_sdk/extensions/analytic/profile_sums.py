"""Sum over the windows of a device: its update, and the statistics of its own part.

Functions of a bundle of profiles for some windows; ``profile_half`` adds their results up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.bundle_functions import Array, NumpyFunction
from edge_sdk.extensions.analytic.profile_form import STAGES, prior_share, stage_statistics
from edge_sdk.extensions.analytic.profile_model import ISSUES, WEEK, ProfileModel
from edge_sdk.extensions.analytic.profile_section import WIDTH
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.statistics import Statistic, gather
from edge_sdk.forecasting.calendar_features import Floats
from edge_sdk.protocol.contract.manifest import Manifest

Flags = NDArray[np.bool_]

FARTHEST = 1e4
"""Bound of a residual, in announced spreads."""


def functions_of_profiles(manifest: Manifest) -> Mapping[str, NumpyFunction]:
    """Return the functions of a bundle of profiles.

    Raises:
        ManifestError: As ``ProfileModel`` does.
    """
    model = ProfileModel(manifest)
    return {**model.functions(), **ProfileSums(model).functions()}


class ProfileSums:
    """The sums of a bundle of profiles."""

    def __init__(self, model: ProfileModel) -> None:
        self.model, self.section = model, model.section
        self._loss = QuantileLoss(floor=model.section.floor)

    def functions(self) -> Mapping[str, NumpyFunction]:
        return {
            "noise": NumpyFunction(("p", "x", "y"), ("total", "count"), self.noise),
            "statistic": NumpyFunction(
                ("p", "x", "y", "number", "weighted", "noise"),
                ("sums", "rows", "loss"),
                self.statistic,
            ),
            "normalised": NumpyFunction(("sums", "rows", "count"), ("statistic",), self.normalised),
            "share": NumpyFunction(("losses",), ("share",), self.share),
            "own_sums": NumpyFunction(
                ("p", "x", "y", "number", "own"), ("sums", "rows"), self.own_sums
            ),
            "own_errors": NumpyFunction(
                ("p", "x", "y", "number", "own"), ("residuals", "losses"), self.own_errors
            ),
        }

    def noise(self, p: Array, x: Array, y: Array) -> tuple[Array, Array]:
        """Return sum and number of the errors of the naive forecast, in levels.

        Returns:
            Each of windows that know a week, and of all, shape ``(2,)``.
        """
        totals, counts = np.zeros(2), np.zeros(2)
        for some, rows in self.model.blocks(self.model.parts(p), x):
            missed = np.abs(rows.goals(y[some]) - rows.naive)
            seen = np.isfinite(missed)
            for place, one in enumerate((seen & (rows.stages >= STAGES.index(WEEK)), seen)):
                totals[place] += missed[one].sum()
                counts[place] += one.sum()
        return totals, counts

    def statistic(
        self, p: Array, x: Array, y: Array, *, number: Array, weighted: Array, noise: Array
    ) -> tuple[Floats, Floats, Array]:
        """Return the sums of windows for each stage that a fleet learns, not divided by their rows.

        Args:
            number: Of every window; it chooses how many of the known days a stage sees.
            weighted: Whether to weigh rows by the residuals of ``coefficients``.
            noise: Mean error of the device's naive forecast, in levels.

        Returns:
            Sums as the layout of a statistic orders them, float64; rows of each stage; and the
            sum of the rows' absolute errors, in units of the noise.
        """
        v, sums = self.model.parts(p), np.zeros(self.section.statistic_size())
        counts, loss = np.zeros(len(self.section.stages)), 0.0
        for place, stage in enumerate(self.section.stages):
            hidden = self._hidden(x, number, stage)
            for some, rows in self.model.blocks(v, hidden):
                goals = np.where(rows.stages == stage, rows.goals(y[some]), np.nan)
                found = stage_statistics(
                    rows.design,
                    goals,
                    rows.stages,
                    v.coefficients if bool(weighted) else None,
                    self._loss,
                    noise=float(noise),
                )
                seen = np.isfinite(goals)
                if stage in found:
                    counts[place] += (count := float(seen.sum()))
                    self._add(sums, place, found[stage].scaled(count))
                    missed = rows.told(v.coefficients, np.zeros(WIDTH)) - rows.base
                    loss += float(np.abs(goals - missed.ravel())[seen].sum()) / float(noise)
        return sums, counts, np.asarray(loss)

    def normalised(self, sums: Array, rows: Array, count: Array) -> tuple[NDArray[np.float32]]:
        """Return sums over all windows as the statistic that is sent, every stage over its rows.

        Args:
            count: Number of windows.
        """
        found = np.array(sums, np.float64)
        for layer in self.section.statistic_layout().layers:
            part = found[layer.offset : layer.offset + layer.size].reshape(layer.shape)
            if layer.name == "count":
                part[:] = count
            else:
                part /= np.maximum(rows, 1.0).reshape(-1, *(1,) * (part.ndim - 1))
        return (found.astype(np.float32),)

    def share(self, losses: Array) -> tuple[Floats]:
        """Return the share of the model in a blend, from ``own_errors``' losses."""
        ratio = self.section.expected_ratio
        return (prior_share(losses[0], losses[1], expected=ratio),)

    def _hidden(self, x: Array, number: Array, stage: int) -> Array:
        """Return windows truncated to the number of known days of a stage."""
        if stage == len(STAGES) - 1:
            return x
        least, more = STAGES[stage], STAGES[stage + 1] - STAGES[stage]
        days = least + number // (self.model.day // ISSUES) % more
        first = self.model.lookback - days * self.model.day
        old = np.arange(self.model.lookback) < first[:, None]
        hidden = np.array(x)
        hidden[:, :, self.model.load][old] = np.nan
        return hidden

    def _add(self, sums: Floats, place: int, one: Statistic) -> None:
        """Add a statistic to an output of joined ones."""
        for layer in self.section.statistic_layout().layers:
            part = sums[layer.offset : layer.offset + layer.size].reshape(layer.shape)
            if layer.name != "count":
                part[place] += getattr(one, layer.name)[0]

    def own_sums(
        self, p: Array, x: Array, y: Array, number: Array, own: Array
    ) -> tuple[NDArray[np.float32], Floats]:
        """Return the sums from which the own part of a device is solved, for one pass of ``profile_half``.

        Args:
            number: Of every window.
            own: Own parts before the pass: learned from even weeks, odd weeks, and
                all weeks, shape ``(3, W)``.

        Returns:
            Matrix and cross product of the three statistics, joined; and rows and sum of weights of
            each, shape ``(3, 2)``.
        """
        v = self.model.parts(p)
        size = WIDTH * (WIDTH + 1) // 2 + WIDTH
        sums, rows_of = np.zeros((3, size), np.float32), np.zeros((3, 2))
        for some, rows in self.model.blocks(v, x):
            told = rows.told(v.coefficients, np.zeros(WIDTH))
            missed = rows.goals(y[some]) - (told - rows.base).ravel()
            even = np.repeat(self._is_even(number[some]), self.model.horizon)
            for k, chosen in enumerate((even, ~even, np.ones_like(even))):
                seen = chosen & np.isfinite(missed)
                design, left = rows.design[seen], missed[seen, None]
                after = left - design @ own[k].astype(np.float32)[:, None]
                weights = self._loss.weights(after, is_normalised=False)
                one = gather(design, left, weights)
                sums[k] += np.concatenate([one.gram[0], one.cross[0]])
                rows_of[k] += (len(left), float(weights.sum()))
        return sums, rows_of

    def own_errors(
        self, p: Array, x: Array, y: Array, number: Array, own: Array
    ) -> tuple[Floats, Floats]:
        """Return the cross-fitted residuals: every week is forecast with the own part of the other weeks.

        Args:
            own: As for ``own_sums``; the weeks of one half are forecast with the other's part.

        Returns:
            Residual days, shape ``(n, H)``; and the sums of the absolute errors, in levels, of the
            model and of the mean profile, shape ``(2,)``.
        """
        v, losses, residuals = self.model.parts(p), np.zeros(2), []
        for some, rows in self.model.blocks(v, x):
            truth = y[some] / rows.level[:, None]
            is_even = self._is_even(number[some])[:, None]
            told = np.where(
                is_even, rows.told(v.coefficients, own[1]), rows.told(v.coefficients, own[0])
            )
            losses += [np.nansum(np.abs(truth - one)) for one in (told, rows.plain)]
            missed = (truth - told) / self.model.spread(v, rows)
            residuals.append(np.clip(missed, -FARTHEST, FARTHEST))
        return np.concatenate(residuals), losses

    def _is_even(self, number: Array) -> Flags:
        return np.asarray(number // (WEEK * self.model.day) % 2 == 0)
