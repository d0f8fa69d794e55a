// Tokens of one sequence on several ranks: the calls of all ranks, put together, have the bits of
// one call on the whole, and the tokens that a rank has are those of the programs that shard.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "support/elements.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/shard_reference.h"

namespace rope::testing {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int kHeads = 2, kHeadDim = 16;

// Those that rope_shard_ids tells, of a row of `length` tokens on all ranks.
Numbers Told(const rope_shard& shard, int64_t length, const std::vector<int32_t>& cu_seqlens = {},
             int64_t offset = 0, bool ids = false) {
  rope_positions positions = Offset(offset);
  positions.shard = &shard;
  if (!cu_seqlens.empty()) {
    positions.cu_seqlens = cu_seqlens.data();
    positions.sequences = static_cast<int32_t>(cu_seqlens.size()) - 1;
  }
  Numbers told(static_cast<size_t>(length / PartsOf(shard)), -1);
  const auto tokens = static_cast<int64_t>(told.size());
  EXPECT_OK(rope_shard_ids(1, tokens, &positions, ids ? told.data() : nullptr,
                           ids ? nullptr : told.data()));
  return told;
}

Numbers Iota(int64_t count) {
  Numbers numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Part `part` of `parts` of one length.
Numbers Part(const Numbers& all, int64_t part, int64_t parts) {
  const auto length = static_cast<int64_t>(all.size()) / parts;
  return {all.begin() + part * length, all.begin() + (part + 1) * length};
}

void Add(Numbers* to, const Numbers& more) { to->insert(to->end(), more.begin(), more.end()); }

// --- The orders of other programs, each by its own steps -----------------------------------------

// Megatron-LM: get_batch_on_this_cp_rank views the tokens as 2 n chunks and selects two of them.
Numbers Megatron(const Numbers& tokens, int64_t rank, int64_t ranks) {
  Numbers own = Part(tokens, rank, 2 * ranks);
  Add(&own, Part(tokens, 2 * ranks - rank - 1, 2 * ranks));
  return own;
}

// Its packed sequences (rope_utils): the rotary angles of one document, of which a rank has `own`
// tokens: a segment of half as many from the front, and one from the back.
Numbers MegatronPacked(int64_t own, int64_t rank, int64_t ranks) {
  const int64_t segment = own / 2, full = ranks * own;
  Numbers positions;
  for (int64_t p = rank * segment; p < (rank + 1) * segment; ++p) positions.push_back(p);
  for (int64_t p = full - (rank + 1) * segment; p < full - rank * segment; ++p) {
    positions.push_back(p);
  }
  return positions;
}

// PyTorch: the head-tail load balancer orders the whole row, and each rank takes one part of it.
Numbers HeadTail(const Numbers& tokens, int64_t rank, int64_t ranks) {
  Numbers order;
  for (int64_t r = 0; r < ranks; ++r) {
    Add(&order, Part(tokens, r, 2 * ranks));
    Add(&order, Part(tokens, 2 * ranks - 1 - r, 2 * ranks));
  }
  return Part(order, rank, ranks);
}

// MaxText: reorder_sequence couples each chunk of the first half with one of the second, which is
// reversed; the mesh then divides the row.
Numbers MaxText(const Numbers& tokens, int64_t rank, int64_t ranks) {
  const Numbers first = Part(tokens, 0, 2), second = Part(tokens, 1, 2);
  Numbers order;
  for (int64_t group = 0; group < ranks; ++group) {
    Add(&order, Part(first, group, ranks));
    Add(&order, Part(second, ranks - 1 - group, ranks));
  }
  return Part(order, rank, ranks);
}

// ring-flash-attention's stripe: n tokens at a time, of which a rank takes that of its number.
Numbers Stripe(const Numbers& tokens, int64_t rank, int64_t ranks) {
  Numbers own;
  for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(ranks)) {
    own.push_back(tokens[at + static_cast<size_t>(rank)]);
  }
  return own;
}

constexpr int kMostRanks = 8;

TEST(ShardIds, AreThoseOfOtherPrograms) {
  for (int n = 1; n <= kMostRanks; ++n) {
    for (const int64_t chunk : {1, 3, 8}) {
      const Numbers tokens = Iota(2 * n * chunk);
      const auto length = static_cast<int64_t>(tokens.size());
      for (int r = 0; r < n; ++r) {
        const Numbers zigzag = Told(ShardOf(ROPE_SHARD_ZIGZAG, r, n), length);
        EXPECT_EQ(zigzag, Megatron(tokens, r, n)) << n;
        EXPECT_EQ(zigzag, HeadTail(tokens, r, n)) << n;
        EXPECT_EQ(zigzag, MaxText(tokens, r, n)) << n;
        EXPECT_EQ(zigzag, MegatronPacked(2 * chunk, r, n)) << n;
        EXPECT_EQ(Told(ShardOf(ROPE_SHARD_STRIPED, r, n), length), Stripe(tokens, r, n)) << n;
        EXPECT_EQ(Told(ShardOf(ROPE_SHARD_CONTIGUOUS, r, n), length), Part(tokens, r, n)) << n;
        EXPECT_EQ(Told(ShardOf(ROPE_SHARD_HEADS, r, n), length), tokens) << n;
      }
    }
  }
}

// As the programs' own texts and issues write them.
TEST(ShardIds, AreThosePublished) {
  // MaxText's reorder_sequence on two ranks: 0 1 6 7, 2 3 4 5.
  EXPECT_EQ(Told(ShardOf(ROPE_SHARD_ZIGZAG, 0, 2), 8), (Numbers{0, 1, 6, 7}));
  EXPECT_EQ(Told(ShardOf(ROPE_SHARD_ZIGZAG, 1, 2), 8), (Numbers{2, 3, 4, 5}));
  // The head-tail order of 8 tokens on 4 ranks: 0 7 1 6 2 5 3 4.
  EXPECT_EQ(Told(ShardOf(ROPE_SHARD_ZIGZAG, 2, 4), 8), (Numbers{2, 5}));
  // Megatron's packed path once gave 0 3 4 7 to two documents of 4 tokens.
  const rope_shard packed = PerDocument(ShardOf(ROPE_SHARD_ZIGZAG, 0, 2));
  EXPECT_EQ(Told(packed, 8, {0, 4, 8}, 0, true), (Numbers{0, 3, 0, 3}));
  EXPECT_EQ(Told(packed, 8, {0, 4, 8}), (Numbers{0, 3, 4, 7}));
  EXPECT_EQ(Told(ShardOf(ROPE_SHARD_STRIPED, 1, 2, 3), 12), (Numbers{3, 4, 5, 9, 10, 11}));
}

// USP (yunchang): the order of the ring, of which Ulysses takes parts.
TEST(ShardIds, OfTwoLevelsAreThoseOfUsp) {
  for (const int ring : {1, 2, 3, 4}) {
    for (const int ulysses : {1, 2, 4}) {
      const Numbers tokens = Iota(8 * ring * ulysses);
      const auto length = static_cast<int64_t>(tokens.size());
      Numbers stripes;
      for (int r = 0; r < ring; ++r) Add(&stripes, Stripe(tokens, r, ring));
      for (int r = 0; r < ring; ++r) {
        for (int u = 0; u < ulysses; ++u) {
          const rope_shard inner = ShardOf(ROPE_SHARD_CONTIGUOUS, u, ulysses);
          EXPECT_EQ(Told(Then(ShardOf(ROPE_SHARD_ZIGZAG, r, ring), inner), length),
                    Part(Megatron(tokens, r, ring), u, ulysses));
          EXPECT_EQ(Told(Then(ShardOf(ROPE_SHARD_STRIPED, r, ring), inner), length),
                    Part(stripes, r * ulysses + u, ring * ulysses));
          EXPECT_EQ(
              Told(Then(ShardOf(ROPE_SHARD_ZIGZAG, r, ring), ShardOf(ROPE_SHARD_HEADS, u, ulysses)),
                   length),
              Megatron(tokens, r, ring));
        }
      }
    }
  }
}

// --- Calls ---------------------------------------------------------------------------------------

struct Documents {
  const char* name;
  int64_t count;
};
constexpr Documents kOneRow = {"one row", 0}, kOneDocument = {"one document", 1},
                    kManyDocuments = {"37 documents", 37};

// A way of sharing among `ranks`.
struct Way {
  const char* name;
  rope_shard shard;  // ranks are set later
  bool by_heads = false;
};

// Ranks 0 .. n - 1 of a way, as the outer and the inner group count them.
rope_shard OfRank(const Way& way, int rank, int ranks) {
  rope_shard shard = way.shard;
  shard.world = ranks;
  shard.rank = rank;
  if (shard.inner_scheme == 0) return shard;
  shard.inner_world = ranks % 2 == 0 ? 2 : 1;
  shard.world = ranks / shard.inner_world;
  shard.inner_rank = rank % shard.inner_world;
  shard.rank = rank / shard.inner_world;
  return shard;
}

std::vector<Way> Ways(bool documents) {
  const auto of = [](rope_shard_scheme scheme, int block = 0) {
    return ShardOf(scheme, 0, 1, block);
  };
  const rope_shard inner = of(ROPE_SHARD_CONTIGUOUS);
  std::vector<Way> ways = {
      {"contiguous", of(ROPE_SHARD_CONTIGUOUS)},
      {"zigzag", of(ROPE_SHARD_ZIGZAG)},
      {"striped", of(ROPE_SHARD_STRIPED)},
      {"stripes of 2", of(ROPE_SHARD_STRIPED, 2)},
      {"heads", of(ROPE_SHARD_HEADS), true},
      {"zigzag x ulysses", Then(of(ROPE_SHARD_ZIGZAG), inner)},
      {"striped x ulysses", Then(of(ROPE_SHARD_STRIPED), inner)},
      {"contiguous x zigzag", Then(of(ROPE_SHARD_CONTIGUOUS), of(ROPE_SHARD_ZIGZAG))},
      {"zigzag x heads", Then(of(ROPE_SHARD_ZIGZAG), of(ROPE_SHARD_HEADS)), true},
  };
  if (documents) {
    ways.push_back({"contiguous per document", PerDocument(of(ROPE_SHARD_CONTIGUOUS))});
    ways.push_back({"zigzag per document", PerDocument(of(ROPE_SHARD_ZIGZAG))});
    ways.push_back({"striped per document", PerDocument(of(ROPE_SHARD_STRIPED))});
    ways.push_back(
        {"zigzag per document x ulysses", PerDocument(Then(of(ROPE_SHARD_ZIGZAG), inner))});
  }
  return ways;
}

// A call on all tokens, and the same on one rank after the other.
class Whole {
 public:
  Whole(const Documents& documents, const Way& way, int ranks, rope_dtype dtype,
        rope_operation operation, Random* r)
      : way_(way), ranks_(ranks), batch_(documents.count == 0 ? 2 : 1) {
    args_ = Args(batch_, 0);
    args_.operation = operation;
    positions_ = Offset(100000);
    const int64_t unit = way.shard.per_document != 0 ? 2 * ranks : 1;
    const int64_t divides = 4 * ranks;  // what every way divides
    if (documents.count == 0) {
      length_ = divides * r->Pick(1, 3);
    } else {
      cu_seqlens_ = {0};
      for (int64_t d = 0; d < documents.count; ++d) {
        cu_seqlens_.push_back(cu_seqlens_.back() +
                              static_cast<int32_t>(unit * r->Pick(0, unit == 1 ? 9 : 2)));
      }
      const int64_t rest = (divides - cu_seqlens_.back() % divides) % divides;
      cu_seqlens_.back() +=
          static_cast<int32_t>(rest == 0 && cu_seqlens_.back() == 0 ? divides : rest);
      length_ = cu_seqlens_.back();
      for (int64_t d = 0; d < documents.count; ++d) offsets_.push_back(r->Pick(0, 1 << 20));
      positions_ = rope_positions{};
      positions_.kind = ROPE_POSITIONS_SEQ_OFFSETS;
      positions_.offsets_i64 = offsets_.data();
      positions_.cu_seqlens = cu_seqlens_.data();
      positions_.sequences = static_cast<int32_t>(documents.count);
    }
    size_ = dtype == ROPE_DTYPE_F32 ? 4 : 2;
    dtype_ = dtype;
    for (std::vector<char>* x : {&q_, &k_}) {
      x->resize(static_cast<size_t>(batch_ * length_ * row()));
      for (size_t at = 0; at < x->size(); at += static_cast<size_t>(size_)) {
        const auto value = static_cast<float>(r->Pick(-1000, 1000)) / 256;
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        if (size_ == 2) bits >>= 16;
        std::memcpy(&(*x)[at], &bits, static_cast<size_t>(size_));
      }
    }
  }

