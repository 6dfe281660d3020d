#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/generate/generate.h"
#include "runtime/program/generate/prompts.h"
#include "runtime/text/tokenizer/text_stream.h"

namespace meshtrain {

/// Prints the texts of `meshtrain generate`, on one rank: texts to stdout in the order of prompts, and their speed to
/// stderr. Each line appears at once.
class GeneratedOutput {
 public:
  enum class Style {
    Stream,    ///< text as it is generated, one prompt at a time
    Complete,  ///< the complete text of a prompt: a launcher would put other lines between pieces
    Json       ///< an object when the text of a prompt is complete
  };
  /// `tokenizer`: null prints ids.
  GeneratedOutput(std::vector<Prompt> prompts, std::shared_ptr<const Tokenizer> tokenizer, Style style);

  const std::vector<Prompt>& prompts() const { return prompts_; }
  /// Returns true when each token is printed as it comes.
  bool streams() const { return style_ == Style::Stream; }

  /// For each of prompts(), whose ids are `prompt`, call begin(), then add() with each token, then end(). Styles other
  /// than Stream take several prompts at the same time, and print a text after the texts of all earlier prompts.
  void begin(size_t index, const std::vector<int64_t>& prompt);
  void add(int64_t token);
  void end(size_t index, const std::vector<int64_t>& prompt, const GenerationResult& generated);

 private:
  /// A complete text.
  struct Done {
    std::vector<int64_t> prompt;
    GenerationResult generated;
  };

  /// Returns the line that begins the text of a prompt; empty when there is none.
  std::string header(size_t index) const;
  /// Returns the text of `token`, which follows those that `stream` has seen; without a tokenizer its id.
  std::string piece(std::optional<TextStream>& stream, int64_t token, bool is_first) const;
  std::string text_of(const Done& done) const;
  std::string json_line(size_t index, const Done& done) const;
  void print(size_t index, const Done& done) const;

  std::vector<Prompt> prompts_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Style style_;
  std::optional<TextStream> stream_;  // of the prompt in progress, under Style::Stream
  bool first_ = true;                 // no token of it yet
  std::map<size_t, Done> done_;       // not yet printed, by prompt
  size_t next_ = 0;                   // the prompt whose text is printed next
};

/// Prints on stderr how many tokens all dp ranks together generated in `seconds`.
void tell_total(size_t num_texts, size_t num_tokens, double seconds, int num_rows);

}  // namespace meshtrain
