/// \file
/// A doubly linked list of objects that embed their links and leave the list when destroyed. No allocation.
#pragma once

namespace cohive {

/// The links of an object in a list; it is in one list at most.
class ListHook {
 public:
  ListHook() = default;
  ListHook(const ListHook&) = delete;
  ListHook& operator=(const ListHook&) = delete;
  ~ListHook() { unlink(); }
  /// Tells whether it is in a list.
  bool linked() const noexcept { return next_ != nullptr; }
  /// Leaves its list; does nothing when it is in none.
  void unlink() noexcept {
    if (!next_) return;
    previous_->next_ = next_;
    next_->previous_ = previous_;
    next_ = previous_ = nullptr;
  }

 private:
  template <class>
  friend class IntrusiveList;
  ListHook* next_ = nullptr;
  ListHook* previous_ = nullptr;
};

/// T derives from ListHook.
template <class T>
class IntrusiveList {
 public:
  IntrusiveList() { head_.next_ = head_.previous_ = &head_; }
  ~IntrusiveList() {
    while (!empty()) head_.next_->unlink();
    head_.next_ = head_.previous_ = nullptr;
  }
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;

  /// Tells whether it has no item.
  bool empty() const noexcept { return head_.next_ == &head_; }
  /// Adds an item at the end; it leaves the list that it was in.
  void push_back(T& item) noexcept {
    ListHook& hook = item;
    hook.unlink();
    hook.previous_ = head_.previous_;
    hook.next_ = &head_;
    head_.previous_->next_ = &hook;
    head_.previous_ = &hook;
  }
  /// Returns the first item; there must be one.
  T& front() noexcept { return static_cast<T&>(*head_.next_); }
  /// Takes the first item out and returns it; null when there is none.
  T* pop_front() noexcept {
    if (empty()) return nullptr;
    T& item = front();
    static_cast<ListHook&>(item).unlink();
    return &item;
  }
  /// Calls f(item) for each item; f must not unlink other items.
  template <class F>
  void for_each(F f) {
    for (ListHook* hook = head_.next_; hook != &head_;) {
      ListHook* next = hook->next_;
      f(static_cast<T&>(*hook));
      hook = next;
    }
  }

 private:
  ListHook head_;
};

}  // namespace cohive
