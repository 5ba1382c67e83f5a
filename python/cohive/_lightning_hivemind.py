"""`lightning_hivemind.strategy` under as_hivemind: for the package of Lightning that the script has imported."""

from __future__ import annotations

import sys

from ._strategy import HiveMindScheduler, available, make_strategy

_imported = set(sys.modules)  # before available() imports what it looks into
_found = sorted(available(), key=lambda package: package not in _imported)
if not _found:
    raise ImportError("lightning_hivemind.strategy needs Lightning 2.0 or newer: pip install lightning")

HivemindStrategy = make_strategy(_found[0])

__all__ = ["HiveMindScheduler", "HivemindStrategy"]
