// A call that is divided among threads. Each of its tasks runs alone, on memory as it was before
// the call, twice, with another value in each byte that is only written; and all that again with
// other numbers in memory that is turned in place. This proves:
//
// - no byte is changed by two tasks, and each head, group of scales and part of a gradient is
//   changed by one;
// - what is written are the outputs, the slots of its tokens and their scales, each to its last
//   byte, and nothing else. Where a call works in place, a byte that keeps its value whatever the
//   numbers are is not seen to be written: of each head some byte is;
// - tasks do not see what others write: what they leave alone, put together, is what they leave one
//   after the other, from the first to the last and from the last to the first;
// - what is only written does not depend on what was there, as a sum into it would.
//
// It does not count stores: a task that writes a byte of its own twice, the same, is not noticed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/elements.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {
namespace {

constexpr int kTokens = 1500, kDim = 64, kHeads = 6, kPageSize = 16, kPages = 96;
constexpr int kSlots = kPages * kPageSize;

struct Range {
  size_t first, size;
};

struct Watched {
  std::string name;
  bool is_read;  // what is written may be what was there
  std::vector<char> bytes, before;
  std::vector<char> numbers[2];  // if it is read
  std::vector<Range> written;    // each by one task
  std::vector<uint32_t> owners;  // task + 1; 0: none
};

// The memory of a call, and what its tasks do to it.
class Watch {
 public:
  Watched* Output(const std::string& name, size_t size) {
    return Add(name, false, std::vector<char>(size), {});
  }
  Watched* Input(const std::string& name, const std::vector<char>& numbers) {
    return Add(name, true, numbers, numbers);
  }
  // Memory that is read and written.
  Watched* InPlace(const std::string& name, std::vector<char> numbers, std::vector<char> others) {
    sets_of_numbers_ = 2;
    return Add(name, true, std::move(numbers), std::move(others));
  }

  void Expect(const Context& context, const rope_qk_args& args) {
    for (int numbers = 0; numbers < sets_of_numbers_; ++numbers) {
      std::vector<std::vector<char>> first;
      // Whatever a byte becomes, it differs from one of these.
      for (const char fill : {'\x11', '\xee'}) {
        SCOPED_TRACE("numbers " + std::to_string(numbers) + (fill == '\x11' ? "" : ", again"));
        Fill(numbers, fill);
        std::vector<std::vector<char>> after;
        RunAll(context, args, &after);
        if (::testing::Test::HasFatalFailure()) return;
        if (first.empty()) {
          first = std::move(after);
        } else {
          ExpectSame(first, after);
        }
      }
    }
    EXPECT_GT(tasks_, 2u);
    for (const Watched& m : memories_) ExpectRanges(m);
  }

 private:
  static constexpr size_t kBlock = 256;  // bytes that are compared at once

