// A call whose stores are watched: the memory that it is given, piece by piece, and of each piece
// the bytes that it has to store, and how often. Everything else is to be left alone, whatever it
// belongs to: pieces lie apart, and what is stored between them shows as well. stores_test.py
// compares that with what valgrind has seen.
#ifndef LIBROPE_TESTS_STORES_WORK_H_
#define LIBROPE_TESTS_STORES_WORK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "librope/rope.h"
#include "math/element.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing::stores {

// How often a byte may be stored. What is not exactly once has a reason, which the test prints.
struct Times {
  int least, most;
  const char* reason;
};
inline constexpr Times kOnce = {1, 1, ""};

// kRare: among the numbers are NaN, infinities, zeros, subnormal ones, and such as become ties, for
// which kernels have ways of their own.
enum class Content { kOrdinary, kRare };

// Where a token is: its batch row and its number, or a page and a slot; `page` below 0: nowhere.
struct Place {
  int64_t page, slot;
};

// Heads in memory. The strides are there, in channels, whatever the layout of the tensor is.
struct Heads {
  rope_tensor tensor;
  int64_t page, slot, head;
  int width;
};

// What a tensor is like: `pages` batch rows or pages, with so many tokens or slots.
struct Shape {
  int64_t pages, slots;
  int heads, width;
};

enum class ScaleKind { kValue, kGiven, kComputed, kComputedGroups, kComputedBytes };

class Work {
 public:
  explicit Work(std::string name, Content content = Content::kOrdinary)
      : name_(std::move(name)), content_(content) {}

  // Pieces of memory: without content, with numbers of a dtype, and arrays of the caller.
  char* Bytes(const char* name, int64_t bytes);
  char* Numbers(const char* name, rope_dtype dtype, int64_t count);
  template <class T>
  T* Array(const char* name, const std::vector<T>& values) {
    T* const array = reinterpret_cast<T*>(Bytes(name, sizeof(T) * values.size()));
    for (size_t i = 0; i < values.size(); ++i) array[i] = values[i];
    return array;
  }

  // More of the name.
  void Describe(const std::string& text) { name_ += text; }

  // Heads with memory of their own. Those of codes have scales.
  Heads Tensor(const char* name, rope_dtype dtype, const Shape& shape, rope_layout layout,
               ScaleKind scale = ScaleKind::kValue);
  // Scales of heads that lie as `shape` says, head after head.
  rope_scale* Scale(rope_dtype code, const Shape& shape, ScaleKind kind);

  // Bytes that the call has to store.
  void Stores(const void* first, int64_t bytes, Times times = kOnce);
  // Channels of all heads of a token, and their scales, if these are computed: all of them.
  void Stores(const Heads& heads, Place place, int first, int channels, Times times = kOnce);

  // Makes the call under watch.
  void Make(const Context& context, const rope_qk_args& args) const;
  void MakePrepared(const Context& context, const rope_qk_args& args) const;

 private:
  struct Piece {
    const char* name;
    std::unique_ptr<char[]> memory;
    char* first;
    int64_t bytes;
  };
  struct Stored {
    const char* first;
    int64_t bytes;
    Times times;
  };
  void Watch(const std::function<rope_status()>& call) const;

  std::string name_;
  Content content_;
  std::deque<Piece> pieces_;
  std::deque<Stored> stored_;
  std::deque<rope_scale> scales_;
};

// The context of a configuration, made once.
const Context& ContextOf(const rope_config& config);

// The tokens of a call, in their order.
std::vector<Place> Tokens(int64_t rows, int64_t tokens);

// Memory of a cache.
inline constexpr int kPages = 4, kPageSize = 8;
// Where the tokens of a call go: a description of slots for `cache`, and what it says. Of five
// tokens or more some go nowhere. Caches whose `turn` differs have other slots for the same tokens.
std::vector<Place> PutTokens(Work* work, rope_slot_kind kind, int64_t rows, int64_t tokens,
                             int turn, rope_kv_cache* cache);

// Heads that fill vectors, and such that leave a few channels behind the last whole one.
inline constexpr int kHeadDims[] = {64, 96, 128, 8, 80, 84};

// Short names for those of works.
const char* NameOf(rope_dtype dtype);
const char* NameOf(ScaleKind kind);
const char* NameOfPairing(rope_pairing pairing);
const char* NameOfLayout(rope_layout layout);
const char* NameOfSlots(rope_slot_kind kind);

// The works: each group makes its calls, one after the other.
void WatchRotations();
void WatchAppends();
void WatchMoves();
void WatchGradients();
void WatchMlaRows();

}  // namespace rope::testing::stores

#endif  // LIBROPE_TESTS_STORES_WORK_H_
