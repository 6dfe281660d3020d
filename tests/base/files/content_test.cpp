#include "mesh/base/files/content.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(Content, IsToldByTheFirstBytes) {
  EXPECT_EQ(describe_content(""), ": it is an empty file: download it again");
  EXPECT_EQ(describe_content("\n <!DOCTYPE html>\n<html>"),
            ": it is a page of HTML, not the file itself: download it again");
  EXPECT_EQ(content_of("\xEF\xBB\xBF<HTML lang=\"en\">"), Content::Html);
  EXPECT_EQ(content_of("<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>"), Content::ServerError);
  EXPECT_EQ(content_of("<?xml version=\"1.0\"?><book/>"), Content::Unknown);
  EXPECT_EQ(content_of(std::string(300, '\0')), Content::Zeros);
  EXPECT_EQ(describe_content("\x1f\x8b\x08"), ": it is a file compressed by gzip: decompress it first");
  EXPECT_EQ(describe_content("PK\x03\x04"), ": it is a ZIP archive, perhaps of NumPy or PyTorch");
  EXPECT_EQ(describe_content("Entry not found"), "");
  EXPECT_EQ(content_of("GGUF is a format, ARROW1 another"), Content::Unknown);
  EXPECT_EQ(describe_text_for_binary("Entry not found\n"),
            ": it is a text that begins \"Entry not found\", not the file itself: download it again");
  EXPECT_EQ(describe_text_for_binary("\x01\x02"), "");
}

}  // namespace
}  // namespace meshtrain
