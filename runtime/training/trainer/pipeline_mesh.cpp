#include "runtime/training/trainer/pipeline_mesh.h"

#include <set>
#include <string>
#include <vector>

namespace meshtrain {

PipelineMesh::PipelineMesh(const DeviceMesh& mesh, bool joins_ends) : complete_(mesh) {
  const Group& ranks = mesh.group(kPipelineAxis);
  if (ranks.size() == 1) return;
  std::set<std::string> others;
  for (const Axis& axis : mesh.layout().axes()) {
    if (axis.name != kPipelineAxis) others.insert(axis.name);
  }
  stage_ = mesh.part(others);
  links_.emplace(ranks);
  if (!joins_ends) return;
  const int last = ranks.size() - 1;
  const bool is_end = ranks.rank() == 0 || ranks.rank() == last;
  ends_ = ranks.split(is_end ? std::vector<int>{0, last} : std::vector<int>{ranks.rank()}, "pp ends");
}

}  // namespace meshtrain
