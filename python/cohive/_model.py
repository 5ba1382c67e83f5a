"""A model of torch as the library trains it: its memory, its gradients, and who steps."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import math
import mmap
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import _gpu, _native
from ._torch import torch
from .compression import CompressionInfo, Described, TensorRole, _described, tensor_from_bytes
from .optim import (
    initialize_optimizer_state_,
    is_count,
    make_usable,
    nested_flatten,
    nested_pack,
    plain,
    zero_gradients,
)

_OF_ADAM = {"exp_avg": None, "exp_avg_sq": None, "max_exp_avg_sq": "amsgrad"}
#: The tensors that an optimizer of torch keeps, in the library's order, with the setting without which it needs none.
_STATISTICS: Dict[Any, Dict[str, Optional[str]]] = {
    torch.optim.SGD: {"momentum_buffer": "momentum"},
    torch.optim.Adam: _OF_ADAM,
    torch.optim.AdamW: _OF_ADAM,
    torch.optim.RMSprop: {"square_avg": None, "momentum_buffer": "momentum", "grad_avg": "centered"},
    torch.optim.Adagrad: {"sum": None},
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
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_PARTS = 16  # of a model whose optimizer makes its statistics; more take less memory beside it, and more steps
_MAPPED = 1 << 20  # bytes of a statistic that has pages of its own
_KEPT = 4  # pointers for each parameter: three statistics and the number of steps


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is what the library trains in place: float32 values in a row in host memory."""
    return bool(tensor.device.type == "cpu" and _gpu.is_row(tensor))


def masters_of(tensors: Sequence[Any], link: Optional[_gpu.Link]) -> List[Any]:
    """Float32 copies in host memory, which know what they are copies of: of tensors on a GPU in memory that copies are
    quick from."""
    shapes = [one.shape for one in tensors]
    host = dict(dtype=torch.float32, device="cpu")
    copies = link.memory(shapes) if link else [torch.empty(shape, **host) for shape in shapes]
    _copy(zip(copies, tensors))
    for copy, one in zip(copies, tensors):
        copy.requires_grad_(one.requires_grad).copy_of = one
    return copies


def live_of(tensors: Sequence[Any], link: Optional[_gpu.Link] = None) -> List[Any]:
    """What the library averages for tensors: their own memory wherever it can be, else float32 copies."""
    others = [one for one in tensors if not is_plain(one)]
    copies = iter(masters_of(others, link))
    return [(one if is_plain(one) else next(copies)).detach() for one in tensors]


def return_memory() -> None:
    """Of tensors of some megabytes glibc keeps what they took when they are gone: here more than the model's size."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _mapped(tensor: Any) -> Any:
    """A copy of float32 values in pages of its own, which go with it."""
    memory = mmap.mmap(-1, tensor.numel() * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)  # type: ignore[attr-defined, unused-ignore]
    return torch.frombuffer(memory, dtype=torch.float32).reshape(tensor.shape).copy_(tensor)


def _copy(copies: Iterable[Tuple[Any, Any]]) -> None:
    """Copies, (to, from)."""
    with torch.no_grad():
        for to, values in copies:
            to.copy_(values)


def _rounded(values: Any, dtype: Any) -> Any:
    """Values in another type: rounded where that has integers, as a conversion cuts them off."""
    return (values.round() if values.is_floating_point() and not dtype.is_floating_point else values).to(dtype)


def _tensor_names(structure: Any, name: str) -> Iterator[str]:
    """Names of the tensors of nested_flatten(structure), in its order."""
    if isinstance(structure, torch.Tensor):
        yield name
    elif isinstance(structure, (list, tuple, dict)):
        for key in sorted(structure) if isinstance(structure, dict) else range(len(structure)):
            yield from _tensor_names(structure[key], f"{name}.{key}")


def _state_names(state: Mapping[str, Any]) -> Iterator[str]:
    """Names of the tensors of an optimizer's state_dict(), in the order of these, by which checkpoints sort them."""
    for part, kept in sorted(state.items()):
        if part != "state":
            # These are settings, which come first; no checkpoint is gone on from that has some.
            for at, _ in enumerate(_tensor_names(kept, part)):
                yield f"setting.{at}" if part == "param_groups" else f"{part}.{at}"
            continue
        for at in sorted(kept):
            names = list(_tensor_names(kept[at], f"optimizer.{at}"))
            if names != sorted(set(names)):  # lists of more than ten tensors
                names = [f"optimizer.{at}.{number:06}" for number in range(len(names))]
            yield from names


def _values_at(pointer: Any, like: Any) -> Any:
    memory = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * like.numel())).contents
    return torch.frombuffer(memory, dtype=torch.float32).reshape(like.shape)


def _parts_of(tensors: Sequence[Any]) -> Iterator[List[Any]]:
    """Divides tensors, in their order, into parts of about a sixteenth of their values, and of one tensor at least."""
    most = sum(one.numel() for one in tensors) / _PARTS
    part: List[Any] = []
    values = 0  # of the part
    for one in tensors:
        if part and values + one.numel() > most:
            yield part
            part, values = [], 0
        part.append(one)
        values += one.numel()
    if part:
        yield part


