// sparse2, little-endian: of every block of 4096 values the places of the k largest magnitudes, and 2 bits for each.
//   uint16 k: values sent of a whole block, of a shorter one its share rounded up;  uint8 coding;  uint8 0
//   for each block two bfloat16: a low and a high magnitude; both 0: nothing is sent of the block
//   one string of bits, lowest first. For each value that is sent: its gap, how many places lie between it and the one
//   sent before, then 1 bit for its sign and 1 bit that is set where it has the high magnitude. A block that sends less
//   than its k ends with the gap that leads to its end, and no bits behind. Zeros fill the last byte.
// A gap is coded by `coding`: 0 to 11 is the parameter r of a Rice code (gap >> r ones, a zero, r bits); 12: 12 bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "half.hpp"
#include "kernels.hpp"
#include "sparse_decoder.hpp"
#include "table.hpp"

namespace cohive::codec {
namespace {

constexpr std::size_t kSparseBlock = 4096;  // values of a block
constexpr std::size_t kSparseHead = 4, kLevelBytes = 4;
constexpr unsigned kFixedBits = 12;  // bits of a gap, and the coding that says so
constexpr std::uint16_t kNotFinite = 0x7fc0, kLargestLevel = 0x7f7f;

std::size_t sparse_blocks_of(std::size_t count) {
  return (count + kSparseBlock - 1) / kSparseBlock;
}
std::size_t wanted_of_block(std::size_t k, std::size_t length) {
  return (k * length + kSparseBlock - 1) / kSparseBlock;
}

/// Gaps have about a geometric distribution, for which a Rice code is best when r bits hold ln 2 times their mean.
unsigned rice_of(std::size_t k) {
  const double mean = static_cast<double>(kSparseBlock) / static_cast<double>(k) - 1;
  unsigned r = 0;
  while (r < kFixedBits - 1 && static_cast<double>(2u << r) <= mean * 0.7 + 1) ++r;
  return r;
}

// ---- Choosing

/// Finds the places of the values of largest magnitude, block after block: bounds above and below the least that is
/// wanted, usually near those of the block before, then the right ones of the few in between. Magnitudes order like
/// their bits.
class Selection {
 public:
  explicit Selection(std::size_t k) : k_(k) {}

  /// \param most  the largest magnitude of the block, finite and above 0
  std::span<const std::uint16_t> pick(const float* block, std::size_t length, float most) {
    const std::size_t wanted = wanted_of_block(k_, length);
    const Bounds bounds = bounds_for(block, length, wanted, std::bit_cast<std::uint32_t>(most));
    const std::size_t found = kernels().places_from(block, std::bit_cast<float>(bounds.low), places_.data(), length);
    if (found <= wanted) return {places_.data(), found};
    std::size_t between = 0;
    for (std::size_t i = 0; i < found; ++i) {
      order_[between] = magnitude(block[places_[i]]);  // written over by the next one unless it lies in between
      between += order_[between] < bounds.high;
    }
    const std::size_t missing = wanted - (found - between);
    const auto nth = order_.begin() + static_cast<std::ptrdiff_t>(missing - 1);
    std::nth_element(order_.begin(), nth, order_.begin() + static_cast<std::ptrdiff_t>(between), std::greater<>());
    const std::uint32_t least = *nth;
    auto ties = static_cast<std::size_t>(std::count(order_.begin(), nth + 1, least));  // of equals the first are taken
    std::size_t kept = 0;
    for (std::size_t i = 0; i < found; ++i) {
      const std::uint32_t here = magnitude(block[places_[i]]);
      const bool tie = here == least && ties > 0;
      ties -= tie;
      places_[kept] = places_[i];
      kept += here > least || tie;
    }
    guess_ = least;
    return {places_.data(), kept};
  }

 private:
  /// What is not below `low` is enough, what is not below `high` too little.
  struct Bounds {
    std::uint32_t low = 0, high = 0;
  };
  static constexpr std::uint32_t kMargin = 1 << 18;  // 1.5 to 3 % of a value
  static constexpr std::uint32_t kMostStep = 1u << 29;
  static constexpr std::size_t kFew = 48;  // values in between

  static std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffff; }

