#include "bounded_parse.hpp"

#include <google/protobuf/descriptor.h>

#include <climits>

#include "core/proto_fields.hpp"

namespace cohive {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr int kMaxMessageDepth = 16;

/// Takes the fields of one message off `left`.
bool count_fields(ByteView rest, const Descriptor& type, std::size_t& left, int depth) {
  wire_format::Field field;
  while (!rest.empty()) {
    if (left == 0 || !wire_format::take_field(rest, field)) return false;
    --left;
    if (field.type != wire_format::kBytes) continue;
    const FieldDescriptor* known = type.FindFieldByNumber(static_cast<int>(field.number));
    if (!known || known->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (depth == kMaxMessageDepth || !count_fields(field.bytes, *known->message_type(), left, depth + 1)) return false;
  }
  return true;
}

}  // namespace

bool holds_at_most(ByteView bytes, const Descriptor& type, std::size_t max_fields) {
  return count_fields(bytes, type, max_fields, 0);
}

bool parse_bounded(google::protobuf::Message& message, ByteView bytes, std::size_t max_fields) {
  return bytes.size() <= INT_MAX && holds_at_most(bytes, *message.GetDescriptor(), max_fields) &&
         message.ParsePartialFromArray(bytes.data(), static_cast<int>(bytes.size())) && message.IsInitialized();
}

}  // namespace cohive
