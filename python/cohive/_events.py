"""What the library tells this process: ends of tickets, lines of the log, questions of validators.

One thread, `cohive-events`, waits for them without Python's global lock. Validators of users run on another one.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import ctypes
import functools
import itertools
import json
import logging
import math
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _msgpack, _native
from ._native import Handle, check, lib
from .futures import Future, seconds, settle

_LEVELS = (5, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_NAMES = (
    (5, "trace"),
    (logging.DEBUG, "debug"),
    (logging.INFO, "info"),
    (logging.WARNING, "warn"),
    (logging.ERROR, "error"),
)
#: of all levels that the environment may set
LEVELS = {**{name: level for level, name in _NAMES}, "off": logging.CRITICAL + 1}
_LOOK = 1000  # milliseconds between two looks at the level that Python's loggers have
_POLL = 50  # milliseconds between two looks for a signal

#: (key id, subkey or None, value, expiration) -> whether the record may be held
Check = Callable[[bytes, Optional[bytes], bytes, float], bool]


def _given_level() -> str:
    """The levels that the environment sets, such as "info" or "info,dht=off"."""
    return as_level(os.environ.get("COHIVE_LOG_LEVEL") or os.environ.get("HIVEMIND_LOGLEVEL") or "")


def as_level(given: str) -> str:
    """Levels by their names here, of which Python has others."""
    return given.lower().replace("warning", "warn").replace("critical", "error")


def _level() -> str:
    """The least level that the library has to tell of."""
    wanted = logging.getLogger("cohive").getEffectiveLevel()
    return _given_level() or next((name for level, name in _NAMES if wanted <= level), "error")


class _Fallback(logging.StreamHandler):  # type: ignore[type-arg]
    """Shows lines on stderr as long as the program has no handlers."""

    def filter(self, record: logging.LogRecord) -> Any:
        return not logging.getLogger().handlers and super().filter(record)


def _set_loggers(given: str) -> None:
    """Python's loggers let the levels that the environment sets through, unless the program has set levels of them."""
    for part in given.split(","):
        module, _, level = part.strip().rpartition("=")
        logger = logging.getLogger(f"cohive.{module}" if module else "cohive")
        if logger.level == logging.NOTSET and level in LEVELS:
            logger.setLevel(LEVELS[level])
    logger = logging.getLogger("cohive")
    if not logger.hasHandlers():
        handler = _Fallback()
        handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s] [%(name)s] %(message)s"))
        logger.addHandler(handler)


class Worker:
    """Threads that work beside the events' one. They may be given work while the interpreter ends, when no executor of
    concurrent.futures takes any. They are those of one process: a child of fork() has none of them."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name, self._most, self._process = name, threads, os.getpid()
        self._threads: List[threading.Thread] = []
        self._work: "queue.SimpleQueue[Optional[Tuple[Callable[..., Any], Tuple[Any, ...]]]]" = queue.SimpleQueue()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Has `work(*arguments)` called; what it raises is logged. RuntimeError in a child of fork()."""
        if os.getpid() != self._process:
            raise RuntimeError("this object belongs to the process that has made it")
        self._work.put((work, arguments))
        if len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=self._run, name=self._name, daemon=True))
            self._threads[-1].start()

    def end(self) -> None:
        """Ends the threads after the work that waits."""
        for _ in self._threads:
            self._work.put(None)

    def join(self, timeout: float) -> None:
        """Waits for threads that end, so many seconds; not for the one that it is called on."""
        limit = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(seconds(max(0.0, limit - time.monotonic())))

    def _run(self) -> None:
        while True:
            item = self._work.get()
            if item is None:
                return
            try:
                item[0](*item[1])
            except Exception:
                logging.getLogger("cohive").exception("work in the background failed")
            del item


