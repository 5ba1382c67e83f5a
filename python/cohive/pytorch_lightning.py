"""HivemindStrategy for the package `pytorch_lightning`: `from cohive.pytorch_lightning import HivemindStrategy`."""

from __future__ import annotations

from ._strategy import HiveMindScheduler, available, make_strategy

if "pytorch_lightning" not in available():
    raise ImportError("cohive.pytorch_lightning needs pytorch-lightning 2.0 or newer: pip install pytorch-lightning")

HivemindStrategy = make_strategy("pytorch_lightning")

__all__ = ["HiveMindScheduler", "HivemindStrategy"]
