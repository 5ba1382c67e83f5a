"""torch, for the modules that cannot do without."""

from __future__ import annotations

try:
    import torch as torch
except ImportError:
    raise ImportError('cohive needs torch >= 2.0 for this: pip install "cohive[torch]"') from None
