"""torch, for the modules that cannot do without."""

from __future__ import annotations

NEEDS = "cohive needs torch >= 2.3 for this: pip install torch"

try:
    import torch as torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise  # torch is there, and lacks something
    raise ImportError(NEEDS) from None
if not hasattr(torch.amp, "GradScaler"):  # which 2.3 has brought
    raise ImportError(f"{NEEDS}; here is {torch.__version__}")
