#include "runtime/watch/sighting.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/watch/phase.h"

namespace meshtrain {
namespace {

template <size_t Size>
void write(const std::string& from, std::array<char, Size>& into) {
  const size_t count = std::min(from.size(), Size - 1);
  std::memcpy(into.data(), from.data(), count);
  into[count] = 0;
}

}  // namespace

Sighting sight_self(const std::string& name) {
  Sighting self;
  gethostname(self.host.data(), self.host.size() - 1);
  const std::string longer = rank_name();
  write(longer.empty() ? name : longer, self.name);
  write(Phase::current(), self.phase);
  read_flights(FlightRecorder::own(), self.activity);
  return self;
}

}  // namespace meshtrain
