#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/program/generate/prompts.h"
#include "runtime/text/chat/chat_template.h"

namespace meshtrain {

/// The prompts of a chat, which a model answers.
struct ChatPromptOptions {
  const std::string* system = nullptr;  ///< a message of the system in front of each; null: none is added
  bool continues_assistant = false;     ///< continues the assistant's last message where a conversation ends with one
};

/// Reads the prompts in `file` for a chat. In JSON lines (is_json_lines()) each line is one, and in *.json each element
/// of an array, or the one object: a JSON string or "prompt", which a user says, "tokens" as read_prompts() has them,
/// or a conversation (parse_open_conversation()). A list of messages is a conversation too. In any other file each
/// line is what a user says. Blank lines are left out. Throws InputError that names file and line; also for a
/// conversation that ends with the assistant, unless that message is to be continued.
std::vector<Prompt> read_chat_prompts(const std::filesystem::path& file, const ChatPromptOptions& options);

/// Renders `prompt` with `chat` and returns its tokens; a prompt of tokens is returned unchanged. Appends the
/// generation prompt unless the assistant's last message is continued. Throws InputError, which names the
/// conversation's location, when the template refuses it, or when it has a message of the system in addition to
/// `options.system`.
Prompt render_prompt(const Prompt& prompt, const ChatTemplate& chat, const Tokenizer& tokenizer,
                     const ChatPromptOptions& options);

}  // namespace meshtrain
