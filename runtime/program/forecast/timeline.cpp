#include "runtime/program/forecast/timeline.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "context_parallel/meta_window.h"
#include "mesh/forwarding.h"
#include "mesh/host_map.h"
#include "mesh/traffic.h"

namespace meshtrain {

struct TimelineRecorder::Record final : CopyWatch {
  bool keeps_signatures = false;
  TimelinePart part = TimelinePart::Gradients;
  Timeline timeline;
  size_t num_collectives = 0;
  int64_t first_copy = 0, next_copy = 0;  // numbers count on over restart()
  std::optional<int64_t> before_collectives;
  int num_queues = 0;
  int64_t generation = 0;  // of restart(): waits for collectives before it do not count
  std::map<std::string, int> signatures;
  std::map<const c10::StorageImpl*, Placement> windows;
  std::vector<bool> has_parts;  // for each operator that runs: whether it has called one that counts

  int64_t started(CopyDirection direction, int64_t bytes, bool disk, std::optional<int64_t> after) override {
    timeline.events.emplace_back(CopyCall{direction, static_cast<double>(bytes), disk, since_restart(after)});
    return next_copy++;
  }
  void awaited(int64_t copy) override {
    if (const auto number = since_restart(copy)) timeline.events.emplace_back(CopyWait{*number});
  }
  void set_before_collectives(std::optional<int64_t> copy) override { before_collectives = copy; }

  /// Returns the number of a copy since restart(); none for earlier ones.
  std::optional<size_t> since_restart(std::optional<int64_t> copy) const {
    return copy && *copy >= first_copy ? std::optional(static_cast<size_t>(*copy - first_copy)) : std::nullopt;
  }
};

namespace {

using Record = TimelineRecorder::Record;

thread_local Record* record_of_thread = nullptr;

/// Returns true for operators that compute nothing: views, allocations, and reads of numbers that do not exist.
bool is_free(const c10::OperatorName& name, const c10::FunctionSchema& schema) {
  static const std::set<std::string, std::less<>> free = {"aten::empty",
                                                          "aten::empty_like",
                                                          "aten::empty_strided",
                                                          "aten::new_empty",
                                                          "aten::new_empty_strided",
                                                          "aten::resize_",
                                                          "aten::set_",
                                                          "aten::detach_",
                                                          "aten::result_type",
                                                          "aten::item",
                                                          "aten::is_nonzero",
                                                          "aten::as_strided",
                                                          "aten::reshape",
                                                          "aten::_reshape_alias",
                                                          "aten::lift_fresh",
                                                          "aten::_local_scalar_dense"};
  if (free.contains(name.name)) return true;
  const auto is_view = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
  };
  return std::ranges::any_of(schema.returns(), is_view);
}

/// Returns true when an operator reads `argument` and writes it.
bool changes_argument(const std::string& name, const c10::Argument& argument) {
  static const std::set<std::string, std::less<>> overwrites = {"aten::copy_", "aten::fill_", "aten::zero_"};
  const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  return is_written && !argument.is_out() && !overwrites.contains(name);
}

/// Calls `visit` with each tensor of `value`.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

/// The bytes of tensors, each once.
class Bytes {
 public:
  void add(const at::Tensor& tensor) {
    if (std::ranges::find(seen_, tensor.unsafeGetTensorImpl()) != seen_.end()) return;
    seen_.push_back(tensor.unsafeGetTensorImpl());
    add_again(tensor);
  }
  void add_again(const at::Tensor& tensor) { bytes_ += tensor.numel() * tensor.element_size(); }
  double total() const { return static_cast<double>(bytes_); }

 private:
  std::vector<const c10::TensorImpl*> seen_;  // few
  int64_t bytes_ = 0;
};

std::string text_of(const at::Tensor& tensor) {
  std::string text = c10::toString(tensor.scalar_type());
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    text += (dim == 0 ? " " : "x") + std::to_string(tensor.size(dim));
  }
  if (!tensor.is_contiguous()) {
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      text += (dim == 0 ? " by " : ",") + std::to_string(tensor.stride(dim));
    }
  }
  return text;
}

