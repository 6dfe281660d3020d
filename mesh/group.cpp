#include "mesh/group.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "mesh/backends/local.h"
#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

/// The overlap of two tensors in memory, by their storages, so that it works on any device.
enum class Overlap { None, FullPart, Partial };

/// Compares `part` with the slices of part.numel() elements of `full`. Sets `index` to the number of the slice that it
/// is.
Overlap overlap(const at::Tensor& full, const at::Tensor& part, int64_t* index = nullptr) {
  if (!full.is_alias_of(part) || full.numel() == 0 || part.numel() == 0) return Overlap::None;
  const int64_t begin = part.storage_offset() - full.storage_offset();
  if (begin >= full.numel() || begin + part.numel() <= 0) return Overlap::None;
  if (begin < 0 || begin % part.numel() != 0) return Overlap::Partial;
  if (index) *index = begin / part.numel();
  return Overlap::FullPart;
}

/// Returns what is wrong with a full tensor of [n * size, ...] and a part of [n, ...]; empty when they fit.
std::string misfit(const char* full_name, const at::Tensor& full, const char* part_name, const at::Tensor& part,
                   int size) {
  const bool fits = part.dim() > 0 && full.dim() == part.dim() && full.size(0) == part.size(0) * size &&
                    full.sizes().slice(1) == part.sizes().slice(1);
  if (fits) return "";
  return full_name + (" must be " + std::to_string(size)) + " times " + part_name + " along dim 0";
}

/// Returns what is wrong with a division of `full` into `rows`, one number for each rank; empty when it fits.
std::string misfit(const char* name, const at::Tensor& full, const std::vector<int64_t>& rows, int size) {
  const bool counts = static_cast<int>(rows.size()) == size &&
                      std::all_of(rows.begin(), rows.end(), [](int64_t count) { return count >= 0; });
  const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  if (counts && full.dim() > 0 && full.size(0) == sum) return "";
  return name + (" must have as many rows as its " + std::to_string(size)) + " parts together, " + std::to_string(sum);
}

bool in_group(int rank, int size) {
  return rank >= 0 && rank < size;
}

}  // namespace

Group::Group() {
  static const auto alone = std::make_shared<const Identity>(Identity{"local", {0}, "rank 0"});
  backend_ = local_backend();
  identity_ = alone;
}

Group::Group(std::shared_ptr<Backend> backend, std::string name, std::vector<int64_t> ranks, std::string coordinate)
    : backend_(std::move(backend)),
      identity_(std::make_shared<const Identity>(Identity{std::move(name), std::move(ranks), std::move(coordinate)})) {
  if (static_cast<int>(identity_->ranks.size()) != backend_->size()) {
    throw RankError<std::invalid_argument>(identity_->coordinate + ": group " + identity_->name + " lists " +
                                           counted(identity_->ranks.size(), "rank") + ", its backend has " +
                                           std::to_string(backend_->size()));
  }
}

int Group::rank() const {
  return backend_->rank();
}
int Group::size() const {
  return backend_->size();
}
const std::string& Group::name() const {
  return identity_->name;
}
const std::vector<int64_t>& Group::ranks() const {
  return identity_->ranks;
}
const std::string& Group::coordinate_text() const {
  return identity_->coordinate;
}

Group Group::with_purpose(std::string purpose) const {
  Group group = *this;
  group.purpose_ = std::move(purpose);
  return group;
}

Work Group::all_reduce(at::Tensor& tensor, Reduce op) const {
  return issue({.kind = Kind::AllReduce, .output = tensor, .input = {}, .reduce = op});
}

Work Group::all_gather(at::Tensor& output, const at::Tensor& shard) const {
  return issue({.kind = Kind::AllGather, .output = output, .input = shard});
}

Work Group::reduce_scatter(at::Tensor& shard, const at::Tensor& input, Reduce op) const {
  return issue({.kind = Kind::ReduceScatter, .output = shard, .input = input, .reduce = op});
}

Work Group::all_to_all(at::Tensor& output, const at::Tensor& input) const {
  return issue({.kind = Kind::AllToAll, .output = output, .input = input});
}

Work Group::all_to_all(at::Tensor& output, std::vector<int64_t> received, const at::Tensor& input,
                       std::vector<int64_t> sent) const {
  return issue({.kind = Kind::AllToAll,
                .output = output,
                .input = input,
                .received = std::move(received),
                .sent = std::move(sent)});
}

Work Group::exchange(at::Tensor& received, int from, const at::Tensor& sent, int to) const {
  return issue({.kind = Kind::Exchange, .output = received, .input = sent, .from = from, .to = to});
}

Work Group::broadcast(at::Tensor& tensor, int root) const {
  return issue({.kind = Kind::Broadcast, .output = tensor, .input = {}, .from = root});
}

Work Group::message(at::Tensor& tensor, int from, int to) const {
  return issue({.kind = Kind::Message, .output = tensor, .input = {}, .from = from, .to = to});
}

void Group::barrier() const {
  issue({.kind = Kind::Barrier, .output = {}, .input = {}}).wait();
}

