#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace meshtrain {

/// The arguments of one rendering of a chat template.
struct Conversation {
  jinja::ListPtr messages;
  jinja::Value tools = jinja::None{}, documents = jinja::None{};
  std::vector<std::pair<std::string, jinja::Value>> variables =
      {};                    ///< chat_template_kwargs: enable_thinking and others
  size_t first_counted = 0;  ///< the messages before are a prompt, of which no label counts
};

/// Returns true for the roles that chat templates know: system, developer, user, assistant, tool, function, ipython.
bool is_usual_role(std::string_view role);

/// Parses a JSON object with "messages", or an array that is the list of "messages" itself, or with "prompt" and
/// "completion", which are lists of messages or texts (a text is one message, of the user and of the assistant), or
/// with ShareGPT's "conversations", and with "tools", "documents" and "chat_template_kwargs" where there are such. A
/// message is an object with "role"; the template decides on everything else. As in transformers 5, keys of a message
/// whose value is null are left out, and its reasoning ("reasoning_content", "thinking" or "reasoning") is there as
/// "reasoning_content" and "thinking". Throws InputError, whose message names the mistake without a location; also for
/// a "weight" other than 0 and 1.
Conversation parse_conversation(std::string_view json);

/// Returns true for a message of which no label counts: its "weight" is 0, or its "train" or "loss" is false.
bool has_no_weight(const jinja::Value& message);

/// Parses the beginning of a conversation, for a model to continue: as parse_conversation(), but "prompt" stands alone,
/// and a "completion" beside it is not read.
Conversation parse_open_conversation(std::string_view json);

/// Returns true when the last message is one of the assistant.
bool ends_with_assistant(const Conversation& conversation);

/// Returns the conversation with a message of the system in front. Throws InputError when it already begins with one.
Conversation after_system(const Conversation& conversation, const std::string& system);

/// Returns a conversation of one message of the user, with one of the system in front unless `system` is null.
Conversation ask(const std::string& text, const std::string* system);

}  // namespace meshtrain