  /// Low is 1 where there are fewer values than wanted that are not 0.
  Bounds bounds_for(const float* block, std::size_t length, std::size_t wanted, std::uint32_t most) const {
    Bounds bounds{0, most + 1};
    std::size_t enough = length, too_few = 0;
    std::uint32_t step = kMargin;
    std::uint32_t bound = guess_ > kMargin && guess_ <= most ? guess_ - kMargin : most > kMargin ? most - kMargin : 1;
    while (bounds.high - bounds.low > 1 && (bounds.low == 0 || enough - too_few > kFew)) {
      const std::size_t reached = kernels().count_from(block, std::bit_cast<float>(bound), length);
      const bool lower = reached < wanted;
      (lower ? bounds.high : bounds.low) = bound;
      (lower ? too_few : enough) = reached;
      step = std::min(2 * step, kMostStep);
      const std::uint32_t middle = bounds.low + (bounds.high - bounds.low) / 2;
      if (lower && bounds.low == 0)
        bound = bound > step ? std::max(bound - step, middle) : middle;
      else
        bound = !lower && too_few == 0 ? std::min(bound + step, middle) : middle;
    }
    bounds.low = std::max(bounds.low, std::uint32_t{1});
    return bounds;
  }

  const std::size_t k_;
  std::uint32_t guess_ = 0;  // the least magnitude sent of the block before
  std::array<std::uint16_t, kSparseBlock> places_;
  std::array<std::uint32_t, kSparseBlock + 1> order_;
};

// ---- Bits

class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* to) : to_(to) {}
  /// At most 56 bits.
  void put(std::uint64_t bits, unsigned count) {
    held_ |= bits << have_;
    have_ += count;
    std::memcpy(to_, &held_, sizeof held_);
    to_ += have_ / 8;
    held_ >>= have_ / 8 * 8;
    have_ %= 8;
  }
  /// A gap and `count` bits, of which there are few, behind it.
  void put_gap(std::size_t gap, unsigned coding, std::uint64_t bits = 0, unsigned count = 0) {
    if (coding == kFixedBits) return put(gap | bits << kFixedBits, kFixedBits + count);
    std::size_t ones = gap >> coding;
    constexpr unsigned kAtOnce = 32;
    for (; ones >= kAtOnce; ones -= kAtOnce) put((std::uint64_t{1} << kAtOnce) - 1, kAtOnce);
    const auto rest = static_cast<unsigned>(ones);
    const std::uint64_t low = gap & ((std::size_t{1} << coding) - 1);
    put(((std::uint64_t{1} << rest) - 1) | (low | bits << coding) << (rest + 1), rest + 1 + coding + count);
  }
  /// The end of what has been written; zeros fill the last byte.
  const std::uint8_t* end() const { return to_ + (have_ > 0); }

 private:
  std::uint8_t* to_;  // 8 bytes from here on may be written
  std::uint64_t held_ = 0;
  unsigned have_ = 0;
};

class BitReader {
 public:
  explicit BitReader(ByteView bytes) : bytes_(bytes) {}
  /// `count` bits, at most 57; zeros beyond the end, see overrun().
  std::uint64_t take(unsigned count) {
    const std::uint64_t bits = ahead() & ((std::uint64_t{1} << count) - 1);
    at_ += count;
    return bits;
  }
  /// What is more than `most` may come out as any number above it.
  std::size_t take_gap(unsigned coding, std::size_t most) {
    if (coding == kFixedBits) return take(kFixedBits);
    std::size_t ones = 0;
    for (;;) {
      const auto here = static_cast<unsigned>(std::min(std::countr_one(ahead()), kAtOnce));
      ones += here;
      at_ += here;
      if (here < static_cast<unsigned>(kAtOnce)) break;
      if (ones >> 1 > most) return ones;
    }
    return ones << coding | take(coding + 1) >> 1;
  }
  bool overrun() const { return at_ > bytes_.size() * 8; }
  /// Whether nothing but zeros that fill the last byte is left.
  bool ended() { return (at_ + 7) / 8 == bytes_.size() && take(static_cast<unsigned>((8 - at_ % 8) % 8)) == 0; }

 private:
  static constexpr int kAtOnce = 32;
  /// At least 57 bits.
  std::uint64_t ahead() const {
    std::uint64_t word = 0;
    const std::size_t byte = at_ / 8;
    if (byte + sizeof word <= bytes_.size())
      std::memcpy(&word, bytes_.data() + byte, sizeof word);
    else if (byte < bytes_.size())
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    return word >> at_ % 8;
  }

