#include "runtime/program/published/steps.h"

#include <algorithm>
#include <cmath>

#include "runtime/program/forecast/rank_steps.h"

namespace meshtrain {
namespace {

/// The relative standard deviation of the speed of GPUs. GPUs of one cluster differ in the clock that their power
/// allows (Sinha et al., "Not All GPUs Are Created Equal", SC22). The slowest of n takes sqrt(2 ln n) standard
/// deviations longer than the mean.
constexpr double kSpread = 0.01;

/// Returns `b`, and `factor` times what it has beyond `a`.
TimeForecast combined(const TimeForecast& a, const TimeForecast& b, double factor) {
  TimeForecast sum = b;
  for (double TimeForecast::*part :
       {&TimeForecast::products, &TimeForecast::attention, &TimeForecast::elementwise, &TimeForecast::optimizer}) {
    sum.*part += factor * (b.*part - a.*part);
  }
  for (std::map<std::string, double> TimeForecast::*groups : {&TimeForecast::collectives, &TimeForecast::exposed}) {
    for (auto& [group, seconds] : sum.*groups) {
      const auto found = (a.*groups).find(group);
      seconds = std::max(seconds + factor * (seconds - (found == (a.*groups).end() ? 0.0 : found->second)), 0.0);
    }
  }
  return sum;
}

}  // namespace

PublishedSteps::PublishedSteps(const PublishedRun& run, const Decisions& decisions, const Software& software)
    : run_(run), software_(software), layers_(decisions.shape.num_hidden_layers), period_(layer_period(decisions)) {
  const int64_t count = decisions.batch.global_batch / run.dp / decisions.batch.micro_batch;
  micro_batches_ = count;
  counts_ = count > 2 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{count};
  few_ = layers_ % period_;
  while (few_ < 4) few_ += period_;
  const int64_t tokens = decisions.batch.micro_batch * run.sequence / run.cp;
  for (const int64_t layers : few_ + period_ < layers_ ? std::vector{few_, few_ + period_} : std::vector{layers_}) {
    Decisions part = decisions;
    part.shape.num_hidden_layers = layers;
    const int64_t last = decisions.layout.size() - 1;
    for (const StepForecast& step : simulate(part, {kRanksPerHost, true}, last, counts_, Recording::Signatures)) {
      timelines_.push_back(translated(step.timeline, software, run, part.shape, tokens));
    }
  }
}

TimeForecast PublishedSteps::time(const Machine& machine) const {
  return with_waits(own_time(machine), run_, software_);
}

TimeForecast with_waits(TimeForecast time, const PublishedRun& run, const Software& software) {
  const double all = std::max(2.0, static_cast<double>(run.gpus));
  time.exposed["slowest"] = kSpread * std::sqrt(2 * std::log(all)) * time.computing();
  if (const double seconds = seconds_of_pieces(software, run); seconds > 0) time.exposed["pieces"] = seconds;
  return time;
}

TimeForecast PublishedSteps::own_time(const Machine& machine) const {
  std::vector<TimeForecast> times;
  const size_t num = counts_.size();
  for (size_t i = 0; i < timelines_.size(); i += num) {
    const TimeForecast one = time_of(timelines_[i], machine);
    times.push_back(
        num == 1 ? one : combined(one, time_of(timelines_[i + 1], machine), static_cast<double>(micro_batches_ - 2)));
  }
  if (times.size() == 1) return times.front();
  return combined(times[0], times[1], static_cast<double>(layers_ - few_ - period_) / static_cast<double>(period_));
}

}  // namespace meshtrain