/// Returns an operator with its shapes, strides and dtypes: "aten::mm(Float 4x8, Float 8x2 by 1,8)".
std::string signature_of(const c10::OperatorName& name, const std::vector<at::Tensor>& tensors,
                         const std::string& more) {
  std::string text = name.name;
  if (!name.overload_name.empty()) text += "." + name.overload_name;
  for (size_t i = 0; i < tensors.size(); ++i) text += (i == 0 ? "(" : ", ") + text_of(tensors[i]);
  return text + more + ")";
}

/// Fills in `call` for the product of a [.., m, k] and b [.., k, n].
void describe_product(OperatorCall& call, const at::Tensor& a, const at::Tensor& b) {
  const bool batched = a.dim() == 3;
  call.kind = OperatorCall::Kind::Product;
  call.product = {batched ? a.size(0) : 1, a.size(-2), b.size(-1), a.size(-1)};
  call.dtype = a.scalar_type();
  call.flops = 2.0;
  for (const int64_t size : call.product) call.flops *= static_cast<double>(size);
}

/// Returns the share of the pairs of `n` queries and keys that count, by the formula of flops.h.
double share_of_pairs(int64_t n, bool causal, int64_t window) {
  if (!causal) return 1;
  if (window == 0 || window >= n) return 0.5;
  const double share = static_cast<double>(window) / static_cast<double>(n);
  return share - share * share / 2;
}

/// Fills in `call` for flash attention of q [B, H, n, D] and k [B, K, m, D].
void describe_attention(OperatorCall& call, const at::Tensor& q, const at::Tensor& k, bool causal, bool backward) {
  call.kind = OperatorCall::Kind::Attention;
  call.dtype = q.scalar_type();
  call.product = {q.size(0) * q.size(1), q.size(2), k.size(2), q.size(3)};
  call.is_backward = backward;
  const double products = backward ? 5 : 2;
  call.flops = products * 2 * share_of_pairs(q.size(2), causal, MetaWindow::current());
  for (const int64_t size : call.product) call.flops *= static_cast<double>(size);
}

/// Finds out what an operator does from its name and inputs.
void describe(OperatorCall& call, const std::string& name, c10::ArrayRef<const c10::IValue> inputs) {
  const auto tensor = [&](size_t i) -> const at::Tensor& { return inputs[i].toTensor(); };
  if (name == "aten::mm" || name == "aten::bmm") {
    describe_product(call, tensor(0), tensor(1));
  } else if (name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm" || name == "aten::baddbmm_") {
    describe_product(call, tensor(1), tensor(2));
  } else if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    describe_attention(call, tensor(0), tensor(1), inputs[4].toBool(), false);
  } else if (name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") {
    describe_attention(call, tensor(1), tensor(2), inputs[7].toBool(), true);
  } else if (name == "meshtrain::host_attention") {
    describe_attention(call, tensor(0), tensor(1), inputs[3].toBool(), false);
  } else if (name == "meshtrain::host_attention_backward") {
    describe_attention(call, tensor(1), tensor(2), inputs[6].toBool(), true);
  }
}

/// Returns a tensor of the Meta device like `tensor` that no memory is counted for.
at::Tensor without_memory(const at::Tensor& tensor) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kMeta), nullptr, false);
  at::Tensor copy = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return copy;
}

/// The properties of an operator that do not depend on its inputs.
struct OperatorTraits {
  c10::OperatorName name{"", ""};
  bool is_free = false;
  std::vector<bool> changes;  // for each argument: whether it is read and written
};

/// Returns the traits of the operator that `function` calls; null when it is no operator.
const OperatorTraits* traits_of(const at::RecordFunction& function) {
  // The name is a part of the operator's schema, which lives as long as the program and is expensive to copy.
  static thread_local std::unordered_map<const char*, OperatorTraits> known;
  const auto found = known.find(function.name());
  if (found != known.end()) return &found->second;
  const auto name = function.operator_name();
  const auto schema = function.operator_schema();
  if (!name || !schema) return nullptr;
  OperatorTraits& traits = known[function.name()];
  traits = OperatorTraits{*name, is_free(*name, *schema), {}};
  for (const c10::Argument& argument : schema->arguments()) {
    traits.changes.push_back(changes_argument(name->name, argument));
  }
  return &traits;
}

