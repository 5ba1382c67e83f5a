"""DHT: hivemind's distributed hash table, and the membership in a swarm that everything else stands on."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import math
import os
import threading
import time
from functools import partial
from typing import Any, Awaitable, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from . import _events, _msgpack, _native
from ._dht_options import library_options
from ._events import Ticket, begun
from ._native import Handle, check, lib
from .futures import Future
from .multiaddr import Multiaddr
from .node import DHTID, DHTNode
from .peer_id import PeerID
from .timed import DHTExpiration, ValueWithExpiration
from .validation import CompositeValidator, DHTRecord, RecordValidatorBase, RSASignatureValidator, flattened

logger = logging.getLogger("cohive.dht")

DHTKey = Any
DHTValue = Any
Subkey = Any

_RETURN_SOON = 1.0  # seconds that shutdown() adds to its time-out
_LOOK = 0.05  # seconds between two looks of join() at what it waits for


def _found(answer: bytes, limited: bool = False) -> List[Optional[ValueWithExpiration[Any]]]:
    """Returns the records of an answer to a search, in the order of its keys."""
    return [_converted(parts, limited) for parts in _msgpack.loads(answer, lenient=True)]


def _converted(parts: Any, limited: bool = False) -> Optional[ValueWithExpiration[Any]]:
    """A record, as the library tells of it. What strangers have written and nobody can read is left out. A search that
    was cut off has found nothing, but where the caller has limited its time, who is told so."""
    if parts is None:
        return None
    if len(parts) == 2:
        return ValueWithExpiration(parts[0], parts[1]) if _msgpack.is_readable(parts[0]) else None
    if len(parts) == 3:
        entries = {
            subkey: ValueWithExpiration(value, end)
            for subkey, value, end in parts[2]
            if _is_key(subkey) and _msgpack.is_readable(value)
        }
        return ValueWithExpiration(entries, parts[1]) if entries else None
    error = _native.error_of(parts[3], parts[4])
    if isinstance(error, _native.Unreachable) or (isinstance(error, _native.TimedOut) and not limited):
        logger.warning("a record was not found: %s", error)
        return None
    raise error


def _is_key(subkey: Any) -> bool:
    """Tells whether a dict can have it as a key."""
    try:
        hash(subkey)
    except TypeError:
        return False
    return _msgpack.is_readable(subkey)


def _stored(outcome: Optional[List[Any]], alone: bool) -> bool:
    """Whether a record was stored. ValueError for one that never could, if it is alone: of several records each has an
    outcome of its own."""
    if outcome is None:
        return True
    code, sentence = outcome
    never = code in (_native.INVALID_ARGUMENT, _native.LIMIT_EXCEEDED)
    if never and alone:
        raise _native.error_of(code, sentence)
    logger.log(logging.WARNING if never else logging.DEBUG, "not stored: %s", sentence)
    return False


class _Replica:
    """What a coroutine of run_coroutine() gets for the DHT: its own attributes, and those of the DHT."""

    def __init__(self, dht: "DHT") -> None:
        self.__dict__["_dht"] = dht

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_dht"], name)


class DHT:
    """A node of a swarm's distributed hash table, for any thread.

    ::

        first = cohive.DHT(start=True)
        second = cohive.DHT(first.get_visible_maddrs(), start=True)
        first.store("key", "value", expiration_time=cohive.get_dht_time() + 60)
        assert second.get("key").value == "value"

    Names, defaults and protocol are those of ``hivemind.DHT`` 1.1.12, and nodes of both are in one swarm. Without the
    keyword ``host_maddrs`` it is reached from this machine only.

    :param initial_peers: addresses of peers, with /p2p; none: begin a swarm
    :param start: join at once; else ``run_in_background()`` does
    :param num_workers: parallel calls of one search
    :param record_validators: see RecordValidatorBase
    :param shutdown_timeout: seconds that shutdown() may take
    :param await_ready: return when the swarm was joined
    :param kwargs: hivemind's, and: secret_file, members_file (a swarm with members),
        metrics_address ("127.0.0.1:9464"),
        wait_for_swarm (seconds to go on trying), max_upload, max_download (bytes per second), congestion_control (the
        kernel's algorithm between cohive peers), connections_per_peer (to a cohive peer, at most), bootstrap=True
        (where no initial peer answers, be there alone and go on trying), peers_from_environment=True ($INITIAL_PEERS)
    :raises ValueError: an address or option that cannot be meant
    :raises RuntimeError: nobody answers, or the address is in use
    """

    def __init__(
        self,
        initial_peers: Optional[Sequence[Union[Multiaddr, str]]] = None,
        *,
        start: bool,
        p2p: Optional[Any] = None,
        daemon: bool = True,
        num_workers: int = 4,
        record_validators: Iterable[RecordValidatorBase] = (),
        shutdown_timeout: float = 3,
        await_ready: bool = True,
        **kwargs: Any,
    ) -> None:
        self._handle: Handle = Handle()
        self._joining: Optional[Ticket] = None
        self._process = os.getpid()
        if initial_peers is not None and (
            isinstance(initial_peers, (str, bytes))
            or not isinstance(initial_peers, Sequence)
            or not all(isinstance(item, (Multiaddr, str)) for item in initial_peers)
        ):
            raise TypeError("initial_peers should be of type Optional[Sequence[Union[Multiaddr, str]]]")
        if p2p is not None:
            raise ValueError("p2p: cohive has no daemon to share; give its options to DHT()")
        self.initial_peers, self.kwargs, self.num_workers = initial_peers, kwargs, num_workers
        self.daemon, self.shutdown_timeout = daemon, shutdown_timeout
        self._options = library_options(initial_peers, num_workers, kwargs)
        self._record_validator = CompositeValidator(flattened(record_validators))
        for validator in self._record_validator._validators:
            self._refuse_signers(validator)
        self._custom: Optional[Handle] = None
        self._check_tag: Optional[int] = None
        self._ready: Optional[Future] = None
        self._status: Dict[str, Any] = {}
        self._closed: Optional[Ticket] = None
        self._left = threading.Event()  # set when it begins to close
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._replica = _Replica(self)
        self._lock = threading.Lock()
        if start:
            self.run_in_background(await_ready=await_ready)

    # ---- Beginning and end

    def run_in_background(self, await_ready: bool = True, timeout: Optional[float] = None) -> None:
        """Joins the swarm; waits for that, `timeout` seconds at most, if `await_ready`."""
        if self._joining is not None:
            raise RuntimeError("this DHT was started before")
        validators = [one for one in self._record_validator._validators if isinstance(one, RSASignatureValidator)]
        options = dict(self._options, check_owners=bool(validators))
        handles = [one._private_key._handle.value for one in validators]
        if any(not isinstance(one, RSASignatureValidator) for one in self._record_validator._validators):
            handles.append(self._custom_validator().value)
        _events.hub()
        joining = Handle()
        given = _native.handle_array(handles)
        text = _native.options_text(options)
        check(lib.cohive_swarm_open(text, given, len(handles), ctypes.byref(self._handle), ctypes.byref(joining)))
        self._joining = Ticket(Handle(joining.value))
        self._ready = self._joining.future(self._joined, self._join)
        _events.close_at_exit(self)
        if await_ready:
            try:
                self.wait_until_ready(timeout)
            except Exception:
                self.shutdown()
                raise
            except BaseException:  # Ctrl+C: what is left ends in the background
                self._begin_closing()
                raise

    start = run_in_background

    def _joined(self, status: bytes) -> None:
        self._status = _msgpack.loads(status)

    def wait_until_ready(self, timeout: Optional[float] = None) -> None:
        """Waits until the swarm was joined; raises what kept it from that, or TimeoutError."""
        if self._joining is None:
            raise RuntimeError("this DHT was not started: call run_in_background()")
        self._joined(self._join(lambda joining: joining.wait(timeout)))

    def _join(self, take: Callable[[Ticket], bytes]) -> bytes:
        assert self._joining is not None
        try:
            return take(self._joining)
        except _native.Unreachable as error:
            told = _native.Unreachable(f"Failed to connect to bootstrap peers: {error}")
            told.code = error.code
            raise told from None

    def _ready_future(self) -> Future:
        assert self._ready is not None
        return self._ready

    def _open(self) -> Handle:
        """The handle of a swarm that was joined."""
        if not self._status:
            self.wait_until_ready()
        return self._handle

    def is_alive(self) -> bool:
        """Whether it was started, and neither failed nor was shut down."""
        if self._joining is None or self._closed is not None:
            return False
        return not (
            self._ready is not None and self._ready.done() and (self._ready.cancelled() or self._ready.exception())
        )

    def shutdown(self) -> None:
        """Leaves the swarm; `shutdown_timeout` seconds at most, after which it goes on in the background."""
        closing = self._begin_closing() or self._closed
        if closing is None:
            return
        self._end_loop()
        try:
            closing.wait(self.shutdown_timeout + _RETURN_SOON)
        except TimeoutError:
            logger.warning("the DHT is not shut down after %s s: going on without waiting", self.shutdown_timeout)
        except RuntimeError:
            logger.debug("shutting down", exc_info=True)

    def _begin_closing(self) -> Optional[Ticket]:
        with self._lock:
            if not self._handle or self._closed is not None:
                return None
            if self._joining is not None and not self._status:
                self._joining.cancel()
            try:
                self._closed = begun(partial(lib.cohive_swarm_close, self._handle))
            except RuntimeError:  # of another process
                return None
            self._left.set()
        if self._check_tag is not None:
            _events.hub().drop_check(self._check_tag)
        return self._closed

    async def _closing(self) -> None:
        closing = self._begin_closing()
        if closing is not None:
            await closing.future(lambda _: None)
            self._end_loop()  # which may be the one that this runs on

    terminate = shutdown

    def join(self, timeout: Optional[float] = None) -> None:
        """Waits until it is shut down by another thread, or has failed; `timeout` seconds at most. Ctrl+C ends the
        wait. See is_alive() for what has come of it."""
        limit = math.inf if timeout is None else time.monotonic() + timeout
        while self.is_alive() and os.getpid() == self._process and time.monotonic() < limit:
            self._left.wait(_LOOK)
        if self._closed is not None:
            with contextlib.suppress(RuntimeError):  # not closed in time, or not in order
                self._closed.wait(None if timeout is None else max(0.0, limit - time.monotonic()))

    def __enter__(self) -> "DHT":
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), Handle()
        if handle:
            lib.cohive_swarm_free(handle)
        loop = getattr(self, "_loop", None)
        if loop is not None and self._process == os.getpid():  # another process has no thread that runs it
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(loop.stop)
        custom = getattr(self, "_custom", None)
        if custom:
            lib.cohive_validator_free(custom)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a cohive.DHT belongs to its process: make one in the other process, with get_visible_maddrs() of this one"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else str(self._status["peer_id"]) if self._status else "not joined"
        return f"<cohive.DHT {state}>"

    # ---- Records

    def get(self, key: DHTKey, latest: bool = False, return_future: bool = False, **kwargs: Any) -> Any:
        """Finds the record of a key.

        :param latest: finish the search and take the newest record; else the first one that is found
        :param return_future: return a Future at once
        :param kwargs: ``timeout``, seconds in all; ``sufficient_expiration_time``, by which hivemind asks for the
            newest record, does so
        :returns: ValueWithExpiration, or None where nothing was found, as where no peer answers; of a key with subkeys
            the value is a dict of ValueWithExpiration
        :raises TimedOut: it was not done within ``timeout``
        """
        ticket = self._begin_get([key], latest, **kwargs)
        limited = kwargs.get("timeout") is not None
        if return_future:
            return ticket.future(lambda answer: _found(answer, limited)[0])
        return _found(ticket.wait(), limited)[0]

    def _begin_get(self, keys: List[DHTKey], latest: bool, timeout: Optional[float] = None, **unknown: Any) -> Ticket:
        handle, packed = self._open(), _msgpack.dumps(keys)
        # A search that ends early knows nothing of the times that other nodes have.
        latest = bool(latest or unknown.get("sufficient_expiration_time"))
        options = self._call_options(timeout, unknown, latest=latest)
        return begun(partial(lib.cohive_dht_get, handle, _native.data(packed), len(packed), options))

    def _get_many(self, keys: List[DHTKey], latest: bool, **kwargs: Any) -> Future:
        ticket = self._begin_get(keys, latest, **kwargs)
        limited = kwargs.get("timeout") is not None
        return ticket.future(lambda answer: dict(zip(keys, _found(answer, limited))))

    def store(
        self,
        key: DHTKey,
        value: DHTValue,
        expiration_time: DHTExpiration,
        subkey: Optional[Subkey] = None,
        return_future: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Stores a record at the nodes nearest to its key.

        :param key: text, bytes, or anything that msgpack knows, as are subkey and value
        :param expiration_time: Unix seconds (get_dht_time()), in the future and finite
        :param subkey: store it under this part of the key's dictionary
        :param kwargs: ``timeout``, seconds in all
        :returns: whether it was stored: not where a newer one is held, a validator refuses it, or nobody answers
        :raises TypeError, ValueError: a value that msgpack does not know or that is too large, a time in the past
        """
        ticket = self._begin_store([(key, value, expiration_time, subkey)], **kwargs)
        if return_future:
            return ticket.future(lambda stored: _stored(_msgpack.loads(stored)[0], alone=True))
        return _stored(_msgpack.loads(ticket.wait())[0], alone=True)

    def _begin_store(
        self, records: List[Tuple[Any, Any, float, Any]], timeout: Optional[float] = None, **unknown: Any
    ) -> Ticket:
        packed = []
        for key, value, expiration, subkey in records:
            if key is None:
                raise TypeError("a key is a text, bytes, or another value, not None")
            record = [key, value, float(expiration)]
            packed.append(record if subkey is None else record + [subkey])
        handle, data = self._open(), _msgpack.dumps(packed)
        options = self._call_options(timeout, unknown)
        return begun(partial(lib.cohive_dht_store, handle, _native.data(data), len(data), options))

    def _store_many(self, records: List[Tuple[Any, Any, float, Any]], **kwargs: Any) -> Future:
        ticket = self._begin_store(records, **kwargs)
        return ticket.future(lambda stored: [_stored(one, alone=False) for one in _msgpack.loads(stored)])

    @staticmethod
    def _call_options(timeout: Optional[float], unknown: Dict[str, Any], **options: Any) -> bytes:
        # hivemind's keywords of a single search, or of a store: it has no use for them here.
        idle = {
            "num_workers",
            "beam_size",
            "sufficient_expiration_time",
            "return_futures",
            "cache_nearest",
            "exclude_self",
            "await_all_replicas",
        }
        for name in unknown:
            if name not in idle:
                raise TypeError(f"unexpected keyword argument {name!r}")
        if timeout is not None:
            options["timeout"] = timeout
        return _native.options_text(options, endless=("timeout",))

    # ---- Validators

    @staticmethod
    def _refuse_signers(validator: RecordValidatorBase) -> None:
        kind = type(validator)
        if isinstance(validator, RSASignatureValidator):
            return
        if (
            kind.sign_value is not RecordValidatorBase.sign_value
            or kind.strip_value is not RecordValidatorBase.strip_value
        ):
            raise TypeError(f"{kind.__name__} signs values: a cohive.DHT has RSASignatureValidator for that alone")

    def _custom_validator(self) -> Handle:
        """The validator that asks those written in Python."""
        if self._custom is None:
            self._check_tag = _events.hub().add_check(self._check)
            custom = Handle()
            check(lib.cohive_validator_custom(self._check_tag, 0, 2.0, ctypes.byref(custom)))
            self._custom = custom
        return self._custom

    def _check(self, key: bytes, subkey: Optional[bytes], value: bytes, expiration: float) -> bool:
        record = DHTRecord(key, b"\xc0" if subkey is None else subkey, value, expiration)
        custom = [one for one in self._record_validator._validators if not isinstance(one, RSASignatureValidator)]
        return all(one.validate(record) for one in custom)

    def add_validators(self, record_validators: Iterable[RecordValidatorBase]) -> None:
        """Adds validators, which apply to records from now on."""
        if not self._status and (self._ready is None or not self._ready.done()):
            raise RuntimeError(
                "Can't append new validators before the DHT process has started. "
                "Consider adding them to the initial list via DHT.__init__(record_validators=...)"
            )
        added = list(flattened(record_validators))
        for validator in added:
            self._refuse_signers(validator)
        before = list(self._record_validator._validators)
        self._record_validator.extend(added)
        for validator in self._record_validator._validators:
            if isinstance(validator, RSASignatureValidator) and validator not in before:
                check(lib.cohive_dht_add_validator(self._open(), validator._private_key._handle))
        if self._custom is None and any(
            not isinstance(one, RSASignatureValidator) for one in self._record_validator._validators
        ):
            check(lib.cohive_dht_add_validator(self._open(), self._custom_validator()))

    def _record_validator_of_node(self) -> RecordValidatorBase:
        validators = self._record_validator._validators
        return validators[0] if len(validators) == 1 else self._record_validator

    # ---- The node

    def _current(self) -> Ticket:
        return begun(partial(lib.cohive_swarm_status, self._open()))

    @property
    def peer_id(self) -> PeerID:
        """Who this peer is."""
        self._open()
        return PeerID.from_base58(self._status["peer_id"])

    @property
    def client_mode(self) -> bool:
        """Whether it only dials out and serves nothing."""
        self._open()
        return bool(self._status["client_mode"])

    def get_visible_maddrs(self, latest: bool = False) -> List[Multiaddr]:
        """The addresses by which other peers join, with /p2p. In a child of fork() they are those that were known at
        first: a DHT of the child's own joins by them."""
        status = self._status
        if not status or os.getpid() == self._process:
            status = _msgpack.loads(self._current().wait())
        return [Multiaddr(text) for text in status["visible_maddrs"]]

    def _visible_maddrs(self) -> Future:
        return self._current().future(
            lambda status: [Multiaddr(text) for text in _msgpack.loads(status)["visible_maddrs"]]
        )

    def stats(self) -> Dict[str, Any]:
        """What is known now: peer_id, visible_maddrs, client_mode, nodes (known to the DHT), records (held for others),
        metrics_url, page_url."""
        facts: Dict[str, Any] = _msgpack.loads(self._current().wait())
        return facts

    async def _ping(self, peer: PeerID) -> Any:
        """Where in the DHT a peer is, if it answers and serves."""
        ticket = begun(partial(lib.cohive_dht_ping, self._open(), str(peer).encode(), None))
        try:
            place = await ticket.future(_msgpack.loads)
        except _native.CohiveError as error:
            logger.debug("%s does not answer: %s", peer, error)
            return None
        return None if place is None else DHTID.from_bytes(place)

    # ---- Coroutines beside it

    def run_coroutine(self, coro: Callable[[Any, DHTNode], Awaitable[Any]], return_future: bool = False) -> Any:
        """Runs ``coro(dht, node)`` on an asyncio loop that this DHT has in a thread of its own.

        Attributes that it sets on its first argument stay there, for the next coroutine, and are not those of this DHT.
        shutdown() cancels a coroutine that goes on.
        """
        self._open()

        async def run() -> Any:
            return await coro(self._replica, DHTNode(self))

        with self._lock:
            if self._closed is not None:
                raise RuntimeError("this DHT has left its swarm: no coroutine runs beside it any more")
            task = asyncio.run_coroutine_threadsafe(run(), self._own_loop())
        if return_future:
            future = Future(task.cancel)  # type: ignore[arg-type]
            task.add_done_callback(lambda done: _copy_outcome(done, future))
            return future
        try:
            return task.result()
        except BaseException:  # also of a signal's handler, while the coroutine goes on
            task.cancel()
            raise

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """With the lock."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run_loop, args=(self._loop,), name="cohive-asyncio", daemon=True).start()
        return self._loop

    def _end_loop(self) -> None:
        """When it has begun to close: coroutines that were handed over before are on the loop when that stops."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    @staticmethod
    def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:  # other threads wait for their ends
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()


def _copy_outcome(done: Any, future: Future) -> None:
    if future.cancelled() or not future.set_running_or_notify_cancel():
        return
    if done.cancelled():
        future.set_exception(asyncio.CancelledError())
    elif done.exception() is not None:
        future.set_exception(done.exception())
    else:
        future.set_result(done.result())


def start_bootstrap(*, host_maddrs: Sequence[str] = ("/ip4/127.0.0.1/tcp/0",), **kwargs: Any) -> DHT:
    """Begins a swarm in this process, for tests and notebooks. Its ``get_visible_maddrs()`` are the initial_peers of
    the others; it must live as long as they join. For one that stays, run the program ``cohive-bootstrap``.

    :param host_maddrs: to listen on; "/ip4/0.0.0.0/tcp/31337" is reached from other machines
    """
    return DHT(start=True, host_maddrs=list(host_maddrs), bootstrap=True, **kwargs)


if __name__ == "__main__":  # python -m cohive.dht
    from ._programs import become

    become("cohive-dht")
