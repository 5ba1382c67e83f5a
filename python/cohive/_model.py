"""A model of torch as the library trains it: its memory, its gradients, and who steps."""

from __future__ import annotations

import contextlib
import ctypes
import json
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from . import _native
from ._torch import torch
from .compression import CompressionInfo, Described, TensorRole, _described, tensor_from_bytes
from .optim import nested_flatten, zero_gradients
from .state_averager import initialize_optimizer_state_

#: The tensors that an optimizer of torch keeps, in the library's order.
_STATISTICS = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    torch.optim.RMSprop: ("square_avg", "momentum_buffer", "grad_avg"),
    torch.optim.Adagrad: ("sum",),
}
_NAMES = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.Adagrad: "adagrad",
}
#: Settings that the library's steps have.
_SETTINGS = {
    "lr",
    "momentum",
    "dampening",
    "weight_decay",
    "nesterov",
    "betas",
    "eps",
    "amsgrad",
    "alpha",
    "centered",
    "lr_decay",
    "initial_accumulator_value",
}
#: Settings of torch that change what a step computes, and that the library's do not have.
_UNKNOWN = ("maximize", "capturable", "differentiable")
_KEPT = 4  # pointers for each parameter: three statistics and the number of steps


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is what the library trains in place: float32 values in a row in host memory."""
    return bool(
        tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
    )


def master_of(parameter: Any) -> Any:
    """A float32 copy in host memory."""
    copy = parameter.detach().to(device="cpu", dtype=torch.float32, copy=True).contiguous()
    return copy.requires_grad_(parameter.requires_grad)


def live_of(tensor: Any) -> Any:
    """What the library averages for a tensor: its own memory wherever it can be, else a float32 copy."""
    return tensor.detach() if is_plain(tensor) else master_of(tensor).detach()


def return_memory() -> None:
    """Of tensors of some megabytes glibc keeps what they took when they are gone: here more than the model's size."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _place_of(tensor: Any) -> Any:
    return tensor.data_ptr(), tensor.shape, tensor.dtype


def _pointer(tensor: Any) -> Any:
    return ctypes.cast(tensor.data_ptr(), _native.FloatPointer)


