#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/chat/conversation.h"
#include "runtime/text/jinja/template.h"

namespace meshtrain {

/// The chat templates of a tokenizer and the special tokens that they write. Immutable: any number of threads may use
/// one.
class ChatTemplate {
 public:
  /// Loads the templates of `tokenizer`, a name for load_tokenizer(): chat_template.jinja of its folder, with
  /// additional_chat_templates/NAME.jinja, else "chat_template" of tokenizer_config.json, one or a list of named ones.
  /// `file`: a template instead of these. Special tokens are those that read_config_tokens() names. Throws InputError
  /// when there is no template, when it is malformed, and for a SentencePiece model, which does not recognise special
  /// tokens in a text.
  ChatTemplate(const std::string& tokenizer, const std::optional<std::filesystem::path>& file = {});

  /// Renders the first `count` messages as transformers' apply_chat_template() does. The template called tool_use,
  /// where there is one, renders conversations with tools. Throws InputError that names the template, line and column.
  jinja::RenderResult render(const Conversation& conversation, size_t count, bool add_generation_prompt) const;

  /// Returns true when the template of this conversation marks the assistant's turns itself, by {% generation %}.
  bool has_generation(const Conversation& conversation) const;

  /// Returns true when the source of this conversation's template has the word "tools".
  bool reads_tools(const Conversation& conversation) const;

  /// Returns a warning when transformers 5 and tokenizer.json give texts of these templates different ids: the class
  /// LlamaTokenizer of transformers replaces the normalizer of older files, and meshtrain keeps it. Empty otherwise.
  const std::string& warning() const { return warning_; }

 private:
  struct NamedTemplate {
    jinja::Template text;
    bool reads_tools = false;
  };
  const NamedTemplate& template_for(const Conversation& conversation) const;

  std::map<std::string, NamedTemplate> templates_;
  std::string name_;  // of the file, for messages
  std::string warning_;
  std::vector<std::pair<std::string, jinja::Value>> special_tokens_;
  std::tm now_{};  // one time for all, which strftime_now() shows
};

}  // namespace meshtrain