struct RunningOperator final : at::ObserverContext {
  OperatorCall call;
  Bytes bytes;
  OperatorSignature signature;
};

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  Record* const record = record_of_thread;
  if (record == nullptr) return nullptr;
  const OperatorTraits* const traits = traits_of(function);
  if (traits == nullptr || traits->is_free) return nullptr;
  auto running = std::make_unique<RunningOperator>();
  OperatorCall& call = running->call;
  bool on_meta = false;
  int64_t largest = -1;
  std::vector<at::Tensor> tensors;
  std::string numbers;
  for (size_t i = 0; i < function.inputs().size(); ++i) {
    const c10::IValue& input = function.inputs()[i];
    const bool changes = i < traits->changes.size() && traits->changes[i];
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      on_meta = on_meta || tensor.is_meta();
      running->bytes.add(tensor);
      if (changes) running->bytes.add_again(tensor);
      if (tensor.numel() > largest) largest = tensor.numel(), call.dtype = tensor.scalar_type();
      if (record->keeps_signatures) tensors.push_back(tensor);
    });
    if (!record->keeps_signatures) continue;
    if (input.isBool()) numbers += input.toBool() ? ", true" : ", false";
    if (input.isInt()) numbers += ", " + std::to_string(input.toInt());
    if (input.isIntList()) {
      for (const int64_t number : input.toIntVector()) numbers += " " + std::to_string(number);
    }
  }
  if (!on_meta) return nullptr;  // a computation on the host, or one that makes tensors by operators that are counted
  call.part = record->part;
  describe(call, traits->name.name, function.inputs());
  if (record->keeps_signatures) {
    running->signature = {signature_of(traits->name, tensors, numbers), traits->name, {}};
    if (!record->signatures.contains(running->signature.text)) {
      running->signature.inputs = with_tensors(function.inputs(), without_memory);
    }
  }
  record->has_parts.push_back(false);
  return running;
}

void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  Record* const record = record_of_thread;
  if (record == nullptr || context == nullptr) return;
  auto& running = static_cast<RunningOperator&>(*context);
  const bool has_parts = record->has_parts.back();
  record->has_parts.pop_back();
  if (!record->has_parts.empty()) record->has_parts.back() = true;
  if (has_parts) return;
  for (const c10::IValue& output : function.outputs()) {
    for_each_tensor(output, [&](const at::Tensor& tensor) { running.bytes.add(tensor); });
  }
  running.call.bytes = running.bytes.total();
  if (!running.signature.text.empty()) {
    const int next = static_cast<int>(record->timeline.signatures.size());
    const auto [found, is_new] = record->signatures.emplace(running.signature.text, next);
    if (is_new) record->timeline.signatures.push_back(std::move(running.signature));
    running.call.signature = found->second;
  }
  record->timeline.events.emplace_back(running.call);
}

/// Passes a wait on, and records it.
class RecordedWork final : public Work::State {
 public:
  RecordedWork(Work inner, std::weak_ptr<Record> record, int64_t generation, size_t collective)
      : inner_(std::move(inner)), record_(std::move(record)), generation_(generation), collective_(collective) {}
  void wait() override {
    const std::shared_ptr<Record> record = record_.lock();
    if (record && record->generation == generation_) {
      record->timeline.events.emplace_back(CollectiveWait{collective_});
    }
    inner_.wait();
  }

 private:
  Work inner_;
  std::weak_ptr<Record> record_;
  int64_t generation_;
  size_t collective_;
};

class RecordedBackend final : public ForwardingBackend {
 public:
  RecordedBackend(std::shared_ptr<Backend> inner, std::weak_ptr<Record> record, int queue)
      : ForwardingBackend(std::move(inner)), record_(std::move(record)), queue_(queue) {
    num_hosts_ = HostMap(hosts()).num_hosts();
  }

