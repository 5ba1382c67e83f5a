"""Optimizer: trains one model together with peers, as a torch.optim.Optimizer. Needs torch."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import inspect
import logging
import math
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, MutableMapping, Optional, Sequence, Tuple

from . import _events, _gpu, _model, _msgpack, _native
from ._dht_options import refuse_unknown
from ._native import Handle, check, lib
from ._run import Run, unless_closed
from ._torch import torch
from .compression import CompressionBase, CompressionInfo, NoCompression, codec_of_state
from .dht import DHT
from .optim import (
    GradientAverager,
    PowerSGDGradientAverager,
    dump_training_state,
    follow_epoch,
    gradients_are_finite,
    is_epoch,
    makes_optimizer,
    number_of_samples,
    parameter_groups,
    plain,
    rewind,
    samples_of,
    steps_of,
    zero_gradients,
)
from .progress import GlobalTrainingProgress, LocalTrainingProgress, PerformanceEMA, Progress
from .timed import get_dht_time

logger = logging.getLogger("cohive.train")

#: of averager_opts and tracker_opts: what hivemind's parts take, and the library does not under these names
_NOT_OURS = ("private_key", "client_mode", "start", "daemon", "status_loglevel", "allow_state_sharing")
#: what Optimizer takes as well as averager_opts
_OF_EITHER = ("target_group_size", "bandwidth")
_MANY_EMPTY_BATCHES = 10
#: what schedules change in the groups of an optimizer
_SCHEDULED = ("lr", "initial_lr", "momentum", "betas")
_TWO_WAYS = (
    "Please initialize the optimizer in one of the following two ways:\n"
    "(A) Optimizer(..., params=params, optimizer=lambda params: create_opt(params))\n"
    "(B) Optimizer(..., optimizer=pre_initialized_optimizer)"
)


class _Group(MutableMapping[str, Any]):
    """A parameter group of the optimizer, with the model's parameters in place of their copies."""

    def __init__(self, group: Dict[str, Any], parameters: List[Any]) -> None:
        self._group, self._parameters = group, parameters

    def __getitem__(self, name: str) -> Any:
        return self._parameters if name == "params" else self._group[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "params":
            raise ValueError("the parameters of a collaborative optimizer cannot be replaced: make another one")
        self._group[name] = value

    def __delitem__(self, name: str) -> None:
        del self._group[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)

    def __len__(self) -> int:
        return len(self._group)


class _Part:
    """What hivemind's optimizer has as an averager of its own."""

    _of: "Optimizer"

    def __init__(self, of: "Optimizer") -> None:
        self.__dict__["_of"] = of

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{name} cannot be set here: the library averages by itself. Give it to Optimizer(), or in averager_opts"
        )

    def is_alive(self) -> bool:
        """Whether the optimizer was not shut down."""
        return self._of.is_alive()

    @property
    def optimizer(self) -> Any:
        return self._of.opt

    @property
    def scheduler(self) -> Any:
        return self._of.scheduler

    @property
    def local_epoch(self) -> int:
        return self._of.local_epoch

    @property
    def main_parameters(self) -> Tuple[Any, ...]:
        """Those of the model."""
        return tuple(self._of._model.parameters)

    def load_state_from_peers(self, wait: bool = True) -> bool:
        """See Optimizer.load_state_from_peers."""
        return self._of.load_state_from_peers(wait)

    def get_current_state(self) -> Tuple[Any, ...]:
        """What newcomers get: metadata, copies of the tensors in host memory, and what each is."""
        metadata, tensors, infos = self._of._current_state()
        return dict(metadata, epoch=self.local_epoch), [one.detach().cpu().clone() for one in tensors], infos


