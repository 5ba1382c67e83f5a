"""Writes muon_vectors.json beside itself: what torch.optim.Muon makes of some matrices in a few steps.

PyTorch iterates in bfloat16 everywhere, cohive::Muon in float32 on a processor. So every case is there twice: as PyTorch has
it, and with its code in float32.

    .deps/interop/bin/python tests/data/make_muon_vectors.py
"""

import json
import pathlib

import torch

STEPS = 4
CASES = [
    {"shape": [6, 4], "lr": 0.02, "momentum": 0.95, "nesterov": True, "weight_decay": 0.1},
    {"shape": [4, 6], "lr": 0.02, "momentum": 0.95, "nesterov": True, "weight_decay": 0.1},
    {"shape": [5, 5], "lr": 0.1, "momentum": 0.6, "nesterov": False, "weight_decay": 0.0},
    {"shape": [3, 8], "lr": 0.5, "momentum": 0.9, "nesterov": False, "weight_decay": 0.5},
]


def parameters_after(case: dict, start: torch.Tensor, gradients: list[torch.Tensor], in_float32: bool) -> list[float]:
    parameter = start.clone().requires_grad_()
    optimizer = torch.optim.Muon([parameter], **{name: value for name, value in case.items() if name != "shape"})
    bfloat16 = torch.Tensor.bfloat16
    if in_float32:
        torch.Tensor.bfloat16 = lambda self: self.clone()
    try:
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
    finally:
        torch.Tensor.bfloat16 = bfloat16
    return parameter.detach().flatten().tolist()


def main() -> None:
    torch.manual_seed(1)
    cases = []
    for case in CASES:
        start = torch.randn(case["shape"])
        gradients = [torch.randn(case["shape"]) for _ in range(STEPS)]
        cases.append({
            **case,
            "start": start.flatten().tolist(),
            "gradients": [gradient.flatten().tolist() for gradient in gradients],
            "float32": parameters_after(case, start, gradients, True),
            "bfloat16": parameters_after(case, start, gradients, False),
        })
    lines = ",\n".join(json.dumps(case) for case in cases)
    target = pathlib.Path(__file__).with_name("muon_vectors.json")
    target.write_text(f'{{"made_with": "torch {torch.__version__}",\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
