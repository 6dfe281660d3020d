#include "mesh/backends/mpi/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "mesh/backends/local.h"
#include "mesh/backends/mpi/call.h"
#include "mesh/backends/mpi/engine.h"
#include "mesh/backends/mpi/launcher.h"
#include "mesh/backends/mpi/same_launch.h"
#include "mesh/backends/mpi/shared_memory/transfer.h"
#include "mesh/backends/mpi/transfer.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/host_map.h"

namespace meshtrain {
namespace {

/// Reports once a process that windows were refused: later refusals have the same reason.
void report_refusal(const MpiCommunicator& communicator, const std::string& refusal) {
  static std::atomic<bool> reported = false;
  if (communicator.rank != 0 || communicator.options.window_bytes == 0 || reported.exchange(true)) return;
  log_warning(
      refusal +
      ". These ranks communicate through MPI instead, and keep a copy each: give the host or its container more "
      "memory, start fewer ranks on it, or raise MESHTRAIN_WINDOW_MIB where it is set");
}

/// Reports once a process how many ranks are on each host of `all`, which keeps some of them from sharing memory.
void report_hosts(const MpiCommunicator& all) {
  static bool reported = false;
  if (all.rank != 0 || all.options.window_bytes == 0 || std::exchange(reported, true)) return;
  const HostMap map(all.hosts);
  size_t least = all.hosts.size(), most = 0;
  for (int host = 0; host < map.num_hosts(); ++host) {
    least = std::min(least, map.ranks_of(host).size());
    most = std::max(most, map.ranks_of(host).size());
  }
  const std::string each = std::to_string(least) + (least == most ? "" : " to " + std::to_string(most));
  log_warning("the " + std::to_string(all.size) + " ranks are on " + std::to_string(map.num_hosts()) + " hosts, " +
              each +
              " on each, so some groups of ranks cannot share memory: they communicate through MPI, and each rank has "
              "its own copy of parameters and gradients. Start the same number of ranks on each host, and the ranks of "
              "a group together (mpirun --map-by slot)");
}

/// Returns the largest of each number over the ranks of `comm`.
template <size_t kCount>
std::array<uint64_t, kCount> largest(std::array<uint64_t, kCount> numbers, MPI_Comm comm) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, numbers.data(), kCount, MPI_UINT64_T, MPI_MAX, comm), "MPI_Allreduce");
  return numbers;
}

/// Gives a communicator its board where several of its ranks are on one host. Communicators that were split from one
/// parent sum in one order: that of messages, where one of them cannot do what the others could. Collective over
/// `parent`, which is the communicator itself for the world, and blocks. `part`: nullptr for a rank that is alone.
void share_host(MpiCommunicator* part, const MpiCommunicator& parent) {
  HostLayout layout;
  bool uneven = false;
  if (part) {
    part->hosts.resize(static_cast<size_t>(part->size));
    check_mpi(MPI_Allgather(&part->host, 1, MPI_INT, part->hosts.data(), 1, MPI_INT, part->comm), "MPI_Allgather");
    layout = HostLayout::of(part->hosts, part->rank);
    uneven = layout.hosts > HostMap(part->hosts).num_hosts();
  }
  const int fan_out = parent.options.fan_out;
  const uint64_t order = layout.order(fan_out);
  const auto [most, most_inverted, any_uneven] = largest<3>({order, part ? ~order : 0, uneven ? 1U : 0U}, parent.comm);
  const bool differ = most != 0 && most != ~most_inverted;
  if (differ && order != 0) layout = HostLayout::apart(part->size, part->rank);
  if (differ || any_uneven) report_hosts(parent);

  SharedMemory memory;
  const bool wanted = layout.local_size > 1;
  if (wanted) {
    memory = share_memory(part->comm, layout, HostBoard::kRankBytes, part->options.window_bytes);
    if (!memory.mapping) report_refusal(*part, memory.refusal);
  }
  const bool own_order = layout.order(fan_out) != 0;
  const bool any_refused = largest<1>({wanted && own_order && !memory.mapping ? 1U : 0U}, parent.comm)[0] != 0;
  if (!memory.mapping || (own_order && any_refused)) return;
  std::shared_ptr<MpiCommunicator> across;
  if (layout.hosts > 1) across = MpiEngine::get().split(part->comm, layout.local_rank, layout.host, part->options);
  part->board = std::make_unique<HostBoard>(std::move(memory.mapping), layout, std::move(across));
}

/// Returns the lowest rank of the world on this rank's host.
int host_of(const MpiCommunicator& world) {
  if (!world.options.hosts.empty()) return world.options.hosts.at(static_cast<size_t>(world.rank));
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(world.comm, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &host),
            "MPI_Comm_split_type");
  int first = world.rank;
  const int code = MPI_Bcast(&first, 1, MPI_INT, 0, host);
  check_mpi(code, "MPI_Bcast");
  reserve_together(host);
  MPI_Comm_free(&host);
  return first;
}

/// Returns the limit of MESHTRAIN_WINDOW_MIB in bytes.
int64_t window_limit() {
  const char* const text = std::getenv("MESHTRAIN_WINDOW_MIB");
  if (!text || *text == '\0') return std::numeric_limits<int64_t>::max();
  int64_t mib = -1;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, mib);
  if (error != std::errc{} || rest != end || mib < 0) {
    throw InputError("MESHTRAIN_WINDOW_MIB is '" + std::string(text) +
                     "': expected the MiB that a rank may hold in memory shared with others of its host, 0 for none");
  }
  return std::min(mib, std::numeric_limits<int64_t>::max() >> 20) << 20;
}