class Model:
    """Parameters, an optimizer that steps them or copies of them, and tensors that are averaged beside.

    :param parameters: of the model, in the order of the optimizer's groups
    :param has_copies: the optimizer steps float32 copies in host memory
    """

    def __init__(
        self,
        parameters: List[Any],
        optimizer: Any,
        has_copies: bool,
        *,
        extra_tensors: Sequence[Any],
        statistics: Sequence[str],
        reuse: bool,
        local: bool,
    ) -> None:
        self.parameters, self.optimizer, self.has_copies = parameters, optimizer, has_copies
        self._reuse, self._local = reuse, local
        #: what the optimizer steps
        self.stepped = [one for group in optimizer.param_groups for one in group["params"]]
        if len(self.stepped) != len(parameters):
            raise ValueError("the optimizer has other parameters than those that it was made of")
        #: what the library averages
        self.live = [live_of(one) for one in self.stepped]
        self._statistics, self._extra_tensors = tuple(statistics), tuple(extra_tensors)
        self._initialize()
        self.native = not local and self._is_known()
        self._beside = self._find_beside()
        self._places = [_place_of(one) for one in parameters]
        self._buffers: List[Any] = []

    def _initialize(self) -> None:
        """Has the optimizer make its tensors, by a step that changes no parameter: peers share them from the start."""
        if any(isinstance(leaf, torch.Tensor) for leaf in nested_flatten(self.optimizer.state_dict())):
            return
        before = [one.detach().clone() for one in self.stepped]
        initialize_optimizer_state_(self.optimizer)
        with torch.no_grad():
            for one, values in zip(self.stepped, before):
                one.copy_(values)
        del before, values
        return_memory()

    def _is_known(self) -> bool:
        """Whether the library's steps are those of this optimizer, on its own tensors."""
        kind = type(self.optimizer)
        if kind not in _STATISTICS or not all(is_plain(one) for one in self.stepped):
            return False
        hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        if any(getattr(self.optimizer, name, None) for name in hooks):
            return False
        for group in self.optimizer.param_groups:
            if any(group.get(name) for name in _UNKNOWN):
                return False
            if any(isinstance(value, torch.Tensor) for name, value in group.items() if name != "params"):
                return False
            if group.get("decoupled_weight_decay") and kind is torch.optim.Adam:
                return False
        return all(
            not isinstance(value, torch.Tensor) or is_plain(value)
            for one in self.stepped
            for value in self.optimizer.state[one].values()
        )

    # ---- Beside the parameters

    def _find_beside(self) -> List[Tuple[Any, Any, Any, bool]]:
        """What is averaged after them: the tensor, its float32 values in host memory, what it is, and whether only
        steps change it."""
        found = []
        for name in self._statistics:
            for at, one in enumerate(self.stepped):
                tensor = self.optimizer.state[one].get(name)
                if not isinstance(tensor, torch.Tensor):
                    raise ValueError(f"the optimizer keeps no tensor {name!r} for each of its parameters")
                info = CompressionInfo.from_tensor(tensor, key=(at, name), role=TensorRole.OPTIMIZER)
                found.append((tensor, live_of(tensor), info, True))
        for at, tensor in enumerate(self._extra_tensors):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                raise TypeError("an extra tensor is a tensor of torch with floating-point values")
            found.append((tensor, live_of(tensor), CompressionInfo.from_tensor(tensor, key=at), False))
        return found

    def extras(self) -> List[Any]:
        """The extra tensors, as newcomers get them."""
        return [tensor.detach() for tensor in self._extra_tensors]

    def averaged_infos(self) -> List[CompressionInfo]:
        """What compressions look at, of all that a round of the state averages."""
        own = [
            CompressionInfo.from_tensor(one, key=at, role=TensorRole.PARAMETER)
            for at, one in enumerate(self.parameters)
        ]
        return own + [info for _, _, info, _ in self._beside]

    def arrays(self) -> Tuple[List[Described], List[Described]]:
        """The memory of parameters, and of what is averaged beside them."""
        parameters = [_described(live, "NONE") for live in self.live]
        beside = []
        for tensor, values, _, is_statistic in self._beside:
            one = _described(values, "statistic" if is_statistic else "NONE")
            # In the schema it is what it is; its values are float32 here.
            one.tensor.dtype = str(tensor.dtype).replace("torch.", "").encode()
            one.tensor.requires_grad = int(tensor.requires_grad)
            beside.append(one)
        return parameters, beside

    # ---- The state

    def describe(self, tensors: Sequence[Any], codecs: Sequence[str]) -> List[Described]:
        """The tensors of a state, whose memory the result keeps."""
        return [_described(tensor, codec) for tensor, codec in zip(tensors, codecs)]

    def names(self) -> Any:
        """Those of the tensors of a state in checkpoints."""
        names = [f"parameter.{at}" for at in range(len(self.live))]
        names += [f"extra.{at}" for at in range(len(self._extra_tensors))]
        state = self.optimizer.state_dict()
        # Settings that are tensors come first, and no checkpoint is gone on from that has some.
        leaves = nested_flatten(state["param_groups"])
        names += [f"setting.{at}" for at, _ in enumerate(one for one in leaves if isinstance(one, torch.Tensor))]
        for at in sorted(state["state"]):
            kept = state["state"][at]
            names += [f"optimizer.{at}.{name}" for name in sorted(kept) if isinstance(kept[name], torch.Tensor)]
        return (ctypes.c_char_p * max(len(names), 1))(*[name.encode() for name in names])

    def native_steps(self) -> Tuple[Optional[bytes], Any]:
        """The settings of the library's steps, and the memory of their statistics."""
        if not self.native:
            return None, None
        kind = type(self.optimizer)
        groups = []
        for group in self.optimizer.param_groups:
            settings = {name: value for name, value in group.items() if name in _SETTINGS}
            groups.append({"name": _NAMES[kind], "parameters": len(group["params"]), **settings})
        pointers = (_native.FloatPointer * (_KEPT * len(self.stepped)))()
        for at, one in enumerate(self.stepped):
            state = self.optimizer.state[one]
            kept = [state.get(name) for name in _STATISTICS[kind]]
            # The library lists those that an optimizer with these settings has, without gaps.
            present = [tensor for tensor in kept if isinstance(tensor, torch.Tensor)]
            for slot, tensor in enumerate(present):
                pointers[_KEPT * at + slot] = _pointer(tensor)
            if isinstance(state.get("step"), torch.Tensor):
                pointers[_KEPT * at + _KEPT - 1] = _pointer(state["step"])
        return json.dumps(groups, allow_nan=False).encode(), pointers

    def load(self, metadata: Any, tensors: Sequence[Any]) -> Optional[str]:
        """Takes over a state of hivemind's or of our own. Returns why not, where it does not fit; nothing has changed
        then. Settings stay, as schedules follow the epoch."""
        leaves = [leaf for leaf in nested_flatten(self.optimizer.state_dict()) if isinstance(leaf, torch.Tensor)]
        own = [*self.live, *self.extras(), *leaves]
        if not isinstance(metadata, dict):
            return "its metadata is no map"
        if len(own) != len(tensors):
            return f"it has {len(tensors)} tensors, and ours {len(own)}: it is of another model or optimizer"
        theirs = []
        for at, (tensor, given) in enumerate(zip(own, tensors)):
            shape = tuple(given.shape[k] for k in range(given.rank))
            if tuple(tensor.shape) != shape:
                return f"its tensor {at} has the shape {shape}, and ours {tuple(tensor.shape)}"
            memory = (ctypes.c_uint8 * given.size).from_address(given.data) if given.size else b""
            values = tensor_from_bytes(memory, given.dtype.decode(), shape, False)
            if values.is_floating_point() and not torch.isfinite(values).all():
                return f"its tensor {at} has values that are not finite"
            theirs.append(values)
        with torch.no_grad():
            for tensor, values in zip(own, theirs):
                tensor.copy_(values)
            for tensor, values, _, _ in self._beside:
                values.copy_(tensor)
        return None

    def take_parameters(self, masters: Optional[Sequence[Any]]) -> None:
        """Has the library train on from the model's parameters, or from float32 copies of them."""
        if masters is not None and len(masters) != len(self.live):
            raise ValueError("the masters are of another model")
        with torch.no_grad():
            for at, live in enumerate(self.live):
                source = self.parameters[at] if masters is None else masters[at]
                if source.data_ptr() != live.data_ptr():
                    live.copy_(source)

    def load_optimizer(self, state: Mapping[str, Any]) -> None:
        """Has the optimizer load its state_dict() into the tensors that it has: the library knows their memory."""
        before = {one: dict(self.optimizer.state[one]) for one in self.stepped}
        self.optimizer.load_state_dict(state)
        with torch.no_grad():
            for one, kept in before.items():
                loaded = self.optimizer.state[one]
                for name, tensor in kept.items():
                    values = loaded.get(name)
                    if not isinstance(tensor, torch.Tensor) or not isinstance(values, torch.Tensor):
                        continue
                    if tensor.shape == values.shape and tensor.dtype == values.dtype:
                        loaded[name] = tensor.copy_(values)
        self._find_statistics()

    # ---- Gradients

    def check_places(self) -> None:
        """Raises RuntimeError where a parameter has other memory than the library trains."""
        for at, (parameter, place) in enumerate(zip(self.parameters, self._places)):
            if place != _place_of(parameter):
                raise RuntimeError(
                    f"parameter {at} of the optimizer is in other memory than when the optimizer was made, as after "
                    "model.to() or an assignment to its data: make the optimizer when the model is where it is trained"
                )

    def gradients(self, scale: float) -> Any:
        """Pointers to the gradients of a batch, or to the sums in buffers that are used again; null where a parameter
        has none. They live until release_gradients(), or the next call."""
        if self._local:
            for parameter in self.parameters if scale != 1 else ():
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
            return (_native.FloatPointer * len(self.parameters))()
        kept, pointers = [], (_native.FloatPointer * len(self.parameters))()
        for at, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            values = self._on_host(parameter.grad)
            kept.append(values)
            pointers[at] = _pointer(values)
        self._buffers = kept
        return pointers

    def release_gradients(self) -> None:
        """After the library has read them: those of the last batch need no memory while the next one is computed. It
        reads buffers that are used again in later calls, too."""
        if not self._reuse:
            self._buffers = []

    @staticmethod
    def _on_host(grad: Any) -> Any:
        grad = grad.detach()
        if grad.layout != torch.strided:
            grad = grad.to_dense()
        return grad if is_plain(grad) else grad.to(device="cpu", dtype=torch.float32).contiguous()

    def clear_gradients(self) -> None:
        """Begins new sums in the parameters' gradients."""
        zero_gradients(self.parameters, set_to_none=False)

    # ---- Steps

    def step(self, gradients: Optional[Sequence[Any]]) -> None:
        """Has the optimizer step, with averaged gradients or, with local updates, with those of the batch."""
        if gradients is None:
            self.optimizer.step()
        else:
            before = [one.grad for one in self.stepped]
            try:
                for one, live, pointer in zip(self.stepped, self.live, gradients):
                    one.grad = self._gradient(one, live, pointer)
                self.optimizer.step()
            finally:
                for one, grad in zip(self.stepped, before):
                    one.grad = grad
        self._collect()

    @staticmethod
    def _gradient(one: Any, live: Any, pointer: Any) -> Any:
        if not pointer:
            return None
        size = live.numel()
        memory = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * size)).contents
        return torch.frombuffer(memory, dtype=torch.float32).reshape(live.shape).to(device=one.device, dtype=one.dtype)

    def _find_statistics(self) -> None:
        """Where the optimizer keeps them now: some replace their tensors."""
        for at, (_, values, info, is_statistic) in enumerate(self._beside):
            if is_statistic:
                parameter, name = info.key
                tensor = self.optimizer.state[self.stepped[parameter]][name]
                self._beside[at] = (tensor, values, info, is_statistic)

    def _collect(self) -> None:
        """The library's memory has what the optimizer has stepped."""
        self._find_statistics()
        with torch.no_grad():
            for one, live in zip(self.stepped, self.live):
                if one.data_ptr() != live.data_ptr():
                    live.copy_(one)
            for tensor, values, _, is_statistic in self._beside:
                if is_statistic and tensor.data_ptr() != values.data_ptr():
                    values.copy_(tensor)

    def publish(self) -> None:
        """The model has what is in the library's memory."""
        with torch.no_grad():
            for parameter, one, live in zip(self.parameters, self.stepped, self.live):
                if one.data_ptr() != live.data_ptr():
                    one.copy_(live)
                if parameter is not one:
                    parameter.copy_(live)
            for tensor, values, _, _ in self._beside:
                if tensor.data_ptr() != values.data_ptr():
                    tensor.copy_(values)
