"""HivemindStrategy for Lightning: `from cohive.lightning import HivemindStrategy`.

With both packages of Lightning installed it is for `lightning`; see cohive.pytorch_lightning for the other one.
"""

from __future__ import annotations

from ._strategy import HiveMindScheduler, available, make_strategy

_found = available()
if not _found:
    raise ImportError("cohive.lightning needs Lightning 2.0 or newer: pip install lightning")

HivemindStrategy = make_strategy(_found[0])

__all__ = ["HiveMindScheduler", "HivemindStrategy"]