def _versions_of(tensors: Iterable[Any]) -> int:
    """Returns what is another number after torch has written to one of them, other than to .data."""
    return sum(one._version for one in tensors)


def _zero(value: Any) -> Any:
    """A tensor, which becomes zero where it is, or a number of the state; all else as it is."""
    if isinstance(value, torch.Tensor):
        return value.zero_()
    return type(value)() if isinstance(value, (int, float)) else value


def _adds_up(grad: Any, before: Any) -> bool:
    """Whether a gradient is in the memory of that of the batch before. Backward passes replace sparse ones."""
    if grad is None or before.layout != torch.strided:
        return grad is not None
    return bool(grad.layout == torch.strided and grad.data_ptr() == before.data_ptr())


def _place_of(tensor: Any) -> Any:
    return tensor.data_ptr(), tensor.shape, tensor.dtype


def _kept_by(kind: Any, group: Mapping[str, Any]) -> List[str]:
    """Returns the names of what an optimizer with these settings steps by, in the library's order: others, of settings
    that it has had before, may be in its state."""
    return [name for name, setting in _STATISTICS[kind].items() if setting is None or group[setting]]


def _unknown_setting(kind: Any, group: Mapping[str, Any]) -> Optional[str]:
    """Returns the name of a setting with which a step of torch is none of the library's, where a group has one."""
    decoupled = kind is torch.optim.AdamW
    if bool(group.get("decoupled_weight_decay", decoupled)) != decoupled:
        return "decoupled_weight_decay"
    return next((name for name in _UNKNOWN if group.get(name)), None)


def _not_as_it_was(what: str) -> RuntimeError:
    return RuntimeError(
        f"the library steps this optimizer, and cannot with {what} as it is now: set it when the optimizer is made"
    )


def _pointer(tensor: Any) -> Any:
    return ctypes.cast(tensor.data_ptr(), _native.FloatPointer)


