#pragma once

#include <cstdint>
#include <vector>

#include "runtime/text/chat/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

/// The tokens of which a loss is computed.
enum class LossOn {
  Assistant,  ///< what the assistant writes, with the token that ends its turn
  All
};

/// The token ids of a conversation, and 1 for each whose label counts.
struct ChatTokens {
  std::vector<int64_t> ids;
  std::vector<uint8_t> counted;
  bool prints_parts = false;  ///< the text has the Python print of a "content" that is a list of parts
  bool loses_parts = false;   ///< the text lacks a text of a "content" that is a list of parts
  size_t num_unwritten = 0;  ///< messages of the assistant of which the template writes nothing, and so without a label
};

/// Returns the ids that transformers' apply_chat_template(tokenize=True) gives: those of the rendered text, with its
/// special tokens recognised and no others put around it.
///
/// With LossOn::Assistant it looks for the assistant's turns; in a conversation with a prompt, only for those after the
/// prompt. It finds them
///   1. by the template's own {% generation %}, as transformers' assistant mask has them;
///   2. else by rendering prefixes: the turn of message i is what the first i + 1 messages have more than the first i
///      with the generation prompt, if both are prefixes of the complete text;
///   3. else, for a template that renders a turn differently when it is the last, by the text that its loop writes for
///      message i, without the generation prompt at its beginning.
/// A message without a text of its own, in most cases tool calls alone, has no turn when the template writes the same
/// without it; the search leaves it out. Message 0 has nothing before it. Its turn is looked for in ways 2 and 3 after
/// an added message of the user or of the system; the text after that message must be the end of the conversation's own
/// text. A token counts when a byte of it belongs to such a turn. Throws InputError when the template refuses the
/// conversation, or when none of the three ways finds the turns.
ChatTokens tokenize_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, const Conversation& conversation,
                         LossOn loss);

/// Returns the tokens of a conversation with the generation prompt after it.
std::vector<int64_t> tokenize_prompt(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                     const Conversation& conversation);

/// Returns the special token with which the template ends an assistant's turn; std::nullopt when there is none.
std::optional<int64_t> end_of_turn(const ChatTemplate& chat, const Tokenizer& tokenizer);

}  // namespace meshtrain
