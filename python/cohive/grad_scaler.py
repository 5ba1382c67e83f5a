"""GradScaler: scales the loss of a model in float16 whose gradients add up over several batches. Needs torch."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from ._torch import torch


def _is_collaborative(optimizer: Any) -> bool:
    """Whether it is an Optimizer or LocalOptimizer of cohive, or inherits from one."""
    return hasattr(optimizer, "_gradients_are_finite")


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """As torch.amp.GradScaler, for a collaborative optimizer: gradients keep the scale of the loss until the library
    takes it out of their sum, or unscale_() out of those of a batch; a batch whose gradients are not finite does not
    count, and the scale grows with epochs. Optimizers of torch that have the same scaler step as they do with torch's.

    ::

        scaler.scale(loss(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: of an optimizer whose gradients were looked at: the scale that these have, and whether they are finite
        self._looked: Dict[int, Tuple[float, bool]] = {}
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
            return self._looked[id(optimizer)][1]
        return bool(optimizer._gradients_are_finite())

    def unscale_(self, optimizer: Any) -> bool:
        """Takes the scale out of the gradients of a batch, as before they are clipped. With reuse_grad_buffers they are
        the sum of several batches, and stay as they are. Whether they have no scale now."""
        if not _is_collaborative(optimizer):
            super().unscale_(optimizer)
            return True
        if not self._enabled:
            return False
        if id(optimizer) in self._looked:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        scale, finite = self.get_scale(), self.are_grads_finite(optimizer)
        unscales = not getattr(optimizer, "reuse_grad_buffers", False)  # which a LocalOptimizer never does
        self._looked[id(optimizer)] = 1.0 if unscales else scale, finite
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        with torch.no_grad():
            for one in parameters if unscales else ():
                if one.grad is not None:
                    one.grad.div_(scale)
        return unscales

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
        found = [one for state in self._per_optimizer_states.values() for one in state["found_inf_per_device"].values()]
        found_inf = self._found_inf or any(bool(one) for one in found)  # the latter by optimizers of torch
        epoch_ended = self._epoch_ended
        self._found_inf = self._epoch_ended = False
        self._looked.clear()
        self._per_optimizer_states.clear()
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

    # ---- For Optimizer.step, and that of LocalOptimizer

    def _looked_at(self, optimizer: Any) -> Tuple[float, bool]:
        """The scale of its gradients, and whether they are finite."""
        known = self._looked.pop(id(optimizer), None)
        return (self.get_scale(), self.are_grads_finite(optimizer)) if known is None else known

    def _hand_over(self, optimizer: Any, to: Optional[Any]) -> None:
        """The gradients of all ranks have become those of another optimizer, on rank 0, and have kept their scale."""
        known = self._looked.pop(id(optimizer), None)
        if known is not None and to is not None:
            self._looked[id(to)] = known[0], self.are_grads_finite(to)

    def _stepped(self, finite: bool, epoch_ended: bool) -> None:
        self._found_inf |= not finite
        self._epoch_ended |= epoch_ended
