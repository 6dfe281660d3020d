#include "mesh/connect.h"

#include <numeric>

#include "mesh/agree.h"
#include "mesh/backends/mpi/launcher.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/device/error_message.h"
#include "mesh/flight_recorder.h"

namespace meshtrain {

Group connect_ranks() {
  if (!launched_by_mpi()) return Group();
  std::shared_ptr<Backend> backend = mpi_backend();
  std::vector<int64_t> ranks(backend->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  backend = record_flights(std::move(backend), FlightRecorder::own(), {"world"}, {ranks.begin(), ranks.end()});
  const std::string coordinate = "rank " + std::to_string(backend->rank());
  return Group(std::move(backend), "world", std::move(ranks), coordinate);
}

int run_on_ranks(const std::function<int(const Group& ranks)>& body) {
  Group ranks;
  try {
    ranks = connect_ranks();
    return body(ranks);
  } catch (const std::exception& error) {
    const bool is_refusal = dynamic_cast<const InputError*>(&error) != nullptr;
    const bool is_alone = ranks.size() > 1 && !(is_agreed(error) && meet_at_end(agreement_limit(error)));
    const std::string coordinate = is_alone ? ranks.coordinate_text() + ": " : "";
    if (is_alone || ranks.rank() == 0) log_failure(coordinate + message_of(error));
    if (is_alone) abort_mpi(is_refusal ? 2 : 1);
    return is_refusal ? 2 : 1;
  }
}

}  // namespace meshtrain
