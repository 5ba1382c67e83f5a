"""LocalSGD and DiLoCo under the names of torchft (github.com/pytorch/torchft, torchft/local_sgd.py). Needs torch.

::

    dht = cohive.DHT(initial_peers, start=True, host_maddrs=["/ip4/0.0.0.0/tcp/31337"])
    manager = Manager(dht, run_id="my_run")
    outer_optimizer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with DiLoCo(manager, [model], inner_optimizer, outer_optimizer, sync_every=100):
        while manager.current_step() < 50:
            inner_optimizer.zero_grad()
            loss(model, batch).backward()
            inner_optimizer.step()

The inner optimizer steps by itself. A hook tells cohive's local steps of each one, and every `sync_every` of them the
peers of the run average: parameters (LocalSGD), or how far each has come, by which an outer optimizer steps (DiLoCo).
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Dict, List, Optional, Sequence, Type, Union

from ._torch import torch
from .compression import Uniform8BitQuantization
from .dht import DHT
from .optimizer import Optimizer, check_options

__all__ = ["DiLoCo", "LocalSGD", "Manager"]

#: What the samples of a run are here: a step of a peer among P counts _STEP / P, so that the peers together have
#: `sync_every` * _STEP when each has stepped `sync_every` times on average. All of 1 to 10 divide it.
_STEP = 5040
_SET_HERE = ("dht", "run_id", "target_batch_size", "batch_size_per_step", "optimizer", "params", "scheduler")
_SET_BY_DILOCO = ("use_local_updates", "outer_lr", "outer_momentum", "outer_nesterov", "outer_fragments")


class Manager:
    """The run in which peers train one model, in place of torchft's manager. It serves one LocalSGD or DiLoCo.

    :param dht: a DHT that was started
    :param run_id: one name per training run
    :param options: of cohive.Optimizer, as matchmaking_time, averaging_timeout, extra_tensors, load_state_compression
    :raises TypeError: an option that LocalSGD and DiLoCo set themselves, or that Optimizer does not have
    """

    def __init__(self, dht: DHT, run_id: str = "local_sgd", **options: Any) -> None:
        for name in options:
            if name in _SET_HERE + _SET_BY_DILOCO:
                raise TypeError(f"LocalSGD and DiLoCo set {name} themselves")
        check_options("Manager", options)
        self.dht, self.run_id, self.options = dht, run_id, options
        self._run: Optional[Optimizer] = None
        self._participants = 1

    def current_step(self) -> int:
        """How often the peers of the run have averaged."""
        return 0 if self._run is None else self._run.local_epoch

    def num_participants(self) -> int:
        """Peers of the last average, this one included; 1 where this one was alone."""
        return self._participants

    def shutdown(self, wait: bool = True) -> None:
        """Leaves the run, as the end of the ``with`` does. Idempotent."""
        if self._run is not None:
            self._run.shutdown()

    def _begin(self, options: Dict[str, Any]) -> Optimizer:
        if self._run is not None:
            raise RuntimeError("a Manager serves one LocalSGD or DiLoCo: make another one")
        self._run = Optimizer(dht=self.dht, run_id=self.run_id, **{**self.options, **options})
        try:
            self._run.load_state_from_peers()
        except BaseException:  # the `with` does not begin then, and nothing would leave the run at its end
            self._run.shutdown()
            self._run = None
            raise
        return self._run

    def _stepped(self) -> None:
        """After a local step."""
        assert self._run is not None
        run = self._run
        run.step(batch_size=max(1, round(_STEP / run.num_peers)))
        report = run.last_report
        if report is None:
            return
        # A round in the background is reported in a later step.
        round_is_over = not run.delay_state_averaging and run.average_state_every == 1
        if report.state_group:
            self._participants = int(report.state_group)
        elif report.epoch_changed and (round_is_over or run.num_peers == 1):
            self._participants = 1


class _Stepped:
    """The inner optimizer, which has stepped already when the run asks for a step."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.stepped = inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self) -> None:
        if not self.stepped:  # the one that makes the optimizer's tensors
            self._inner.step()


class _Synchronized:
    """What LocalSGD and DiLoCo share: hooks on the steps of an optimizer, inside of ``with``."""

    def __init__(self, manager: Manager, models: Sequence[Any], optimizer: Any, sync_every: int) -> None:
        if not isinstance(manager, Manager):
            raise TypeError("the manager is a cohive.local_sgd.Manager: it knows the run")
        if not isinstance(sync_every, int) or sync_every < 1:
            raise ValueError("sync_every is a number of local steps, at least 1")
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, Optimizer):
            raise TypeError("the optimizer of local steps is one of torch, which is made already")
        _check_model(models, optimizer)
        self._manager, self._optimizer = manager, optimizer
        self._options: Dict[str, Any] = dict(
            target_batch_size=sync_every * _STEP, use_local_updates=True, delay_state_averaging=False
        )
        self._hooks: List[Any] = []

    def _enter(self) -> None:
        proxy = _Stepped(self._optimizer)
        self._manager._begin({**self._options, "optimizer": proxy})
        proxy.stepped = True
        self._hooks.append(self._optimizer.register_step_post_hook(lambda *_: self._manager._stepped()))

    def __exit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc_value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._manager.shutdown()