class Executor:
    """A Worker that gives futures. Python waits for the threads of an executor of concurrent.futures before _at_exit()
    ends what they may wait for."""

    def __init__(self, threads: int, name: str) -> None:
        self._worker = Worker(name, threads)
        self._ended = False

    def submit(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> "concurrent.futures.Future[Any]":
        """Has `work(*arguments, **named)` called."""
        if self._ended:
            raise RuntimeError("this averager was shut down")
        future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        self._worker.submit(settle, future, functools.partial(work, *arguments, **named))
        return future

    def shutdown(self, timeout: float) -> None:
        """Ends the threads after the work that waits; waits so many seconds for that."""
        self._ended = True
        self._worker.end()
        self._worker.join(timeout)

    def __del__(self) -> None:
        self._worker.end()


class Hub:
    """The thread that waits for events; one for each process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._tags = itertools.count(1)
        self._done: Dict[int, Callable[[], Any]] = {}
        self._checks: Dict[int, weakref.WeakMethod[Check]] = {}
        self._states: Dict[int, weakref.WeakMethod[Callable[[int], None]]] = {}
        self._teller = Worker("cohive-states", 4)
        self._judge = Worker("cohive-validators")
        self._ending = False
        self._level = ""
        self._follow_level()
        self._thread = threading.Thread(target=self._run, name="cohive-events", daemon=True)
        self._thread.start()

    def when_done(self, ticket: "Ticket", work: Callable[[], Any]) -> None:
        """Calls `work()` on the events' thread when the ticket has ended. It must not wait."""
        tag = next(self._tags)
        self._done[tag] = work
        check(lib.cohive_ticket_notify(ticket.handle, tag))

    def add_check(self, work: Check) -> int:
        """Returns the tag under which validators ask a method, whose object is not kept."""
        tag = next(self._tags)
        self._checks[tag] = weakref.WeakMethod(work, lambda _: self.drop_check(tag))
        return tag

    def drop_check(self, tag: int) -> None:
        self._checks.pop(tag, None)

    def add_state(self, work: Callable[[int], None]) -> int:
        """Returns the tag under which states are asked for: a method, whose object is not kept, answers."""
        tag = next(self._tags)
        self._states[tag] = weakref.WeakMethod(work, lambda _: self.drop_state(tag))
        return tag

    def drop_state(self, tag: int) -> None:
        self._states.pop(tag, None)

    def end(self) -> None:
        """Ends the thread, when nothing of the library is left."""
        self._ending = True
        lib.cohive_event_wake()
        self._thread.join(1.0)
        self._judge.end()
        self._teller.end()

    def _follow_level(self) -> None:
        level = _level()
        if level == self._level:
            return
        self._level = level
        if lib.cohive_log_configure(json.dumps({"to": "events", "level": level}).encode()) != _native.OK:
            given, self._level = level, "info"
            check(lib.cohive_log_configure(b'{"to": "events"}'))
            logging.getLogger("cohive").warning("%r is no level of the log: using info", given)
        elif level == _given_level():
            _set_loggers(level)

    def _run(self) -> None:
        event = _native.Event()
        while not self._ending:
            if lib.cohive_event_next(_LOOK, ctypes.byref(event)) != _native.OK:
                self._follow_level()
                continue
            try:
                self._take(event)
            except Exception:
                logging.getLogger("cohive").exception("a callback of cohive failed")

    def _take(self, event: _native.Event) -> None:
        if event.kind == 1:
            work = self._done.pop(event.tag, None)
            if work is not None:
                work()
            return
        text = ctypes.string_at(event.text, event.size)
        if event.kind == 2:
            level = _LEVELS[min(max(event.level, 0), 4)]
            logger = logging.getLogger("cohive." + event.module.decode())
            if logger.isEnabledFor(level):
                logger.log(level, "%s", text.decode("utf-8", "replace"))
        elif event.kind == 4:
            method = self._states.get(int(text))
            work_of = None if method is None else method()
            if work_of is None:
                lib.cohive_state_answer(event.tag, None, 0, None, 0)
            else:
                self._teller.submit(work_of, event.tag)
        else:
            self._judge.submit(self._answer, event.tag, text)

    def _answer(self, question: int, text: bytes) -> None:
        accepted = False
        try:
            tag, *record = _msgpack.loads(text)
            method = self._checks.get(tag)
            work = None if method is None else method()
            accepted = work is not None and bool(work(*record))
        except Exception:
            logging.getLogger("cohive.dht").exception("a validator failed: the record is refused")
        lib.cohive_event_answer(question, int(accepted))


_hub: Optional[Hub] = None
_lock = threading.Lock()
_closers: "weakref.WeakSet[Any]" = weakref.WeakSet()


def hub() -> Hub:
    """The hub of this process, which is made when it is needed."""
    global _hub
    if _hub is None or _hub.process != os.getpid():
        with _lock:
            if _hub is None or _hub.process != os.getpid():
                _hub = Hub()
    return _hub


def close_at_exit(thing: Any) -> None:
    """Has `thing.shutdown()` called before the interpreter ends."""
    _closers.add(thing)


def _at_exit() -> None:
    for thing in list(_closers):
        try:
            thing.shutdown()
        except Exception:
            logging.getLogger("cohive").debug("at the end of the program", exc_info=True)
    if _hub is not None and _hub.process == os.getpid():
        _hub.end()


def _after_fork() -> None:
    global _hub, _lock
    _hub, _lock = None, threading.Lock()
    _closers.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)


class Ticket:
    """Something that the library has begun."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), Handle()
        if handle:
            lib.cohive_ticket_free(handle)

    def cancel(self) -> None:
        lib.cohive_ticket_cancel(self.handle)

    def take(self) -> bytes:
        """What it has brought; raises where it failed."""
        content, size = _native.Data(), ctypes.c_size_t()
        check(lib.cohive_ticket_wait(self.handle, 0))
        check(lib.cohive_ticket_result(self.handle, ctypes.byref(content), ctypes.byref(size)))
        return ctypes.string_at(content, size.value)

    def wait(self, timeout: Optional[float] = None) -> bytes:
        """Blocks until it has ended. Signals are handled meanwhile: a handler that raises, as that of Ctrl+C does,
        gives it up. TimeoutError after `timeout` seconds; it goes on."""
        limit = math.inf if timeout is None else time.monotonic() + timeout
        pending = True
        try:
            while pending:
                left = int(min(_POLL, max(0.0, (limit - time.monotonic()) * 1000)))
                pending = lib.cohive_ticket_wait(self.handle, left) == _native.PENDING
                if not time.monotonic() < limit:  # NaN as a limit ends it, too
                    break
        except BaseException:
            self.cancel()
            lib.cohive_ticket_wait(self.handle, 500)  # it lets go of what it holds
            raise
        if pending:
            raise _native.TimedOut("not done in time")
        return self.take()

    def future(
        self, convert: Callable[[bytes], Any], take: Optional[Callable[[Callable[["Ticket"], bytes]], bytes]] = None
    ) -> "Future":
        """A future of what it brings, which `take` may fetch with errors of its own."""
        future = Future(self.cancel)

        def made() -> Any:
            return convert(self.take() if take is None else take(Ticket.take))

        hub().when_done(self, lambda: settle(future, made))
        return future


def begun(call: Callable[[Any], int]) -> Ticket:
    """The ticket that `call(pointer)` has put there."""
    handle = Handle()
    check(call(ctypes.byref(handle)))
    return Ticket(Handle(handle.value))
