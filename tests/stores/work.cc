#include "stores/work.h"

#include <unistd.h>
#include <valgrind/valgrind.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "support/elements.h"
#include "support/prepared_call.h"

// What is copied and cleared by the C library is stored here, none of it twice: vector by vector,
// and behind the last whole one byte by byte. The C library's own functions store the ends of most
// pieces twice, by vectors that overlap.
namespace {
using Vector = uint64_t __attribute__((vector_size(16), aligned(1), may_alias));
constexpr size_t kVector = sizeof(Vector), kAtOnce = 4;
}  // namespace

extern "C" {

void* memcpy(void* to, const void* from, size_t size) noexcept {
  auto* out = static_cast<volatile char*>(to);
  auto* in = static_cast<const volatile char*>(from);
  const auto copy = [&](size_t vectors) {
    for (size_t i = 0; i < vectors; ++i) {
      reinterpret_cast<volatile Vector*>(out)[i] = reinterpret_cast<const volatile Vector*>(in)[i];
    }
    out += vectors * kVector, in += vectors * kVector, size -= vectors * kVector;
  };
  while (size >= kAtOnce * kVector) copy(kAtOnce);
  while (size >= kVector) copy(1);
  for (; size != 0; --size) *out++ = *in++;
  return to;
}

void* memmove(void* to, const void* from, size_t size) noexcept {
  if (to <= from || static_cast<char*>(to) >= static_cast<const char*>(from) + size) {
    return memcpy(to, from, size);
  }
  auto* out = static_cast<volatile char*>(to);
  auto* in = static_cast<const volatile char*>(from);
  while (size-- != 0) out[size] = in[size];
  return to;
}

void* memset(void* to, int value, size_t size) noexcept {
  auto* out = static_cast<volatile char*>(to);
  const auto byte = static_cast<unsigned char>(value);
  const Vector vector = Vector{1, 1} * (uint64_t{byte} * 0x0101010101010101u);
  for (; size >= kVector; size -= kVector, out += kVector) {
    *reinterpret_cast<volatile Vector*>(out) = vector;
  }
  for (; size != 0; --size) *out++ = static_cast<char>(byte);
  return to;
}

}  // extern "C"

