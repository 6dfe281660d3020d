#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/generate/generate.h"
#include "runtime/program/generate/prompts.h"
#include "runtime/text/tokenizer/text_stream.h"

namespace meshtrain {

/// What `meshtrain generate` prints, on one rank: on stdout what is generated, on stderr how fast, each line at once.
class GeneratedOutput {
 public:
  enum class Style {
    Stream,  ///< text as it comes
    Whole,   ///< the text of a prompt when it is done: a launcher mixes what comes in pieces with other lines
    Json     ///< an object when it is done
  };
  /// `tokenizer`: null prints ids.
  GeneratedOutput(std::vector<Prompt> prompts, std::shared_ptr<const Tokenizer> tokenizer, Style style);

  const std::vector<Prompt>& prompts() const { return prompts_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  /// Returns true when each token is printed as it comes.
  bool streams() const { return style_ == Style::Stream; }

  /// For each of prompts() in turn, whose ids are `prompt`: begin(), a token after the other, end().
  void begin(size_t index, const std::vector<int64_t>& prompt);
  void add(int64_t token);
  void end(size_t index, const std::vector<int64_t>& prompt, const GenerationResult& generated);

 private:
  void say(const std::string& text);

  std::vector<Prompt> prompts_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Style style_;
  std::optional<TextStream> stream_;  // of the prompt under way
  std::string text_;                  // of it, not shown yet
  bool first_ = true;                 // no token of it yet
};

}  // namespace meshtrain
