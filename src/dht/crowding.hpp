// Whether ids crowd a key. Node ids are free, and the nodes with the nearest ids hold what is stored; but ids that
// were drawn at random are spread evenly, so that nodes much nearer to a key than these would be are there on purpose.
#pragma once

#include <cstddef>
#include <vector>

#include "routing_table.hpp"

namespace cohive::dht {

/// A distance as a share of the whole id space, from 0 to 1.
double share_of_space(const DhtId& distance);

/// How many nodes the id space holds, judged by the nodes nearest to us, in ascending order; 0 when none is known.
double estimate_swarm_size(const DhtId& self, const std::vector<NodeEntry>& nearest);

/// Nodes that estimate_swarm_size() looks at, of all that a newcomer has heard from when it has looked itself up.
inline constexpr std::size_t kNodesToJudgeBy = 10;

/// Whether `count` nodes where `expected` are to be expected are more than chance brings: once in a thousand searches.
bool is_crowd(std::size_t count, double expected);

}  // namespace cohive::dht