namespace rope::testing::stores {
namespace {

constexpr size_t kApart = 64;  // bytes between pieces, at least

[[noreturn]] void Fail(const std::string& work) {
  std::fprintf(stderr, "%s: %s\n", work.c_str(), rope_last_error());
  std::exit(1);
}

// Numbers that memory is filled with, again and again: a prime number of them.
constexpr int kNumbers = 1021;

double NumberOf(Random* random, Content content) {
  const double number = random->Pick(-999, 999) / 256.0;
  if (content == Content::kOrdinary) return number;
  switch (random->Pick(0, 9)) {
    case 0: return std::numeric_limits<double>::quiet_NaN();
    case 1: return std::numeric_limits<double>::infinity();
    case 2: return -std::numeric_limits<double>::infinity();
    case 3: return 0;
    case 4: return number * 0x1p-130;
    case 5: return random->Pick(-3, 3);
    default: return number;
  }
}

std::vector<char> PatternOf(rope_dtype dtype, Content content) {
  std::vector<char> pattern;
  Random random(static_cast<uint64_t>(dtype));
  if (IsDtype(dtype)) {
    pattern.resize(static_cast<size_t>(BytesOf(dtype, kNumbers)));
    for (int i = 0; i < kNumbers; ++i) {
      WriteElement(dtype, &pattern[static_cast<size_t>(BytesOf(dtype, i))],
                   NumberOf(&random, content));
    }
  } else if (dtype == ROPE_DTYPE_Q8_0) {
    for (int block = 0; block < kNumbers / 32; ++block) {
      pattern.resize(pattern.size() + 2);
      WriteElement(ROPE_DTYPE_F16, &pattern[pattern.size() - 2], random.Pick(1, 99) / 1024.0);
      for (int i = 0; i < 32; ++i) pattern.push_back(static_cast<char>(random.Pick(-127, 127)));
    }
  } else {  // codes; of e4m3 and e5m2 none that is NaN
    for (int i = 0; i < kNumbers; ++i) {
      pattern.push_back(static_cast<char>(random.Pick(0, 0x70) | random.Pick(0, 1) << 7));
    }
  }
  return pattern;
}

// Memory is filled from a file, by the system: what the program stores itself is printed, too, and
// to print that would take most of the time.
struct NumbersFile {
  std::FILE* file = nullptr;
  int64_t bytes = 0;
};
const NumbersFile& FileOf(rope_dtype dtype, Content content) {
  constexpr int64_t kLeastBytes = 1 << 16;
  static std::map<std::pair<rope_dtype, Content>, NumbersFile> files;
  NumbersFile& numbers = files[{dtype, content}];
  if (numbers.file != nullptr) return numbers;
  numbers.file = std::tmpfile();
  const std::vector<char> pattern = PatternOf(dtype, content);
  while (numbers.file != nullptr && numbers.bytes < kLeastBytes) {
    numbers.bytes +=
        static_cast<int64_t>(std::fwrite(pattern.data(), 1, pattern.size(), numbers.file));
  }
  if (numbers.file == nullptr || std::fflush(numbers.file) != 0) {
    std::perror("a file for numbers");
    std::exit(1);
  }
  return numbers;
}

}  // namespace

char* Work::Bytes(const char* name, int64_t bytes) {
  std::unique_ptr<char[]> memory(new char[static_cast<size_t>(bytes) + 3 * kApart]);
  const size_t before = kApart - reinterpret_cast<uintptr_t>(memory.get()) % kApart;  // to a line
  char* const first = memory.get() + kApart + before;
  pieces_.push_back({name, std::move(memory), first, bytes});
  return pieces_.back().first;
}

char* Work::Numbers(const char* name, rope_dtype dtype, int64_t count) {
  const int64_t bytes = BytesOf(dtype, count);
  char* const data = Bytes(name, bytes);
  const NumbersFile& numbers = FileOf(dtype, content_);
  for (int64_t i = 0; i < bytes; i += numbers.bytes) {
    const auto part = static_cast<size_t>(std::min(bytes - i, numbers.bytes));
    if (pread(fileno(numbers.file), data + i, part, 0) != static_cast<ssize_t>(part)) {
      std::perror("numbers");
      std::exit(1);
    }
  }
  return data;
}

Heads Work::Tensor(const char* name, rope_dtype dtype, const Shape& shape, rope_layout layout,
                   ScaleKind scale) {
  Heads h = {};
  rope_tensor& t = h.tensor;
  t.dtype = dtype;
  t.layout = layout;
  t.heads = shape.heads;
  const int64_t width = h.width = shape.width, row = width * shape.heads;
  switch (layout) {
    case ROPE_LAYOUT_BHSD:
    case ROPE_LAYOUT_HND:
      h.page = row * shape.slots, h.slot = width, h.head = width * shape.slots;
      break;
    case ROPE_LAYOUT_SBHD: h.page = row, h.slot = row * shape.pages, h.head = width; break;
    case ROPE_LAYOUT_STRIDED: {  // with gaps behind heads, tokens and rows
      const int64_t gap = 32;
      h.head = width + gap;
      h.slot = shape.heads * h.head + gap;
      h.page = shape.slots * h.slot + gap;
      SetStrides(&t, h.page, h.slot, h.head);
      break;
    }
    default: h.page = row * shape.slots, h.slot = row, h.head = width; break;
  }
  const int64_t last =
      (shape.pages - 1) * h.page + (shape.slots - 1) * h.slot + (shape.heads - 1) * h.head + width;
  t.data = Numbers(name, dtype, last);
  if (IsCode(dtype)) t.scale = Scale(dtype, shape, scale);
  return h;
}

rope_scale* Work::Scale(rope_dtype code, const Shape& shape, ScaleKind kind) {
  rope_scale& scale = scales_.emplace_back(ROPE_INIT(rope_scale));
  if (kind == ScaleKind::kValue) {
    scale.value = 0.03125f;
    return &scale;
  }
  scale.computed = kind != ScaleKind::kGiven;
  const bool bytes = kind == ScaleKind::kComputedBytes, grouped = kind != ScaleKind::kComputed;
  scale.dtype = bytes ? ROPE_DTYPE_E8M0 : ROPE_DTYPE_F32;
  scale.power_of_two = bytes;
  scale.group = grouped && shape.width % 2 == 0 ? shape.width / 2 : 0;
  const int64_t groups = scale.group == 0 ? 1 : 2;
  scale.stride_head = groups;
  scale.stride_token = shape.heads * groups;
  scale.stride_batch = shape.slots * scale.stride_token;
  const int64_t count = shape.pages * scale.stride_batch;
  scale.data = bytes ? static_cast<void*>(
                           Array("scales", std::vector<uint8_t>(static_cast<size_t>(count), 122)))
                     : Array("scales", std::vector<float>(static_cast<size_t>(count),
                                                          code == ROPE_DTYPE_I8 ? 0.05f : 0.01f));
  return &scale;
}

void Work::Stores(const void* first, int64_t bytes, Times times) {
  const auto* const at = static_cast<const char*>(first);
  if (!stored_.empty()) {
    Stored& last = stored_.back();
    if (last.first + last.bytes == at && last.times.reason == times.reason) {
      last.bytes += bytes;
      return;
    }
  }
  stored_.push_back({at, bytes, times});
}

void Work::Stores(const Heads& heads, Place place, int first, int channels, Times times) {
  if (place.page < 0) return;
  const rope_tensor& t = heads.tensor;
  for (int head = 0; head < t.heads; ++head) {
    const int64_t channel =
        place.page * heads.page + place.slot * heads.slot + head * heads.head + first;
    Stores(static_cast<char*>(t.data) + BytesOf(t.dtype, channel), BytesOf(t.dtype, channels),
           times);
    if (t.scale == nullptr || t.scale->computed == 0) continue;
    const rope_scale& s = *t.scale;
    const int64_t size = s.dtype == ROPE_DTYPE_E8M0 ? 1 : 4;
    const int64_t scale =
        place.page * s.stride_batch + place.slot * s.stride_token + head * s.stride_head;
    Stores(static_cast<char*>(s.data) + scale * size,
           (s.group == 0 ? 1 : heads.width / s.group) * size, times);
  }
}

// What valgrind prints for these lines stands among the stores. The stack of the call lies below
// the frame of this function.
__attribute__((noinline)) void Work::Watch(const std::function<rope_status()>& call) const {
  VALGRIND_PRINTF("work %s\n", name_.c_str());
  for (const Piece& piece : pieces_) {
    VALGRIND_PRINTF("piece %lx %ld %s\n", reinterpret_cast<unsigned long>(piece.first),
                    static_cast<long>(piece.bytes), piece.name);
  }
  for (const Stored& s : stored_) {
    VALGRIND_PRINTF("stores %lx %ld %d %d %s\n", reinterpret_cast<unsigned long>(s.first),
                    static_cast<long>(s.bytes), s.times.least, s.times.most, s.times.reason);
  }
  VALGRIND_PRINTF("begin %lx\n", reinterpret_cast<unsigned long>(__builtin_frame_address(0)));
  const rope_status status = call();
  VALGRIND_PRINTF("end\n");
  if (status != ROPE_OK) Fail(name_);
}

void Work::Make(const Context& context, const rope_qk_args& args) const {
  Watch([&] { return rope_apply_qk(context.get(), &args); });
}

void Work::MakePrepared(const Context& context, const rope_qk_args& args) const {
  const PreparedCall call(args);
  rope_prepared* prepared = nullptr;
  if (rope_prepared_create(context.get(), &call.args(), &prepared) != ROPE_OK) Fail(name_);
  const Prepared owned(prepared);
  Watch([&] { return rope_prepared_apply(prepared, &call.data); });
}

const Context& ContextOf(const rope_config& config) {
  static std::map<std::string, Context> contexts;
  Context& context = contexts[std::string(reinterpret_cast<const char*>(&config), sizeof(config))];
  if (context == nullptr) context = Create(config);
  if (context == nullptr) std::exit(1);
  return context;
}

std::vector<Place> Tokens(int64_t rows, int64_t tokens) {
  std::vector<Place> places;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t token = 0; token < tokens; ++token) places.push_back({row, token});
  }
  return places;
}

