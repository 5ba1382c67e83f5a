"""GradientAverager and TrainingAverager: averagers of what a trainer has. Needs torch."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import operator
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from . import _events, _native
from ._native import check, lib
from ._torch import torch
from .averaging import DecentralizedAverager, StepControl
from .compression import CompressionInfo, TensorRole, _described
from .dht import DHT
from .futures import seconds
from .timed import DHTExpiration

logger = logging.getLogger("cohive.averaging")

GradientAveragerFactory = Callable[..., "GradientAverager"]

#: bounds what peers claim, who may lie
_MOST_EPOCHS = 2**48
_MOST_STEPS = 1e15  # is kMostSteps of the library
_OF_STATISTICS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: a schedule makes no more steps than these at once: some seconds
_MOST_STEPS_AT_ONCE = 10**6


# ---- Structures of optimizers, flat and back, in hivemind's order


def nested_flatten(structure: Any) -> Iterator[Any]:
    """The leaves of lists, tuples and dicts; those of a dict by sorted key."""
    if isinstance(structure, (list, tuple)):
        for part in structure:
            yield from nested_flatten(part)
    elif isinstance(structure, dict):
        for key in sorted(structure):
            yield from nested_flatten(structure[key])
    else:
        yield structure


def nested_pack(flat: Iterable[Any], structure: Any) -> Any:
    """The structure again, with other leaves."""
    leaves = iter(flat)

    def pack(part: Any) -> Any:
        if isinstance(part, tuple) and hasattr(part, "_fields"):
            return type(part)(*[pack(one) for one in part])
        if isinstance(part, (list, tuple)):
            return type(part)(pack(one) for one in part)
        if isinstance(part, dict):
            return {key: pack(part[key]) for key in sorted(part)}
        return next(leaves)

    return pack(structure)


def parameter_groups(params: Any) -> List[Dict[str, Any]]:
    """Groups, each with a list of parameters, of parameters or groups. TypeError for anything else, ValueError for a
    parameter that is there twice."""
    groups = list(params)
    if all(isinstance(one, torch.Tensor) for one in groups):
        groups = [dict(params=groups)]
    made = []
    for group in groups:
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError("params are parameters, or groups with a list of them under 'params'")
        own = group["params"]
        made.append(dict(group, params=[own] if isinstance(own, torch.Tensor) else list(own)))
    parameters = [parameter for group in made for parameter in group["params"]]
    if not all(isinstance(parameter, torch.Tensor) for parameter in parameters):
        raise TypeError("params are parameters, or groups with a list of them under 'params'")
    if len({id(parameter) for parameter in parameters}) != len(parameters):
        raise ValueError("Found duplicate parameters in param_groups")
    return made


def makes_optimizer(optimizer: Any) -> bool:
    """Whether it makes an optimizer of parameters, rather than being one."""
    return callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer)


def samples_of(batch_size: Optional[int], usual: Optional[int]) -> int:
    """The samples of a batch. ValueError where neither the call nor the optimizer says how many, or it is no number."""
    samples = usual if batch_size is None else batch_size
    if samples is None:
        raise ValueError("Please either set batch_size_per_step parameter at init or when calling .step")
    return number_of_samples(samples, "batch_size")


def number_of_samples(value: Any, name: str) -> int:
    """A whole number from 1 on, also one of numpy; ValueError for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} is a number of samples, at least 1")
    return number


def zero_gradients(parameters: Iterable[Any], set_to_none: bool) -> None:
    """Forgets gradients, or makes them zero where they are."""
    for parameter in parameters:
        if set_to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.detach_().zero_()


def gradients_are_finite(parameters: Iterable[Any]) -> bool:
    """Whether no gradient holds NaN or infinity. Waits for each device once."""
    away: Dict[Any, List[Any]] = {}
    for one in parameters:
        if one.grad is None:
            continue
        values = one.grad.detach() if one.grad.layout == torch.strided else one.grad.detach().coalesce().values()
        if values.device.type != "cpu":
            away.setdefault(values.device, []).append(values)
        elif not bool(torch.isfinite(values).all()):
            return False
    largest = [torch.stack([one.float() for one in torch._foreach_norm(of, math.inf)]) for of in away.values()]
    return all(bool(torch.isfinite(one).all()) for one in largest)


