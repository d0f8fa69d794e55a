// What rope.hpp adds to the C API: ownership that moves, errors that carry a message, and the
// functions that start plain structs.
#include <gtest/gtest.h>
#include <librope/rope.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/gguf_bytes.h"

namespace rope::testing {
namespace {

constexpr int kDim = 4;

rope_config ConfigOf(double theta) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.theta = theta;
  config.pairing = ROPE_PAIRING_HALVES;
  return config;
}

std::vector<float> Rotated(const Context& context, const rope_positions& positions, int tokens) {
  std::vector<float> x(static_cast<size_t>(tokens * kDim), 1.0f);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = tokens;
  args.q = Bshd(x.data(), ROPE_DTYPE_F32, 1);
  args.positions = positions;
  context.Apply(args);
  return x;
}

template <class T>
void ExpectMovesAndNeverCopies() {
  EXPECT_TRUE(std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>);
  EXPECT_FALSE(std::is_copy_constructible_v<T> || std::is_copy_assignable_v<T>);
}

TEST(Cpp, HandlesMoveAndAreNeverCopied) {
  ExpectMovesAndNeverCopies<Context>();
  ExpectMovesAndNeverCopies<Prepared>();
  ExpectMovesAndNeverCopies<Pool>();
  ExpectMovesAndNeverCopies<Model>();
}

// One token, of which k is stored as v is: at position 0 nothing turns.
TEST(Cpp, CachesAreDescribedByTheirKind) {
  const Context context(ConfigOf(10000));
  const int32_t slots[] = {5}, table[] = {1, 2}, page_starts[] = {1, 2}, starts[] = {1};
  const int64_t slots64[] = {5};
  const std::pair<rope_kv_cache, int> caches[] = {
      {MappedCache(4, 2, slots, 1), 5},        {MappedCache(4, 2, slots64, 1), 5},
      {PagedCache(4, 2, table, 2, starts), 3}, {PagedCache(4, 2, table, page_starts, starts), 5},
      {LinearCache(4, 2, starts), 1},
  };
  for (auto [cache, slot] : caches) {
    std::vector<float> x(kDim, 1.5f), k(8 * kDim), v(k);
    cache.k = Nhd(k.data(), ROPE_DTYPE_F32, 1);
    cache.v = WithHeadDim(Hnd(v.data(), ROPE_DTYPE_F32, 1), kDim);
    const rope_fused fused = Append(cache, WithHeadDim(Bshd(x.data(), ROPE_DTYPE_F32, 1), kDim));
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = args.tokens = 1;
    args.k = Bshd(x.data(), ROPE_DTYPE_F32, 1);
    args.positions = Offset(0);
    args.fused = &fused;
    context.Apply(args);
    std::vector<float> want(8 * kDim);
    std::fill_n(want.begin() + slot * kDim, kDim, 1.5f);
    EXPECT_EQ(k, want);
    EXPECT_EQ(v, want);
  }
}

TEST(Cpp, KeysMoveFromSlotsToSlots) {
  const Context context(ConfigOf(10000));
  const int32_t from[] = {1}, to[] = {6};
  std::vector<float> k(8 * kDim, 2.5f), v(k), want_k(k), want_v(k);
  std::fill_n(k.begin() + 1 * kDim, kDim, 1.5f);
  std::fill_n(v.begin() + 1 * kDim, kDim, 0.5f);
  for (auto [slot, value] : {std::pair{1, 1.5f}, {6, 1.5f}}) {
    std::fill_n(want_k.begin() + slot * kDim, kDim, value);
    std::fill_n(want_v.begin() + slot * kDim, kDim, value - 1);
  }
  rope_kv_cache source = MappedCache(4, 2, from, 1), cache = MappedCache(4, 2, to, 1);
  source.k = cache.k = Nhd(k.data(), ROPE_DTYPE_F32, 1);
  source.v = cache.v = WithHeadDim(Nhd(v.data(), ROPE_DTYPE_F32, 1), kDim);
  const rope_positions before = Offset(0);
  const rope_fused fused = Move(source, cache, &before);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.operation = ROPE_OPERATION_REROTATE;
  args.batch = args.tokens = 1;
  args.positions = Offset(0);
  args.fused = &fused;
  context.Apply(args);
  EXPECT_EQ(k, want_k);
  EXPECT_EQ(v, want_v);
}

// One token of ones: at position 0 nothing turns, and a head of ones is its own norm.
TEST(Cpp, NormsAreDescribedInOneLine) {
  const Context context(ConfigOf(10000));
  const std::vector<float> weights(kDim, 3.0f);
  const rope_norm norm = MakeNorm(ROPE_NORM_KIND_RMS, 1e-30, weights.data(), ROPE_DTYPE_F32);
  std::vector<float> x(kDim, 1.0f);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused = WithNorms(fused, &norm, nullptr);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = args.tokens = 1;
  args.q = Bshd(x.data(), ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  args.fused = &fused;
  context.Apply(args);
  EXPECT_EQ(x, weights);

  // Each of its own tensor, beside what is there.
  const rope_norm others[2] = {};
  const rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  const rope_fused all = WithNorms(Append(cache), &norm, &others[0], &others[1]);
  EXPECT_EQ(all.q_norm, &norm);
  EXPECT_EQ(all.k_norm, &others[0]);
  EXPECT_EQ(all.v_norm, &others[1]);
  EXPECT_EQ(all.cache, &cache);
  EXPECT_EQ(WithNorms(all, nullptr, &norm).v_norm, nullptr);

  // And their gradients: of one channel's weight, what the channel was after the norm.
  std::vector<float> up(kDim, 0.5f), grad(kDim, 7.0f), ones(kDim, 1.0f);
  const rope_tensor before = Bshd(ones.data(), ROPE_DTYPE_F32, 1);
  const rope_norm back = WithGradients(norm, before, grad.data(), 1);
  fused.q_norm = &back;
  args.operation = ROPE_OPERATION_BACKWARD;
  args.q = Bshd(up.data(), ROPE_DTYPE_F32, 1);
  context.Apply(args);
  EXPECT_EQ(grad, std::vector<float>(kDim, 0.5f));
  EXPECT_EQ(up, std::vector<float>(kDim, 0.0f));  // a norm forgets the size
}

// The same ones, in steps of a half.
TEST(Cpp, OutputsIn8BitsHaveTheirScale) {
  const Context context(ConfigOf(10000));
  const rope_scale scale = GivenScale(0.5f);
  std::vector<float> x(kDim, 1.0f);
  std::vector<int8_t> codes(kDim);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = args.tokens = 1;
  args.q = Bshd(x.data(), ROPE_DTYPE_F32, 1);
  args.q_out = WithScale(Bshd(codes.data(), ROPE_DTYPE_I8, 1), scale);
  args.positions = Offset(0);
  context.Apply(args);
  EXPECT_EQ(codes, std::vector<int8_t>(kDim, 2));
}

// Two tokens of two heads, whose largest sizes in groups of half a head are powers of two, times
// 127.
TEST(Cpp, ScalesAreComputedWhereStridesSay) {
  const Context context(ConfigOf(10000));
  std::vector<float> x(4 * kDim), scales(20, 7.0f);
  for (int i = 0; i < 4 * kDim; ++i) x[i] = 127 * std::ldexp(1.0f, i / (kDim / 2) - 4);
  std::vector<uint8_t> exponents(20, 7);
  std::vector<int8_t> codes(4 * kDim);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 2;
  args.tokens = 1;
  args.q = Bshd(x.data(), ROPE_DTYPE_F32, 2);
  args.positions = Offset(0);
  for (const rope_scale& scale : {ComputedScale(scales.data(), 10, 1, 4, kDim / 2),
                                  ComputedScale(exponents.data(), 10, 1, 4, kDim / 2)}) {
    args.q_out = WithScale(Bshd(codes.data(), ROPE_DTYPE_I8, 2), scale);
    context.Apply(args);
    EXPECT_EQ(codes, std::vector<int8_t>(4 * kDim, 127));
  }
  for (int i = 0; i < 20; ++i) {
    const int group = i % 10 == 0 ? 0 : i % 10 == 1 ? 1 : i % 10 == 4 ? 2 : i % 10 == 5 ? 3 : -1;
    const int exponent = group + i / 10 * 4 - 4;
    EXPECT_EQ(scales[i], group < 0 ? 7 : std::ldexp(1.0f, exponent)) << i;
    EXPECT_EQ(exponents[i], group < 0 ? 7 : 127 + exponent) << i;
  }

  // One for each head.
  args.q_out.scale = nullptr;
  const rope_scale of_heads = ComputedScale(scales.data(), 2, 2, 1);
  args.q_out = WithScale(args.q_out, of_heads);
  context.Apply(args);
  EXPECT_EQ(std::vector<float>(&scales[0], &scales[4]),
            (std::vector<float>{0.125f, 0.5f, 2.0f, 8.0f}));
}

TEST(Cpp, MovedFromHandlesAreEmpty) {
  Context a(ConfigOf(10000)), b(ConfigOf(7));
  const std::vector<float> of_b = Rotated(b, Offset(3), 1);
  a = std::move(b);
  EXPECT_EQ(Rotated(a, Offset(3), 1), of_b);
  EXPECT_THROW(Rotated(b, Offset(3), 1), Error);  // and not by the frequencies that a had
  Context* const itself = &a;
  a = std::move(*itself);
  EXPECT_EQ(Rotated(a, Offset(3), 1), of_b);

  Pool pool(2), other(3);
  pool = std::move(other);
  EXPECT_NE(pool.runner(), nullptr);
  EXPECT_EQ(other.runner(), nullptr);
  Model model("{\"rope_type\": \"default\"}"), empty(std::move(model));
  EXPECT_EQ(model.layer_types(), 0);
  EXPECT_EQ(empty.layer_types(), 1);
}

TEST(Cpp, ModelsOfGgufFiles) {
  const std::string bytes = GgufBytes("llama").Bytes();
  EXPECT_EQ(Model::FromGguf(bytes).LayerType(3), 0);
  EXPECT_THROW(Model::FromGguf("GGUF"), Error);
  const uint32_t layers = 2, width = 64;
  const std::vector<rope_gguf_value> values = {{"general.architecture", 8, 0, 5, "llama"},
                                               {"llama.block_count", 4, 0, 0, &layers},
                                               {"llama.attention.key_length", 4, 0, 0, &width}};
  const std::vector<float> twos(32, 2);
  EXPECT_EQ(Model::FromGgufValues(values).LayerType(1), 0);
  const Model scaled =
      Model::FromGgufValues(values, {{"rope_freqs.weight", twos.data(), twos.size()}});
  EXPECT_EQ(scaled.Config(0).table_length, 32);
  EXPECT_THROW(Model::FromGgufValues({}), Error);
  const std::string path = ::testing::TempDir() + "cpp_api_test.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  const Model model = Model::LoadGguf(path);
  EXPECT_EQ(std::remove(path.c_str()), 0);
  EXPECT_EQ(model.Config(0).pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_THROW(Model::LoadGguf(path), Error);
}

TEST(Cpp, DigestsAreThoseOfTheConfiguration) {
  const Model model(R"({"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2})");
  EXPECT_EQ(model.Digest(0), Digest(model.Config(0)));
  EXPECT_NE(model.Digest(), model.Digest(0));
  EXPECT_NE(model.Digest(0), model.Digest(0, ROPE_DIGEST_ANGLES));
  EXPECT_THROW(model.Digest(1), Error);
}

TEST(Cpp, AModelAcceptsKeysByName) {
  const std::string text = R"({"rope_type": "linear", "factor": 4, "attn_factor": 2})";
  EXPECT_THROW(Model{text}, Error);
  const Model model(text, {"attn_factor"});
  EXPECT_EQ(model.layer_types(), 1);
  EXPECT_EQ(model.note(0), nullptr);
  EXPECT_THROW(Model(text, {"attn_factor", "factor"}), Error);
}

// C would take what stands before it.
TEST(Cpp, TextsWithANulCharacterAreRefused) {
  const std::string text = R"({"rope_type": "linear", "factor": 4, "attn_factor": 2})";
  try {
    const Model model(text, {"attn_factor", std::string("attn_factor\0and more", 20)});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), ROPE_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(
        error.what(),
        "Model: accepted_keys[1] (\"attn_factor\" and more) must not have a NUL character");
  }
  const std::string path = ::testing::TempDir() + "cpp_api_test_nul.gguf";
  std::ofstream(path, std::ios::binary) << GgufBytes("llama").Bytes();
  EXPECT_EQ(Model::LoadGguf(path).layer_types(), 1);
  EXPECT_THROW(Model::LoadGguf(path + '\0' + "more"), Error);
  EXPECT_EQ(std::remove(path.c_str()), 0);
}

TEST(Cpp, AModelOfDiffusersGivesIds) {
  const Model model(R"({"_class_name": "FluxTransformer2DModel"})");
  const rope_latent_grid grid = {1, 1, 2, 0};
  rope_latent_args args = ROPE_INIT(rope_latent_args);
  args.count = 1;
  args.grids = &grid;
  args.text = 1;
  EXPECT_EQ(model.LatentIds(0, args), (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 1}));
  args.text = -1;
  EXPECT_THROW(model.LatentIds(0, args), Error);
}

