"""LocalOptimizer: the ranks of one machine, processes of torch.distributed, train as one peer. Needs torch.

::

    every rank: the gradients of its batch > the process group > rank 0: their mean > Optimizer.step
    rank 0 > every rank: what the step did, and the parameters where it has changed them
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _events, _native
from ._torch import torch
from .dht import DHT
from .optim import gradients_are_finite, makes_optimizer, parameter_groups, samples_of, zero_gradients
from .optimizer import Optimizer, check_options

logger = logging.getLogger("cohive.train")
dist: Any = torch.distributed

_REPORTED = [field[0] for field in _native.StepReport._fields_]
_NOT_WITH_RANKS = ("reuse_grad_buffers", "use_local_updates", "auxiliary")
_BUCKET = 1 << 23  # values that are reduced at once: 32 MiB of float32
_PATIENCE = 60.0  # seconds beyond what rank 0 may be busy with the swarm
_ENDED = "a rank of this peer is gone, and the peer with it: start all of its ranks again"


class LocalOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """The Optimizer of a machine whose ranks are one peer of a run: only rank 0 has a DHT, and the optimizer's state.

    ::

        torch.distributed.init_process_group("nccl")  # or "gloo"; started by torchrun
        model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = cohive.LocalOptimizer(
            model, dht=lambda: cohive.DHT(peers, start=True, host_maddrs=["/ip4/0.0.0.0/tcp/31337"]),
            run_id="my_run", target_batch_size=4096, batch_size_per_step=32,
            params=model.parameters(), optimizer=torch.optim.Adam)
        while optimizer.local_epoch < 100:
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    All ranks call step(), load_state_from_peers(), average_parameters(), finish() and load_state_dict() in the same
    order, and hold the same parameters afterwards. Samples of all ranks count. A rank that is gone ends the others of
    its peer by a RuntimeError; the run goes on without them.

    :param model: the same on all ranks. Of a DistributedDataParallel the gradients are the mean over ranks already;
        those of another one are reduced here, weighted by samples
    :param dht: of rank 0, or what makes it there; ignored on other ranks
    :param process_group: the ranks of this machine; default: all
    :param gradients_are_reduced: backward() leaves the mean over ranks; default: as `model` is one of DDP
    :param rank_timeout: seconds to wait for another rank; default: as long as rank 0 may be busy with the swarm, and a
        minute
    :param params: of the model; default: all
    :param batch_size_per_step: samples of a batch of this rank, where step() is not told
    :param options: of Optimizer; not reuse_grad_buffers, use_local_updates and auxiliary
    :raises TypeError: a model of which each rank has a part, as FSDP's, or an option that Optimizer does not have
    :raises ValueError: options that contradict one another
    :raises RuntimeError: torch.distributed was not initialised, or rank 0 could not join
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: Any,
        *,
        dht: Union[DHT, Callable[[], DHT], None] = None,
        process_group: Optional[Any] = None,
        gradients_are_reduced: Optional[bool] = None,
        rank_timeout: Optional[float] = None,
        params: Optional[Any] = None,
        batch_size_per_step: Optional[int] = None,
        **options: Any,
    ) -> None:
        self._of_swarm: Optional[Optimizer] = None
        self._closed = False
        refuse_parts(model)
        check_options("LocalOptimizer", options)
        for name in _NOT_WITH_RANKS:
            if options.get(name):
                raise ValueError(f"several ranks that are one peer train without {name}")
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("LocalOptimizer needs torch.distributed.init_process_group() before, as under torchrun")
        self.batch_size_per_step = batch_size_per_step
        group = dist.group.WORLD if process_group is None else process_group
        self._source = dist.get_global_rank(group, 0)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._control: Optional[Any] = self._control_group(process_group, rank_timeout, options)
        #: for tensors on a GPU, where it has a backend for them
        self._given = None if dist.get_backend(group) == "gloo" else group
        _events.close_at_exit(self)
        ddp = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        self._reduced = ddp if gradients_are_reduced is None else gradients_are_reduced
        groups = parameter_groups(list(model.parameters()) if params is None else params)
        self._parameters = [one for group in groups for one in group["params"]]
        self._buffers = list(model.buffers())
        super().__init__([torch.zeros(1, requires_grad=True)], {})
        self._groups: List[Dict[str, Any]] = groups
        self._told: Dict[str, Any] = {"epoch": 0}
        self._shared_late = False
        self.last_report: Optional[_native.StepReport] = None
        self._check_same_model()

        def join() -> None:
            made = dht() if callable(dht) else dht
            if made is None:
                raise ValueError("rank 0 needs a DHT")
            self._of_swarm = Optimizer(
                dht=made, params=groups if makes_optimizer(options.get("optimizer")) else None, **options
            )

        self._led(join, changes=True)

    def _control_group(self, given: Optional[Any], timeout: Optional[float], options: Dict[str, Any]) -> Any:
        """A group of Gloo that is this object's own, so that it can end its threads: see shutdown()."""
        if timeout is None:
            busy = [options.get(name) or default for name, default in _BUSY.items()]
            timeout = sum(busy) + _PATIENCE
        how: Dict[str, Any] = dict(backend="gloo", timeout=datetime.timedelta(seconds=timeout))
        if given is not None:  # whose members alone are here
            how["use_local_synchronization"] = True
        return dist.new_group(dist.get_process_group_ranks(given or dist.group.WORLD), **how)

    def _group_of(self, values: Any) -> Any:
        """By which ranks exchange a tensor: GPUs by the given group."""
        return self._control if values.device.type == "cpu" else self._given or self._control

    def _check_same_model(self) -> None:
        mine = [(tuple(one.shape), str(one.dtype)) for one in [*self._parameters, *self._buffers]]
        all_of_them: List[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(all_of_them, mine, group=self._control)
        if any(other != all_of_them[0] for other in all_of_them):
            raise ValueError("the ranks of a peer have different models")

    # ---- Between ranks

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which speaks with the swarm."""
        return bool(self.rank == 0)

    @property
    def of_swarm(self) -> Optional[Optimizer]:
        """The Optimizer of rank 0; None on other ranks."""
        return self._of_swarm

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """What all ranks do: where one is gone, this one leaves the run, and where it has no memory for it, too."""
        if self._closed:
            raise RuntimeError("this optimizer was shut down")
        try:
            yield
        except torch.cuda.OutOfMemoryError:  # a RuntimeError that tells of itself
            self.shutdown()
            raise
        except RuntimeError as error:
            self.shutdown()
            raise RuntimeError(f"{_ENDED} ({error})") from error

    def _led(self, work: Callable[[], Any], changes: Optional[bool] = None) -> Any:
        """Has rank 0 do something, and all ranks know what came of it. Returns what it has returned.

        :param changes: whether it changes parameters; default: as the report of a step says
        """
        if self._of_swarm is not None:
            self._of_swarm._run.refuse_inside()  # in the handler of a signal: other ranks are in another call
        result, failure = None, None
        if self.leads:
            try:
                result = work()
            except BaseException as error:  # also KeyboardInterrupt: the others must not wait for ever
                failure = error
        told = [self._tell(result, failure, changes)] if self.leads else [None]
        try:
            with self._together():
                dist.broadcast_object_list(told, src=self._source, group=self._control)
        except RuntimeError:
            if failure is None:
                raise
        if failure is not None:
            raise failure
        self._told.update(told[0] or {})  # in place: Lightning's wrapper of an optimizer has a copy of its attributes
        if "failure" in self._told:
            self.shutdown()
            raise RuntimeError(f"rank 0 of this peer has failed: {self._told['failure']}")
        if self._told["changed"]:
            self._share()
        return self._told["result"]

    def _tell(self, result: Any, failure: Optional[BaseException], changes: Optional[bool]) -> Dict[str, Any]:
        """What rank 0 tells the others."""
        if failure is not None:
            return {"failure": f"{type(failure).__name__}: {failure}"}
        own = self._own()
        report = own.last_report
        if changes is None:
            assert report is not None
            changes = bool(report.epoch_changed or report.loaded_state or report.updated)
        changed = changes or self._shared_late
        self._shared_late = False
        told = {"result": result, "changed": changed, "epoch": own.local_epoch}
        if changed:
            told["stats"] = own.stats()
            told["settings"] = [{k: v for k, v in group.items() if k != "params"} for group in own.param_groups]
        return told

    def _share(self) -> None:
        """All ranks have the parameters of rank 0, and its buffers."""
        for group, settings in zip(self._groups, self._told["settings"]):
            group.update(settings)
        with self._together():
            share_tensors([*self._parameters, *self._buffers], self._source, self._group_of)

    # ---- Training

    def step(
        self,
        closure: Optional[Callable[[], Any]] = None,
        batch_size: Optional[int] = None,
        grad_scaler: Optional[Any] = None,
    ) -> Any:
        """After each batch, on all ranks; see Optimizer.step.

        :param batch_size: samples of this rank's batch, which may be others than those of other ranks
        :param grad_scaler: a cohive.GradScaler, on all ranks
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        samples = samples_of(batch_size, self.batch_size_per_step)
        of_torch = getattr(self, "found_inf", None) is not None  # which a scaler of torch leaves here for the call
        if of_torch or (grad_scaler is not None and not hasattr(grad_scaler, "_stepped")):
            raise ValueError("ranks of one peer take cohive.GradScaler")
        total = self._counted(samples)
        if grad_scaler is not None:
            grad_scaler._hand_over(self, self._of_swarm)

        def step() -> Tuple[Any, ...]:
            own = self._own()
            own.step(batch_size=total, grad_scaler=grad_scaler)
            found_inf = grad_scaler is not None and grad_scaler._found_inf
            return found_inf, *[getattr(own.last_report, name) for name in _REPORTED]

        found_inf, *reported = self._led(step)
        self.last_report = _native.StepReport(*reported)
        if grad_scaler is not None and not self.leads:
            grad_scaler._stepped(not found_inf, bool(self.last_report.epoch_changed))
        return loss

    def _counted(self, samples: int) -> int:
        """Samples of all ranks, whose gradients rank 0 has then."""
        has = [] if self._reduced else [one.grad is not None for one in self._parameters]
        counts = torch.tensor([samples, *has], dtype=torch.int64)
        with self._together():
            dist.all_reduce(counts, group=self._control)
        total = int(counts[0])
        if not self._reduced:
            with torch.no_grad(), self._together():
                used = [one for one, ranks in zip(self._parameters, counts[1:].tolist()) if ranks]
                for bucket in _buckets(used):
                    self._reduce(bucket, samples / total)
        return total

    def _reduce(self, parameters: Sequence[Any], weight: float) -> None:
        """The gradients of rank 0 are the weighted sum of those of all ranks."""
        parts = []
        for one in parameters:
            grad = torch.zeros_like(one) if one.grad is None else one.grad.detach()
            grad = grad.to_dense() if grad.layout != torch.strided else grad
            parts.append(grad.to(torch.float32).reshape(-1))
        flat = torch.cat(parts).mul_(weight)
        dist.reduce(flat, dst=self._source, group=self._group_of(flat))
        if self.leads:
            for one, values in zip(parameters, flat.split([one.numel() for one in parameters])):
                one.grad = values.reshape(one.shape).to(one.dtype)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of the last batch."""
        zero_gradients(self._parameters, set_to_none)

    def _gradients_are_finite(self) -> bool:
        return gradients_are_finite(self._parameters)

    def load_state_from_peers(self, wait: bool = True) -> bool:
        """On all ranks: see Optimizer.load_state_from_peers."""
        return bool(self._led(lambda: self._own().load_state_from_peers(wait), changes=True))

    def average_parameters(self) -> int:
        """On all ranks: see Optimizer.average_parameters."""
        return int(self._led(lambda: self._own().average_parameters(), changes=True))

    def finish(self) -> int:
        """On all ranks: see Optimizer.finish."""
        return int(self._led(lambda: self._own().finish(), changes=True))

    def report_loss(self, loss: float) -> None:
        """Shows the loss of a batch of rank 0 to monitors."""
        if self._of_swarm is not None:
            self._of_swarm.report_loss(loss)

    # ---- States

    @property
    def state(self) -> Any:
        """On rank 0 that of its Optimizer; elsewhere the epoch alone."""
        if self._of_swarm is not None:
            return self._of_swarm.state
        return {"local_epoch": self.local_epoch} if hasattr(self, "_groups") else {}

    @state.setter
    def state(self, _: Any) -> None:
        """torch.optim.Optimizer makes an empty one."""

    @property
    def param_groups(self) -> List[Any]:
        """On rank 0 those of its Optimizer, where settings count; elsewhere with the settings that these had last."""
        if self._of_swarm is not None:
            return self._of_swarm.param_groups
        return getattr(self, "_groups", [])

    @param_groups.setter
    def param_groups(self, _: Any) -> None:
        """torch.optim.Optimizer makes some of its own."""

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """A run has one list of parameters."""
        if hasattr(self, "_groups"):
            raise ValueError("Optimizer does not support calling add_param_group after creation")

    def state_dict(self) -> Dict[str, Any]:
        """On rank 0 that of its Optimizer; elsewhere the epoch alone."""
        if self._of_swarm is None:
            return {"state": {}, "param_groups": [], "local_epoch": self.local_epoch}
        self._shared_late = True  # what was delayed has come into place
        return self._of_swarm.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """On all ranks: goes on from what rank 0 is given."""
        self._led(lambda: self._own().load_state_dict(state_dict), changes=True)

    # ---- What it knows

    def _own(self) -> Optimizer:
        assert self._of_swarm is not None
        return self._of_swarm

    @property
    def local_epoch(self) -> int:
        """The epoch of this peer, as of the last call on all ranks."""
        return int(self._told["epoch"])

    @property
    def num_peers(self) -> int:
        """Trainers of the run in sight, this one included; on other ranks than 0 as of the last epoch."""
        return max(int(self.stats().get("peers", 1)), 1)

    def stats(self) -> Dict[str, Any]:
        """See Optimizer.stats; on other ranks than 0 as of the last epoch."""
        return dict(self._told.get("stats", {})) if self._of_swarm is None else self._of_swarm.stats()

    def is_alive(self) -> bool:
        """Whether it was not shut down."""
        return not self._closed

    def shutdown(self) -> None:
        """Leaves the run; on each rank, which waits for no other one. Idempotent."""
        if self._of_swarm is not None:
            self._of_swarm._run.refuse_inside()
        self._closed = True
        if self._of_swarm is not None:
            self._of_swarm.shutdown()
        self._end_control()

    def _end_control(self) -> None:
        """Ends the threads of Gloo. One that lets go of a tensor needs the interpreter's lock, and where that ends
        meanwhile, the process is aborted: "terminate called without an active exception"."""
        control, self._control, self._given = self._control, None, None
        if control is None:
            return
        with contextlib.suppress(ValueError, AssertionError):  # all groups were destroyed before
            dist.destroy_process_group(control)
        del control  # joins them

    def __repr__(self) -> str:
        return f"cohive.LocalOptimizer(rank {self.rank} of {self.size}, {self._of_swarm!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a collaborative optimizer belongs to its process: save its state_dict()")

    def __getstate__(self) -> Any:
        return self.__reduce__()


#: of options: the seconds that rank 0 may spend in one call, with their defaults
_BUSY = {"matchmaking_time": 15.0, "averaging_timeout": 60.0, "load_state_timeout": 600.0}


def share_tensors(tensors: Sequence[Any], source: int = 0, group_of: Callable[[Any], Any] = lambda _: None) -> None:
    """All ranks have the values of rank `source`, in the tensors that they have. They travel as bytes: Gloo does not
    know all types of values.

    :param group_of: by which process group a tensor is sent; default: the one of all ranks
    """
    with torch.no_grad():
        for one in tensors:
            if one.numel() == 0:
                continue
            values = one.detach().contiguous()
            dist.broadcast(values.reshape(-1).view(torch.uint8), src=source, group=group_of(values))
            if values.data_ptr() != one.data_ptr() and dist.get_rank() != source:
                one.copy_(values)


def refuse_parts(model: Any) -> None:
    """
    :raises TypeError: each rank has a part of the model
    """
    fsdp = getattr(getattr(dist, "fsdp", None), "FullyShardedDataParallel", ())
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    if not modules:
        raise TypeError("LocalOptimizer takes the model, a torch.nn.Module")
    if any(isinstance(one, fsdp) for one in modules) or any(hasattr(one, "to_local") for one in model.parameters()):
        raise TypeError(
            "ranks of one peer hold the whole model each: cohive trains with DistributedDataParallel, not with FSDP or "
            "DTensor"
        )


def _buckets(parameters: Sequence[Any]) -> Iterator[List[Any]]:
    """Parameters of one device each, of about _BUCKET values."""
    bucket: List[Any] = []
    for one in parameters:
        full = sum(other.numel() for other in bucket) + one.numel() > _BUCKET
        if bucket and (full or bucket[0].device != one.device):
            yield bucket
            bucket = []
        bucket.append(one)
    if bucket:
        yield bucket
