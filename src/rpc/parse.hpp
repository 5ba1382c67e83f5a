#pragma once

#include "cohive/core/bytes.hpp"

namespace cohive::rpc {

/// Parses a protobuf. Unlike ParseFromArray it does not let a peer write lines to our stderr: libprotobuf reports
/// missing required fields there.
template <class Message>
bool parse(Message& message, ByteView bytes) {
  return message.ParsePartialFromArray(bytes.data(), static_cast<int>(bytes.size())) && message.IsInitialized();
}

}  // namespace cohive::rpc
