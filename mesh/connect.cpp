#include "mesh/connect.h"

#include <numeric>

#include "mesh/backends/mpi/launcher.h"
#include "mesh/backends/mpi/mpi.h"
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

}  // namespace meshtrain
