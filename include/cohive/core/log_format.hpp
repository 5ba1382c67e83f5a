// How log.hpp erases the types of a message's arguments and checks its text at compile time.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace cohive::log {
namespace detail {

/// One argument of a message. The last alternative is text made for the message, the one before is the caller's.
using Argument = std::variant<bool, char, std::int64_t, std::uint64_t, double, std::string_view, std::string>;

template <class T>
concept PrintsItself = requires(const T& value) {
  { log_text(value) } -> std::convertible_to<std::string>;
};

template <class T>
concept Printable = PrintsItself<T> || std::is_arithmetic_v<T> || std::convertible_to<const T&, std::string_view>;

template <Printable T>
Argument erased(const T& value) {
  if constexpr (PrintsItself<T>) {
    return Argument(std::in_place_type<std::string>, log_text(value));
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, char>) {
    return Argument(std::in_place_type<T>, value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return Argument(std::in_place_type<double>, static_cast<double>(value));
  } else if constexpr (std::is_signed_v<T>) {
    return Argument(std::in_place_type<std::int64_t>, value);
  } else if constexpr (std::is_unsigned_v<T>) {
    return Argument(std::in_place_type<std::uint64_t>, value);
  } else {
    return Argument(std::in_place_type<std::string_view>, value);
  }
}

std::string format(std::string_view message, std::initializer_list<Argument> arguments);

/// The letters that may end the specification of an argument.
template <Printable T>
inline constexpr std::string_view kTypeLetters = PrintsItself<T>               ? "s"
                                                 : std::is_same_v<T, bool>     ? "sbBdoxX"
                                                 : std::is_same_v<T, char>     ? "cbBdoxX"
                                                 : std::is_floating_point_v<T> ? "aAeEfFgG"
                                                 : std::is_integral_v<T>       ? "bBcdoxX"
                                                                               : "s";

// Not constexpr: calling one of them ends the compilation with its name.
inline void a_brace_stands_alone() {}
inline void the_number_of_arguments_differs() {}
inline void a_specification_does_not_suit_its_argument() {}
inline void positions_and_nested_widths_are_not_supported() {}

struct ArgumentRule {
  std::string_view type_letters;
  bool number;     ///< may have a sign, "#" and leading zeros
  bool precision;  ///< may have one
};
template <Printable T>
inline constexpr ArgumentRule kRule = {kTypeLetters<T>,
                                       std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char>,
                                       std::is_floating_point_v<T> || kTypeLetters<T> == "s"};

/// A specification is [[fill]align][sign]["#"]["0"][width]["." precision][type].
consteval void check_specification(std::string_view spec, const ArgumentRule& rule) {
  constexpr std::string_view kAlign = "<>^", kDigits = "0123456789";
  const auto skip = [&spec](std::string_view set) {
    while (!spec.empty() && set.find(spec.front()) != set.npos) spec.remove_prefix(1);
  };
  if (spec.size() > 1 && kAlign.find(spec[1]) != kAlign.npos) {
    spec.remove_prefix(2);
  } else if (!spec.empty() && kAlign.find(spec[0]) != kAlign.npos) {
    spec.remove_prefix(1);
  }
  if (rule.number) skip("+- #0");
  if (!spec.empty() && spec.front() != '0') skip(kDigits);
  if (spec.size() > 1 && spec.front() == '.' && rule.precision && kDigits.find(spec[1]) != spec.npos) {
    spec.remove_prefix(1);
    skip(kDigits);
  }
  if (!spec.empty() && rule.type_letters.find(spec.front()) != spec.npos) spec.remove_prefix(1);
  if (!spec.empty()) a_specification_does_not_suit_its_argument();
}

consteval void check(std::string_view text, std::initializer_list<ArgumentRule> rules) {
  const auto* rule = rules.begin();
  while (!text.empty()) {
    const auto brace = text.find_first_of("{}");
    if (brace == text.npos) break;
    text.remove_prefix(brace);
    if (text.size() > 1 && text[1] == text[0]) {  // a doubled brace stands for itself
      text.remove_prefix(2);
      continue;
    }
    const auto end = text.find('}');
    if (text[0] == '}' || end == text.npos) a_brace_stands_alone();
    const auto field = text.substr(1, end - 1);
    if (!field.empty() && (field[0] != ':' || field.find('{') != field.npos))
      positions_and_nested_widths_are_not_supported();
    if (rule == rules.end()) the_number_of_arguments_differs();
    if (!field.empty()) check_specification(field.substr(1), *rule);
    ++rule;
    text.remove_prefix(end + 1);
  }
  if (rule != rules.end()) the_number_of_arguments_differs();
}

}  // namespace detail

/// The text of a message, checked against the types of its arguments at compile time.
template <detail::Printable... Args>
class Message {
 public:
  /// Views a literal, with {} or {:spec} for each argument; compiling fails where they do not fit.
  template <std::convertible_to<std::string_view> Text>
  consteval Message(const Text& text) : text_(text) {
    detail::check(text_, {detail::kRule<Args>...});
  }
  /// Returns the text with its places.
  constexpr std::string_view text() const noexcept { return text_; }

 private:
  std::string_view text_;
};

/// The same as a parameter that the arguments decide.
template <class... Args>
using MessageFor = std::type_identity_t<Message<Args...>>;

}  // namespace cohive::log
