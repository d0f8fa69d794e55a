// Shards that are refused: each message names the argument, its value and the rule, and nothing has
// been written.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int kHeadDim = 16;

struct Call {
  int64_t batch = 1, tokens = 8;
  rope_shard shard = ShardOf(ROPE_SHARD_ZIGZAG, 1, 2);
  rope_positions positions = Offset(0);
};

const int32_t kCuts[] = {0, 4, 16}, kOdd[] = {0, 6, 16}, kShort[] = {0, 4, 8};
const int64_t kIds[8] = {};

void Packed(Call* c, const int32_t* cuts) {
  c->positions.cu_seqlens = cuts;
  c->positions.sequences = 2;
}

const BadInput<Call> kBad[] = {
    {"no scheme",
     [](Call* c) { c->shard.scheme = 0; },
     kInvalid,
     {"shard->scheme (0)", "required"}},
    {"a later scheme", [](Call* c) { c->shard.scheme = 5; }, kUnsupported, {"shard->scheme (5)"}},
    {"scheme -1", [](Call* c) { c->shard.scheme = -1; }, kUnsupported, {"shard->scheme (-1)"}},
    {"no ranks", [](Call* c) { c->shard.world = 0; }, kInvalid, {"shard->world (0)", "required"}},
    {"rank behind the last",
     [](Call* c) { c->shard.rank = 2; },
     kInvalid,
     {"shard->rank (2)", "from 0 to 1"}},
    {"rank -1", [](Call* c) { c->shard.rank = -1; }, kInvalid, {"shard->rank (-1)"}},
    {"block of zigzag",
     [](Call* c) { c->shard.block = 2; },
     kInvalid,
     {"shard->block (2)", "must be 0", "ZIGZAG"}},
    {"block -1",
     [](Call* c) { c->shard.scheme = ROPE_SHARD_STRIPED, c->shard.block = -1; },
     kInvalid,
     {"shard->block (-1)", "negative"}},
    {"tokens that are no stripes",
     [](Call* c) { c->shard = ShardOf(ROPE_SHARD_STRIPED, 0, 2, 3); },
     kInvalid,
     {"tokens (8)", "multiple of 3", "STRIPED", "block"}},
    {"tokens that are not two chunks",
     [](Call* c) { c->tokens = 7; },
     kInvalid,
     {"tokens (7)", "multiple of 2", "ZIGZAG", "chunks"}},
    {"outer chunks",
     [](Call* c) {
       c->tokens = 7;
       c->shard = Then(c->shard, ShardOf(ROPE_SHARD_CONTIGUOUS, 0, 3));
     },
     kInvalid,
     {"tokens * inner_world (21)", "multiple of 2"}},
    {"inner chunks",
     [](Call* c) {
       c->tokens = 7;
       c->shard = Then(c->shard, ShardOf(ROPE_SHARD_ZIGZAG, 0, 2));
     },
     kInvalid,
     {"tokens (7)", "shard->inner_scheme", "multiple of 2"}},
    {"inner rank without an inner scheme",
     [](Call* c) { c->shard.inner_rank = 1; },
     kInvalid,
     {"inner_rank", "(1, 0, 0)", "without inner_scheme"}},
    {"inner world",
     [](Call* c) { c->shard.inner_scheme = ROPE_SHARD_CONTIGUOUS; },
     kInvalid,
     {"shard->inner_world (0)"}},
    {"reserved", [](Call* c) { c->shard.reserved[2] = 1; }, kUnsupported, {"shard->reserved"}},
    {"documents without cu_seqlens",
     [](Call* c) { c->shard.per_document = 1; },
     kInvalid,
     {"per_document (1)", "cu_seqlens"}},
    {"per_document 2",
     [](Call* c) { c->shard.per_document = 2; },
     kInvalid,
     {"per_document (2)", "0 or 1"}},
    {"heads of documents",
     [](Call* c) {
       Packed(c, kCuts);
       c->shard = PerDocument(ShardOf(ROPE_SHARD_HEADS, 0, 2));
     },
     kInvalid,
     {"per_document (1)", "HEADS"}},
    {"a document that does not divide",
     [](Call* c) { Packed(c, kOdd), c->shard.per_document = 1; },
     kInvalid,
     {"cu_seqlens[1] - cu_seqlens[0] (6)", "multiple of 4", "ZIGZAG among 2 ranks", "padded"}},
    {"cu_seqlens of one rank",
     [](Call* c) { Packed(c, kShort); },
     kInvalid,
     {"cu_seqlens[2] (8)", "tokens of all ranks (16)"}},
    {"more tokens than there are numbers",
     [](Call* c) { c->tokens = int64_t{1} << 62; },
     kInvalid,
     {"tokens of a row on all ranks (4611686018427387904, on 2 and 1 ranks", "2^31"}},
    {"as many tokens as are too many",
     [](Call* c) { c->tokens = int64_t{1} << 30; },
     kInvalid,
     {"(1073741824, on 2 and 1 ranks", "fewer than 2^31"}},
    {"ids",
     [](Call* c) {
       c->positions = rope_positions{};
       c->positions.kind = ROPE_POSITIONS_IDS_T;
       c->positions.ids_i64 = kIds;
     },
     kInvalid,
     {"shard is set", "ROPE_POSITIONS_IDS_T does not use it"}},
};

