#include "mesh/layout.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <stdexcept>
#include <string_view>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

std::string size_name(int64_t size) {
  return size == MeshLayout::kAuto ? "auto" : std::to_string(size);
}

/// Returns "dp=3 x tp=2 x cp=1", for messages.
std::string factors(const std::vector<Axis>& axes) {
  std::string text;
  for (const Axis& axis : axes) {
    if (!text.empty()) text += " x ";
    text += axis.name + "=" + size_name(axis.size);
  }
  return text;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Returns the product of all sizes but automatic ones.
int64_t product(const std::vector<Axis>& axes) {
  int64_t ranks = 1;
  for (const Axis& axis : axes) {
    if (axis.size == MeshLayout::kAuto) continue;
    if (axis.size > std::numeric_limits<int64_t>::max() / ranks) {
      throw InputError("mesh " + factors(axes) + " has more ranks than can be counted: make an axis smaller");
    }
    ranks *= axis.size;
  }
  return ranks;
}

/// Returns sizes like `axes` and `ep` that give `ranks` ranks, as --mesh takes them: with another dp if the other axes
/// leave one, and with ep if it divides the ranks of a stage.
std::string fitting(std::vector<Axis> axes, int64_t ep, int64_t ranks) {
  auto data = std::ranges::find(axes, kDataAxis, &Axis::name);
  if (data == axes.end()) data = axes.begin();
  data->size = MeshLayout::kAuto;
  const bool has_other_auto = std::ranges::count(axes, MeshLayout::kAuto, &Axis::size) > 1;
  const int64_t others = product(axes);
  const bool fits = !has_other_auto && ranks % others == 0;
  std::string text;
  int64_t stages = 1;
  for (Axis& axis : axes) {
    if (!fits) axis.size = 1;
    if (&axis == &*data) axis.size = fits ? ranks / others : ranks;
    if (axis.name == kPipelineAxis) stages = axis.size;
    text += (text.empty() ? "" : ",") + axis.name + "=" + size_name(axis.size);
  }
  const bool keeps_ep = ep == MeshLayout::kAuto || (ep > 1 && ranks / stages % ep == 0);
  return text + (keeps_ep ? std::string(",") + kExpertAxis + "=" + size_name(ep) : "");
}

std::string were_started(const std::vector<Axis>& axes, int64_t ep, int64_t ranks) {
  return "but " + counted(ranks, "was", "were") + " started: change --mesh or mpirun -n; --mesh " +
         fitting(axes, ep, ranks) + " would fit";
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

int64_t parse_size(std::string_view text, const std::string& part) {
  if (text == "auto") return MeshLayout::kAuto;
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error == std::errc::result_out_of_range) {
    throw InputError("mesh '" + part + "': that many ranks cannot be counted: make the axis smaller");
  }
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InputError("mesh '" + part + "': the size of an axis is a whole number or auto, as in dp=2,tp=2,cp=auto");
  }
  if (size < 1) throw InputError("mesh '" + part + "': an axis has at least 1 rank: give a larger size, or auto");
  return size;
}

}  // namespace

std::vector<std::string> complete_order(const std::vector<std::string>& order) {
  const std::vector<std::string> known = training_axes();
  std::vector<std::string> complete = known;
  for (const std::string& axis : order) {
    if (std::erase(complete, axis) == 1) continue;
    const bool is_known = std::ranges::find(known, axis) != known.end();
    throw InputError("names " + axis +
                     (is_known ? " more than once: name each axis once" : ", but the axes are " + listed(known)));
  }
  complete.insert(complete.end(), order.begin(), order.end());
  return complete;
}

