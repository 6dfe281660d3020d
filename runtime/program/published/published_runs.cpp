#include "runtime/program/published/published_runs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "mesh/base/error.h"
#include "runtime/program/forecast/mesh_forecast.h"
#include "runtime/program/published/recipe.h"
#include "runtime/program/published/software.h"
#include "runtime/program/published/steps.h"
#include "runtime/program/recipe/mesh_size.h"
#include "runtime/program/yaml/suggest.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {
namespace {

constexpr auto kRuntimeBytes = static_cast<double>(kGpuRuntimeBytes);
/// The tokens of a step where a table does not say: those that Llama 2 and 3 8B were trained with.
constexpr int64_t kUsualTokens = 4 << 20;

/// Returns the FLOPs of a token by the formula of flops.h; `causal`: with half of the pairs.
double model_flops(const ModelShape& shape, int64_t sequence, bool causal) {
  const auto h = static_cast<double>(shape.hidden_size),
             q = static_cast<double>(shape.num_attention_heads * shape.head_dim);
  const double kv = static_cast<double>(shape.num_key_value_heads * shape.head_dim);
  const auto f = static_cast<double>(shape.intermediate_size), layers = static_cast<double>(shape.num_hidden_layers);
  const double products = layers * (2 * h * q + 2 * h * kv + 3 * h * f) + h * static_cast<double>(shape.vocab_size);
  return 6 * products + (causal ? 6 : 12) * layers * q * static_cast<double>(sequence);
}

double memory_of_run(const PublishedRun& run, const Software& software, int64_t micro_batch) {
  const Recipe recipe = recipe_of(run, micro_batch, 1, software);
  const Decisions decisions = resolve(recipe, layout_of(run, recipe));
  const StepMemory memory = forecast(decisions, {kRanksPerHost, true}).step.memory();
  return translated_memory(memory, software, run, recipe.model.shape, micro_batch * run.sequence / run.cp);
}

/// Returns the largest number of samples at once that fits, which those take who look for the fastest run; at least 1.
int64_t largest_micro_batch(const PublishedRun& run, const Software& software, double bytes) {
  const int64_t most = std::max<int64_t>(1, run.global_batch.value_or(1 << 20) / run.dp);
  int64_t fitting = 1, refused = most + 1;
  while (refused - fitting > 1) {
    const int64_t tried = std::min(2 * fitting, std::midpoint(fitting, refused));
    (memory_of_run(run, software, tried) <= bytes ? fitting : refused) = tried;
  }
  while (run.global_batch && *run.global_batch % (run.dp * fitting) != 0) --fitting;
  return fitting;
}

int64_t micro_batches_of(const PublishedRun& run, int64_t micro_batch) {
  if (run.global_batch) return *run.global_batch / run.dp / micro_batch;
  if (!run.micro_batch) return 1;
  return std::max<int64_t>(1, kUsualTokens / (run.sequence * run.dp * micro_batch));
}

/// Returns the seconds of a step that a table states in its own unit.
std::optional<double> measured_seconds(const PublishedForecast& forecast, const ModelShape& shape) {
  const PublishedRun& run = forecast.run;
  if (!run.value) return std::nullopt;
  if (run.unit == "s/step") return run.value;
  const double tokens = forecast.tokens_per_gpu();
  if (run.unit == "tok/s/gpu") return tokens / *run.value;
  return tokens * model_flops(shape, run.sequence, run.unit == "TFLOP/s causal") / (*run.value * 1e12);
}

/// Calls `visit` with the forecasts of each publication, those that are measured.
template <class Visit>
void for_each_source(const std::vector<PublishedForecast>& forecasts, const Visit& visit) {
  std::map<std::string, std::vector<const PublishedForecast*>> sources;
  for (const PublishedForecast& forecast : forecasts) {
    if (forecast.measured_seconds) sources[forecast.run.publication()].push_back(&forecast);
  }
  for (const auto& [source, rows] : sources) visit(rows);
}

}  // namespace

double PublishedForecast::tokens_per_gpu() const {
  return static_cast<double>(micro_batch * micro_batches * run.dp * run.sequence) / static_cast<double>(run.gpus);
}

bool PublishedForecast::fits() const {
  return memory + kRuntimeBytes <= static_cast<double>(device_memory);
}

bool PublishedForecast::ran() const {
  return run.fits.value_or(true);
}

std::optional<double> PublishedForecast::time_error() const {
  if (!measured_seconds) return std::nullopt;
  return time.total() / *measured_seconds - 1;
}