def initialize_optimizer_state_(optimizer: Any, but: Iterable[Any] = ()) -> None:
    """Has an optimizer make its state by a step with zero gradients; gradients stay as they were.

    :param but: parameters that take no part in it, as they have no gradient then
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    old_grads = [parameter.grad for parameter in parameters]
    kept = {id(parameter) for parameter in but}
    for parameter in parameters:
        parameter.grad = None if id(parameter) in kept else torch.zeros_like(parameter)
    optimizer.step()
    for parameter, grad in zip(parameters, old_grads):
        parameter.grad = grad


def is_epoch(value: Any) -> bool:
    """Tells whether it may be the number of an epoch."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_EPOCHS


def is_count(steps: Any) -> bool:
    """Tells whether it may be how often an optimizer has stepped, in a tensor or not. Lossy codecs may have made the
    number a little smaller."""
    steps = plain(steps)
    if isinstance(steps, torch.Tensor):
        values = steps.double()
        return bool(((values > -0.5) & (values <= _MOST_STEPS)).all())
    return isinstance(steps, (int, float)) and -0.5 < steps <= _MOST_STEPS


# ---- Schedules of epochs


def follow_epoch(scheduler: Any, epoch: int) -> None:
    """Steps a schedule until it is at the epoch. Where that is further away than any run has come, as peers may lie, it
    makes one step there. SequentialLR and ChainedScheduler do not count their steps: they get the attribute by which
    torch's others do, which their state_dict() keeps."""
    if epoch - steps_of(scheduler) >= _MOST_STEPS_AT_ONCE:
        rewind(scheduler, epoch - 1)
    count = steps_of(scheduler)
    while count <= epoch:
        scheduler.step()
        count += 1
        scheduler._step_count = count


def steps_of(scheduler: Any) -> int:
    """How often a schedule was stepped; torch counts the first setting of the rates as a step. Some keep no count:
    SequentialLR has none, and CosineAnnealingWarmRestarts leaves it at 0."""
    return int(getattr(scheduler, "_step_count", 0) or getattr(scheduler, "last_epoch", 0) + 1)


def rewind(scheduler: Any, epoch: int) -> None:
    """Has a schedule, and those that it is made of, go on from an epoch. Rates stay as they are."""
    scheduler.last_epoch, scheduler._step_count = epoch, epoch + 1
    parts = getattr(scheduler, "_schedulers", ())
    milestones = getattr(scheduler, "_milestones", None)
    begins = [0] * len(parts) if milestones is None else [0, *milestones]
    ends = [epoch + 1] * len(parts) if milestones is None else [*milestones, epoch + 1]
    for part, begin, end in zip(parts, begins, ends):
        if begin <= epoch:
            rewind(part, min(epoch, end - 1) - begin)


def _on_host(tensor: Any) -> Any:
    return tensor.detach().cpu()


def plain(value: Any) -> Any:
    """A scalar of numpy, such as a rate that a schedule has computed, as a number of Python; all else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def dump_optimizer_state(
    optimizer: Any, on_host: Callable[[Any], Any] = _on_host
) -> Tuple[List[Dict[str, Any]], List[Any]]:
    """The optimizer's state_dict() as metadata and tensors."""
    metadata: List[Dict[str, Any]] = []
    tensors: List[Any] = []
    for leaf in nested_flatten(optimizer.state_dict()):
        if isinstance(leaf, torch.Tensor):
            metadata.append(dict(type="tensor", index=len(tensors)))
            tensors.append(on_host(leaf))
        else:
            metadata.append(dict(type="value", value=plain(leaf)))
    return metadata, tensors


def dump_training_state(
    parameters: Sequence[Any],
    names: Sequence[Any],
    extras: Sequence[Any],
    optimizer: Any,
    on_host: Callable[[Any], Any] = _on_host,
) -> Tuple[List[Dict[str, Any]], List[Any], List[CompressionInfo]]:
    """The optimizer's metadata, all tensors of a state in the order in which newcomers get them, and what each is."""
    metadata, statistics = dump_optimizer_state(optimizer, on_host)
    infos = [
        CompressionInfo.from_tensor(tensor, key=name, role=TensorRole.PARAMETER)
        for tensor, name in zip(parameters, names)
    ]
    infos += [CompressionInfo.from_tensor(tensor, key=at) for at, tensor in enumerate(extras)]
    infos += [
        CompressionInfo.from_tensor(tensor, key=at, role=TensorRole.OPTIMIZER) for at, tensor in enumerate(statistics)
    ]
    return metadata, [*parameters, *extras, *statistics], infos


