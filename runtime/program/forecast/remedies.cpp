#include "runtime/program/forecast/remedies.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "runtime/program/forecast/improve.h"
#include "runtime/program/forecast/settings.h"
#include "runtime/program/recipe/sharding.h"

namespace meshtrain {
namespace {

constexpr double kHelps = 0.95;  // of the bytes that a rank needs now

/// Looks for changes of a recipe that need less memory than it does.
class Remedies {
 public:
  Remedies(const Recipe& recipe, const MeshLayout& layout, const ForecastRequest& request)
      : recipe_(recipe), layout_(layout), request_(request), now_(forecast_mesh(recipe, layout, {}, request)) {}

  std::string text() {
    const std::string sharded = "parallel.fsdp.mode=full_shard", full = "train.activation_checkpointing.mode=full";
    const bool shards = recipe_.parallel.fsdp.mode == "full_shard";
    int64_t least = now_.memory();  // of these ranks
    if (layout_.size(kDataAxis) * layout_.size(kContextAxis) > 1) least = try_choice({{{sharded}}}).value_or(least);
    try_more_ranks(kDataAxis, shards ? Settings{} : Settings{sharded}, least);
    if (reuses_memory()) try_choice({{{"parallel.fsdp.unit=sublayer"}}});
    if (request_.hosts.gpus) try_choice(offload_choice());
    try_choice({{{"train.precision=bf16_mixed"}}});
    try_choice({{{"train.activation_checkpointing.mode=selective"}}, {{full}}});
    if (request_.hosts.gpus) try_choice({{{"train.offload_activations=true"}}});
    try_choice({{{"train.micro_batch=1"}}});
    for (const char* axis : {kContextAxis, kTensorAxis, kPipelineAxis}) try_more_ranks(axis, {}, now_.memory());
    if (texts_.empty()) return "";
    std::string list;
    for (const std::string& each : texts_) list += (list.empty() ? "" : ", ") + each;
    if (num_choices_ > 1) {
      if (const auto all = forecast_of(layout_, together_, request_))
        list += "; with all these settings " + amount(*all);
    }
    return "a rank needs less with " + list;
  }

 private:
  /// Returns true when units take memory in turns, so that smaller units need less.
  bool reuses_memory() const {
    const ShardingMode mode = sharding_choice(recipe_, layout_).mode;
    return mode == ShardingMode::FullShard || mode == ShardingMode::ShardGradOp;
  }

  std::optional<MeshForecast> forecast_of(const MeshLayout& layout, const Settings& settings,
                                          const ForecastRequest& request) {
    try {
      return forecast_mesh(recipe_, layout, settings, request);
    } catch (const InputError&) {  // not possible
      return std::nullopt;
    }
  }

  /// Adds the settings of `choice` that need least, and returns the bytes that a rank then needs.
  std::optional<int64_t> try_choice(const Choice& choice) {
    ForecastRequest least = request_;
    least.memory = 1;  // nothing fits: meshes are compared by their memory
    MeshForecast start = now_;
    start.fits = false;
    const auto found = improve(recipe_, layout_, std::move(start), {choice}, least);
    if (!found || found->settings.empty() || !add(found->settings, " and ", *found, now_.memory())) return std::nullopt;
    together_.insert(together_.end(), found->settings.begin(), found->settings.end());
    ++num_choices_;
    return found->memory();
  }

  /// Adds twice the ranks along `axis`, when they need less than `least` bytes.
  void try_more_ranks(const std::string& axis, const Settings& settings, int64_t least) {
    std::map<std::string, int64_t> sizes = layout_.sizes();
    sizes[axis] = 2 * layout_.size(axis);
    ForecastRequest more = request_;
    more.ranks *= 2;
    const auto found = forecast_of(MeshLayout::fit(sizes, training_axes(), more.ranks), settings, more);
    if (!found) return;
    Settings words = {"more ranks, " + axis + "=" + std::to_string(sizes[axis])};
    words.insert(words.end(), settings.begin(), settings.end());
    add(words, " with ", *found, least);
  }

  /// Returns false, and adds nothing, when `mesh` does not need noticeably less than `least` bytes.
  bool add(const Settings& words, const std::string& between, const MeshForecast& mesh, int64_t least) {
    if (static_cast<double>(mesh.memory()) > kHelps * static_cast<double>(least)) return false;
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
    texts_.push_back(text + " (" + amount(mesh) + ")");
    return true;
  }

  std::string amount(const MeshForecast& mesh) const {
    const bool fits = request_.memory && request_.has_room_for(mesh.memory());
    return size_text(mesh.memory()) + (fits ? ", which fits" : "");
  }

  const Recipe& recipe_;
  const MeshLayout& layout_;
  const ForecastRequest& request_;
  MeshForecast now_;
  std::vector<std::string> texts_;
  Settings together_;
  int num_choices_ = 0;
};

}  // namespace

std::string memory_remedies(const Recipe& recipe, const MeshLayout& layout, const ForecastRequest& request) {
  return Remedies(recipe, layout, request).text();
}

}  // namespace meshtrain
