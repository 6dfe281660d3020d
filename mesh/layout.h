#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace meshtrain {

// The axes of a training mesh. Ranks along an axis differ in:
inline constexpr const char* kPipelineAxis = "pp";  ///< layers
inline constexpr const char* kDataAxis = "dp";      ///< samples
inline constexpr const char* kTensorAxis = "tp";    ///< parts of a layer's matrices
inline constexpr const char* kContextAxis = "cp";   ///< positions of the same sequences

// The axes of the same ranks for experts (MeshLayout::experts()). Ranks along an axis differ in:
inline constexpr const char* kExpertAxis = "ep";       ///< experts
inline constexpr const char* kExpertDataAxis = "edp";  ///< tokens of the same experts

/// Returns the axes of a training mesh in their usual order, outermost first.
inline std::vector<std::string> training_axes() {
  return {kPipelineAxis, kDataAxis, kContextAxis, kTensorAxis};
}

/// Returns `order`, preceded by the training axes that it leaves out, as the outermost, in their usual order. Throws
/// InputError when `order` names an axis twice or one that is not a training axis. The error's text continues a
/// sentence about the order: "names dp more than once: name each axis once".
std::vector<std::string> complete_order(const std::vector<std::string>& order);

struct Axis {
  std::string name;
  int64_t size = 1;
};

/// The coordinates of ranks on a mesh: arithmetic alone, for any number of ranks, without communication. Axes are
/// ordered outermost first, so the ranks of the last axis are neighbours.
///
/// Expert parallelism (ep) is not a factor of the number of ranks. For experts the ranks of a stage, dp x cp x tp, form
/// a second mesh, edp x ep. In mesh order, ep consecutive ranks hold different experts, so ep takes the innermost axes
/// first.
class MeshLayout {
 public:
  /// The size to request for an axis that takes all ranks that the other axes leave.
  static constexpr int64_t kAuto = 0;

  /// `axes`: outermost first, with sizes of at least 1 and unique names. `ep`: a divisor of the ranks of a stage.
  /// Throws InputError otherwise.
  explicit MeshLayout(std::vector<Axis> axes, int64_t ep = 1);

  /// Returns the layout of `ranks` ranks whose axes are in `order` and have the requested `sizes`. An axis without a
  /// size is 1; one may be kAuto. An axis pp of one rank is left out: only pipelines have it. `sizes` may also have ep;
  /// there kAuto means the size of tp. Throws InputError, naming every factor, when the product is not `ranks`, `sizes`
  /// names an axis that `order` lacks, or ep does not divide the ranks of a stage.
  static MeshLayout fit(const std::map<std::string, int64_t>& sizes, const std::vector<std::string>& order,
                        int64_t ranks);

  const std::vector<Axis>& axes() const { return axes_; }
  int64_t size() const { return size_; }
  /// Returns the size of an axis. It is 1 for a training axis that the mesh lacks, along which each rank has coordinate
  /// 0. Throws InputError for any other name that the mesh does not have.
  int64_t size(const std::string& axis) const;
  /// Returns the number of ranks over which the experts of a layer are cut.
  int64_t ep() const { return ep_; }
  /// Returns the sizes of the axes, and of ep above 1, in the form that fit() takes.
  std::map<std::string, int64_t> sizes() const;
  /// Returns the layout of the ranks of a stage for experts: edp, then ep.
  MeshLayout experts() const;

  /// Returns the coordinate of `rank` on each axis, in the order of axes().
  std::vector<int64_t> coordinate(int64_t rank) const;
  int64_t coordinate(int64_t rank, const std::string& axis) const;
  int64_t rank(const std::vector<int64_t>& coordinate) const;

  /// Returns `rank` and the ranks that differ from it only along these axes, ascending in mesh order.
  std::vector<int64_t> group(const std::vector<std::string>& axes, int64_t rank) const;

  /// Returns the coordinate of `rank` for messages: "dp=0 tp=1 cp=0".
  std::string describe(int64_t rank) const;
  /// Returns the sizes in the form of --mesh: "dp=2,tp=2,cp=2".
  std::string describe() const;

 private:
  /// Returns the position of an axis in axes(); the number of axes for a training axis that the mesh lacks.
  size_t index(const std::string& axis) const;

  /// Returns the position of `rank` among the ranks of its stage.
  int64_t rank_of_stage(int64_t rank) const;

  std::vector<Axis> axes_;
  int64_t size_ = 1, ep_ = 1;
};

/// Returns the number of ranks of a mesh of these sizes; kAuto counts as 1. Returns the largest int64_t when the number
/// cannot be represented.
int64_t ranks_of(const std::map<std::string, int64_t>& sizes);

/// Parses "dp=2,tp=2,cp=auto" into sizes by axis. Throws InputError that names the invalid part.
std::map<std::string, int64_t> parse_mesh(const std::string& text);

}  // namespace meshtrain
