"""Compressions of tensors on the wire, with hivemind's names, codecs and bytes. Needs torch."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
from abc import ABC, abstractmethod
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _native
from ._native import check, lib
from ._torch import torch

Key = Any


class TensorRole(enum.Enum):
    """What a tensor is to the model."""

    ACTIVATION = enum.auto()
    PARAMETER = enum.auto()
    GRADIENT = enum.auto()
    OPTIMIZER = enum.auto()
    UNSPECIFIED = enum.auto()


class CompressionType(enum.IntEnum):
    """The numbers of the codecs on the wire."""

    NONE = 0
    MEANSTD_16BIT = 1
    FLOAT16 = 2
    QUANTILE_8BIT = 3
    UNIFORM_8BIT = 4
    BLOCKWISE_8BIT = 5

    @classmethod
    def keys(cls) -> List[str]:  # as protobuf has it
        return [one.name for one in cls]

    @classmethod
    def values(cls) -> List["CompressionType"]:
        return list(cls)

    @classmethod
    def Name(cls, number: int) -> str:  # noqa: N802
        return cls(number).name


@dataclasses.dataclass(frozen=True)
class TensorDescriptor:
    """What is known of a tensor without its values."""

    size: Tuple[int, ...]
    dtype: Any = None
    layout: Any = None
    device: Any = None
    requires_grad: bool = False

    @classmethod
    def from_tensor(cls, tensor: Any) -> "TensorDescriptor":
        return cls(tuple(tensor.shape), tensor.dtype, tensor.layout, tensor.device, tensor.requires_grad)

    @property
    def shape(self) -> Tuple[int, ...]:
        return self.size

    def numel(self) -> int:
        count = 1
        for length in self.size:
            count *= length
        return count


@dataclasses.dataclass(frozen=True)
class CompressionInfo:
    """What strategies look at."""

    key: Key  #: name or index of the tensor
    descriptor: Any  #: see TensorDescriptor
    role: TensorRole = TensorRole.UNSPECIFIED
    part_index: int = 0
    part_size: Optional[int] = None

    @classmethod
    def from_tensor(cls, tensor: Any, key: Key = None, descriptor: Any = None, **kwargs: Any) -> "CompressionInfo":
        return cls(key, descriptor or TensorDescriptor.from_tensor(tensor), **kwargs)

    def get_part(self, part_index: int, part_size: Optional[int]) -> "CompressionInfo":
        return dataclasses.replace(self, part_index=part_index, part_size=part_size)


@dataclasses.dataclass
class SerializedTensor:
    """A tensor as it travels, or a piece of it: only the first piece says what it is."""

    compression: int = 0
    buffer: bytes = b""
    size: Tuple[int, ...] = ()
    dtype: str = ""
    requires_grad: bool = False
    chunks: int = 0


class CompressionBase(ABC):
    """Says how tensors travel, by the codecs of the library, which encodes and decodes without Python: a subclass says
    which one, by codec() or compression_type.

    :raises TypeError: a subclass with a compress() or extract() of its own, which nothing would call
    """

    compression_type: CompressionType = CompressionType.NONE

    def __new__(cls, *_: Any, **__: Any) -> Any:
        if cls.compress is not CompressionBase.compress or cls.extract is not CompressionBase.extract:
            raise TypeError(
                f"{cls.__name__} has a compress() or extract() of its own, which the library would not call: tensors "
                "travel by its codecs, of which codec() chooses"
            )
        return super().__new__(cls)

    @abstractmethod
    def codec(self, info: CompressionInfo) -> CompressionType:
        """The codec of a tensor."""

    def _names(self, info: CompressionInfo) -> bool:
        """Whether a rule by role or by key gives the tensor its codec: what holds for everything, or for all tensors of
        a size, was not chosen with this one in mind. A strategy of your own is asked about each tensor."""
        return True

    def compress(self, tensor: Any, info: CompressionInfo, allow_inplace: bool = False) -> SerializedTensor:
        """The tensor as it travels. What the codec cannot encode, such as integers, travels as it is."""
        codec = self.codec(info)
        described = _described(tensor, codec.name)
        encoded, used = _native.Bytes(), ctypes.c_int32()
        check(lib.cohive_codec_encode(ctypes.byref(described.tensor), ctypes.byref(encoded), ctypes.byref(used)))
        dtype = str(tensor.dtype).replace("torch.", "")
        return SerializedTensor(
            used.value, _native.taken(encoded), tuple(tensor.shape), dtype, bool(tensor.requires_grad)
        )

    def extract(self, serialized_tensor: SerializedTensor) -> Any:
        """The tensor again."""
        return deserialize_torch_tensor(serialized_tensor)

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Bytes on the wire per byte of the tensor."""
        bits = {CompressionType.NONE: None, CompressionType.MEANSTD_16BIT: 16.0, CompressionType.FLOAT16: 16.0}
        wanted = bits.get(self.codec(info), 8.0)
        return 1.0 if wanted is None else wanted / (8.0 * info.descriptor.dtype.itemsize)

    def __repr__(self) -> str:
        return f"cohive.{type(self).__name__}()"