  Watched* Add(const std::string& name, bool is_read, std::vector<char> numbers,
               std::vector<char> others) {
    Watched& m = memories_.emplace_back();
    m.name = name;
    m.is_read = is_read;
    m.bytes = numbers;
    m.owners.resize(numbers.size());
    m.numbers[0] = std::move(numbers);
    m.numbers[1] = std::move(others);
    return &m;
  }
  // What memory is before the call.
  void Fill(int numbers, char fill) {
    for (Watched& m : memories_) {
      if (m.is_read) {
        m.before = m.numbers[numbers];
      } else {
        m.before.assign(m.bytes.size(), fill);
      }
    }
  }
  void Load() {
    for (Watched& m : memories_) std::copy(m.before.begin(), m.before.end(), m.bytes.begin());
  }
  // Each task alone, and all of them in two orders.
  void RunAll(const Context& context, rope_qk_args args, std::vector<std::vector<char>>* after) {
    for (const auto parallel_for : {&Alone, &Forwards, &Backwards}) {
      const rope_runner runner = {parallel_for, this};
      args.runner = &runner;
      Load();
      ASSERT_OK(rope_apply_qk(context.get(), &args));
      for (size_t m = 0; m < memories_.size(); ++m) {
        if (parallel_for == &Alone) {
          after->push_back(memories_[m].bytes);
        } else {
          ASSERT_TRUE(memories_[m].bytes == (*after)[m])
              << memories_[m].name << ": tasks alone leave something else than all of them";
        }
      }
    }
  }
  void ExpectSame(const std::vector<std::vector<char>>& first,
                  const std::vector<std::vector<char>>& after) const {
    for (size_t m = 0; m < memories_.size(); ++m) {
      for (const Range& range : memories_[m].written) {
        ASSERT_EQ(std::memcmp(&after[m][range.first], &first[m][range.first], range.size), 0)
            << memories_[m].name << ", bytes from " << range.first << ": what was there matters";
      }
    }
  }
  static int32_t Forwards(void*, rope_task_fn fn, void* task, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) fn(task, i);
    return 0;
  }
  static int32_t Backwards(void*, rope_task_fn fn, void* task, uint32_t count) {
    while (count > 0) fn(task, --count);
    return 0;
  }
  // Each on memory as it was before; then all that they have changed is there.
  static int32_t Alone(void* data, rope_task_fn fn, void* task, uint32_t count) {
    Watch& watch = *static_cast<Watch*>(data);
    std::vector<std::vector<char>> all;
    for (const Watched& m : watch.memories_) all.push_back(m.before);
    watch.tasks_ = count;
    for (uint32_t i = 0; i < count; ++i) {
      fn(task, i);
      for (size_t m = 0; m < all.size(); ++m) Take(i, &watch.memories_[m], &all[m]);
    }
    for (size_t m = 0; m < all.size(); ++m) {
      std::copy(all[m].begin(), all[m].end(), watch.memories_[m].bytes.begin());
    }
    return 0;
  }
  // What a task has changed, which is then as it was before.
  static void Take(uint32_t task, Watched* m, std::vector<char>* all) {
    int shared = 0;
    for (size_t block = 0; block < m->bytes.size(); block += kBlock) {
      const size_t end = std::min(block + kBlock, m->bytes.size());
      if (std::memcmp(&m->bytes[block], &m->before[block], end - block) == 0) continue;
      for (size_t i = block; i < end; ++i) {
        if (m->bytes[i] == m->before[i]) continue;
        uint32_t& owner = m->owners[i];
        if (owner != 0 && owner != task + 1 && ++shared <= 3) {
          ADD_FAILURE() << m->name << ", byte " << i << ": by tasks " << owner - 1 << " and "
                        << task;
        }
        owner = task + 1;
        (*all)[i] = m->bytes[i];
        m->bytes[i] = m->before[i];
      }
    }
  }

  static void ExpectRanges(const Watched& m) {
    std::vector<uint32_t> beside = m.owners;
    for (const Range& range : m.written) {
      uint32_t first = 0;
      for (size_t i = range.first; i < range.first + range.size; ++i) {
        const uint32_t owner = std::exchange(beside[i], 0);
        if (owner == 0 && !m.is_read) FAIL() << m.name << ", byte " << i << " is not written";
        if (owner == 0) continue;
        if (first == 0) first = owner;
        if (owner != first) {
          FAIL() << m.name << ", " << range.size << " bytes from " << range.first
                 << " on: by tasks " << first - 1 << " and " << owner - 1;
        }
      }
      if (first == 0) FAIL() << m.name << ", bytes from " << range.first << " on are as they were";
    }
    for (size_t i = 0; i < beside.size(); ++i) {
      if (beside[i] == 0) continue;
      FAIL() << m.name << ", byte " << i << " is written by task " << beside[i] - 1;
    }
  }

  std::deque<Watched> memories_;
  int sets_of_numbers_ = 1;
  uint32_t tasks_ = 0;
};

