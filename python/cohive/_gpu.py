"""A model on a GPU: gradients add up there, and copies run beside the trainer's work. Needs torch."""

from __future__ import annotations

import contextlib
import itertools
import logging
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Tuple

from ._native import lib
from ._torch import torch
from .optim import zero_gradients

logger = logging.getLogger("cohive.train")

_ALIGNED = 64  # values: rows of a flat buffer begin at addresses that processors and copies like
_SUMMED = (torch.float32, torch.float16, torch.bfloat16)


class Link:
    """Copies between one GPU and pinned memory of the host, on a stream of its own: neither the trainer's thread nor
    its stream waits for them longer than it needs their results."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._copied = torch.cuda.Event()
        self._is_uploading = False

    @property
    def number(self) -> int:
        """Of the device."""
        return int(torch.cuda.current_device() if self._device.index is None else self._device.index)

    def stream(self) -> int:
        """That on which the calling thread queues its work, a cudaStream_t."""
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def memory(self, shapes: Sequence[Any], dtype: Any = torch.float32) -> List[Any]:
        """Tensors of the host that copies are quick from and to."""
        return _in_a_row(shapes, dtype, pinned=True)

    def download(self, copies: Iterable[Tuple[Any, Any]]) -> None:
        """Copies to the host, (to, from), what the current stream has queued so far; waits for that, and for nothing
        else of the device."""
        with self._beside():
            for to, values in copies:
                to.copy_(values, non_blocking=True)
            self._copied.record(self._stream)
        self._copied.synchronize()
        self._is_uploading = False

    def upload(self, copies: Iterable[Tuple[Any, Any]]) -> None:
        """Queues copies to the device, (to, from), after what the current stream reads there now, and before what it is
        given next. The host's memory must not change before wait()."""
        with self._beside():
            for to, values in copies:
                to.copy_(values, non_blocking=True)
            self._copied.record(self._stream)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._is_uploading = True

    def wait(self) -> None:
        """Until memory of the host that is being uploaded may change: at once, but right after an upload."""
        if self._is_uploading and not self._copied.query():
            self._copied.synchronize()
        self._is_uploading = False

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.no_grad(), torch.cuda.stream(self._stream):
            yield


def link_for(parameters: Sequence[Any]) -> Optional[Link]:
    """The link of a model on one GPU; None for any other model."""
    if not any(one.device.type == "cuda" for one in parameters):
        return None
    if len({one.device for one in parameters}) > 1:
        logger.warning("parameters on several devices are averaged in host memory, and every batch waits for copies")
        return None
    if not all(one.dtype in _SUMMED for one in parameters):
        logger.warning("parameters of float64 on a GPU are averaged in host memory, and every batch waits for copies")
        return None
    return Link(parameters[0].device)


def can_step_there(parameters: Sequence[Any], link: Optional[Link]) -> bool:
    """Whether the library averages and steps these parameters where they are."""
    return link is not None and bool(lib.cohive_gpu_count()) and all(is_row(one) for one in parameters)


def is_row(tensor: Any) -> bool:
    """Whether a tensor has float32 values in a row, wherever that is."""
    return bool(tensor.dtype == torch.float32 and tensor.layout == torch.strided and tensor.is_contiguous())


