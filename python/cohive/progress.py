"""ProgressTracker: how far a run is, through signed records in the DHT."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import threading
from functools import partial
from typing import Any, Iterator, Optional

from . import _events, _msgpack, _native
from ._events import begun
from ._native import Handle, check, lib
from .crypto import RSAPrivateKey
from .dht import DHT
from .timed import DHTExpiration, get_dht_time

logger = logging.getLogger("cohive.train")


@dataclasses.dataclass(frozen=True)
class GlobalTrainingProgress:
    """A run as it was seen last."""

    global_epoch: int
    samples_accumulated: int  #: towards the epoch, by all peers
    target_batch_size: int
    num_peers: int
    num_clients: int  #: of these, peers that cannot be reached
    eta_next_epoch: DHTExpiration  #: Unix seconds
    next_fetch_time: DHTExpiration = 0.0

    @property
    def epoch(self) -> int:
        return self.global_epoch


@dataclasses.dataclass(frozen=True)
class LocalTrainingProgress:
    """What this peer has done."""

    peer_id: bytes
    epoch: int
    samples_accumulated: int
    samples_per_second: float
    time: DHTExpiration
    client_mode: bool


@dataclasses.dataclass(frozen=True)
class PerformanceEMA:
    """The measured speed of this peer."""

    samples_per_second: float


class Progress:
    """What follows from how far a run is, and this peer with it."""

    @property
    def global_progress(self) -> GlobalTrainingProgress:
        """The run as it was seen last."""
        raise NotImplementedError

    @property
    def _own_epoch(self) -> int:
        raise NotImplementedError

    @property
    def global_epoch(self) -> int:
        """The epoch of the run."""
        return max(self.global_progress.global_epoch, self._own_epoch)

    @property
    def ready_to_update_epoch(self) -> bool:
        """Whether the run has enough samples for its next epoch, or is past this peer's."""
        progress, own = self.global_progress, self._own_epoch
        enough = progress.samples_accumulated >= progress.target_batch_size or get_dht_time() >= progress.eta_next_epoch
        return progress.global_epoch > own or (progress.global_epoch == own and enough)

    @property
    def estimated_next_update_time(self) -> DHTExpiration:
        """When the next epoch begins, Unix seconds."""
        return get_dht_time() if self.ready_to_update_epoch else self.global_progress.eta_next_epoch


class ProgressTracker(Progress):
    """Reports how far this trainer is, and tells when the run enters its next epoch.

    :param dht: a DHT that was started
    :param prefix: of the run: the record in the DHT is "<prefix>_progress"
    :param target_batch_size: samples of all peers that make an epoch
    :param private_key: ignored: reports are signed with the key of the DHT
    :param sharded_above: trainers from which on cohive's report in shards instead of that record; 0: never
    :param start: begin at once
    """

    def __init__(
        self,
        dht: DHT,
        prefix: str,
        target_batch_size: int,
        *,
        client_mode: Optional[bool] = None,
        min_refresh_period: float = 0.5,
        max_refresh_period: float = 10,
        default_refresh_period: float = 3,
        expected_drift_peers: float = 3,
        expected_drift_rate: float = 0.2,
        performance_ema_alpha: float = 0.1,
        metadata_expiration: float = 60.0,
        status_loglevel: int = logging.DEBUG,
        private_key: Optional[RSAPrivateKey] = None,
        daemon: bool = True,
        sharded_above: int = 64,
        start: bool,
    ) -> None:
        self._handle: Optional[Handle] = None
        self.dht, self.prefix, self.target_batch_size = dht, prefix, target_batch_size
        self.client_mode = dht.client_mode if client_mode is None else client_mode
        self._options = {
            "run_id": prefix,
            "target_batch_size": target_batch_size,
            "client_mode": self.client_mode,
            "min_refresh_period": min_refresh_period,
            "max_refresh_period": max_refresh_period,
            "default_refresh_period": default_refresh_period,
            "expected_drift_peers": expected_drift_peers,
            "expected_drift_rate": expected_drift_rate,
            "performance_ema_alpha": performance_ema_alpha,
            "metadata_expiration": metadata_expiration,
            "sharded_above": sharded_above,
        }
        self._epoch, self._samples, self._closed = 0, 0, False
        self._last: Any = None  # what was seen last
        self._lock = threading.Lock()
        if start:
            self.start()

    def start(self) -> None:
        """Begins to report and to read."""
        if self._handle is not None:
            raise RuntimeError("this tracker was started before")
        handle = Handle()
        options = _native.options_text(self._options)
        check(lib.cohive_tracker_open(self.dht._open(), options, ctypes.byref(handle)))
        self._handle = Handle(handle.value)
        _events.close_at_exit(self)

    def _seen(self) -> Any:
        if self._handle is None:
            raise RuntimeError("this tracker was not started")
        if self._closed:
            return self._last
        progress = _native.Bytes()
        check(lib.cohive_tracker_snapshot(self._handle, ctypes.byref(progress)))
        self._last = _msgpack.loads(_native.taken(progress))
        return self._last

    @property
    def global_progress(self) -> GlobalTrainingProgress:
        """The run as it was seen last."""
        seen = self._seen()
        return GlobalTrainingProgress(
            seen["epoch"],
            int(seen["samples"]),
            self.target_batch_size,
            max(seen["peers"], 1),
            seen["clients"],
            seen["eta"],
        )

    @property
    def local_progress(self) -> LocalTrainingProgress:
        """What this peer has done in its epoch."""
        speed = self.performance_ema.samples_per_second
        peer = self.dht.peer_id.to_bytes()
        return LocalTrainingProgress(peer, self._epoch, self._samples, speed, get_dht_time(), self.client_mode)

    @property
    def performance_ema(self) -> PerformanceEMA:
        """The measured speed of this peer."""
        return PerformanceEMA(self._seen()["own_samples_per_second"])

    @property
    def _own_epoch(self) -> int:
        return self._epoch

    def report_local_progress(
        self, local_epoch: int, samples_accumulated: int, update_global_samples: bool = True
    ) -> None:
        """Tells what this peer has accumulated in its epoch."""
        with self._lock:
            self._epoch, self._samples = local_epoch, samples_accumulated
        check(lib.cohive_tracker_report(self._handle, local_epoch, float(samples_accumulated)))

    @contextlib.contextmanager
    def pause_updates(self) -> Iterator[None]:
        """The time in the context counts for nobody's speed."""
        try:
            yield
        finally:
            if self.is_alive():
                check(lib.cohive_tracker_resume(self._handle))

    def update_epoch(self, new_epoch: Optional[int] = None) -> int:
        """Enters an epoch, by default the run's or the next one; returns it."""
        with self._lock:
            self._epoch = max(self.global_epoch, self._epoch + 1) if new_epoch is None else new_epoch
            self._samples = 0
        check(lib.cohive_tracker_enter(self._handle, self._epoch))
        return self._epoch

    def is_alive(self) -> bool:
        """Whether it was started and not shut down."""
        return self._handle is not None and not self._closed

    def shutdown(self, timeout: Optional[float] = None) -> None:
        """Withdraws the report of this peer."""
        with self._lock:
            if self._handle is None or self._closed:
                return
            with contextlib.suppress(RuntimeError):  # the DHT may have been left before
                self._seen()
            self._closed = True
        try:
            begun(partial(lib.cohive_tracker_close, self._handle)).wait(5.0 if timeout is None else timeout)
        except (RuntimeError, TimeoutError):
            logger.debug("shutting a tracker down", exc_info=True)

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            lib.cohive_tracker_free(handle)

    def __reduce__(self) -> Any:
        raise TypeError("a tracker belongs to its process")
