#include "runtime/program/hf/export_model.h"

#include <algorithm>
#include <map>
#include <optional>

#include "mesh/agree.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/export.h"

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

/// Gathers the factors of all adapters, in the dtype of their shards. Every rank that holds the parameters of `groups`
/// must call it.
std::map<std::string, at::Tensor> gather_adapters(const std::vector<ParameterGroup>& groups) {
  std::map<std::string, at::Tensor> adapters;
  for (const ParameterGroup& group : groups) {
    const Group parts = group.replicas.parts().with_purpose("export");
    group.fsdp->visit_shards([&](const Parameter& parameter) {
      if (is_adapter(parameter.name)) adapters[parameter.name] = gather(parameter, parts).to(at::kCPU, false, true);
    });
  }
  return adapters;
}

/// Returns the lowest rank of `world` that holds the parameters of `group`.
int first_holder(const ParameterGroup& group, const Group& world) {
  const auto found = std::ranges::find(world.ranks(), group.replicas.world().ranks().front());
  return static_cast<int>(found - world.ranks().begin());
}

/// The key by which tensors are ordered for writing.
struct OrderKey {
  int64_t holder;    ///< the rank that has it
  int64_t position;  ///< in the order in which the holder gathers its tensors
  size_t number;     ///< the parameter's in the index

  auto operator<=>(const OrderKey&) const = default;
};

/// Returns the keys of all parameters in order, the same on every rank of `world`. Collective.
std::vector<OrderKey> writing_order(const ParameterIndex& index, const std::vector<ParameterGroup>& groups,
                                    const Group& world) {
  const auto count = static_cast<int64_t>(index.size());
  at::Tensor codes = at::zeros({count}, at::kLong);  // larger for lower ranks, then for earlier positions
  int64_t position = 0;
  for (const ParameterGroup& group : groups) {
    if (first_holder(group, world) != world.rank()) continue;
    for (const Unit& unit : group.fsdp->units()) {
      for (const Parameter* parameter : unit.parameters()) {
        codes.mutable_data_ptr<int64_t>()[index.number(parameter->name)] =
            (world.size() - world.rank()) * (count + 1) + count - position++;
      }
    }
  }
  world.all_reduce(codes, Reduce::Max).wait();
  std::vector<OrderKey> order;
  for (size_t number = 0; number < index.size(); ++number) {
    const int64_t code = codes.const_data_ptr<int64_t>()[number];
    if (code == 0) throw AgreedError("no rank holds " + index[number].name + ", which the model declares");
    order.push_back({world.size() - code / (count + 1), count - code % (count + 1), number});
  }
  std::ranges::sort(order);
  return order;
}

/// Sends rank `holder`'s `full` to rank 0. Returns the tensor in `shape` on rank 0, and this rank's `full` on the
/// others. Every rank of `world` must call it, with a `full` of the same dtype and device.
at::Tensor hand_over(const at::Tensor& full, const std::vector<int64_t>& shape, int64_t holder, const Group& world) {
  std::vector<int64_t> sent(static_cast<size_t>(world.size()), 0), received = sent;
  if (world.rank() == holder) sent[0] = full.numel();
  if (world.rank() == 0) received[static_cast<size_t>(holder)] = c10::multiply_integers(shape);
  at::Tensor arrived = at::empty({received[static_cast<size_t>(holder)]}, full.options());
  world.all_to_all(arrived, received, full.reshape(-1).narrow(0, 0, sent[0]), sent).wait();
  return world.rank() == 0 ? arrived.view(shape) : full;
}

/// Brings the factors that other ranks hold to rank 0. Every rank of `world` must call it.
void collect_adapters(std::map<std::string, at::Tensor>& adapters, const ParameterIndex& index,
                      const std::vector<OrderKey>& order, at::Device device, const Group& world) {
  const int64_t own_dtype = adapters.empty() ? -1 : static_cast<int64_t>(adapters.begin()->second.scalar_type());
  at::Tensor dtype = at::full({1}, own_dtype, at::kLong);  // the same wherever there is a factor
  world.all_reduce(dtype, Reduce::Max).wait();
  const auto options = at::TensorOptions(device).dtype(static_cast<at::ScalarType>(dtype.item<int64_t>()));
  for (const OrderKey& key : order) {
    const ParameterIndex::Entry& entry = index[key.number];
    if (!is_adapter(entry.name) || key.holder == 0) continue;
    const bool is_here = world.rank() == key.holder;
    const at::Tensor own = is_here ? adapters.at(entry.name).to(device) : at::empty({0}, options);
    const at::Tensor factor = hand_over(own, entry.global_shape, key.holder, world);
    if (world.rank() == 0) adapters[entry.name] = factor.cpu();
  }
}

}  // namespace

std::string export_model(const ParameterIndex& index, const std::vector<ParameterGroup>& groups,
                         const ModelShape& shape, const CarriedOver& carried, const DeviceMesh& mesh,
                         const std::filesystem::path& folder) {
  std::optional<FolderWriter> writer;
  agree(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    std::vector<TensorEntry> entries;
    for (const ParameterIndex::Entry& entry : index.entries()) {
      if (!is_adapter(entry.name)) entries.push_back({entry.name, entry.dtype, entry.global_shape});
    }
    writer.emplace(folder, shape, carried, entries);
  });
  const Group world = mesh.world().with_purpose("export");
  std::map<std::string, at::Tensor> adapters;
  const at::Tensor nothing = at::empty({0}, groups.at(0).fsdp->units().at(0).parameters().at(0)->tensor.options());
  const std::vector<OrderKey> order = writing_order(index, groups, world);
  if (shape.adapter) {
    adapters = gather_adapters(groups);
    collect_adapters(adapters, index, order, nothing.device(), world);
  }
  auto next = order.begin();
  const auto write = [&](at::Tensor full) {  // ignored on ranks that do not hold it
    const ParameterIndex::Entry& entry = index[next->number];
    if (next->holder != 0) full = hand_over(full.to(entry.dtype), entry.global_shape, next->holder, world);
    agree(mesh.world(), [&] {
      if (!writer || is_adapter(entry.name)) return;
      const AdapterNames factors = adapter_names(entry.name);
      if (adapters.contains(factors.a)) {
        full = merged(shape.adapter, entry.name, full.to(at::kCPU), adapters.at(factors.a), adapters.at(factors.b));
      }
      writer->write(entry.name, full.contiguous());
    });
    ++next;
  };
  while (next != order.end()) {
    const int64_t holder = next->holder;
    const auto is_next = [&] { return next != order.end() && next->holder == holder; };
    for (const ParameterGroup& group : groups) {
      if (first_holder(group, world) != holder) continue;
      const Group parts = group.replicas.parts().with_purpose("export");
      group.fsdp->visit_values([&](const Unit& unit) {
        for (const Parameter* parameter : unit.parameters()) {
          const at::Tensor full = gather(*parameter, parts);
          if (is_next() && index[next->number].name == parameter->name)
            write(full);  // else a lower rank has written it
        }
      });
    }
    while (is_next()) write(nothing);
  }
  agree(mesh.world(), [&] {
    for (const ParameterGroup& group : groups) {
      group.fsdp->shard_memory().check_written();  // else weights may be zeros that were read from the disk
    }
    if (writer) writer->finish();
  });
  return writer ? writer->text() : "";
}

}  // namespace meshtrain