  // Both results of all ranks have the bits of one call.
  void Compare(const rope_context* context) {
    std::vector<char> q = q_, k = k_;
    Apply(context, nullptr, length_, kHeads, &q, &k);
    Numbers times(static_cast<size_t>(length_));
    for (int rank = 0; rank < ranks_; ++rank) {
      const rope_shard shard = OfRank(way_, rank, ranks_);
      const Numbers numbers = NumbersOf(shard, length_, cu_seqlens_);
      for (const int64_t number : numbers) ++times[static_cast<size_t>(number)];
      const int heads = way_.by_heads ? 1 : kHeads;
      for (int h = 0; h < kHeads; h += heads) OnRank(context, shard, numbers, h, h + heads, q, k);
      if (::testing::Test::HasFailure()) return;
    }
    const int64_t copies = ranks_ / PartsOf(OfRank(way_, 0, ranks_));
    EXPECT_EQ(std::count(times.begin(), times.end(), copies), length_) << way_.name;
  }

 private:
  int64_t row() const { return int64_t{kHeads} * kHeadDim * size_; }

  void Apply(const rope_context* context, const rope_shard* shard, int64_t tokens, int heads,
             std::vector<char>* q, std::vector<char>* k) {
    args_.tokens = tokens;
    args_.positions = positions_;
    args_.positions.shard = shard;
    args_.q = Tensor(q->data(), dtype_, heads);
    args_.k = Tensor(k->data(), dtype_, heads);
    ASSERT_OK(rope_apply_qk(context, &args_));
  }

