// Which member averages what. All members compute the same from the gathered blobs: the fraction of each peer, the
// parts that tensors are cut into, and the owner (reducer) of each part. Source: docs/wire/hivemind.md, section 6.6.
#pragma once

#include <optional>
#include <stop_token>
#include <vector>

#include "cohive/averaging/group.hpp"

namespace cohive::averaging {

/// Elements per peer. Clients get none; unset bandwidths count as the mean of the set ones.
/// Errors: no member can reduce.
/// \param min_size  with bandwidths: a peer that would get fewer elements gets none
/// \param stop  gives up: the result means nothing then
Result<std::vector<std::uint64_t>> peer_fractions(std::uint64_t total, const std::vector<Member>& peers,
                                                  std::uint64_t min_size = 0, const std::stop_token& stop = {});

/// The same where no member gets more than twice an equal share of all members, so that a member that claims a fast
/// link reduces little more than the others; the rest goes to those that can reduce and have less, in equal shares.
/// Where few can reduce they get as little as is possible.
Result<std::vector<std::uint64_t>> capped_fractions(std::uint64_t total, const std::vector<Member>& peers,
                                                    std::uint64_t min_size = 0, const std::stop_token& stop = {});

/// Largest-remainder division of `total` by scores (Hagenbach-Bischoff).
std::vector<std::uint64_t> divide(std::uint64_t total, const std::vector<double>& scores);

struct Part {
  std::size_t tensor = 0;
  std::size_t offset = 0;  ///< elements
  std::size_t length = 0;
  std::size_t owner = 0;  ///< index of the peer that reduces it
};

struct PartedTensor {
  std::size_t elements = 0;
  double bytes_per_value = 4;  ///< on the wire
};

/// The parts in order of tensors and offsets.
std::vector<Part> cut_into_parts(const std::vector<PartedTensor>& tensors, std::size_t part_size_bytes,
                                 const std::vector<std::uint64_t>& fractions);

}  // namespace cohive::averaging
