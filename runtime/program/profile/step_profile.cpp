#include "runtime/program/profile/step_profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "mesh/base/files/output_file.h"
#include "mesh/base/log.h"
#include "mesh/device/error_message.h"

namespace meshtrain {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::set<ActivityType> activities(at::Device device) {
  std::set<ActivityType> all = {ActivityType::CPU};
  if (device.is_cuda()) all.insert(ActivityType::CUDA);
  return all;
}

std::string content_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (text.empty()) throw std::runtime_error("LibTorch could not write " + file.string());
  return text;
}

std::string file_name(int64_t rank, int64_t first, int64_t last) {
  char name[80];
  std::snprintf(name, sizeof name, "rank-%05lld-steps-%lld-%lld.json", static_cast<long long>(rank),
                static_cast<long long>(first), static_cast<long long>(last));
  return name;
}

}  // namespace

StepProfile::StepProfile(const ProfileOptions& options, std::filesystem::path folder, int64_t rank, std::string name,
                         at::Device device)
    : options_(options),
      folder_(std::move(folder)),
      name_(std::move(name)),
      rank_(rank),
      device_(device),
      takes_part_(options.from > 0 &&
                  std::find(options.ranks.begin(), options.ranks.end(), rank) != options.ranks.end()) {}

StepProfile::~StepProfile() {
  if (!runs_) return;
  try {
    kineto::disableProfiler();
  } catch (const std::exception&) {  // an error that ends the run is reported already
  }
}

void StepProfile::begin() {
  setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);  // no lines of its own on stderr, such as that there is no GPU
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     /*report_input_shapes=*/true);
  kineto::prepareProfiler(config, activities(device_));
  kineto::enableProfiler(config, activities(device_));
  FlightRecorder::own().begin_trace();
  runs_ = true;
  steps_.clear();
}

void StepProfile::begin_step(int64_t step) {
  if (!takes_part_ || step < options_.from || step >= options_.from + options_.steps) return;
  try {
    if (!runs_) begin();
    steps_.push_back({step, Clock::now(), {}});
  } catch (const std::exception& error) {
    takes_part_ = false;
    log_warning("train.profile: " + name_ + " makes no trace: " + message_of(error));
  }
}

void StepProfile::end_step(int64_t step) {
  if (!runs_ || steps_.empty()) return;
  FlightRecorder::own().set_work("");  // slices of a track must be nested
  steps_.back().ended = Clock::now();
  if (step + 1 >= options_.from + options_.steps) write();
}

void StepProfile::finish() {
  if (!runs_) return;
  if (!steps_.empty() && steps_.back().ended == Clock::time_point{}) steps_.pop_back();
  if (!steps_.empty()) write();
}

void StepProfile::write() {
  runs_ = false;
  const std::filesystem::path file = folder_ / file_name(rank_, steps_.front().step, steps_.back().step);
  const std::filesystem::path raw = file.string() + ".partial.json";  // Kineto wants a name that ends like this
  const TraceTracks tracks{
      rank_,       name_, std::exchange(steps_, {}), FlightRecorder::own().take_trace(), FlightRecorder::own().groups(),
      clock_zero()};
  try {
    const auto result = kineto::disableProfiler();
    make_folders(folder_);
    result->save(raw.string());
    write_atomically(file, with_tracks(content_of(raw), tracks));
  } catch (const std::exception& error) {
    log_warning("train.profile: " + name_ + " cannot write its trace: " + message_of(error));
  }
  std::error_code ignored;
  std::filesystem::remove(raw, ignored);
}

}  // namespace meshtrain
