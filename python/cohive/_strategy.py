"""HivemindStrategy, made for one of the packages that Lightning comes in."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from . import as_hivemind
from ._ranks import make_ranks
from ._torch import torch
from .distributed import LocalOptimizer
from .joining import addresses_for_others, join_line
from .optim import follow_epoch, steps_of
from .optimizer import Optimizer, check_options

logger = logging.getLogger("cohive.lightning")

_DEFAULT_ADDRESSES = ["/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic"]
_VARIABLES = ("INITIAL_PEERS", "PL_INITIAL_PEERS")
_SET_HERE = ("dht", "batch_size_per_step", "optimizer", "params", "scheduler")  # of Optimizer
_OF_RANKS = ("process_group", "gradients_are_reduced", "rank_timeout")  # of LocalOptimizer
_SCHEDULED = ("lr", "momentum", "betas")  # what schedules of torch set in the groups of an optimizer


def _api() -> Any:
    """The package whose DHT and Optimizer are used: what stands in for hivemind, where something does."""
    return importlib.import_module("hivemind" if as_hivemind.is_installed() else "cohive")


class HiveMindScheduler:
    """A schedule that follows the epochs of a run, however often Lightning steps it."""

    def __init__(self, optimizer: Any, scheduler: Any, steps: int = 0) -> None:
        self.__dict__ = {name: value for name, value in scheduler.__dict__.items() if name not in ("step", "__del__")}
        self.optimizer, self.scheduler = optimizer, scheduler
        self.current_step = self.__dict__.pop("cohive_step", steps)  # of a checkpoint, which Lightning has loaded

    def step(self, epoch: Optional[int] = None) -> None:
        """Moves the schedule to the epoch of the run."""
        missing = self.optimizer.local_epoch - self.current_step
        if missing > 0:
            self.scheduler.optimizer._opt_called = True
            follow_epoch(self.scheduler, steps_of(self.scheduler) - 1 + missing)
            self.current_step += missing
        self._copy_settings()

    def _copy_settings(self) -> None:
        """Gives what the schedule has set to an optimizer that was made anew, on copies of the parameters."""
        for ours, theirs in zip(self.optimizer.param_groups, self.scheduler.optimizer.param_groups):
            for name in _SCHEDULED:
                if name in theirs and ours.get(name) != theirs[name]:
                    ours[name] = theirs[name]

    def get_last_lr(self) -> Any:
        return self.scheduler.get_last_lr()

    def state_dict(self) -> Dict[str, Any]:
        return dict(self.scheduler.state_dict(), cohive_step=self.current_step)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        state = dict(state_dict)
        self.current_step = state.pop("cohive_step", self.current_step)
        self.scheduler.load_state_dict(state)


def _packages(package: str) -> Dict[str, Any]:
    """What the strategy needs of "lightning.pytorch" or "pytorch_lightning"."""
    found = {"pl": importlib.import_module(package)}
    for name in (
        "strategies",
        "accelerators",
        "plugins.precision",
        "utilities.data",
        "utilities.exceptions",
        "utilities.model_helpers",
        "utilities.rank_zero",
    ):
        found[name.split(".")[-1]] = importlib.import_module(f"{package}.{name}")
    return found


@functools.lru_cache(maxsize=None)
def make_strategy(package: str) -> type:
    """HivemindStrategy for "lightning.pytorch" or "pytorch_lightning", which is registered there as "hivemind"."""
    parts = _packages(package)
    refused = parts["exceptions"].MisconfigurationException
    warn = parts["rank_zero"].rank_zero_warn
    accelerators = parts["accelerators"]

    class HivemindStrategy(make_ranks(package)):  # type: ignore[misc]
        """Trains one model together with other machines, which run the same command; see cohive.Optimizer. Several
        devices of one machine are one peer; see cohive.LocalOptimizer.

        :param target_batch_size: samples of a step of the optimizer, of all peers together
        :param run_id: one name per training run
        :param batch_size: samples of a batch; default: those of each batch, by its first tensor
        :param scheduler_fn: makes the schedule of an optimizer that is made anew; without it, that of
            configure_optimizers() is followed
        :param reuse_grad_buffers: gradients add up in the model's ``.grad``: zero_grad is turned off
        :param initial_peers: addresses, with commas or as a list; default: those in INITIAL_PEERS or PL_INITIAL_PEERS
        :param host_maddrs: to listen on; default: all interfaces, a free port
        :param use_ipfs: has no meaning here; a ValueError without initial_peers
        :param dht_opts: more keywords of cohive.DHT: metrics_address, announce_maddrs, secret_file, max_upload, ...
        :param optimizer_kwargs: of cohive.Optimizer, as the others are
        """

        strategy_name = "hivemind"
        optimizers: List[Any]
        INITIAL_PEERS_ENV = "PL_INITIAL_PEERS"

        def __init__(
            self,
            target_batch_size: int,
            run_id: str = "lightning_run",
            batch_size: Optional[int] = None,
            delay_state_averaging: bool = False,
            delay_optimizer_step: Optional[bool] = None,
            delay_grad_averaging: bool = False,
            offload_optimizer: Optional[bool] = None,
            reuse_grad_buffers: bool = False,
            scheduler_fn: Optional[Callable[[Any], Any]] = None,
            matchmaking_time: float = 5.0,
            averaging_timeout: float = 30.0,
            verbose: bool = False,
            averager_opts: Optional[Dict[str, Any]] = None,
            host_maddrs: Optional[List[Any]] = None,
            initial_peers: Optional[Union[str, List[Any]]] = None,
            use_ipfs: bool = False,
            wait_timeout: float = 3,
            bootstrap_timeout: Optional[float] = None,
            use_relay: bool = True,
            use_auto_relay: bool = False,
            identity_path: Optional[str] = None,
            dht_opts: Optional[Mapping[str, Any]] = None,
            **optimizer_kwargs: Any,
        ) -> None:
            of_optimizer = [name for name in optimizer_kwargs if name not in _OF_RANKS]
            check_options("HivemindStrategy", of_optimizer, _SET_HERE, "in dht_opts")
            super().__init__()
            self._run_id, self._target_batch_size = run_id, target_batch_size
            self._batch_size, self._samples = batch_size, batch_size
            self._scheduler_fn, self._reuse_grad_buffers = scheduler_fn, reuse_grad_buffers
            delays = delay_optimizer_step or delay_grad_averaging or delay_state_averaging
            self._require_scheduler_fn = bool(delays or offload_optimizer)
            self._optimizer_kwargs = dict(
                matchmaking_time=matchmaking_time,
                averaging_timeout=averaging_timeout,
                delay_optimizer_step=delay_optimizer_step,
                delay_state_averaging=delay_state_averaging,
                delay_grad_averaging=delay_grad_averaging,
                offload_optimizer=offload_optimizer,
                averager_opts={"request_timeout": 1.0} if averager_opts is None else averager_opts,
                verbose=verbose,
                reuse_grad_buffers=reuse_grad_buffers,
                **optimizer_kwargs,
            )
            self._opt: Optional[Any] = None
            self._saved_state: Optional[Dict[str, Any]] = None
            self._zero_grad: Optional[Callable[..., Any]] = None
            self._fits = False  # what is torn down is a training, and no validation before one
            self._told_of_clipping = False
            self._reported: Optional[Tuple[Any, Any]] = None  # epoch and peers
            self._dht_options = {
                "initial_peers": self._parse_peers(initial_peers),
                "start": True,
                "host_maddrs": list(_DEFAULT_ADDRESSES) if host_maddrs is None else host_maddrs,
                "ensure_bootstrap_success": True,
                "wait_timeout": wait_timeout,
                "bootstrap_timeout": bootstrap_timeout,
                "use_relay": use_relay,
                "use_auto_relay": use_auto_relay,
                "identity_path": identity_path,
                **(dht_opts or {}),
            }
            if use_ipfs and not self._dht_options["initial_peers"]:
                raise ValueError("cohive does not speak to IPFS: give initial_peers, or leave use_ipfs out")
            if use_ipfs:
                logger.warning("use_ipfs has no meaning for cohive: peers are found by the addresses in initial_peers")
            self.dht: Optional[Any] = None
            if parts["rank_zero"].rank_zero_only.rank == 0:
                self._join()

        def _join(self) -> None:
            """Other ranks than the first one have no DHT."""
            self.dht = _api().DHT(**self._dht_options)
            if not self._dht_options["initial_peers"]:
                joined = ",".join(addresses_for_others(self.dht))
                _tell(
                    "\nOther machines can connect running the same command:\n"
                    f"{join_line(self.dht)}\n"
                    "or passing the peers to the strategy:\n"
                    f"HivemindStrategy(initial_peers='{joined}')"
                )

        @staticmethod
        def _parse_peers(given: Optional[Union[str, List[Any]]]) -> Optional[List[Any]]:
            if given is None:
                given = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), None)
            if isinstance(given, str):
                return [address for address in given.replace(",", " ").split()]
            return given

        # ---- What Lightning asks of a strategy

        @property
        def num_peers(self) -> int:
            """Trainers of the run in sight, this one included."""
            if self._opt is None:
                return 1
            return int(self._opt.num_peers if self.several else self._opt.tracker.global_progress.num_peers)

        @property
        def root_device(self) -> Any:
            if isinstance(self.accelerator, accelerators.CPUAccelerator):
                return torch.device("cpu")
            if not isinstance(self.accelerator, accelerators.CUDAAccelerator):
                name = type(self.accelerator).__name__
                raise refused(f"HivemindStrategy trains on processors and CUDA, not with {name}")
            if self.parallel_devices:
                return self.parallel_devices[self.local_rank]
            return torch.device("cuda", torch.cuda.current_device())

        def model_to_device(self) -> None:
            assert self.model is not None
            self.model.to(self.root_device)

        def setup(self, trainer: Any) -> None:
            self._refuse_accumulation(trainer)
            if self._reuse_grad_buffers and trainer.gradient_clip_val:
                raise refused(
                    "gradient_clip_val clips the gradients of each batch, which are added up at once with "
                    "reuse_grad_buffers: set clip_grad_norm of the strategy, which clips the average of all peers"
                )
            self._fits = trainer.state.fn == "fit"
            if self._fits:
                self._begin_anew()
            super().setup(trainer)
            scaler = getattr(self.precision_plugin, "scaler", None)
            if scaler is not None and not isinstance(scaler, _api().GradScaler):
                self.precision_plugin.scaler = _api().GradScaler(
                    getattr(scaler, "_device", "cuda"),
                    init_scale=scaler.get_scale(),
                    growth_factor=scaler.get_growth_factor(),
                    backoff_factor=scaler.get_backoff_factor(),
                    growth_interval=scaler.get_growth_interval(),
                    enabled=scaler.is_enabled(),
                )

        @staticmethod
        def _refuse_accumulation(trainer: Any) -> None:
            if trainer.accumulate_grad_batches > 1:
                raise refused(
                    "HivemindStrategy accumulates gradients by itself: set target_batch_size, and leave "
                    "accumulate_grad_batches at 1"
                )

        def _begin_anew(self) -> None:
            """Forgets the training before, which teardown() has ended; its optimizer was there for checkpoints."""
            if self._opt is not None and not self._opt.is_alive():
                self._opt = self._saved_state = self._reported = None
            # It was left with the training before, or the environment said that this is another rank.
            if self.is_global_zero and (self.dht is None or not self.dht.is_alive()):
                self._join()

        # ---- Training

        def on_train_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            trainer = getattr(self.lightning_module, "_trainer", None)
            if trainer is not None:  # a GradientAccumulationScheduler sets it when an epoch begins
                self._refuse_accumulation(trainer)
            if self._batch_size is None:
                self._samples = self._samples_of(batch)
            if self._opt is None:
                self._begin()
            self._report()

        @staticmethod
        def _samples_of(batch: Any) -> int:
            try:
                return int(parts["data"].extract_batch_size(batch))
            except (refused, RecursionError, TypeError) as error:
                raise refused(
                    "We tried to infer the batch size from a batch of data. Please provide the batch size to the "
                    "Strategy by ``Trainer(strategy=HivemindStrategy(batch_size=x))``. "
                ) from error

        def _begin(self) -> None:
            if len(self.optimizers) > 1:
                raise refused("Hivemind only supports training with one optimizer.")
            if self._require_scheduler_fn and self._scheduler_fn is None:
                warn(
                    "Enabling `delay_optimizer_step`, `delay_state_averaging` or `offload_optimizer` requires a "
                    "`scheduler_fn` to be passed to the strategy if a scheduler is being used (this is because the "
                    "optimizer is re-created within Hivemind). Here the schedule of configure_optimizers is followed."
                )
            original = self.optimizers[0]
            given: Dict[str, Any] = dict(optimizer=original)
            if self._require_scheduler_fn:
                given = dict(params=original.param_groups, optimizer=functools.partial(_made_again, original))
            opt = self._collaborative(original)(
                dht=self.dht,
                run_id=self._run_id,
                scheduler=self._scheduler_fn,
                target_batch_size=self._target_batch_size,
                batch_size_per_step=self._samples,
                **given,
                **self._optimizer_kwargs,
            )
            if getattr(self.precision_plugin, "scaler", None) is not None and not self._reuse_grad_buffers:
                opt._step_supports_amp_scaling = False  # Lightning takes the scale out, and clips gradients after it
            self._opt = opt
            if self._scheduler_fn is None:
                self._wrap_schedules(opt)
            if self._saved_state is not None:
                opt.load_state_dict(self._saved_state)
            opt.load_state_from_peers()
            self.optimizers = [opt]
            for config in self.lr_scheduler_configs:
                if isinstance(config.scheduler, HiveMindScheduler):
                    config.scheduler.step()
            if self._reuse_grad_buffers:
                self._turn_off_zero_grad()

        def _collaborative(self, original: Any) -> Callable[..., Any]:
            """What makes the optimizer of this peer."""
            if not self.several:
                return _api().Optimizer  # type: ignore[no-any-return]
            groups = original.param_groups
            return lambda params=groups, **options: LocalOptimizer(self.model, params=params, **options)

        def _wrap_schedules(self, opt: Any) -> None:
            for config in self.lr_scheduler_configs:
                if isinstance(config.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    raise ValueError(
                        "The `ReduceLROnPlateau` scheduler is not currently supported with `HivemindStrategy`: it "
                        "follows a loss that peers do not share"
                    )
                # A checkpoint of lightning-hivemind has no other count than the schedule's own, which follows the run's
                # epochs there. With another strategy it has followed Lightning's, and goes on from where it is.
                of_run = self._saved_state is not None and "local_epoch" in self._saved_state
                steps = steps_of(config.scheduler) - 1 if of_run else 0
                config.scheduler = HiveMindScheduler(opt, config.scheduler, steps)

        def _turn_off_zero_grad(self) -> None:
            module = self.lightning_module
            if parts["model_helpers"].is_overridden("optimizer_zero_grad", module):
                warn(
                    "You have overridden `optimizer_zero_grad` which will be disabled. When "
                    "`HivemindStrategy(reuse_grad_buffers=True)`, the optimizer cannot call zero grad, as this would "
                    "delete the gradients before they are averaged."
                )
            self._zero_grad = module.optimizer_zero_grad
            module.optimizer_zero_grad = lambda *_, **__: None

        def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
            if self._opt is not None and "batch_size" not in kwargs:
                kwargs["batch_size"] = self._samples
            trainer = getattr(self.lightning_module, "trainer", None)
            if trainer is not None and trainer.gradient_clip_val and not self._told_of_clipping:
                self._told_of_clipping = True
                warn(
                    "gradient_clip_val clips the gradients of each batch of this peer; clip_grad_norm=... of the "
                    "strategy clips the average of all peers"
                )
            return super().optimizer_step(optimizer, closure, model, **kwargs)

        def _report(self) -> None:
            """Epoch and peers of the run, in the trainer's logger and progress bar: when they change, and when the
            logger writes. In each batch it would cost more than all else here."""
            module, opt = self.lightning_module, self._opt
            trainer = getattr(module, "_trainer", None)
            if trainer is None or not isinstance(opt, (LocalOptimizer, Optimizer)):
                return
            seen = opt.stats()
            if "peers" in seen:
                seen["peers"] = max(seen["peers"], 1)  # this one is there before it has reported
            news = seen.get("epoch"), seen.get("peers")
            every = trainer.log_every_n_steps
            if news == self._reported and not (every and (trainer.global_step + 1) % every == 0):
                return
            self._reported = news
            for name, key in (("swarm_epoch", "epoch"), ("swarm_peers", "peers"), ("swarm_rate", "samples_per_second")):
                if key in seen:
                    module.log(name, float(seen[key]), prog_bar=True, on_step=True, on_epoch=False, batch_size=1)

        # ---- Checkpoints and the end

        def load_optimizer_state_dict(self, checkpoint: Any) -> None:
            """The optimizer is made collaborative with the first batch: it goes on from this then, in epoch 0 where it
            was saved with another strategy."""
            states = [_with_epoch_beside(state) for state in checkpoint["optimizer_states"]]
            if self._opt is not None:
                self._opt.load_state_dict(states[0])
                return
            super().load_optimizer_state_dict({**checkpoint, "optimizer_states": states})
            if len(states) == 1:
                self._saved_state = states[0]

        def teardown(self) -> None:
            if self._zero_grad is not None and self.lightning_module is not None:
                self.lightning_module.optimizer_zero_grad = self._zero_grad
                self._zero_grad = None
            if self._opt is not None:
                self._opt.shutdown()
            if self.dht is not None and self._fits:
                self.dht.shutdown()
            super().teardown()

    HivemindStrategy.__module__ = "cohive.lightning"
    registry = getattr(parts["strategies"], "StrategyRegistry", None)
    if registry is not None and "hivemind" not in registry:
        registry.register("hivemind", HivemindStrategy, "collaborative training (cohive)", target_batch_size=1024)
    return HivemindStrategy


def _with_epoch_beside(state: Dict[str, Any]) -> Dict[str, Any]:
    """The state of an optimizer with its epoch beside what it keeps of parameters, among which hivemind puts it: torch
    would take it for a parameter."""
    inner = dict(state.get("state", {}))
    if "local_epoch" not in inner:
        return state
    return {"local_epoch": inner.pop("local_epoch"), **state, "state": inner}


def _made_again(original: Any, groups: Any) -> Any:
    """The user's optimizer where it steps the same parameters, else one of its kind."""
    same = [parameter for group in groups for parameter in group["params"]]
    own = [parameter for group in original.param_groups for parameter in group["params"]]
    if len(same) == len(own) and all(one is other for one, other in zip(same, own)):
        return original
    return type(original)(groups)


def _tell(text: str) -> None:
    """How others join: a user has to see it, whatever the level of the log."""
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info("%s", text)
    else:
        print(text, flush=True)


def available() -> Tuple[str, ...]:
    """The packages of Lightning that are installed, the one that is preferred first."""
    found = []
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            if importlib.util.find_spec(package) is not None:
                found.append(package)
        except ModuleNotFoundError:
            continue
    return tuple(found)
