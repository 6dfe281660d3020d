#include "runtime/program/report/facts.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "mesh/base/size_text.h"
#include "runtime/program/report/value_text.h"

namespace meshtrain {
namespace {

/// Returns the median over the columns of their means: steps that were slow for once do not count.
double typical(const Series& series) {
  std::vector<double> means;
  for (const Column& column : series.columns()) {
    if (column.count > 0) means.push_back(column.mean());
  }
  if (means.empty()) return 0;
  const auto middle = means.begin() + static_cast<std::ptrdiff_t>(means.size() / 2);
  std::nth_element(means.begin(), middle, means.end());
  return *middle;
}

/// Returns "least 1.98 at step 480"; "about step" where a column has several.
std::string least_of(const Series& series) {
  const Column* best = nullptr;
  for (const Column& column : series.columns()) {
    if (column.count > 0 && (best == nullptr || column.least < best->least)) best = &column;
  }
  if (best == nullptr) return "";
  const double step = series.step_of(static_cast<size_t>(best - series.columns().data()));
  return "least " + text_of(best->least) + (series.width() > 1 ? " about step " : " at step ") +
         with_separators(std::llround(step));
}

std::string loss_text(double loss) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", loss);
  return std::isfinite(loss) ? text : "not finite";
}

std::string rank_of(const Series& ranks) {
  return ranks.has_values() && std::abs(ranks.last()) < 1e9 ? "rank " + std::to_string(std::llround(ranks.last())) : "";
}

void add_progress(const RunRecord& run, std::vector<Fact>& facts) {
  const MetricsReader& metrics = run.metrics;
  const int64_t num_steps = run.num_steps();
  std::string steps = with_separators(metrics.last_step());
  if (num_steps > 0) steps += " of " + with_separators(num_steps);
  facts.push_back({"steps", steps, state_of(run)});
  if (const Series& tokens = metrics["tokens"]; tokens.has_values()) {
    facts.push_back({"tokens", text_of(tokens.last()), ""});
  }
  if (const Series& loss = metrics["loss"]; loss.last_step() >= 0) {
    facts.push_back({"loss", loss_text(loss.last()), least_of(loss)});
  }
  if (const Series& held_out = metrics["eval_loss"]; held_out.has_values()) {
    facts.push_back({"held-out loss", loss_text(held_out.last()), least_of(held_out)});
  }
}

void add_speed(const RunRecord& run, std::vector<Fact>& facts) {
  const MetricsReader& metrics = run.metrics;
  const auto add = [&](const char* label, const char* path, ValueUnit unit) {
    const Series& series = metrics[path];
    if (series.has_values()) facts.push_back({label, text_of(typical(series), unit), "median"});
  };
  add("tokens/s", "tokens_per_second", ValueUnit::PerSecond);
  add("time of a step", "step_seconds", ValueUnit::Seconds);
  add("MFU", "mfu", ValueUnit::Percent);
  add("model FLOP/s a rank", "flops_per_rank", ValueUnit::Flops);
  if (const Series& host = metrics["memory.host_peak_bytes"]; host.has_values()) {
    facts.push_back(
        {"host memory, peak", text_of(host.total().most, ValueUnit::Bytes), rank_of(metrics["memory.host_peak_rank"])});
  }
  if (const Series& device = metrics["memory.device_allocated_peak_bytes"]; device.has_values()) {
    facts.push_back({"GPU memory, peak", text_of(device.total().most, ValueUnit::Bytes),
                     rank_of(metrics["memory.device_peak_rank"])});
  }
}

void add_history(const RunRecord& run, std::vector<Fact>& facts) {
  if (const auto starts = static_cast<int64_t>(run.starts.size()); starts > 0) {
    const int64_t interruptions = num_interruptions(run);
    facts.push_back(
        {"starts", with_separators(starts), interruptions > 0 ? counted(interruptions, "interruption") : ""});
  }
  if (!run.checkpoints.empty()) {
    facts.push_back({"checkpoints", with_separators(static_cast<int64_t>(run.checkpoints.size())),
                     "newest of step " + with_separators(run.checkpoints.back().step)});
  }
  if (run.metrics.num_skipped() > 0) {
    const int64_t outliers = run.metrics.num_outliers();
    facts.push_back({"skipped steps", with_separators(run.metrics.num_skipped()),
                     outliers > 0 ? counted(outliers, "outlier") : ""});
  }
  const double wall = run.ledger.wall_seconds();
  for (const auto& [part, seconds] : run.ledger.parts()) {
    if (part == "training" && wall > 0) {
      facts.push_back({"goodput", text_of(seconds / wall, ValueUnit::Percent),
                       "training, of " + text_of(wall, ValueUnit::Seconds)});
    }
  }
}

}  // namespace

