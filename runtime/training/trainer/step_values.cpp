#include "runtime/training/trainer/step_values.h"

#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"

namespace meshtrain {
namespace {

constexpr int64_t kScalars = 7;  // of a StepOutcome, before the sums of parts

}  // namespace

StepInputs::StepInputs(at::Tensor all)
    : values(std::move(all)),
      num_counted(values[0]),
      learning_rate(values[1]),
      loss_scale(values[2]),
      stop(values[3]),
      saved(values[4]) {}

StepInputs make_step_inputs(int64_t num_counted, double loss_scale, const StepRequest& request, at::Device device) {
  const at::Tensor host = at::tensor({static_cast<double>(num_counted), request.learning_rate, loss_scale,
                                      request.stop ? 1.0 : 0.0, request.saved ? 1.0 : 0.0},
                                     at::kDouble);
  return StepInputs(to_device(host, device));
}

StepOutcome::StepOutcome(at::Tensor all)
    : values(std::move(all)),
      loss(values[0]),
      grad_norm(values[1]),
      non_finite(values[2]),
      num_stop(values[3]),
      num_saved(values[4]),
      own_loss_sum(values[5]),
      outliers(values[6]) {
  if (values.size(0) > kScalars) part_sums = values.narrow(0, kScalars, values.size(0) - kScalars);
}

StepResult StepOutcome::read() const {
  at::Tensor& host = *host_values_;
  if (!host.defined()) host = values.is_meta() ? at::zeros(values.sizes(), at::kDouble) : values.cpu();
  const double* of = host.const_data_ptr<double>();
  return {of[0], of[1], of[2] != 0, of[3], of[4], of[5], static_cast<int>(of[6]), {of + kScalars, of + host.numel()}};
}

}  // namespace meshtrain