def load_optimizer_state(optimizer: Any, metadata: Sequence[Dict[str, Any]], tensors: Sequence[Any]) -> None:
    """The reverse. ValueError for a state that is not one of this optimizer."""
    leaves = [tensors[leaf["index"]] if leaf.get("type") == "tensor" else leaf["value"] for leaf in metadata]
    own = optimizer.state_dict()
    kept = list(nested_flatten(own))
    if len(leaves) != len(kept) or not all(map(_replaces, leaves, kept)):
        raise ValueError("the state of another optimizer")
    packed = nested_pack(leaves, own)
    if not all(is_count(one["step"]) for one in packed["state"].values() if "step" in one):
        raise ValueError("a number of steps that is none")
    if not are_finite(leaves):
        raise ValueError("statistics that are not finite")
    with torch.no_grad():
        optimizer.load_state_dict(packed)
    make_usable(optimizer)


def are_finite(values: Iterable[Any]) -> bool:
    """Tells whether no tensor among them has NaN or infinity."""
    tensors = [one for one in values if isinstance(one, torch.Tensor) and one.is_floating_point()]
    return all(bool(torch.isfinite(one).all()) for one in tensors)


def make_usable(optimizer: Any) -> None:
    """Has the next step be able to use what codecs and peers have left of an optimizer's statistics: no square is below
    zero, and no mean beyond what the squares beside it allow."""
    kept = {}
    for at, parameter in enumerate(one for group in optimizer.param_groups for one in group["params"]):
        for name, value in optimizer.state[parameter].items() if parameter in optimizer.state else ():
            if isinstance(value, torch.Tensor) and value.dtype in _OF_STATISTICS and value.layout == torch.strided:
                kept[f"optimizer.{at}.{name}"] = value.detach()
    described = [_described(value, "NONE") for value in kept.values()]
    names = (ctypes.c_char_p * max(len(kept), 1))(*[name.encode() for name in kept])
    check(lib.cohive_statistics_make_usable(_native.tensor_array(described), names, len(described)))
    with torch.no_grad():
        for value, one in zip(kept.values(), described):
            if one.values.data_ptr() != value.data_ptr():
                value.copy_(one.values)


def _replaces(given: Any, own: Any) -> bool:
    """Tells whether a leaf of a state may take the place of ours: of a tensor one of its shape, a number where it has
    one value, or None, as torch has it for a parameter that never had a gradient; of a number, such as a rate, a finite
    one."""
    if given is None:
        return True
    is_number = isinstance(given, (int, float)) and math.isfinite(given)
    if isinstance(own, torch.Tensor):
        return getattr(given, "shape", None) == own.shape or (own.numel() == 1 and is_number)
    if isinstance(own, (int, float)):
        return is_number or (isinstance(given, torch.Tensor) and given.numel() == 1)
    return True


