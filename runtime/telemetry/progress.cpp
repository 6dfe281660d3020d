#include "runtime/telemetry/progress.h"

#include <cmath>

#include "runtime/telemetry/console.h"

namespace meshtrain {

std::string Progress::line(int64_t done, double seconds) {
  if (seconds - said_ < kEvery || done < 1 || done >= num_tokens_) return "";
  said_ = seconds;
  const double rate = static_cast<double>(done) / seconds;
  return with_separators(done) + " of " + counted(num_tokens_, "token") + ", " + with_separators(std::llround(rate)) +
         " tok/s, eta " + duration(static_cast<double>(num_tokens_ - done) / rate);
}

}  // namespace meshtrain
