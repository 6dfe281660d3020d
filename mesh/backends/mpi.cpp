#include "mesh/backends/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "mesh/backends/local.h"
#include "mesh/backends/mpi_engine.h"
#include "mesh/backends/mpi_transfer.h"
#include "mesh/error.h"

namespace meshtrain {
namespace {

class MpiBackend final : public Backend {
 public:
  explicit MpiBackend(std::shared_ptr<MpiCommunicator> communicator) : communicator_(std::move(communicator)) {}

  int rank() const override { return communicator_->rank; }
  int size() const override { return communicator_->size; }

  Work issue(const Collective& collective) override {
    const auto transfer = std::make_shared<MpiTransfer>(*communicator_, collective);
    MpiEngine::get().submit(communicator_, transfer);
    return Work(transfer);
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members) override {
    const auto self = std::find(members.begin(), members.end(), rank());
    if (self == members.end()) throw std::invalid_argument("split: a rank must be in its own part");
    const bool alone = members.size() == 1;
    const int color = alone ? MPI_UNDEFINED : *std::min_element(members.begin(), members.end());
    const auto part = MpiEngine::get().split(communicator_->comm, color, static_cast<int>(self - members.begin()),
                                             communicator_->piece_bytes);
    if (alone) return local_backend();
    if (part->size != static_cast<int>(members.size())) {
      throw std::invalid_argument("split: this rank listed " + std::to_string(members.size()) + " members, but " +
                                  std::to_string(part->size) + " ranks listed the same first one");
    }
    return std::make_shared<MpiBackend>(part);
  }

 private:
  std::shared_ptr<MpiCommunicator> communicator_;
};

}  // namespace

std::shared_ptr<Backend> mpi_backend(const MpiOptions& options) {
  if (options.piece_bytes < 1) {
    throw std::invalid_argument("MPI pieces of " + std::to_string(options.piece_bytes) +
                                " bytes: at least 1 is needed");
  }
  auto world = MpiEngine::get().split(MPI_COMM_WORLD, 0, 0, options.piece_bytes);
  if (world->size == 1 && announced_ranks() > 1) {
    throw InputError("the launcher announces " + std::to_string(announced_ranks()) +
                     " ranks, but MPI finds this one alone: start the program with the mpirun of the MPI library "
                     "that it was built with (Open MPI " +
                     std::to_string(OMPI_MAJOR_VERSION) + "." + std::to_string(OMPI_MINOR_VERSION) + ")");
  }
  if (world->size == 1) return local_backend();
  return std::make_shared<MpiBackend>(world);
}

void abort_mpi(int status) {
  std::fflush(nullptr);
  if (MpiEngine::running()) MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

}  // namespace meshtrain
