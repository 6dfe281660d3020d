#pragma once

#include <functional>
#include <string>

namespace meshtrain {

/// A phase of this process's work, which Watch reports on other ranks: the innermost one that is alive counts. The main
/// thread alone makes phases; any thread may read.
class Phase {
 public:
  /// `text`: a noun, as in "it was in TEXT": "the set-up".
  explicit Phase(std::string text);
  /// Calls `describe` on other threads as long as this object lives.
  explicit Phase(std::function<std::string()> describe);
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  /// Returns the text of the innermost phase; "the set-up" when there is none.
  static std::string current();
  /// Makes the main thread call `show` whenever the innermost phase or the rank's name changes; null: no call.
  static void when_changed(std::function<void()> show);

 private:
  std::function<std::string()> describe_;
  const Phase* outer_;
};

/// Set and return the name of this rank in messages, once its mesh is known: "rank 3 (dp=0 cp=0 tp=1)". Empty until it
/// is set.
void set_rank_name(const std::string& name);
std::string rank_name();

}  // namespace meshtrain