class MpiBackend final : public Backend {
 public:
  explicit MpiBackend(std::shared_ptr<MpiCommunicator> communicator) : communicator_(std::move(communicator)) {}

  int rank() const override { return communicator_->rank; }
  int size() const override { return communicator_->size; }

  Work issue(const Collective& collective) override {
    if (HostTransfer::takes(*communicator_, collective)) return submit<HostTransfer>(collective);
    return submit<MpiTransfer>(collective);
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members, const GroupTraits& traits) override {
    const auto self = std::find(members.begin(), members.end(), rank());
    if (self == members.end()) throw std::invalid_argument("split: a rank must be in its own part");
    const bool alone = members.size() == 1;
    const int color = alone ? MPI_UNDEFINED : *std::min_element(members.begin(), members.end());
    std::shared_ptr<MpiCommunicator> part;
    MpiEngine::get().block([&] {
      part = MpiEngine::get().split(communicator_->comm, color, static_cast<int>(self - members.begin()),
                                    communicator_->options);
      if (part) part->host = communicator_->host;
      if (!traits.messages_only) share_host(part.get(), *communicator_);
    });
    if (alone) return local_backend();
    if (part->size != static_cast<int>(members.size())) {
      throw std::invalid_argument("split: this rank listed " + std::to_string(members.size()) + " members, but " +
                                  std::to_string(part->size) + " ranks listed the same first one");
    }
    if (traits.messages_only) {
      part->hosts.clear();
      for (const int member : members) part->hosts.push_back(communicator_->hosts[static_cast<size_t>(member)]);
    }
    return std::make_shared<MpiBackend>(part);
  }

  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement) override {
    const int64_t bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
    if (!options.device().is_cpu() || placement == Placement::Private || bytes == 0) return {};
    const std::shared_ptr<HostWindow> window = make_window(bytes, placement);
    return window ? HostWindow::tensor(window, numel, options) : at::Tensor();
  }

  std::vector<int> hosts() const override { return communicator_->hosts; }
  int host_ranks() const override { return communicator_->board ? communicator_->board->layout().local_size : 1; }

 private:
  template <class Operation>
  Work submit(const Collective& collective) {
    const auto operation = std::make_shared<Operation>(*communicator_, collective);
    MpiEngine::get().submit(communicator_, operation);
    return Work(operation);
  }

  std::shared_ptr<HostWindow> make_window(int64_t bytes, Placement placement) {
    if (!communicator_->board) return nullptr;
    const HostLayout& layout = communicator_->board->layout();
    SharedMemory memory;
    MpiEngine::get().block([&] {
      memory = share_memory(communicator_->comm, layout, HostWindow::rank_bytes(layout, bytes, placement),
                            communicator_->options.window_bytes);
    });
    if (memory.mapping) return std::make_shared<HostWindow>(std::move(memory.mapping), layout, bytes, placement);
    report_refusal(*communicator_, memory.refusal);
    return nullptr;
  }

  std::shared_ptr<MpiCommunicator> communicator_;
};

/// Returns the error of this task for the case that MPI sees no other; none when one task is announced. Decided before
/// MPI_Init, which sets launchers' variables itself.
const std::optional<LaunchError>& error_if_alone() {
  static const auto error = announced_ranks() > 1 ? std::optional<LaunchError>(std::in_place) : std::nullopt;
  return error;
}

/// True in a task of srun that cannot meet the others. Open MPI would end the process in MPI_Init.
bool has_no_way_to_others() {
  static const bool has_none = is_srun_without_pmi();
  return has_none;
}

}  // namespace

std::shared_ptr<Backend> mpi_backend(const MpiOptions& options) {
  if (options.piece_bytes < 1) {
    throw std::invalid_argument("MPI pieces of " + std::to_string(options.piece_bytes) +
                                " bytes: at least 1 is needed");
  }
  if (options.fan_out < 2)
    throw std::invalid_argument("MPI trees of " + std::to_string(options.fan_out) + " branches: at least 2 are needed");
  MpiOptions limited = options;
  limited.window_bytes = std::min(options.window_bytes, window_limit());
  const std::optional<LaunchError>& alone = error_if_alone();
  if (has_no_way_to_others()) throw LaunchError(*alone);
  static const bool is_same = (check_same_launch(), true);
  static_cast<void>(is_same);
  std::shared_ptr<MpiCommunicator> world;
  MpiEngine::get().block([&] {
    world = MpiEngine::get().split(MPI_COMM_WORLD, 0, 0, limited);
    world->host = host_of(*world);
    if (world->size > 1) share_host(world.get(), *world);
  });
  if (world->size == 1 && alone) throw LaunchError(*alone);
  if (world->size == 1) return local_backend();
  return std::make_shared<MpiBackend>(world);
}

bool meet_at_end(std::optional<std::chrono::milliseconds> limit) {
  return !MpiEngine::running() || MpiEngine::get().meet_at_end(limit);
}

void abort_mpi(int status) {
  MpiEngine::abort(status);
}

}  // namespace meshtrain
