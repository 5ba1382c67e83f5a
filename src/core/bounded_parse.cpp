#include "core/detail/bounded_parse.hpp"

#include <climits>

#include "core/detail/proto_fields.hpp"

namespace cohive {
namespace {

// Which fields of proto/*.proto are messages themselves. On the wire they look like bytes, and messages that are
// generated for the lite runtime cannot be asked.
struct MessageType;
struct MessageField {
  std::uint32_t number = 0;
  const MessageType* type = nullptr;
};
struct MessageType {
  MessageField fields[5];
};

constexpr MessageType kPlain{};  // no messages in it
constexpr MessageType kHasOneAt1{{{1, &kPlain}}}, kHasOneAt2{{{2, &kPlain}}}, kHasOneAt3{{{3, &kPlain}}},
    kHasOneAt4{{{4, &kPlain}}}, kHasOneAt7{{{7, &kPlain}}};
constexpr const MessageType &kAuthInfo = kHasOneAt1, &kDial = kHasOneAt1;
constexpr MessageType kAuthAndPeerAt2{{{1, &kAuthInfo}, {2, &kPlain}}},
    kAuthAndPeerAt3{{{1, &kAuthInfo}, {3, &kPlain}}};

constexpr MessageType kAutoNat{{{2, &kDial}, {3, &kPlain}}};
constexpr MessageType kFindResponse{{{1, &kAuthInfo}, {2, &kPlain}, {3, &kPlain}}};
constexpr MessageType kHop{{{2, &kPlain}, {3, &kPlain}, {4, &kPlain}}};
constexpr MessageType kKadMessage{{{3, &kPlain}, {8, &kPlain}, {9, &kPlain}}};
constexpr MessageType kPersistentConnectionRequest{
    {{2, &kPlain}, {3, &kPlain}, {4, &kPlain}, {5, &kPlain}, {6, &kPlain}}};
constexpr MessageType kRunReport{{{2, &kPlain}, {3, &kPlain}}};
constexpr MessageType kStop{{{2, &kPlain}, {3, &kPlain}}};
constexpr MessageType kStoreRequest{{{1, &kAuthInfo}, {7, &kPlain}}};

struct NamedType {
  std::string_view name;
  const MessageType& type;
};
constexpr NamedType kTypes[] = {
    {"AutoNat", kAutoNat},
    {"AutoNat.Dial", kDial},
    {"AveragingData", kHasOneAt4},
    {"DownloadData", kHasOneAt2},
    {"FindRequest", kAuthAndPeerAt3},
    {"FindResponse", kFindResponse},
    {"Hop", kHop},
    {"KadMessage", kKadMessage},
    {"NoiseHandshakePayload", kHasOneAt4},
    {"PartTranscript", kHasOneAt1},
    {"PeerRecord", kHasOneAt3},
    {"PersistentConnectionRequest", kPersistentConnectionRequest},
    {"PingRequest", kAuthAndPeerAt2},
    {"PingResponse", kAuthAndPeerAt2},
    {"ProgressReply", kHasOneAt1},
    {"ProgressRequest", kHasOneAt7},
    {"RequestAuthInfo", kAuthInfo},
    {"ResponseAuthInfo", kAuthInfo},
    {"RunReport", kRunReport},
    {"Stop", kStop},
    {"StoreRequest", kStoreRequest},
    {"StoreResponse", kAuthAndPeerAt3},
    {"Verdict", kHasOneAt2},
};

const MessageType& type_named(std::string_view name) {
  for (const NamedType& known : kTypes)
    if (known.name == name) return known.type;
  return kPlain;
}

/// Null for a field that is no message.
const MessageType* message_in(const MessageType& type, std::uint32_t number) {
  for (const MessageField& field : type.fields)
    if (field.type && field.number == number) return field.type;
  return nullptr;
}

/// Takes the fields of one message off `left`.
bool count_fields(ByteView rest, const MessageType& type, std::size_t& left) {
  wire_format::Field field;
  while (!rest.empty()) {
    if (left == 0 || !wire_format::take_field(rest, field)) return false;
    --left;
    if (field.type != wire_format::kBytes) continue;
    const MessageType* nested = message_in(type, field.number);
    if (nested && !count_fields(field.bytes, *nested, left)) return false;
  }
  return true;
}

}  // namespace

bool holds_at_most(ByteView bytes, std::string_view type, std::size_t max_fields) {
  return count_fields(bytes, type_named(type), max_fields);
}

bool parse_bounded(google::protobuf::MessageLite& message, ByteView bytes, std::size_t max_fields) {
  constexpr std::size_t kPackage = std::string_view("cohive.proto.").size();
  return bytes.size() <= INT_MAX &&
         holds_at_most(bytes, std::string_view(message.GetTypeName()).substr(kPackage), max_fields) &&
         message.ParsePartialFromArray(bytes.data(), static_cast<int>(bytes.size())) && message.IsInitialized();
}

}  // namespace cohive
