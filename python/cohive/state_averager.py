"""TrainingStateAverager: keeps a trainer's parameters, statistics and schedule near those of its peers. Needs torch."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from . import _events
from ._torch import torch
from .averaging import DecentralizedAverager, StepControl
from .compression import CompressionInfo, TensorRole
from .dht import DHT
from .futures import seconds
from .optim import (
    are_finite,
    dump_training_state,
    follow_epoch,
    initialize_optimizer_state_,
    is_epoch,
    load_optimizer_state,
    make_usable,
    nested_flatten,
    parameter_groups,
)
from .timed import DHTExpiration

logger = logging.getLogger("cohive.averaging")

#: what zero_grad() of torch does by default
ZERO_GRAD_SET_TO_NONE_DEFAULT = True
LRSchedulerBase = torch.optim.lr_scheduler.LRScheduler
OptimizerFactory = Callable[..., Any]
SchedulerFactory = Callable[..., Any]


class TrainingStateAverager(DecentralizedAverager):
    """Holds parameters, an optimizer, its schedule and extra tensors; averages them, and shares them with newcomers.

    ::

        averager = TrainingStateAverager(dht=dht, optimizer=torch.optim.Adam, params=model.parameters(), prefix="run",
                                         delta_rule_averaging=True, start=True)
        averager.load_state_from_peers()
        for number, batch in enumerate(batches):
            loss(model, batch).backward()
            averager.step(optimizer_step=True, zero_grad=True, averaging_round=number % 100 == 0, delay_averaging=True)

    :param optimizer: an optimizer of torch, or what makes one of parameter groups
    :param params: parameters or groups; default: those of the optimizer
    :param scheduler: of the optimizer, or what makes it; it follows local_epoch
    :param initialize_optimizer: have the optimizer make its state; default: where it has none
    :param offload_optimizer: the optimizer works on copies in host memory
    :param custom_gradients: the gradients of those copies are filled by the caller
    :param reuse_tensors: average the optimizer's own tensors in place; default: as offload_optimizer
    :param delta_rule_averaging: add what averaging has changed, so that local steps may go on meanwhile
    :param sync_epoch_when_averaging: take over the largest epoch of a group
    :param average_opt_statistics: names of tensors in the optimizer's state, such as "exp_avg"
    :param extra_tensors: averaged and shared, too
    :param kwargs: those of DecentralizedAverager
    """

    def __init__(
        self,
        *,
        dht: DHT,
        optimizer: Any,
        params: Optional[Any] = None,
        scheduler: Optional[Any] = None,
        initialize_optimizer: Optional[bool] = None,
        offload_optimizer: bool = False,
        custom_gradients: bool = False,
        reuse_tensors: Optional[bool] = None,
        delta_rule_averaging: bool = False,
        performance_ema_alpha: float = 0.1,
        sync_epoch_when_averaging: bool = False,
        parameter_names: Optional[Sequence[Any]] = None,
        average_opt_statistics: Sequence[str] = (),
        extra_tensors: Sequence[Any] = (),
        status_loglevel: int = logging.DEBUG,
        **kwargs: Any,
    ) -> None:
        if reuse_tensors is None:
            reuse_tensors = offload_optimizer and not delta_rule_averaging
        if reuse_tensors and delta_rule_averaging:
            raise ValueError("reuse_tensors and delta_rule_averaging are mutually exclusive")
        if custom_gradients and not offload_optimizer:
            logger.warning("Setting custom_gradients=True has no effect because the optimizer is not offloaded")
        self.status_loglevel = status_loglevel
        self.offload_optimizer, self.custom_gradients = offload_optimizer, custom_gradients
        self.reuse_tensors, self.delta_rule_averaging = reuse_tensors, delta_rule_averaging
        self.sync_epoch_when_averaging = sync_epoch_when_averaging
        groups = self._check_params(optimizer, params)
        self.main_parameters = tuple(parameter for group in groups for parameter in group["params"])
        names = range(len(self.main_parameters)) if parameter_names is None else nested_flatten(parameter_names)
        self.parameter_names = tuple(names)
        if len(self.parameter_names) != len(self.main_parameters):
            raise ValueError(f"Expected {len(self.main_parameters)} names, got {len(self.parameter_names)}")
        self.optimizer, self.scheduler = self._make_components(groups, optimizer, scheduler, initialize_optimizer)
        self.opt_keys_for_averaging, self.extra_tensors = tuple(average_opt_statistics), tuple(extra_tensors)
        self.local_epoch = 0
        self.step_executor = _events.Executor(2 if delta_rule_averaging else 1, "cohive-state-averager")
        self.finished_optimizer_step, self.finished_averaging_round = threading.Event(), threading.Event()
        self.lock_optimizer, self.lock_averaging = threading.Lock(), threading.Lock()
        self.pending_updates: Set[concurrent.futures.Future[None]] = set()
        self._old_tensors: Optional[List[Any]] = None
        self._has_results = False  # the averaged tensors are those of a round, which the local ones have not got
        super().__init__(self._make_averaged_tensors(), dht, tensor_infos=self._make_tensor_infos(), **kwargs)

    # ---- Parts

    @staticmethod
    def _check_params(optimizer: Any, params: Optional[Any]) -> List[Dict[str, Any]]:
        if params is None:
            if not hasattr(optimizer, "param_groups"):
                raise ValueError("Must provide param_groups or an optimizer with .param_groups")
            params = optimizer.param_groups
        groups = parameter_groups(params)
        parameters = [parameter for group in groups for parameter in group["params"]]
        frozen = sum(parameter.numel() for parameter in parameters if not parameter.requires_grad)
        if 2 * frozen >= sum(parameter.numel() for parameter in parameters):
            logger.warning("most parameters have requires_grad=False, and are averaged all the same: leave them out")
        return groups

    def _make_components(
        self, groups: List[Dict[str, Any]], optimizer: Any, scheduler: Any, initialize: Optional[bool]
    ) -> Tuple[Any, Any]:
        makes_optimizer = not isinstance(optimizer, torch.optim.Optimizer)
        makes_scheduler = scheduler is not None and not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
        if makes_optimizer and scheduler is not None and not makes_scheduler:
            raise ValueError("If optimizer is created internally, scheduler must also be initialized internally")
        if self.offload_optimizer and not makes_optimizer:
            raise ValueError("Using offload_optimizer requires creating optimizer inside hivemind")
        if makes_optimizer:
            optimizer = optimizer(self._offloaded(groups) if self.offload_optimizer else groups)
        if initialize is None:
            initialize = not any(isinstance(leaf, torch.Tensor) for leaf in nested_flatten(optimizer.state_dict()))
        if initialize:
            initialize_optimizer_state_(optimizer)
        return optimizer, scheduler(optimizer) if makes_scheduler else scheduler

    @staticmethod
    def _offloaded(groups: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """The same groups, of copies in host memory that have gradients."""
        copies = []
        for group in groups:
            parameters = []
            for parameter in group["params"]:
                copy = parameter.detach().to(device="cpu", dtype=torch.float32, copy=True)
                parameters.append(copy.requires_grad_(parameter.requires_grad))
                parameters[-1].grad = torch.zeros_like(copy)
            copies.append(dict(group, params=parameters))
        return copies

    def _opt_parameters(self) -> List[Any]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _local_tensors(self) -> Iterator[Any]:
        """What is averaged, in order: parameters, statistics by name, extra tensors."""
        parameters = self._opt_parameters()
        yield from parameters
        for name in self.opt_keys_for_averaging:
            yield from (self.optimizer.state[parameter][name] for parameter in parameters)
        yield from self.extra_tensors

    def _make_averaged_tensors(self) -> List[Any]:
        averaged, parameters = [], len(self.main_parameters)
        for at, tensor in enumerate(self._local_tensors()):
            if not self.reuse_tensors:
                made = tensor.detach().to(device="cpu", dtype=torch.float32, copy=True)
            elif tensor.device.type != "cpu":
                raise ValueError("reuse_tensors is only supported if all averaged tensors are on CPU")
            else:
                made = tensor.detach()  # the same memory
            # In hivemind's schema parameters have no gradients; the others have what they have.
            averaged.append(made if at < parameters else made.requires_grad_(tensor.requires_grad))
        return averaged

    def _make_tensor_infos(self) -> List[CompressionInfo]:
        infos = [
            CompressionInfo.from_tensor(parameter, key=name, role=TensorRole.PARAMETER)
            for parameter, name in zip(self.main_parameters, self.parameter_names)
        ]
        for statistic in self.opt_keys_for_averaging:
            for parameter, name in zip(self._opt_parameters(), self.parameter_names):
                tensor = self.optimizer.state[parameter][statistic]
                infos.append(CompressionInfo.from_tensor(tensor, key=(name, statistic), role=TensorRole.OPTIMIZER))
        infos += [CompressionInfo.from_tensor(tensor, key=at) for at, tensor in enumerate(self.extra_tensors)]
        return infos

    # ---- Steps

    def schedule_step(self, scheduled_time: Optional[DHTExpiration] = None, **kwargs: Any) -> StepControl:
        """Begins to look for a group, for step(averaging_control=...)."""
        if kwargs.get("weight") is not None:
            raise ValueError("setting weight in schedule_step is not supported")
        control = super().step(scheduled_time=scheduled_time, wait=False, require_trigger=True, **kwargs)
        assert isinstance(control, StepControl)
        return control

    def step(  # type: ignore[override]
        self,
        wait_for_delayed_updates: Optional[bool] = None,
        apply_delayed_updates: bool = True,
        increment_epoch: bool = False,
        optimizer_step: bool = False,
        zero_grad: bool = False,
        delay_optimizer_step: bool = False,
        averaging_round: bool = False,
        delay_averaging: Optional[bool] = None,
        averaging_control: Optional[StepControl] = None,
        wait_for_trigger: Optional[Callable[[], Any]] = None,
        grad_scaler: Optional[Any] = None,
        set_to_none: bool = ZERO_GRAD_SET_TO_NONE_DEFAULT,
        averaging_opts: Optional[Dict[str, Any]] = None,
    ) -> None:
        """Does what is asked for, in this order.

        :param wait_for_delayed_updates: wait for what goes on; default: before the next round
        :param apply_delayed_updates: take over what has ended meanwhile
        :param increment_epoch: enter the next epoch, which moves the schedule
        :param optimizer_step: a step of the optimizer
        :param zero_grad: forget the gradients
        :param delay_optimizer_step: step in the background, and take over with a later call
        :param averaging_round: average with a group
        :param delay_averaging: average in the background; default: as delay_optimizer_step. Local steps that are made
            meanwhile are lost without delta_rule_averaging
        :param averaging_control: of schedule_step()
        :param wait_for_trigger: called before the step, in the background
        :param grad_scaler: refused: hivemind.Optimizer alone has given one here
        :param averaging_opts: keywords of the round
        :raises ValueError: what contradicts itself, or a grad_scaler
        :raises Exception: what an update that is not delayed has raised; of others it is logged
        """
        if grad_scaler is not None:
            raise ValueError(
                "TrainingStateAverager takes no grad_scaler: let scaler.step(averager.optimizer) of torch make the "
                "step, and leave optimizer_step out, or train with cohive.Optimizer, which takes one"
            )
        delay_averaging = delay_optimizer_step if delay_averaging is None else delay_averaging
        changes = optimizer_step or zero_grad or averaging_round
        should_wait = changes if self.delta_rule_averaging else averaging_round
        wait_for_delayed_updates = should_wait if wait_for_delayed_updates is None else wait_for_delayed_updates
        if should_wait and not (wait_for_delayed_updates and apply_delayed_updates):
            raise ValueError("Should wait for background operation to finish before scheduling new one")
        if delay_optimizer_step and not (self.offload_optimizer and delay_averaging):
            raise ValueError("Delayed optimizer step requires offload_optimizer and delayed averaging")
        if averaging_control is not None and not averaging_round:
            raise ValueError("averaging_control is unused if averaging_round is not performed")
        if wait_for_trigger is not None and not changes:
            raise ValueError("trigger is only used for updating parameters")
        if wait_for_trigger is not None and not (self.reuse_tensors or self.custom_gradients):
            raise ValueError("wait_for_trigger needs reuse_tensors or custom_gradients: gradients may change meanwhile")
        if wait_for_delayed_updates:
            self._wait_for_updates((averaging_opts or {}).get("timeout", self._allreduce_timeout))
        self.pending_updates = {update for update in self.pending_updates if not update.done()}
        if apply_delayed_updates:
            self._apply_delayed()
        if increment_epoch:
            self.local_epoch += 1
        if not changes:
            self._update_scheduler()
            return
        if self.offload_optimizer and not self.custom_gradients:
            self._load_local_grads_into_optimizer_()
        update = self.step_executor.submit(
            self._update,
            wait_for_trigger,
            optimizer_step,
            zero_grad,
            averaging_round,
            averaging_control,
            set_to_none,
            averaging_opts or {},
        )
        self.pending_updates.add(update)
        waits_for_step = (optimizer_step or zero_grad) and not delay_optimizer_step
        waits_for_round = averaging_round and not delay_averaging
        if waits_for_step:
            self.finished_optimizer_step.wait()
            self.finished_optimizer_step.clear()
            if self.offload_optimizer and not waits_for_round:
                self._apply_optimizer_parameters_()
        if waits_for_round:
            self.finished_averaging_round.wait()
            self.finished_averaging_round.clear()
            self._apply_round()
        delays = (averaging_round and delay_averaging) or ((optimizer_step or zero_grad) and delay_optimizer_step)
        if not delays:
            self.pending_updates.discard(update)
            update.result()

    def _wait_for_updates(self, timeout: Optional[float]) -> None:
        for update in list(self.pending_updates):
            try:
                update.result(seconds(timeout))
            except Exception:
                update.cancel()
                logger.log(self.status_loglevel, "a background update failed", exc_info=True)

    def _apply_delayed(self) -> None:
        if self.finished_averaging_round.is_set():
            self.finished_averaging_round.clear()
            self._apply_round()
        if self.finished_optimizer_step.is_set():
            self.finished_optimizer_step.clear()
            if self.offload_optimizer:
                self._apply_optimizer_parameters_()

    def _apply_round(self) -> None:
        has_results, self._has_results = self._has_results, False
        if has_results and not self.reuse_tensors:
            self._apply_averaging_results_()
        if self.offload_optimizer:
            self._apply_optimizer_parameters_()

    def _update(
        self,
        wait_for_trigger: Optional[Callable[[], Any]],
        optimizer_step: bool,
        zero_grad: bool,
        averaging_round: bool,
        control: Optional[StepControl],
        set_to_none: bool,
        averaging_opts: Dict[str, Any],
    ) -> None:
        """Steps and averages; the executor's thread."""
        steps = optimizer_step or zero_grad
        # Each is set once: whoever waits for the next update must not take this one's end for its own.
        waited_for = [self.finished_optimizer_step] * steps + [self.finished_averaging_round] * averaging_round
        try:
            if control is not None and (control.triggered or control.done()):
                logger.log(self.status_loglevel, "discarding a search for a group that has failed")
                control = None
            if averaging_round and control is None:
                control = self.schedule_step(gather=self.local_epoch, **averaging_opts)
            if wait_for_trigger is not None:
                wait_for_trigger()
            with self.lock_optimizer:
                if optimizer_step:
                    self._run_optimizer()
                if zero_grad:
                    self._zero_grad(set_to_none)
                self._update_scheduler()
                if steps:
                    waited_for.pop(0).set()
            if averaging_round:
                assert control is not None
                self._run_round(control, averaging_opts.get("timeout"))
        except Exception:
            logger.exception("an update of the training state failed")
            if control is not None and not control.done():
                control.cancel()
            raise  # by the result, which calls that are not delayed wait for
        finally:
            for event in waited_for:
                event.set()

    def _run_optimizer(self) -> None:
        lock: Any = self.lock_averaged_tensors if self.reuse_tensors else contextlib.nullcontext()
        with lock:
            self.optimizer.step()

    def _zero_grad(self, set_to_none: bool) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)
        for parameter in self.main_parameters if self.offload_optimizer else ():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def _run_round(self, control: StepControl, timeout: Optional[float]) -> None:
        with self.lock_averaging:
            if self.reuse_tensors:
                with self.lock_optimizer, self.lock_averaged_tensors:
                    self._rebind()
            else:
                self._load_local_tensors_into_averager_()
            if self.delta_rule_averaging:
                with torch.no_grad(), self.get_tensors() as averaged_tensors:
                    self._old_tensors = [tensor.detach().clone() for tensor in averaged_tensors]
            self._has_results = True
            gathered: Dict[Any, Any] = {}
            try:
                control.allow_allreduce()
                gathered = control.result(seconds(timeout))
                logger.log(self.status_loglevel, "averaged the training state with %d peers", len(gathered))
            except Exception as error:
                logger.log(self.status_loglevel, "averaging the training state failed: %s", error)
            if self.reuse_tensors and self.opt_keys_for_averaging:
                with self.lock_optimizer, self.lock_averaged_tensors:
                    make_usable(self.optimizer)
        if self.sync_epoch_when_averaging:
            self.local_epoch = max([self.local_epoch, *filter(is_epoch, gathered.values())])
            self._update_scheduler()

    def _rebind(self) -> None:
        """Has the optimizer work in the averaged tensors again, where it has got others with a state that was loaded.
        With the locks of both."""
        with torch.no_grad():
            for local, averaged in zip(self._local_tensors(), self._averaged_tensors):
                if local.data_ptr() != averaged.data_ptr():
                    averaged.copy_(local)
                    local.data = averaged.data

    def _load_local_grads_into_optimizer_(self) -> None:
        with torch.no_grad():
            for main, offloaded in zip(self.main_parameters, self._opt_parameters()):
                if main.grad is None:
                    continue
                if offloaded.grad is None:
                    offloaded.grad = torch.empty_like(offloaded)
                offloaded.grad.copy_(main.grad)

    def _apply_optimizer_parameters_(self) -> None:
        with torch.no_grad():
            for main, offloaded in zip(self.main_parameters, self._opt_parameters()):
                main.copy_(offloaded)

    def _load_local_tensors_into_averager_(self) -> None:
        with torch.no_grad(), self.get_tensors() as averaged_tensors:
            for local, averaged in zip(self._local_tensors(), averaged_tensors):
                averaged.copy_(local)

    def _apply_averaging_results_(self) -> None:
        old, self._old_tensors = self._old_tensors, None
        with torch.no_grad(), self.get_tensors() as averaged_tensors:
            for at, (local, averaged) in enumerate(zip(self._local_tensors(), averaged_tensors)):
                if old is None:
                    local.copy_(averaged)
                else:
                    local.add_((averaged - old[at]).to(device=local.device, dtype=local.dtype))
            if self.opt_keys_for_averaging:
                make_usable(self.optimizer)

    def _update_scheduler(self) -> None:
        """Moves the schedule to the epoch."""
        if self.scheduler is not None:
            follow_epoch(self.scheduler, self.local_epoch)

    @property
    def averaging_in_progress(self) -> bool:
        """Whether a round goes on."""
        return self.lock_averaging.locked()

    # ---- States

    def get_current_state(self) -> Tuple[Any, ...]:
        """Parameters, extra tensors and the optimizer's state, as newcomers get them: never in the middle of a step."""
        with torch.no_grad(), self.lock_optimizer, self.lock_averaged_tensors:
            # Copies: the library reads them while the training goes on.
            parameters = [parameter.detach().cpu() for parameter in self._opt_parameters()]
            extras = [tensor.detach().cpu() for tensor in self.extra_tensors]
            metadata, tensors, infos = dump_training_state(parameters, self.parameter_names, extras, self.optimizer)
            tensors = [tensor.clone() for tensor in tensors]
        told = dict(epoch=self.local_epoch, group_bits=self.get_group_bits(), optimizer_metadata=metadata)
        return told, tensors, infos

    def load_state_from_peers(self, wait: bool = True, timeout: Optional[float] = None) -> Any:
        """Downloads the newest state and takes it over, unless it is older than this peer's.

        :returns: (metadata, tensors), or None where nothing was taken over
        """
        if not wait:
            return self.step_executor.submit(self.load_state_from_peers, True, timeout)
        loaded = super().load_state_from_peers(timeout=timeout)
        if loaded is None:
            return None
        metadata, tensors = loaded
        epoch: Any = metadata.get("epoch") if isinstance(metadata, dict) else None
        if not is_epoch(epoch) or epoch < self.local_epoch:
            logger.warning("Cowardly refusing to load state from peer: peer's epoch is behind our local epoch")
            return None
        local = [*self._opt_parameters(), *self.extra_tensors]
        if [tensor.shape for tensor in local] != [tensor.shape for tensor in tensors[: len(local)]]:
            logger.error("a peer shares the state of another model: it is not taken over")
            return None
        if not are_finite(tensors[: len(local)]):
            logger.error("a peer shares a state with values that are not finite: it is not taken over")
            return None
        with torch.no_grad(), self.lock_optimizer, self.lock_averaged_tensors:
            try:
                load_optimizer_state(self.optimizer, metadata["optimizer_metadata"], tensors[len(local) :])
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                logger.error("a peer's state of the optimizer does not fit: %s", error)
                return None
            for tensor, downloaded in zip(local, tensors):
                tensor.copy_(downloaded)
            if self.reuse_tensors:
                self._rebind()
        if self.offload_optimizer:
            self._apply_optimizer_parameters_()
        if not self.reuse_tensors:
            self._load_local_tensors_into_averager_()
        self.local_epoch = epoch
        self._update_scheduler()
        return loaded

    def shutdown(self) -> None:
        super().shutdown()
        # A thread that computes while the interpreter ends may abort the process.
        self.step_executor.shutdown(self.shutdown_timeout)
