// Layouts, all little-endian:
//   block4   ceil(n / 64) x bfloat16 scale, then ceil(n / 2) bytes: value i is the low (even i) or high half of byte
//            i / 2, as scale * (half - 8) / 7
//   top_k    for every 65536 values how many of them follow (uint32), then the offsets of all these within their 65536
//            (uint16, ascending), then the values (float16)
#include "cohive/codec/extensions.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cohive/core/errors.hpp"
#include "half.hpp"
#include "kernels.hpp"

namespace cohive::codec {
namespace {

constexpr std::array kAll = {Extension::block4, Extension::top_k};
constexpr std::size_t kBlock = 64;
constexpr float kLevels = 7;  // on each side of zero
constexpr std::size_t kReach = 65536;
/// Of a text that lists extensions; names beyond are not looked at.
constexpr std::size_t kLongestText = 256;

std::uint8_t bit_of(Extension extension) {
  return static_cast<std::uint8_t>(1 << (static_cast<int>(extension) - static_cast<int>(kAll.front())));
}

std::size_t blocks_in(std::size_t count, std::size_t block) {
  return (count + block - 1) / block;
}

Error malformed(std::string what) {
  return Error(Errc::malformed, std::move(what));
}

template <class T>
T read(const std::uint8_t* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void write(std::uint8_t* to, std::size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

/// Rounded up, so that no value exceeds its scale; infinity only for what is not finite.
std::uint16_t scale_bits(float largest) {
  const auto bits = std::bit_cast<std::uint32_t>(largest);
  if (!std::isfinite(largest)) return 0x7fc0;
  return static_cast<std::uint16_t>(std::min<std::uint32_t>((bits + 0xffff) >> 16, 0x7f7f));
}

// ---- block4

Slice encode_block4(std::span<const float> values) {
  const std::size_t blocks = blocks_in(values.size(), kBlock);
  Slice out = Slice::uninitialised(blocks * 2 + blocks_in(values.size(), 2));
  std::uint8_t* const scales = out.mutable_data();
  std::uint8_t* to = scales + blocks * 2;
  for (std::size_t block = 0; block < blocks; ++block) {
    const float* from = values.data() + block * kBlock;
    const std::size_t count = std::min(kBlock, values.size() - block * kBlock);
    std::uint16_t bits = scale_bits(kernels().largest(from, count));
    float inverse = kLevels / float_from_bfloat(bits);
    if (std::isinf(inverse)) inverse = 0, bits = 0;  // hardly more than nothing
    write(scales, block, bits);
    std::array<std::uint8_t, kBlock> levels;
    levels.fill(128);
    kernels().quantize(from, 0, inverse, levels.data(), count);
    for (std::size_t i = 0; i < blocks_in(count, 2); ++i)
      *to++ = static_cast<std::uint8_t>(((levels[2 * i] - 120) & 15) | (levels[2 * i + 1] - 120) << 4);
  }
  return out;
}

Result<> check_block4(ByteView buffer, std::size_t count) {
  const std::size_t blocks = blocks_in(count, kBlock), wanted = blocks * 2 + blocks_in(count, 2);
  if (buffer.size() != wanted)
    return malformed("block4 buffer of " + std::to_string(buffer.size()) + " bytes where " + std::to_string(wanted) +
                     " belong");
  for (std::size_t block = 0; block < blocks; ++block)
    if (!std::isfinite(float_from_bfloat(read<std::uint16_t>(buffer.data(), block))))
      return malformed("scale " + std::to_string(block) + " of a block4 buffer is not a finite number");
  return ok();
}

/// use(first value of a block, its values, how many)
template <class Use>
void for_block4(ByteView buffer, std::size_t count, Use use) {
  const std::size_t blocks = blocks_in(count, kBlock);
  const std::uint8_t* from = buffer.data() + blocks * 2;
  for (std::size_t block = 0; block < blocks; ++block) {
    const float scale = float_from_bfloat(read<std::uint16_t>(buffer.data(), block));
    std::array<float, 16> table;
    for (int level = 0; level < 16; ++level)  // no encoder uses level 0; it must not exceed the scale either
      table[static_cast<std::size_t>(level)] = scale * (static_cast<float>(std::max(level - 8, -7)) / kLevels);
    const std::size_t here = std::min(kBlock, count - block * kBlock);
    std::array<float, kBlock> values;
    for (std::size_t i = 0; i < blocks_in(here, 2); ++i, ++from) {
      values[2 * i] = table[*from & 15];
      values[2 * i + 1] = table[*from >> 4];
    }
    use(block * kBlock, values.data(), here);
  }
}

// ---- top_k

/// The places of the `wanted` values of largest magnitude, ascending. NaN counts as larger than all.
std::vector<std::uint32_t> largest_places(std::span<const float> values, std::size_t wanted) {
  std::vector<std::uint32_t> magnitudes(values.size());
  std::transform(values.begin(), values.end(), magnitudes.begin(),
                 [](float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffff; });
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

Slice encode_top_k(std::span<const float> values, double density) {
  if (values.size() > std::size_t{1} << 32) throw std::invalid_argument("too many values for top_k");
  if (values.empty()) return Slice();
  const double share = std::clamp(density, 0.0, 1.0) * static_cast<double>(values.size());
  const auto wanted = std::clamp<std::size_t>(static_cast<std::size_t>(std::llround(share)), 1, values.size());
  const auto places = largest_places(values, wanted);
  const std::size_t reaches = blocks_in(values.size(), kReach);
  Slice out = Slice::uninitialised(reaches * 4 + wanted * 4);
  std::uint8_t* const offsets = out.mutable_data() + reaches * 4;
  std::uint8_t* const halves = offsets + wanted * 2;
  std::vector<std::uint32_t> counts(reaches);
  for (std::size_t i = 0; i < places.size(); ++i) {
    ++counts[places[i] / kReach];
    write(offsets, i, static_cast<std::uint16_t>(places[i] % kReach));
    const float value = values[places[i]];
    // What is too large is sent as far as it goes; what is not finite must not look as if it were.
    write(halves, i, half_from_float(std::isfinite(value) ? std::clamp(value, -65504.0f, 65504.0f) : value));
  }
  std::memcpy(out.mutable_data(), counts.data(), reaches * 4);
  return out;
}

/// use(place, value) for every value sent.
template <class Use>
void for_top_k(ByteView buffer, std::size_t count, Use use) {
  const std::size_t reaches = blocks_in(count, kReach);
  const std::size_t sent = (buffer.size() - reaches * 4) / 4;
  const std::uint8_t* const offsets = buffer.data() + reaches * 4;
  const std::uint8_t* const halves = offsets + sent * 2;
  for (std::size_t reach = 0, i = 0; reach < reaches; ++reach)
    for (const std::size_t end = i + read<std::uint32_t>(buffer.data(), reach); i < end; ++i)
      use(reach * kReach + read<std::uint16_t>(offsets, i), float_from_half(read<std::uint16_t>(halves, i)));
}

Result<> check_top_k(ByteView buffer, std::size_t count) {
  const std::size_t reaches = blocks_in(count, kReach);
  std::uint64_t sent = 0;
  if (buffer.size() < reaches * 4) return malformed("top_k buffer of " + std::to_string(buffer.size()) + " bytes");
  for (std::size_t reach = 0; reach < reaches; ++reach) sent += read<std::uint32_t>(buffer.data(), reach);
  if (sent > count || buffer.size() != reaches * 4 + sent * 4)
    return malformed("top_k buffer of " + std::to_string(buffer.size()) + " bytes with " + std::to_string(sent) +
                     " of " + std::to_string(count) + " values");
  std::size_t least = 0;
  std::optional<Error> wrong;
  for_top_k(buffer, count, [&](std::size_t place, float value) {
    if (place < least || place >= count) wrong = malformed("places of a top_k buffer are out of order");
    if (!std::isfinite(value)) wrong = malformed("a value of a top_k buffer is not a finite number");
    least = place + 1;
  });
  if (wrong) return *wrong;
  return ok();
}

}  // namespace

std::optional<Extension> extension_from_wire(int compression) {
  for (Extension extension : kAll)
    if (static_cast<int>(extension) == compression) return extension;
  return std::nullopt;
}

std::string_view name_of(Extension extension) {
  return extension == Extension::block4 ? "block4" : "top_k";
}

Extensions::Extensions(std::initializer_list<Extension> offered) {
  for (Extension extension : offered) bits_ |= bit_of(extension);
}

bool Extensions::offers(Extension extension) const noexcept {
  return bits_ & bit_of(extension);
}

std::string Extensions::text() const {
  std::string text;
  for (Extension extension : kAll)
    if (offers(extension)) text.append(text.empty() ? "" : ",").append(name_of(extension));
  return text;
}

Extensions Extensions::from_text(std::string_view text) {
  Extensions result;
  text = text.substr(0, kLongestText);
  while (!text.empty()) {
    const std::string_view name = text.substr(0, text.find(','));
    for (Extension extension : kAll)
      if (name == name_of(extension)) result.bits_ |= bit_of(extension);
    text.remove_prefix(std::min(text.size(), name.size() + 1));
  }
  return result;
}

std::optional<Extension> agree_on(Extension wanted, std::span<const Extensions> members) {
  const bool all =
      std::all_of(members.begin(), members.end(), [&](Extensions member) { return member.offers(wanted); });
  return all && !members.empty() ? std::optional(wanted) : std::nullopt;
}

Slice encode_extension(const ExtensionOptions& options, std::span<const float> values) {
  return options.kind == Extension::block4 ? encode_block4(values) : encode_top_k(values, options.density);
}

Result<> decode_extension(Extension kind, ByteView buffer, std::span<float> out) {
  auto checked = kind == Extension::block4 ? check_block4(buffer, out.size()) : check_top_k(buffer, out.size());
  if (!checked) return checked;
  if (kind == Extension::block4) {
    for_block4(buffer, out.size(), [&](std::size_t first, const float* values, std::size_t count) {
      std::copy_n(values, count, out.begin() + static_cast<std::ptrdiff_t>(first));
    });
  } else {
    std::fill(out.begin(), out.end(), 0.0f);
    for_top_k(buffer, out.size(), [&](std::size_t place, float value) { out[place] = value; });
  }
  return ok();
}

Result<> accumulate_extension(Extension kind, ByteView buffer, float weight, std::span<float> accumulator) {
  const std::size_t size = accumulator.size();
  auto checked = kind == Extension::block4 ? check_block4(buffer, size) : check_top_k(buffer, size);
  if (!checked) return checked;
  if (kind == Extension::block4) {
    for_block4(buffer, size, [&](std::size_t first, const float* values, std::size_t count) {
      kernels().add_floats(reinterpret_cast<const std::uint8_t*>(values), weight, accumulator.data() + first, count);
    });
  } else {
    for_top_k(buffer, size, [&](std::size_t place, float value) { accumulator[place] += weight * value; });
  }
  return ok();
}

ErrorFeedback::ErrorFeedback(ExtensionOptions options, std::size_t size) : options_(options), owed_(size) {}

void ErrorFeedback::correct(std::size_t first, std::span<const float> values, std::span<float> out) const {
  if (first + values.size() > owed_.size() || out.size() != values.size())
    throw std::invalid_argument("error feedback for a tensor of another size");
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = values[i] + owed_[first + i];
}

Slice ErrorFeedback::encode(std::size_t first, std::span<const float> values) const {
  std::vector<float> corrected(values.size());
  correct(first, values, corrected);
  return encode_extension(options_, corrected);
}

Result<> ErrorFeedback::commit(std::size_t first, std::span<const float> values, ByteView delivered) {
  std::vector<float> lost(values.size());
  correct(first, values, lost);
  if (auto known = accumulate_extension(options_.kind, delivered, -1.0f, lost); !known) return known;
  std::copy(lost.begin(), lost.end(), owed_.begin() + static_cast<std::ptrdiff_t>(first));
  return ok();
}

void ErrorFeedback::settle(std::size_t first, std::size_t count) {
  std::fill_n(owed_.begin() + static_cast<std::ptrdiff_t>(first), count, 0.0f);
}

}  // namespace cohive::codec
