"""torch, for the modules that cannot do without."""

from __future__ import annotations

try:
    import torch as torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise  # torch is there, and lacks something
    raise ImportError('cohive needs torch >= 2.0 for this: pip install "cohive[torch]"') from None
