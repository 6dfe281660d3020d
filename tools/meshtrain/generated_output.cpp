#include "tools/meshtrain/generated_output.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace meshtrain {
namespace {

using nlohmann::json;

void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void tell_speed(size_t prompt, const Generated& generated) {
  const auto rate = [](size_t tokens, double seconds) { return static_cast<double>(tokens) / std::max(seconds, 1e-9); };
  const size_t others = generated.tokens.size() - 1;  // the first one comes with the prompt
  std::fprintf(stderr, "prompt of %zu in %.3f s (%.1f tok/s)", prompt, generated.prefill_seconds,
               rate(prompt, generated.prefill_seconds));
  if (others > 0) {
    std::fprintf(stderr, ", then %zu more in %.3f s (%.1f tok/s)", others, generated.decode_seconds,
                 rate(others, generated.decode_seconds));
  }
  if (generated.stopped) {
    std::fprintf(stderr, ", ended by token %lld", static_cast<long long>(generated.tokens.back()));
  }
  std::fputc('\n', stderr);
}

}  // namespace

GeneratedOutput::GeneratedOutput(std::vector<Prompt> prompts, std::shared_ptr<const Tokenizer> tokenizer,
                                 bool json_lines)
    : prompts_(std::move(prompts)), tokenizer_(std::move(tokenizer)), json_lines_(json_lines) {}

void GeneratedOutput::begin(size_t index, const std::vector<int64_t>& prompt) {
  text_.clear();
  stream_.reset();
  if (tokenizer_) stream_.emplace(*tokenizer_, prompt);
  first_ = true;
  if (json_lines_ || prompts_.size() == 1) return;
  show((index == 0 ? "==> prompt " : "\n==> prompt ") + std::to_string(index + 1) + " <==\n");
}

void GeneratedOutput::add(int64_t token) {
  if (stream_) {
    say(stream_->add(token));
  } else {
    say((first_ ? "" : " ") + std::to_string(token));
  }
  first_ = false;
}

void GeneratedOutput::end(size_t index, const std::vector<int64_t>& prompt, const Generated& generated) {
  if (stream_) say(stream_->finish());
  if (json_lines_) {
    json line;
    if (prompts_[index].is_text) line["prompt"] = prompts_[index].text;
    line["prompt_tokens"] = prompt;
    line["tokens"] = generated.tokens;
    if (stream_) line["text"] = text_;
    line["ended"] = generated.stopped ? "eos" : "length";
    show(line.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  show("\n");
  tell_speed(prompt.size(), generated);
}

void GeneratedOutput::say(const std::string& text) {
  if (json_lines_) {
    text_ += text;
  } else {
    show(text);
  }
}

}  // namespace meshtrain