std::vector<Place> PutTokens(Work* work, rope_slot_kind kind, int64_t rows, int64_t tokens,
                             int turn, rope_kv_cache* cache) {
  constexpr Place kNowhere = {-1, 0};
  std::vector<Place> places;
  cache->kind = kind;
  cache->pages = kPages;
  cache->page_size = kPageSize;
  const bool some_nowhere = rows * tokens >= 5;
  if (kind == ROPE_SLOTS_MAPPED) {
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < rows * tokens; ++i) {
      // Runs of three slots that follow each other, with one between them.
      const int64_t slot = i / 3 * 4 + i % 3 + 1 + 16 * turn;
      const bool nowhere = some_nowhere && i == 2;
      slots.push_back(nowhere ? -1 : slot);
      places.push_back(nowhere ? kNowhere : Place{slot / kPageSize, slot % kPageSize});
    }
    cache->slots_i64 = work->Array("slots", slots);
    cache->slots_length = rows * tokens;
    return places;
  }
  const int64_t start = kind == ROPE_SLOTS_LINEAR ? 1 : kPageSize - 3;
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < rows; ++row) starts.push_back(static_cast<int32_t>(start + row));
  cache->starts = work->Array("starts", starts);
  if (kind == ROPE_SLOTS_LINEAR) {
    cache->pages = rows;
    for (const Place& token : Tokens(rows, tokens)) {
      places.push_back({token.page, start + token.page + token.slot});
    }
    return places;
  }
  // Two pages for each row, the second of which may be missing.
  std::vector<int32_t> table;
  for (int64_t row = 0; row < rows; ++row) {
    for (const int page : {0, 1}) {
      const auto number = static_cast<int32_t>((2 * row + page + 3 * turn + 1) % kPages);
      table.push_back(some_nowhere && row == 1 && page == 1 ? -1 : number);
    }
  }
  cache->page_table = work->Array("page_table", table);
  cache->page_table_stride = 2;
  for (const Place& token : Tokens(rows, tokens)) {
    const int64_t at = start + token.page + token.slot;
    const int32_t page = table[static_cast<size_t>(2 * token.page + at / kPageSize)];
    places.push_back({page, at % kPageSize});
  }
  return places;
}

const char* NameOf(rope_dtype dtype) {
  constexpr const char* kNames[] = {"", "f32", "f16", "bf16", "e4m3", "e5m2", "i8", "e8m0", "q8_0"};
  return kNames[dtype];
}

const char* NameOf(ScaleKind kind) {
  constexpr const char* kNames[] = {"value", "given", "computed", "groups", "groups e8m0"};
  return kNames[static_cast<int>(kind)];
}

const char* NameOfPairing(rope_pairing pairing) {
  constexpr const char* kNames[] = {"", "halves", "interleaved", "to halves", "per axis"};
  return kNames[pairing];
}

const char* NameOfLayout(rope_layout layout) {
  constexpr const char* kNames[] = {"", "BSHD", "BHSD", "SBHD", "strided", "NHD", "HND"};
  return kNames[layout];
}

const char* NameOfSlots(rope_slot_kind kind) {
  constexpr const char* kNames[] = {"", "mapped", "paged", "linear"};
  return kNames[kind];
}

}  // namespace rope::testing::stores
