#pragma once

#include <functional>
#include <string>

namespace meshtrain {

/// What this process is doing, for the ranks that look after it (Watch): the innermost Phase that is alive. The main
/// thread alone makes them; any thread may ask.
class Phase {
 public:
  /// `text`: a noun, as in "it was in TEXT": "the set-up".
  explicit Phase(std::string text);
  /// `describe` is called on other threads as long as this lives.
  explicit Phase(std::function<std::string()> describe);
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  /// The text of the innermost one; "the set-up" where there is none.
  static std::string current();
  /// Has the main thread call `show` whenever the innermost one, or the rank's name, becomes another; null: nothing.
  static void when_changed(std::function<void()> show);

 private:
  std::function<std::string()> describe_;
  const Phase* outer_;
};

/// How messages name this rank once its mesh is known: "rank 3 (dp=0 cp=0 tp=1)". Empty until it is set.
void set_rank_name(const std::string& name);
std::string rank_name();

}  // namespace meshtrain
