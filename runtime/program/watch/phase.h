#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace meshtrain {

/// The kind of a phase, for decisions.
enum class PhaseKind : int32_t {
  SetUp,    ///< before the first phase, and between phases
  Resume,   ///< it reads the checkpoint that it resumes from
  Step,     ///< it computes or communicates in a step
  Reading,  ///< it reads samples
  Saving,   ///< it writes a checkpoint
  Export,   ///< it writes weights
  Other,
};

/// Returns "reading": the name of a kind in files.
const char* name(PhaseKind kind);
/// Returns the kind of that name; Other for an unknown one.
PhaseKind phase_kind_named(const std::string& name);

/// The values of a phase.
struct PhaseState {
  std::string text;  ///< a noun for people, as in "it was in TEXT": "the set-up"
  PhaseKind kind = PhaseKind::Other;
  int64_t step = 0;  ///< 0: none
};

/// A phase of this process's work, which Watch reports on other ranks: the innermost one that is alive counts. The main
/// thread alone makes phases; any thread may read.
class Phase {
 public:
  explicit Phase(std::string text);
  explicit Phase(PhaseState state);
  /// Calls `describe` on other threads as long as this object lives.
  explicit Phase(std::function<PhaseState()> describe);
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  /// Returns the innermost phase; "the set-up" when there is none.
  static PhaseState current();
  /// Returns the innermost phase that an exception has left since the last phase began; current() when there is none.
  static PhaseState failed();
  /// Makes the main thread call `show` whenever the innermost phase or the rank's name changes; null: no call.
  static void when_changed(std::function<void()> show);

 private:
  std::function<PhaseState()> describe_;
  const Phase* outer_;
  int num_exceptions_;  // in flight when this phase began
};

/// Set and return the name of this rank in messages, once its mesh is known: "rank 3 (dp=0 cp=0 tp=1)". Empty until it
/// is set.
void set_rank_name(const std::string& name);
std::string rank_name();

}  // namespace meshtrain