class _Fixed(CompressionBase):
    def codec(self, info: CompressionInfo) -> CompressionType:
        return self.compression_type

    def _names(self, info: CompressionInfo) -> bool:
        return False


class NoCompression(_Fixed):
    """Values as they are."""

    compression_type = CompressionType.NONE


class Float16Compression(_Fixed):
    """Halves, clamped to what they hold."""

    compression_type = CompressionType.FLOAT16


class ScaledFloat16Compression(_Fixed):
    """Halves, after the mean and the deviation along the last axis are taken out."""

    compression_type = CompressionType.MEANSTD_16BIT


class Uniform8BitQuantization(_Fixed):
    """One byte a value: 256 bins of one width."""

    compression_type = CompressionType.UNIFORM_8BIT


class Quantile8BitQuantization(_Fixed):
    """One byte a value: 256 bins with as many values in each."""

    compression_type = CompressionType.QUANTILE_8BIT


class BlockwiseQuantization(_Fixed):
    """One byte a value, and a scale for every 4,096. No bitsandbytes is needed."""

    compression_type = CompressionType.BLOCKWISE_8BIT


class AdaptiveCompressionBase(CompressionBase, ABC):
    """Chooses among other strategies."""

    @abstractmethod
    def choose_compression(self, info: CompressionInfo) -> CompressionBase:
        """The strategy for a tensor."""

    def codec(self, info: CompressionInfo) -> CompressionType:
        return self.choose_compression(info).codec(info)


class SizeAdaptiveCompression(AdaptiveCompressionBase):
    """One strategy for tensors of at least `threshold` values, another for the others."""

    def __init__(self, threshold: int, less: CompressionBase, greater_equal: CompressionBase) -> None:
        self.threshold, self.less, self.greater_equal = threshold, less, greater_equal

    def choose_compression(self, info: CompressionInfo) -> CompressionBase:
        return self.greater_equal if info.descriptor.numel() >= self.threshold else self.less

    def _names(self, info: CompressionInfo) -> bool:
        return self.choose_compression(info)._names(info)


class RoleAdaptiveCompression(AdaptiveCompressionBase):
    """A strategy by the role of a tensor; what is left out gets `default`."""

    def __init__(
        self,
        *,
        activation: Optional[CompressionBase] = None,
        parameter: Optional[CompressionBase] = None,
        gradient: Optional[CompressionBase] = None,
        optimizer: Optional[CompressionBase] = None,
        default: Optional[CompressionBase] = None,
    ) -> None:
        default = default or NoCompression()
        given = (activation, parameter, gradient, optimizer)
        self._default, self._named = default, {role for role, one in zip(TensorRole, given) if one is not None}
        self.role_compressions: Dict[TensorRole, CompressionBase] = {
            TensorRole.ACTIVATION: activation or default,
            TensorRole.PARAMETER: parameter or default,
            TensorRole.GRADIENT: gradient or default,
            TensorRole.OPTIMIZER: optimizer or default,
            TensorRole.UNSPECIFIED: default,
        }

    def choose_compression(self, info: CompressionInfo) -> CompressionBase:
        return self.role_compressions[info.role]

    def _names(self, info: CompressionInfo) -> bool:
        chosen = self.choose_compression(info)
        return info.role in self._named or chosen is not self._default or chosen._names(info)


class PerTensorCompression(AdaptiveCompressionBase):
    """A strategy by the key of a tensor: its place in a list, or its name in a dict."""

    def __init__(self, tensor_compressions: Union[Sequence[CompressionBase], Mapping[Key, CompressionBase]]) -> None:
        self.tensor_compressions = tensor_compressions

    def choose_compression(self, info: CompressionInfo) -> CompressionBase:
        return self.tensor_compressions[info.key]


