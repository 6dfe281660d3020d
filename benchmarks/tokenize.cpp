// Tokens of files, each a document, on 1 and more threads; benchmarks/tokenize_peers.py sets it beside the `tokenizers`
// package.
//
//   tokenize_benchmark TOKENIZER LIST THREADS    LIST: a file that names one file a line
//   prints: seconds, documents, bytes, tokens

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "runtime/text/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 4) return std::fputs("tokenize_benchmark TOKENIZER LIST THREADS\n", stderr), 2;
  std::vector<std::string> documents;
  std::ifstream list(argv[2]);
  size_t bytes = 0;
  for (std::string path; std::getline(list, path);) {
    std::ifstream file(path, std::ios::binary);
    documents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    bytes += documents.back().size();
  }
  const auto tokenizer = meshtrain::load_tokenizer(argv[1]);
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<size_t> next = 0, tokens = 0;
  std::vector<std::thread> threads;
  for (int i = std::atoi(argv[3]); i > 0; --i) {
    threads.emplace_back([&] {
      std::vector<int64_t> ids;
      for (size_t document = next++; document < documents.size(); document = next++) {
        ids.clear();
        tokenizer->encode(documents[document], ids);
        tokens += ids.size();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%.4f %zu %zu %zu\n", seconds, documents.size(), bytes, tokens.load());
}
