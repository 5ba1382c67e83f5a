"""The ranks that Lightning starts on one machine: one peer of a run, over torch.distributed."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Optional

from . import as_hivemind
from ._torch import torch
from .distributed import refuse_parts, share_tensors


def make_ranks(package: str) -> type:
    """The part of HivemindStrategy that knows of ranks, for "lightning.pytorch" or "pytorch_lightning"."""
    strategies = importlib.import_module(f"{package}.strategies")
    refused = importlib.import_module(f"{package}.utilities.exceptions").MisconfigurationException
    parallel = strategies.ParallelStrategy

    class Ranks(parallel):  # type: ignore[misc,valid-type]
        """A Trainer with devices=1 is a peer alone: it has no process group, and no launcher. With more devices each
        has a process, which Lightning or torchrun starts, and DDPStrategy moves what Lightning exchanges between them.
        Ranks are those of one machine: several machines are several peers."""

        model: Any

        def __init__(self) -> None:
            super().__init__()
            self._ranks: Optional[Any] = None  # the DDPStrategy, which launches and exchanges; None where alone
            self._num_nodes = 1  # which older releases set themselves
            self._seed = 0  # of the order in which all ranks go through the data

        @property
        def several(self) -> bool:
            """Whether this process is one of several ranks."""
            return self._ranks is not None

        @property
        def num_nodes(self) -> int:
            return 1

        @num_nodes.setter
        def num_nodes(self, nodes: int) -> None:
            self._num_nodes = nodes

        # ---- Who is who

        @property
        def is_distributed(self) -> bool:
            return self.several

        @property
        def world_size(self) -> int:
            return int(super().world_size) if self.several else 1

        @property
        def global_rank(self) -> int:
            return int(super().global_rank) if self.several else 0

        @property
        def local_rank(self) -> int:
            return int(super().local_rank) if self.several else 0

        @property
        def node_rank(self) -> int:
            return 0

        @property
        def is_global_zero(self) -> bool:
            return self.global_rank == 0

        @property
        def distributed_sampler_kwargs(self) -> Dict[str, Any]:
            return {"num_replicas": self.world_size, "rank": self.global_rank, "seed": self._seed}

        def set_world_ranks(self) -> None:
            """Lightning knows the devices now."""
            devices = self.parallel_devices or []
            if len(devices) < 2:
                return
            if self._num_nodes > 1:
                raise refused("each machine is a peer of its own: leave num_nodes at 1, and start them one by one")
            self._ranks = strategies.DDPStrategy(parallel_devices=devices, cluster_environment=self.cluster_environment)
            self._ranks.set_world_ranks()
            if self.world_size != len(devices):
                raise refused(f"devices={len(devices)} needs as many processes, but {self.world_size} were started")

        def _configure_launcher(self) -> None:
            if self._ranks is not None:
                self._ranks._configure_launcher()
                self._launcher = self._ranks._launcher
                begin = getattr(self._launcher, "_call_children_scripts", None)
                if begin is not None and as_hivemind.is_installed():
                    self._launcher._call_children_scripts = as_hivemind.started_again()(begin)

        # ---- What they exchange

        def setup_environment(self) -> None:
            super().setup_environment()
            if self._ranks is not None:
                self._ranks.setup_distributed()
                self._seed = self.broadcast(torch.initial_seed() % 2**31)  # another one on each peer

        def setup(self, trainer: Any) -> None:
            if self.several:
                refuse_parts(self.model)
                if self._layer_sync and trainer.state.fn == "fit":
                    self.model = self._layer_sync.apply(self.model)
            self.model_to_device()  # which older releases leave to the strategy
            super().setup(trainer)
            if self.several:  # also for validation before the first batch of the training
                share_tensors([*self.model.parameters(), *self.model.buffers()])

        def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return tensor if self._ranks is None else self._ranks.reduce(tensor, *args, **kwargs)

        def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
            return bool(super().reduce_boolean_decision(decision, all)) if self.several else decision

        def all_gather(self, tensor: Any, group: Optional[Any] = None, sync_grads: bool = False) -> Any:
            return super().all_gather(tensor, group, sync_grads) if self.several else tensor

        def barrier(self, *args: Any, **kwargs: Any) -> None:
            """Waits for the other ranks. Other peers are not waited for."""
            if self._ranks is not None:
                self._ranks.barrier(*args, **kwargs)

        def broadcast(self, obj: Any, src: int = 0) -> Any:
            return obj if self._ranks is None else self._ranks.broadcast(obj, src)

        def teardown(self) -> None:
            if self.several:
                super().teardown()
            else:
                super(parallel, self).teardown()

    return Ranks