Group Group::split(const std::vector<int>& members, GroupTraits traits) const {
  std::vector<int64_t> ranks;
  std::vector<bool> seen(static_cast<size_t>(size()), false);
  for (const int member : members) {
    const bool twice = in_group(member, size()) && seen[static_cast<size_t>(member)];
    if (!in_group(member, size()) || twice) {
      throw RankError<std::invalid_argument>(
          coordinate_text() + ": split of group " + name() + " (" + std::to_string(size()) + " ranks) into " +
          traits.name + ": member " + std::to_string(member) + (twice ? " is listed twice" : " is not in the group"));
    }
    seen[static_cast<size_t>(member)] = true;
    ranks.push_back(this->ranks()[member]);
  }
  if (std::find(members.begin(), members.end(), rank()) == members.end()) {
    throw RankError<std::invalid_argument>(coordinate_text() + ": split of group " + name() + " into " + traits.name +
                                           ": group rank " + std::to_string(rank()) + " must list itself");
  }
  std::shared_ptr<Backend> part = backend_->split(members, traits);
  Group group(std::move(part), std::move(traits.name), std::move(ranks), coordinate_text());
  group.purpose_ = purpose_;
  return group;
}

Group Group::second_queue() const {
  std::shared_ptr<Backend> queue = backend_->second_queue();
  if (!queue) return *this;
  Group group = *this;
  group.backend_ = std::move(queue);
  return group;
}

int Group::host_ranks() const {
  return backend_->host_ranks();
}

void Group::check() const {
  backend_->check();
}

at::Tensor Group::window(int64_t numel, const at::TensorOptions& options, Placement placement) const {
  if (numel < 0) {
    throw RankError<std::invalid_argument>(coordinate_text() + ": group " + name() + " cannot allocate " +
                                           std::to_string(numel) + " elements");
  }
  return backend_->window(numel, options, placement);
}

GroupMemory Group::allocate(int64_t numel, const at::TensorOptions& options, Placement placement) const {
  const at::Tensor shared = window(numel, options, placement);
  if (shared.defined()) return {shared, placement};
  return {at::zeros({numel}, options), size() == 1 ? placement : Placement::Private};
}

std::string Group::problem(const Collective& collective) const {
  const at::Tensor& output = collective.output;
  const at::Tensor& input = collective.input;
  const bool two_tensors =
      collective.kind != Kind::AllReduce && collective.kind != Kind::Broadcast && collective.kind != Kind::Message;

  if (!output.defined() || (two_tensors && !input.defined())) return "a tensor is undefined";
  if (!output.is_contiguous() || (two_tensors && !input.is_contiguous())) return "tensors must be contiguous";
  if (two_tensors && output.scalar_type() != input.scalar_type()) return "tensors must have one dtype";
  if (two_tensors && output.device() != input.device()) return "tensors must be on one device";

  int64_t part = 0;
  std::string misfits;
  switch (collective.kind) {
    case Kind::AllReduce:
    case Kind::Barrier:
      return "";
    case Kind::Broadcast:
      return in_group(collective.from, size()) ? ""
                                               : "root " + std::to_string(collective.from) + " is not in the group";
    case Kind::AllGather:
      misfits = misfit("output", output, "the shard", input, size());
      if (!misfits.empty()) return misfits;
      switch (overlap(output, input, &part)) {
        case Overlap::None:
          return "";
        case Overlap::FullPart:
          return part == rank() ? "" : "a shard inside the output must be this rank's own part of it";
        case Overlap::Partial:
          return "output and shard overlap";
      }
      return "";
    case Kind::ReduceScatter:
      misfits = misfit("input", input, "the shard", output, size());
      if (!misfits.empty()) return misfits;
      return overlap(input, output) == Overlap::Partial ? "a shard inside the input must be exactly one of its parts"
                                                        : "";
    case Kind::AllToAll:
      if (!collective.sent.empty() || !collective.received.empty()) {
        misfits = misfit("output", output, collective.received, size());
        if (misfits.empty()) misfits = misfit("input", input, collective.sent, size());
        if (!misfits.empty()) return misfits;
        if (output.sizes().slice(1) != input.sizes().slice(1)) return "output and input must have rows of one shape";
        if (collective.received[rank()] != collective.sent[rank()]) return "this rank's own part has two sizes";
        return overlap(output, input) == Overlap::None ? "" : "output and input overlap";
      }
      if (output.sizes() != input.sizes()) return "output and input must have the same shape";
      if (input.dim() == 0 || input.size(0) % size() != 0) return "dim 0 must be a multiple of the group's size";
      return overlap(output, input) == Overlap::None ? "" : "output and input overlap";
    case Kind::Exchange:
      if (!in_group(collective.from, size()) || !in_group(collective.to, size())) {
        return "from " + std::to_string(collective.from) + " and to " + std::to_string(collective.to) +
               " must be in the group";
      }
      if ((collective.from == rank()) != (collective.to == rank()))
        return "from " + std::to_string(collective.from) + " and to " + std::to_string(collective.to) +
               " must both be this rank, or both others";
      if (output.sizes() != input.sizes()) return "output and input must have the same shape";
      return overlap(output, input) == Overlap::None ? "" : "output and input overlap";
    case Kind::Message:
      if (size() == 2 && in_group(collective.from, 2) && collective.to == 1 - collective.from) return "";
      return "a message goes from one rank of a group of two to the other, not from " +
             std::to_string(collective.from) + " to " + std::to_string(collective.to);
  }
  return "";
}

Work Group::issue(Collective collective) const {
  collective.purpose = purpose_;
  collective.group = identity_->name;
  collective.coordinate = identity_->coordinate;
  if (collective.kind != Kind::Barrier) {
    const std::string found = problem(collective);
    if (!found.empty()) refuse(collective, found);
  }
  return backend_->issue(collective);
}

void Group::refuse(const Collective& collective, const std::string& problem) const {
  throw RankError<std::invalid_argument>(describe(collective, size()) + ": " + problem);
}

}  // namespace meshtrain
