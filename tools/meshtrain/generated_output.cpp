#include "tools/meshtrain/generated_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "mesh/base/log.h"
#include "mesh/base/size_text.h"

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
  log_info(line);
}

}  // namespace

GeneratedOutput::GeneratedOutput(std::vector<Prompt> prompts, std::shared_ptr<const Tokenizer> tokenizer, Style style)
    : prompts_(std::move(prompts)), tokenizer_(std::move(tokenizer)), style_(style) {}

std::string GeneratedOutput::header(size_t index) const {
  if (prompts_.size() == 1) return "";
  return (index == 0 ? "==> prompt " : "\n==> prompt ") + std::to_string(index + 1) + " <==\n";
}

std::string GeneratedOutput::piece(std::optional<TextStream>& stream, int64_t token, bool is_first) const {
  if (stream) return stream->add(token);
  return (is_first ? "" : " ") + std::to_string(token);
}

void GeneratedOutput::begin(size_t index, const std::vector<int64_t>& prompt) {
  if (style_ != Style::Stream) return;
  stream_.reset();
  if (tokenizer_) stream_.emplace(*tokenizer_, prompt);
  first_ = true;
  show(header(index));
}

void GeneratedOutput::add(int64_t token) {
  if (style_ != Style::Stream) return;
  show(piece(stream_, token, first_));
  first_ = false;
}

void GeneratedOutput::end(size_t index, const std::vector<int64_t>& prompt, const GenerationResult& generated) {
  if (style_ == Style::Stream) {
    show((stream_ ? stream_->finish() : "") + "\n");
    tell_speed(prompt.size(), generated);
    return;
  }
  done_.emplace(index, Done{prompt, generated});
  for (; !done_.empty() && done_.begin()->first == next_; ++next_) {
    print(next_, done_.begin()->second);
    done_.erase(done_.begin());
  }
}

std::string GeneratedOutput::text_of(const Done& done) const {
  std::optional<TextStream> stream;
  if (tokenizer_) stream.emplace(*tokenizer_, done.prompt);
  std::string text;
  for (const int64_t token : done.generated.tokens) text += piece(stream, token, text.empty());
  return stream ? text + stream->finish() : text;
}

std::string GeneratedOutput::json_line(size_t index, const Done& done) const {
  json line;
  const Prompt& given = prompts_[index];
  if (given.is_text) line["prompt"] = given.text;
  if (given.conversation) line[given.key] = json::parse(given.json);
  line["prompt_tokens"] = done.prompt;
  line["tokens"] = done.generated.tokens;
  if (tokenizer_) line["text"] = text_of(done);
  const TextEnd end = done.generated.end;
  line["ended"] = end == TextEnd::Token ? "eos" : end == TextEnd::Text ? "stop" : "length";
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

void GeneratedOutput::print(size_t index, const Done& done) const {
  show((style_ == Style::Json ? json_line(index, done) : header(index) + text_of(done)) + "\n");
  tell_speed(done.prompt.size(), done.generated);
}

void tell_total(size_t num_texts, size_t num_tokens, double seconds, int num_rows) {
  const double rate = static_cast<double>(num_tokens) / std::max(seconds, 1e-9);
  const std::string line = fmt::format("{} on {} dp ranks: {} in {:.3f} s ({:.1f} tok/s)", counted(num_texts, "text"),
                                       num_rows, counted(num_tokens, "token"), seconds, rate);
  log_info(line);
}

}  // namespace meshtrain
