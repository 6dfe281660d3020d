#include "runtime/train/assemble.h"

#include <map>

namespace meshtrain {

at::ScalarType dtype_of(const std::string& precision) {
  static const std::map<std::string, at::ScalarType> dtypes = {
      {"fp64", at::kDouble}, {"fp32", at::kFloat}, {"bf16", at::kBFloat16}};
  return dtypes.at(precision);
}

SequenceLayout make_layout(const Recipe& recipe, const DeviceMesh& mesh) {
  const int64_t length = recipe.train.sequence_length, cp = mesh.size("cp");
  const std::string& asked = recipe.parallel.context.layout;
  const bool zigzag = asked == "zigzag" || (asked == "auto" && cp > 1 && length % (2 * cp) == 0);
  return SequenceLayout(zigzag ? SequenceLayout::Kind::ZigZag : SequenceLayout::Kind::Contiguous, length,
                        static_cast<int>(cp), static_cast<int>(mesh.coordinate("cp")));
}

Parallelism make_parallelism(const Recipe& recipe, const DeviceMesh& mesh, const SequenceLayout& layout) {
  const int64_t tokens = recipe.train.micro_batch * layout.local_length(), tp = mesh.size("tp");
  const std::string& asked = recipe.parallel.sequence_parallel;
  const bool sequence_parallel = tp > 1 && (asked == "on" || (asked == "auto" && tokens % tp == 0));
  return {{mesh.group("tp"), sequence_parallel}, mesh.group("cp"), ContextAlgorithm::AllGather};
}

}  // namespace meshtrain
