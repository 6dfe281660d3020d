#include "runtime/program/published/software.h"

#include <algorithm>
#include <cctype>

namespace meshtrain {
namespace {

bool has_word(const std::string& text, const std::string& word) {
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return !std::ranges::search(text, word, same).empty();
}

/// Returns the number after "PR " in a source; 0 without one.
int pull_request_of(const std::string& source) {
  const size_t at = source.find("PR ");
  return at == std::string::npos ? 0 : std::atoi(source.c_str() + at + 3);
}

/// FSDP2, with PyTorch's own operators or torch.compile's: torchtitan, fms-fsdp, Automodel and others.
Software fsdp2(const PublishedRun& run) {
  Software software;
  software.name = "FSDP2";
  software.elementwise = run.compiled == "no" ? Software::Elementwise::Eager : Software::Elementwise::Compiled;
  software.selective = Software::Selective::EverySecondProduct;
  software.tensor_parallel = Software::TensorParallel::Awaited;
  software.copies_units = true;
  // torch's cross_entropy in fp32: logits are cast (6), their log-softmax made (8); backward: its gradient (12), cast
  // (6). Kept at the peak: logits in bf16 (2) and fp32 (4), log-probabilities (4), both gradients (8). Compiled, the
  // cast is part of what follows: a pass less each way, and no logits in fp32.
  software.logit_bytes_moved = run.compiled == "no" ? 32 : 20;
  software.logit_bytes_kept = run.compiled == "no" ? 18 : 14;
  software.allocates_gradients = true;  // zero_grad() frees them
  // FlashAttention-2 uses Ampere's instructions: 0.58 of what FlashAttention-3 and cuDNN reach on Hopper, forward and
  // backward (Shah et al. 2407.08608, figures 5 and 6).
  if (run.system.starts_with("h")) software.attention_share = 0.58;
  // torchao, tensorwise and dynamic: a pass for the largest number (2), one that casts (2 + 1).
  software.fp8_cast_bytes = 5;
  software.fp8_gathers = true;
  return software;
}

/// Megatron's kernels and Transformer Engine, which NeMo and NVIDIA's results use too.
Software megatron() {
  Software software;
  software.name = "Megatron";
  // overlap_param_gather and overlap_grad_reduce: all chunks of a rank at the step's begin, each chunk's gradients when
  // its last micro-batch has ended, while the ranks of a pipeline wait for each other or compute.
  software.hides_sharding = true;
  // Logits in bf16 and their gradient in place; some loss kernels need a second copy.
  software.logit_bytes_moved = 4;
  software.logit_bytes_kept = 4;
  software.fp8_cast_bytes = 4;  // Transformer Engine: one pass (2) that writes the number and its transpose (1 + 1)
  return software;
}

}  // namespace

Software software_of(const PublishedRun& run) {
  const auto from = [&](const char* word) { return has_word(run.source, word); };
  if (from("meshtrain")) return {};
  Software software = run.compiled == "fused" ? megatron() : fsdp2(run);
  if (from("torchtitan")) {
    software.name = "torchtitan";
    // Since #2357 all products are kept.
    if (pull_request_of(run.source) > 2357) software.selective = Software::Selective::Elementwise;
  } else if (from("simumax")) {
    software.name = "SimuMax";
    software.context = "ulysses";  // cp_comm_type=a2a, and no overlap of tp (docs/b200/b200_real_repro_guide.md)
    software.tensor_parallel = Software::TensorParallel::Awaited;
  } else if (from("automodel")) {
    software.name = "Automodel";
    software.elementwise = Software::Elementwise::Fused;  // Transformer Engine's norms and attention
    software.attention_share = 1;
    // nemo_automodel/components/moe: activation and weight under one torch.compile (quick_geglu_deepep); DeepEP's
    // combine sums a token's rows as they arrive. DeepEP's dispatch asks for each rank once whether a token goes there,
    // and forwards over NVLink what came to a host (csrc/kernels/intranode.cu, internode.cu).
    software.fuses_expert_rows = true;
    software.sends_rows_once = true;
  } else if (from("nemo") || from("nvidia") || from("mlperf")) {
    if (run.compiled == "fused") {
      software.name = "NeMo";
      software.tensor_parallel = Software::TensorParallel::Pipelined;  // ub_tp_comm_overlap
      software.reduce_dtype = "bf16";  // grad_reduce_in_fp32: false, of NVIDIA's performance recipes
    }
  } else if (from("fms")) {
    software.name = "fms-fsdp";
    software.reduce_dtype = "bf16";  // its policy bfSixteen
  } else if (from("nanotron")) {
    software.name = "nanotron";
    software.elementwise = Software::Elementwise::Fused;  // norms and rotation of flash-attn, in Triton
    software.copies_units = false;
    software.allocates_gradients = false;                                        // ACCUMULATE_GRAD_IN_FP32: a buffer
    software.tensor_parallel = Software::TensorParallel::BesideWeightGradients;  // tp_linear_async_communication
    if (run.sharding == "shard_optimizer") {
      // The model is not in DDP with ZeRO-1 and gradients in fp32 (trainer.py, make_ddp): one reduce-scatter follows
      // the backward, one gather the update. Both go by lists of each rank's piece of each parameter (distributed.py,
      // reduce_scatter_coalesced and all_gather_coalesced). A piece is cut and packed in Python in both (3 microseconds
      // each), and the gather copies it to its place by a kernel of its own (6 to launch), as PyTorch's overheads are.
      software.awaits_sharding = true;
      software.shard_piece_seconds = 12e-6;
    }
  } else if (from("hagemann") || from("aleph")) {
    software.name = "AA-scaling";
    software.reduce_dtype = "bf16";
    software.sequence_parallel = "off";  // section 4.5 tries it apart
  }
  software.fp8_products = run.precision == "fp8";
  if (!software.fp8_products) software.fp8_gathers = false;
  return software;
}

double seconds_of_pieces(const Software& software, const PublishedRun& run) {
  // Attention and MLP have two matrices each, q, k, v and gate, up in one, and a block has two norms.
  constexpr double kOfBlock = 6;
  const int64_t pp = run.gpus / (run.dp * run.tp * run.cp);
  const double parameters = kOfBlock * static_cast<double>(run.shape.num_hidden_layers) / static_cast<double>(pp);
  return run.dp == 1 ? 0 : software.shard_piece_seconds * static_cast<double>(run.dp) * parameters;
}

double translated_memory(const StepMemory& memory, const Software& software, const PublishedRun& run,
                         const ModelShape& shape, int64_t tokens) {
  const auto layers = static_cast<double>(shape.num_hidden_layers), count = static_cast<double>(tokens);
  const auto tp = static_cast<double>(run.tp), hidden = static_cast<double>(shape.hidden_size) / tp;
  const double q = static_cast<double>(shape.num_attention_heads * shape.head_dim) / tp;
  const double kv = static_cast<double>(shape.num_key_value_heads * shape.head_dim) / tp;
  const double f = static_cast<double>(shape.intermediate_size) / tp;
  auto total = static_cast<double>(memory.total());
  if (run.checkpointing == "selective" && software.selective == Software::Selective::EverySecondProduct) {
    // In bf16, for each token of a block: its input; q, v, gate and down; what attention gave; under tp also what the
    // two reduce-scatters gave.
    const double kept = 2 * (hidden + q + kv + f + hidden + q) + (run.tp > 1 ? 4 * hidden : 0);
    total += layers * count * kept - static_cast<double>(memory.activations);
  }
  const double logits = software.logit_bytes_kept * count * static_cast<double>(shape.vocab_size) / tp;
  const double before_gradients = total - (software.allocates_gradients ? static_cast<double>(memory.gradients) : 0);
  return std::max(total, before_gradients + logits);
}

}  // namespace meshtrain
