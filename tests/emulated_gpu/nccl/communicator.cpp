#include "communicator.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <utility>

namespace meshtrain::emulated {
namespace {

std::mutex& mutex() {
  static auto& one = *new std::mutex;
  return one;
}

std::vector<ncclComm*>& communicators() {
  static auto& all = *new std::vector<ncclComm*>;
  return all;
}

thread_local std::string last_message;
thread_local uint64_t polls = 0;
std::atomic<int> rank_in_world = -1;  // rank in the first communicator

bool is_known(const ncclComm* comm) {
  const std::lock_guard lock(mutex());
  return std::find(communicators().begin(), communicators().end(), comm) != communicators().end();
}

ncclComm* make(const ncclConfig_t* config, const std::string& file) {
  auto* const comm = new ncclComm;
  comm->is_blocking = config == nullptr || config->blocking != 0;
  if (const char* const asked = std::getenv("NCCL_COMM_BLOCKING")) comm->is_blocking = std::strcmp(asked, "0") != 0;
  if (config != nullptr && config->commName != nullptr) comm->name = config->commName;
  comm->file = file;
  cudaGetDevice(&comm->device);
  const std::lock_guard lock(mutex());
  communicators().push_back(comm);
  return comm;
}

bool is_sound(const ncclConfig_t* config) {
  return config == nullptr || (config->size == sizeof *config && config->magic == 0xcafebeef);
}

/// Checks MESHTRAIN_EMULATED_NCCL_ABSENT="rank:name": returns true when this process has that rank and must stay away
/// from the communicator of that name.
bool is_absent(const ncclComm& comm) {
  const char* const asked = std::getenv("MESHTRAIN_EMULATED_NCCL_ABSENT");
  return asked != nullptr && asked == std::to_string(world_rank()) + ":" + comm.name;
}

ncclResult_t connect(ncclComm& comm) {
  try {
    const auto gives_up = [&] { return comm.ends(); };
    if (is_absent(comm)) {
      wait_for([] { return false; }, gives_up);
      return ncclInternalError;
    }
    if (!comm.shared.open(comm.file, comm.size, comm.rank, gives_up)) return ncclInternalError;
    Note mine;
    cudaDeviceProp about{};
    cudaGetDeviceProperties(&about, comm.device);
    mine.uuid = about.uuid;
    std::vector<Note> notes(static_cast<size_t>(comm.size));
    if (!comm.shared.meet(mine, notes.data(), gives_up)) return ncclInternalError;
    for (int one = 0; one < comm.size; ++one) {
      for (int other = one + 1; other < comm.size; ++other) {
        const char* const uuid = notes[static_cast<size_t>(other)].uuid.bytes;
        if (std::memcmp(notes[static_cast<size_t>(one)].uuid.bytes, uuid, sizeof mine.uuid) == 0) {
          return refuse(&comm, ncclInvalidUsage,
                        "ranks " + std::to_string(one) + " and " + std::to_string(other) + " are on one GPU");
        }
      }
    }
    comm.is_ready = true;
    return ncclSuccess;
  } catch (const std::exception& error) {
    return refuse(&comm, ncclInvalidArgument, error.what());
  }
}

/// Makes a communicator of the ranks with one color, in order of key and rank.
ncclResult_t split(ncclComm& parent, int color, int key, ncclComm* child, ncclComm_t* result) {
  std::vector<Note> notes(static_cast<size_t>(parent.size));
  const Note mine{.kind = 1, .color = color, .key = key};
  if (!parent.shared.meet(mine, notes.data(), [&] { return parent.ends(); })) return ncclRemoteError;
  std::vector<std::pair<int, int>> members;
  for (int rank = 0; rank < parent.size; ++rank) {
    const Note& note = notes[static_cast<size_t>(rank)];
    if (note.kind != mine.kind) return refuse(&parent, ncclInvalidUsage, "not all ranks called ncclCommSplit");
    if (note.color == color) members.emplace_back(note.key, rank);
  }
  ++parent.splits;
  if (child == nullptr) return ncclSuccess;
  std::sort(members.begin(), members.end());
  child->size = static_cast<int>(members.size());
  child->rank =
      static_cast<int>(std::find(members.begin(), members.end(), std::pair(key, parent.rank)) - members.begin());
  child->file = parent.file + "-" + std::to_string(parent.splits) + "-" + std::to_string(color);
  child->parent = &parent;
  const ncclResult_t connected = connect(*child);
  child->parent = nullptr;
  *result = child;  // also on failure: the caller aborts it
  return connected;
}

/// Waits: NCCL keeps a communicator, even an aborted one, until no graph has its operations.
void wait_for_graphs(const ncclComm& comm, const char* call, const std::function<bool()>& gives_up) {
  if (comm.in_graphs == 0) return;
  std::fprintf(stderr, "emulated NCCL: %s waits until the graphs with operations of group '%s' are destroyed\n", call,
               comm.name.c_str());
  wait_for([&] { return comm.in_graphs == 0; }, gives_up);
}

void set_device(const ncclComm& comm) {
  cudaSetDevice(comm.device);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace

ncclResult_t refuse(ncclComm* comm, ncclResult_t result, const std::string& why) {
  const std::string of = comm != nullptr ? "group '" + comm->name + "', rank " + std::to_string(comm->rank) + ": " : "";
  last_message = of + why;
  std::fprintf(stderr, "emulated NCCL: %s\n", last_message.c_str());
  if (comm != nullptr) {
    const std::lock_guard lock(comm->mutex);
    comm->message = why;
  }
  return result;
}

void fail(ncclComm& comm, ncclResult_t result, const std::string& why) {
  refuse(&comm, result, why);
  comm.failure = result;
  comm.shared.fail();
}

ncclResult_t check(ncclComm* comm, const char* call) {
  const std::string name = call;
  if (comm == nullptr || !is_known(comm)) return refuse(nullptr, ncclInvalidArgument, name + " without a communicator");
  if (comm->is_gone) return refuse(comm, ncclInvalidArgument, name + " after ncclCommDestroy or ncclCommAbort");
  if (comm->busy > 0) return refuse(comm, ncclInvalidUsage, name + " while the communicator is in progress");
  if (comm->failure != ncclSuccess) return refuse(comm, comm->failure, name + " after a failure");
  if (comm->is_finalized) return refuse(comm, ncclInvalidUsage, name + " after ncclCommFinalize");
  return ncclSuccess;
}

void join(ncclComm& comm) {
  std::thread thread;
  {
    const std::lock_guard lock(comm.mutex);
    thread.swap(comm.thread);
  }
  if (thread.joinable()) thread.join();
}

ncclResult_t start(ncclComm& comm, std::function<ncclResult_t()> job) {
  if (group_depth() == 0) return start_now(comm, std::move(job));
  start_later(comm, std::move(job));
  return ncclSuccess;
}

ncclResult_t start_now(ncclComm& comm, std::function<ncclResult_t()> job) {
  const Inside inside(comm);
  if (comm.is_blocking) return job();
  join(comm);
  ++comm.busy;
  std::thread thread([&comm, job = std::move(job)] {
    set_device(comm);
    const ncclResult_t result = job();
    if (result != ncclSuccess) comm.failure = result;
    --comm.busy;
  });
  const std::lock_guard lock(comm.mutex);
  comm.thread.swap(thread);
  return ncclInProgress;
}

void abort_all(const std::vector<ncclComm*>& comms) {
  for (ncclComm* const comm : comms) comm->is_aborted = true;
  for (ncclComm* const comm : comms) {
    if (comm->inside > 0) {
      std::fprintf(stderr, "emulated NCCL: group '%s' is freed while a thread is in a call of it\n",
                   comm->name.c_str());
      std::abort();
    }
    join(*comm);
    wait_for([&] { return comm->at_work == 0; }, [] { return false; });
    wait_for_graphs(*comm, "ncclCommAbort", [] { return false; });
    forget_registered(*comm);
    comm->is_gone = true;
  }
  // It frees memory of the device: CUDA waits until all streams are idle.
  std::atomic<bool> is_idle = false;
  std::thread waits([&] {
    set_device(*comms.front());
    void* memory = nullptr;
    cudaMalloc(&memory, 1);
    cudaFree(memory);
    is_idle = true;
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  if (!wait_for([&] { return is_idle.load(); }, [&] { return std::chrono::steady_clock::now() > end; })) {
    std::fprintf(stderr,
                 "emulated NCCL: ncclCommAbort of group '%s' waits for the device, where another communicator's "
                 "operation may hang: abort them together, within a group\n",
                 comms.front()->name.c_str());
  }
  waits.join();
}

int world_rank() {
  return rank_in_world;
}

double random_number() {
  static std::mt19937 engine([] {
    const char* const seed = std::getenv("MESHTRAIN_SEED");
    return seed != nullptr ? static_cast<unsigned>(std::strtoul(seed, nullptr, 10)) : 1u;
  }());
  const std::lock_guard lock(mutex());
  return std::uniform_real_distribution<double>()(engine);
}

}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return ncclInvalidArgument;
  std::random_device device;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/meshtrain-nccl-%d-%08x%08x", getpid(), device(), device());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (comm == nullptr || size < 1 || size > kMostRanks || rank < 0 || rank >= size || !is_sound(config)) {
    return refuse(nullptr, ncclInvalidArgument, "ncclCommInitRankConfig with a bad rank, size or configuration");
  }
  ncclComm* const made = make(config, id.internal);
  made->size = size;
  made->rank = rank;
  int none = -1;
  rank_in_world.compare_exchange_strong(none, rank);
  *comm = made;
  const ncclResult_t result = start(*made, [made] { return connect(*made); });
  if (result != ncclSuccess && result != ncclInProgress) *comm = nullptr;
  return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* comm, ncclConfig_t* config) {
  if (const ncclResult_t result = check(parent, __func__); result != ncclSuccess) return result;
  if (comm == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR) || !is_sound(config)) {
    return refuse(parent, ncclInvalidArgument, "ncclCommSplit with a bad color or configuration");
  }
  if (group_depth() > 0) return refuse(parent, ncclInvalidUsage, "ncclCommSplit in a group is not emulated");
  if (parent->given > 0) return refuse(parent, ncclInvalidUsage, "ncclCommSplit while operations are under way");
  *comm = nullptr;  // stays null until all is complete
  ncclComm* const child = color == NCCL_SPLIT_NOCOLOR ? nullptr : make(config, "");
  if (child != nullptr && config == nullptr) child->is_blocking = parent->is_blocking;
  return start(*parent, [=] { return split(*parent, color, key, child, comm); });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t result = check(comm, __func__); result != ncclSuccess) return result;
  if (has_windows(*comm)) return refuse(comm, ncclInvalidUsage, "ncclCommFinalize while windows are registered");
  comm->is_finalized = true;
  return start(*comm, [comm] {
    const auto gives_up = [comm] { return comm->ends(); };
    wait_for([comm] { return comm->given == 0; }, gives_up);
    wait_for_graphs(*comm, "ncclCommFinalize", gives_up);
    return comm->shared.part(gives_up) ? ncclSuccess : ncclRemoteError;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (!comm->is_finalized) {
    const ncclResult_t result = ncclCommFinalize(comm);
    if (result != ncclSuccess && result != ncclInProgress) return result;
    wait_for([comm] { return comm->busy == 0; }, [] { return false; });
  }
  if (comm->is_gone) return refuse(comm, ncclInvalidArgument, "ncclCommDestroy twice");
  if (comm->busy > 0) return refuse(comm, ncclInvalidUsage, "ncclCommDestroy while ncclCommFinalize is in progress");
  join(*comm);
  if (comm->last != nullptr) cudaEventDestroy(comm->last);
  forget_registered(*comm);
  comm->is_gone = true;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (!is_known(comm) || comm->is_gone) return refuse(nullptr, ncclInvalidArgument, "ncclCommAbort of what is gone");
  if (group_depth() > 0) {
    abort_later(*comm);
  } else {
    abort_all({comm});
  }
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm == nullptr || state == nullptr || !is_known(comm) || comm->is_gone) {
    return refuse(nullptr, ncclInvalidArgument, "ncclCommGetAsyncError of no communicator");
  }
  ++polls;
  const bool is_remote =
      comm->is_ready && comm->shared.has_failed();  // read first: an own error comes before another rank's
  *state = comm->failure;
  if (*state == ncclSuccess && comm->busy > 0) *state = ncclInProgress;
  if (*state == ncclSuccess && is_remote) *state = ncclRemoteError;
  return ncclSuccess;
}

uint64_t ncclEmulatedPolls() {
  return polls;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  if (const ncclResult_t result = check(comm, __func__); result != ncclSuccess) return result;
  *count = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  if (const ncclResult_t result = check(comm, __func__); result != ncclSuccess) return result;
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  if (const ncclResult_t result = check(comm, __func__); result != ncclSuccess) return result;
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  text = last_message;
  if (comm != nullptr && is_known(comm)) {
    const std::lock_guard lock(comm->mutex);
    text = comm->message;
  }
  return text.c_str();
}

}  // extern "C"