// The same ones again and again: numbers by their definition take their time.
std::vector<char> RandomNumbers(rope_dtype dtype, size_t count, uint64_t seed) {
  constexpr size_t kOthers = 4093;
  const auto size = static_cast<size_t>(SizeOf(dtype));
  Random random(seed);
  std::vector<char> bytes(count * size);
  for (size_t i = 0; i < std::min(count, kOthers); ++i) {
    WriteElement(dtype, &bytes[i * size], random.Pick(-999, 999) / 256.0);
  }
  for (size_t i = kOthers * size; i < bytes.size(); ++i) bytes[i] = bytes[i - kOthers * size];
  return bytes;
}
std::vector<char> RandomCodes(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<char> codes(count);
  for (char& code : codes) code = static_cast<char>(random.Pick(-126, 126));
  return codes;
}
std::vector<char> RandomScales(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<char> bytes(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    WriteElement(ROPE_DTYPE_F32, &bytes[i * sizeof(float)], random.Pick(100, 999) / 8192.0);
  }
  return bytes;
}

// How heads and scales lie in the pages of a cache, and which tokens are where.
struct Pages {
  rope_layout layout;
  rope_dtype dtype;
  rope_dtype scale_dtype = ROPE_DTYPE_F32;
  int group = kDim, heads = kHeads;

  bool codes() const { return dtype == ROPE_DTYPE_I8; }
  size_t head_bytes() const { return static_cast<size_t>(kDim * (codes() ? 1 : SizeOf(dtype))); }
  size_t scale_bytes() const {
    return static_cast<size_t>(kDim / group * (scale_dtype == ROPE_DTYPE_E8M0 ? 1 : 4));
  }
  size_t bytes() const { return static_cast<size_t>(kSlots * heads) * head_bytes(); }
  size_t bytes_of_scales() const {
    return codes() ? static_cast<size_t>(kSlots * heads) * scale_bytes() : 0;
  }

  rope_tensor Describe(Watched* memory) const {
    rope_tensor t = Tensor(memory->bytes.data(), dtype, heads, layout);
    t.head_dim = kDim;
    return t;
  }
  rope_scale Scale(Watched* memory) const {
    const int groups = kDim / group;
    rope_scale scale = ROPE_INIT(rope_scale);
    scale.computed = 1;
    scale.dtype = scale_dtype;
    scale.power_of_two = scale_dtype == ROPE_DTYPE_E8M0 ? 1 : 0;
    scale.group = group;
    scale.data = memory->bytes.data();
    scale.stride_batch = kPageSize * heads * groups;
    scale.stride_token = heads * groups;
    scale.stride_head = groups;
    return scale;
  }
  // Where the heads of these slots are, of `size` bytes each: of scales, which lie by slots.
  std::vector<Range> Heads(const std::vector<int64_t>& slots, size_t size, bool by_slots) const {
    std::vector<Range> ranges;
    for (int64_t slot : slots) {
      if (slot < 0) continue;
      for (int h = 0; h < heads; ++h) {
        const int64_t page = slot / kPageSize, at = slot % kPageSize;
        const int64_t head = by_slots || layout == ROPE_LAYOUT_NHD
                                 ? slot * heads + h
                                 : (page * heads + h) * kPageSize + at;
        ranges.push_back({static_cast<size_t>(head) * size, size});
      }
    }
    return ranges;
  }
};

// A cache of keys and values, which a call fills or moves.
struct Cache {
  Watched *k, *v, *k_scales, *v_scales;
  rope_scale scales[2];
  rope_kv_cache described = ROPE_INIT(rope_kv_cache);

