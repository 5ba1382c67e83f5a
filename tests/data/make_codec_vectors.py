"""Writes codec_vectors.json and codec_vectors.bin beside itself: what Python hivemind's codecs make of many tensors.

Run it with the environment of tools/install-deps.sh --interop, and bitsandbytes 0.45.5 (what hivemind 1.1.12 asks for) on
the path, which BLOCKWISE_8BIT needs:

    .deps/interop/bin/pip install --no-deps --target SOMEWHERE bitsandbytes==0.45.5
    PYTHONPATH=SOMEWHERE .deps/interop/bin/python tests/data/make_codec_vectors.py

The index (JSON) has one entry per tensor and codec; [offset, length] fields point into the .bin file:
    name, compression (wire number), dtype, shape, requires_grad
    message     the serialised runtime_pb2.Tensor
    input       the tensor's own bytes; or generated: a seed, see `generated` below
    decoded     what hivemind decodes the message to, in the dtype's bytes; or decoded_sha256 where that is long
"""

import hashlib
import json
import pathlib

import numpy as np
import torch

import hivemind
import hivemind.compression.base
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.proto import runtime_pb2

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
OTHERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]
LONGEST_KEPT = 2000  # bytes of a decoded tensor; of longer ones the hash tells as much


def generated(count, seed):
    """Roughly normal float32 values that any language can make: 4 uniform numbers from a 64-bit mixer, summed."""
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    total = sum(((mixed >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.float64) for shift in (0, 16, 32, 48))
    return torch.from_numpy(((total - 131070.0) / 32768.0).astype(np.float32))


def raw(tensor):
    """The tensor's bytes in its own dtype."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.reshape(-1).view(torch.int16)
    return tensor.numpy().tobytes()


class Vectors:
    def __init__(self):
        self.entries, self.blob = [], b""

    def keep(self, data):
        at = self.blob.find(data) if data else 0
        if at < 0:
            at = len(self.blob)
            self.blob += data
        return [at, len(data)]

    def add(self, name, compression, tensor, seed=None):
        message = serialize_torch_tensor(tensor, runtime_pb2.CompressionType.Value(compression))
        decoded = deserialize_torch_tensor(message)
        assert decoded.dtype == tensor.dtype and decoded.shape == tensor.shape
        dtype = str(tensor.dtype).removeprefix("torch.")
        entry = {"name": f"{compression} {dtype} {name}", "compression": message.compression, "dtype": dtype,
                 "shape": list(tensor.shape), "requires_grad": tensor.requires_grad,
                 "message": self.keep(message.SerializeToString(deterministic=True))}
        if seed is None:
            entry["input"] = self.keep(raw(tensor))
        else:
            entry["generated"] = seed
        bytes_out = raw(decoded)
        if len(bytes_out) <= LONGEST_KEPT:
            entry["decoded"] = self.keep(bytes_out)
        else:
            entry["decoded_sha256"] = hashlib.sha256(bytes_out).hexdigest()
        self.entries.append(entry)


def shapes_of(vectors, compression, dtypes, shapes):
    seed = 0
    for dtype in dtypes:
        for shape in shapes:
            seed += 1
            count = int(np.prod(shape))
            tensor = generated(count, seed).to(dtype).reshape(shape)
            if dtype.is_floating_point and seed % 3 == 0:
                tensor.requires_grad_(True)
            vectors.add("x".join(map(str, shape)) or "scalar", compression, tensor, seed if count > 32 else None)


def values_of(vectors, compression, dtypes, named):
    for dtype in dtypes:
        for name, values in named.items():
            vectors.add(name, compression, torch.tensor(values, dtype=torch.float64).to(dtype))


def main():
    vectors = Vectors()
    odd = [(), (1,), (2,), (7,), (31,), (33,), (4, 9), (2, 3, 5), (1, 1, 1), (257,)]
    empty = [(0,), (3, 0), (0, 3)]
    inf, nan = float("inf"), float("nan")
    edges = [0.0, -0.0, 1.0, -1.0, 65504.0, 65519.0, 65520.0, 70000.0, -1e6, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 3 * 2.0**-26,
             2.0**-14, 2.0**-14 - 2.0**-25, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 1e-40, -1e-45, 3.4e38, -3.4e38]
    ordinary = {
        "zeros": [0.0] * 37,
        "constant": [0.1] * 37,
        "far from zero": [1000.0 + i / 64 for i in range(41)],
        "one outlier": [i / 8 for i in range(40)] + [-3000.0],
        "denormals": [i * 1e-41 for i in range(-20, 21)],
        "repeated values": [float(i % 3) for i in range(100)],
    }
    broken = {"infinity": [float(i) for i in range(20)] + [inf], "both infinities": [inf, 1.0, -inf, 2.0] * 4,
              "not a number": [float(i) for i in range(20)] + [nan] + [1.0] * 7}

    shapes_of(vectors, "NONE", FLOATS + OTHERS, [(), (0,), (1,), (7,), (2, 3, 5)])
    values_of(vectors, "NONE", FLOATS, {"edges": edges + [inf, -inf, nan]})
    hivemind.compression.base.USE_LEGACY_BFLOAT16 = False
    shapes_of(vectors, "NONE", [torch.bfloat16], [(), (0,), (1,), (33,)])
    hivemind.compression.base.USE_LEGACY_BFLOAT16 = True

    halves = [torch.float32, torch.float16, torch.float64]
    shapes_of(vectors, "FLOAT16", halves, odd + empty + [(10007,)])
    values_of(vectors, "FLOAT16", halves, {"edges": edges + [inf, -inf, nan]})

    shapes_of(vectors, "MEANSTD_16BIT", halves, odd[1:] + empty + [(17, 129), (10007,)])
    values_of(vectors, "MEANSTD_16BIT", halves, ordinary | broken)

    shapes_of(vectors, "UNIFORM_8BIT", FLOATS[:3], odd + [(20011,)])
    shapes_of(vectors, "UNIFORM_8BIT", FLOATS[3:], odd[1:] + [(5003,)])
    values_of(vectors, "UNIFORM_8BIT", FLOATS, ordinary | broken)

    shapes_of(vectors, "QUANTILE_8BIT", FLOATS, odd + [(5003,)])
    vectors.add("two chunks", "QUANTILE_8BIT", generated(250003, 77), 77)
    values_of(vectors, "QUANTILE_8BIT", FLOATS, ordinary | broken)

    # bitsandbytes reads outside its tables for blocks of zeros and for what is not finite: no vectors of those.
    shapes_of(vectors, "BLOCKWISE_8BIT", FLOATS, odd + empty + [(4096,), (4097,), (9001,)])
    values_of(vectors, "BLOCKWISE_8BIT", FLOATS, {k: v for k, v in ordinary.items() if k not in ("zeros", "denormals")})
    values_of(vectors, "BLOCKWISE_8BIT", FLOATS[:1], {"denormals": ordinary["denormals"]})
    # Every pair of neighbours in the code book, and the middle between them: how ties are broken.
    message = serialize_torch_tensor(torch.ones(1), runtime_pb2.BLOCKWISE_8BIT)
    book = np.frombuffer(message.buffer, dtype=np.float32, offset=20, count=256)
    middles = ((book[1:].astype(np.float64) + book[:-1]) / 2).astype(np.float32)
    around = np.concatenate([book, middles, np.nextafter(middles, np.float32(2)), np.nextafter(middles, np.float32(-2))])
    vectors.add("ties", "BLOCKWISE_8BIT", torch.from_numpy(around))

    import bitsandbytes

    folder = pathlib.Path(__file__).parent
    made_with = {"hivemind": hivemind.__version__, "torch": torch.__version__, "numpy": np.__version__,
                 "bitsandbytes": bitsandbytes.__version__}
    lines = ",\n".join(json.dumps(entry) for entry in vectors.entries)
    (folder / "codec_vectors.json").write_text(f'{{"made_with": {json.dumps(made_with)},\n"vectors": [\n{lines}\n]}}\n')
    (folder / "codec_vectors.bin").write_bytes(vectors.blob)
    print(len(vectors.entries), "vectors,", len(vectors.blob), "bytes")


if __name__ == "__main__":
    main()