  const ByteView bytes_;
  std::size_t at_ = 0;  // bits
};

// ---- Encoding

/// A low and a high magnitude: the means of what lies below the mean and of what does not.
struct Levels {
  float border = 0;
  std::uint16_t low = 0, high = 0;
};

std::uint16_t level_bits(double sum, std::size_t count) {
  return std::min(bfloat_from_float(static_cast<float>(sum / static_cast<double>(count))), kLargestLevel);
}

Levels levels_of(const float* block, std::span<const std::uint16_t> places) {
  double sum = 0, excess = 0;  // excess: of what lies above the border, by how much
  for (const auto place : places) sum += std::fabs(static_cast<double>(block[place]));
  Levels levels;
  levels.border = static_cast<float>(sum / static_cast<double>(places.size()));
  std::size_t above = 0;
  for (const auto place : places) {  // without branches, which half of the values would take
    const float magnitude = std::fabs(block[place]);
    excess += static_cast<double>(std::max(magnitude, levels.border)) - static_cast<double>(levels.border);
    above += magnitude > levels.border;
  }
  const double high = excess + static_cast<double>(above) * static_cast<double>(levels.border);
  levels.low = level_bits(sum - high, places.size() - above);  // the smallest one is not above the mean of all
  levels.high = above > 0 ? level_bits(high, above) : levels.low;
  return levels;
}

void write_block(BitWriter& bits, const float* block, std::span<const std::uint16_t> places, const Levels& levels,
                 unsigned coding) {
  std::size_t next = 0;
  for (const std::size_t place : places) {
    const float value = block[place];
    const auto code = static_cast<unsigned>(std::signbit(value)) | (std::fabs(value) > levels.border ? 2u : 0u);
    bits.put_gap(place - next, coding, code, 2);
    next = place + 1;
  }
}

/// The bytes that the gaps and values of a part can have at most, and room to write whole words.
std::size_t most_bytes(std::size_t count, std::size_t k, unsigned coding) {
  const std::size_t of_each = coding == kFixedBits ? kFixedBits + 2 : coding + 3;
  const std::size_t ones = coding == kFixedBits ? 0 : kSparseBlock >> coding;
  return sparse_blocks_of(count) * ((k + 1) * of_each + ones) / 8 + 2 * sizeof(std::uint64_t);
}

}  // namespace

Slice encode_sparse2(const CodecSpec& spec, const Values& values, Rows) {
  static_assert(Values::kBlock == kSparseBlock);
  const std::size_t k = spec.sent_of(kSparseBlock);
  const unsigned coding = spec.fixed_places ? kFixedBits : rice_of(k);
  const std::size_t count = values.size(), before = kSparseHead + sparse_blocks_of(count) * kLevelBytes;
  Slice out = Slice::uninitialised(before + most_bytes(count, k, coding));
  std::uint8_t* const to = out.mutable_data();
  write_at(to, 0, static_cast<std::uint16_t>(k));
  to[2] = static_cast<std::uint8_t>(coding);
  to[3] = 0;
  Selection selection(k);
  BitWriter bits(to + before);
  for_blocks(values, 0, count, [&](const float* block, std::size_t first, std::size_t length) {
    const float most = kernels().largest(block, length);
    Levels levels;
    if (std::isnan(most)) {
      levels.low = levels.high = kNotFinite;  // no decoder takes this
    } else if (most > 0) {
      const auto places = selection.pick(block, length, most);
      levels = levels_of(block, places);
      if (levels.high == 0) levels.low = 0;  // hardly more than nothing
      if (levels.high > 0) {
        write_block(bits, block, places, levels, coding);
        if (places.size() < wanted_of_block(k, length)) bits.put_gap(length - 1 - places.back(), coding);
      }
    }
    write_at(to + kSparseHead, first / kSparseBlock * 2, levels.low);
    write_at(to + kSparseHead, first / kSparseBlock * 2 + 1, levels.high);
  });
  return out.sub(0, static_cast<std::size_t>(bits.end() - to));
}

// ---- Decoding

namespace {

class Sparse2Decoder final : public SparseDecoder<Sparse2Decoder> {
 public:
  Sparse2Decoder(DType dtype, std::size_t count, const std::uint8_t* levels)
      : SparseDecoder(dtype, count), levels_(levels) {}

