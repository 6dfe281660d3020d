#include "mesh/instrumented.h"

namespace meshtrain {
namespace {

class InstrumentedBackend final : public Backend {
 public:
  InstrumentedBackend(std::shared_ptr<Backend> inner, std::string group, std::shared_ptr<TrafficLedger> ledger)
      : inner_(std::move(inner)), group_(std::move(group)), ledger_(std::move(ledger)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Work issue(const Collective& collective) override {
    ledger_->record(group_, inner_->rank(), inner_->size(), collective);
    return inner_->issue(collective);
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members) override { return inner_->split(members); }
  std::shared_ptr<Backend> second_queue() override { return inner_->second_queue(); }
  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement) override {
    return inner_->window(numel, options, placement);
  }
  int host_ranks() const override { return inner_->host_ranks(); }
  std::vector<int> hosts() const override { return inner_->hosts(); }
  void check() const override { inner_->check(); }

  const std::shared_ptr<TrafficLedger>& ledger() const { return ledger_; }

 private:
  std::shared_ptr<Backend> inner_;
  std::string group_;
  std::shared_ptr<TrafficLedger> ledger_;
};

}  // namespace

std::shared_ptr<Backend> instrument(std::shared_ptr<Backend> inner, std::string group,
                                    std::shared_ptr<TrafficLedger> ledger) {
  return std::make_shared<InstrumentedBackend>(std::move(inner), std::move(group), std::move(ledger));
}

std::shared_ptr<TrafficLedger> ledger_of(const Backend& backend) {
  const auto* instrumented = dynamic_cast<const InstrumentedBackend*>(&backend);
  return instrumented ? instrumented->ledger() : nullptr;
}

}  // namespace meshtrain