def _in_a_row(shapes: Sequence[Any], dtype: Any, pinned: bool) -> List[Any]:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    begins = [0, *itertools.accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
    try:
        row = torch.empty(begins[-1], dtype=dtype, device="cpu", pin_memory=pinned)
    except RuntimeError as error:
        logger.warning("no pinned memory of the host, so that copies take longer: %s", str(error).splitlines()[0])
        row = torch.empty(begins[-1], dtype=dtype, device="cpu")
    return [row[begin : begin + size].view(shape) for begin, size, shape in zip(begins, sizes, shapes)]


class Sums:
    """Adds up the gradients of batches where they are, as float32, weighted by samples. Nothing waits for the device
    before the sums are handed over."""

    def __init__(self, parameters: Sequence[Any], link: Link, reuse: bool) -> None:
        self._parameters, self._link, self._reuse = parameters, link, reuse
        # With buffers that are used again, gradients add up in .grad, and there are no sums beside them.
        self._sums: List[Optional[Any]] = [None] * len(parameters)
        self._host: Optional[List[Any]] = None
        self.forget()

    def forget(self) -> None:
        """Begins anew: the sums belong to parameters that are no more."""
        self._present = [False] * len(self._parameters)
        self._samples = self._first = self._batches = 0.0
        self._scale = 1.0

    def add(self, samples: float, scale: float) -> None:
        """Adds the mean gradients of a batch. :param scale: of the loss, which they have, too"""
        if self._batches == 0:
            self._first, self._scale = samples, scale
        self._samples += samples
        self._batches += 1
        if not self._reuse:
            self._add_gradients(samples / self._first * (self._scale / scale))

    def _add_gradients(self, factor: float) -> None:
        first: Tuple[List[Any], List[Any]] = ([], [])
        later: Tuple[List[Any], List[Any]] = ([], [])
        for at, parameter in enumerate(self._parameters):
            grad = parameter.grad
            if grad is None:
                continue
            to = later if self._present[at] else first
            to[0].append(self._sum(at))
            to[1].append(dense(grad))
            self._present[at] = True
        with torch.no_grad():
            if later[0]:
                torch._foreach_add_(*later, alpha=factor)
            if first[0]:
                _copy_all(*first)
                if factor != 1:
                    torch._foreach_mul_(first[0], factor)

    def _sum(self, at: int) -> Any:
        kept = self._sums[at]
        if kept is None:
            parameter = self._parameters[at]
            kept = self._sums[at] = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
        return kept

    def take(self, where_they_are: bool = False) -> Tuple[List[Optional[Any]], float, float]:
        """The sums in host memory, which stay there until the next call, or on the device, until the next batch; None
        where no batch had a gradient; of how many samples they are, and what makes them means over samples, by
        division. New sums begin."""
        sums: List[Optional[Any]] = [None] * len(self._parameters)
        if self._batches == 0:
            return sums, 0.0, 1.0
        sources = [self._source(at) for at in range(len(sums))]
        if where_they_are:
            sums = sources
        else:
            host = self.host()
            self._link.download((to, values) for to, values in zip(host, sources) if values is not None)
            sums = [None if values is None else to for to, values in zip(host, sources)]
        samples, times = self._samples, self._batches if self._reuse else self._samples / self._first
        scale = times * self._scale
        self.forget()
        if self._reuse:
            zero_gradients(self._parameters, set_to_none=False)
        return sums, samples, scale

    def _source(self, at: int) -> Optional[Any]:
        if self._reuse:
            grad = self._parameters[at].grad
            return None if grad is None else dense(grad)
        return self._sums[at] if self._present[at] else None

    def host(self) -> List[Any]:
        """Memory of the host for the gradients of all parameters."""
        if self._host is None:
            self._host = self._link.memory([one.shape for one in self._parameters])
        return self._host

    def upload(self, gradients: Sequence[Optional[Any]]) -> List[Optional[Any]]:
        """Averages of the host, on the device: in the memory of the sums, which are handed over. The current stream
        waits for them, and nothing else does."""
        staged = []
        for at, values in enumerate(gradients):
            if values is not None:
                staged.append((self._sum(at), self.host()[at].copy_(values)))
        self._link.upload(staged)
        return [None if values is None else self._sums[at] for at, values in enumerate(gradients)]


def dense(grad: Any) -> Any:
    """A gradient as a tensor that has all values."""
    grad = grad.detach()
    return grad if grad.layout == torch.strided else grad.to_dense()


def _copy_all(to: List[Any], values: List[Any]) -> None:
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(to, values)
        return
    for one, other in zip(to, values):  # torch 2.0
        one.copy_(other)