MeshLayout::MeshLayout(std::vector<Axis> axes, int64_t ep) : axes_(std::move(axes)), ep_(ep) {
  std::set<std::string> seen;
  for (const Axis& axis : axes_) {
    if (axis.name.empty()) throw InputError("mesh " + factors(axes_) + ": an axis has no name");
    if (axis.size < 1) throw InputError("mesh " + factors(axes_) + ": axis " + axis.name + " needs at least 1 rank");
    if (!seen.insert(axis.name).second) {
      throw InputError("mesh " + factors(axes_) + ": axis " + axis.name + " is named twice: name it once");
    }
  }
  size_ = product(axes_);
  const int64_t stage = size_ / size(kPipelineAxis);
  if (ep < 1 || stage % ep != 0) {
    throw InputError("mesh " + factors(axes_) + ": ep=" + std::to_string(ep) + " does not divide " +
                     (size_ == stage ? "its " : "a stage's ") + counted(stage, "rank") +
                     ", dp x cp x tp: give a divisor of their number");
  }
}

MeshLayout MeshLayout::fit(const std::map<std::string, int64_t>& asked_sizes, const std::vector<std::string>& order,
                           int64_t ranks) {
  std::map<std::string, int64_t> sizes = asked_sizes;
  const auto experts = sizes.extract(kExpertAxis);
  const int64_t ep = experts.empty() ? 1 : experts.mapped();
  std::vector<Axis> axes;
  for (const std::string& name : order) {
    const auto asked = sizes.find(name);
    const int64_t size = asked == sizes.end() ? 1 : asked->second;
    if (name != kPipelineAxis || size != 1) axes.push_back({name, size});
  }
  const std::string mesh = "mesh " + factors(axes);

  for (const auto& [name, size] : sizes) {
    if (std::find(order.begin(), order.end(), name) == order.end()) {
      throw InputError("mesh " + name + "=" + size_name(size) + ": unknown axis " + name + ": the axes are " +
                       listed(order));
    }
  }
  for (const Axis& axis : axes) {
    if (axis.size < 0) throw InputError(mesh + ": axis " + axis.name + " needs at least 1 rank, or auto");
  }
  const auto is_auto = [](const Axis& axis) { return axis.size == kAuto; };
  const auto automatic = std::find_if(axes.begin(), axes.end(), is_auto);
  if (std::count_if(axes.begin(), axes.end(), is_auto) > 1) {
    throw InputError(mesh + ": one axis may be auto, the sizes of the others must be given");
  }

  const int64_t asked = product(axes);
  if (automatic != axes.end()) {
    if (ranks < asked || ranks % asked != 0) {
      throw InputError(mesh + " needs a multiple of " + counted(asked, "rank") + ", " + were_started(axes, ep, ranks));
    }
    automatic->size = ranks / asked;
  } else if (asked != ranks) {
    throw InputError(mesh + " needs " + counted(asked, "rank") + ", " + were_started(axes, ep, ranks));
  }
  std::erase_if(axes, [](const Axis& axis) { return axis.name == kPipelineAxis && axis.size == 1; });
  const MeshLayout layout(axes);
  return MeshLayout(std::move(axes), ep == kAuto ? layout.size(kTensorAxis) : ep);
}

std::map<std::string, int64_t> MeshLayout::sizes() const {
  std::map<std::string, int64_t> sizes;
  for (const Axis& axis : axes_) sizes[axis.name] = axis.size;
  if (ep_ > 1) sizes[kExpertAxis] = ep_;
  return sizes;
}

MeshLayout MeshLayout::experts() const {
  return MeshLayout({{kExpertDataAxis, size_ / size(kPipelineAxis) / ep_}, {kExpertAxis, ep_}});
}

int64_t MeshLayout::rank_of_stage(int64_t rank) const {
  const std::vector<int64_t> at = coordinate(rank);
  int64_t position = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name != kPipelineAxis) position = position * axes_[i].size + at[i];
  }
  return position;
}

int64_t MeshLayout::size(const std::string& axis) const {
  const size_t i = index(axis);
  return i < axes_.size() ? axes_[i].size : 1;
}

