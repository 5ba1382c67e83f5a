"""Futures of what cohive does in the background: `.result()`, `await`, `cancel()`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
from typing import Any, Callable, Generator, Optional, TypeVar

T = TypeVar("T")


class Future(concurrent.futures.Future):  # type: ignore[type-arg]
    """A future for any thread and for any asyncio loop.

    ``future.result(timeout=None)`` blocks, ``await future`` does not; ``future.cancel()`` ends what it stands for.
    """

    def __init__(self, on_cancel: Optional[Callable[[], None]] = None) -> None:
        super().__init__()
        self._on_cancel = on_cancel

    def cancel(self) -> bool:
        """Gives up. False: it has ended before."""
        cancelled = super().cancel()
        if cancelled and self._on_cancel is not None:
            self._on_cancel()
        return cancelled

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()

    def __reduce__(self) -> Any:
        raise TypeError("cohive.Future belongs to its process: send its result to another one")


def seconds(timeout: Optional[float]) -> Optional[float]:
    """Returns a timeout as Python's locks take it: they know no infinity."""
    return None if timeout == math.inf else timeout


def settle(future: "concurrent.futures.Future[Any]", make: Callable[[], Any]) -> None:
    """Ends a future by what `make` returns or raises, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(make())
    except BaseException as error:  # whoever awaits it decides
        future.set_exception(error)
