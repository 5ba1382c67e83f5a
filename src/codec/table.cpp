#include "table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "cohive/codec/codec_set.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::codec {
namespace {

constexpr std::size_t kLongestText = 256;  // of a text that lists codecs; names beyond are not looked at

// Name, bits, exact, streaming width, needs agreement, error feedback; which tensors it refuses; its functions.
constexpr std::array kTable = {
    TableEntry{{Codec::none, "NONE", 0, true, 4, false, false}, {}, encode_none, open_none},
    TableEntry{{Codec::meanstd16, "MEANSTD_16BIT", 16, false, 0, false, false},
               {.bfloat16 = true, .scalars = true},
               encode_meanstd16,
               open_meanstd16},
    TableEntry{{Codec::float16, "FLOAT16", 16, true, 2, false, false},
               {.bfloat16 = true},
               encode_float16,
               open_float16,
               encode_finite_float16},
    TableEntry{{Codec::quantile8, "QUANTILE_8BIT", 8, false, 0, false, false},
               {.empty = true},
               encode_quantile8,
               open_quantile8},
    TableEntry{
        {Codec::uniform8, "UNIFORM_8BIT", 8, false, 0, false, false}, {.empty = true}, encode_uniform8, open_uniform8},
    TableEntry{
        {Codec::blockwise8, "BLOCKWISE_8BIT", 8, false, 0, false, false}, {}, encode_blockwise8, open_blockwise8},
    TableEntry{{Codec::block4, "block4", 4.25, false, 0, true, true}, {}, encode_block4, open_block4},
    TableEntry{{Codec::top_k, "top_k", 32, false, 0, true, true}, {}, encode_top_k, open_top_k},
    TableEntry{{Codec::sparse2, "sparse2", 0.16, false, 0, true, true}, {}, encode_sparse2, open_sparse2},
};

constexpr bool ascending() {
  for (std::size_t i = 1; i < kTable.size(); ++i)
    if (kTable[i - 1].info.codec >= kTable[i].info.codec) return false;
  return true;
}
static_assert(ascending(), "codecs are listed by number, each once");

constexpr auto kInfos = [] {
  std::array<CodecInfo, kTable.size()> infos;
  for (std::size_t i = 0; i < infos.size(); ++i) infos[i] = kTable[i].info;
  return infos;
}();

}  // namespace

const TableEntry* find_entry(Codec codec) {
  const auto at = std::ranges::find(kTable, codec, [](const TableEntry& entry) { return entry.info.codec; });
  return at == kTable.end() ? nullptr : &*at;
}

const TableEntry& entry_of(Codec codec) {
  if (const auto* entry = find_entry(codec)) return *entry;
  throw std::logic_error("codec " + std::to_string(static_cast<int>(codec)) + " does not exist");
}

const CodecInfo& info(Codec codec) {
  return entry_of(codec).info;
}
std::span<const CodecInfo> all_codecs() {
  return kInfos;
}

std::optional<Codec> codec_from_wire(int compression, const CodecSet& agreed) {
  if (compression < 0 || compression > 255) return std::nullopt;
  const auto* entry = find_entry(static_cast<Codec>(compression));
  if (!entry || (entry->info.needs_agreement && !agreed.contains(entry->info.codec))) return std::nullopt;
  return entry->info.codec;
}
std::optional<Codec> codec_from_wire(int compression) {
  return codec_from_wire(compression, {});
}

std::string_view name_of(Codec codec) {
  return info(codec).name;
}
std::optional<Codec> codec_from_name(std::string_view name) {
  const auto at = std::ranges::find(kInfos, name, &CodecInfo::name);
  return at == kInfos.end() ? std::nullopt : std::optional(at->codec);
}

double compression_ratio(Codec codec, DType dtype) {
  const double bits = info(codec).bits;
  return bits == 0 ? 1.0 : bits / static_cast<double>(size_of(dtype) * 8);
}

std::size_t streaming_width(Codec codec, DType dtype) {
  return travels_as_it_is(codec, dtype) ? size_of(dtype) : info(codec).streaming_width;
}

bool travels_as_it_is(Codec codec, DType dtype) {
  // bfloat16 travels as float32: Python's default, which every version decodes.
  return codec == Codec::none && dtype != DType::bfloat16;
}

Codec codec_for(Codec wanted, DType dtype, const Shape& shape) {
  const Refuses refuses = entry_of(wanted).refuses;
  const bool empty = std::ranges::find(shape, 0u) != shape.end();
  const bool refused = !is_floating(dtype) || (refuses.bfloat16 && dtype == DType::bfloat16) ||
                       (refuses.scalars && shape.empty()) || (refuses.empty && empty);
  return refused ? Codec::none : wanted;
}

// ---- Sets

CodecSet::CodecSet(std::initializer_list<Codec> codecs) {
  for (Codec codec : codecs) insert(codec);
}

void CodecSet::insert(Codec codec) {
  codecs_.set(static_cast<std::size_t>(codec));
}

std::string CodecSet::text() const {
  std::string text;
  for (const CodecInfo& one : kInfos)
    if (contains(one.codec)) text.append(text.empty() ? "" : ",").append(one.name);
  return text;
}

CodecSet CodecSet::from_text(std::string_view text) {
  CodecSet result;
  text = text.substr(0, kLongestText);
  while (!text.empty()) {
    const std::string_view name = text.substr(0, text.find(','));
    if (const auto codec = codec_from_name(name)) result.insert(*codec);
    text.remove_prefix(std::min(text.size(), name.size() + 1));
  }
  return result;
}

// ---- What decoders share

Error malformed(std::string what) {
  return Error(Errc::malformed, std::move(what));
}

Error wrong_size(std::size_t have, std::size_t want) {
  return malformed("tensor buffer of " + std::to_string(have) + " bytes where " + std::to_string(want) + " belong");
}

Error wrong_dtype(Codec codec, DType dtype) {
  const auto* entry = find_entry(codec);
  const std::string name = entry ? std::string(entry->info.name) : std::to_string(static_cast<int>(codec));
  return malformed(name + " codec with a tensor of " + std::string(name_of(dtype)));
}

Result<> check_scales(const std::uint8_t* scales, std::size_t count, std::string_view what) {
  for (std::size_t i = 0; i < count; ++i)
    if (!std::isfinite(read_at<float>(scales, i)))
      return malformed(std::string(what) + " " + std::to_string(i) + " of a tensor is not a finite number");
  return ok();
}

}  // namespace cohive::codec
