#include "tools/meshtrain/generated_output.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace meshtrain {
namespace {

using nlohmann::json;

/// Prints `text` with one write(). On a terminal, and mpirun gives each rank one, stdio writes line by line, and lines
/// of stderr come between.
void show(const std::string& text) {
  std::fflush(stdout);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return;  // nobody reads: no reason to end
    if (written > 0) done += static_cast<size_t>(written);
  }
}

void tell_speed(size_t prompt, const GenerationResult& generated) {
  const auto rate = [](size_t tokens, double seconds) { return static_cast<double>(tokens) / std::max(seconds, 1e-9); };
  const size_t others = generated.tokens.size() - 1;  // the first one comes with the prompt
  std::string line = fmt::format("prompt of {} in {:.3f} s ({:.1f} tok/s)", prompt, generated.prefill_seconds,
                                 rate(prompt, generated.prefill_seconds));
  if (others > 0) {
    line += fmt::format(", then {} more in {:.3f} s ({:.1f} tok/s)", others, generated.decode_seconds,
                        rate(others, generated.decode_seconds));
  }
  if (generated.end == TextEnd::Token) line += fmt::format(", ended by token {}", generated.tokens.back());
  if (generated.end == TextEnd::Text) line += ", ended by a stop string";
  std::fputs((line + "\n").c_str(), stderr);
}

}  // namespace

GeneratedOutput::GeneratedOutput(std::vector<Prompt> prompts, std::shared_ptr<const Tokenizer> tokenizer, Style style)
    : prompts_(std::move(prompts)), tokenizer_(std::move(tokenizer)), style_(style) {}

void GeneratedOutput::begin(size_t index, const std::vector<int64_t>& prompt) {
  text_.clear();
  stream_.reset();
  if (tokenizer_) stream_.emplace(*tokenizer_, prompt);
  first_ = true;
  if (style_ == Style::Json || prompts_.size() == 1) return;
  say((index == 0 ? "==> prompt " : "\n==> prompt ") + std::to_string(index + 1) + " <==\n");
}

void GeneratedOutput::add(int64_t token) {
  if (stream_) {
    say(stream_->add(token));
  } else {
    say((first_ ? "" : " ") + std::to_string(token));
  }
  first_ = false;
}

void GeneratedOutput::end(size_t index, const std::vector<int64_t>& prompt, const GenerationResult& generated) {
  if (stream_) say(stream_->finish());
  if (style_ == Style::Json) {
    json line;
    const Prompt& given = prompts_[index];
    if (given.is_text) line["prompt"] = given.text;
    if (given.conversation) line[given.key] = json::parse(given.json);
    line["prompt_tokens"] = prompt;
    line["tokens"] = generated.tokens;
    if (stream_) line["text"] = text_;
    line["ended"] = generated.end == TextEnd::Token ? "eos" : generated.end == TextEnd::Text ? "stop" : "length";
    text_ = line.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  show(text_ + "\n");
  tell_speed(prompt.size(), generated);
}

void GeneratedOutput::say(const std::string& text) {
  if (style_ == Style::Stream) {
    show(text);
  } else {
    text_ += text;
  }
}

}  // namespace meshtrain
