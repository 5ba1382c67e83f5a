// Protobufs of peers: what they hold is counted before any of it is parsed. A field of two bytes takes a hundred and
// more once it is parsed, an unknown one dozens. Source: protobuf's encoding.
#pragma once

#include <google/protobuf/message_lite.h>

#include <string_view>

#include "cohive/core/bytes.hpp"

namespace cohive {

/// What a message without lists holds at most, nested messages and fields of later versions included.
inline constexpr std::size_t kMaxPlainFields = 64;

/// Whether `bytes` hold at most `max_fields` fields, those of messages in messages included. False for malformed ones.
/// \param type the name of the message in proto/*.proto, without the package: "FindRequest"
bool holds_at_most(ByteView bytes, std::string_view type, std::size_t max_fields);

/// Parses a message of at most `max_fields` fields; false for a larger or malformed one. Unlike ParseFromArray it does
/// not let a peer write lines to our stderr: libprotobuf reports missing required fields there.
bool parse_bounded(google::protobuf::MessageLite& message, ByteView bytes, std::size_t max_fields = kMaxPlainFields);

}  // namespace cohive
