#include "mesh/staged.h"

#include <mutex>

#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "mesh/forwarding.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

/// Returns the same tensor with a version counter of its own: autograd need not know of communication.
at::Tensor uncounted(const at::Tensor& tensor) {
  return tensor.variable_data();
}

at::Tensor host_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(),
                   at::TensorOptions(at::kCPU).dtype(tensor.dtype()).pinned_memory(!tensor.device().is_cpu()));
}

/// The work of a collective on host memory whose result is copied to another tensor.
class StagedWork final : public Work::State {
 public:
  StagedWork(Work work, at::Tensor output, at::Tensor host)
      : work_(std::move(work)), output_(std::move(output)), host_(std::move(host)) {}

  void wait() override {
    const std::lock_guard lock(mutex_);
    work_.wait();
    if (!host_.defined()) return;
    const at::NoGradGuard no_grad;
    uncounted(output_).copy_(host_, /*non_blocking=*/true);
    host_.reset();  // pinned memory is not reused before the copy has read it
    output_.reset();
  }

 private:
  std::mutex mutex_;
  Work work_;
  at::Tensor output_, host_;
};

class StagedBackend final : public ForwardingBackend {
 public:
  StagedBackend(std::shared_ptr<Backend> host, StagedTensors stage)
      : ForwardingBackend(std::move(host)), stage_(stage) {}

  Work issue(const Collective& collective) override {
    if (collective.kind == Kind::Barrier || (stage_ == StagedTensors::Devices && collective.output.is_cpu())) {
      return inner()->issue(collective);
    }
    const at::NoGradGuard no_grad;
    Collective on_host = collective;
    on_host.output = host_like(collective.output);
    const bool sends = only_reads(collective, rank());
    if (collective.kind == Kind::AllReduce || sends) on_host.output.copy_(uncounted(collective.output), true);
    if (collective.input.defined()) {
      on_host.input = host_like(collective.input);
      on_host.input.copy_(uncounted(collective.input), true);
    }
    wait_for_stream(collective.output.device());
    const Work work = inner()->issue(on_host);
    if (sends) return work;
    return Work(std::make_shared<StagedWork>(work, collective.output, on_host.output));
  }

  at::Tensor window(int64_t, const at::TensorOptions&, Placement) override { return {}; }
  int host_ranks() const override { return 1; }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override { return staged(std::move(part), stage_); }

 private:
  StagedTensors stage_;
};

}  // namespace

std::shared_ptr<Backend> staged(std::shared_ptr<Backend> host, StagedTensors stage) {
  if (host->size() == 1 && stage == StagedTensors::Devices) return host;  // copies within the device
  return std::make_shared<StagedBackend>(std::move(host), stage);
}

}  // namespace meshtrain
