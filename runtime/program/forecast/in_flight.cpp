#include "runtime/program/forecast/in_flight.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

/// The tensors that a rank holds while it computes: the action's kind and stage, then for each of its stages the
/// micro-batches whose forward is kept, those whose weight gradients are still to be computed, and those whose input or
/// gradient has been received and is not used yet.
using Holding = std::vector<int>;

/// Returns all that rank `rank` holds at some time.
std::set<Holding> holdings_of(const PipelineSchedule& schedule, int rank) {
  const auto own = static_cast<size_t>(schedule.stages / schedule.ranks);
  std::vector<int> kept(own, 0), deferred(own, 0), inputs(own, 0), gradients(own, 0);
  std::set<Holding> all;
  for (const auto& [kind, stage, micro_batch] : schedule.rows.at(static_cast<size_t>(rank))) {
    const auto i = static_cast<size_t>(stage / schedule.ranks);
    if (kind == Kind::ReceiveActivation) ++inputs[i];
    if (kind == Kind::ReceiveGradient) ++gradients[i];
    const bool is_forward = kind == Kind::Forward, is_backward = kind == Kind::Backward || kind == Kind::InputGradient;
    if (!is_forward && !is_backward && kind != Kind::WeightGradient) continue;
    if (is_forward) ++kept[i];
    Holding now = {static_cast<int>(kind), stage};
    for (const auto& counts : {kept, deferred, inputs, gradients}) now.insert(now.end(), counts.begin(), counts.end());
    all.insert(std::move(now));
    // The first stage receives no input, the last no gradient.
    if (is_forward) inputs[i] = std::max(inputs[i] - 1, 0);
    if (is_backward) gradients[i] = std::max(gradients[i] - 1, 0);
    if (is_backward) --kept[i];
    if (kind == Kind::InputGradient) ++deferred[i];
    if (kind == Kind::WeightGradient) --deferred[i];
  }
  return all;
}

}  // namespace

InFlight micro_batches_to_peak(const PipelineChoice& pipeline, int64_t ranks, int64_t rank, int64_t all) {
  const int64_t round = pipeline.schedule == ScheduleKind::Interleaved ? ranks : 1;
  const auto per_rank = static_cast<int>(static_cast<int64_t>(pipeline.blocks.size()) / ranks);
  const auto holdings = [&](int64_t count) {
    return holdings_of(make_schedule(pipeline.schedule, static_cast<int>(ranks), per_rank, static_cast<int>(count)),
                       static_cast<int>(rank));
  };
  const int64_t enough = std::min(all, 4 * ranks);  // a schedule repeats itself long before
  const std::set<Holding> most = holdings(enough);
  int64_t count = pipeline.schedule == ScheduleKind::Interleaved ? round : std::min(ranks - rank, enough);
  while (count < enough && !std::ranges::includes(holdings(count), most)) count += round;
  return {count, round};
}

}  // namespace meshtrain
