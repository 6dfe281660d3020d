#include "runtime/text/jinja/budget.h"

#include <string>

#include "runtime/text/jinja/failure.h"

namespace meshtrain::jinja {

void Budget::work(int64_t units) {
  if (units > limits_.work - work_) throw Failure("the template computes for too long: it is stopped");
  work_ += units;
}

void Budget::make(int64_t bytes) {
  if (bytes > limits_.made_bytes - made_) {
    throw Failure("the template makes more than " + std::to_string(limits_.made_bytes >> 20) +
                  " MiB of texts and lists: it is stopped");
  }
  made_ += bytes;
}

void Budget::enter() {
  if (depth_ == limits_.depth) {
    throw Failure("the template calls itself, or is nested, more than " + std::to_string(limits_.depth) +
                  " levels deep");
  }
  ++depth_;
}

}  // namespace meshtrain::jinja