  // Heads [first, last) of some tokens.
  std::vector<char> Take(const std::vector<char>& from, const Numbers& numbers, int first,
                         int last) const {
    std::vector<char> taken;
    for (int64_t b = 0; b < batch_; ++b) {
      for (const int64_t number : numbers) {
        const auto at = from.begin() + (b * length_ + number) * row();
        taken.insert(taken.end(), at + first * kHeadDim * size_, at + last * kHeadDim * size_);
      }
    }
    return taken;
  }

  void OnRank(const rope_context* context, const rope_shard& shard, const Numbers& numbers,
              int first, int last, const std::vector<char>& want_q,
              const std::vector<char>& want_k) {
    std::vector<char> q = Take(q_, numbers, first, last), k = Take(k_, numbers, first, last);
    Apply(context, &shard, static_cast<int64_t>(numbers.size()), last - first, &q, &k);
    EXPECT_TRUE(q == Take(want_q, numbers, first, last)) << way_.name << ", rank " << shard.rank;
    EXPECT_TRUE(k == Take(want_k, numbers, first, last)) << way_.name << ", rank " << shard.rank;
  }

  Way way_;
  int ranks_;
  int64_t batch_, length_ = 0, size_ = 0;
  rope_dtype dtype_ = 0;
  std::vector<int32_t> cu_seqlens_;
  Numbers offsets_;
  rope_positions positions_{};
  rope_qk_args args_{};
  std::vector<char> q_, k_;
};

class Gathered : public ::testing::TestWithParam<int> {};

TEST_P(Gathered, HasTheBitsOfOneProcess) {
  const int ranks = GetParam();
  Random r(static_cast<uint64_t>(ranks));
  rope_config config = Config(kHeadDim);
  const Context as_trained = Create(config);
  config.angle = ROPE_ANGLE_EXACT;
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  config.rounding = ROPE_ROUNDING_EAGER;
  const Context exact = Create(config);
  for (const Documents& documents : {kOneRow, kOneDocument, kManyDocuments}) {
    for (const Way& way : Ways(documents.count != 0)) {
      for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
        for (const rope_operation operation : {ROPE_OPERATION_FORWARD, ROPE_OPERATION_BACKWARD}) {
          SCOPED_TRACE(std::string(way.name) + ", " + documents.name);
          Whole whole(documents, way, ranks, dtype, operation, &r);
          whole.Compare((r.Sometimes(2) ? as_trained : exact).get());
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Gathered, ::testing::Range(1, kMostRanks + 1));

// What else takes positions: rows of cos and sin, prepared calls, and a cache with a slot for each
// token of the rank.
TEST(Shard, ServesRowsPreparedCallsAndMappedCaches) {
  const Context context = Create(Config(kHeadDim));
  const rope_shard shard = ShardOf(ROPE_SHARD_ZIGZAG, 1, 3);
  constexpr int kTokens = 4, kPairs = kHeadDim / 2;
  const Numbers numbers = NumbersOf(shard, 3 * kTokens);
  rope_positions positions = Offset(7);
  positions.shard = &shard;
  Numbers ids = numbers;
  for (int64_t& id : ids) id += 7;
  rope_positions by_ids{};
  by_ids.kind = ROPE_POSITIONS_IDS_T;
  by_ids.ids_i64 = ids.data();

  std::vector<float> rows[2];
  for (int n = 0; n < 2; ++n) {
    rows[n].resize(kTokens * 2 * kPairs);
    rope_cos_sin out = ROPE_INIT(rope_cos_sin);
    out.format = ROPE_COS_SIN_PACKED;
    out.dtype = ROPE_DTYPE_F32;
    out.pairs = kPairs;
    out.batch = 1;
    out.data = rows[n].data();
    ASSERT_OK(
        rope_cos_sin_fill(context.get(), 1, kTokens, n == 0 ? &positions : &by_ids, &out, nullptr));
  }
  EXPECT_EQ(rows[0], rows[1]);

  std::vector<float> x(kTokens * kHeadDim), results[3];
  std::iota(x.begin(), x.end(), 1.0f);
  for (std::vector<float>& result : results) result = x;
  rope_qk_args args = Args(1, kTokens);
  args.positions = by_ids;
  args.q = Tensor(results[0].data(), ROPE_DTYPE_F32, 1);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  args.positions = positions;
  args.q.data = nullptr;
  rope_prepared* made = nullptr;
  ASSERT_OK(rope_prepared_create(context.get(), &args, &made));
  const Prepared prepared(made);
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = results[1].data();
  ASSERT_OK(rope_prepared_apply(made, &data));
  EXPECT_EQ(results[1], results[0]);

  const std::vector<int32_t> slots = {6, 2, 0, 1};
  std::vector<float> cached(8 * kHeadDim);
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = 2;
  cache.page_size = 4;
  cache.slots_i32 = slots.data();
  cache.slots_length = kTokens;
  cache.k = Tensor(cached.data(), ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  args.q = rope_tensor{};
  args.k = Tensor(results[2].data(), ROPE_DTYPE_F32, 1);
  args.fused = &fused;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  for (size_t t = 0; t < kTokens; ++t) {
    EXPECT_TRUE(std::equal(cached.begin() + slots[t] * kHeadDim,
                           cached.begin() + (slots[t] + 1) * kHeadDim,
                           results[0].begin() + static_cast<int64_t>(t) * kHeadDim));
  }

  const std::vector<float> stored = cached;
  std::fill(cached.begin(), cached.end(), 0.0f);
  args.k.data = cache.k.data = nullptr;
  ASSERT_OK(rope_prepared_create(context.get(), &args, &made));
  const Prepared storing(made);
  data = ROPE_INIT(rope_qk_data);
  data.k = results[2].data();
  data.cache_k = cached.data();
  ASSERT_OK(rope_prepared_apply(made, &data));
  EXPECT_EQ(cached, stored);
  args.k.data = results[2].data();
  cache.k.data = cached.data();

  const int32_t starts[] = {0};
  cache.kind = ROPE_SLOTS_LINEAR;
  cache.slots_i32 = nullptr;
  cache.slots_length = 0;
  cache.starts = starts;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_apply_qk", {"cache->kind (ROPE_SLOTS_LINEAR)", "MAPPED", "positions.shard"});
}

// Norms are of the rank's own tokens, and so are roots that are given.
TEST(Shard, NormsTheTokensOfARank) {
  const Context context = Create(Config(kHeadDim));
  constexpr int kTokens = 12, kRanks = 3;
  std::vector<float> whole(kTokens * kHeadDim), weights(kHeadDim), roots(kTokens);
  std::iota(whole.begin(), whole.end(), -50.0f);
  std::iota(weights.begin(), weights.end(), 1.0f);
  std::iota(roots.begin(), roots.end(), 0.25f);
  for (const rope_norm_span span : {ROPE_NORM_SPAN_HEAD, ROPE_NORM_SPAN_GIVEN}) {
    const auto apply = [&](const rope_shard* shard, const std::vector<float>& rstd,
                           std::vector<float>* x) {
      rope_norm norm = ROPE_INIT(rope_norm);
      norm.kind = ROPE_NORM_KIND_RMS;
      norm.weight = weights.data();
      norm.weight_dtype = ROPE_DTYPE_F32;
      norm.span = span;
      if (span == ROPE_NORM_SPAN_HEAD) norm.eps = 1e-6;
      if (span == ROPE_NORM_SPAN_GIVEN) norm.rstd = rstd.data();
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.q_norm = &norm;
      rope_qk_args args = Args(1, static_cast<int64_t>(rstd.size()));
      args.positions = Offset(7);
      args.positions.shard = shard;
      args.q = Tensor(x->data(), ROPE_DTYPE_F32, 1);
      args.fused = &fused;
      ASSERT_OK(rope_apply_qk(context.get(), &args));
    };
    std::vector<float> want = whole;
    apply(nullptr, roots, &want);
    for (int rank = 0; rank < kRanks; ++rank) {
      const rope_shard shard = ShardOf(ROPE_SHARD_STRIPED, rank, kRanks);
      std::vector<float> own, own_roots, own_want;
      for (const int64_t n : NumbersOf(shard, kTokens)) {
        const auto from = n * kHeadDim, to = from + kHeadDim;
        own.insert(own.end(), whole.begin() + from, whole.begin() + to);
        own_want.insert(own_want.end(), want.begin() + from, want.begin() + to);
        own_roots.push_back(roots[static_cast<size_t>(n)]);
      }
      apply(&shard, own_roots, &own);
      EXPECT_EQ(own, own_want) << "rank " << rank;
    }
  }
}

// Every rank gets the answer of the whole sequence, and each token the set of its document.
TEST(Shard, IsAsLongAsItsSequence) {
  rope_config config = Config(kHeadDim);
  config.scaling = ROPE_SCALING_DYNAMIC;
  config.factor = 2;
  config.max_position_embeddings = 16;
  config.seq_len = 16;
  const Context context = Create(config);
  ASSERT_EQ(Info(context).valid_below, 17);
  std::vector<float> x(8 * kHeadDim);
  rope_qk_args args = Args(1, 8);
  args.q = Tensor(x.data(), ROPE_DTYPE_F32, 1);
  for (int rank = 0; rank < 2; ++rank) {
    const rope_shard shard = ShardOf(ROPE_SHARD_ZIGZAG, rank, 2);
    args.positions = Offset(0);
    args.positions.shard = &shard;
    EXPECT_OK(rope_apply_qk(context.get(), &args));
    args.positions.offset = 1;
    EXPECT_EQ(rope_apply_qk(context.get(), &args), kInvalid);
    ExpectMessage("rope_apply_qk", {"position 16 of token 15", "below 16"});
  }
}

TEST(Shard, GivesEachDocumentItsFrequencies) {
  rope_config near = Config(kHeadDim), far = Config(kHeadDim);
  far.theta = 500000;
  const Context both = CreateSets({near, far}), first = Create(near), second = Create(far);
  const std::vector<int32_t> cuts = {0, 8, 24}, sets = {1, 0};
  const rope_shard shard = PerDocument(ShardOf(ROPE_SHARD_STRIPED, 1, 4));
  std::vector<float> x(6 * kHeadDim, 1.0f), got = x;
  rope_qk_args args = Args(1, 6);
  args.positions = Offset(3);
  args.positions.shard = &shard;
  args.positions.cu_seqlens = cuts.data();
  args.positions.sequences = 2;
  args.positions.freq_sets = sets.data();
  args.q = Tensor(got.data(), ROPE_DTYPE_F32, 1);
  ASSERT_OK(rope_apply_qk(both.get(), &args));
  const Numbers ids = {3 + 1, 3 + 5, 3 + 1, 3 + 5, 3 + 9, 3 + 13};
  for (size_t t = 0; t < 6; ++t) {
    float* const token = x.data() + t * kHeadDim;
    ASSERT_OK(rope_apply_thd((t < 2 ? second : first).get(), ROPE_DTYPE_F32, 1, &ids[t], token, 1,
                             nullptr, 0));
  }
  EXPECT_EQ(got, x);
}

}  // namespace
}  // namespace rope::testing