// What of an owner lives as long as it does: a lasting one gives it, a temporary one does not.
template <class Owner, class Get>
void ExpectGivenWhileItLasts(Get) {
  EXPECT_TRUE((std::is_invocable_v<Get, const Owner&>));
  EXPECT_FALSE((std::is_invocable_v<Get, Owner>));
  EXPECT_FALSE((std::is_invocable_v<Get, const Owner>));
}

#define ROPE_GET(member) \
  [](auto&& owner) -> decltype(std::forward<decltype(owner)>(owner).member) { return {}; }

TEST(Cpp, TemporaryOwnersGiveNothingThatWouldOutliveThem) {
  ExpectGivenWhileItLasts<Context>(ROPE_GET(get()));
  ExpectGivenWhileItLasts<Context>(ROPE_GET(backend()));
  ExpectGivenWhileItLasts<Prepared>(ROPE_GET(get()));
  ExpectGivenWhileItLasts<Pool>(ROPE_GET(runner()));
  ExpectGivenWhileItLasts<Model>(ROPE_GET(layer_type_name(0)));
  ExpectGivenWhileItLasts<Model>(ROPE_GET(note(0)));
  ExpectGivenWhileItLasts<Model>(ROPE_GET(Config(0)));
}

#undef ROPE_GET

// q with 2 heads from one tensor into another, k with 1 head in place; 3 tokens.
rope_qk_args LayerArgs(void* q, void* k, void* q_out) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = 3;
  args.q = Bshd(q, ROPE_DTYPE_F32, 2);
  args.q_out = Bhsd(q_out, ROPE_DTYPE_F32, 2);
  args.k = Bshd(k, ROPE_DTYPE_F32, 1);
  args.positions = Offset(5);
  return args;
}