  /// Reads all places. Errors: levels that are no finite magnitudes, places out of range, bits that are missing or
  /// left.
  Result<> read(std::size_t k, unsigned coding, ByteView rest) {
    BitReader bits(rest);
    const std::size_t blocks = sparse_blocks_of(size());
    starts_.reserve(blocks + 1);
    for (std::size_t block = 0; block < blocks; ++block) {
      starts_.push_back(sent_.size());
      const auto low = level(block, 0), high = level(block, 1);
      if (low > kLargestLevel || high > kLargestLevel)
        return malformed("a level of a sparse2 buffer is not a finite magnitude");
      if (low == 0 && high == 0) continue;
      const std::size_t length = std::min(kSparseBlock, size() - block * kSparseBlock),
                        wanted = wanted_of_block(k, length);
      for (std::size_t place = 0, sent = 0; sent < wanted; ++sent) {
        place += bits.take_gap(coding, length);
        if (bits.overrun()) return malformed("a sparse2 buffer ends within a block");
        if (place == length && sent > 0) break;
        if (place >= length) return malformed("a place of a sparse2 buffer is out of range");
        sent_.push_back(static_cast<std::uint16_t>(place | bits.take(2) << kFixedBits));
        ++place;
      }
    }
    starts_.push_back(sent_.size());
    if (bits.overrun() || !bits.ended()) return malformed("a sparse2 buffer has another length than what it holds");
    return ok();
  }

 private:
  friend class SparseDecoder<Sparse2Decoder>;
  std::uint16_t level(std::size_t block, std::size_t which) const {
    return read_at<std::uint16_t>(levels_, block * 2 + which);
  }

  /// The first of the values sent of a block whose place within it is not below `place`.
  std::size_t lower_bound(std::size_t block, std::size_t place) const {
    const auto begin = sent_.begin() + static_cast<std::ptrdiff_t>(starts_[block]);
    const auto end = sent_.begin() + static_cast<std::ptrdiff_t>(starts_[block + 1]);
    const auto at = std::partition_point(begin, end, [&](std::uint16_t sent) { return sent % kSparseBlock < place; });
    return static_cast<std::size_t>(at - sent_.begin());
  }

  /// use(place behind `first`, value) for all that was sent of a stretch.
  template <class Use>
  void for_sent(std::size_t first, std::size_t count, Use use) const {
    if (count == 0) return;
    const std::size_t end = first + count;
    for (std::size_t block = first / kSparseBlock; block * kSparseBlock < end; ++block) {
      const std::size_t base = block * kSparseBlock;
      const float low = float_from_bfloat(level(block, 0)), high = float_from_bfloat(level(block, 1));
      const std::array<float, 4> values = {low, -low, high, -high};
      const std::size_t begin = base < first ? lower_bound(block, first - base) : starts_[block];
      const std::size_t stop = end < base + kSparseBlock ? lower_bound(block, end - base) : starts_[block + 1];
      for (std::size_t i = begin; i < stop; ++i)
        use(base + sent_[i] % kSparseBlock - first, values[static_cast<std::size_t>(sent_[i]) / kSparseBlock]);
    }
  }

  const std::uint8_t* levels_;
  std::vector<std::uint16_t> sent_;  // place within its block, and its 2 bits above that
  std::vector<std::size_t> starts_;  // of the values sent of each block; their number at the end
};

}  // namespace

Result<DecoderPtr> open_sparse2(DType dtype, std::size_t count, ByteView buffer, const Shape*) {
  const std::size_t before = kSparseHead + sparse_blocks_of(count) * kLevelBytes;
  if (buffer.size() < before) return wrong_size(buffer.size(), before);
  const std::size_t k = read_at<std::uint16_t>(buffer.data(), 0);
  if (k == 0 || k > kSparseBlock || buffer[2] > kFixedBits || buffer[3] != 0)
    return malformed("a sparse2 buffer with " + std::to_string(k) + " values of a block and coding " +
                     std::to_string(buffer[2]));
  auto decoder = std::make_unique<Sparse2Decoder>(dtype, count, buffer.data() + kSparseHead);
  if (auto whole = decoder->read(k, buffer[2], buffer.subspan(before)); !whole) return whole.error();
  return DecoderPtr(std::move(decoder));
}

}  // namespace cohive::codec