class GradientAverager(DecentralizedAverager):
    """Accumulates gradients and averages them with peers.

    ::

        loss.backward()
        averager.accumulate_grads_(batch_size=32)
        ...
        averager.step()
        with averager.use_averaged_gradients():
            optimizer.step()

    :param parameters: whose gradients; a missing one counts as zeros
    :param reuse_grad_buffers: accumulate in `.grad` itself, which the caller then must not set to zero
    :param accumulate_grads_on: device of the accumulators; default: that of the parameters
    :param warn: of averages that nobody used, and accumulators that nobody reset
    :param averaged_grads: tensors for the averages; default: new ones in host memory
    :param kwargs: those of DecentralizedAverager
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        dht: DHT,
        prefix: str,
        reuse_grad_buffers: bool = False,
        accumulate_grads_on: Optional[Any] = None,
        client_mode: Optional[bool] = None,
        warn: bool = True,
        averaged_grads: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        if reuse_grad_buffers and accumulate_grads_on is not None:
            logger.warning("Setting 'accumulate_grads_on' has no effect if reuse_grad_buffers=True")
        self.parameters = tuple(parameters)
        self.reuse_grad_buffers, self.warn = reuse_grad_buffers, warn
        self.local_samples_accumulated = self.local_times_accumulated = 0
        self._anchor_batch_size: Optional[float] = None
        self._local_accumulators: Optional[Tuple[Any, ...]] = None
        if not reuse_grad_buffers:
            self._local_accumulators = tuple(
                torch.zeros_like(grad, device=accumulate_grads_on) for grad in self._grads_from_parameters()
            )
        self._accumulators_used_in_step = self._new_averaged_grads = False
        with torch.no_grad():
            if not averaged_grads:
                averaged_grads = tuple(grad.detach().cpu().clone() for grad in self._grads_from_parameters())
            elif [grad.shape for grad in averaged_grads] != [grad.shape for grad in self._grads_from_parameters()]:
                raise ValueError("Averaged gradients don't have same shape as gradients from parameters")
        super().__init__(averaged_grads, dht, prefix=prefix, client_mode=client_mode, **kwargs)

    def _grads_from_parameters(self) -> Iterator[Any]:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            yield parameter.grad

    def _grad_accumulators(self) -> Iterator[Any]:
        yield from self._grads_from_parameters() if self._local_accumulators is None else self._local_accumulators

    def accumulate_grads_(self, batch_size: int) -> None:
        """Adds the gradients of a batch, weighted by its samples."""
        if not batch_size > 0:
            raise ValueError(f"a batch has at least one sample, not {batch_size!r}")
        if self._accumulators_used_in_step and self.warn:
            logger.warning(
                "[warn=True] Gradient accumulators were not reset since the last averaging round. Please "
                "call .reset_accumulated_grads_ after every step or use .step(reset_accumulators=True)"
            )
            self._accumulators_used_in_step = False  # once a round
        if self._anchor_batch_size is None:
            self._anchor_batch_size = batch_size
        self.local_samples_accumulated += batch_size
        self.local_times_accumulated += 1
        if self._local_accumulators is None:
            return
        share = float(batch_size) / self._anchor_batch_size
        with torch.no_grad():
            for grad, accumulator in zip(self._grads_from_parameters(), self._local_accumulators):
                accumulator.add_(grad.to(accumulator.device), alpha=share)

    def schedule_step(self, scheduled_time: Optional[DHTExpiration] = None, **kwargs: Any) -> StepControl:
        """Begins to look for a group, for step(control=...)."""
        if kwargs.get("weight") is not None:
            raise ValueError("setting weight in schedule_step is not supported")
        control = super().step(scheduled_time=scheduled_time, wait=False, require_trigger=True, **kwargs)
        assert isinstance(control, StepControl)
        return control

    def step(  # type: ignore[override]
        self,
        weight: Optional[float] = None,
        reset_accumulators: bool = True,
        control: Optional[StepControl] = None,
        timeout: Optional[float] = None,
        wait: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Averages the accumulated gradients.

        :param weight: default: the samples accumulated
        :param reset_accumulators: begin to accumulate anew
        :param control: of schedule_step(), used once
        :param timeout: seconds for the round
        :param wait: return {PeerID: what it gave}; else the control at once
        """
        if control is None:
            control = self.schedule_step(timeout=timeout, **kwargs)
        elif kwargs:
            raise RuntimeError(f"Averaging with a pre-scheduled group, parameters {kwargs} will have no effect")
        if control.triggered:
            raise ValueError(f"This {type(control)} instance was already used")
        if self._new_averaged_grads and self.warn:
            logger.warning(
                "[warn=True] Starting new averaging round, but previous round results were not used. "
                "This may be a sign of incorrect optimizer behavior"
            )
        self.load_accumulators_into_averager_()
        self._accumulators_used_in_step = self._new_averaged_grads = True
        control.weight = self.local_samples_accumulated if weight is None else weight
        if reset_accumulators:
            self.reset_accumulated_grads_()
        control.allow_allreduce()
        return control.result(seconds(timeout)) if wait else control

    def load_accumulators_into_averager_(self) -> None:
        """Puts the mean of what was accumulated where it will be averaged."""
        scale = 1.0 / self.local_times_accumulated if self.local_times_accumulated else 0.0
        with torch.no_grad(), self.get_tensors() as averaged_grads:
            for accumulator, averaged in zip(self._grad_accumulators(), averaged_grads):
                averaged.copy_(accumulator).mul_(scale)

    def reset_accumulated_grads_(self) -> None:
        """Begins to accumulate anew."""
        self._accumulators_used_in_step = False
        self.local_samples_accumulated = self.local_times_accumulated = 0
        self._anchor_batch_size = None
        with torch.no_grad():
            for accumulator in self._grad_accumulators():
                accumulator.zero_()

    @contextlib.contextmanager
    def use_averaged_gradients(self) -> Iterator[Sequence[Any]]:
        """Has the parameters' `.grad` be the averages, while the context lasts."""
        self._new_averaged_grads = False
        with self.get_tensors() as averaged_grads:
            old_grads = [parameter.grad for parameter in self.parameters]
            try:
                for parameter, grad in zip(self.parameters, averaged_grads):
                    parameter.grad = grad
                yield averaged_grads
            finally:
                for parameter, grad in zip(self.parameters, old_grads):
                    parameter.grad = grad

    def notify_used_averaged_gradients(self) -> None:
        """The averages were used otherwise."""
        self._new_averaged_grads = False