TEST(Cpp, APreparedCallGivesTheBitsOfTheCall) {
  const Context context(ConfigOf(100));
  const Prepared prepared(context, LayerArgs(nullptr, nullptr, nullptr));
  EXPECT_NE(prepared.get(), nullptr);
  for (float value : {1.0f, 0.3f}) {  // layers
    std::vector<float> q(3 * 2 * kDim, value), k(3 * kDim, -value), q_out(q.size());
    std::vector<float> want_k = k, want_q_out = q_out, again_k = k, again_q_out = q_out;
    context.Apply(LayerArgs(q.data(), want_k.data(), want_q_out.data()));
    EXPECT_NE(want_k, k);
    prepared.Apply(q.data(), k.data(), q_out.data());
    EXPECT_EQ(k, want_k);
    EXPECT_EQ(q_out, want_q_out);
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.q = q.data();
    data.k = again_k.data();
    data.q_out = again_q_out.data();
    prepared.Apply(data);
    EXPECT_EQ(again_k, want_k);
    EXPECT_EQ(again_q_out, want_q_out);
  }
}

TEST(Cpp, APreparedCallStoresInTheCacheOfEachLayer) {
  const Context context(ConfigOf(100));
  const int64_t slots[] = {5, -1, 2};
  const auto args_of = [&](void* k, void* v, rope_kv_cache* cache, rope_fused* fused, void* cache_k,
                           void* cache_v) {
    *cache = MappedCache(4, 2, slots, 3);
    cache->k = Nhd(cache_k, ROPE_DTYPE_F32, 1);
    cache->v = WithHeadDim(Nhd(cache_v, ROPE_DTYPE_F32, 1), kDim);
    *fused = Append(*cache, WithHeadDim(Bshd(v, ROPE_DTYPE_F32, 1), kDim));
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = 3;
    args.k = Bshd(k, ROPE_DTYPE_F32, 1);
    args.positions = Offset(5);
    args.fused = fused;
    return args;
  };
  rope_kv_cache cache;
  rope_fused fused;
  const Prepared prepared(context, args_of(nullptr, nullptr, &cache, &fused, nullptr, nullptr));
  for (float value : {1.0f, 0.3f}) {  // layers
    std::vector<float> k(3 * kDim, value), v(3 * kDim, -value), cache_k(8 * kDim, 9.0f);
    std::vector<float> cache_v = cache_k, want_k = cache_k, want_v = cache_k;
    context.Apply(args_of(k.data(), v.data(), &cache, &fused, want_k.data(), want_v.data()));
    EXPECT_NE(want_k, cache_k);
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.k = k.data();
    data.v = v.data();
    data.cache_k = cache_k.data();
    data.cache_v = cache_v.data();
    prepared.Apply(data);
    EXPECT_EQ(cache_k, want_k);
    EXPECT_EQ(cache_v, want_v);
    data.cache_v = nullptr;
    EXPECT_EQ(prepared.TryApply(data), ROPE_ERROR_INVALID_ARGUMENT);
  }
}