  // Only written, or else read: in place, or not.
  enum class Use { kWritten, kRead, kMoved };
  Cache(Watch* watch, const std::string& name, const Pages& pages, Use use) {
    uint64_t seed = 10;
    const auto content = [&](bool scale) {
      ++seed;
      return scale ? RandomScales(pages.bytes_of_scales() / 4, seed)
             : pages.codes()
                 ? RandomCodes(pages.bytes(), seed)
                 : RandomNumbers(pages.dtype, size_t{kSlots} * pages.heads * kDim, seed);
    };
    const auto make = [&](const char* part, bool scale, Use how) {
      const std::string full = name + "->" + part;
      switch (how) {
        case Use::kWritten:
          return watch->Output(full, scale ? pages.bytes_of_scales() : pages.bytes());
        case Use::kRead: return watch->Input(full, content(scale));
        default: break;
      }
      std::vector<char> one = content(scale);
      return watch->InPlace(full, std::move(one), content(scale));
    };
    // v does not turn: where keys move in their slots, it stays.
    const Use of_v = use == Use::kMoved ? Use::kRead : use;
    k = make("k", false, use);
    k_scales = make("k scales", true, use);
    v = make("v", false, of_v);
    v_scales = make("v scales", true, of_v);
    described.pages = kPages;
    described.page_size = kPageSize;
    described.k = pages.Describe(k);
    described.v = pages.Describe(v);
    if (!pages.codes()) return;
    scales[0] = pages.Scale(k_scales);
    scales[1] = pages.Scale(v_scales);
    described.k.scale = &scales[0];
    described.v.scale = &scales[1];
  }
  Cache(const Cache&) = delete;

  void Mapped(const std::vector<int64_t>& slots) {
    described.kind = ROPE_SLOTS_MAPPED;
    described.slots_i64 = slots.data();
    described.slots_length = static_cast<int64_t>(slots.size());
  }
  void ExpectWritten(const Pages& pages, const std::vector<int64_t>& slots, bool with_v) {
    k->written = pages.Heads(slots, pages.head_bytes(), false);
    if (with_v) v->written = k->written;
    if (!pages.codes()) return;
    k_scales->written = pages.Heads(slots, pages.scale_bytes(), true);
    if (with_v) v_scales->written = k_scales->written;
  }
};

std::vector<int64_t> Shuffled(int step, int first) {
  std::vector<int64_t> slots;
  for (int t = 0; t < kTokens; ++t) slots.push_back((t * step + first) % kSlots);
  return slots;
}

// An append: q elsewhere, k and v to a cache.
struct Append {
  Watch watch;
  Watched *q, *k, *v, *q_out;
  Cache cache;
  const std::vector<char> weight = RandomNumbers(ROPE_DTYPE_BF16, kDim, 4);
  rope_norm norm = ROPE_INIT(rope_norm);
  rope_fused fused = ROPE_INIT(rope_fused);
  rope_qk_args args;

  Append(const Pages& pages, int batch, bool normed)
      : q(watch.Input("q", RandomNumbers(ROPE_DTYPE_F32, kTokens * 2 * kHeads * kDim, 1))),
        k(watch.Input("k", RandomNumbers(ROPE_DTYPE_BF16, kTokens * kHeads * kDim, 2))),
        v(watch.Input("v", RandomNumbers(ROPE_DTYPE_BF16, kTokens * kHeads * kDim, 3))),
        q_out(watch.Output("q_out", q->bytes.size())),
        cache(&watch, "cache", pages, Cache::Use::kWritten),
        args(Args(batch, kTokens / batch)) {
    norm.kind = ROPE_NORM_KIND_RMS;
    norm.eps = 1e-6;
    norm.weight = weight.data();
    norm.weight_dtype = ROPE_DTYPE_BF16;
    fused.cache = &cache.described;
    fused.v = Tensor(v->bytes.data(), ROPE_DTYPE_BF16, kHeads);
    fused.v.head_dim = kDim;
    if (normed) fused.q_norm = fused.k_norm = &norm;
    args.q = Tensor(q->bytes.data(), ROPE_DTYPE_F32, 2 * kHeads);
    args.q_out = Tensor(q_out->bytes.data(), ROPE_DTYPE_F32, 2 * kHeads);
    args.k = Tensor(k->bytes.data(), ROPE_DTYPE_BF16, kHeads);
    args.positions = Offset(100);
    args.fused = &fused;
    for (size_t head = 0; head < q_out->bytes.size(); head += kDim * sizeof(float)) {
      q_out->written.push_back({head, kDim * sizeof(float)});
    }
  }
};

