"""GradScaler: scales the loss of a model in float16 whose gradients add up over several batches. Needs torch."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from ._torch import torch


def _is_collaborative(optimizer: Any) -> bool:
    """Whether it is an Optimizer or LocalOptimizer of cohive, or inherits from one."""
    return hasattr(optimizer, "_gradients_are_finite")


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """As torch.amp.GradScaler, for a collaborative optimizer: gradients keep the scale of the loss until the library
    takes it out of their sum, a batch whose gradients are not finite does not count, and the scale grows with epochs.

    ::

        scaler.scale(loss(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._looked: Dict[int, bool] = {}
        self._found_inf = self._epoch_ended = False
        self._told: Optional[Tuple[Any, int, float]] = None

    def get_scale(self) -> float:
        """The scale of the loss. Waits for its device only where it has changed since the last call."""
        if not self._enabled or self._scale is None:
            return float(super().get_scale())
        if self._told is None or self._told[0] is not self._scale or self._told[1] != self._scale._version:
            self._told = (self._scale, self._scale._version, float(self._scale.item()))
        return self._told[2]

    def are_grads_finite(self, optimizer: Any, use_cached: bool = False) -> bool:
        """Whether the gradients of the model hold neither NaN nor infinity."""
        if use_cached and id(optimizer) in self._looked:
            return self._looked[id(optimizer)]
        return bool(optimizer._gradients_are_finite())

    def unscale_(self, optimizer: Any) -> bool:
        """Looks whether the gradients are finite, and leaves them as they are."""
        if not _is_collaborative(optimizer):
            super().unscale_(optimizer)
            return True
        if self._enabled:
            self._looked[id(optimizer)] = self.are_grads_finite(optimizer)
        return False

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Steps; see Optimizer.step."""
        if not _is_collaborative(optimizer):
            return super().step(optimizer, *args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        return optimizer.step(*args, **{**kwargs, "grad_scaler": self})

    def update(self, new_scale: Optional[Any] = None) -> bool:
        """After each step: a smaller scale where gradients were not finite, and a larger one after enough epochs.
        Whether it has changed."""
        if not self._enabled:
            return False
        found_inf, epoch_ended = self._found_inf, self._epoch_ended
        self._found_inf = self._epoch_ended = False
        before = self.get_scale()
        if new_scale is not None:
            super().update(new_scale)
        elif found_inf:
            self._set(max(before * self._backoff_factor, torch.finfo(torch.float32).tiny), 0)
        elif epoch_ended:
            grown = self._get_growth_tracker() + 1
            if grown < self._growth_interval:
                self._set(before, grown)
            else:
                self._set(min(before * self._growth_factor, torch.finfo(torch.float32).max), 0)
        return bool(self.get_scale() != before)

    def _set(self, scale: float, growth_tracker: int) -> None:
        if self._scale is None:
            self._init_scale, self._init_growth_tracker = scale, growth_tracker
        else:
            self._scale.fill_(scale)
            self._growth_tracker.fill_(growth_tracker)

    # ---- For Optimizer.step

    def _finite_gradients_of(self, optimizer: Any) -> bool:
        known = self._looked.pop(id(optimizer), None)
        return self.are_grads_finite(optimizer) if known is None else known

    def _stepped(self, finite: bool, epoch_ended: bool) -> None:
        self._found_inf |= not finite
        self._epoch_ended |= epoch_ended