class LocalSGD(_Synchronized):
    """Averages the parameters of all peers every `sync_every` local steps (arXiv:1805.09767). A context manager: inside
    of it `optimizer.step()` averages by itself, and at its end this peer leaves the run.

    A newcomer takes the parameters and the optimizer's statistics of a peer before its first step. Who has stepped more
    often weighs more. Nobody waits for a slow peer: `sync_every` is the mean over peers.

    :param manager: the run
    :param model: whose parameters the optimizer steps
    :param optimizer: any one of torch
    :param sync_every: local steps between two averages
    :raises ValueError: a number or an optimizer that does not fit
    """

    def __init__(self, manager: Manager, model: Any, optimizer: Any, sync_every: int) -> None:
        super().__init__(manager, [model], optimizer, sync_every)

    def __enter__(self) -> "LocalSGD":
        self._enter()
        return self

    def sync(self) -> int:
        """Averages the parameters now, with the peers that do the same. Returns their number; 0: none was found."""
        if self._manager._run is None:
            raise RuntimeError("sync() has a meaning inside of `with LocalSGD(...)` alone")
        return self._manager._run.average_parameters()


class DiLoCo(_Synchronized):
    """Averages every `sync_every` local steps how far the peers have come, and has an outer optimizer step by it
    (arXiv:2311.08105). A context manager, as LocalSGD is; docs/local-steps.md has what happens in a round.

    :param manager: the run
    :param model_fragments: whose parameters the inner optimizer steps: modules, or one. As many parts of the model, of
        about equal size and the same for all peers, are averaged in turn
    :param inner_optimizer: of local steps, any one of torch
    :param outer_optimizer: a torch.optim.SGD, of which lr, momentum and nesterov count, the same on all peers; or one
        for each fragment, all alike. It is not stepped itself
    :param sync_every: local steps between two averages of a fragment, a multiple of the number of fragments, of which
        one is averaged at a time
    :param backup_device: has no meaning here, as the four after it but `should_quantize`: anchors are in host memory
    :param should_quantize: what is averaged is sent with 8 bits a value
    :param fragment_sync_delay: above 0, rounds are in the background, and the peer steps on meanwhile, however long
        they take
    :param fragment_update_alpha: 0: what a peer steps during a round in the background is added to its result
    :raises TypeError: an outer optimizer that is no SGD
    :raises ValueError: numbers or settings that do not fit
    """

    def __init__(
        self,
        manager: Manager,
        model_fragments: Union[Any, List[Any]],
        inner_optimizer: Any,
        outer_optimizer: Union[Any, List[Any]],
        sync_every: int,
        backup_device: Optional[Any] = None,
        pin_memory: bool = True,
        use_bucketization: bool = False,
        bucket_cap_mb: Optional[int] = None,
        should_quantize: bool = False,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
    ) -> None:
        models = [model_fragments] if isinstance(model_fragments, torch.nn.Module) else list(model_fragments)
        super().__init__(manager, models, inner_optimizer, sync_every)
        several = isinstance(outer_optimizer, (list, tuple))
        if several and len(outer_optimizer) != len(models):
            raise ValueError("there is one outer optimizer, or one for each fragment of the model")
        if sync_every % len(models):
            raise ValueError("sync_every is a multiple of the number of fragments: one is averaged at a time")
        if not isinstance(fragment_sync_delay, int) or not 0 <= fragment_sync_delay < sync_every // len(models):
            raise ValueError(
                "fragment_sync_delay is a number of local steps, from 0 on and below sync_every / number of fragments"
            )
        if fragment_update_alpha != 0:
            raise ValueError("fragment_update_alpha is 0: local steps during a round are added to what it brings")
        self._options.update(_outer_options(list(outer_optimizer) if several else [outer_optimizer]))
        self._options["delay_state_averaging"] = fragment_sync_delay > 0
        if len(models) > 1:
            self._options.update(outer_fragments=len(models), target_batch_size=sync_every // len(models) * _STEP)
        if should_quantize:
            self._options["grad_compression"] = Uniform8BitQuantization()

    def __enter__(self) -> "DiLoCo":
        self._enter()
        return self


def _check_model(models: Sequence[Any], optimizer: Any) -> None:
    if not models or not all(isinstance(one, torch.nn.Module) for one in models):
        raise TypeError("what is averaged is a torch.nn.Module, or a list of them")
    own = {id(one) for model in models for one in model.parameters()}
    trained = {id(one) for model in models for one in model.parameters() if one.requires_grad}
    stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if not trained <= stepped <= own:
        raise ValueError("the optimizer of local steps has other parameters than the model")


def _outer_options(optimizers: Sequence[Any]) -> Dict[str, Any]:
    """The settings of the outer optimizer, which the library steps itself."""
    found = []
    for one in optimizers:
        if not isinstance(one, torch.optim.SGD):
            raise TypeError("the outer optimizer is a torch.optim.SGD, with momentum and nesterov as you like")
        for group in one.param_groups:
            if group["weight_decay"] or group["dampening"] or group.get("maximize"):
                raise ValueError("the outer optimizer has no weight_decay, dampening and maximize")
            found.append(tuple(float(group[name]) for name in ("lr", "momentum", "nesterov")))
    lr, momentum, nesterov = found[0]
    if any(other != found[0] for other in found):
        raise ValueError("the outer optimizer has the same settings for all parameters")
    if not math.isfinite(lr) or lr <= 0:
        raise ValueError("the outer optimizer has a learning rate above 0")
    return dict(outer_lr=lr, outer_momentum=momentum, outer_nesterov=bool(nesterov))
