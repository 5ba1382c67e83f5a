"""Every codec both ways: what Python hivemind encodes decodes to the same bits here, and what is encoded here decodes in
Python to what Python's own encoding would give, as far as that is defined (see cohive/codec/codec.hpp)."""

import pytest

torch = pytest.importorskip("torch")
hivemind = pytest.importorskip("hivemind")

from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor  # noqa: E402
from hivemind.proto import runtime_pb2  # noqa: E402

from interop_peer import Peer, PeerError  # noqa: E402

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
OTHERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]
TAKES = {"NONE": FLOATS + OTHERS, "FLOAT16": [torch.float32, torch.float16, torch.float64],
         "MEANSTD_16BIT": [torch.float32, torch.float16, torch.float64], "UNIFORM_8BIT": FLOATS, "QUANTILE_8BIT": FLOATS,
         "BLOCKWISE_8BIT": FLOATS}
SHAPES = [(1,), (17,), (3, 5, 7), (4097,), (64, 129), (300_007,)]
# Mean square error that hivemind's own tests allow for standard normal values.
LIMIT = {"NONE": 0, "FLOAT16": 5e-8, "MEANSTD_16BIT": 5e-8}


@pytest.fixture(scope="module")
def peer(program):
    peer = Peer(program("cohive-interop-peer"))
    yield peer
    peer.close()


def compression(codec):
    if codec == "BLOCKWISE_8BIT":
        pytest.importorskip("bitsandbytes", reason="hivemind needs bitsandbytes 0.45 for this codec")
    return runtime_pb2.CompressionType.Value(codec)


def tensors(codec, dtype):
    generator = torch.Generator().manual_seed(7348)
    for shape in SHAPES:
        tensor = torch.randn(shape, generator=generator)
        yield (tensor * 50).to(dtype) if not dtype.is_floating_point else tensor.to(dtype)
    if codec in ("NONE", "FLOAT16"):
        yield torch.randn((), generator=generator).to(dtype)
        yield torch.zeros((3, 0), dtype=dtype)


def bits(tensor):
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def decoded_here(peer, message):
    reply = peer.call("codec_decode", tensor=message.SerializeToString().hex())
    return deserialize_torch_tensor(runtime_pb2.Tensor.FromString(bytes.fromhex(reply)))


def encoded_here(peer, tensor, codec):
    plain = serialize_torch_tensor(tensor).SerializeToString().hex()
    return runtime_pb2.Tensor.FromString(bytes.fromhex(peer.call("codec_encode", tensor=plain, codec=codec)))


CASES = [pytest.param(codec, dtype, id=f"{codec}-{str(dtype).removeprefix('torch.')}")
         for codec, dtypes in TAKES.items() for dtype in dtypes]


@pytest.mark.parametrize("codec, dtype", CASES)
def test_what_python_encodes_decodes_here_to_the_same_bits(peer, codec, dtype):
    for tensor in tensors(codec, dtype):
        message = serialize_torch_tensor(tensor, compression(codec))
        ours, theirs = decoded_here(peer, message), deserialize_torch_tensor(message)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert torch.equal(bits(ours), bits(theirs)), tensor.shape


@pytest.mark.parametrize("codec, dtype", CASES)
def test_what_is_encoded_here_decodes_in_python(peer, codec, dtype):
    for tensor in tensors(codec, dtype):
        ours = encoded_here(peer, tensor, codec)
        assert ours.compression == runtime_pb2.CompressionType.Value(codec)
        theirs = serialize_torch_tensor(tensor, compression(codec))
        assert len(ours.buffer) == len(theirs.buffer) and ours.dtype == theirs.dtype and ours.size == theirs.size
        if codec in ("NONE", "FLOAT16", "BLOCKWISE_8BIT"):
            assert ours.buffer == theirs.buffer, tensor.shape
        back = deserialize_torch_tensor(ours)
        assert back.dtype == tensor.dtype and back.shape == tensor.shape
        if not dtype.is_floating_point or tensor.numel() == 0:
            continue
        error = (back.double() - tensor.double()).square().mean()
        of_python = (deserialize_torch_tensor(theirs).double() - tensor.double()).square().mean()
        assert error <= of_python * 1.01 + 1e-12
        if codec in LIMIT and dtype in (torch.float32, torch.float64):
            assert error <= LIMIT[codec] + (1e-15 if dtype == torch.float64 else 0)


def test_requires_grad_travels(peer):
    tensor = torch.ones(3, requires_grad=True)
    assert deserialize_torch_tensor(encoded_here(peer, tensor, "FLOAT16")).requires_grad
    assert decoded_here(peer, serialize_torch_tensor(tensor, runtime_pb2.UNIFORM_8BIT)).requires_grad


def test_tensors_hivemind_would_refuse_travel_uncompressed(peer):
    for tensor, codec in [(torch.arange(5), "FLOAT16"), (torch.ones(3, dtype=torch.bfloat16), "MEANSTD_16BIT"),
                          (torch.zeros(0), "QUANTILE_8BIT"), (torch.tensor(2.0), "MEANSTD_16BIT")]:
        message = encoded_here(peer, tensor, codec)
        assert message.compression == runtime_pb2.NONE
        assert torch.equal(deserialize_torch_tensor(message), tensor)


def test_a_damaged_message_is_an_error(peer):
    message = serialize_torch_tensor(torch.randn(100), runtime_pb2.UNIFORM_8BIT)
    message.buffer = message.buffer[:-1]
    with pytest.raises(PeerError, match="100 values with 99 indices"):
        decoded_here(peer, message)
