#include "runtime/program/run/step_meter.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "mesh/agree.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kScalars = 11;
constexpr size_t kPerGroup = 3;

double seconds_in(SteadyClock::duration time) {
  return std::chrono::duration<double>(time).count();
}

void add(GroupCosts& to, const GroupCosts& now, const GroupCosts& before) {
  for (const auto& [group, cost] : now) {
    const auto found = before.find(group);
    const GroupCost was = found == before.end() ? GroupCost{} : found->second;
    GroupCost& sum = to[group];
    sum.total += cost.total - was.total;
    sum.exposed += cost.exposed - was.exposed;
    sum.sent_bytes += cost.sent_bytes - was.sent_bytes;
  }
}

/// Returns the names of groups that any rank has, sorted.
std::vector<std::string> group_names(const Group& world) {
  nlohmann::json own = nlohmann::json::array();
  for (const auto& [group, cost] : FlightRecorder::own().costs()) own.push_back(group);
  std::set<std::string> names;
  for (const std::string& text : gather_texts(world, own.dump())) {
    for (const nlohmann::json& group : nlohmann::json::parse(text)) names.insert(group.get<std::string>());
  }
  const nlohmann::json all = nlohmann::json::parse(broadcast_text(world, nlohmann::json(names).dump()));
  return all.get<std::vector<std::string>>();
}

std::vector<double> numbers_of(const RankStep& step) {
  std::vector<double> numbers = {
      step.loss,          step.optimizer_seconds, step.step_seconds,    step.data_seconds,     step.checkpoint_seconds,
      step.host_peak,     step.device_allocated,  step.device_reserved, step.copied_to_device, step.copied_to_host,
      step.copies_exposed};
  for (const RankStep::Collectives& of : step.collectives) {
    numbers.insert(numbers.end(), {of.total, of.exposed, of.sent_bytes});
  }
  return numbers;
}

RankStep step_of(const double* numbers, size_t num_groups) {
  RankStep step{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],  numbers[5],
                numbers[6], numbers[7], numbers[8], numbers[9], numbers[10], {}};
  for (size_t i = 0; i < num_groups; ++i) {
    const double* const of = numbers + kScalars + i * kPerGroup;
    step.collectives.push_back({of[0], of[1], of[2]});
  }
  return step;
}

/// Returns the mean of a number over ranks; NaN where any rank has none.
template <class Number>
double mean(const std::vector<RankStep>& ranks, const Number& number) {
  double sum = 0;
  for (const RankStep& rank : ranks) sum += number(rank);
  return sum / static_cast<double>(ranks.size());
}

std::optional<double> if_any(double number) {
  return std::isnan(number) ? std::nullopt : std::optional(number);
}

std::optional<PeakMetrics> peak(const std::vector<RankStep>& ranks, double RankStep::*bytes) {
  size_t fullest = 0;
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].*bytes > ranks[fullest].*bytes) fullest = rank;
  }
  if (std::isnan(ranks[fullest].*bytes)) return std::nullopt;
  return PeakMetrics{static_cast<int64_t>(ranks[fullest].*bytes), static_cast<int64_t>(fullest)};
}

}  // namespace

double RankStep::exposed() const {
  double sum = 0;
  for (const Collectives& of : collectives) sum += of.exposed;
  return sum;
}

StepMeter::StepMeter(const DeviceMesh& mesh, std::function<DevicePeak()> device_peak,
                     std::function<CopyCosts()> copy_costs)
    : mesh_(mesh),
      device_peak_(std::move(device_peak)),
      copy_costs_(std::move(copy_costs)),
      groups_(group_names(mesh.world())) {
  begin();
}

StepMeter::Part::~Part() {
  seconds_ += seconds_in(SteadyClock::now() - begun_);
  add(meter_.before_, FlightRecorder::own().costs(), before_);
}