struct Case {
  const char* name;
  Pages pages;
  bool normed;
};
constexpr Case kCases[] = {
    {"bf16, NHD", {ROPE_LAYOUT_NHD, ROPE_DTYPE_BF16}, false},
    {"bf16, HND, normed", {ROPE_LAYOUT_HND, ROPE_DTYPE_BF16}, true},
    {"f32, HND", {ROPE_LAYOUT_HND, ROPE_DTYPE_F32}, false},
    {"int8, NHD, normed", {ROPE_LAYOUT_NHD, ROPE_DTYPE_I8}, true},
    {"int8, HND", {ROPE_LAYOUT_HND, ROPE_DTYPE_I8}, false},
    {"int8, NHD, groups of 16", {ROPE_LAYOUT_NHD, ROPE_DTYPE_I8, ROPE_DTYPE_F32, 16}, false},
    {"int8, HND, groups of 8, e8m0", {ROPE_LAYOUT_HND, ROPE_DTYPE_I8, ROPE_DTYPE_E8M0, 8}, true},
};

TEST(Tasks, OfMappedSlotsWriteEachByteOnce) {
  const Context context = Create(Config(kDim));
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    Append call(c.pages, 1, c.normed);
    std::vector<int64_t> slots = Shuffled(77, 3);
    slots[kTokens / 3] = slots[7] = -1;
    call.cache.Mapped(slots);
    call.cache.ExpectWritten(c.pages, slots, true);
    call.watch.Expect(context, call.args);
    if (HasFailure()) return;
  }
}

TEST(Tasks, OfPagesWriteEachByteOnce) {
  constexpr int kSequences = 5, kRow = 19;  // pages of each, of which the last is not full
  const Context context = Create(Config(kDim));
  for (const Case& c : kCases) {
    for (const bool by_starts : {false, true}) {
      SCOPED_TRACE(std::string(c.name) + (by_starts ? ", page_starts" : ", page_table_stride"));
      Append call(c.pages, kSequences, c.normed);
      std::vector<int32_t> table, starts, page_starts;
      for (int i = 0; i < kSequences * kRow; ++i) table.push_back((i * 37 + 5) % kPages);
      table[kRow + 2] = -1;  // tokens that go nowhere
      std::vector<int64_t> slots;
      for (int s = 0; s <= kSequences; ++s) page_starts.push_back(s * kRow);
      for (int s = 0; s < kSequences; ++s) {
        starts.push_back(s % 4);
        for (int t = 0; t < kTokens / kSequences; ++t) {
          const int at = starts[s] + t, page = table[s * kRow + at / kPageSize];
          slots.push_back(page < 0 ? -1 : page * kPageSize + at % kPageSize);
        }
      }
      rope_kv_cache& cache = call.cache.described;
      cache.kind = ROPE_SLOTS_PAGED;
      cache.page_table = table.data();
      cache.starts = starts.data();
      cache.page_table_stride = by_starts ? 0 : kRow;
      if (by_starts) cache.page_starts = page_starts.data();
      call.cache.ExpectWritten(c.pages, slots, true);
      call.watch.Expect(context, call.args);
      if (HasFailure()) return;
    }
  }
}