std::optional<double> PublishedForecast::memory_error() const {
  if (!run.memory_gib) return std::nullopt;
  return memory / (*run.memory_gib * (1 << 30)) - 1;
}

/// A run and what its prediction is made of.
struct PublishedRuns::Candidate {
  explicit Candidate(const PublishedRun& run) : machine(*sourced_machine(run.system)) {
    const Software software = software_of(run);
    forecast.run = run;
    forecast.software = software.name;
    forecast.device_memory = machine.memory;
    const double memory = static_cast<double>(machine.memory) - kRuntimeBytes;
    forecast.micro_batch = run.micro_batch ? *run.micro_batch : largest_micro_batch(run, software, memory);
    forecast.micro_batches = micro_batches_of(run, forecast.micro_batch);
    const Recipe recipe = recipe_of(run, forecast.micro_batch, forecast.micro_batches, software);
    forecast.memory = memory_of_run(run, software, forecast.micro_batch);
    steps.emplace(run, resolve(recipe, layout_of(run, recipe)), software);
    forecast.measured_seconds = measured_seconds(forecast, recipe.model.shape);
  }

  PublishedForecast predict(const Rates& rates) const {
    PublishedForecast predicted = forecast;
    predicted.time = steps->time(with_rates(machine, rates));
    return predicted;
  }

  /// Returns what the run's time says of rates. Slopes are taken across a fifth.
  RateObservation observe() const {
    constexpr double kStep = 1.2;
    const auto log_of = [this](const Rates& rates) {
      return std::log(steps->time(with_rates(machine, rates)).total());
    };
    const double own = log_of({});
    RateObservation observation{forecast.run.source, std::log(*forecast.measured_seconds) - own};
    for (size_t i = 0; i < kRateMembers.size(); ++i) {
      Rates other;
      other.*kRateMembers[i].factor = kStep;
      observation.slopes[i] = (log_of(other) - own) / std::log(kStep);
    }
    return observation;
  }

  PublishedForecast forecast;
  Machine machine;
  std::optional<PublishedSteps> steps;
};

PublishedRuns::PublishedRuns(const std::vector<PublishedRun>& runs) {
  for (const PublishedRun& run : runs) {
    try {
      candidates_.emplace_back(run);
      if (candidates_.back().forecast.measured_seconds) observations_.push_back(candidates_.back().observe());
    } catch (const InputError& error) {
      throw InputError(run.location + ": " + run.id + ": " + error.what());
    }
  }
}

PublishedRuns::~PublishedRuns() = default;

std::vector<PublishedForecast> PublishedRuns::predict(const Rates& rates) const {
  std::vector<PublishedForecast> forecasts;
  for (const Candidate& candidate : candidates_) forecasts.push_back(candidate.predict(rates));
  return forecasts;
}

std::vector<PublishedForecast> PublishedRuns::predict_each_from_others() const {
  std::map<std::string, Rates> rates;
  std::vector<PublishedForecast> forecasts;
  for (const Candidate& candidate : candidates_) {
    const std::string& source = candidate.forecast.run.source;
    if (!rates.contains(source)) {
      std::vector<RateObservation> others = observations_;
      std::erase_if(others, [&](const RateObservation& run) { return run.source == source; });
      rates[source] = others.empty() ? preset_rates() : fitted_rates(others);
    }
    forecasts.push_back(candidate.predict(rates[source]));
  }
  return forecasts;
}

Rates PublishedRuns::fitted() const {
  return fitted_rates(observations_);
}

PublishedRun run_of(const std::string& name, const Recipe& recipe, const DocumentedRun& documented) {
  PublishedRun run;
  run.location = recipe.file;
  run.id = name;
  run.source = documented.reference;
  run.model = recipe.model.hf.filename();
  run.system = documented.hardware.empty() ? "h100" : documented.hardware;
  run.gpus = ranks_of(recipe.parallel.mesh);
  run.dp = known_size(recipe, kDataAxis);
  run.tp = known_size(recipe, kTensorAxis);
  run.cp = known_size(recipe, kContextAxis);
  run.sharding = recipe.parallel.fsdp.mode;
  run.shard_size = recipe.parallel.fsdp.shard_size;
  run.sequence = recipe.train.sequence_length;
  run.micro_batch = recipe.train.micro_batch;
  run.global_batch = recipe.train.global_batch;
  run.precision = documented.fp8_layers ? "fp8" : recipe.train.precision;
  run.checkpointing = recipe.train.activation_checkpointing.mode;
  run.compiled = documented.kernels == "eager" ? "no" : documented.kernels == "compiled" ? "yes" : "fused";
  if (const std::optional<PublishedFigure> figure = figure_of(documented)) {
    run.value = figure->value;
    run.unit = figure->unit;
  }
  run.memory_gib = documented.figure_gib;
  run.shape = recipe.model.shape;
  run.recipe = std::make_shared<const Recipe>(recipe);
  return run;
}

