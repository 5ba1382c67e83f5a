"""The library's side of an Optimizer: its trainer, calls of it, and what it calls."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import signal
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from . import _model, _msgpack, _native
from ._native import Handle, check, lib

logger = logging.getLogger("cohive.train")

#: signals that programs have handlers of; not every system has all
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


class _OfThread(threading.local):
    raised: Optional[BaseException] = None
    call_handlers: Optional[Callable[[], None]] = None
    give_up_at = math.inf


class Run:
    """The library's side of an optimizer, and what it calls. Wrappers such as Lightning's copy all attributes of an
    optimizer: this object is one for all copies, and ends with the last."""

    def __init__(self, model: _model.Model) -> None:
        self.model = model
        self.handle: Optional[Handle] = None
        self.closed = False
        #: of a GPU, on which the trainer queues its work
        self.stream = 0
        #: of each thread: what was raised inside of a callback, what calls the handlers of signals that have come, and
        #: when a wait ends
        self.of_thread = _OfThread()
        #: threads that the library has
        self.inside: Set[int] = set()
        #: the thread that leaves the run: calls of others fail
        self.leaver: Optional[int] = None
        #: a step may have been delayed that has not come into the model
        self.may_owe_step = False
        #: what was known last
        self.status: Dict[str, Any] = {}
        #: samples per second of this peer
        self.speed = 0.0
        #: memory that the library reads until it is told of another one
        self.described: Any = None
        self.calls = _native.TrainerCalls(
            None,
            _native.STEP_CALL(_weak(self.on_step)),
            _native.LOAD_CALL(_weak(self.on_load)),
            _native.INTERRUPTED_CALL(_weak(self.on_wait)),
            _native.SUMS_CALL(_weak(self.on_sums)) if model.is_asked else _native.SUMS_CALL(),
        )

    def __del__(self) -> None:
        handle, self.handle = self.handle, None
        if handle:
            lib.cohive_trainer_free(handle)

    def shutdown(self) -> None:
        """Leaves the run, and waits for no delayed step, which nobody would see at the end of the program."""
        if self.handle is not None and not self.closed:
            self.closed = True
            check(lib.cohive_trainer_close(self.handle))

    # ---- Calls of the library

    def checked(self, function: Any, *arguments: Any) -> None:
        """Calls the library, which may call back; raises what was raised there."""
        thread, own = threading.get_ident(), self.of_thread
        own.raised = None
        with _kept_signals() as own.call_handlers:
            self.inside.add(thread)
            try:
                if self.leaver not in (None, thread):
                    raise RuntimeError("this optimizer was shut down")
                code = function(*arguments)
                if code == _native.CANCELLED:
                    self.model.note_taken_sums()
            finally:
                self.inside.discard(thread)
            raised, own.raised = own.raised, None  # before handlers, which may call the library again
        if raised is not None:
            raise raised
        check(code)

    def refuse_inside(self) -> None:
        """Raises RuntimeError where the library has this thread, and what is to be called would need it, too."""
        if threading.get_ident() in self.inside:
            raise RuntimeError(
                "this optimizer is in another call on this thread, from which this one was made: a handler of a signal "
                "raises, as by sys.exit(), and what saves or shuts down is where that arrives, as in a finally"
            )

    def refuse_now(self) -> None:
        """Raises RuntimeError where no call can be made, before anything has changed."""
        self.refuse_inside()
        if self.handle is None or self.closed:
            raise RuntimeError("this optimizer was shut down")

    def call(self, function: Any, *arguments: Any) -> None:
        """Calls a function of the trainer's handle."""
        self.refuse_now()
        self.model.wait_for_copies()
        if (stream := self.model.stream()) != self.stream:
            check(lib.cohive_trainer_stream(self.handle, stream))
            self.stream = stream
        self.checked(function, self.handle, *arguments)

    # ---- What the library calls, on the thread that has called it

    def guarded(self, work: Callable[[], bool]) -> int:
        """0 where it has worked. An exception is raised by the call that the library was in."""
        try:
            return 0 if work() else 1
        except BaseException as error:  # also KeyboardInterrupt, which a C function would swallow
            self.of_thread.raised = error
            return 1

    def on_step(self, _: Any, gradients: Any, epoch: int) -> int:
        def work() -> bool:
            self.model.step([gradients[at] for at in range(len(self.model.live))] if gradients else None)
            return True

        return self.guarded(work)

    def on_load(self, _: Any, metadata: Any, size: int, tensors: Any, count: int, epoch: int) -> int:
        def work() -> bool:
            try:
                told = _msgpack.loads(ctypes.string_at(metadata, size))
            except (ValueError, RecursionError):  # a donor may have sent anything
                told = None
            reason = self.model.load(told, [tensors[at] for at in range(count)])
            if reason:
                logger.warning("a state is not taken over: %s", reason)
            return not reason

        return self.guarded(work)

    def on_sums(self, _: Any, gradients: Any, samples: Any, scale: Any) -> int:
        def work() -> bool:
            self.model.exchange()
            if self.model.sums is not None:
                samples[0], scale[0] = self.model.take_sums(gradients)
            return True

        return self.guarded(work)

    def on_wait(self, _: Any) -> int:
        def work() -> bool:
            if self.of_thread.call_handlers is not None:
                self.of_thread.call_handlers()
            return time.monotonic() < self.of_thread.give_up_at

        return self.guarded(work)


def _weak(method: Callable[..., int]) -> Callable[..., int]:
    """Returns a function that calls the method and does not keep its object, which keeps the function: the object ends
    with its last user then, and not when Python looks for cycles."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> int:
        found = weak()
        return 1 if found is None else found(*arguments)

    return call


@contextlib.contextmanager
def unless_closed() -> Iterator[None]:
    """Goes on where the library answers that the trainer is closed."""
    try:
        yield
    except _native.CohiveError as error:
        if error.code != "closed":
            raise


@contextlib.contextmanager
def _kept_signals() -> Iterator[Callable[[], None]]:
    """Keeps signals from their handlers while the library has the main thread, and gives what calls these; the end
    does, too. Python would call them at the entry of a callback of C, where what a handler raises is lost."""
    came: List[Tuple[int, Any]] = []
    handlers: Dict[int, Callable[..., Any]] = {}

    def keep(number: int, frame: Any) -> None:
        came.append((number, frame))

    def call_handlers() -> None:
        while came:
            number, frame = came.pop(0)
            handlers[number](number, frame)

    try:
        for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, keep)
        yield call_handlers
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is keep:  # a handler may have set another one
                signal.signal(number, handler)
        call_handlers()