// Keys that move by distances of their own, none of which is 0: in their slots, and with their
// values to those of another cache.
TEST(Tasks, OfMovesWriteEachByteOnce) {
  rope_config config = Config(kDim);
  config.angle = ROPE_ANGLE_EXACT;
  const Context context = Create(config);
  std::vector<int64_t> distances;
  for (int t = 0; t < kTokens; ++t) distances.push_back(t % 2 == 0 ? 3 + t : -40 - t);
  for (const Case& c : kCases) {
    for (const bool in_place : {true, false}) {
      SCOPED_TRACE(std::string(c.name) + (in_place ? ", in place" : ", elsewhere"));
      Watch watch;
      Pages pages = c.pages;
      pages.heads = 4 * kHeads;  // a byte of each is enough for some tasks
      Cache source(&watch, "source", pages, in_place ? Cache::Use::kMoved : Cache::Use::kRead);
      std::unique_ptr<Cache> elsewhere;
      const std::vector<int64_t> from = Shuffled(77, 3), to = Shuffled(55, 9);
      source.Mapped(from);
      if (in_place) {
        source.ExpectWritten(pages, from, false);
      } else {
        elsewhere = std::make_unique<Cache>(&watch, "cache", pages, Cache::Use::kWritten);
        elsewhere->Mapped(to);
        elsewhere->ExpectWritten(pages, to, true);
      }
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.source = &source.described;
      fused.cache = in_place ? &source.described : &elsewhere->described;
      rope_qk_args args = Args(1, kTokens);
      args.operation = ROPE_OPERATION_SHIFT;
      args.positions = Ids(ROPE_POSITIONS_IDS_T, distances.data());
      args.fused = &fused;
      watch.Expect(context, args);
      if (HasFailure()) return;
    }
  }
}

// Gradients through norms, of q elsewhere and of k in place, and those of their weights and biases.
TEST(Tasks, OfGradientsWriteEachByteOnce) {
  constexpr int kParts = 7;
  const Context context = Create(Config(kDim));
  for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const bool by_heads : {false, true}) {
      SCOPED_TRACE("dtype " + std::to_string(dtype) + (by_heads ? ", weights of each head" : ""));
      constexpr size_t kCount = size_t{kTokens} * kHeads * kDim;
      const size_t head_bytes = static_cast<size_t>(kDim * SizeOf(dtype));
      Watch watch;
      Watched* const q = watch.Input("q", RandomNumbers(dtype, kCount, 1));
      Watched* const x = watch.Input("x", RandomNumbers(dtype, kCount, 2));
      Watched* const q_out = watch.Output("q_out", kCount * SizeOf(dtype));
      Watched* const k =
          watch.InPlace("k", RandomNumbers(dtype, kCount, 3), RandomNumbers(dtype, kCount, 4));
      for (size_t head = 0; head < kCount * SizeOf(dtype); head += head_bytes) {
        q_out->written.push_back({head, head_bytes});
        k->written.push_back({head, head_bytes});
      }
      const std::vector<char> weight = RandomNumbers(ROPE_DTYPE_F32, kHeads * kDim, 5);
      const size_t part = (by_heads ? kHeads : 1) * kDim * sizeof(float);
      rope_tensor given = Tensor(x->bytes.data(), dtype, kHeads);
      rope_norm norms[2];
      for (int i = 0; i < 2; ++i) {
        Watched* const grads[] = {watch.Output("weight_grad", kParts * part),
                                  watch.Output("bias_grad", kParts * part)};
        for (Watched* grad : grads) {
          for (size_t p = 0; p < kParts; ++p) grad->written.push_back({p * part, part});
        }
        rope_norm& norm = norms[i] = ROPE_INIT(rope_norm);
        norm.kind = ROPE_NORM_KIND_LAYER_BIAS;
        norm.rounding = ROPE_NORM_ROUNDING_ROUNDED;
        norm.eps = 1e-6;
        norm.weight = norm.bias = weight.data();
        norm.weight_dtype = ROPE_DTYPE_F32;
        norm.weight_stride_head = by_heads ? kDim : 0;
        norm.x = &given;
        norm.weight_grad = reinterpret_cast<float*>(grads[0]->bytes.data());
        norm.bias_grad = reinterpret_cast<float*>(grads[1]->bytes.data());
        norm.grad_parts = kParts;
      }
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.q_norm = &norms[0], fused.k_norm = &norms[1];
      rope_qk_args args = Args(3, kTokens / 3);
      args.operation = ROPE_OPERATION_BACKWARD;
      args.positions = Offset(100);
      args.q = Tensor(q->bytes.data(), dtype, kHeads);
      args.q_out = Tensor(q_out->bytes.data(), dtype, kHeads);
      args.k = Tensor(k->bytes.data(), dtype, kHeads);
      args.fused = &fused;
      watch.Expect(context, args);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace rope::testing
