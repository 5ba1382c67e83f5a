// Writing and reading FindResponse without a heap string for each of its ids: a reply about 16 keys carries 640 of
// them, and finds are what a DHT does all day. The bytes are those of the protobuf message (proto/dht.proto). Source:
// docs/wire/hivemind.md, section 1.1.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohive/core/bytes.hpp"
#include "routing_table.hpp"

namespace cohive::dht {

enum class FindType { not_found = 0, regular = 1, dictionary = 2 };

/// Appends FindResult messages to a FindResponse.
class FindReplyWriter {
 public:
  /// \param entries  of the dictionary that `value` was drawn from; 0: the value is whole
  void add_result(FindType type, std::string_view value, double expiration, const std::vector<NodeEntry>& nearest,
                  std::size_t entries = 0);
  /// \param node_id  empty in client mode
  std::string finish(std::string_view node_id);
  std::size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

struct FindResultView {
  FindType type = FindType::not_found;
  ByteView value;
  double expiration = 0;
  std::uint64_t entries = 0;       ///< that the node says it drew from; 0: it sent all
  std::vector<NodeEntry> nearest;  ///< malformed ids left out, at most `max_nearest`
};
struct FindReplyView {
  std::vector<FindResultView> results;
  ByteView node_id;
};

/// Views into `bytes`; nullopt when they are no FindResponse or have more than `max_results` results.
std::optional<FindReplyView> read_find_reply(ByteView bytes, std::size_t max_results, std::size_t max_nearest);

}  // namespace cohive::dht
