// Each call with a cache that is refused names its field, value and rule, and writes nothing.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "support/bad_caches.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/memory.h"

namespace rope::testing {
namespace {

using namespace bad_caches;  // NOLINT: what these tests are about

class CacheErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 4096; ++i) memory[i] = static_cast<float>(i) * 0.01f;
    std::memcpy(before, memory, sizeof(memory));
    context_ = Create(Config(kDim));
  }
  bool Unchanged() const { return std::memcmp(memory, before, sizeof(memory)) == 0; }
  Context context_;
};

TEST_F(CacheErrors, WhatTheyAreChangesOfIsGood) {
  for (const auto make : {Mapped, Paged, ByStarts, Linear}) {
    for (const auto good : {Good, GoodAlike}) {
      All all = good();
      make(&all);
      Connect(&all);
      EXPECT_OK(rope_apply_qk(context_.get(), &all.args));
      all.fused.rest = Rest();
      all.fused.rest_out = Rest();
      EXPECT_OK(rope_apply_qk(context_.get(), &all.args));
    }
  }
}

TEST_F(CacheErrors, EachIsRefusedWithItsMessageAndWritesNothing) {
  for (const auto good : {Good, GoodAlike}) {
    for (const Bad& bad : kBad) {
      All all = good();
      Mapped(&all);
      Connect(&all);
      if (std::strstr(bad.name, "PAGED") == nullptr) all.cache.slots_i64 = all.slots;
      bad.change(&all);
      if (all.cache.kind != ROPE_SLOTS_MAPPED && all.cache.kind != 0) all.cache.slots_i64 = nullptr;
      ExpectParts(kFunction, bad, rope_apply_qk(context_.get(), &all.args));
      ASSERT_TRUE(Unchanged()) << bad.name;
    }
  }
}

// The only token of a call has a way of its own, which leaves to the others what it does not do.
TEST_F(CacheErrors, OfOneTokenTooWhatOverlapsIsRefused) {
  const Bad bad[] = {
      {"k over q",
       [](All* a) { a->args.k.data = memory + kDim; },
       kInvalid,
       {"args->q overlaps args->k"}},
      {"q over k",
       [](All* a) { a->args.q.data = memory + 512 + kDim; },
       kInvalid,
       {"args->q overlaps args->k"}},
      {"v over q", [](All* a) { a->fused.v.data = memory + 1; }, kInvalid, {"v overlaps args->q"}},
      {"cache->v over q",
       [](All* a) { a->cache.v.data = memory; },
       kInvalid,
       {"args->fused->cache->v overlaps args->q"}},
      {"cache->k over k",
       [](All* a) { a->cache.k.data = memory + 512 + kDim; },
       kInvalid,
       {"args->fused->cache->k overlaps args->k"}},
      {"cache->v over cache->k",
       [](All* a) { a->cache.v.data = memory + 2048 + kDim; },
       kInvalid,
       {"args->fused->cache->v overlaps args->fused->cache->k"}},
  };
  for (const Bad& b : bad) {
    All all = GoodAlike();
    Mapped(&all);
    Connect(&all);
    all.args.tokens = all.cache.slots_length = 1;
    b.change(&all);
    ExpectParts(kFunction, b, rope_apply_qk(context_.get(), &all.args));
    ASSERT_TRUE(Unchanged()) << b.name;
  }
}

TEST_F(CacheErrors, NothingToDoReadsNothing) {
  All all = Good();
  Connect(&all);
  all.args.tokens = 0;
  all.cache.slots_i64 = nullptr;
  EXPECT_OK(rope_apply_qk(context_.get(), &all.args));
  EXPECT_TRUE(Unchanged());
}

// The addresses of a prepared call's tensors, which are NULL in `a` then.
rope_qk_data Detach(All* a) {
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  const auto take = [](rope_tensor* t) { return std::exchange(t->data, nullptr); };
  data.q = take(&a->args.q);
  data.k = take(&a->args.k);
  data.q_out = take(&a->args.q_out);
  data.k_out = take(&a->args.k_out);
  data.v = take(&a->fused.v);
  data.v_out = take(&a->fused.v_out);
  data.cache_k = take(&a->cache.k);
  data.cache_v = take(&a->cache.v);
  data.rest = take(&a->fused.rest);
  data.rest_out = take(&a->fused.rest_out);
  return data;
}

