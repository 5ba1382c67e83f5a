/// \file
/// Status: what the parts of a process tell about themselves, as JSON, to a person who looks (p2p/metrics_server.hpp).
/// Each part adds a section under a name of its own; no part knows all of them. Loop thread only.
///
///   section_ = Status::of(runtime).add("node", [this] { return json_of_this(); });
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohive/core/runtime.hpp"
#include "cohive/core/signal.hpp"

namespace cohive {

/// What a process tells of itself at /status: sections of JSON that its parts add. Loop thread only.
class Status {
 public:
  /// Returns one JSON value. Called when a person looks, so it may take a millisecond, and no lock for long.
  using Section = std::function<std::string()>;

  /// Use of().
  explicit Status(Runtime& runtime);
  /// The one of this loop.
  static Status& of(Runtime& runtime) { return runtime.local<Status>(); }

  /// Adds a section for as long as the result lives. Of several of one name, the oldest is shown.
  [[nodiscard]] Subscription add(std::string name, Section section);
  /// Adds an element to a section that is a list.
  [[nodiscard]] Subscription add_to_list(std::string name, Section element);

  /// All sections as one object.
  std::string json() const;

 private:
  struct Entry {
    std::string name;
    bool in_list;
    std::weak_ptr<Section> section;
  };
  Subscription insert(std::string name, bool in_list, Section section);
  std::vector<Entry> entries_;
  std::size_t kept_until_ = 16;  // so many of them, the ones that have ended are
};

/// The last things that failed on this loop, oldest first, as the section "failures" of its status.
class Failures {
 public:
  static constexpr std::size_t kKept = 50;  ///< of each kind: dials must not crowd out what is rarer

  /// Use of().
  explicit Failures(Runtime& runtime);
  /// Returns the one of this loop.
  static Failures& of(Runtime& runtime) { return runtime.local<Failures>(); }

  /// \param kind   what failed, as "dial"
  /// \param cause  one of few words, the same as the label of the counter beside it
  void note(const std::string& kind, std::string_view cause, std::string_view sentence);
  /// Warns with the sentence in the log, too.
  void warn(std::string_view module, const std::string& kind, std::string_view cause, std::string_view sentence);

 private:
  struct Failure {
    double time;
    std::string cause, sentence;
  };
  std::string json() const;
  Runtime& runtime_;
  std::map<std::string, std::deque<Failure>> by_kind_;
  Subscription section_;
};

}  // namespace cohive
