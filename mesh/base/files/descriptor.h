#pragma once

#include <unistd.h>

#include <utility>

namespace meshtrain {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(), number_ = std::exchange(other.number_, -1);
    return *this;
  }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void reset() {
    if (number_ >= 0) ::close(release());
  }
  /// Returns the number and gives it up: this object no longer closes it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace meshtrain