class _Tracker(Progress):
    """How far the run is, as the optimizer has seen it last; see ProgressTracker."""

    def __init__(self, of: "Optimizer") -> None:
        self._of = of

    def is_alive(self) -> bool:
        """Whether the optimizer was not shut down."""
        return self._of.is_alive()

    def pause_updates(self) -> "contextlib.AbstractContextManager[None]":
        """A context whose time counts for nobody's speed, as that of ProgressTracker: the next batch is not timed."""
        self._of._last_step = None
        return contextlib.nullcontext()

    @property
    def global_progress(self) -> GlobalTrainingProgress:
        """The run as it was seen last."""
        seen = self._of._status()
        return GlobalTrainingProgress(
            seen["global_epoch"],
            int(seen["samples"]),
            int(seen["target_batch_size"]),
            max(seen["peers"], 1),
            seen["clients"],
            seen["eta"],
        )

    @property
    def local_progress(self) -> LocalTrainingProgress:
        """What this peer has done in its epoch."""
        of, seen = self._of, self._of._status()
        peer, now = of.dht.peer_id.to_bytes(), get_dht_time()
        speed = self.performance_ema.samples_per_second
        return LocalTrainingProgress(peer, seen["epoch"], int(seen["own_samples"]), speed, now, of.client_mode)

    @property
    def performance_ema(self) -> PerformanceEMA:
        """The measured speed of this peer."""
        return PerformanceEMA(self._of._run.speed)

    @property
    def _own_epoch(self) -> int:
        return self._of.local_epoch


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Steps once for every `target_batch_size` samples that all peers of a run have trained on together.

    ::

        optimizer = cohive.Optimizer(
            dht=cohive.DHT(initial_peers=peers, start=True, host_maddrs=["/ip4/0.0.0.0/tcp/31337"]),
            run_id="my_run", target_batch_size=4096, batch_size_per_step=32,
            params=model.parameters(), optimizer=torch.optim.Adam)
        while optimizer.local_epoch < 100:
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    The model's parameters change inside of step() alone: where other code changes them, too, newcomers are given copies
    of the state, which take memory. One thread trains; calls of another one wait for it.

    :param dht: a DHT that was started
    :param run_id: one name per training run
    :param target_batch_size: samples of an epoch, of all peers together; left out with fit_my_link
    :param batch_size_per_step: samples of a batch, where step() is not told
    :param optimizer: an optimizer of torch, or what makes one of parameters
    :param params: of the model, or groups of them; for an optimizer that is to be made
    :param scheduler: of the optimizer, or what makes it: it follows the epochs of the run
    :param matchmaking_time: seconds to find a group
    :param averaging_timeout: seconds for a round, from the search for a group on
    :param allreduce_timeout: seconds for the exchange; default: averaging_timeout
    :param next_chunk_timeout: seconds between two parts of a peer; default: matchmaking_time
    :param load_state_timeout: seconds for a download of the state
    :param reuse_grad_buffers: gradients add up in the parameters' ``.grad`` until the epoch ends: no zero_grad(). One
        that is set to None or replaced is a RuntimeError, one that is zeroed in place loses its sum unseen
    :param offload_optimizer: statistics are in host memory, and so are float32 copies of parameters that are not;
        default: where `params` are given, but with local updates
    :param delay_optimizer_step: step in the background; default: delay_grad_averaging. Other optimizers than
        torch's SGD, Adam, AdamW, RMSprop and Adagrad step at once
    :param delay_grad_averaging: average gradients in the background, too; they are one epoch old then
    :param delay_state_averaging: average parameters in the background
    :param average_state_every: epochs between two rounds of the parameters
    :param use_local_updates: step in every batch, and average parameters alone
    :param outer_lr: with use_local_updates: average once an epoch how far the peers have come, and step by it with an
        outer optimizer of this learning rate, as DiLoCo does (0.7 there); the same for all peers. Extra tensors are
        shared then, and not averaged
    :param outer_momentum: of the outer optimizer, SGD; default: 0.9. 0.5 or less for epochs of 64 local steps or fewer
    :param outer_nesterov: whether its momentum is Nesterov's; default: it is
    :param outer_fragments: parts of the model, whole tensors, that are averaged in turn, one in each epoch: the link is
        used evenly. Each value is averaged once in so many epochs; the same for all peers; default: 1
    :param open_diloco: with outer_lr: average with trainers of OpenDiLoCo, by its rules; all peers set it, or none
    :param outer_codec: with outer_lr: how differences travel between peers that all ask for it: "block4", 4 bits for
        each value, or "sparse2", a sixth of a bit up and half a bit down, as SparseLoCo has it; no outer_momentum then
    :param outer_aggregation: with outer_lr: "mean"; "mean-of-senders", that of the peers that have sent a value, which
        is for sparse2 and its default; or "clipped-mean"
    :param outer_clip_factor: of the last two: how many times the median norm of a part the norm of a peer's may be
    :param fit_my_link: with outer_lr: the peers agree on epochs that are long enough for their links, and on 4 bits for
        each value where they have to, as far as target_batch_size and grad_compression are not given
    :param client_mode: this peer cannot be reached; default: that of the DHT
    :param auxiliary: help averaging without data
    :param grad_compression: of gradients on their way
    :param grad_averager_factory: GradientAverager, or PowerSGDGradientAverager, also in functools.partial
    :param state_averaging_compression: of parameters on their way
    :param load_state_compression: of the state that newcomers download; the optimizer's statistics travel as they are,
        unless a rule by role or key names them, as RoleAdaptiveCompression(optimizer=...)
    :param average_opt_statistics: names of the optimizer's tensors that are averaged with the parameters
    :param extra_tensors: averaged with them, and shared; averages of integers are rounded
    :param averager_opts: request_timeout, part_size_bytes, min_group_size, target_group_size, bandwidth,
        allow_state_sharing, ...
    :param tracker_opts: min_refresh_period, max_refresh_period, default_refresh_period, metadata_expiration, ...
    :param performance_ema_alpha: weight of the newest batch in the measured speed
    :param shutdown_timeout: seconds that shutdown() takes at most; where steps are delayed, as many for the last one
    :param verbose: internal events are logged as information
    :param full_state_every: parameters travel as 8-bit differences from their last average, and as they are in one of
        so many rounds; 0: always as they are
    :param target_group_size: larger runs divide into groups of about this size
    :param bandwidth: relative speed of this peer's line; default: all are alike
    :param verified_share: of averages of others, made again
    :param clip_grad_norm: the largest norm of the averaged gradients; with use_local_updates the caller clips, not this
    :param checkpoint_dir: a folder of this process alone, in which step() has checkpoints written in the background, as
        save_checkpoint() writes them, when an epoch has ended and the last one is old enough. It holds none before, or
        `resume` is set
    :param checkpoint_every: seconds from one checkpoint to the next; 0: none is written
    :param checkpoint_keep: checkpoints that stay in the folder, the newest ones
    :param resume: go on from the newest whole checkpoint in the folder, if there is one, as load_checkpoint() does: the
        model has its weights then
    :raises ValueError: options that contradict one another
    """

    #: for scalers of torch: the scale leaves the gradients here, with their sum
    _step_supports_amp_scaling = True

    def __init__(
        self,
        *,
        dht: DHT,
        run_id: str,
        target_batch_size: Optional[int] = None,
        batch_size_per_step: Optional[int] = None,
        optimizer: Any,
        params: Optional[Any] = None,
        scheduler: Optional[Any] = None,
        matchmaking_time: float = 15.0,
        averaging_timeout: float = 60.0,
        allreduce_timeout: Optional[float] = None,
        next_chunk_timeout: Optional[float] = None,
        load_state_timeout: float = 600.0,
        reuse_grad_buffers: bool = False,
        offload_optimizer: Optional[bool] = None,
        delay_optimizer_step: Optional[bool] = None,
        delay_grad_averaging: bool = False,
        delay_state_averaging: bool = True,
        average_state_every: int = 1,
        use_local_updates: bool = False,
        outer_lr: Optional[float] = None,
        outer_momentum: Optional[float] = None,
        outer_nesterov: Optional[bool] = None,
        outer_fragments: Optional[int] = None,
        open_diloco: bool = False,
        outer_codec: Optional[str] = None,
        outer_aggregation: Optional[str] = None,
        outer_clip_factor: Optional[float] = None,
        fit_my_link: bool = False,
        client_mode: Optional[bool] = None,
        auxiliary: bool = False,
        grad_compression: Optional[CompressionBase] = None,
        grad_averager_factory: Optional[Callable[..., Any]] = None,
        state_averaging_compression: Optional[CompressionBase] = None,
        load_state_compression: Optional[CompressionBase] = None,
        average_opt_statistics: Sequence[str] = (),
        extra_tensors: Sequence[Any] = (),
        averager_opts: Optional[Mapping[str, Any]] = None,
        tracker_opts: Optional[Mapping[str, Any]] = None,
        performance_ema_alpha: float = 0.1,
        shutdown_timeout: float = 5,
        verbose: bool = False,
        full_state_every: int = 0,
        target_group_size: Optional[int] = None,
        bandwidth: Optional[float] = None,
        verified_share: float = 0.0,
        clip_grad_norm: Optional[float] = None,
        checkpoint_dir: Optional[str] = None,
        checkpoint_every: float = 600.0,
        checkpoint_keep: int = 3,
        resume: bool = False,
    ) -> None:
        client_mode = dht.client_mode if client_mode is None else client_mode
        delay_optimizer_step = delay_grad_averaging if delay_optimizer_step is None else delay_optimizer_step
        if offload_optimizer is None:
            offload_optimizer = params is not None and not use_local_updates
        if delay_grad_averaging and not delay_optimizer_step:
            raise ValueError("delay_grad_averaging requires delay_optimizer_step")
        if auxiliary and batch_size_per_step is not None:
            raise ValueError("Auxiliary peers should not accumulate batches")
        if use_local_updates and grad_averager_factory is not None:
            raise ValueError("if local_updates is True, provided grad_averager_factory will not be used")
        if outer_lr is not None and average_opt_statistics:
            raise ValueError("outer_lr averages no statistics of the optimizer: leave average_opt_statistics out")
        if fit_my_link and outer_lr is None:
            raise ValueError("fit_my_link is about local steps with an outer optimizer: set outer_lr, too")
        if resume and checkpoint_dir is None:
            raise ValueError("resume goes on from the newest checkpoint in checkpoint_dir: set it, too")
        for name, limit in (("matchmaking_time", matchmaking_time), ("averaging_timeout", averaging_timeout)):
            if limit is None:  # with hivemind there is no limit then
                raise ValueError(f"{name}=None: a round has a limit here; give a number of seconds, or leave it out")
        fits_target = fit_my_link and target_batch_size is None
        if not fits_target:
            target_batch_size = number_of_samples(target_batch_size, "target_batch_size")
        self.dht, self.run_id, self.client_mode, self.auxiliary = dht, run_id, client_mode, auxiliary
        self.batch_size_per_step, self.target_batch_size = batch_size_per_step, target_batch_size
        self.offload_optimizer, self.reuse_grad_buffers = offload_optimizer, reuse_grad_buffers
        self.use_local_updates, self.delay_state_averaging = use_local_updates, delay_state_averaging
        self.average_state_every, self._alpha = average_state_every, performance_ema_alpha
        self.matchmaking_time, self.load_state_timeout = matchmaking_time, load_state_timeout
        self.averaging_timeout, self.shutdown_timeout = averaging_timeout, shutdown_timeout
        self.allreduce_timeout = averaging_timeout if allreduce_timeout is None else allreduce_timeout
        self.next_chunk_timeout = matchmaking_time if next_chunk_timeout is None else next_chunk_timeout
        #: the level of internal events in the log
        self.status_loglevel = logging.INFO if verbose else logging.DEBUG
        self.scheduled_grads = self.scheduled_state = None
        #: what the last call of step() has done; see cohive_step_report in cohive.h
        self.last_report: Optional[_native.StepReport] = None
        self._model = _model.Model(
            *self._make_optimizer(
                optimizer,
                params,
                offload_optimizer,
                delay_optimizer_step or delay_grad_averaging,
                may_step_there=not reuse_grad_buffers and not average_opt_statistics,
            ),
            extra_tensors=extra_tensors,
            statistics=average_opt_statistics,
            reuse=reuse_grad_buffers,
            local=use_local_updates,
        )
        self._run = Run(self._model)
        self.opt = self._model.optimizer
        self.scheduler = self._make_scheduler(scheduler, made=self.opt is not optimizer)
        if self.scheduler is not None:
            made: Dict[str, Any] = getattr(self.scheduler, "state_dict", dict)()
            self._schedule_at_first = copy.deepcopy((steps_of(self.scheduler), made, self._scheduled()))
        if delay_optimizer_step and not self._model.native:
            logger.warning("%s is no optimizer that cohive knows the steps of: they are not delayed", _name(self.opt))
            delay_optimizer_step = delay_grad_averaging = False
        self.delay_optimizer_step, self.delay_grad_averaging = delay_optimizer_step, delay_grad_averaging
        self._delays_steps = delay_optimizer_step or (outer_lr is not None and delay_state_averaging)
        # As any optimizer of torch: defaults, hooks and profilers.
        super().__init__([torch.zeros(1, requires_grad=True)], dict(self.opt.defaults))
        self._load_compression = load_state_compression or NoCompression()
        options = {
            "run_id": run_id,
            "target_batch_size": target_batch_size,
            "matchmaking_time": matchmaking_time,
            "averaging_timeout": averaging_timeout,
            "allreduce_timeout": allreduce_timeout,
            "next_chunk_timeout": next_chunk_timeout,
            "load_state_timeout": load_state_timeout,
            "shutdown_timeout": shutdown_timeout,
            "delay_state_averaging": delay_state_averaging,
            "delay_optimizer_step": delay_optimizer_step,
            "delay_grad_averaging": delay_grad_averaging,
            "reuse_grad_buffers": reuse_grad_buffers,
            "use_local_updates": use_local_updates,
            "outer_lr": outer_lr,
            "outer_momentum": outer_momentum,
            "outer_nesterov": outer_nesterov,
            "outer_fragments": outer_fragments,
            "open_diloco": open_diloco or None,
            "outer_codec": outer_codec,
            "outer_aggregation": outer_aggregation,
            "outer_clip_factor": outer_clip_factor,
            "fit_my_link": fit_my_link or None,
            "average_state_every": average_state_every,
            "auxiliary": auxiliary,
            "client_mode": client_mode,
            "performance_ema_alpha": performance_ema_alpha,
            "verbose": verbose,
            "full_state_every": full_state_every or None,
            "target_group_size": target_group_size,
            "bandwidth": bandwidth,
            "verified_share": verified_share,
            "clip_grad_norm": clip_grad_norm,
            "checkpoint_dir": None if checkpoint_dir is None else str(checkpoint_dir),
            "checkpoint_every": checkpoint_every,
            "checkpoint_keep": checkpoint_keep,
            "resume": resume,
            "native_steps": self._model.native,
            "device": self._model.device(),
            **self._codecs(grad_compression or NoCompression(), state_averaging_compression or NoCompression()),
            **_factory_options(grad_averager_factory),
        }
        if fit_my_link and grad_compression is None:
            del options["grad_codecs"]
        for keyword, given in (("averager_opts", averager_opts or {}), ("tracker_opts", tracker_opts or {})):
            _refuse_own(keyword, given, options)
            options.update({name: value for name, value in given.items() if name not in _NOT_OURS})
        if (averager_opts or {}).get("allow_state_sharing") is False:
            options["share_state"] = False
        self._check_request_timeout(options)
        self._changes_often = False  # whether the model had changed when the last step() began
        self._empty_batches = 0  # without a gradient, in a row
        self._was_finite = True  # the last batch with local updates
        self._open(options)
        self._last_step: Optional[float] = None

    # ---- Making it

    @staticmethod
    def _make_optimizer(
        optimizer: Any, params: Optional[Any], offload: bool, delayed: bool, may_step_there: bool
    ) -> Tuple[List[Any], Any, bool, Optional[_gpu.Link]]:
        """The model's parameters, the optimizer, whether it steps copies of them, and the link of a GPU."""
        if makes_optimizer(optimizer) and params is not None:
            groups = _groups_of(params)
            parameters = [parameter for group in groups for parameter in group["params"]]
            link = _gpu.link_for(parameters)
            delayed = delayed and not (may_step_there and _gpu.can_step_there(parameters, link))
            copies = (offload or delayed) and not all(_model.is_plain(parameter) for parameter in parameters)
            if copies:
                masters = iter(_model.masters_of(parameters, link))
                groups = [dict(group, params=[next(masters) for _ in group["params"]]) for group in groups]
            return parameters, _without_closures(optimizer(groups)), copies, link
        if not all(hasattr(optimizer, name) for name in ("param_groups", "step", "zero_grad")):
            raise ValueError(_TWO_WAYS)
        if offload or delayed:
            raise ValueError(
                "To enable offload_optimizer or delayed updates, please initialize Optimizer as "
                "Optimizer(..., params=params, optimizer=lambda params: create_opt(params))"
            )
        _groups_of(optimizer.param_groups)
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        return parameters, _without_closures(optimizer), False, _gpu.link_for(parameters)

    def _make_scheduler(self, scheduler: Any, made: bool) -> Any:
        if scheduler is None:
            return None
        ready = isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
        if ready and made:
            raise ValueError("For this mode, please provide scheduler factory: callable(optimizer) -> scheduler")
        scheduler = scheduler if ready else scheduler(self.opt)
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau follows a loss that peers do not share: use a schedule of epochs")
        return scheduler

    @staticmethod
    def _check_request_timeout(options: Dict[str, Any]) -> None:
        """hivemind only warns of one that leaves no time for a second request."""
        limit, given = options["matchmaking_time"], options.get("request_timeout")
        numbers = all(isinstance(one, (int, float)) for one in (limit, given))
        if numbers and given >= limit > 0:
            options["request_timeout"] = 0.8 * limit
            logger.warning("request_timeout=%s is not below matchmaking_time: it is %s", given, 0.8 * limit)

    def _codecs(self, gradients: CompressionBase, states: CompressionBase) -> Dict[str, List[str]]:
        """The codec of each tensor that is averaged."""
        of_gradients = [
            gradients.codec(CompressionInfo.from_tensor(live, key=at)).name for at, live in enumerate(self._model.live)
        ]
        of_states = [states.codec(info).name for info in self._model.averaged_infos()]
        return {"grad_codecs": of_gradients, "state_codecs": of_states}

    def _open(self, options: Mapping[str, Any]) -> None:
        text = _native.options_text({name: value for name, value in options.items() if value is not None})
        handle = Handle()
        parameters, beside = self._model.arrays()
        try:
            try:
                self._run.checked(
                    lib.cohive_trainer_open,
                    self.dht._open(),
                    text,
                    _native.tensor_array(parameters),
                    len(parameters),
                    _native.tensor_array(beside),
                    len(beside),
                    ctypes.byref(self._run.calls),
                    ctypes.byref(handle),
                )
            finally:  # a handler of a signal may have raised when it was there
                self._run.handle = Handle(handle.value) if handle.value else None
            _events.close_at_exit(self._run)
            if options["resume"]:
                self._restart_schedule(self.local_epoch)
                self._take_over()
            else:
                self._model.note_values()
                self._describe()
            self._status()
        except BaseException:  # nobody gets the trainer, which is in the run already
            self.shutdown()
            raise

    # ---- Its state, as the library knows it

    def _current_state(self) -> Tuple[Dict[str, Any], List[Any], List[CompressionInfo]]:
        """Metadata of the state, its tensors, and what each is."""
        metadata, tensors, infos = dump_training_state(
            self._model.live,
            range(len(self._model.live)),
            [self._model.on_host(one) for one in self._model.extras()],
            self.opt,
            self._model.on_host,
        )
        return {"group_bits": "", "optimizer_metadata": metadata}, tensors, infos

    def _describe(self) -> None:
        metadata, tensors, infos = self._current_state()
        codecs = [codec_of_state(self._load_compression, info).name for info in infos]
        packed = _msgpack.dumps(metadata)
        described = self._model.describe(tensors, codecs)
        steps, statistics = self._model.native_steps()
        before, self._run.described = self._run.described, (described, statistics)
        self._run.call(
            lib.cohive_trainer_describe,
            _native.data(packed),
            len(packed),
            _native.tensor_array(described),
            self._model.names(),
            len(described),
            steps,
            statistics,
        )
        del before
        self._settings = self._fingerprint()
        self._versions = self._model.versions()
        self._model.note_changes()

    def _fingerprint(self) -> List[Any]:
        """Returns what a user may have changed in the groups, and the hooks of the optimizer."""
        groups = self.opt.param_groups
        settings = [[plain(value) for name, value in group.items() if name != "params"] for group in groups]
        return [settings, self._model.hooks()]

    def _take_over(self) -> None:
        """After the parameters, or the epoch, have changed."""
        self._model.publish()
        epoch = self.local_epoch
        if self.scheduler is not None:
            self.opt._opt_called = True  # the library may have stepped, of which torch's scheduler knows nothing
            follow_epoch(self.scheduler, epoch)
        if self.use_local_updates:
            self._model.refresh_state()
        self._model.note_values()
        self._describe()

    def _status(self) -> Dict[str, Any]:
        """As of now; where the trainer was closed, also with its DHT, as of the last call."""
        if self.is_alive():
            status = _native.Bytes()
            with unless_closed():
                check(lib.cohive_trainer_status(self._run.handle, ctypes.byref(status)))
                self._run.status = _msgpack.loads(_native.taken(status))
        return self._run.status

    # ---- Training

    def step(
        self,
        closure: Optional[Callable[[], Any]] = None,
        batch_size: Optional[int] = None,
        grad_scaler: Optional[Any] = None,
    ) -> Any:
        """After each batch: counts its samples, and its gradients, which backward() has left in ``.grad``. Returns at
        once, but at the end of an epoch, or where this peer has to catch up with the others. A batch that has left no
        gradient at all does not count, but with local updates; with these one whose gradients are not finite does not,
        and takes no step. Weights that were loaded into the model since the last call are what training goes on from;
        of code that changes them before each call, what is delayed has precedence.

        :param closure: computes the loss and its gradients; its result is returned
        :param batch_size: samples of this batch; default: batch_size_per_step
        :param grad_scaler: whose scale the gradients have
        """
        self._run.refuse_now()
        if self.auxiliary and (closure is not None or batch_size is not None):
            raise ValueError("auxiliary peers have no batches: call step() without closure and batch_size")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        samples = 0 if self.auxiliary else samples_of(batch_size, self.batch_size_per_step)
        self._model.check_places()
        scale, finite = _scale_of(grad_scaler, self)
        if self.use_local_updates and grad_scaler is None:
            finite = finite and self._may_step_locally()
        self._take_changes()
        report = _native.StepReport()
        try:
            with torch.no_grad():
                has_any = self.use_local_updates or self._model.has_gradients()
                counts = finite and has_any and not self.auxiliary
                self._warn_of_empty_batches(has_any or self.auxiliary)
                if self.reuse_grad_buffers and not finite:  # which has spoiled the sums of the batches before
                    self._run.call(lib.cohive_trainer_forget)
                    self._model.clear_gradients()
                gradients = self._model.gradients(samples, scale) if counts else None
                if not self._model.is_asked:
                    self._model.exchange()
                self._run.may_owe_step = self._delays_steps
                try:
                    self._run.call(
                        lib.cohive_trainer_step,
                        gradients,
                        samples if counts else 0,
                        1.0 if self.use_local_updates else scale,  # which the model has taken out then
                        ctypes.byref(report),
                    )
                    self._model.release_gradients()
                except BaseException:
                    self._model.keep_gradients()
                    raise
                finally:  # the handler of a signal may have raised when all was done
                    self._apply(report)
        finally:
            self._model.note_changes()
            self._model.note_gradients()
        self._measure(samples, bool(report.epoch_changed or report.loaded_state))
        if grad_scaler is not None and hasattr(grad_scaler, "_stepped"):
            grad_scaler._stepped(finite, bool(report.epoch_changed))
        return loss

    def _take_changes(self) -> None:
        """Has the library follow what the user has changed since the last step: weights, the optimizer and its
        settings."""
        changed = self._model.was_changed()
        if changed and (self._model.has_copies or not self._changes_often):
            self._keep_loaded()
        self._changes_often = changed
        if self._model.was_reloaded():
            self._run.call(lib.cohive_trainer_settle)
            self._model.take_optimizer()
            self._describe()
        if self._versions != (versions := self._model.versions()):
            self._run.call(lib.cohive_trainer_changes, 1)
            self._versions = versions
        if self._settings != self._fingerprint():
            self._describe()

    def _apply(self, report: _native.StepReport) -> None:
        """Has the model, its gradients and the schedule follow what a step of the library has done."""
        if report.cleared or report.loaded_state:
            self._model.clear_gradients()
        self.last_report = report
        if report.epoch_changed or report.loaded_state or report.updated:
            self._take_over()
        elif self.use_local_updates and self._model.has_copies:
            self._model.publish()
        if report.loaded_state:
            _model.return_memory()

    def _may_step_locally(self) -> bool:
        """Tells whether the gradients of a batch are finite, and warns of the first in a row that are not. Sums of
        gradients are looked through by the library; a local step would spoil the parameters at once."""
        finite = self._gradients_are_finite()
        if not finite and self._was_finite:
            logger.warning(
                "gradients of a batch are not finite: it does not count, nor do the next ones until some are"
            )
        self._was_finite = finite
        return finite

    def _warn_of_empty_batches(self, has_any: bool) -> None:
        """Warns once where one batch after the other has left no gradient: this peer does nothing for the run then."""
        self._empty_batches = 0 if has_any else self._empty_batches + 1
        if self._empty_batches == _MANY_EMPTY_BATCHES:
            logger.warning(
                "%d batches in a row have left no gradient in the parameters of the optimizer, and do not count: "
                "step() comes after backward() and before zero_grad(), and the model's parameters are those that the "
                "optimizer was given, as they are not after load_state_dict(assign=True)",
                _MANY_EMPTY_BATCHES,
            )

    def _keep_loaded(self) -> None:
        """Has training go on from weights that the user has loaded into the model since the last call. With local steps
        the model's own are what is trained."""
        if not self._model.follows and self._model.was_loaded():
            self._settle()

    def _measure(self, samples: int, waited: bool) -> None:
        """The speed of this peer, as hivemind's PerformanceEMA measures it, but for steps that have waited."""
        now, before = time.monotonic(), self._last_step
        self._last_step = now
        if waited or before is None or now <= before or samples == 0:
            return
        speed = samples / (now - before)
        run = self._run
        run.speed = speed if run.speed == 0 else 1 / ((1 - self._alpha) / run.speed + self._alpha / speed)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of the last batch. ValueError with reuse_grad_buffers, where they are still needed."""
        if self.reuse_grad_buffers:
            raise ValueError(
                "When running Optimizer with reuse_grad_buffers=True, user should never call zero_grad manually. "
                "Gradients will be refreshed internally"
            )
        zero_gradients(self._model.parameters, set_to_none)

    def _gradients_are_finite(self) -> bool:
        return gradients_are_finite(self._model.parameters)

    def load_state_from_peers(self, wait: bool = True) -> bool:
        """Downloads the state of the run, if it is ahead of this peer, within load_state_timeout. True if it was.

        :param wait: nothing but True, which hivemind's takes: parameters change inside of calls alone
        """
        if not wait:
            raise ValueError("parameters change inside of calls alone: load_state_from_peers() always waits")
        loaded = ctypes.c_int32()
        try:
            self._run.call(lib.cohive_trainer_load, ctypes.byref(loaded))
        finally:  # the handler of a signal may have raised when all was done
            if loaded.value:
                self._model.clear_gradients()
                self._take_over()
                _model.return_memory()
        return bool(loaded.value)

    def average_parameters(self) -> int:
        """Averages the parameters once more with the peers that do the same. The size of the group; 0: no group."""
        self._run.refuse_now()
        self._keep_loaded()
        group = ctypes.c_uint64()
        self._model.exchange()
        self._run.call(lib.cohive_trainer_average, ctypes.byref(group))
        self._take_over()
        return group.value

    def finish(self) -> int:
        """Ends the training together with the peers that end theirs now, or an epoch later; those that go on take no
        part. Waits until these are more than an epoch ahead, or for averaging_timeout. The size of the last group; 0:
        nobody else came. Only shutdown() may follow."""
        self._run.refuse_now()
        self._keep_loaded()
        group = ctypes.c_uint64()
        self._model.exchange()
        self._run.call(lib.cohive_trainer_finish, ctypes.byref(group))
        self._run.may_owe_step = False
        self._model.publish()
        self._status()
        return group.value

    def report_loss(self, loss: float) -> None:
        """Shows the loss of a batch to monitors, also one that is not finite: alerts may wait for it."""
        self._run.call(lib.cohive_trainer_loss, float(loss))

    # ---- States

    @property
    def state(self) -> Any:
        """What the optimizer keeps of each parameter, and "local_epoch": a dict of one's own, whose keys may be changed
        without harm; the tensors in it are the optimizer's."""
        return dict(self.opt.state, local_epoch=self.local_epoch) if hasattr(self, "opt") else {}

    @state.setter
    def state(self, _: Any) -> None:
        """torch.optim.Optimizer makes an empty one."""

    @property
    def param_groups(self) -> List[Any]:
        """The groups of the optimizer, with the model's parameters. What is set there, such as "lr", counts."""
        if not hasattr(self, "opt"):
            return self._made_groups
        if not self._model.has_copies:
            return list(self.opt.param_groups)
        groups, at = [], 0
        for group in self.opt.param_groups:
            count = len(group["params"])
            groups.append(_Group(group, self._model.parameters[at : at + count]))
            at += count
        return groups

    @param_groups.setter
    def param_groups(self, _: Any) -> None:
        """torch.optim.Optimizer makes some of its own."""
        self._made_groups: List[Any] = []

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Of the optimizer that was made or given; a run has one list of parameters."""
        if self._run.handle is not None:
            raise ValueError("Optimizer does not support calling add_param_group after creation")

    def state_dict(self) -> Dict[str, Any]:
        """The optimizer's, with "local_epoch" and, where it steps copies of the parameters, these as "masters". After
        shutdown(), too. What is delayed comes into place before; where the model was loaded since the last call, its
        parameters and the extra tensors stay as they are."""
        if self.is_alive():
            with unless_closed():
                self._settle()
        state: Dict[str, Any] = self.opt.state_dict()
        state["local_epoch"] = self.local_epoch
        if self._model.has_copies:
            state["masters"] = [live.clone() for live in self._model.live]
        return state

    def _settle(self) -> None:
        """Waits for what is delayed, and takes it over: of a model that was changed since the last call, as by a load,
        all but parameters and extra tensors."""
        if self._model.was_loaded():
            masters = self._model.masters_as_given()
            self._settle_as_given(with_parameters=True)
            self._model.take_parameters(masters)
        else:
            self._run.call(lib.cohive_trainer_settle)
        self._take_over()

    def _settle_as_given(self, with_parameters: bool) -> None:
        """Waits for what is delayed, and leaves the tensors that the user has loaded as they are."""
        with self._model.as_given(with_parameters):
            self._run.call(lib.cohive_trainer_settle)
        self._run.call(lib.cohive_trainer_changes, 0)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Goes on from what state_dict() gave, here or in hivemind. The model's own parameters are loaded before.

        :raises ValueError: a state of another model; nothing has changed then
        """
        state = dict(state_dict)
        inner = dict(state.get("state", {}))
        epoch = state.pop("local_epoch", inner.pop("local_epoch", 0))
        masters = state.pop("masters", None)
        if not is_epoch(epoch):
            raise ValueError("local_epoch is a number of epochs, from 0 on")
        state["state"] = inner
        self._model.check_saved(state, masters)
        self._settle_as_given(with_parameters=masters is None)
        settings = self._scheduled()
        self._model.load_optimizer(state)
        self._resume_schedule(settings, epoch)
        self._model.take_parameters(masters)
        self._model.forget_gradients()
        self._describe()
        self._run.call(lib.cohive_trainer_restore, epoch)
        self._model.clear_gradients()
        self._take_over()

    def _resume_schedule(self, settings: List[Dict[str, Any]], epoch: int) -> None:
        """Loaded rates have been through the schedule before: those of now go through it to the epoch, or where they
        are beyond it, the schedule goes on from the loaded ones."""
        if self.scheduler is None:
            return
        if steps_of(self.scheduler) <= epoch + 1:
            self._set_scheduled(settings)
        else:
            rewind(self.scheduler, epoch)

    def _restart_schedule(self, epoch: int) -> None:
        """Has the schedule begin again, as it was made, where it is beyond an epoch: files have no rates."""
        if self.scheduler is None or steps_of(self.scheduler) <= epoch + 1:
            return
        steps, state, settings = copy.deepcopy(self._schedule_at_first)
        self.scheduler.load_state_dict(state)
        self.scheduler._step_count = steps
        self._set_scheduled(settings)

    def _scheduled(self) -> List[Dict[str, Any]]:
        return [{name: group[name] for name in _SCHEDULED if name in group} for group in self.opt.param_groups]

    def _set_scheduled(self, settings: List[Dict[str, Any]]) -> None:
        for group, kept in zip(self.opt.param_groups, settings):
            group.update(kept)

    def save_checkpoint(self, path: str) -> None:
        """Writes the state as a safetensors file: its tensors alone. Where the optimizer keeps plain numbers beside
        them, as Adafactor keeps its step, state_dict() has these, too."""
        self._run.refuse_now()
        self._keep_loaded()
        was_changed = self._model.was_changed()
        self._model.exchange()
        if not was_changed:
            self._model.note_changes()
        self._run.call(lib.cohive_trainer_save, str(path).encode())

    def load_checkpoint(self, path: str) -> int:
        """Goes on from such a file; returns its epoch."""
        epoch = ctypes.c_uint64()
        self._run.call(lib.cohive_trainer_resume, str(path).encode(), ctypes.byref(epoch))
        self._model.clear_gradients()
        self._restart_schedule(epoch.value)
        self._take_over()
        return epoch.value

    # ---- What it knows

    @property
    def tracker(self) -> _Tracker:
        return _Tracker(self)

    @property
    def state_averager(self) -> _Part:
        return _Part(self)

    @property
    def grad_averager(self) -> Optional[_Part]:
        return None if self.use_local_updates else _Part(self)

    @property
    def local_epoch(self) -> int:
        """The epoch of this peer."""
        return int(self._status().get("epoch", 0))

    @property
    def local_progress(self) -> LocalTrainingProgress:
        return self.tracker.local_progress

    @property
    def num_peers(self) -> int:
        """Trainers of the run in sight, this one included."""
        return max(int(self._status().get("peers", 1)), 1)

    @property
    def use_gradient_averaging(self) -> bool:
        return not self.use_local_updates

    def stats(self) -> Dict[str, Any]:
        """Counts since the beginning; see cohive_trainer_status() in cohive.h."""
        return dict(self._status())

    def is_alive(self) -> bool:
        """Whether it was not shut down."""
        return self._run.handle is not None and not self._run.closed

    def is_synchronized_with_peers(self) -> bool:
        """Whether this peer is not behind the run."""
        seen = self._status()
        return bool(seen["epoch"] >= seen["global_epoch"] - 1)

    def shutdown(self) -> None:
        """Leaves the run, within shutdown_timeout. Where steps are delayed, it first waits as long at most for the last
        one; what the handler of a signal raises ends that, and is raised when the run is left. Idempotent.
        RuntimeError, and nothing done, inside of another call on this thread, as in the handler of a signal."""
        if not self.is_alive():
            return
        self._run.refuse_inside()
        try:
            self._take_last_step()
        finally:
            with contextlib.suppress(RuntimeError):
                self._status()
            self._run.shutdown()

    def _take_last_step(self) -> None:
        """Has the model take over a delayed step, if that is made within shutdown_timeout."""
        run = self._run
        if run.leaver is not None:  # another thread waits for it, which the end of the run ends
            return
        run.leaver = threading.get_ident()
        if run.inside or not run.may_owe_step:  # a call of another thread has the trainer, who knows for how long
            return
        if self._model.was_loaded():
            logger.warning("the model was changed since the last step: a delayed step is not taken over")
            return
        run.of_thread.give_up_at = time.monotonic() + (self.shutdown_timeout or 0)
        try:
            self._settle()
        except _native.CohiveError as error:
            logger.warning("a step that was delayed may not have come into the model: %s", error)
        finally:
            run.of_thread.give_up_at = math.inf

    def __repr__(self) -> str:
        return f"cohive.Optimizer({self.opt!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a collaborative optimizer belongs to its process: save its state_dict()")

    def __getstate__(self) -> Any:
        return self.__reduce__()


