"""DecentralizedAverager: averages tensors with other peers, in rounds. Needs torch.

The library never touches a caller's tensors: values go into its own memory when a round is triggered, and what came
of them is added to the tensors when it has ended, under the lock of get_tensors(). A round that is cancelled leaves no
trace.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import ctypes
import logging
import math
import threading
import weakref
from functools import partial
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _events, _msgpack, _native
from ._events import Ticket, begun
from ._native import Handle, check, lib
from ._torch import torch
from .compression import (
    CompressionBase,
    CompressionInfo,
    NoCompression,
    _described,
    codec_of_state,
    tensor_from_bytes,
)
from .control import AllreduceException, AveragingMode, AveragingStage, MatchmakingException, StepControl
from .dht import DHT
from .futures import Future
from .peer_id import PeerID
from .timed import DHTExpiration, get_dht_time

logger = logging.getLogger("cohive.averaging")

__all__ = [
    "AllreduceException",
    "AveragingMode",
    "AveragingStage",
    "DecentralizedAverager",
    "MatchmakingException",
    "StepControl",
]

DEFAULT_PART_SIZE_BYTES = 2**19
GatheredData = Any
_NO_LIMIT = 365 * 86400.0
_LAST_WAIT = 10.0  # seconds, of somebody who gives a step up, for tensors that are being written


class DecentralizedAverager:
    """Averages tensors with the peers that have the same prefix, class and schema, of C++ and Python hivemind, too.

    Names, defaults and protocol are those of ``hivemind.DecentralizedAverager`` 1.1.12.

    :param averaged_tensors: leaf tensors of any floating-point dtype and device; values travel as float32
    :param dht: a DHT that was started
    :param start: begin at once; else run_in_background() does
    :param prefix: names the group of groups; no "."
    :param target_group_size: peers in a group at most; None: unbounded
    :param averaging_alpha: how far tensors move: 1 is to the average
    :param compression: of what travels; the same in the whole group
    :param bandwidth: of this peer's link, in any unit that the group has in common
    :param auxiliary: help others, without tensors that count
    :param client_mode: do not serve; default: as the DHT
    """

    def __init__(
        self,
        averaged_tensors: Sequence[Any],
        dht: DHT,
        *,
        start: bool,
        prefix: str,
        target_group_size: Optional[int] = None,
        min_group_size: int = 2,
        initial_group_bits: str = "",
        min_matchmaking_time: float = 5.0,
        request_timeout: float = 3.0,
        averaging_alpha: float = 1.0,
        part_size_bytes: int = DEFAULT_PART_SIZE_BYTES,
        allreduce_timeout: Optional[float] = None,
        next_chunk_timeout: Optional[float] = None,
        sender_timeout: Optional[float] = None,
        reducer_timeout: Optional[float] = None,
        compression: Optional[CompressionBase] = None,
        state_compression: Optional[CompressionBase] = None,
        tensor_infos: Optional[Sequence[CompressionInfo]] = None,
        bandwidth: Optional[float] = None,
        min_vector_size: int = 0,
        auxiliary: bool = False,
        allow_state_sharing: Optional[bool] = None,
        declare_state_period: float = 30,
        client_mode: Optional[bool] = None,
        daemon: bool = True,
        shutdown_timeout: float = 5,
    ) -> None:
        self._handle: Optional[Handle] = None
        if not isinstance(dht, DHT):
            raise TypeError(f"dht must be a cohive.DHT, not {type(dht).__name__}")
        self.dht, self.prefix, self.daemon, self.shutdown_timeout = dht, prefix, daemon, shutdown_timeout
        self.client_mode = dht.client_mode if client_mode is None else client_mode
        if self.client_mode and auxiliary:
            raise ValueError("auxiliary peers must accept incoming connections")
        if bandwidth is not None and not (bandwidth >= 0 and math.isfinite(bandwidth)):
            raise ValueError("bandwidth must be a non-negative float32")
        if set(initial_group_bits) - set("01"):
            raise ValueError("initial_group_bits is a text of 0 and 1")
        self.mode = AveragingMode.CLIENT if self.client_mode else AveragingMode.AUX if auxiliary else AveragingMode.NODE
        self._averaged_tensors = tuple(averaged_tensors)
        for tensor in self._averaged_tensors:
            if tensor.grad_fn is not None:
                raise ValueError("averaged_tensors must be either parameters or leaf tensors")
            if not tensor.is_floating_point():
                raise TypeError(f"tensors of {tensor.dtype} cannot be averaged")
        self.lock_averaged_tensors = threading.RLock()  # who holds it may hand the tensors over
        self.total_size = sum(tensor.numel() for tensor in self._averaged_tensors)
        self.bandwidth, self._averaging_alpha = bandwidth, averaging_alpha
        self.compression = compression or NoCompression()
        self.state_compression = state_compression or NoCompression()
        self.tensor_infos = tensor_infos
        self.next_chunk_timeout, self._allreduce_timeout = next_chunk_timeout, allreduce_timeout
        sender_timeout = next_chunk_timeout if sender_timeout is None else sender_timeout
        if reducer_timeout is None and sender_timeout is not None:
            reducer_timeout = 2 * sender_timeout
        self._min_matchmaking_time = min_matchmaking_time
        self._allow_state_sharing = False
        self._wanted_state_sharing = (
            self.mode == AveragingMode.NODE if allow_state_sharing is None else allow_state_sharing
        )
        if self._wanted_state_sharing and self.client_mode:
            raise ValueError("Cannot allow state sharing: averager in client mode cannot share its state")
        self._state_sharing_priority = 0.0
        self._options = {
            "prefix": prefix,
            "class_name": type(self).__name__,
            "target_group_size": target_group_size or 0,
            "min_group_size": min_group_size,
            "initial_group_bits": initial_group_bits,
            "min_matchmaking_time": min_matchmaking_time,
            "request_timeout": request_timeout,
            "part_size_bytes": part_size_bytes,
            "allreduce_timeout": allreduce_timeout,
            "sender_timeout": sender_timeout,
            "reducer_timeout": reducer_timeout,
            "bandwidth": bandwidth,
            "min_vector_size": min_vector_size,
            "declare_state_period": declare_state_period,
            "mode": {"NODE": "node", "CLIENT": "client", "AUX": "auxiliary"}[self.mode.name],
        }
        self._options.update(self._more_options())
        self._buffers: List[Any] = []
        self._tag: Optional[int] = None
        self._lock = threading.RLock()
        self._steps: Deque[StepControl] = collections.deque()
        self._worker = _events.Worker("cohive-averager")
        self._closed = False
        if start:
            self.run_in_background()

    def _more_options(self) -> Dict[str, Any]:
        return {}

    # ---- Beginning and end

    def run_in_background(self, await_ready: bool = True, timeout: Optional[float] = None) -> None:
        """Begins to average and to share."""
        if self._handle is not None:
            raise RuntimeError("this averager was started before")
        described = [
            _described(tensor, self._codec(index), False) for index, tensor in enumerate(self._averaged_tensors)
        ]
        schema = _native.tensor_array(described)
        handle, hub = Handle(), _events.hub()
        self._tag = hub.add_state(self._answer_state)
        options = _native.options_text(self._options)
        check(
            lib.cohive_averager_open(self.dht._open(), options, self._tag, schema, len(described), ctypes.byref(handle))
        )
        self._handle = Handle(handle.value)
        for index, tensor in enumerate(self._averaged_tensors):
            values, count = ctypes.POINTER(ctypes.c_float)(), ctypes.c_size_t()
            check(lib.cohive_averager_buffer(self._handle, index, ctypes.byref(values), ctypes.byref(count)))
            if count.value == 0:
                self._buffers.append(torch.empty(tensor.shape, dtype=torch.float32))
                continue
            memory = (ctypes.c_float * count.value).from_address(ctypes.addressof(values.contents))
            self._buffers.append(torch.frombuffer(memory, dtype=torch.float32).reshape(tensor.shape))
        _events.close_at_exit(self)
        self.allow_state_sharing = self._wanted_state_sharing

    start = run_in_background

    def wait_until_ready(self, timeout: Optional[float] = None) -> None:
        """It is ready when it was started."""

    def is_alive(self) -> bool:
        """Whether it was started and not shut down."""
        return self._handle is not None and not self._closed

    def shutdown(self) -> None:
        """Ends it: steps that go on fail, and members that wait for this peer are served, shutdown_timeout at most."""
        with self._lock:
            if self._handle is None or self._closed:
                return
            self._closed = True
            steps = list(self._steps)
        for step in steps:
            if step._ticket is None:
                step.cancel()
        try:
            closing = begun(partial(lib.cohive_averager_close, self._handle, float(self.shutdown_timeout)))
            closing.wait(self.shutdown_timeout + 1.0)
        except (RuntimeError, TimeoutError):
            logger.debug("shutting an averager down", exc_info=True)
        if self._tag is not None:
            _events.hub().drop_state(self._tag)
        self._worker.end()
        for step in steps:  # whose end nobody takes over any more
            step.cancel()

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            self._buffers.clear()
            lib.cohive_averager_free(handle)
        worker = getattr(self, "_worker", None)
        if worker is not None:
            worker.end()

    def __reduce__(self) -> Any:
        raise TypeError("an averager belongs to its process")

    # ---- Tensors

    @contextlib.contextmanager
    def get_tensors(self) -> Iterator[Sequence[Any]]:
        """The tensors, which no round changes while the context lasts."""
        with self.lock_averaged_tensors:
            yield self._averaged_tensors

    def _info(self, index: int) -> CompressionInfo:
        if self.tensor_infos is not None:
            return self.tensor_infos[index]
        return CompressionInfo.from_tensor(self._averaged_tensors[index], key=index)

    def _codec(self, index: int) -> str:
        return self.compression.codec(self._info(index)).name

    @property
    def peer_id(self) -> PeerID:
        """Who this peer is."""
        return self.dht.peer_id

    @property
    def schema_hash(self) -> bytes:
        """By which peers see that they average the same tensors."""
        from .node import DHTID

        fields = ("size", "dtype", "layout", "device", "requires_grad", "pin_memory", "compression")
        schema = []
        for tensor in self._averaged_tensors:
            values = (tensor.shape, tensor.dtype, tensor.layout, "cpu", tensor.requires_grad, False, 0)
            schema.append({name: str(value) for name, value in zip(fields, values)})
        return DHTID.generate(source=schema).to_bytes()

    # ---- Steps

    def step(
        self,
        gather: Optional[GatheredData] = None,
        scheduled_time: Optional[DHTExpiration] = None,
        weight: Optional[float] = None,
        timeout: Optional[float] = None,
        allow_retries: bool = True,
        require_trigger: bool = False,
        wait: bool = True,
    ) -> Any:
        """Finds a group and averages the tensors with it, in place.

        :param gather: what all members get from this one
        :param scheduled_time: when the group should form, Unix seconds; default: in min_matchmaking_time
        :param weight: of this peer, from 0 on
        :param timeout: seconds to find a group in; those that it waits for earlier steps count
        :param require_trigger: wait for StepControl.allow_allreduce() (wait=False)
        :param wait: return {PeerID: what it gave, or None where nobody can read that}; else a StepControl at once
        :raises AllreduceException: no group, or none of its members could average
        """
        if self.mode == AveragingMode.AUX and weight is not None:
            logger.warning("Averager is running in auxiliary mode, weight is unused")
        now = get_dht_time()
        deadline = now + timeout if timeout is not None else float("inf")
        scheduled_time = now + self._min_matchmaking_time if scheduled_time is None else scheduled_time
        weight = float(self.mode != AveragingMode.AUX) if weight is None else weight
        if not (isinstance(weight, (int, float)) and weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"Expected a positive int/float, got {weight!r}")
        if wait and require_trigger:
            raise ValueError("Non-asynchronous step cannot wait for trigger (use wait=False)")
        if not scheduled_time < deadline:  # NaN does not fit, either
            raise ValueError("Scheduled start time does not fit within timeout")
        if not self.is_alive():
            raise RuntimeError("this averager is not started, or was shut down")
        step = StepControl(scheduled_time, deadline, allow_retries, weight, _msgpack.dumps(gather))
        step._triggered = not require_trigger
        step._averager = self
        try:
            with self._lock:
                self._steps.append(step)
                if len(self._steps) == 1:
                    self._begin(step)
                else:
                    self._limit(step)
            self._trigger(step)
            return step.result() if wait else step
        except BaseException:
            if not step.cancel():  # what has come of the round may be on its way into the tensors
                concurrent.futures.wait([step], _LAST_WAIT)
            raise

    def _begin(self, step: StepControl) -> None:
        """Has the library look for a group. With the lock."""
        _end_timer(step)
        limit = min(step.get_timeout(), _NO_LIMIT)
        options = {"timeout": limit, "scheduled_time": step.scheduled_time, "allow_retries": step.allow_retries}
        round_, ticket = Handle(), Handle()
        data = step.data_for_gather
        try:
            check(
                lib.cohive_averager_begin(
                    self._handle,
                    _native.data(data),
                    len(data),
                    _native.options_text(options),
                    ctypes.byref(round_),
                    ctypes.byref(ticket),
                )
            )
        except Exception as error:
            self._steps.popleft()
            step.set_exception(error)
            return
        step._round, step._ticket = Handle(round_.value), Ticket(Handle(ticket.value))
        _events.hub().when_done(step._ticket, partial(self._worker.submit, self._ended, step))

    def _limit(self, step: StepControl) -> None:
        """Has a step that waits for earlier ones end at its deadline. With the lock."""
        limit = step.get_timeout()
        if limit < _NO_LIMIT:
            step._timer = threading.Timer(limit, _expire, [weakref.ref(step)])
            step._timer.daemon = True
            step._timer.start()

    def _expire(self, step: StepControl) -> None:
        """Ends a step that has not begun until its deadline. The thread of its timer."""
        with self._lock:
            if step._ticket is not None or step not in self._steps:
                return
            self._steps.remove(step)
        if not step.done() and step.set_running_or_notify_cancel():
            step.set_exception(
                AllreduceException("the averager was in an earlier step until the deadline: was that triggered?")
            )

    def _trigger(self, step: StepControl) -> None:
        """Hands the tensors over, once, if it is time for it. Without the lock: who holds the tensors may wait for it.

        If that fails, or is interrupted, the step ends with this error.
        """
        with self._lock:
            if step._round is None or step.done() or not step._triggered or step._handed_over:
                return
            step._handed_over = True
        try:
            self._hand_over(step)
        except BaseException as error:
            step._failure = error
            if step._ticket is not None:
                step._ticket.cancel()
            raise

    def _hand_over(self, step: StepControl) -> None:
        """Copies the tensors into the library's memory."""
        with self.lock_averaged_tensors, torch.no_grad():
            if step.done():  # while it waited for the tensors: the memory may be that of the next round
                return
            for buffer, tensor in zip(self._buffers, self._averaged_tensors):
                buffer.copy_(tensor)
        if self.mode != AveragingMode.AUX:
            step._before = [buffer.clone() for buffer in self._buffers]
        check(lib.cohive_round_trigger(step._round, step.weight))

    def _ended(self, step: StepControl) -> None:
        """Adds what came of a round to the tensors, and begins the next one. The worker's thread."""
        # From here on it cannot be cancelled: nobody sees tensors that were changed in part.
        applies = not step.done() and step.set_running_or_notify_cancel()
        outcome: Optional[Dict[PeerID, Any]] = None
        failure = step._failure
        try:
            assert step._ticket is not None
            told = _msgpack.loads(step._ticket.take(), lenient=True)
            outcome = {PeerID(peer): value if _msgpack.is_readable(value) else None for peer, value in told["gathered"]}
            if applies and failure is None and step._before is not None:
                self._apply(step._before)
        except _native.CohiveError as error:
            failure = failure or AllreduceException(f"Averaging step failed: {error}")
        except Exception as error:
            failure = failure or error
        step._before = None
        with self._lock:
            if step in self._steps:
                self._steps.remove(step)
            # Whoever waits for this step may begin the next one at once.
            if applies and failure is None:
                step.set_result(outcome)
            elif applies:
                step.set_exception(failure)
            following = self._begin_next()
        if following is not None:
            self._trigger(following)

    def _begin_next(self) -> Optional[StepControl]:
        while self._steps and self._steps[0]._ticket is None and not self._closed:
            if self._steps[0].cancelled():
                self._steps.popleft()
            else:
                self._begin(self._steps[0])
        return self._steps[0] if self._steps else None

    def _forget(self, step: StepControl) -> None:
        _end_timer(step)
        with self._lock:
            if step._ticket is None and step in self._steps:
                self._steps.remove(step)

    def _apply(self, before: List[Any]) -> None:
        with self.lock_averaged_tensors, torch.no_grad():
            for tensor, average, old in zip(self._averaged_tensors, self._buffers, before):
                update = average.sub(old).mul_(self._averaging_alpha)
                tensor.add_(update.to(device=tensor.device, dtype=tensor.dtype))

    # ---- Group bits

    def get_group_bits(self, wait: bool = True) -> Any:
        """The bits of this peer's group."""
        bits = _native.Bytes()
        check(lib.cohive_averager_group_bits(self._handle, ctypes.byref(bits)))
        return self._answer(_native.taken(bits).decode(), wait)

    def set_group_bits(self, group_bits: str, wait: bool = True) -> Any:
        """Sets them, between steps."""
        check(lib.cohive_averager_set_group_bits(self._handle, group_bits.encode()))
        return self._answer(None, wait)

    @staticmethod
    def _answer(value: Any, wait: bool) -> Any:
        if wait:
            return value
        future = Future()
        future.set_result(value)
        return future

    # ---- States

    @property
    def allow_state_sharing(self) -> bool:
        """Whether others may download a state from here."""
        return self._allow_state_sharing

    @allow_state_sharing.setter
    def allow_state_sharing(self, value: bool) -> None:
        if value and self.client_mode:
            raise ValueError("Cannot allow state sharing: averager in client mode cannot share its state")
        self._allow_state_sharing = bool(value)
        self._share()

    @property
    def state_sharing_priority(self) -> float:
        """Others prefer the highest."""
        return self._state_sharing_priority

    @state_sharing_priority.setter
    def state_sharing_priority(self, value: float) -> None:
        if value and self.client_mode:
            raise ValueError("State sharing priority is unused: averager in client mode cannot share its state")
        self._state_sharing_priority = float(value)
        self._share()

    def _share(self) -> None:
        if self.is_alive() and not self.client_mode:
            check(lib.cohive_averager_share(self._handle, int(self._allow_state_sharing), self._state_sharing_priority))

    def get_current_state(self) -> Tuple[Any, ...]:
        """What others download: small metadata, tensors, and their CompressionInfo or None. Meant to be overridden;
        called on a thread of its own."""
        with self.get_tensors() as tensors:
            return dict(group_key=self.get_group_bits()), tensors, self.tensor_infos

    def _answer_state(self, question: int) -> None:
        metadata, described = None, []
        try:
            if self._allow_state_sharing:
                state = tuple(self.get_current_state())
                infos = state[2] if len(state) > 2 else None
                for index, tensor in enumerate(state[1]):
                    info = CompressionInfo.from_tensor(tensor, key=index) if infos is None else infos[index]
                    described.append(_described(tensor, codec_of_state(self.state_compression, info).name))
                metadata = _msgpack.dumps(state[0])
        except Exception:
            logger.exception("the state cannot be shared")
            metadata = None
        tensors = _native.tensor_array(described)
        size = 0 if metadata is None else len(metadata)
        given = None if metadata is None else _native.data(metadata)
        answered = lib.cohive_state_answer(question, given, size, tensors, len(described))
        if answered not in (_native.OK, _native.NOT_FOUND):
            logger.warning("the state cannot be shared: %s", lib.cohive_last_error().decode("utf-8", "replace"))

    def load_state_from_peers(self, wait: bool = True, timeout: Optional[float] = None) -> Any:
        """Downloads the state of the best peer that shares one.

        :param timeout: seconds in all
        :returns: (metadata, tensors), or None where nobody shares a state
        """
        if not self.is_alive():
            raise RuntimeError("this averager is not started, or was shut down")
        options = {} if timeout is None else {"timeout": timeout}
        text = _native.options_text(options, endless=("timeout",))
        ticket = begun(partial(lib.cohive_averager_download, self._handle, text))
        if not wait:
            return ticket.future(lambda _: self._loaded(_or_none(ticket.take), ticket), lambda _: b"")
        return self._loaded(_or_none(ticket.wait), ticket)

    @staticmethod
    def _loaded(told: Optional[bytes], ticket: Ticket) -> Optional[Tuple[Any, List[Any]]]:
        if told is None:
            return None
        facts = _msgpack.loads(told, lenient=True)
        if not _msgpack.is_readable(facts["metadata"]):
            logger.warning("the metadata of a peer's state do not decode: it is not taken over")
            return None
        tensors = []
        for index in range(facts["tensors"]):
            found = _native.Tensor()
            check(lib.cohive_ticket_tensor(ticket.handle, index, ctypes.byref(found)))
            content = bytearray(ctypes.string_at(found.data, found.size) if found.size else b"")
            shape = [found.shape[axis] for axis in range(found.rank)]
            tensors.append(tensor_from_bytes(content, found.dtype.decode(), shape, bool(found.requires_grad)))
        return facts["metadata"], tensors


def _expire(weak: "weakref.ref[StepControl]") -> None:
    """The end of a timer, which keeps neither its step nor the averager."""
    step = weak()
    if step is not None and step._averager is not None:
        step._averager._expire(step)


def _end_timer(step: StepControl) -> None:
    timer, step._timer = step._timer, None
    if timer is not None:
        timer.cancel()


def _or_none(take: Callable[[], bytes]) -> Optional[bytes]:
    """What a download has brought; None where nobody had anything."""
    try:
        return take()
    except _native.CohiveError as error:
        logger.info("no state was downloaded: %s", error)
        return None