class PowerSGDGradientAverager(GradientAverager):
    """Averages large gradients by low-rank factors (https://arxiv.org/abs/1905.13727): of a matrix of m rows and n
    columns, (m + n) * averager_rank values travel. All peers must have the same rank and ratio.

    :param averager_rank: columns of the factors
    :param min_compression_ratio: gradients of which the factors save less than this share are averaged as they are
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        averager_rank: int,
        *,
        dht: DHT,
        prefix: str,
        min_compression_ratio: float = 0.5,
        **kwargs: Any,
    ) -> None:
        if not 0 <= min_compression_ratio <= 1:
            raise ValueError("min_compression_ratio is from 0 to 1")
        self.rank, self.min_compression_ratio = averager_rank, min_compression_ratio
        super().__init__(parameters, dht=dht, prefix=prefix, **kwargs)

    def _more_options(self) -> Dict[str, Any]:
        return {"averager_rank": self.rank, "min_compression_ratio": self.min_compression_ratio}


class TrainingAverager(DecentralizedAverager):
    """Averages the parameters, gradients or statistics of an optimizer.

    :param opt: an optimizer of torch
    :param average_parameters: average parameters in step()
    :param average_gradients: average gradients in step()
    :param average_opt_statistics: names of tensors in the optimizer's state, such as "exp_avg"
    :param extra_tensors: averaged and shared, too
    :param initialize_optimizer: have the optimizer make its state by a step with zero gradients
    :param kwargs: those of DecentralizedAverager
    """

    def __init__(
        self,
        opt: Any,
        *,
        average_parameters: bool,
        average_gradients: bool,
        average_opt_statistics: Sequence[str] = (),
        extra_tensors: Sequence[Any] = (),
        parameter_names: Optional[Sequence[Any]] = None,
        initialize_optimizer: bool = True,
        **kwargs: Any,
    ) -> None:
        if initialize_optimizer:
            initialize_optimizer_state_(opt)
        self.opt, self.extra_tensors, self.local_step = opt, tuple(extra_tensors), 0
        self.opt_statistics = tuple(average_opt_statistics)
        self.average_parameters, self.average_gradients = average_parameters, average_gradients
        # As hivemind numbers them: anew in each group.
        self.parameter_names = tuple(
            parameter_names or (at for group in opt.param_groups for at in range(len(group["params"])))
        )
        self.step_executor = _events.Executor(1, "cohive-training-averager")
        self.lock_averager_step = threading.Lock()
        with torch.no_grad():
            averaged = [tensor.detach().cpu().float().clone() for tensor in self.local_tensors()]
        super().__init__(averaged, tensor_infos=list(self._tensor_infos()), **kwargs)

    def _parameters(self) -> List[Any]:
        return [parameter for group in self.opt.param_groups for parameter in group["params"]]

    def step(self, data_lock: Optional[Any] = None, wait: bool = True, **kwargs: Any) -> Any:  # type: ignore[override]
        """Averages, and puts the averages back.

        :param data_lock: held whenever tensors are read and written, which may change meanwhile: what changes is kept
        """
        if not wait:
            return self.step_executor.submit(self.step, data_lock, wait=True, **kwargs)
        lock: Any = contextlib.nullcontext() if data_lock is None else data_lock
        local = list(self.local_tensors())
        with self.lock_averager_step, torch.no_grad():
            with lock, self.get_tensors() as averaged_tensors:
                old = [tensor.detach().cpu().float().clone() for tensor in local] if data_lock is not None else None
                for averaged, tensor in zip(averaged_tensors, local):
                    averaged.copy_(tensor)
            gathered = super().step(**kwargs)
            with lock, self.get_tensors() as averaged_tensors:
                for at, (averaged, tensor) in enumerate(zip(averaged_tensors, local)):
                    if old is None:
                        tensor.copy_(averaged)
                    else:
                        tensor.add_((averaged - old[at]).to(dtype=tensor.dtype, device=tensor.device))
                if self.opt_statistics:
                    make_usable(self.opt)
            self.local_step += 1
            return gathered

    def local_tensors(self) -> Iterator[Any]:
        """What is averaged, in order: parameters, gradients, statistics by name, extra tensors."""
        parameters = self._parameters()
        if self.average_parameters:
            yield from parameters
        if self.average_gradients:
            for parameter in parameters:
                yield torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name in self.opt_statistics:
            yield from (self.opt.state[parameter][name] for parameter in parameters)
        yield from self.extra_tensors

    def _tensor_infos(self) -> Iterator[CompressionInfo]:
        parameters = self._parameters()
        if self.average_parameters:
            for parameter, key in zip(parameters, self.parameter_names):
                yield CompressionInfo.from_tensor(parameter, key=key, role=TensorRole.PARAMETER)
        if self.average_gradients:
            for parameter, key in zip(parameters, self.parameter_names):
                yield CompressionInfo.from_tensor(parameter, key=key, role=TensorRole.GRADIENT)
        for name in self.opt_statistics:
            for parameter, key in zip(parameters, self.parameter_names):
                statistic = self.opt.state[parameter][name]
                yield CompressionInfo.from_tensor(statistic, key=(key, name), role=TensorRole.OPTIMIZER)
        for at, tensor in enumerate(self.extra_tensors):
            yield CompressionInfo.from_tensor(tensor, key=at, role=TensorRole.UNSPECIFIED)

    def get_current_state(self) -> Tuple[Any, ...]:
        """Parameters, extra tensors, and the optimizer's state."""
        with torch.no_grad():
            parameters = [parameter.detach().cpu() for parameter in self._parameters()]
            extras = [tensor.detach().cpu() for tensor in self.extra_tensors]
            metadata, tensors, infos = dump_training_state(parameters, self.parameter_names, extras, self.opt)
        told = dict(step=self.local_step, group_bits=self.get_group_bits(), optimizer_metadata=metadata)
        return told, tensors, infos

    def load_state_from_peers(self, wait: bool = True, timeout: Optional[float] = None) -> Any:
        """Downloads the newest state and takes it over; returns it, or None where there is none."""
        if not wait:
            return self.step_executor.submit(self.load_state_from_peers, True, timeout)
        loaded = super().load_state_from_peers(timeout=timeout)
        if loaded is None:
            return None
        metadata, tensors = loaded
        if not isinstance(metadata, dict) or not is_epoch(metadata.get("step")):
            raise ValueError("a peer shares a state that has no number of steps")
        local = [*self._parameters(), *self.extra_tensors]
        if [tensor.shape for tensor in local] != [tensor.shape for tensor in tensors[: len(local)]]:
            raise ValueError("a peer shares the state of another model")
        if not are_finite(tensors[: len(local)]):
            raise ValueError("a peer shares a state with values that are not finite")
        try:
            load_optimizer_state(self.opt, metadata["optimizer_metadata"], tensors[len(local) :])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError("a peer shares the state of another optimizer") from error
        with torch.no_grad():
            for tensor, downloaded in zip(local, tensors):
                tensor.copy_(downloaded)
        self.local_step = max(self.local_step, metadata["step"])
        return loaded

    def shutdown(self) -> None:
        super().shutdown()
        self.step_executor.shutdown(self.shutdown_timeout)