TEST(ShardErrors, NameArgumentValueAndRule) {
  const Context context = Create(Config(kHeadDim));
  for (const BadInput<Call>& bad : kBad) {
    Call call;
    bad.change(&call);
    call.positions.shard = &call.shard;
    Numbers ids(8, -1);
    ExpectParts("rope_shard_ids", bad,
                rope_shard_ids(call.batch, call.tokens, &call.positions, ids.data(), nullptr));
    EXPECT_EQ(ids, Numbers(8, -1));
    std::vector<float> q(8 * kHeadDim, 1.0f);
    rope_qk_args args = Args(call.batch, call.tokens);
    args.positions = call.positions;
    args.q = Tensor(q.data(), ROPE_DTYPE_F32, 1);
    ExpectParts("rope_apply_qk", bad, rope_apply_qk(context.get(), &args));
    EXPECT_EQ(q, std::vector<float>(8 * kHeadDim, 1.0f));
  }
}

TEST(ShardErrors, HeadsWithFrequenciesOfTheirOwnAreNotDivided) {
  rope_config config = Config(4, ROPE_PAIRING_HALVES, 0);
  const double frequency[] = {1, 2, 3, 4};
  config.frequency = frequency;
  config.freq_heads = 2;
  config.table_length = 2;
  const Context context = Create(config);
  std::vector<float> q(2 * 4);
  rope_qk_args args = Args(1, 1);
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, 2);
  rope_shard shard = ShardOf(ROPE_SHARD_HEADS, 0, 2);
  args.positions = Offset(0);
  args.positions.shard = &shard;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), kUnsupported);
  ExpectMessage("rope_apply_qk", {"ROPE_SHARD_HEADS", "config->freq_heads is 2"});
  shard = ShardOf(ROPE_SHARD_STRIPED, 0, 2);
  EXPECT_OK(rope_apply_qk(context.get(), &args));
}

TEST(ShardErrors, OfIds) {
  Numbers ids(8, -1);
  const rope_positions positions = Offset(5);
  EXPECT_EQ(rope_shard_ids(1, 8, nullptr, ids.data(), nullptr), kInvalid);
  ExpectMessage("rope_shard_ids", {"positions (NULL)"});
  EXPECT_EQ(rope_shard_ids(1, 8, &positions, nullptr, nullptr), kInvalid);
  ExpectMessage("rope_shard_ids", {"ids and numbers (NULL)"});
  EXPECT_EQ(rope_shard_ids(-1, 8, &positions, ids.data(), nullptr), kInvalid);
  ExpectMessage("rope_shard_ids", {"batch (-1)"});
  auto* const misaligned = reinterpret_cast<int64_t*>(reinterpret_cast<char*>(ids.data()) + 4);
  EXPECT_EQ(rope_shard_ids(1, 4, &positions, misaligned, nullptr), kInvalid);
  ExpectMessage("rope_shard_ids", {"ids", "aligned to 8"});
  EXPECT_EQ(rope_shard_ids(1, 4, &positions, nullptr, misaligned), kInvalid);
  ExpectMessage("rope_shard_ids", {"numbers", "aligned to 8"});
  Numbers other(8, -1);
  EXPECT_OK(rope_shard_ids(1, 4, &positions, other.data(), other.data() + 4));
  EXPECT_EQ(rope_shard_ids(1, 4, &positions, ids.data(), ids.data() + 3), kInvalid);
  ExpectMessage("rope_shard_ids", {"ids overlaps numbers"});
  rope_positions by_row{};
  by_row.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  by_row.offsets_i64 = ids.data() + 3;
  EXPECT_EQ(rope_shard_ids(2, 2, &by_row, ids.data(), nullptr), kInvalid);
  ExpectMessage("rope_shard_ids", {"ids overlaps positions->offsets_i64"});
  EXPECT_EQ(rope_shard_ids(2, 4, &by_row, nullptr, ids.data()), kInvalid);
  ExpectMessage("rope_shard_ids", {"numbers overlaps positions->offsets_i64"});
  EXPECT_OK(rope_shard_ids(2, 1, &by_row, nullptr, other.data()));
  rope_positions by_ids{};
  by_ids.kind = ROPE_POSITIONS_IDS_T;
  by_ids.ids_i64 = kIds;
  EXPECT_EQ(rope_shard_ids(1, 8, &by_ids, ids.data(), nullptr), kInvalid);
  ExpectMessage("rope_shard_ids", {"kind (ROPE_POSITIONS_IDS_T)", "OFFSET or SEQ_OFFSETS"});
  EXPECT_OK(rope_shard_ids(0, 8, &positions, nullptr, nullptr));
  EXPECT_EQ(ids, Numbers(8, -1));
  EXPECT_OK(rope_shard_ids(2, 4, &positions, ids.data(), nullptr));
  EXPECT_EQ(ids, (Numbers{5, 6, 7, 8, 5, 6, 7, 8}));
}

}  // namespace
}  // namespace rope::testing
