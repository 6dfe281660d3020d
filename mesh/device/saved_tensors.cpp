#include "mesh/device/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <utility>

namespace meshtrain {
namespace {

thread_local const PackSaved* current = nullptr;

class PackedTensor final : public torch::autograd::SavedVariableHooks {
 public:
  explicit PackedTensor(PackSaved pack) : pack_(std::move(pack)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    unpack_ = pack_(tensor.variable_data());
    pack_ = nullptr;
  }
  at::Tensor call_unpack_hook() override { return unpack_(); }

 private:
  PackSaved pack_;
  UnpackSaved unpack_;
};

/// LibTorch's engine. Autograd asks its engine for hooks when it saves a tensor, and the engine of C++ has none.
class Engine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& own() {
    static Engine engine;
    return engine;
  }
  ~Engine() override { stop(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current == nullptr ? nullptr : std::make_unique<PackedTensor>(*current);
  }

 private:
  Engine() = default;
};

}  // namespace

SavedTensorsGuard::SavedTensorsGuard(const PackSaved& pack) : before_(std::exchange(current, &pack)) {
  [[maybe_unused]] static const bool is_installed = [] {
    torch::autograd::set_default_engine_stub(&Engine::own);
    return true;
  }();
}

SavedTensorsGuard::~SavedTensorsGuard() {
  current = before_;
}

}  // namespace meshtrain
