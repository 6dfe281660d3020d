#include "runtime/hf/export_model.h"

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "mesh/agree.h"
#include "runtime/hf/export.h"

namespace meshtrain {
namespace {

/// Gathers the complete tensor, without padding, on every rank of `group`.
at::Tensor gather(const Parameter& parameter, const Group& group) {
  const at::Tensor local = parameter.tensor.detach();
  if (parameter.sharded_over.empty() || group.size() == 1) return parameter.valid().detach();
  at::Tensor parts = at::empty({group.size() * local.size(0), local[0].numel()}, local.options());
  group.all_gather(parts, local.reshape({local.size(0), -1})).wait();

  std::vector<at::Tensor> shards;
  for (const at::Tensor& part : parts.chunk(group.size())) shards.push_back(part.view(parameter.shape));
  const int64_t dim = parameter.sharded_dim;
  return at::cat(shards, dim).narrow(dim, 0, parameter.global_shape[dim]);
}

}  // namespace

std::string export_model(Fsdp& fsdp, const ModelShape& shape, const CarriedOver& carried, const DeviceMesh& mesh,
                         const std::filesystem::path& folder) {
  std::optional<FolderWriter> writer;
  agree(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    std::vector<TensorEntry> entries;
    for (const Unit& unit : fsdp.units()) {
      for (const Parameter* parameter : unit.parameters()) {
        entries.push_back({parameter->name, parameter->tensor.scalar_type(), parameter->global_shape});
      }
    }
    writer.emplace(folder, shape, carried, entries);
  });
  const Group group = mesh.group(kTensorAxis).with_purpose("export");
  fsdp.visit_values([&](const Unit& unit) {
    for (const Parameter* parameter : unit.parameters()) {
      const at::Tensor whole = gather(*parameter, group);
      agree(mesh.world(), [&] {
        if (writer) writer->write(parameter->name, whole.contiguous());
      });
    }
  });
  agree(mesh.world(), [&] {
    fsdp.shard_memory().check_written();  // else weights may be zeros that were read from the disk
    if (writer) writer->finish();
  });
  return writer ? writer->text() : "";
}

}  // namespace meshtrain
