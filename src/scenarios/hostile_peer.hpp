// A member of a group that breaks the rules of the exchange in one way or another, chosen by a seed.
#pragma once

#include <random>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/group_finder.hpp"
#include "cohive/averaging/metrics.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::averaging {

class HostilePeer {
 public:
  enum class Malice {
    nonsense,  ///< sends and answers what cannot be, or falls silent
    silence    ///< sends and answers nothing
  };
  HostilePeer(Dht& dht, AveragerOptions options, std::vector<std::uint32_t> sizes, std::uint64_t seed,
              Malice malice = Malice::nonsense);
  /// Joins a group and does its worst.
  Task<void> misbehave();
  /// Joins a group and sends each other member this as its first part.
  Task<void> send_part(int compression, Slice buffer, std::size_t elements);
  PeerId id() const { return dht_.host().id(); }

 private:
  Task<std::optional<Group>> join();
  static Task<void> send_message(HostilePeer& self, PeerId to, std::string message);
  static Task<void> send_nonsense(HostilePeer& self, PeerId to, std::string group_id);
  static Task<Result<>> answer_nonsense(HostilePeer& self, rpc::ServerStream& stream);
  Slice in_agreed_codec(std::span<const float> values);
  std::string nonsense(bool first, const std::string& group_id, int code);
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  Dht& dht_;
  AveragerOptions options_;
  std::vector<std::uint32_t> sizes_;
  std::mt19937_64 random_;
  const Malice malice_;
  AveragingMetrics metrics_;
  const codec::CodecSet offered_;
  std::unique_ptr<GroupFinder> finder_;
  rpc::Server server_;
  std::string group_id_;
};

}  // namespace cohive::averaging
