#!/usr/bin/env python3
"""Trains a tiny language model together with other machines, by the Trainer of transformers.

The first peer begins a swarm and prints the line by which others join:

    python train_transformers.py --peers 2
    INITIAL_PEERS=/ip4/.../p2p/... python train_transformers.py --peers 2
"""

import os
import tempfile

import torch
import transformers

import cohive
from cohive.transformers import CollaborativeCallback, NoOpScheduler
from common import Goal, join, parse_flags

VOCABULARY, LENGTH = 64, 16


class Counting(torch.utils.data.Dataset):
    """Made-up texts: each counts on, by ones or twos, from somewhere."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, at: int):
        first, pace = torch.randint(VOCABULARY, (1,)), torch.randint(1, 3, (1,))
        ids = (first + pace * torch.arange(LENGTH)) % VOCABULARY
        return {"input_ids": ids, "labels": ids}


class UntilGoal(transformers.TrainerCallback):
    """Ends the training, which would go on for a million batches."""

    def __init__(self, goal: Goal, optimizer: cohive.Optimizer) -> None:
        self.goal, self.optimizer = goal, optimizer

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}) and self.goal.is_reached(self.optimizer, float(logs["loss"])):
            control.should_training_stop = True


def main() -> None:
    flags = parse_flags(__doc__.splitlines()[0], learning_rate=0.003)
    dht = join(flags)

    folder = tempfile.TemporaryDirectory()
    arguments = transformers.TrainingArguments(
        output_dir=folder.name,
        per_device_train_batch_size=flags.batch_size,
        max_steps=1_000_000,
        seed=int.from_bytes(os.urandom(3), "big"),  # each peer has data of its own
        logging_strategy="no",  # but at the ends of epochs, which the callback sees to
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    torch.manual_seed(0)  # all peers begin with the same model, made from a configuration on the spot
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
            bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip
    model.to(arguments.device)  # before the optimizer is made, which keeps the places of the parameters
    optimizer = cohive.Optimizer(
        dht=dht,
        run_id=flags.run_id,
        target_batch_size=flags.target_batch_size,
        batch_size_per_step=flags.batch_size,  # of the Trainer's batches, times gradient_accumulation_steps
        params=model.parameters(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=flags.learning_rate),
        # The schedule follows the epochs of the run. The Trainer gets one that does nothing.
        scheduler=lambda made: transformers.get_linear_schedule_with_warmup(made, 5, 1000),
        matchmaking_time=2.0,
        averaging_timeout=20.0,
    )
    goal = Goal(flags)
    callback = CollaborativeCallback(optimizer)
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=Counting(),
        optimizers=(optimizer, NoOpScheduler(optimizer)),
        callbacks=[callback, UntilGoal(goal, optimizer)],
    )
    callback.put_first(trainer)
    trainer.train()

    optimizer.shutdown()
    dht.shutdown()
    folder.cleanup()
    print(goal.summary())


if __name__ == "__main__":
    main()
