// What a reducer keeps of the parts that it averages until the members of the group have checked them: all that was
// contributed, as it came. Source: docs/wire/extensions.md, section 12. Loop thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cohive/averaging/group.hpp"
#include "cohive/averaging/tensor_parts.hpp"
#include "cohive/rpc/rpc.hpp"
#include "transcript.hpp"

namespace cohive::averaging {

class AuditLog {
 public:
  /// What one member has contributed to a part.
  struct Contribution {
    double weight = 0;
    EncodedPart part;
    Digest digest{};
    std::string commitment;  ///< of the sender; empty for what the reducer itself has contributed
  };

  /// \param lengths  of the parts
  /// \param share  of the parts that a member is thought to make again
  AuditLog(Runtime& runtime, std::shared_ptr<const Group> group, std::vector<std::size_t> lengths, double share);

  void add(std::size_t part, std::size_t sender, Contribution contribution);
  /// The part is averaged: gives up what did not count. Returns the SHA-256 of its transcript; the same each time.
  /// \param order  of the senders, as they were added
  const Digest& close(std::size_t part, const std::vector<std::size_t>& order);
  /// Gives up the values of all parts: from now on nothing can be shown. Transcripts can still be closed, for members
  /// that are slow to read their averages.
  void forget();

  /// Serves rpc_show_part to a member of the group, which gets each part once, and not many times its share of them.
  /// Only that part is kept for it, and not for long.
  static Task<Result<>> show(std::shared_ptr<AuditLog> self, rpc::ServerStream& stream, std::size_t part);

 private:
  struct Account {
    std::map<std::size_t, Contribution> contributions;  // by sender
    std::vector<std::size_t> order;
    std::string transcript;
    std::optional<Digest> closed;
  };
  static void drop_values(Contribution& contribution);
  static Task<Result<>> send(rpc::ServerStream& stream, const Contribution& contribution, std::size_t length,
                             Deadline end);

  Runtime& runtime_;
  const std::shared_ptr<const Group> group_;
  const std::vector<std::size_t> lengths_;
  const std::size_t most_shown_;  // to a member
  std::vector<std::shared_ptr<Account>> accounts_;
  bool forgotten_ = false;
  std::map<std::size_t, std::set<std::size_t>> shown_;  // parts, by member
};

}  // namespace cohive::averaging