TEST(Cpp, APreparedCallMovesAndThrows) {
  const Context context(ConfigOf(100)), other(ConfigOf(7));
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = args.tokens = 1;
  args.q = Bshd(nullptr, ROPE_DTYPE_F32, 1);
  args.positions = Offset(3);
  Prepared a(other, args), b(context, args);
  a = std::move(b);
  Prepared* const itself = &a;
  a = std::move(*itself);
  const Prepared moved(std::move(a));
  std::vector<float> x(kDim, 1.0f);
  moved.Apply(x.data(), nullptr);
  EXPECT_EQ(x, Rotated(context, Offset(3), 1));
  for (const Prepared* empty : {&a, &b}) {
    EXPECT_THROW(empty->Apply(x.data(), nullptr), Error);
    EXPECT_EQ(empty->TryApply(x.data(), nullptr), ROPE_ERROR_INVALID_ARGUMENT);
  }
  EXPECT_THROW(moved.Apply(rope_qk_data{}), Error);
  EXPECT_EQ(moved.TryApply(x.data(), x.data()), ROPE_ERROR_INVALID_ARGUMENT);
  args.q.data = x.data();
  EXPECT_THROW(Prepared(context, args), Error);
  EXPECT_EQ(x, Rotated(context, Offset(3), 1));
}

