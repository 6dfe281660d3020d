#include "mesh/instrumented.h"

#include "mesh/forwarding.h"

namespace meshtrain {
namespace {

class InstrumentedBackend final : public ForwardingBackend {
 public:
  InstrumentedBackend(std::shared_ptr<Backend> inner, std::shared_ptr<TrafficLedger> ledger)
      : ForwardingBackend(std::move(inner)), ledger_(std::move(ledger)) {}

  Work issue(const Collective& collective) override {
    ledger_->record(rank(), size(), collective);
    return inner()->issue(collective);
  }

  std::shared_ptr<Backend> uncounted() const { return inner(); }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override {
    return part->size() > 1 ? instrument(std::move(part), ledger_) : part;
  }

 private:
  std::shared_ptr<TrafficLedger> ledger_;
};

}  // namespace

std::shared_ptr<Backend> instrument(std::shared_ptr<Backend> inner, std::shared_ptr<TrafficLedger> ledger) {
  if (const auto* counted = dynamic_cast<const InstrumentedBackend*>(inner.get())) inner = counted->uncounted();
  return std::make_shared<InstrumentedBackend>(std::move(inner), std::move(ledger));
}

}  // namespace meshtrain
