// The proofs of call/overlap.h against sets of bytes, and for the layouts of caches that engines
// have.
#include <gtest/gtest.h>

#include <bitset>
#include <cstdint>

#include "call/overlap.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {
namespace {

constexpr int kBytes = 1024;

// What a small region touches.
struct Bytes {
  explicit Bytes(const Region& region) {
    const Footprint& of = region.of;
    for (int64_t i = 0; i < of.counts[0]; ++i) {
      for (int64_t j = 0; j < of.counts[1]; ++j) {
        for (int64_t k = 0; k < of.counts[2]; ++k) {
          const auto first =
              region.base +
              static_cast<uint64_t>(i * of.strides[0] + j * of.strides[1] + k * of.strides[2]);
          for (int64_t b = 0; b < of.width; ++b) {
            const size_t at = first + static_cast<uint64_t>(b);
            repeats |= set[at];
            set[at] = true;
          }
        }
      }
    }
  }
  std::bitset<kBytes> set;
  bool repeats = false;
};

Footprint RandomFootprint(Random& r) {
  Footprint of{};
  for (int d = 0; d < 3; ++d) {
    of.counts[d] = r.Pick(1, 4);
    of.strides[d] = r.Pick(0, 12) * r.Of({1, 2, 4, 7});
  }
  of.width = r.Pick(1, 8);
  return of;
}

// A part of the pages of a cache: rows in each page, pages apart by what holds all parts.
Footprint RandomPart(Random& r, int64_t page) {
  Footprint of{};
  of.width = r.Pick(1, 8);
  of.counts[2] = r.Pick(1, 3);
  of.strides[2] = of.width + r.Pick(0, 3);
  of.counts[1] = r.Pick(1, 3);
  of.strides[1] = of.counts[2] * of.strides[2] + r.Pick(0, 9);
  of.counts[0] = r.Pick(1, 4);
  of.strides[0] = r.Sometimes(8) ? r.Pick(0, 40) : page;
  return of;
}

TEST(OverlapProof, HoldsForEveryByte) {
  Random r(1);
  const int count = LongTests() ? 20000000 : 2000000;
  int64_t proved = 0, harmless = 0, injective = 0, inside = 0;
  for (int n = 0; n < count; ++n) {
    const bool parts = r.Sometimes(2);
    const int64_t page = r.Pick(10, 130);
    const Footprint a = parts ? RandomPart(r, page) : RandomFootprint(r);
    const Footprint b = parts ? RandomPart(r, page) : RandomFootprint(r);
    const Region at_a = {a, static_cast<uint64_t>(r.Pick(0, 150))},
                 at_b = {b, static_cast<uint64_t>(r.Pick(0, 150))};
    const Bytes of_a(at_a), of_b(at_b);
    const bool meet = (of_a.set & of_b.set).any();
    const bool disjoint = AreDisjoint(at_a, at_b);
    ASSERT_FALSE(disjoint && meet) << n;
    ASSERT_EQ(disjoint, AreDisjoint(at_b, at_a)) << n;
    ASSERT_FALSE(IsInjective(a) && of_a.repeats) << n;
    proved += disjoint;
    harmless += !meet;
    injective += IsInjective(a);
    inside += parts && disjoint;
  }
  // What it refuses in vain is little.
  EXPECT_GT(proved, harmless * 9 / 10) << "of " << harmless;
  EXPECT_GT(inside, count / 20);
  EXPECT_GT(injective, count / 20);
}

struct Part {
  const char* name;
  int64_t offset;
  Footprint of;  // pages, slots, heads
};

void ExpectDisjoint(const Part& a, const Part& b) {
  for (const uint64_t base : {uint64_t{0}, uint64_t{1} << 40}) {
    EXPECT_TRUE(AreDisjoint({a.of, base + static_cast<uint64_t>(a.offset)},
                            {b.of, base + static_cast<uint64_t>(b.offset)}))
        << a.name << " and " << b.name;
    EXPECT_TRUE(AreDisjoint({b.of, base + static_cast<uint64_t>(b.offset)},
                            {a.of, base + static_cast<uint64_t>(a.offset)}))
        << b.name << " and " << a.name;
  }
}

TEST(OverlapProof, KnowsThePagesOfEngines) {
  // [pages, 2, slots, heads, dim] and [pages, slots, heads, 2 * dim], bf16.
  ExpectDisjoint({"K of [pages, 2, ..]", 0, {{900, 16, 8}, {2 * 32768, 2048, 256}, 256}},
                 {"V of [pages, 2, ..]", 32768, {{900, 16, 8}, {2 * 32768, 2048, 256}, 256}});
  ExpectDisjoint({"K in a head", 0, {{900, 16, 8}, {65536, 4096, 512}, 256}},
                 {"V in a head", 256, {{900, 16, 8}, {65536, 4096, 512}, 256}});
  // The latent and its scales in one row: 656 and 132 bytes.
  ExpectDisjoint({"512 codes", 0, {{900, 64, 1}, {64 * 656, 656, 0}, 512}},
                 {"4 scales", 512, {{900, 64, 1}, {64 * 656, 656, 0}, 16}});
  ExpectDisjoint({"4 scales", 512, {{900, 64, 1}, {64 * 656, 656, 0}, 16}},
                 {"64 of bf16", 528, {{900, 64, 1}, {64 * 656, 656, 0}, 128}});
  ExpectDisjoint({"128 codes", 0, {{900, 64, 1}, {64 * 132, 132, 0}, 128}},
                 {"a scale", 128, {{900, 64, 1}, {64 * 132, 132, 0}, 4}});
  // 64 rows of 576 bytes, then their scales: pages of 37376 bytes, which is no multiple of rows.
  ExpectDisjoint({"64 rows", 0, {{900, 64, 1}, {37376, 576, 0}, 576}},
                 {"their scales", 64 * 576, {{900, 64, 1}, {37376, 8, 0}, 8}});
  // In such a row, 448 codes and then 64 of bf16: the strides' common divisor is 64.
  ExpectDisjoint({"448 codes", 0, {{900, 64, 1}, {37376, 576, 0}, 448}},
                 {"64 of bf16, in a page", 448, {{900, 64, 1}, {37376, 576, 0}, 128}});
  // Pages padded to no multiple of their rows, with K and V apart or in each row.
  ExpectDisjoint({"K of a row, padded", 0, {{900, 16, 1}, {4200, 128, 0}, 64}},
                 {"V of a row, padded", 64, {{900, 16, 1}, {4200, 128, 0}, 64}});
  ExpectDisjoint({"K, padded", 0, {{900, 16, 2}, {4200, 128, 64}, 64}},
                 {"V, padded", 2048, {{900, 16, 2}, {4200, 128, 64}, 64}});
  // One page of a cache, and a tensor beside it inside the pages' stride.
  ExpectDisjoint({"all pages", 0, {{900, 16, 2}, {4200, 128, 64}, 64}},
                 {"behind one page", 4200 * 5 + 2048, {{1, 3, 2}, {0, 128, 64}, 64}});
}

TEST(OverlapProof, RefusesWhatMeetsInTheNextPage) {
  const Footprint k = {{9, 16, 1}, {2100, 64, 0}, 64}, late = {{9, 16, 1}, {2100, 70, 0}, 64};
  // The last rows of `late` would reach into the following page.
  EXPECT_FALSE(AreDisjoint({k, 0}, {late, 1024}));
  EXPECT_FALSE(AreDisjoint({late, 1024}, {k, 0}));
}

}  // namespace
}  // namespace rope::testing