  Work issue(const Collective& collective) override {
    Work work = ForwardingBackend::issue(collective);
    const std::shared_ptr<Record> record = record_.lock();
    if (!record || size() == 1) return work;
    const Traffic traffic = traffic_of(rank(), size(), collective);
    Placement memory = Placement::Private;
    for (const at::Tensor& tensor : {collective.output, collective.input}) {
      if (!tensor.defined()) continue;
      const auto window = record->windows.find(tensor.storage().unsafeGetStorageImpl());
      if (window != record->windows.end()) memory = window->second;
    }
    record->timeline.events.emplace_back(
        CollectiveCall{collective.kind, record->part, std::string(collective.group), queue_, size(), num_hosts_,
                       static_cast<double>(traffic.buffer_bytes), static_cast<double>(traffic.sent_bytes), memory,
                       collective.output.defined() ? collective.output.scalar_type() : at::kFloat,
                       record->since_restart(record->before_collectives)});
    return Work(
        std::make_shared<RecordedWork>(std::move(work), record_, record->generation, record->num_collectives++));
  }

  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement) override {
    at::Tensor tensor = ForwardingBackend::window(numel, options, placement);
    if (const std::shared_ptr<Record> record = record_.lock(); record && tensor.defined()) {
      record->windows.insert_or_assign(tensor.storage().unsafeGetStorageImpl(), placement);
    }
    return tensor;
  }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override {
    const std::shared_ptr<Record> record = record_.lock();
    return std::make_shared<RecordedBackend>(std::move(part), record_, record ? ++record->num_queues : 0);
  }

 private:
  std::weak_ptr<Record> record_;
  int queue_;
  int num_hosts_ = 1;
};

}  // namespace

std::vector<c10::IValue> with_tensors(c10::ArrayRef<const c10::IValue> inputs,
                                      const std::function<at::Tensor(const at::Tensor&)>& change) {
  std::vector<c10::IValue> changed;
  for (const c10::IValue& input : inputs) {
    if (input.isTensor() && input.toTensor().defined()) {
      changed.emplace_back(change(input.toTensor()));
    } else if (input.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : input.toTensorVector()) tensors.push_back(change(tensor));
      changed.emplace_back(std::move(tensors));
    } else if (input.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor>& tensor : input.toOptionalTensorVector()) {
        tensors.push_back(tensor && tensor->defined() ? std::optional(change(*tensor)) : std::nullopt);
      }
      changed.emplace_back(std::move(tensors));
    } else {
      changed.push_back(input);
    }
  }
  return changed;
}

TimelineRecorder::TimelineRecorder(bool signatures)
    : record_(std::make_shared<Record>()),
      callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_operator, &end_operator)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {
  if (record_of_thread != nullptr) throw std::logic_error("TimelineRecorder: this thread already records");
  record_->keeps_signatures = signatures;
  record_of_thread = record_.get();
  CopyWatch::set_current(record_.get());
}

TimelineRecorder::~TimelineRecorder() {
  at::removeCallback(callback_);
  CopyWatch::set_current(nullptr);
  record_of_thread = nullptr;
}

std::shared_ptr<Backend> TimelineRecorder::watch(std::shared_ptr<Backend> inner) {
  return std::make_shared<RecordedBackend>(std::move(inner), record_, record_->num_queues);
}

void TimelineRecorder::set(TimelinePart part) {
  record_->part = part;
}

void TimelineRecorder::begin(const ActionBegin& action) {
  record_->timeline.events.emplace_back(action);
}

void TimelineRecorder::restart() {
  record_->timeline = {};
  record_->signatures.clear();
  record_->num_collectives = 0;
  record_->first_copy = record_->next_copy;
  ++record_->generation;
}

Timeline TimelineRecorder::take() {
  Timeline timeline = std::move(record_->timeline);
  restart();
  return timeline;
}

}  // namespace meshtrain
