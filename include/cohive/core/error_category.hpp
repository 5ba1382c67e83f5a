/// \file
/// The std::error_category of a module, from a table of its codes and their sentences. In errors.cpp:
///
///   constexpr ErrorSentence<Errc> kSentences[] = {{Errc::busy, "the peer is busy"}, ...};  // in the order of the enum
///   const std::error_category& rpc_category() noexcept {
///     static const ErrorCategory<kSentences> category("cohive.rpc");
///     return category;
///   }
#pragma once

#include <string>
#include <string_view>
#include <system_error>

namespace cohive {

/// A code and what is printed for it.
template <class Code>
struct ErrorSentence {
  Code code;              ///< an enumerator
  std::string_view text;  ///< its sentence, without a full stop
};

namespace detail {
/// Whether the value belongs to an enumerator: compilers print a cast, "(Errc)9", for one that does not.
template <auto kCode>
consteval bool is_enumerator() {
  const std::string_view name = __PRETTY_FUNCTION__;
  const auto value = name.rfind("kCode = ");
  return value != name.npos && name[value + 8] != '(';
}
}  // namespace detail

/// `kTable` is an array of ErrorSentence with every enumerator of the enum, which count up from 1.
template <const auto& kTable>
class ErrorCategory final : public std::error_category {
 public:
  /// Makes the category. \param name  a string literal
  explicit ErrorCategory(const char* name) noexcept : name_(name) {}
  /// Returns the name of the category.
  const char* name() const noexcept override { return name_; }
  /// Returns the sentence of a code.
  std::string message(int code) const override {
    if (code < 1 || code > static_cast<int>(kSize)) return "unknown error " + std::to_string(code) + " of " + name_;
    return std::string(kTable[code - 1].text);
  }

 private:
  using Code = decltype(kTable[0].code);
  static constexpr std::size_t kSize = std::size(kTable);
  static consteval bool counts_up() {
    for (std::size_t i = 0; i < kSize; ++i)
      if (static_cast<std::size_t>(kTable[i].code) != i + 1) return false;
    return true;
  }
  static_assert(counts_up(), "the sentences are in the order of the codes, which count up from 1");
  static_assert(detail::is_enumerator<static_cast<std::remove_cv_t<Code>>(kSize)>() &&
                    !detail::is_enumerator<static_cast<std::remove_cv_t<Code>>(kSize + 1)>(),
                "every code has a sentence");
  const char* name_;
};

}  // namespace cohive
