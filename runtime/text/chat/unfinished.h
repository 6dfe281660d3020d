#pragma once

#include <cstdint>
#include <vector>

#include "runtime/text/chat/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

/// Returns the tokens of a conversation up to the end of its last message's text, so that a model continues that
/// message. They are those of transformers' apply_chat_template(continue_final_message=True). When the content is a
/// list, its last text is continued. Throws InputError when the last message has no text, or when the template does not
/// write that text unchanged.
std::vector<int64_t> tokenize_unfinished(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                         const Conversation& conversation);

}  // namespace meshtrain
