#include "group_keys.hpp"

#include <utility>

#include "group_bits.hpp"

namespace cohive::averaging {

bool GroupKeys::begin(const SearchPlan& plan, Runtime& runtime) {
  last_ = plan.last;
  if (fixed_) return false;
  std::string bits;
  for (std::size_t i = 0; i < plan.random_bits; ++i) bits += runtime.random()() & 1 ? '1' : '0';
  return move_to(std::move(bits));
}

bool GroupKeys::found(const Group& group, const PeerId& own) {
  if (!fixed_) return false;
  return move_to(
      next_group_bits(bits_, as_bytes(group.id), group.index_of(own).value(), group.members.size(), target_));
}

bool GroupKeys::move_to(std::string bits) {
  const bool moves = bits != bits_;
  bits_ = std::move(bits);
  return moves;
}

}  // namespace cohive::averaging