// All that needs no address: the same messages.
TEST_F(CacheErrors, OfArgumentsAreThoseOfPreparedCalls) {
  int refused = 0;
  for (const Bad& bad : kBad) {
    All all = Good();
    Mapped(&all);
    Connect(&all);
    bad.change(&all);
    if (all.cache.kind != ROPE_SLOTS_MAPPED && all.cache.kind != 0) all.cache.slots_i64 = nullptr;
    Detach(&all);
    rope_prepared* made = nullptr;
    const rope_status status = rope_prepared_create(context_.get(), &all.args, &made);
    const Prepared prepared(made);
    if (status == ROPE_OK) continue;  // it was about addresses
    ++refused;
    EXPECT_EQ(made, nullptr) << bad.name;
    ExpectParts("rope_prepared_create", bad, status);
  }
  EXPECT_GT(refused, 50);
  All all = Good();
  Mapped(&all);
  Connect(&all);
  Detach(&all);
  all.cache.k.data = memory;
  rope_prepared* made = nullptr;
  EXPECT_EQ(rope_prepared_create(context_.get(), &all.args, &made), kInvalid);
  ExpectMessage("rope_prepared_create", {"args->fused->cache->k.data (0x", "must be NULL"});
}

TEST_F(CacheErrors, OfPreparedDataNameThePointerAndWriteNothing) {
  using D = rope_qk_data;
  const BadInput<D> bad[] = {
      {"no v", [](D* d) { d->v = nullptr; }, kInvalid, {"data->v (NULL)", "has v"}},
      {"no cache_k", [](D* d) { d->cache_k = nullptr; }, kInvalid, {"data->cache_k (NULL)"}},
      {"an older program",
       [](D* d) { d->struct_size = offsetof(D, v); },
       kInvalid,
       {"data->cache_k (NULL)", "has cache_k"}},
      {"v_out", [](D* d) { d->v_out = memory; }, kInvalid, {"data->v_out (0x", "has no v_out"}},
      {"cache_k beside",
       [](D* d) { d->cache_k = static_cast<char*>(d->cache_k) + 2; },
       kInvalid,
       {"data->cache_k (0x", "aligned"}},
      {"beyond the address space",
       [](D* d) { d->cache_v = reinterpret_cast<void*>(~uintptr_t{15}); },
       kInvalid,
       {"data->cache_v", "pages 4", "address space"}},
      {"cache_k over q",
       [](D* d) { d->cache_k = d->q; },
       kInvalid,
       {"data->cache_k overlaps data->q"}},
      {"cache_v over cache_k",
       [](D* d) { d->cache_v = static_cast<float*>(d->cache_k) + 8; },
       kInvalid,
       {"data->cache_v overlaps data->cache_k"}},
      {"v over q", [](D* d) { d->v = d->q; }, kInvalid, {"data->v overlaps data->q"}},
  };
  All all = Good();
  Mapped(&all);
  Connect(&all);
  const D good = Detach(&all);
  const Prepared prepared = Prepare(context_, all.args);
  ASSERT_NE(prepared, nullptr);
  for (const auto& row : bad) {
    D data = good;
    row.change(&data);
    ExpectParts("rope_prepared_apply", row, rope_prepared_apply(prepared.get(), &data));
    ASSERT_TRUE(Unchanged()) << row.name;
  }
  EXPECT_OK(rope_prepared_apply(prepared.get(), &good));
  EXPECT_FALSE(Unchanged());
  all.args.fused = nullptr;
  const Prepared without = Prepare(context_, all.args);
  EXPECT_EQ(rope_prepared_apply(without.get(), &good), kInvalid);
  ExpectMessage("rope_prepared_apply", {"data->cache_k (0x", "has no cache_k"});
}

TEST_F(CacheErrors, MemoryBehindThePagesAndArraysIsNotTouched) {
  for (const auto make : {Mapped, Paged, ByStarts, Linear}) {
    All all = Good();
    make(&all);
    Connect(&all);
    const size_t bytes = all.cache.pages * all.cache.page_size * kHeads * sizeof(float);
    const Guarded k(bytes * kDim, Edge::kEnd), v(bytes * 6, Edge::kStart),
        slots(sizeof(all.slots), Edge::kEnd), table(sizeof(all.table) - 4, Edge::kEnd),
        page_starts(sizeof(all.page_starts), Edge::kEnd), starts(sizeof(all.starts), Edge::kEnd);
    all.cache.k.data = k.as<void>();
    all.cache.v.data = v.as<void>();
    const auto move = [](auto** array, const Guarded& to, size_t size) {
      if (*array == nullptr) return;
      std::memcpy(to.as<void>(), *array, size);
      *array = to.as<std::remove_pointer_t<decltype(*array + 0)>>();
    };
    move(&all.cache.slots_i64, slots, sizeof(all.slots));
    move(&all.cache.page_table, table, sizeof(all.table) - 4);  // the last entry is not read
    move(&all.cache.page_starts, page_starts, sizeof(all.page_starts));
    move(&all.cache.starts, starts, sizeof(all.starts));
    EXPECT_OK(rope_apply_qk(context_.get(), &all.args));
  }
}

}  // namespace
}  // namespace rope::testing
