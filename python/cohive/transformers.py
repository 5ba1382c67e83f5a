"""What a Trainer of transformers needs to train with a collaborative optimizer.

::

    optimizer = cohive.Optimizer(dht=dht, params=model.parameters(), ...)  # with batch_size_per_step
    callback = CollaborativeCallback(optimizer)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=..., optimizers=(optimizer, NoOpScheduler(optimizer)), callbacks=[callback])
    callback.put_first(trainer)  # before TensorBoard and its like, which report what it adds to the log then
    trainer.train()
"""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional

from ._torch import torch

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("cohive.transformers needs transformers: pip install transformers accelerate") from error

logger = logging.getLogger("cohive.transformers")

_KNOWN_RATE = 1e-6  # samples per second; one that was not measured yet is lower


class NoOpScheduler(torch.optim.lr_scheduler.LRScheduler):  # type: ignore[misc]
    """A schedule that changes nothing, for Trainer, which wants one: the optimizer's own `scheduler` follows the epochs
    of the run. It tells the learning rates that the optimizer has."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer  # whose step() stays as it is, other than with schedules of torch
        self.base_lrs: List[float] = self.get_lr()
        self.last_epoch = 0
        self._last_lr = self.get_lr()

    def get_lr(self) -> List[float]:
        """The rates of the optimizer."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> List[float]:
        """The rates of the optimizer."""
        return self.get_lr()

    def step(self, epoch: Optional[int] = None) -> None:
        """Changes nothing."""
        self._last_lr = self.get_lr()

    def state_dict(self) -> Dict[str, Any]:
        """Nothing: the schedule is in the optimizer's state."""
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Takes nothing."""


class CollaborativeCallback(TrainerCallback):  # type: ignore[misc]
    """Has a Trainer begin with the state of the run, log each of its epochs with loss, peers and speed, and end with
    the run.

    :param optimizer: the collaborative optimizer that the Trainer has: an Optimizer, or on each rank of a machine a
        LocalOptimizer, made with gradients_are_reduced=True, as the Trainer wraps the model by itself
    :param report_loss: show the loss to monitors
    :param stop_at_epoch: end the training when the run is in this epoch; default: as the Trainer's arguments say
    :raises ValueError: the Trainer zeroes gradients that are still needed (reuse_grad_buffers)
    """

    def __init__(self, optimizer: Any, report_loss: bool = True, stop_at_epoch: Optional[int] = None) -> None:
        if getattr(optimizer, "reuse_grad_buffers", False):  # which a LocalOptimizer never does
            raise ValueError(
                "a Trainer of transformers zeroes gradients after each batch: make the optimizer without "
                "reuse_grad_buffers"
            )
        self.optimizer, self.report_loss, self.stop_at_epoch = optimizer, report_loss, stop_at_epoch
        self._epoch = 0

    def put_first(self, trainer: Any) -> None:
        """Moves this callback before all others of its Trainer, which tells callbacks nothing of itself and calls those
        that report to TensorBoard, W&B and so on before the user's: they report epoch, peers and speed, too, then."""
        callbacks = trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Downloads the state of a run that is ahead, also of a checkpoint that was loaded."""
        self.optimizer.load_state_from_peers()
        self._epoch = self.optimizer.local_epoch
        if args.max_grad_norm:
            logger.info(
                "max_grad_norm clips the gradients of each batch of this peer; clip_grad_norm of Optimizer clips the "
                "average"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Has the Trainer log when an epoch of the run has ended. Before it saves the model or ends, what is delayed
        comes into place: it saves the optimizer later, whose statistics would be those of a newer model."""
        if self.stop_at_epoch is not None and self.optimizer.local_epoch >= self.stop_at_epoch:
            control.should_training_stop = True
        ends = control.should_training_stop or state.global_step >= state.max_steps
        if ends or control.should_save or _saves_in(args, state, "steps"):
            self._settle()
        epoch = self.optimizer.local_epoch
        if epoch != self._epoch:
            self._epoch = epoch
            control.should_log = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Has what is delayed come into place before the Trainer saves the model."""
        if control.should_save or _saves_in(args, state, "epoch"):
            self._settle()

    def _settle(self) -> None:
        self.optimizer.state_dict()

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **kwargs: Any) -> None:
        """Adds epoch, peers and speed of the run to what is logged, and shows the loss to monitors."""
        if logs is None or "loss" not in logs or not self.optimizer.is_alive():
            return
        if self.report_loss:
            self.optimizer.report_loss(float(logs["loss"]))
        seen = self.optimizer.stats()
        told = {"swarm_epoch": self.optimizer.local_epoch, "swarm_peers": self.optimizer.num_peers}
        if seen["samples_per_second"] >= _KNOWN_RATE:
            told["swarm_rate"] = seen["samples_per_second"]
        logs.update(told)
        if state.log_history:
            state.log_history[-1].update(told)


def _saves_in(args: Any, state: Any, unit: str) -> bool:
    """Whether the Trainer saves at the end of this step or epoch, or may do so as it evaluates: other callbacks may
    learn that before the one that decides it.

    :param unit: "steps" or "epoch"
    """
    strategy, every = args.save_strategy, state.save_steps
    if strategy == "best":
        strategy, every = args.eval_strategy, state.eval_steps
    return bool(strategy == unit and (unit == "epoch" or (every and state.global_step % every == 0)))