def check_options(callee: str, given: Iterable[str], but: Sequence[str] = (), place_of_dht: str = "there") -> None:
    """Raises TypeError for a keyword that Optimizer does not take: before a front end hands it on, which may be with
    the first batch.

    :param callee: the front end
    :param but: keywords that the front end sets itself
    :param place_of_dht: where keywords of DHT() belong
    """
    refuse_unknown(callee, given, set(inspect.signature(Optimizer).parameters) - set(but), place_of_dht)


def _refuse_own(keyword: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raises TypeError for what Optimizer takes itself, as where hivemind gives its parts a keyword twice."""
    for name in given:
        if name in options and (name not in _OF_EITHER or options[name] is not None):
            raise TypeError(f"{keyword} got {name}, which Optimizer takes itself: give it there")


def _name(optimizer: Any) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _groups_of(params: Any) -> List[Dict[str, Any]]:
    """Parameter groups, of parameters that can be trained together."""
    groups = parameter_groups(params)
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not parameters:
        raise ValueError("Optimizer got an empty parameter list")
    if not all(parameter.is_floating_point() for parameter in parameters):
        raise TypeError("a parameter has floating-point values")
    if any(parameter.is_meta or hasattr(parameter, "to_local") for parameter in parameters):
        raise TypeError("a parameter has all of its values in this process: none of the meta device, and no DTensor")
    return groups


def _without_closures(optimizer: Any) -> Any:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS computes the loss several times in a step, and the samples of peers are gone by then")
    return optimizer


def _factory_options(factory: Optional[Callable[..., Any]]) -> Dict[str, Any]:
    """The averager of gradients that a factory stands for: the library makes it by itself."""
    keywords: Dict[str, Any] = {}
    kind: Any = factory
    while isinstance(kind, functools.partial):
        if kind.args:
            raise ValueError("a grad_averager_factory takes keywords alone")
        keywords = {**kind.keywords, **keywords}
        kind = kind.func
    if kind is None or kind is GradientAverager:
        if keywords:
            raise ValueError(f"GradientAverager as a factory takes no {next(iter(keywords))} here: see averager_opts")
        return {}
    if kind is not PowerSGDGradientAverager:
        raise ValueError(
            "grad_averager_factory is GradientAverager or PowerSGDGradientAverager, also in functools.partial: the "
            "library makes it by itself"
        )
    unknown = set(keywords) - {"averager_rank", "min_compression_ratio"}
    if unknown:
        raise ValueError(f"PowerSGDGradientAverager as a factory takes no {sorted(unknown)[0]} here")
    if "averager_rank" not in keywords:
        raise ValueError("PowerSGDGradientAverager needs averager_rank: functools.partial(..., averager_rank=4)")
    return keywords


def _scale_of(scaler: Optional[Any], optimizer: Optimizer) -> Tuple[float, bool]:
    """The scale of the gradients, and whether they are finite, as far as a scaler knows."""
    if scaler is None:
        return _scale_left_in(optimizer)
    if not scaler.is_enabled():
        return 1.0, True
    if hasattr(scaler, "_looked_at"):
        looked: Tuple[float, bool] = scaler._looked_at(optimizer)
        return looked
    if not isinstance(scaler, torch.amp.GradScaler):
        raise ValueError("step takes a GradScaler of cohive or torch")
    _refuse_sums(optimizer)
    known = scaler._per_optimizer_states[id(optimizer)]
    if not known["found_inf_per_device"]:
        scaler._check_inf_per_device(optimizer)  # which its update() goes by
    found = list(known["found_inf_per_device"].values())
    # One copy to the host, as a scaler of torch makes it for any optimizer. Without gradients nothing was found.
    told = torch.stack([one.reshape(()).to(scaler._scale.device) for one in [*found, scaler._scale]]).tolist()
    unscaled = getattr(known["stage"], "name", "") == "UNSCALED"
    return 1.0 if unscaled else float(told[-1]), not any(told[:-1])


def _scale_left_in(optimizer: Optimizer) -> Tuple[float, bool]:
    """The same where a wrapper such as accelerate's hides that step() takes a scaler: torch's leaves it in attributes
    for the call."""
    scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return 1.0, True
    _refuse_sums(optimizer)
    return 1.0 if scale is None else float(scale), not float(found_inf)


def _refuse_sums(optimizer: Optimizer) -> None:
    if optimizer.reuse_grad_buffers:
        raise ValueError("with reuse_grad_buffers, gradients of several batches add up: use cohive.GradScaler")
