#include "runtime/program/forecast/improve.h"

#include <map>
#include <utility>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

/// How much less a setting must take to be worth a word.
constexpr double kNoticeable = 0.998;

/// Looks for the best settings of a mesh.
class Improvement {
 public:
  Improvement(const Recipe& recipe, const MeshLayout& layout, std::optional<MeshForecast> start,
              const std::vector<Choice>& choices, const ForecastRequest& request)
      : recipe_(recipe),
        layout_(layout),
        choices_(choices),
        request_(request),
        best_(std::move(start)),
        chosen_(choices.size()) {
    known_[{}] = best_;
  }

  std::optional<MeshForecast> result() {
    constexpr int kMostRounds = 3;
    for (int round = 0; round < kMostRounds; ++round) {
      bool found = false;
      for (size_t i = 0; i < choices_.size(); ++i) found = choose(i) || found;
      if (!found) break;
    }
    if (best_) best_->settings = that_change(recipe_, best_->settings);
    return std::move(best_);
  }

 private:
  /// Takes the best settings of a choice, together with those of the other choices. Returns true when they are better.
  bool choose(size_t choice) {
    bool found = false;
    for (const std::vector<Settings>& ladder : choices_[choice]) {
      for (const Settings& rung : ladder) {
        const std::optional<MeshForecast>& mesh = with(choice, rung);
        if (mesh && is_better(*mesh)) {
          best_ = mesh;
          chosen_[choice] = rung;
          found = true;
        }
        if (mesh && !mesh->fits) break;  // nor do those that need more
      }
    }
    return found;
  }

  /// Returns the mesh with these settings for a choice, and those that are chosen for the others.
  const std::optional<MeshForecast>& with(size_t choice, const Settings& rung) {
    Settings settings;
    for (size_t i = 0; i < chosen_.size(); ++i) {
      const Settings& each = i == choice ? rung : chosen_[i];
      settings.insert(settings.end(), each.begin(), each.end());
    }
    const auto [entry, is_new] = known_.try_emplace(settings);
    if (is_new) {
      try {
        entry->second = forecast_mesh(recipe_, layout_, settings, request_);
      } catch (const InputError&) {  // not possible
      }
    }
    return entry->second;
  }

  bool is_better(const MeshForecast& mesh) const {
    if (!best_) return true;
    if (mesh.fits != best_->fits) return mesh.fits;
    if (!mesh.fits) return mesh.memory() < best_->memory();
    if (mesh.forecast.step.time) return mesh.seconds() < kNoticeable * best_->seconds();
    return mesh.order() < best_->order();
  }

  const Recipe& recipe_;
  const MeshLayout& layout_;
  const std::vector<Choice>& choices_;
  const ForecastRequest& request_;
  std::optional<MeshForecast> best_;
  std::vector<Settings> chosen_;                                // the settings of each choice
  std::map<Settings, std::optional<MeshForecast>> known_ = {};  // all settings that were tried
};

}  // namespace

std::optional<MeshForecast> improve(const Recipe& recipe, const MeshLayout& layout, std::optional<MeshForecast> start,
                                    const std::vector<Choice>& choices, const ForecastRequest& request) {
  return Improvement(recipe, layout, std::move(start), choices, request).result();
}

}  // namespace meshtrain
