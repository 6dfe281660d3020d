#include "mesh/connect.h"

#include <chrono>
#include <cstdio>
#include <numeric>
#include <optional>

#include "mesh/agree.h"
#include "mesh/backends/mpi/launcher.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/base/error.h"
#include "mesh/device/error_message.h"
#include "mesh/flight_recorder.h"

namespace meshtrain {

Group connect_ranks() {
  if (!launched_by_mpi()) return Group();
  std::shared_ptr<Backend> backend = mpi_backend();
  std::vector<int64_t> ranks(backend->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  backend = record_flights(std::move(backend), FlightRecorder::own(), "world", {ranks.begin(), ranks.end()});
  const std::string place = "rank " + std::to_string(backend->rank());
  return Group(std::move(backend), "world", std::move(ranks), place);
}

int run_on_ranks(const std::function<int(const Group& ranks)>& body) {
  constexpr std::chrono::seconds kPatience(10);  // an InputError may be of a file that this rank alone sees
  Group ranks;
  try {
    ranks = connect_ranks();
    return body(ranks);
  } catch (const std::exception& error) {
    const bool is_refusal = dynamic_cast<const InputError*>(&error) != nullptr;
    const bool is_agreed = is_refusal || dynamic_cast<const AgreedError*>(&error) != nullptr;
    const bool is_alone =
        ranks.size() > 1 && !(is_agreed && meet_at_end(is_refusal ? std::optional(kPatience) : std::nullopt));
    const std::string place = is_alone ? ranks.coordinate_text() + ": " : "";
    if (is_alone || ranks.rank() == 0)
      std::fprintf(stderr, "meshtrain: %s%s\n", place.c_str(), message_of(error).c_str());
    if (is_alone) abort_mpi(is_refusal ? 2 : 1);
    return is_refusal ? 2 : 1;
  }
}

}  // namespace meshtrain
