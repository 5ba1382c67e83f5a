"""The models of trainer/model.hpp for Python: two parameters, optimizers and schedulers by the names of a case."""

import torch

RATE, RATE_OF_BIAS = 0.1, 0.05


class AdamWOfPyTorch26(torch.optim.AdamW):
    """With the settings that it had before PyTorch 2.7."""

    def state_dict(self):
        state = super().state_dict()
        for group in state["param_groups"]:
            group.pop("decoupled_weight_decay")
        return state

    def load_state_dict(self, state):
        for group in state["param_groups"]:
            group["decoupled_weight_decay"] = True
        super().load_state_dict(state)


OPTIMIZERS = {
    "sgd": lambda of: torch.optim.SGD(of, RATE, 0.9),
    "sgd-plain": lambda of: torch.optim.SGD(of, RATE),
    "adam": lambda of: torch.optim.Adam(of, RATE),
    "amsgrad": lambda of: torch.optim.Adam(of, RATE, amsgrad=True),
    "adamw": lambda of: torch.optim.AdamW(of, RATE),
    "rmsprop": lambda of: torch.optim.RMSprop(of, RATE),
    "rmsprop-centered": lambda of: torch.optim.RMSprop(of, RATE, momentum=0.9, centered=True),
    "adamw-2.6": lambda of: AdamWOfPyTorch26(of, RATE),
    "adagrad": lambda of: torch.optim.Adagrad(of, RATE),
}


def one_cycle(optimizer):
    rates = [group["lr"] for group in optimizer.param_groups]
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=10, cycle_momentum=False)


# Closed formulas: what hivemind takes over with a state is the current rate, and others would go on from it.
SCHEDULERS = {
    "half": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
    "step": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 ** (epoch // 2)),
    "one-cycle": one_cycle,
}


class Model:
    """
    :param algorithm: of OPTIMIZERS
    :param schedule: of SCHEDULERS; None: the learning rate stays
    :param groups: 1, or 2 with a learning rate of its own for the bias
    :param frozen: "before": the bias is frozen from the beginning; "middle": after the first epoch
    """

    def __init__(self, algorithm="sgd", schedule=None, groups=1, frozen=None):
        self.weight = torch.zeros(3, 2, requires_grad=True)
        self.bias = torch.full((2,), 0.5 if frozen else 0.0, requires_grad=frozen != "before")
        self.freezes_later = frozen == "middle"
        self.parameters = [self.weight, self.bias]
        if groups == 2:
            self.parameters = [{"params": [self.weight]}, {"params": [self.bias], "lr": RATE_OF_BIAS}]
        self.make_optimizer = OPTIMIZERS[algorithm]
        self.make_scheduler = SCHEDULERS[schedule] if schedule else None

    def backward(self, gradient, epoch):
        if self.freezes_later and epoch > 0:
            self.bias.requires_grad_(False)
        (self.weight.sum() * gradient + self.bias.sum() * 2 * gradient).backward()


def state_of(model, optimizer):
    """What cohive's trainers print of themselves, of a hivemind.Optimizer."""
    local = optimizer.state_averager.optimizer
    kept = {f"{number}.{name}": torch.as_tensor(value).double().flatten().tolist()
            for number, entry in local.state_dict()["state"].items() for name, value in entry.items()}
    return {"weight": model.weight.detach().double().flatten().tolist(), "bias": model.bias.detach().double().flatten().tolist(),
            "rates": [float(group["lr"]) for group in local.param_groups], "statistics": kept, "epoch": optimizer.local_epoch}