TEST(Cpp, ATemporaryContextIsNotPrepared) {
  EXPECT_TRUE((std::is_constructible_v<Prepared, const Context&, const rope_qk_args&>));
  EXPECT_FALSE((std::is_constructible_v<Prepared, Context, const rope_qk_args&>));
}

TEST(Cpp, ErrorsAlwaysSaySomething) {
  try {
    const Context context(ConfigOf(-1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), ROPE_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.what()).find("config->theta (-1)"), std::string::npos);
  }
  std::thread([] {  // which has had no error
    try {
      Check(ROPE_ERROR_OUT_OF_MEMORY);
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), rope_status_string(ROPE_ERROR_OUT_OF_MEMORY));
    }
  })
      .join();
}

TEST(Cpp, PackedSequencesBeginAtTheirOffsets) {
  const Context context(ConfigOf(100));
  const int32_t cu_seqlens[] = {0, 2, 3}, offsets[] = {5, 9};
  const int64_t wide[] = {5, 9}, ids[] = {5, 6, 9};
  const std::vector<float> want = Rotated(context, Ids(ROPE_POSITIONS_IDS_T, ids), 3);
  EXPECT_EQ(Rotated(context, Packed(offsets, cu_seqlens, 2), 3), want);
  EXPECT_EQ(Rotated(context, Packed(wide, cu_seqlens, 2), 3), want);
}

