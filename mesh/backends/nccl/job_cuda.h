#pragma once

#include <c10/core/Device.h>
#include <nccl.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mesh/backends/nccl/options.h"

namespace meshtrain::nccl {

/// Returns "NCCL: unhandled cuda error (NCCL's own text)". `comm` may be null.
std::string text_of(ncclResult_t result, ncclComm_t comm);

/// A communicator, as its job sees it. Called by any thread.
class Member {
 public:
  virtual ~Member() = default;
  /// Reports a failure to the job.
  virtual void look() = 0;
  /// Ends running collectives, whose results are then invalid. Between ncclGroupStart and ncclGroupEnd: NCCL sets the
  /// flags that end its kernels and its waiting calls at once, and frees the communicator at the group's end.
  virtual void abort() = 0;
  /// Returns when no thread is in a call of NCCL with it any more. Between abort() and ncclGroupEnd: what the call
  /// still reads would be freed under it.
  virtual void leave_calls() = 0;
  /// Deregisters a user buffer that nothing uses any more.
  virtual void forget(const void* begin) = 0;
};

/// All communicators of this process: they fail together. A thread of its own looks after them; it issues nothing.
///
/// NCCL's guide asks for communicators that do not block where they may be aborted, since a thread may be in a call of
/// one that does. Its source (2.28: src/init.cc, src/group.cc) allows for more, within a group: ncclCommAbort sets the
/// abort flags, which end waiting calls (src/bootstrap.cc, src/misc/socket.cc, src/proxy.cc look at them) and kernels,
/// and leaves the freeing, commReclaim, to ncclGroupEnd. Between the two the calls are waited for. In such a group
/// communicators that block and that do not may be mixed, as destroyFlag is set; elsewhere that is refused.
class Job {
 public:
  Job(c10::DeviceIndex gpu, const NcclOptions& options) : gpu_(gpu), options_(options) {}
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  c10::DeviceIndex gpu() const { return gpu_; }
  const NcclOptions& options() const { return options_; }

  void enter(Member* member);
  void leave(Member* member);
  void for_each(const std::function<void(Member&)>& call);

  /// Throws the failure that ended the job's communication, if there is one.
  void check() const;
  bool has_failed() const;
  /// Records a failure; only the first one counts.
  void fail(const std::string& message);
  /// Aborts all communicators as one: to abort one is to wait for the device, where another may hang.
  void abort();

 private:
  void look();
  void abort_members();

  c10::DeviceIndex gpu_;
  NcclOptions options_;
  mutable std::mutex failure_mutex_;
  std::string failure_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::vector<Member*> members_;
  std::thread thread_;
};

}  // namespace meshtrain::nccl
