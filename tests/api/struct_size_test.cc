// struct_size: what was in memory where ROPE_INIT was forgotten is refused without reading by it,
// and programs built against the first release are read by a library whose structs have grown. This
// program is compiled, with the library's sources that read structs, against a header in which each
// struct that grows has got one more field at its end (tests/CMakeLists.txt makes it).
#include <gtest/gtest.h>

#include <cstring>

#include "context/backend.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/memory.h"

namespace rope {
namespace {

rope_status NoAttach(const char*, rope_context*) { return ROPE_OK; }
rope_status NoApply(const Plan&) { return ROPE_OK; }
rope_status NoFill(const FillPlan&) { return ROPE_OK; }
class NoCall final : public PreparedCall {
  rope_status Apply(const Plan&, const Tensor*, const FusedPlan*) const override { return ROPE_OK; }
};
std::unique_ptr<PreparedCall> NoPrepare(const Plan&) { return std::make_unique<NoCall>(); }

}  // namespace

const Backend* FindBackend(rope_device) {
  static constexpr Backend kNone = [] {
    Backend backend;
    backend.name = "CPU";
    backend.host_memory = true;
    backend.has_runner = true;
    backend.has_ggml = true;
    backend.has_moves = true;
    backend.attach = &NoAttach;
    backend.apply = &NoApply;
    backend.fill = &NoFill;
    backend.prepare = &NoPrepare;
    return backend;
  }();
  return &kNone;
}

namespace testing {
namespace {

// The sizes of the first release, on a machine with 64-bit pointers.
constexpr uint32_t kConfig = 224, kArgs = 440, kCosSin = 48, kInfo = 48, kData = 40, kFused = 144,
                   kCache = 208;
constexpr uint32_t kDataWithCache = 72;  // v, v_out, cache_k and cache_v were appended

static_assert(sizeof(void*) != 8 || sizeof(rope_config) > kConfig, "has not grown");
static_assert(sizeof(void*) != 8 || sizeof(rope_qk_args) > kArgs, "has not grown");
static_assert(sizeof(void*) != 8 || sizeof(rope_cos_sin) > kCosSin, "has not grown");
static_assert(sizeof(void*) != 8 || sizeof(rope_info) > kInfo, "has not grown");
static_assert(sizeof(void*) != 8 || sizeof(rope_qk_data) > kData, "has not grown");
static_assert(sizeof(void*) != 8 || sizeof(rope_fused) > kFused, "has not grown");
static_assert(sizeof(void*) != 8 || sizeof(rope_kv_cache) > kCache, "has not grown");

// A struct as an older program passes it: `size` bytes at the end of readable memory.
template <class T>
class Older {
 public:
  Older(T value, uint32_t size) : memory_(size, Edge::kEnd) {
    value.struct_size = size;
    std::memcpy(memory_.as<void>(), &value, size);
  }
  T* get() const { return memory_.as<T>(); }