TEST(Cpp, ShardsAreOfARank) {
  const Context context(ConfigOf(100));
  const rope_shard shard = Then(ZigzagShard(1, 2), StripedShard(0, 3, 2));
  const rope_positions positions = OnRank(shard, Offset(5));
  int64_t ids[4], numbers[4];
  ShardIds(1, 4, positions, ids, numbers);
  EXPECT_EQ(std::vector<int64_t>(ids, ids + 4), (std::vector<int64_t>{11, 12, 17, 18}));
  EXPECT_EQ(std::vector<int64_t>(numbers, numbers + 4), (std::vector<int64_t>{6, 7, 12, 13}));
  EXPECT_EQ(Rotated(context, positions, 4), Rotated(context, Ids(ROPE_POSITIONS_IDS_T, ids), 4));
  const rope_shard packed = PerDocument(ContiguousShard(1, 2));
  const int32_t cu_seqlens[] = {0, 4, 8};
  const int64_t offsets[] = {5, 9}, want[] = {7, 8, 11, 12};
  EXPECT_EQ(Rotated(context, OnRank(packed, Packed(offsets, cu_seqlens, 2)), 4),
            Rotated(context, Ids(ROPE_POSITIONS_IDS_T, want), 4));
  EXPECT_THROW(ShardIds(1, 3, positions, ids), Error);
  EXPECT_THROW(Then(shard, ContiguousShard(0, 2)), Error);
  EXPECT_THROW(Then(ContiguousShard(0, 2), shard), Error);
  EXPECT_THROW(Then(ContiguousShard(0, 2), packed), Error);
  rope_shard inner = ContiguousShard(0, 2);
  inner.inner_world = 2;
  EXPECT_THROW(Then(ContiguousShard(0, 2), inner), Error);
}

TEST(Cpp, InvFreqIsTheTableOfFrequency) {
  rope_config config = ConfigOf(100);
  const std::vector<double> table = {1, 0.5, 0.25, 0.125, -1, -0.5, 0.75, 2};
  config.table_length = config.head_dim / 2;
  config.theta = 0;
  config.axes = 1;
  config.freq_heads = 8 / config.table_length;
  config.frequency = table.data();
  EXPECT_EQ(Context(config).InvFreq(), table);
}

template <class Cache, class = void>
constexpr bool kAppends = false;
template <class Cache>
constexpr bool kAppends<Cache, std::void_t<decltype(Append(std::declval<Cache>()))>> = true;

TEST(Cpp, ATemporaryCacheIsNotAppendedTo) {
  EXPECT_TRUE((kAppends<const rope_kv_cache&>));
  EXPECT_FALSE((kAppends<rope_kv_cache>));
}

template <class Source, class Cache, class = void>
constexpr bool kMoves = false;
template <class Source, class Cache>
constexpr bool kMoves<Source, Cache,
                      std::void_t<decltype(Move(std::declval<Source>(), std::declval<Cache>()))>> =
    true;

TEST(Cpp, TemporaryCachesDoNotMove) {
  using Lasting = const rope_kv_cache&;
  EXPECT_TRUE((kMoves<Lasting, Lasting>));
  EXPECT_FALSE((kMoves<rope_kv_cache, Lasting>));
  EXPECT_FALSE((kMoves<Lasting, rope_kv_cache>));
  EXPECT_FALSE((kMoves<rope_kv_cache, rope_kv_cache>));
}

}  // namespace
}  // namespace rope::testing