void StepMeter::begin() {
  begun_ = SteadyClock::now();
  before_ = FlightRecorder::own().costs();
  if (copy_costs_) copies_before_ = copy_costs_();
  data_ = checkpoint_ = 0;
}

RankStep StepMeter::end() {
  GroupCosts costs;
  add(costs, FlightRecorder::own().costs(), before_);
  const DevicePeak device = device_peak_ ? device_peak_() : DevicePeak{};
  RankStep step{.loss = kNone,
                .optimizer_seconds = kNone,
                .step_seconds = seconds_in(SteadyClock::now() - begun_),
                .data_seconds = data_,
                .checkpoint_seconds = checkpoint_,
                .host_peak = static_cast<double>(resident_peak()),
                .device_allocated = device_peak_ ? static_cast<double>(device.allocated) : kNone,
                .device_reserved = device_peak_ ? static_cast<double>(device.reserved) : kNone,
                .copied_to_device = kNone,
                .copied_to_host = kNone,
                .copies_exposed = kNone,
                .collectives = {}};
  if (copy_costs_) {
    const CopyCosts copies = copy_costs_() - copies_before_;
    step.copied_to_device = static_cast<double>(copies.to_device);
    step.copied_to_host = static_cast<double>(copies.to_host);
    step.copies_exposed = copies.exposed;
  }
  for (const std::string& group : groups_) {
    const GroupCost& cost = costs[group];
    step.collectives.push_back({seconds_in(cost.total), device_peak_ ? kNone : seconds_in(cost.exposed),
                                static_cast<double>(cost.sent_bytes)});
  }
  begin();
  return step;
}

std::vector<RankStep> StepMeter::gather(const RankStep& own) const {
  const std::vector<double> numbers = numbers_of(own);
  const auto width = static_cast<int64_t>(numbers.size());
  at::Tensor all = at::empty({mesh_.size() * width}, at::kDouble);
  const at::Tensor mine = at::tensor(numbers, at::kDouble);
  mesh_.world().with_purpose("metrics").all_gather(all, mine).wait();
  std::vector<RankStep> ranks;
  for (int64_t rank = 0; rank < mesh_.size(); ++rank) {
    ranks.push_back(step_of(all.const_data_ptr<double>() + rank * width, groups_.size()));
  }
  return ranks;
}

void summarize(const std::vector<RankStep>& ranks, const std::vector<std::string>& groups, StepMetrics& metrics) {
  metrics.loss_max = kNone;
  for (const RankStep& rank : ranks) metrics.loss_max = std::fmax(metrics.loss_max, rank.loss);
  metrics.host_memory = peak(ranks, &RankStep::host_peak).value_or(PeakMetrics{});
  metrics.device_allocated = peak(ranks, &RankStep::device_allocated);
  metrics.device_reserved = peak(ranks, &RankStep::device_reserved);
  metrics.seconds = {.data = mean(ranks, [](const RankStep& rank) { return rank.data_seconds; }),
                     .optimizer = if_any(mean(ranks, [](const RankStep& rank) { return rank.optimizer_seconds; })),
                     .checkpoint = mean(ranks, [](const RankStep& rank) { return rank.checkpoint_seconds; })};
  const double to_device = mean(ranks, [](const RankStep& rank) { return rank.copied_to_device; });
  const double to_host = mean(ranks, [](const RankStep& rank) { return rank.copied_to_host; });
  const double exposed = mean(ranks, [](const RankStep& rank) { return rank.copies_exposed; });
  if (!std::isnan(to_device)) metrics.copies = CopyMetrics{to_device, to_host, exposed};
  for (size_t i = 0; i < groups.size(); ++i) {
    metrics.collectives[groups[i]] = {
        mean(ranks, [&](const RankStep& rank) { return rank.collectives[i].total; }),
        if_any(mean(ranks, [&](const RankStep& rank) { return rank.collectives[i].exposed; })),
        mean(ranks, [&](const RankStep& rank) { return rank.collectives[i].sent_bytes; })};
  }
}

}  // namespace meshtrain
