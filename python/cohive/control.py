"""StepControl: one step of an averager, its stages and how it is given up."""

from __future__ import annotations

import ctypes
import enum
import logging
import math
import threading
from typing import TYPE_CHECKING, Any, List, Optional

from . import _native
from ._events import Ticket
from ._native import Handle, lib
from .futures import Future
from .timed import DHTExpiration, get_dht_time

if TYPE_CHECKING:
    from .averaging import DecentralizedAverager

logger = logging.getLogger("cohive.averaging")


class AveragingMode(enum.Enum):
    """How a peer takes part."""

    NODE = 0  #: sends its tensors and reduces parts
    CLIENT = 1  #: cannot be reached: sends its tensors only
    AUX = 2  #: has no tensors that count: reduces parts


class AveragingStage(enum.Enum):
    """How far a step is."""

    IDLE = 0
    LOOKING_FOR_GROUP = 1
    AWAITING_TRIGGER = 2
    RUNNING_ALLREDUCE = 3
    FINISHED = 4


class AllreduceException(_native.CohiveError):
    """A round that failed."""


class MatchmakingException(AllreduceException):
    """No group was found."""


class StepControl(Future):
    """One step of an averager: a future of what the members gave, {PeerID: value}."""

    def __init__(
        self, scheduled_time: DHTExpiration, deadline: float, allow_retries: bool, weight: float, data_for_gather: bytes
    ) -> None:
        super().__init__(self._give_up)
        self._averager: Optional[DecentralizedAverager] = None
        self._scheduled_time, self._weight = float(scheduled_time), float(weight)
        self._deadline, self._allow_retries, self._data_for_gather = deadline, allow_retries, data_for_gather
        self._triggered = False
        self._round: Optional[Handle] = None
        self._ticket: Optional[Ticket] = None
        self._before: Optional[List[Any]] = None
        self._handed_over = False
        self._failure: Optional[BaseException] = None  # of the hand-over
        self._timer: Optional[threading.Timer] = None  # while it waits for earlier steps

    def allow_allreduce(self) -> None:
        """Hands the tensors over: they are averaged as soon as there is a group."""
        if self._triggered:
            logger.warning("Trigger is already set")
            return
        self._triggered = True
        if self._averager is not None:
            self._averager._trigger(self)

    @property
    def triggered(self) -> bool:
        return self._triggered

    @property
    def scheduled_time(self) -> DHTExpiration:
        """When the group should form, Unix seconds."""
        return self._scheduled_time

    @scheduled_time.setter
    def scheduled_time(self, scheduled_time: DHTExpiration) -> None:
        if self.began_allreduce:
            logger.warning("Changing scheduled time has no effect after all-reduce has already started")
        if scheduled_time >= self.deadline:
            logger.warning("Changing scheduled time to after deadline, averaging will likely fail due to timeout")
        self._scheduled_time = float(scheduled_time)
        if self._round is not None:
            lib.cohive_round_reschedule(self._round, self._scheduled_time)

    @property
    def weight(self) -> float:
        """Of this peer; may be changed until the trigger."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError("a weight must be finite and not negative")
        if self._triggered:
            logger.warning("Changing weights has no effect after all-reduce has already started")
        self._weight = float(weight)

    @property
    def stage(self) -> AveragingStage:
        """How far it is."""
        if self.done():
            return AveragingStage.FINISHED
        if self._round is None:
            return AveragingStage.IDLE
        number = ctypes.c_int32(4)
        if lib.cohive_round_stage(self._round, ctypes.byref(number)) != _native.OK:
            return AveragingStage.FINISHED
        if number.value == AveragingStage.AWAITING_TRIGGER.value and self._triggered:
            return AveragingStage.RUNNING_ALLREDUCE
        # Until the result has been added to the tensors it is not finished.
        return AveragingStage(min(number.value, 3))

    @property
    def began_allreduce(self) -> bool:
        return self.stage in (AveragingStage.RUNNING_ALLREDUCE, AveragingStage.FINISHED)

    @property
    def data_for_gather(self) -> bytes:
        return self._data_for_gather

    @property
    def deadline(self) -> DHTExpiration:
        return self._deadline

    def get_timeout(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - get_dht_time())

    @property
    def allow_retries(self) -> bool:
        return self._allow_retries

    def _give_up(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()
        if self._averager is not None:
            self._averager._forget(self)

    def __del__(self) -> None:
        handle, self._round = getattr(self, "_round", None), None
        if handle:
            lib.cohive_round_free(handle)