std::vector<int64_t> MeshLayout::coordinate(int64_t rank) const {
  if (rank < 0 || rank >= size_) {
    throw std::out_of_range("rank " + std::to_string(rank) + " is not on mesh " + describe() + " of " +
                            counted(size_, "rank"));
  }
  std::vector<int64_t> coordinate(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    coordinate[i] = rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  return coordinate;
}

int64_t MeshLayout::coordinate(int64_t rank, const std::string& axis) const {
  const size_t i = index(axis);
  return i < axes_.size() ? coordinate(rank)[i] : 0;
}

int64_t MeshLayout::rank(const std::vector<int64_t>& coordinate) const {
  if (coordinate.size() != axes_.size()) {
    throw std::invalid_argument("a coordinate of " + std::to_string(coordinate.size()) + " numbers on mesh " +
                                describe() + " of " + std::to_string(axes_.size()) + " axes");
  }
  int64_t rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (coordinate[i] < 0 || coordinate[i] >= axes_[i].size) {
      throw std::out_of_range("coordinate " + axes_[i].name + "=" + std::to_string(coordinate[i]) + " is not on mesh " +
                              describe());
    }
    rank = rank * axes_[i].size + coordinate[i];
  }
  return rank;
}

std::vector<int64_t> MeshLayout::group(const std::vector<std::string>& axes, int64_t rank) const {
  std::vector<bool> varies(axes_.size(), false);
  for (const std::string& axis : axes) {
    if (const size_t i = index(axis); i < axes_.size()) varies[i] = true;
  }

  std::vector<int64_t> first = coordinate(rank);
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (varies[i]) first[i] = 0;
  }
  // From the innermost axis outwards, each axis that varies repeats what is there at its stride.
  std::vector<int64_t> ranks{this->rank(first)};
  int64_t stride = 1;
  for (size_t i = axes_.size(); i-- > 0;) {
    const size_t count = ranks.size();
    for (int64_t k = 1; varies[i] && k < axes_[i].size; ++k) {
      for (size_t j = 0; j < count; ++j) ranks.push_back(ranks[j] + k * stride);
    }
    stride *= axes_[i].size;
  }
  return ranks;
}

std::string MeshLayout::describe(int64_t rank) const {
  const std::vector<int64_t> at = coordinate(rank);
  std::string text;
  for (size_t i = 0; i < axes_.size(); ++i) {
    text += (i == 0 ? "" : " ") + axes_[i].name + "=" + std::to_string(at[i]);
  }
  if (ep_ > 1) text += " ep=" + std::to_string(rank_of_stage(rank) % ep_);
  return text;
}

std::string MeshLayout::describe() const {
  std::string text;
  for (const Axis& axis : axes_) text += (text.empty() ? "" : ",") + axis.name + "=" + std::to_string(axis.size);
  if (ep_ > 1) text += ",ep=" + std::to_string(ep_);
  return text;
}

size_t MeshLayout::index(const std::string& axis) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
  }
  const std::vector<std::string> training = training_axes();
  if (std::ranges::find(training, axis) != training.end()) return axes_.size();
  throw InputError("mesh " + describe() + " has no axis '" + axis + "'");
}

int64_t ranks_of(const std::map<std::string, int64_t>& sizes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t ranks = 1;
  for (const auto& [axis, size] : sizes) {
    if (axis == kExpertAxis || size == MeshLayout::kAuto) continue;
    ranks = size > kMost / ranks ? kMost : ranks * size;
  }
  return ranks;
}

std::map<std::string, int64_t> parse_mesh(const std::string& text) {
  std::map<std::string, int64_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part(trimmed(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
    const size_t equals = part.find('=');
    const std::string name(trimmed(std::string_view(part).substr(0, equals)));
    if (equals == std::string::npos || name.empty()) {
      throw InputError("mesh '" + text + "': '" + part + "' is not an axis and its size, as in dp=2,tp=2,cp=auto");
    }
    const int64_t size = parse_size(trimmed(std::string_view(part).substr(equals + 1)), part);
    if (!sizes.emplace(name, size).second) {
      throw InputError("mesh '" + text + "': axis " + name + " is named twice: name it once");
    }
  }
  return sizes;
}

}  // namespace meshtrain
