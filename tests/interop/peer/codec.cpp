#include "cohive/codec/codec.hpp"
#include "cohive/proto/runtime.pb.h"
#include "peer.hpp"

namespace cohive::interop {
namespace {

using nlohmann::json;

/// A serialised runtime_pb2.Tensor, decoded.
codec::Tensor decoded(const json& hex) {
  const Bytes bytes = bytes_of(hex);
  proto::Tensor message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    throw std::invalid_argument("not a tensor message");
  const auto kind = codec::codec_from_wire(message.compression());
  const auto dtype = codec::dtype_from_name(message.dtype());
  if (!kind || !dtype) throw std::invalid_argument("codec or dtype of a tensor");
  codec::Shape shape(message.size().begin(), message.size().end());
  const Slice buffer = Slice::copy_of(as_bytes(message.buffer()));
  return value_of(codec::decode_tensor(*kind, *dtype, std::move(shape), message.requires_grad(), buffer));
}

std::string encoded(const codec::Tensor& tensor, codec::Codec kind, ByteView buffer) {
  proto::Tensor message;
  message.set_buffer(buffer.data(), buffer.size());
  for (std::uint32_t size : tensor.shape) message.add_size(size);
  message.set_requires_grad(tensor.requires_grad);
  message.set_dtype(std::string(codec::name_of(tensor.dtype)));
  message.set_compression(static_cast<proto::CompressionType>(kind));
  return to_hex(as_bytes(message.SerializeAsString()));
}

/// tensor (message in any codec), codec (name): the message in that codec
Task<json> codec_encode(Peer&, json request) {
  const auto wanted = codec::codec_from_name(request.at("codec").get<std::string>());
  if (!wanted) throw std::invalid_argument("unknown codec");
  const codec::Tensor tensor = decoded(request.at("tensor"));
  const auto buffer = value_of(codec::encode_tensor(*wanted, tensor));
  co_return encoded(tensor, codec::codec_for(*wanted, tensor.dtype, tensor.shape), buffer);
}

/// tensor (message in any codec): the message with the values it decodes to
Task<json> codec_decode(Peer&, json request) {
  const codec::Tensor tensor = decoded(request.at("tensor"));
  const auto buffer = value_of(codec::encode_tensor(codec::Codec::none, tensor));
  co_return encoded(tensor, codec::Codec::none, buffer);
}

}  // namespace

void add_codec_commands(Commands& commands) {
  commands["codec_encode"] = codec_encode;
  commands["codec_decode"] = codec_decode;
}

}  // namespace cohive::interop