PublishedForecast predict(const PublishedRun& run, const Rates& rates) {
  const std::optional<Machine> sourced = sourced_machine(run.system);
  if (!sourced) throw InputError("documented.hardware", run.system + ": use one of " + joined(machine_presets()));
  const Machine machine = with_rates(*sourced, rates);
  const Software software = software_of(run);
  PublishedForecast predicted;
  predicted.run = run;
  predicted.software = software.name;
  predicted.device_memory = machine.memory;
  predicted.micro_batch = *run.micro_batch;
  predicted.micro_batches = *run.global_batch / run.dp / *run.micro_batch;
  const Recipe recipe = recipe_of(run, predicted.micro_batch, predicted.micro_batches, software);
  const Decisions decisions = resolve(recipe, layout_of(run, recipe));
  const int64_t tokens = predicted.micro_batch * run.sequence / run.cp;
  const bool is_one_stage = decisions.layout.size(kPipelineAxis) == 1;
  const RunForecast of_run = forecast(decisions, {kRanksPerHost, true}, &machine, [&](const Timeline& timeline) {
    return translated(timeline, software, run, run.shape, tokens);
  });
  predicted.time = with_waits(*of_run.step.time, run, software);
  const StepMemory& memory = of_run.step.memory();
  // With a pipeline the fullest rank is usually the first, which has no logits.
  predicted.memory =
      is_one_stage ? translated_memory(memory, software, run, run.shape, tokens) : static_cast<double>(memory.total());
  predicted.measured_seconds = measured_seconds(predicted, run.shape);
  return predicted;
}

PublishedScore score_of(const std::vector<PublishedForecast>& forecasts) {
  PublishedScore score;
  score.rows = static_cast<int64_t>(forecasts.size());
  int64_t timed = 0, with_memory = 0, sources = 0;
  for (const PublishedForecast& forecast : forecasts) {
    if (const std::optional<double> error = forecast.time_error()) {
      ++timed;
      score.time_error_mean += std::abs(*error);
      score.time_error_worst = std::max(score.time_error_worst, std::abs(*error));
    }
    if (const std::optional<double> error = forecast.memory_error()) {
      ++with_memory;
      score.memory_error_mean += std::abs(*error);
    }
    if (!forecast.ran()) ++score.out_of_memory_total;
    if (!forecast.ran() && !forecast.fits()) ++score.out_of_memory_named;
    if (forecast.ran() && !forecast.fits()) ++score.fitting_refused;
  }
  for_each_source(forecasts, [&](const std::vector<const PublishedForecast*>& rows) {
    if (rows.size() < 2) return;
    std::vector<double> measured, seconds;
    for (const PublishedForecast* row : rows) {
      const double tokens = row->tokens_per_gpu();
      measured.push_back(*row->measured_seconds / tokens);
      seconds.push_back(row->time.total() / tokens);
    }
    ++sources;
    score.kendall_tau_mean += kendall_tau(measured, seconds);
  });
  if (timed > 0) score.time_error_mean /= static_cast<double>(timed);
  if (with_memory > 0) score.memory_error_mean /= static_cast<double>(with_memory);
  if (sources > 0) score.kendall_tau_mean /= static_cast<double>(sources);
  return score;
}

double kendall_tau(const std::vector<double>& x, const std::vector<double>& y) {
  double agreeing = 0, pairs_x = 0, pairs_y = 0;
  const auto order = [](double a, double b) { return a < b ? -1.0 : a > b ? 1.0 : 0.0; };
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const double of_x = order(x[i], x[j]), of_y = order(y[i], y[j]);
      agreeing += of_x * of_y;
      pairs_x += std::abs(of_x);
      pairs_y += std::abs(of_y);
    }
  }
  return pairs_x > 0 && pairs_y > 0 ? agreeing / std::sqrt(pairs_x * pairs_y) : 0;
}

}  // namespace meshtrain
