// top_k, little-endian: for every 65536 values how many of them follow (uint32), then the offsets of all these within
// their 65536 (uint16, ascending), then the values (float16).
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "half.hpp"
#include "sparse_decoder.hpp"
#include "table.hpp"

namespace cohive::codec {
namespace {

constexpr std::size_t kReach = 65536;
constexpr float kLargestHalf = 65504;

std::size_t reaches_of(std::size_t count) {
  return (count + kReach - 1) / kReach;
}

/// The places of the `wanted` values of largest magnitude, ascending. NaN counts as larger than all.
std::vector<std::uint32_t> largest_places(std::vector<std::uint32_t> magnitudes, std::size_t wanted) {
  std::vector<std::uint32_t> order = magnitudes;
  const auto nth = order.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
  std::nth_element(order.begin(), nth, order.end(), std::greater<>());
  const std::uint32_t least = *nth;
  auto ties = static_cast<std::size_t>(std::count(order.begin(), nth + 1, least));  // of equals the first are taken
  std::vector<std::uint32_t> places;
  places.reserve(wanted);
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    if (magnitudes[i] < least || (magnitudes[i] == least && ties == 0)) continue;
    if (magnitudes[i] == least) --ties;
    places.push_back(static_cast<std::uint32_t>(i));
  }
  return places;
}

class TopKDecoder final : public SparseDecoder<TopKDecoder> {
 public:
  TopKDecoder(DType dtype, std::size_t count, ByteView buffer)
      : SparseDecoder(dtype, count), starts_(reaches_of(count) + 1), offsets_(buffer.data() + reaches_of(count) * 4) {
    for (std::size_t reach = 0; reach + 1 < starts_.size(); ++reach)
      starts_[reach + 1] = starts_[reach] + read_at<std::uint32_t>(buffer.data(), reach);
    halves_ = offsets_ + sent() * 2;
  }
  std::size_t sent() const { return starts_.back(); }

  /// Errors: places out of order or out of range, values that are not finite.
  Result<> check() const {
    for (std::size_t reach = 0; reach + 1 < starts_.size(); ++reach) {
      std::size_t least = reach * kReach;
      for (std::size_t i = starts_[reach]; i < starts_[reach + 1]; ++i) {
        const std::size_t place = place_of(reach, i);
        if (place < least || place >= size()) return malformed("places of a top_k buffer are out of order");
        if (!std::isfinite(value(i))) return malformed("a value of a top_k buffer is not a finite number");
        least = place + 1;
      }
    }
    return ok();
  }

 private:
  friend class SparseDecoder<TopKDecoder>;
  std::size_t place_of(std::size_t reach, std::size_t i) const {
    return reach * kReach + read_at<std::uint16_t>(offsets_, i);
  }
  float value(std::size_t i) const { return float_from_half(read_at<std::uint16_t>(halves_, i)); }

  /// The first of the values sent of a reach whose place is not below `place`.
  std::size_t lower_bound(std::size_t reach, std::size_t place) const {
    std::size_t low = starts_[reach], high = starts_[reach + 1];
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      place_of(reach, middle) < place ? low = middle + 1 : high = middle;
    }
    return low;
  }

  /// use(place behind `first`, value) for all that was sent of a stretch.
  template <class Use>
  void for_sent(std::size_t first, std::size_t count, Use use) const {
    if (count == 0) return;
    const std::size_t end = first + count;
    for (std::size_t reach = first / kReach; reach * kReach < end; ++reach) {
      const std::size_t begin = lower_bound(reach, first);
      const std::size_t stop = end < (reach + 1) * kReach ? lower_bound(reach, end) : starts_[reach + 1];
      for (std::size_t i = begin; i < stop; ++i) use(place_of(reach, i) - first, value(i));
    }
  }

  std::vector<std::size_t> starts_;  // of the values sent of each reach; their number at the end
  const std::uint8_t* offsets_;
  const std::uint8_t* halves_ = nullptr;
};

}  // namespace

Slice encode_top_k(const CodecSpec& spec, const Values& values, Rows) {
  const std::size_t count = values.size();
  if (count > std::size_t{1} << 32) throw std::invalid_argument("too many values for top_k");
  if (count == 0) return Slice();
  const std::size_t wanted = spec.sent_of(count);
  std::vector<std::uint32_t> magnitudes(count);
  for_blocks(values, 0, count, [&](const float* block, std::size_t first, std::size_t here) {
    std::transform(block, block + here, magnitudes.begin() + static_cast<std::ptrdiff_t>(first),
                   [](float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffff; });
  });
  const auto places = largest_places(std::move(magnitudes), wanted);
  const std::size_t reaches = reaches_of(count);
  Slice out = Slice::uninitialised(reaches * 4 + wanted * 4);
  std::uint8_t* const offsets = out.mutable_data() + reaches * 4;
  std::uint8_t* const halves = offsets + wanted * 2;
  std::vector<std::uint32_t> counts(reaches);
  for (std::size_t i = 0; i < places.size(); ++i) {
    ++counts[places[i] / kReach];
    write_at(offsets, i, static_cast<std::uint16_t>(places[i] % kReach));
    alignas(64) float scratch[Values::kBlock];
    const float value = *values.block(places[i], 1, scratch);
    // What is too large is sent as far as it goes; what is not finite must not look as if it were.
    const float sent = std::isfinite(value) ? std::clamp(value, -kLargestHalf, kLargestHalf) : value;
    write_at(halves, i, half_from_float(sent));
  }
  std::memcpy(out.mutable_data(), counts.data(), reaches * 4);
  return out;
}

Result<DecoderPtr> open_top_k(DType dtype, std::size_t count, ByteView buffer, const Shape*) {
  const std::size_t reaches = reaches_of(count);
  if (buffer.size() < reaches * 4) return wrong_size(buffer.size(), reaches * 4);
  std::uint64_t sent = 0;
  for (std::size_t reach = 0; reach < reaches; ++reach) sent += read_at<std::uint32_t>(buffer.data(), reach);
  if (sent > count || buffer.size() != reaches * 4 + sent * 4)
    return malformed("top_k buffer of " + std::to_string(buffer.size()) + " bytes with " + std::to_string(sent) +
                     " of " + std::to_string(count) + " values");
  auto decoder = std::make_unique<TopKDecoder>(dtype, count, buffer);
  if (auto checked = decoder->check(); !checked) return checked.error();
  return DecoderPtr(std::move(decoder));
}

}  // namespace cohive::codec