class Described:
    """A cohive_tensor, and what keeps its memory."""

    def __init__(self, shape: Sequence[int], dtype: str, codec: str, requires_grad: bool) -> None:
        self.shape = (ctypes.c_uint32 * max(len(shape), 1))(*shape)
        self.tensor = _native.Tensor(
            None, self.shape, dtype.encode(), codec.encode(), 0, len(shape), int(bool(requires_grad))
        )
        self.values: Any = None


def _described(tensor: Any, codec: str, with_values: bool = True, in_place: bool = False) -> Described:
    """A tensor of torch as the library takes it; values of another device, or not in a row, are copied, unless it takes
    them where they are."""
    dtype = str(tensor.dtype).replace("torch.", "")
    described = Described(tuple(tensor.shape), dtype, codec, tensor.requires_grad)
    if with_values:
        described.values = tensor.detach() if in_place else tensor.detach().to("cpu").contiguous()
        described.tensor.on_gpu = int(described.values.device.type != "cpu")
        described.tensor.data = described.values.data_ptr() or None
        described.tensor.size = described.values.numel() * described.values.element_size()
    return described


def tensor_from_bytes(values: Any, dtype: str, shape: Sequence[int], requires_grad: bool) -> Any:
    """A tensor of torch over this memory, which it keeps."""
    kind = getattr(torch, dtype)
    made = torch.frombuffer(values, dtype=kind) if len(values) else torch.empty(0, dtype=kind)
    made = made.reshape(tuple(shape))
    return made.requires_grad_() if requires_grad and (kind.is_floating_point or kind.is_complex) else made


def codec_of_state(compression: CompressionBase, info: CompressionInfo) -> CompressionType:
    """The codec of a tensor of a state that newcomers download. Statistics of an optimizer travel as they are, unless a
    rule names them: squares of small gradients are 0 in half precision, and a newcomer's first steps far too long."""
    if info.role == TensorRole.OPTIMIZER and not compression._names(info):
        return CompressionType.NONE
    return compression.codec(info)


_BY_TYPE: Dict[CompressionType, CompressionBase] = {
    kind.compression_type: kind()
    for kind in (
        NoCompression,
        Float16Compression,
        ScaledFloat16Compression,
        Uniform8BitQuantization,
        Quantile8BitQuantization,
        BlockwiseQuantization,
    )
}


def serialize_torch_tensor(
    tensor: Any,
    compression_type: int = CompressionType.NONE,
    info: Optional[CompressionInfo] = None,
    allow_inplace: bool = False,
    **kwargs: Any,
) -> SerializedTensor:
    """A tensor as it travels in one codec."""
    info = info or CompressionInfo.from_tensor(tensor, **kwargs)
    return _BY_TYPE[CompressionType(compression_type)].compress(tensor, info, allow_inplace)


def deserialize_torch_tensor(serialized_tensor: SerializedTensor) -> Any:
    """The reverse; ValueError for bytes that are no such tensor."""
    codec = CompressionType(serialized_tensor.compression).name
    described = Described(serialized_tensor.size, serialized_tensor.dtype, codec, serialized_tensor.requires_grad)
    described.tensor.data = ctypes.cast(ctypes.c_char_p(serialized_tensor.buffer), ctypes.c_void_p)
    described.tensor.size = len(serialized_tensor.buffer)
    values = _native.Bytes()
    check(lib.cohive_codec_decode(ctypes.byref(described.tensor), ctypes.byref(values)))
    content = bytearray(_native.taken(values))
    return tensor_from_bytes(content, serialized_tensor.dtype, serialized_tensor.size, serialized_tensor.requires_grad)


def split_for_streaming(
    serialized_tensor: SerializedTensor, chunk_size_bytes: int = 1 << 16
) -> Iterator[SerializedTensor]:
    """Pieces of so many bytes."""
    buffer = memoryview(serialized_tensor.buffer)
    count = max((len(buffer) - 1) // chunk_size_bytes + 1, 1)
    yield dataclasses.replace(serialized_tensor, buffer=bytes(buffer[:chunk_size_bytes]), chunks=count)
    for begin in range(chunk_size_bytes, len(buffer), chunk_size_bytes):
        yield SerializedTensor(buffer=bytes(buffer[begin : begin + chunk_size_bytes]))


def combine_from_streaming(stream: Iterable[SerializedTensor]) -> SerializedTensor:
    """The pieces together again."""
    parts = list(stream)
    return dataclasses.replace(parts[0], buffer=b"".join(part.buffer for part in parts), chunks=0)