std::vector<Fact> facts_of(const RunRecord& run) {
  std::vector<Fact> facts;
  add_progress(run, facts);
  add_speed(run, facts);
  add_history(run, facts);
  return facts;
}

std::string reason_of(const RunStart& start) {
  if (start.failures.empty()) return "";
  const FailedRank& first = start.failures.front();
  return ": " + (first.rank < 0 ? std::string("all ranks") : "rank " + std::to_string(first.rank)) +
         (first.cause.empty() ? "" : ", " + first.cause) +
         (first.step > 0 ? ", in step " + with_separators(first.step) : "");
}

std::string how_it_ended(const RunStart& start) {
  switch (start.how) {
    case RunStart::End::Done:
      return "done";
    case RunStart::End::Stopped:
      return "stopped on request";
    case RunStart::End::Interrupted:
      return "interrupted";
    case RunStart::End::Failed:
      return "failed" + reason_of(start);
    case RunStart::End::Open:
      break;
  }
  return "no end yet";
}

std::string state_of(const RunRecord& run) {
  if (run.starts.empty()) return "";
  const RunStart& last = run.starts.back();
  if (last.how != RunStart::End::Open && last.how != RunStart::End::Interrupted) return how_it_ended(last);
  return last.end > 0 ? "last line of " + time_text(last.end) : "";
}

int64_t num_interruptions(const RunRecord& run) {
  if (run.starts.empty()) return 0;
  return std::count_if(run.starts.begin(), run.starts.end() - 1, [](const RunStart& start) {
    return start.how == RunStart::End::Interrupted || start.how == RunStart::End::Failed;
  });
}

std::string time_text(double seconds) {
  constexpr double kYear10000 = 253402300800;
  if (!(seconds > 0) || seconds >= kYear10000) return "-";
  const auto full = static_cast<std::time_t>(seconds);
  std::tm time{};
  char text[32];
  if (localtime_r(&full, &time) == nullptr || std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &time) == 0) {
    return "-";
  }
  return text;
}

std::string part_name(std::string part) {
  std::replace(part.begin(), part.end(), '_', ' ');
  if (part == "start up") return "start-up";
  if (part == "lost") return "lost: steps done again";
  return part == "idle" ? "idle between starts" : part;
}

std::vector<RecipeDifference> recipe_differences(const std::vector<const RunRecord*>& runs) {
  std::vector<std::string> keys;  // in order
  std::map<std::string, std::vector<std::string>> values;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [key, value] : runs[i]->recipe) {
      const auto [at, is_new] = values.try_emplace(key, runs.size(), "-");
      if (is_new) keys.push_back(key);
      at->second[i] = value;
    }
  }
  std::vector<RecipeDifference> differences;
  for (const std::string& key : keys) {
    RecipeDifference difference{key, values.at(key)};
    const std::string* first = nullptr;
    bool differs = false;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (runs[i]->recipe.empty()) {
        difference.values[i] = "?";
      } else if (first == nullptr) {
        first = &difference.values[i];
      } else {
        differs = differs || difference.values[i] != *first;
      }
    }
    if (differs) differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace meshtrain
