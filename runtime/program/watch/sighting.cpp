#include "runtime/program/watch/sighting.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

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
  const PhaseState phase = Phase::current();
  write(phase.text, self.phase);
  self.phase_kind = phase.kind;
  self.step = phase.step;
  read_flights(FlightRecorder::own(), self.activity);
  return self;
}

}  // namespace meshtrain