 private:
  Guarded memory_;
};

TEST(StructSize, OfTheFirstReleaseIsReadByLaterOnes) {
  if (sizeof(void*) != 8) GTEST_SKIP() << "the sizes above are those of 64-bit machines";
  const Older<rope_config> config(Config(64), kConfig);
  rope_context* created = nullptr;
  ASSERT_OK(rope_context_create(config.get(), &created));
  const Context context(created);
  int64_t next = 0;
  EXPECT_OK(rope_config_next_change(config.get(), 0, &next));

  float memory[64] = {};
  rope_qk_args args = Args(1, 1);
  args.q = Tensor(memory, ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  const Older<rope_qk_args> older_args(args, kArgs);
  EXPECT_OK(rope_apply_qk(context.get(), older_args.get()));

  float cached[64];
  const int32_t slot = 0;
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = cache.page_size = 1;
  cache.v = Tensor(cached, ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
  cache.v.head_dim = 64;
  cache.slots_i32 = &slot;
  cache.slots_length = 1;
  const Older<rope_kv_cache> older_cache(cache, kCache);
  rope_fused fused = ROPE_INIT(rope_fused);
  float v[64];
  fused.v = Tensor(v, ROPE_DTYPE_F32, 1);
  fused.v.head_dim = 64;
  fused.cache = older_cache.get();
  const Older<rope_fused> older_fused(fused, kFused);
  args.fused = older_fused.get();
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  rope_fused move = ROPE_INIT(rope_fused);
  move.source = move.cache = older_cache.get();
  rope_qk_args keys = Args(1, 1);
  keys.positions = args.positions;
  keys.fused = &move;
  EXPECT_EQ(rope_apply_qk(context.get(), &keys), kInvalid);
  ExpectMessage("rope_apply_qk", {"args->fused->source->k is required"});
  args.fused = nullptr;

  const Older<rope_cos_sin> rows(Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, 32, 1, memory), kCosSin);
  EXPECT_OK(rope_cos_sin_fill(context.get(), 1, 1, &args.positions, rows.get(), nullptr));
  float q[64] = {};
  args.q.data = q;
  args.positions = {};
  args.cos_sin = rows.get();
  EXPECT_OK(rope_apply_qk(context.get(), &args));

  args.q.data = nullptr;
  rope_prepared* made = nullptr;
  const Older<rope_qk_args> prepared_args(args, kArgs);
  ASSERT_OK(rope_prepared_create(context.get(), prepared_args.get(), &made));
  const Prepared prepared(made);
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = q;
  const Older<rope_qk_data> older_data(data, kData);
  EXPECT_OK(rope_prepared_apply(prepared.get(), older_data.get()));
  const Older<rope_qk_data> with_cache(data, kDataWithCache);
  EXPECT_OK(rope_prepared_apply(prepared.get(), with_cache.get()));

  const Older<rope_info> info(rope_info{}, kInfo);
  EXPECT_OK(rope_context_info(context.get(), 0, info.get()));
  EXPECT_EQ(info.get()->head_dim, 64);
}

TEST(StructSize, GarbageIsNotReadBy) {
  const Context context = Create(Config(64));
  for (uint32_t size : {0xccccccccu, 0x7fff1234u, 4100u, uint32_t{sizeof(rope_config)} + 2}) {
    SCOPED_TRACE(size);
    const Guarded config(sizeof(rope_config), Edge::kEnd), args(sizeof(rope_qk_args), Edge::kEnd),
        rows(sizeof(rope_cos_sin), Edge::kEnd), info(sizeof(rope_info), Edge::kEnd),
        data(sizeof(rope_qk_data), Edge::kEnd), fused(sizeof(rope_fused), Edge::kEnd),
        cache(sizeof(rope_kv_cache), Edge::kEnd);
    for (const Guarded* memory : {&config, &args, &rows, &info, &data, &fused, &cache}) {
      *memory->as<uint32_t>() = size;
    }
    const auto expect = [&](const char* function, rope_status status) {
      EXPECT_EQ(status, kInvalid);
      ExpectMessage(function, {"struct_size (", "ROPE_INIT"});
    };
    rope_context* created = nullptr;
    int64_t next = -1;
    expect("rope_context_create", rope_context_create(config.as<rope_config>(), &created));
    expect("rope_config_next_change", rope_config_next_change(config.as<rope_config>(), 0, &next));
    expect("rope_apply_qk", rope_apply_qk(context.get(), args.as<rope_qk_args>()));
    float memory[64] = {};
    rope_qk_args with = Args(1, 1);
    with.q = Tensor(memory, ROPE_DTYPE_F32, 1);
    with.positions = Offset(0);
    with.fused = fused.as<rope_fused>();
    expect("rope_apply_qk", rope_apply_qk(context.get(), &with));
    rope_fused good = ROPE_INIT(rope_fused);
    good.cache = cache.as<rope_kv_cache>();
    with.fused = &good;
    expect("rope_apply_qk", rope_apply_qk(context.get(), &with));
    rope_prepared* made = nullptr;
    expect("rope_prepared_create",
           rope_prepared_create(context.get(), args.as<rope_qk_args>(), &made));
    EXPECT_EQ(made, nullptr);
    const rope_qk_args nothing = Args(1, 0);
    ASSERT_OK(rope_prepared_create(context.get(), &nothing, &made));
    const Prepared prepared(made);
    expect("rope_prepared_apply", rope_prepared_apply(prepared.get(), data.as<rope_qk_data>()));
    expect("rope_context_info", rope_context_info(context.get(), 0, info.as<rope_info>()));
    const rope_positions positions = Offset(0);
    expect("rope_cos_sin_fill",
           rope_cos_sin_fill(context.get(), 1, 1, &positions, rows.as<rope_cos_sin>(), nullptr));
    EXPECT_EQ(created, nullptr);
    EXPECT_EQ(next, -1);
  }
}

}  // namespace
}  // namespace testing
}  // namespace rope
