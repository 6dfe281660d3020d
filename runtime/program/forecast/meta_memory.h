#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace meshtrain {

/// Bytes that tensors of the Meta device would take: those that one thread makes while this object exists, as
/// HostMemory counts tensors of the host. A thread has one at a time. Tensors may outlive it.
class MetaMemory {
 public:
  /// What a tensor is made for, by the time at which it is made.
  enum Purpose {
    kKept,      ///< before the step: what is kept between steps
    kForward,   ///< activations, which the backward needs, and what a forward needs for a moment
    kBackward,  ///< gradients of activations
    kUpdate,    ///< what the optimizer needs for a moment
    kPurposes
  };
  using Bytes = std::array<int64_t, kPurposes>;

  MetaMemory();
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  /// Sets the purpose of what is made from now on. kForward: kBackward while autograd runs a backward.
  void set(Purpose purpose);
  int64_t live() const;
  /// Returns the largest live() since the last restart_peak(), and what it consisted of.
  int64_t peak() const;
  const Bytes& at_peak() const;
  void restart_peak();
  /// Returns the largest live() at the beginning of a backward since the last restart_peak(); 0 without one.
  int64_t before_backward() const;

  struct Counts;

 private:
  std::shared_ptr<Counts> counts_;
};

}  // namespace meshtrain
