// Bytes that are a GGUF file, the beginning of one, or none: what is read of them, and that no
// length, count or depth that they claim costs memory, time or stack, or is believed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gguf_bytes.h"
#include "librope/model.h"
#include "support/errors.h"

namespace rope::testing {
namespace {

// From a heap buffer of exactly the size: with AddressSanitizer any read beyond it is an error.
rope_status Create(std::string_view bytes, rope_model** out) {
  const std::unique_ptr<char[]> exact(new char[bytes.size()]);
  std::memcpy(exact.get(), bytes.data(), bytes.size());
  return rope_model_create_gguf(exact.get(), bytes.size(), out);
}

bool Reads(std::string_view bytes) {
  rope_model* model = nullptr;
  const bool good = Create(bytes, &model) == ROPE_OK;
  rope_model_destroy(model);
  return good;
}

void ExpectRefused(std::string_view bytes, std::initializer_list<const char*> parts,
                   rope_status status = ROPE_ERROR_PARSE) {
  rope_model* model = nullptr;
  EXPECT_EQ(Create(bytes, &model), status);
  EXPECT_EQ(model, nullptr);
  rope_model_destroy(model);
  ExpectMessage("rope_model_create_gguf", parts);
}

std::string Header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
  return "GGUF" + Raw(version) + Raw(tensors) + Raw(keys);
}

GgufBytes Llama() {
  return GgufBytes("llama").Tensor("rope_freqs.weight", std::vector<float>(32, 2));
}

TEST(ModelGgufFile, VersionsAndByteOrders) {
  GgufBytes file = Llama();
  EXPECT_TRUE(Reads(file.Bytes()));
  file.version = 2;
  EXPECT_TRUE(Reads(file.Bytes()));
  file.version = 1;
  ExpectRefused(file.Bytes(), {"version 1 of GGUF", "reads 2 and 3"}, ROPE_ERROR_UNSUPPORTED);
  file.version = 4;
  ExpectRefused(file.Bytes(), {"version 4 of GGUF"}, ROPE_ERROR_UNSUPPORTED);
  file.version = 3 << 24;
  ExpectRefused(file.Bytes(), {"0x03000000", "is big-endian"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused("GGML0123", {"begins with \"GGML\" and must begin with \"GGUF\""});
  ExpectRefused(R"({"model_type": "llama"})", {"must begin with \"GGUF\""});
}

TEST(ModelGgufFile, EveryPrefixIsRefusedUntilNothingIsMissing) {
  const std::string whole = Llama().Bytes(1000);
  const size_t needed = whole.size() - 1000;
  for (size_t size = 0; size < needed; ++size) {
    rope_model* model = nullptr;
    ASSERT_EQ(Create({whole.data(), size}, &model), ROPE_ERROR_PARSE) << size;
    unsigned long long ends = 0, least = 0;
    const char* said = std::strstr(rope_last_error(), "ends after ");
    ASSERT_NE(said, nullptr) << rope_last_error();
    ASSERT_EQ(std::sscanf(said, "ends after %llu", &ends), 1);
    ASSERT_EQ(
        std::sscanf(std::strstr(said, "at least its first "), "at least its first %llu", &least),
        1);
    EXPECT_EQ(ends, size);
    EXPECT_GT(least, size);
    EXPECT_LE(least, needed);
  }
  EXPECT_TRUE(Reads({whole.data(), needed}));
  EXPECT_TRUE(Reads(whole));
  ExpectRefused({whole.data(), needed - 1}, {"before the data of tensor \"rope_freqs.weight\""});
}

TEST(ModelGgufFile, AlignmentAndOffsets) {
  GgufBytes file = Llama();
  file.alignment = 64;
  file.Add(GgufBytes::kU32, "general.alignment", Raw<uint32_t>(64));
  EXPECT_TRUE(Reads(file.Bytes()));
  for (uint32_t wrong : {0u, 48u}) {
    file.Add(GgufBytes::kU32, "general.alignment", Raw(wrong));
    ExpectRefused(file.Bytes(), {"general.alignment must be a power of 2"});
  }
}

TEST(ModelGgufFile, NothingAppearsTwice) {
  const std::string key = RawString("a") + Raw<uint32_t>(GgufBytes::kU8) + "x";
  ExpectRefused(Header(0, 2) + key + key, {"key \"a\" appears twice"});
  const std::vector<float> ones(32, 1);
  ExpectRefused(GgufBytes("llama")
                    .Tensor("rope_freqs.weight", ones)
                    .Tensor("rope_freqs.weight", ones)
                    .Bytes(),
                {"tensor \"rope_freqs.weight\" appears twice"});
}

TEST(ModelGgufFile, ClaimsAreNotBelieved) {
  ExpectRefused(Header(0, UINT64_MAX), {"18446744073709551615 keys and must have at most 65536"});
  ExpectRefused(Header(UINT64_MAX, 0), {"tensors and must have at most 1048576"});
  ExpectRefused(Header(0, 1) + Raw<uint64_t>(UINT64_MAX),
                {"ends after 32 bytes, inside key 1 of 1"});
  const std::string key = Header(0, 1) + RawString("k");
  ExpectRefused(key + Raw<uint32_t>(13), {"key 1 of 1 (\"k\") has type 13"});
  const auto array = [&key](uint32_t element, uint64_t count) {
    return key + Raw<uint32_t>(GgufBytes::kArray) + Raw(element) + Raw(count);
  };
  for (uint64_t count : {uint64_t{1} << 32, uint64_t{1} << 62, UINT64_MAX / 8, UINT64_MAX}) {
    for (uint32_t element = 0; element <= 12; ++element) {
      ExpectRefused(array(element, count) + std::string(8, 0), {"ends after", "inside key 1 of 1"});
    }
  }
  std::string nested = key + Raw<uint32_t>(GgufBytes::kArray);
  for (int depth = 0; depth < 100; ++depth)
    nested += Raw<uint32_t>(GgufBytes::kArray) + Raw<uint64_t>(1);
  ExpectRefused(nested, {"has arrays nested more than 4 deep"});
  const std::string name = Header(1, 0) + RawString("rope_freqs.weight");
  ExpectRefused(name + Raw<uint32_t>(5), {"has 5 dimensions and must have at most 4"});
}

TEST(ModelGgufFile, TensorsAreOneRowOfF32) {
  const auto file = [](uint32_t type, const std::vector<uint64_t>& shape, int64_t offset) {
    return GgufBytes("llama").Describe("rope_freqs.weight", shape, type, offset).Bytes(128);
  };
  ExpectRefused(file(1, {32}, 0),
                {"has type 1 and 1 dimensions, and must have type 0 (F32) and 1"});
  ExpectRefused(file(0, {32, 1}, 0), {"has type 0 and 2 dimensions"});
  ExpectRefused(file(0, {0}, 0), {"has 0 values and must have from 1 to"});
  ExpectRefused(file(0, {uint64_t{1} << 62}, 0), {"values and must have from 1 to"});
  ExpectRefused(file(0, {32}, 4), {"has offset 4, which must be a multiple of the alignment (32)"});
  ExpectRefused(file(0, {32}, int64_t{1} << 40), {"before the data of tensor"});
  ExpectRefused(file(0, {32}, -32), {"has offset 18446744073709551584"});
}

TEST(ModelGgufFile, NullArguments) {
  rope_model* model = nullptr;
  EXPECT_EQ(rope_model_create_gguf(nullptr, 1, &model), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_model_create_gguf", {"data (NULL)"});
  EXPECT_EQ(rope_model_create_gguf("GGUF", 4, nullptr), ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rope_model_load_gguf(nullptr, &model), ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rope_model_load_gguf("x", nullptr), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_model_load_gguf", {"out (NULL)"});
}

class ModelGgufPath : public ::testing::Test {
 protected:
  void Write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    ASSERT_EQ(std::ifstream(path_, std::ios::binary | std::ios::ate).tellg(),
              static_cast<std::streamoff>(bytes.size()));
  }
  ~ModelGgufPath() override { std::remove(path_.c_str()); }

  std::string path_ = ::testing::TempDir() + "model_gguf_file_test.gguf";
};

TEST_F(ModelGgufPath, ReadsAsMuchAsItNeeds) {
  // Tokens of 5 MiB stand before the keys that are read, as in published files.
  std::string tokens = Raw<uint32_t>(GgufBytes::kString) + Raw<uint64_t>(1 << 18);
  for (int i = 0; i < 1 << 18; ++i) tokens += RawString("a token of words");
  GgufBytes file = Llama();
  file.Add(GgufBytes::kArray, "tokenizer.ggml.tokens", tokens);
  Write(file.Bytes(1 << 16));
  rope_model* model = nullptr;
  ASSERT_EQ(rope_model_load_gguf(path_.c_str(), &model), ROPE_OK) << rope_last_error();
  rope_config config = ROPE_INIT(rope_config);
  ASSERT_EQ(rope_model_config(model, 0, &config), ROPE_OK);
  EXPECT_EQ(config.table_length, 32);
  rope_model_destroy(model);
}

TEST_F(ModelGgufPath, SaysWhatIsWrongWithAFile) {
  rope_model* model = nullptr;
  EXPECT_EQ(rope_model_load_gguf((path_ + ".none").c_str(), &model), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_model_load_gguf", {"cannot be opened", "No such file"});
  EXPECT_EQ(rope_model_load_gguf(::testing::TempDir().c_str(), &model),
            ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_model_load_gguf", {"cannot be read"});
  const std::string whole = Llama().Bytes();
  Write(whole.substr(0, whole.size() - 1));
  EXPECT_EQ(rope_model_load_gguf(path_.c_str(), &model), ROPE_ERROR_PARSE);
  ExpectMessage("rope_model_load_gguf", {"the file ends after"});
  Write("");
  EXPECT_EQ(rope_model_load_gguf(path_.c_str(), &model), ROPE_ERROR_PARSE);
  // A claim of 2^40 bytes takes no more memory than the file.
  Write(Header(0, 1) + Raw<uint64_t>(uint64_t{1} << 40) + std::string(3 << 20, 'x'));
  EXPECT_EQ(rope_model_load_gguf(path_.c_str(), &model), ROPE_ERROR_PARSE);
  ExpectMessage("rope_model_load_gguf", {"ends after 3145760 bytes"});
  EXPECT_EQ(model, nullptr);
}

// Time grows with the bytes: eight times as many take less than forty times as long.
TEST(ModelGgufFile, TimeIsLinear) {
  const auto seconds = [](int tensors) {
    std::string bytes = Header(static_cast<uint64_t>(tensors), 0);
    for (int i = 0; i < tensors; ++i) {
      bytes += RawString("blk." + std::to_string(i)) + Raw<uint32_t>(0) + Raw<uint32_t>(0) +
               Raw<uint64_t>(0);
    }
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(Reads(bytes));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  EXPECT_LT(seconds(1 << 19), 40 * seconds(1 << 16) + 0.01);
}

}  // namespace
}  // namespace rope::testing