class Model:
    """Parameters, an optimizer that steps them or copies of them, and tensors that are averaged beside.

    :param parameters: of the model, in the order of the optimizer's groups
    :param has_copies: the optimizer steps float32 copies in host memory
    :param link: of a model on a GPU
    """

    def __init__(
        self,
        parameters: List[Any],
        optimizer: Any,
        has_copies: bool,
        link: Optional[_gpu.Link],
        *,
        extra_tensors: Sequence[Any],
        statistics: Sequence[str],
        reuse: bool,
        local: bool,
    ) -> None:
        self.parameters, self.optimizer, self.has_copies = parameters, optimizer, has_copies
        self._reuse, self._local, self._link = reuse, local, link
        #: local steps change the model's own tensors, at any time; what the library has of them follows in exchange()
        self.follows = local and not has_copies
        #: whether the library asks for gradients, and for what the trainer has changed, before it waits
        self.is_asked = link is not None or self.follows
        #: on a GPU, the gradients of an epoch
        self.sums = _gpu.Sums(parameters, link, reuse) if link and not local else None
        #: what the optimizer steps
        self.stepped = [one for group in optimizer.param_groups for one in group["params"]]
        self._check_stepped()
        self._statistics, self._extra_tensors = tuple(statistics), tuple(extra_tensors)
        self._initialize()
        #: the library steps
        self.native = False
        #: it averages and steps on the GPU
        self.on_gpu = self._is_known_on_gpu()
        #: what the library averages
        self.live = [one.detach() for one in self.stepped] if self.on_gpu else live_of(self.stepped, link)
        self.native = self.on_gpu or (not local and self._is_known(is_plain))
        self._set_counters()
        self._beside = self._find_beside()
        #: of shared tensors, as they were when they and their copies were the same
        self._published: Dict[int, Any] = {}
        self._copies: Dict[Any, Any] = {}
        self._staged: Optional[List[Any]] = None
        self._places = [_place_of(one) for one in parameters]
        self.refresh_state()
        #: the memory of gradients that the library may read, by parameter
        self._buffers: Dict[int, Any] = {}
        #: the same of calls that were interrupted, and may go on in the library
        self._interrupted: List[Dict[int, Any]] = []
        #: with buffers that are used again, the gradients of the epoch's earlier batches, by parameter
        self._summed: Dict[int, Any] = {}
        #: the same, of each parameter, with the version that it had when the last call ended
        self._left: List[Tuple[Any, int]] = [(None, 0)] * len(parameters)
        self._noted = _versions_of(parameters)
        self._norms: List[float] = []
        self._size = 0  # of the state that was described last, in tensors
        self._read: List[Any] = []  # of these, what the library reads where it is
        self._kept_in: Any = None  # where the optimizer kept them

    def _check_stepped(self) -> None:
        """Raises ValueError where the optimizer steps others than its factory was given, or in another order."""
        of = [getattr(one, "copy_of", None) if self.has_copies else one for one in self.stepped]
        if [id(one) for one in of] != [id(one) for one in self.parameters]:
            raise ValueError(
                "the optimizer has other parameters than its factory was given, or in another order: have it made of "
                "what the factory is given, and give groups of parameters as params"
            )

    def _initialize(self) -> None:
        """Has the optimizer make the tensors that it lacks, by a step that changes no parameter: peers share them from
        the start. An optimizer that was used before has none of a parameter that never had a gradient."""
        state = self.optimizer.state
        leaves = [nested_flatten(state[one] if one in state else {}) for one in self.stepped]
        has = [any(isinstance(leaf, torch.Tensor) for leaf in kept) for kept in leaves]
        if all(has):
            return
        is_known = type(self.optimizer) in _STATISTICS and not any(self.hooks())
        # Steps of others may depend on all parameters, or count.
        parts = _parts_of([one for one, made in zip(self.stepped, has) if not made]) if is_known else [self.stepped]
        kept = {id(one) for one, made in zip(self.stepped, has) if made}
        return_memory()
        for part in parts:
            taken = {id(one) for one in part} - kept
            before = [one.detach().clone() for one in part]
            initialize_optimizer_state_(self.optimizer, but=[one for one in self.stepped if id(one) not in taken])
            _copy(zip(part, before))
            del before
            if is_known:
                self._map_statistics(part)
            return_memory()

    def _map_statistics(self, parameters: Sequence[Any]) -> None:
        """Moves large ones that were just made out of the heap, where they would divide its free space for as long as
        the training lasts."""
        for one in parameters:
            kept = self.optimizer.state[one]
            for name, value in kept.items():
                if isinstance(value, torch.Tensor) and is_plain(value) and value.numel() * 4 >= _MAPPED:
                    kept[name] = _mapped(value)

    def _is_known_on_gpu(self) -> bool:
        """The same for parameters and statistics on a GPU; elsewhere than on it, statistics are not averaged."""
        if self.sums is None or self.has_copies or self._reuse or self._statistics:
            return False
        counters = [self.optimizer.state[one].get("step") for one in self.stepped]
        if any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in counters):
            return False  # they are counted by the host
        return _gpu.can_step_there(self.stepped, self._link) and self._is_known(self._is_row_there)

    def _is_row_there(self, tensor: Any) -> bool:
        return _gpu.is_row(tensor) and tensor.device == self.stepped[0].device

    def _is_known(self, is_in_place: Callable[[Any], bool]) -> bool:
        """Whether the library's steps are those of this optimizer, on its own tensors."""
        settings = [value for group in self.optimizer.param_groups for name, value in group.items() if name != "params"]
        if type(self.optimizer) not in _STATISTICS or any(isinstance(value, torch.Tensor) for value in settings):
            return False
        return self._ruled_out(is_in_place) is None

    def _ruled_out(self, is_in_place: Callable[[Any], bool]) -> Optional[str]:
        """Returns what keeps the library from stepping an optimizer whose class it knows; None where nothing does."""
        kind, groups = type(self.optimizer), self.optimizer.param_groups
        if any(self.hooks()):
            return "the list of its hooks"
        stepped = [(one, group) for group in groups for one in group["params"]]
        if [id(one) for one, _ in stepped] != [id(one) for one in self.stepped]:
            return "its list of parameters"
        for at, (one, group) in enumerate(stepped):
            if (setting := _unknown_setting(kind, group)) is not None:
                return f"the setting {setting}"
            if not is_in_place(one):
                return f"parameter {at}"
            state = self.optimizer.state[one]
            for name in _kept_by(kind, group):
                if not isinstance(state.get(name), torch.Tensor):
                    return f"{name} of parameter {at}"
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and not self._has_place(name, value, one, is_in_place):
                    return f"{name} of parameter {at}"
        return None

    def _has_place(self, name: str, value: Any, parameter: Any, is_in_place: Callable[[Any], bool]) -> bool:
        """Tells whether the library finds a tensor of a parameter's state where it looks for it."""
        if name == "step":  # _set_counters() puts it there
            return value.numel() == 1 and (is_plain(value) or not self.native)
        return is_in_place(value) and (value.shape == parameter.shape or name not in _STATISTICS[type(self.optimizer)])

    def hooks(self) -> List[Any]:
        """Returns the keys of what the optimizer calls before its steps, and after them."""
        return [tuple(getattr(self.optimizer, name, None) or ()) for name in _HOOKS]

    def _set_counters(self) -> None:
        """Has the numbers of steps where the library counts them, as float32 in host memory. Torch makes them of its
        default type."""
        for one in self.stepped if self.native else ():
            counter = self.optimizer.state[one].get("step")
            if isinstance(counter, torch.Tensor) and not is_plain(counter):
                self.optimizer.state[one]["step"] = counter.to(dtype=torch.float32, device="cpu")

    # ---- Beside the parameters

    def _find_beside(self) -> List[Tuple[Any, Any, Any, bool]]:
        """What is averaged after them: the tensor, its float32 values in host memory, what it is, and whether only
        steps change it."""
        found = []
        if len(set(self._statistics)) < len(self._statistics):
            raise ValueError("average_opt_statistics has a name twice")
        for name in self._statistics:
            for at, one in enumerate(self.stepped):
                tensor = self.optimizer.state[one].get(name)
                if not isinstance(tensor, torch.Tensor):
                    raise ValueError(f"the optimizer keeps no tensor {name!r} for each of its parameters")
                info = CompressionInfo.from_tensor(tensor, key=(at, name), role=TensorRole.OPTIMIZER)
                found.append((tensor, *live_of([tensor], self._link), info, True))
        for at, tensor in enumerate(self._extra_tensors):
            numbers = isinstance(tensor, torch.Tensor) and not tensor.is_complex() and tensor.dtype != torch.bool
            if not numbers:
                raise TypeError("an extra tensor is a tensor of torch with floating-point values or integers")
            if any(tensor is one for one in self.parameters):
                raise ValueError(f"extra tensor {at} is a parameter, which is averaged anyway")
            values = live_of([tensor], self._link)
            found.append((tensor, *values, CompressionInfo.from_tensor(tensor, key=at), False))
        return found

    def exchange(self) -> None:
        """Before the library waits: what rounds have made of tensors that the trainer changes, too, comes to those that
        have copies, and what the trainer has made of them into the copies."""
        self._publish_shared()
        shared = self._shared()
        for at, (tensor, _) in shared.items():
            self._published[at] = tensor.to(dtype=torch.float32, copy=True)
        self._download([(values, tensor) for tensor, values in shared.values()])

    def _shared(self) -> Dict[int, Tuple[Any, Any]]:
        """Tensors that are changed between calls, with their copies, by number: extra ones, and what local steps change
        where it is."""
        tensors = [(one, live, True) for one, live in zip(self.stepped, self.live)]
        tensors += [(tensor, values, is_statistic) for tensor, values, _, is_statistic in self._beside]
        return {
            at: (tensor.detach(), values)
            for at, (tensor, values, by_steps) in enumerate(tensors)
            if (self.follows or not by_steps) and tensor.data_ptr() != values.data_ptr()
        }

    def _publish_shared(self) -> None:
        """Where the trainer has changed one meanwhile, it gets what rounds have changed beside that."""
        pairs = self._shared() if self._published else {}
        shared = [(at, *pairs[at], before) for at, before in self._published.items()]
        news = [torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device) for _, tensor, _, _ in shared]
        self._upload([(came, values) for came, (_, _, values, _) in zip(news, shared)])
        averaged = False  # something beside the parameters
        for came, (at, tensor, _, before) in zip(news, shared):
            now = tensor.to(torch.float32)
            new = _rounded(torch.where(now == before, came, now + (came - before)), tensor.dtype)
            # What no round has changed stays as it is: float32 may not hold it.
            tensor.copy_(torch.where(came == before, tensor, new))
            self._published[at] = came
            averaged = averaged or (at >= len(self.stepped) and not torch.equal(came, before))
        if self.follows and self._statistics and averaged:
            make_usable(self.optimizer)

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
        parameters = [_described(live, "NONE", in_place=self.on_gpu) for live in self.live]
        beside = []
        for tensor, values, info, is_statistic in self._beside:
            one = _described(values, "optimizer.{}.{}".format(*info.key) if is_statistic else "NONE")
            # In the schema it is what it is; its values are float32 here.
            one.tensor.dtype = str(tensor.dtype).replace("torch.", "").encode()
            one.tensor.requires_grad = int(tensor.requires_grad)
            beside.append(one)
        return parameters, beside

    # ---- The state

    def refresh_state(self) -> None:
        """Copies what of the state is on a GPU, for newcomers and checkpoints: the library reads host memory."""
        if self._link is None or self.on_gpu:
            return
        leaves = [leaf for leaf in nested_flatten(self.optimizer.state_dict()) if isinstance(leaf, torch.Tensor)]
        away = {_place_of(one): one.detach() for one in [*leaves, *self.extras()] if one.device.type != "cpu"}
        copies = {place: self._copies[place] for place in away if place in self._copies}
        for dtype in {one.dtype for one in away.values()}:
            new = [place for place, one in away.items() if place not in copies and one.dtype == dtype]
            copies.update(zip(new, self._link.memory([away[place].shape for place in new], dtype)))
        self._download([(copies[place], one) for place, one in away.items()])
        self._copies = copies

    def on_host(self, tensor: Any) -> Any:
        """A tensor of the state where the library reads it: a copy of refresh_state() where it is on a GPU."""
        tensor = tensor.detach()
        if tensor.device.type == "cpu" or self.on_gpu:
            return tensor
        copy = self._copies.get(_place_of(tensor))
        return tensor.cpu() if copy is None else copy

    def describe(self, tensors: Sequence[Any], codecs: Sequence[str]) -> List[Described]:
        """The tensors of a state, whose memory the result keeps."""
        self._size = len(tensors)
        extras = range(len(self.live), len(self.live) + len(self._extra_tensors))
        self._read = [one for at, one in enumerate(tensors) if at not in extras]
        self._kept_in = self.optimizer.state
        return [_described(tensor, codec, in_place=self.on_gpu) for tensor, codec in zip(tensors, codecs)]

    def versions(self) -> int:
        """Returns what is another number after torch has written to parameters or statistics, as in clamp_() or
        load_state_dict(); 0 with local steps, which change them all the time. Writes to .data do not count."""
        return 0 if self._local else _versions_of(self._read)

    def note_changes(self) -> None:
        """At the end of a call; see was_changed()."""
        self._noted = _versions_of(self.parameters)

    def note_values(self) -> None:
        """Where the library has changed the model; see was_loaded()."""
        self._norms = [] if self.follows else self._norms_of_parameters()

    def was_changed(self) -> bool:
        """Whether torch has written to the model's own parameters since the last call, other than to .data."""
        return self._noted != _versions_of(self.parameters)

    def was_loaded(self) -> bool:
        """Whether they have other values since then, as they have not where averages of weights were in their place for
        an evaluation."""
        return self.was_changed() and self._norms != self._norms_of_parameters()

    def _norms_of_parameters(self) -> List[float]:
        norms = torch._foreach_norm([one.detach() for one in self.parameters])
        return [float(norm) for norm in torch.stack([one.to(device="cpu", dtype=torch.float64) for one in norms])]

    def was_reloaded(self) -> bool:
        """Whether the optimizer has loaded a state by itself, into other tensors than the library knows."""
        return self.optimizer.state is not self._kept_in

    def names(self) -> Any:
        """Those of the tensors of a state in checkpoints."""
        names = [f"parameter.{at}" for at in range(len(self.live))]
        names += [f"extra.{at}" for at in range(len(self._extra_tensors))]
        names += _state_names(self.optimizer.state_dict())
        assert len(names) == self._size, "the library reads one name for each tensor"
        return (ctypes.c_char_p * max(len(names), 1))(*[name.encode() for name in names])

    def native_steps(self) -> Tuple[Optional[bytes], Any]:
        """The settings of the library's steps, and the memory of their statistics. RuntimeError where the optimizer has
        come to be one that the library cannot step."""
        if not self.native:
            return None, None
        ruled_out = self._ruled_out(self._is_row_there if self.on_gpu else is_plain)
        if ruled_out is not None:
            raise _not_as_it_was(ruled_out)
        kind = type(self.optimizer)
        groups: List[Dict[str, Any]] = []
        pointers = (_native.FloatPointer * (_KEPT * len(self.stepped)))()
        begins = itertools.count(0, _KEPT)
        for group in self.optimizer.param_groups:
            settings = {name: value for name, value in group.items() if name in _SETTINGS}
            groups.append({"name": _NAMES[kind], "parameters": len(group["params"]), **settings})
            kept = _kept_by(kind, group)
            for one, begin in zip(group["params"], begins):
                state = self.optimizer.state[one]
                for slot, name in enumerate(kept):
                    pointers[begin + slot] = _pointer(state[name])
                if isinstance(state.get("step"), torch.Tensor):
                    pointers[begin + _KEPT - 1] = _pointer(state["step"])
        return json.dumps(groups, allow_nan=False, default=plain).encode(), pointers

    def load(self, metadata: Any, tensors: Sequence[Any]) -> Optional[str]:
        """Takes over a state of hivemind's or of our own. Returns why not, where it does not fit; nothing has changed
        then. Settings stay, as schedules follow the epoch."""
        state = self.optimizer.state_dict()
        leaves = [leaf for leaf in nested_flatten(state) if isinstance(leaf, torch.Tensor)]
        counters = {id(kept["step"]) for kept in state["state"].values() if "step" in kept}
        own = [*self.live, *self.extras(), *leaves]
        if not isinstance(metadata, dict):
            return "its metadata is no map"
        if len(own) != len(tensors):
            return f"it has {len(tensors)} tensors, and ours {len(own)}: it is of another model or optimizer"
        statistics = metadata.get("statistics")  # of a file
        names = [name for name in _state_names(state) if name.startswith("optimizer.")]
        if isinstance(statistics, list) and sorted(map(str, statistics)) != sorted(names):
            return "its statistics have other names than ours: it is of another optimizer"
        theirs = []
        for at, (tensor, given) in enumerate(zip(own, tensors)):
            shape = tuple(given.shape[k] for k in range(given.rank))
            if tuple(tensor.shape) != shape:
                return f"its tensor {at} has the shape {shape}, and ours {tuple(tensor.shape)}"
            memory = (ctypes.c_uint8 * given.size).from_address(given.data) if given.size else b""
            values = tensor_from_bytes(memory, given.dtype.decode(), shape, False)
            if values.is_floating_point() and not torch.isfinite(values).all():
                return f"its tensor {at} has values that are not finite"
            if id(tensor) in counters and not is_count(values):
                return f"its tensor {at} is how often the optimizer has stepped, and has no such number"
            theirs.append(values)
        with torch.no_grad():
            for tensor, values in zip(own, theirs):
                tensor.copy_(_rounded(values, tensor.dtype))
            for tensor, values, _, _ in self._beside:
                values.copy_(tensor)
        self._load_numbers(metadata.get("optimizer_metadata"))
        self._published.clear()
        if self.follows:
            _copy((one.detach(), live) for one, live in zip(self.stepped, self.live))
        self.forget_gradients()
        self.refresh_state()
        return None

    def _load_numbers(self, told: Any) -> None:
        """Takes over the plain numbers of a donor's optimizer, such as the step of Adafactor, where its state has the
        same leaves as ours. Files have none."""
        state = self.optimizer.state_dict()["state"]
        own = list(nested_flatten(state))
        told = told[-len(own) :] if own and isinstance(told, list) else []  # settings come before the state
        kinds = [one.get("type") if isinstance(one, dict) else None for one in told]
        if kinds != ["tensor" if isinstance(leaf, torch.Tensor) else "value" for leaf in own]:
            return
        numbers = [plain(one.get("value")) for one in told]
        leaves = [
            given if type(given) is type(plain(leaf)) and type(given) in (int, float) and math.isfinite(given) else leaf
            for given, leaf in zip(numbers, own)
        ]
        packed = nested_pack(leaves, state)
        for at, one in enumerate(self.stepped):
            kept, loaded = self.optimizer.state[one], packed.get(at, {})
            for name in kept:
                is_number = name in loaded and type(plain(kept[name])) in (int, float)
                if is_number and (name != "step" or is_count(loaded[name])):
                    kept[name] = loaded[name]

    @contextlib.contextmanager
    def as_given(self, with_parameters: bool) -> Iterator[None]:
        """Has the tensors that a user has loaded as they are now, whatever the library makes of them meanwhile: extra
        ones, and parameters where the optimizer steps these and not copies."""
        kept = [*(self.parameters if with_parameters and not self.has_copies else ()), *self._extra_tensors]
        given = [one.detach().clone() for one in kept]
        try:
            yield
        finally:
            _copy(zip(kept, given))
            self._published.clear()
            del given
            return_memory()

    def masters_as_given(self) -> Optional[List[Any]]:
        """Returns float32 values of the model's parameters, in which copies that round to what the model has keep all
        of their bits; None where the optimizer steps no copies."""
        if not self.has_copies:
            return None
        pairs = [(one.detach().to(live.device), live) for one, live in zip(self.parameters, self.live)]
        return [torch.where(one == live.to(one.dtype), live, one) for one, live in pairs]

    def take_parameters(self, masters: Optional[Sequence[Any]]) -> None:
        """Has the library train on from the model's parameters, or from float32 copies of them."""
        with torch.no_grad():
            for at, live in enumerate(self.live):
                source = self.parameters[at] if masters is None else masters[at]
                if source.data_ptr() != live.data_ptr():
                    live.copy_(source)

    def check_saved(self, state: Mapping[str, Any], masters: Optional[Sequence[Any]]) -> None:
        """Raises ValueError where a saved state is of another model, and RuntimeError where the optimizer would be one
        that the library cannot step."""
        if masters is not None and [one.shape for one in masters] != [one.shape for one in self.live]:
            raise ValueError("the masters are of another model")
        kind, groups = type(self.optimizer), state.get("param_groups", ())
        for group in groups if self.native else ():
            # Whatever it loads, torch's AdamW sets this.
            given = {**group, "decoupled_weight_decay": True} if kind is torch.optim.AdamW else group
            if (setting := _unknown_setting(kind, given)) is not None:
                raise _not_as_it_was(f"the setting {setting}")
        saved = [state["state"].get(at, {}) for group in groups for at in group["params"]]
        for at, (kept, one) in enumerate(zip(saved, self.stepped)):
            own = self.optimizer.state[one]
            places = {name: own[name] for name in self._statistics}
            places.update({name: one for name in _STATISTICS.get(kind, ())})
            for name, place in places.items():
                shape = getattr(kept.get(name), "shape", place.shape)
                if shape != place.shape:
                    raise ValueError(
                        f"the state is of another model: {name} of parameter {at} has the shape {tuple(shape)}, and "
                        f"ours {tuple(place.shape)}"
                    )
            if "step" in kept and not is_count(kept["step"]):
                raise ValueError(f"the state has no number of steps for parameter {at}, but {kept['step']}")

    def load_optimizer(self, state: Mapping[str, Any]) -> None:
        """Has the optimizer load its state_dict(), which check_saved() has looked at, into the tensors that it has: the
        library knows their memory."""
        with torch.no_grad():
            self._publish_shared()
        self._published.clear()
        before = {one: dict(self.optimizer.state[one]) for one in self.stepped}
        self.optimizer.load_state_dict(state)
        names = {name for one in self.stepped for name in self.optimizer.state[one]}
        with torch.no_grad():
            for one, kept in before.items():
                loaded = self.optimizer.state[one]
                if not loaded:  # the parameter never had a gradient: torch has nothing of it, and begins with zeros
                    loaded.update({name: _zero(kept[name]) for name in kept if not names or name in names})
                for name, tensor in kept.items():
                    values = loaded.get(name)
                    if not isinstance(tensor, torch.Tensor) or not isinstance(values, torch.Tensor):
                        continue
                    if tensor.shape == values.shape and tensor.dtype == values.dtype:
                        loaded[name] = tensor.copy_(values)
        self.take_optimizer()

    def take_optimizer(self) -> None:
        """Has the library's memory have what the optimizer keeps now. After it, describe() tells of tensors that are
        others."""
        self._set_counters()
        self._collect()
        self.refresh_state()

    # ---- Gradients

    def check_places(self) -> None:
        """Raises RuntimeError where a parameter has other memory than the library trains."""
        for at, (parameter, place) in enumerate(zip(self.parameters, self._places)):
            if place != _place_of(parameter):
                raise RuntimeError(
                    f"parameter {at} of the optimizer is in other memory than when the optimizer was made, as after "
                    "model.to() or an assignment to its data: make the optimizer when the model is where it is trained"
                )

    def gradients(self, samples: int, scale: float) -> Any:
        """Pointers to the gradients of a batch, or to the sums in buffers that are used again; null where a parameter
        has none. They live until release_gradients(), or the next call. On a GPU they add up there, and there are no
        pointers; see take_sums()."""
        pointers = (_native.FloatPointer * len(self.parameters))()
        if self._local:
            for parameter in self.parameters if scale != 1 else ():
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
            return pointers
        if self._reuse:
            self._summed = self._sums_of_batches()
        if self.sums is not None:
            self.sums.add(samples, scale)
            return pointers
        if not self._reuse:
            self._buffers = {}
        for at, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                self._buffers[at] = self._on_host(parameter.grad)
                pointers[at] = _pointer(self._buffers[at])
        return pointers

    def _sums_of_batches(self) -> Dict[int, Any]:
        """The gradients, by parameter. RuntimeError where one that earlier batches of the epoch have added up in was
        set to None or replaced. One that was zeroed in place looks like any other."""
        for at, before in self._summed.items():
            if not _adds_up(self.parameters[at].grad, before):
                raise RuntimeError(
                    f"the gradient of parameter {at} was set to None or replaced before the epoch has ended, and "
                    "with it a sum of batches: with reuse_grad_buffers call no zero_grad(), of the model neither, and "
                    "assign nothing to .grad"
                )
        return {at: one.grad for at, one in enumerate(self.parameters) if one.grad is not None}

    def take_sums(self, pointers: Any) -> Tuple[float, float]:
        """What the gradients of batches have added up to on a GPU: sets pointers, and returns the number of samples
        and what makes means of the values, by division."""
        assert self.sums is not None
        sums, samples, scale = self.sums.take(where_they_are=self.on_gpu)
        for at, values in enumerate(sums):
            if values is not None:
                pointers[at] = _pointer(values)
        if samples:
            self._summed = {}
        return samples, scale

    def has_gradients(self) -> bool:
        """Whether the batch has left a gradient of any parameter, or has changed a sum of earlier ones."""
        if not self._reuse:
            return any(one.grad is not None for one in self.parameters)
        return any(
            one.grad is not before or (before is not None and before._version != version)
            for one, (before, version) in zip(self.parameters, self._left)
        )

    def note_gradients(self) -> None:
        """At the end of a call; see has_gradients()."""
        if self._reuse:
            grads = [one.grad for one in self.parameters]
            self._left = [(grad, 0 if grad is None else grad._version) for grad in grads]

    def forget_gradients(self) -> None:
        """Of batches that were taken: they belong to parameters that are no more."""
        self._summed = {}
        if self.sums is not None:
            self.sums.forget()

    def release_gradients(self) -> None:
        """After the library has read them: those of the last batch need no memory while the next one is computed. It
        reads buffers that are used again in later calls, too."""
        self._interrupted = []
        if not self._reuse:
            self._buffers = {}

    def keep_gradients(self) -> None:
        """After a call that was interrupted: the library may read them until a later one has ended."""
        self._interrupted.append(self._buffers)
        self._buffers = {}

    @staticmethod
    def _on_host(grad: Any) -> Any:
        grad = _gpu.dense(grad)
        return grad if is_plain(grad) else grad.to(device="cpu", dtype=torch.float32).contiguous()

    def clear_gradients(self) -> None:
        """Begins new sums in the parameters' gradients, where these are used again."""
        if not self._reuse:
            return
        self.forget_gradients()
        self._buffers = {}
        zero_gradients(self.parameters, set_to_none=False)
        self.note_gradients()

    def note_taken_sums(self) -> None:
        """After a call that was interrupted: the library has taken what is in buffers that are used again. What adds up
        on a GPU it asks for."""
        if self.sums is None:
            self.clear_gradients()

    # ---- Steps

    def step(self, gradients: Optional[Sequence[Any]]) -> None:
        """Has the optimizer step, with averaged gradients or, with local updates, with those of the batch."""
        if self.follows:
            self.optimizer.step()
            self._find_statistics()
            return
        if not self.has_copies:
            self._publish_parameters()  # a round that went on in the background may have ended in this call
        before = [one.grad for one in self.stepped]
        try:
            of_batch = [one.grad for one in self.parameters]
            grads = self._fitted(of_batch) if gradients is None else self._averages(gradients)
            for one, grad in zip(self.stepped, grads):
                one.grad = grad
            self.optimizer.step()
            if gradients is not None:
                self._own(grads)
        finally:
            for one, grad in zip(self.stepped, before):
                one.grad = grad
        self._collect()
        if not self._local:
            self.refresh_state()

    def _averages(self, pointers: Sequence[Any]) -> List[Any]:
        """Averaged gradients as those of what the optimizer steps; None where no peer has one."""
        averages = [_values_at(pointer, live) if pointer else None for pointer, live in zip(pointers, self.live)]
        if self.sums is not None and not self.has_copies:
            averages = self.sums.upload(averages)
        return self._fitted(averages)

    def _own(self, lent: Sequence[Any]) -> None:
        """Copies what the optimizer has kept of gradients whose memory is the library's, and goes with the call."""
        memory = {one.untyped_storage().data_ptr() for one in lent if one is not None and one.numel()}
        for one in self.stepped:
            kept = self.optimizer.state[one]
            leaves = list(nested_flatten(kept))
            is_lent = [
                isinstance(leaf, torch.Tensor)
                and leaf.layout == torch.strided
                and leaf.untyped_storage().data_ptr() in memory
                for leaf in leaves
            ]
            if any(is_lent):
                own = [leaf.clone() if lent_one else leaf for leaf, lent_one in zip(leaves, is_lent)]
                kept.update(nested_pack(own, dict(kept)))

    def _fitted(self, gradients: Sequence[Any]) -> List[Any]:
        """As those of what the optimizer steps."""
        pairs = zip(gradients, self.stepped)
        return [None if values is None else values.to(device=one.device, dtype=one.dtype) for values, one in pairs]

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
        copies = [(live, one.detach()) for one, live in zip(self.stepped, self.live)]
        copies += [(values, tensor.detach()) for tensor, values, _, is_statistic in self._beside if is_statistic]
        self._download([(to, values) for to, values in copies if to.data_ptr() != values.data_ptr()])

    def publish(self) -> None:
        """The model has what is in the library's memory."""
        self._publish_parameters()
        with torch.no_grad():
            self._publish_shared()

    def _publish_parameters(self) -> None:
        if self.follows:
            return
        copies = []
        for at, (parameter, one, live) in enumerate(zip(self.parameters, self.stepped, self.live)):
            if one.data_ptr() != live.data_ptr():
                copies.append((one.detach(), self._stage(at, one, live)))
            if parameter is not one:
                copies.append((parameter.detach(), self._stage(at, parameter, live)))
        statistics = [
            (tensor.detach(), values)
            for tensor, values, _, is_statistic in self._beside
            if is_statistic and tensor.data_ptr() != values.data_ptr()
        ]
        before = [tensor.clone() for tensor, _ in statistics]
        self._upload([*copies, *statistics])
        if not all(torch.equal(tensor, one) for (tensor, _), one in zip(statistics, before)):
            make_usable(self.optimizer)  # the library has no means but those that are averaged, too

    def _stage(self, at: int, parameter: Any, live: Any) -> Any:
        """The values as the parameter has them, so that a copy to a GPU is a copy alone."""
        if self._link is None or parameter.dtype == live.dtype:
            return live
        if self._staged is None:
            self._staged = self._link.memory([one.shape for one in self.parameters], parameter.dtype)
        self._link.wait()
        return self._staged[at].copy_(live)

    # ---- Copies

    def _download(self, copies: Sequence[Tuple[Any, Any]]) -> None:
        if self._link is not None:
            return self._link.download(copies) if copies else None
        _copy(copies)

    def _upload(self, copies: Sequence[Tuple[Any, Any]]) -> None:
        if self._link is not None:
            return self._link.upload(copies) if copies else None
        _copy(copies)

    def device(self) -> Optional[int]:
        """The number of the GPU on which the library averages and steps."""
        return self._link.number if self._link is not None and self.on_gpu else None

    def stream(self) -> int:
        """Where the calling thread queues its work on that GPU; 0 without one, and for its default stream."""
        return self._link.stream() if self._link is not None and self.on_gpu else 0

    def wait_for_copies(self) -> None:
        """Until the library may change what is being copied to a GPU: before its next call."""
        if self._link is not None:
            self._link.wait()
