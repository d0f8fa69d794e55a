#include "support/random_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include "support/elements.h"
#include "support/enumerators.h"
#include "support/memory.h"
#include "support/reference.h"
#include "support/shard_reference.h"

namespace rope::testing {
namespace {

// `bits`, without the NaN among its elements of type T.
template <class T>
uint64_t WithoutNans(uint64_t bits, T infinity) {
  for (size_t at = 0; at < 64; at += 8 * sizeof(T)) {
    const T magnitude = static_cast<T>(bits >> at) & static_cast<T>(static_cast<T>(~T{0}) >> 1);
    if (magnitude > infinity) bits ^= uint64_t{static_cast<T>(magnitude & ~infinity)} << at;
  }
  return bits;
}

// Elements of either sign from 2^-7 on: f32 and bf16 below 2^9, f16 below 2. With `special` some of
// any size, zeros, subnormal numbers and infinities among them.
void FillWithNumbers(rope_dtype dtype, bool special, Random* random, std::vector<char>* bytes) {
  for (size_t i = 0; i < bytes->size(); i += 8) {
    uint64_t bits = random->Next();
    const bool any = special && random->Sometimes(32);
    if (dtype == ROPE_DTYPE_F32) {
      if (!any) bits = (bits & 0x87ffffff87ffffffu) + 0x3c0000003c000000u;
      bits = WithoutNans<uint32_t>(bits, 0x7f800000u);
    } else if (dtype == ROPE_DTYPE_BF16) {
      if (!any) bits = (bits & 0x87ff87ff87ff87ffu) + 0x3c003c003c003c00u;
      bits = WithoutNans<uint16_t>(bits, 0x7f80u);
    } else {
      EXPECT_EQ(dtype, ROPE_DTYPE_F16);
      if (!any) bits = (bits & 0x9fff9fff9fff9fffu) + 0x2000200020002000u;
      bits = WithoutNans<uint16_t>(bits, 0x7c00u);
    }
    std::memcpy(&(*bytes)[i], &bits, std::min<size_t>(8, bytes->size() - i));
  }
}

}  // namespace

RandomCall::RandomCall(uint64_t seed, Range range)
    : random(seed), range_(range), grain_(random.Of({1, 2, 8, 8})) {
  MakeConfig();
}

rope_config RandomCall::ConfigOf(int set) const {
  rope_config config = config_;
  config.theta *= 1 + 0.01 * set;
  if (!inv_freq_.empty()) config.inv_freq = inv_freq_[static_cast<size_t>(set)].data();
  if (!frequency_.empty()) config.frequency = frequency_[static_cast<size_t>(set)].data();
  return config;
}

Context RandomCall::CreateContext(rope_device device) const {
  std::vector<rope_config> configs;
  std::vector<const rope_config*> pointers;
  for (int set = 0; set < sets_; ++set) {
    configs.push_back(ConfigOf(set));
    configs.back().device = device;
  }
  for (const rope_config& config : configs) pointers.push_back(&config);
  rope_context* context = nullptr;
  EXPECT_OK(rope_context_create_sets(pointers.data(), sets_, &context));
  return Context(context);
}

void RandomCall::Restore(const std::vector<Buffer>& all) {
  for (size_t i = 0; i < all.size(); ++i) {
    std::copy(all[i].bytes.begin(), all[i].bytes.end(), buffers[i].bytes.begin());
  }
}

std::string RandomCall::Describe() const {
  std::ostringstream text;
  text << "head_dim " << config_.head_dim << " span " << config_.rotary_dim << " at "
       << config_.rotary_offset << " pairing " << config_.pairing << " angle " << config_.angle
       << " rounding " << config_.rounding << " scaling " << config_.scaling << " axes "
       << config_.axes << " freq_heads " << config_.freq_heads << " sets " << sets_ << " operation "
       << args.operation << " batch " << args.batch << " tokens " << args.tokens << " positions "
       << args.positions.kind << " shard " << shard_.scheme << " on " << shard_.world << " inside "
       << shard_.inner_scheme << " on " << shard_.inner_world << " rows " << rows.format << " of "
       << rows.heads << " heads";
  return text.str();
}

// --- Configurations ------------------------------------------------------------------------------

void RandomCall::MakeConfig() {
  Random& r = random;
  rope_config& c = config_;
  c.head_dim = grain_ == 8   ? r.Of({16, 64, 64, 80, 96, 128, 128, 192, 256, 512, 1024})
               : grain_ == 2 ? r.Of({4, 12, 20, 36, 60, 64, 72, 100, 128, 516})
                             : r.Of({2, 6, 10, 24, 34, 66, 80, 126, 258, 1022});
  if (c.head_dim > 128 && !r.Sometimes(3)) c.head_dim = 128;
  c.pairing = r.Pick(1, kLastPairing);
  c.angle = r.Pick(ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT);
  if (range_ == kEverything) c.rounding = r.Pick(ROPE_ROUNDING_FLOAT32, kLastRounding);
  c.rotary_dim = c.head_dim;
  if (r.Sometimes(3)) {
    c.rotary_dim = 2 * grain_ * r.Pick(1, c.head_dim / 2 / grain_);
    const int rest = c.head_dim - c.rotary_dim;
    c.rotary_offset = r.Of({0, rest, grain_ * r.Pick(0, rest / grain_)});
  }
  if (r.Sometimes(16)) {
    c.scaling = ROPE_SCALING_NOPE;
  } else {
    MakeFrequencies();
  }
  if (c.frequency == nullptr && (c.pairing == ROPE_PAIRING_HALVES_PER_AXIS || r.Sometimes(3))) {
    MakeAxes();
  }
  if (c.inv_freq != nullptr || c.pair_axis != nullptr || c.frequency != nullptr) {
    c.table_length = pairs();
  }
}

void RandomCall::MakeFrequencies() {
  Random& r = random;
  rope_config& c = config_;
  c.theta = r.Of({100.0, 10000.0, 500000.0});
  if (r.Sometimes(2)) c.attention_factor = 0.7 + 0.1 * r.Pick(0, 8);
  if (r.Sometimes(5)) sets_ = r.Of({2, 3, 5, 40});
  const int kind = r.Pick(0, 6);
  if (kind == 0) {  // the caller's frequencies, some of them 0 or negative
    inv_freq_.resize(static_cast<size_t>(sets_));
    for (int i = 0; i < pairs(); ++i) {
      const double value = r.Pick(-1000, 1000) / 700.0;
      for (int set = 0; set < sets_; ++set) {
        inv_freq_[static_cast<size_t>(set)].push_back(value * (1 - 0.01 * set));
      }
    }
    c.inv_freq = inv_freq_[0].data();
  } else if (kind == 1) {
    c.scaling = ROPE_SCALING_LINEAR;
    c.factor = r.Pick(1, 8);
  } else if (kind == 2 && range_ == kEverything) {
    c.scaling = ROPE_SCALING_YARN;
    c.factor = 4;
    c.original_max_position_embeddings = 4096;
  } else if (kind >= 5 && c.pairing != ROPE_PAIRING_HALVES_PER_AXIS) {
    MakeSums();
  }
  if (range_ == kEverything && kind != 2 && c.frequency == nullptr && r.Sometimes(4)) {
    c.angle = ROPE_ANGLE_DIVIDE;
  }
}

// Frequencies of each axis and head, some of them 0.
void RandomCall::MakeSums() {
  Random& r = random;
  rope_config& c = config_;
  c.axes = r.Of({0, 1, 2, 3, 3, 8});
  c.freq_heads = r.Pick(0, 3);
  const int count = std::max(1, c.axes) * std::max(1, c.freq_heads) * pairs();
  frequency_.resize(static_cast<size_t>(sets_));
  for (int i = 0; i < count; ++i) {
    const double value = r.Sometimes(5) ? 0 : r.Pick(-1000, 1000) / 700.0;
    for (int set = 0; set < sets_; ++set) {
      frequency_[static_cast<size_t>(set)].push_back(value * (1 - 0.01 * set));
    }
  }
  c.frequency = frequency_[0].data();
}

void RandomCall::MakeAxes() {
  Random& r = random;
  rope_config& c = config_;
  const bool per_axis = c.pairing == ROPE_PAIRING_HALVES_PER_AXIS;
  c.axes = r.Pick(2, per_axis ? 4 : 8);
  if (!per_axis && (c.axes > 4 || r.Sometimes(2))) {
    for (int i = 0; i < pairs(); ++i) pair_axis_.push_back(static_cast<uint8_t>(r.Below(c.axes)));
    c.pair_axis = pair_axis_.data();
    return;
  }
  c.mrope_interleaved = !per_axis && c.axes <= 3 && r.Sometimes(2);
  int left = pairs();
  for (int a = c.axes - 1; a > 0; --a) {
    // Interleaved, an axis has as many pairs as i mod axes can give.
    c.mrope_section[a] =
        c.mrope_interleaved ? r.Pick(0, pairs() / c.axes) : grain_ * r.Pick(0, left / grain_);
    left -= c.mrope_section[a];
  }
  c.mrope_section[0] = left;
}

// --- Positions and rows --------------------------------------------------------------------------

int32_t RandomCall::OneOf(const std::vector<int32_t>& numbers) {
  return numbers[static_cast<size_t>(random.Below(static_cast<int64_t>(numbers.size())))];
}

std::vector<char>& RandomCall::NewBuffer(rope_dtype dtype, size_t bytes) {
  buffers.push_back({dtype, std::vector<char>(bytes)});
  return buffers.back().bytes;
}

template <class T>
const T* RandomCall::Keep(const std::vector<T>& values) {
  std::vector<char>& bytes = NewBuffer(0, values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return reinterpret_cast<const T*>(bytes.data());
}

int64_t RandomCall::Position() {
  Random& r = random;
  if (range_ == kEverything && r.Sometimes(10)) {
    return r.Of<int64_t>(
        {INT32_MAX, -5, 8388607, 8388608, 131071, 1 << 24, INT64_MIN, INT64_MAX, 0});
  }
  // Up to 2^37, where 64 fraction bits of a frequency are still exact enough.
  const auto position = static_cast<int64_t>(r.Next() >> r.Of({27, 35, 51}));
  return r.Sometimes(5) ? -position : position;
}

// A rank's share of tokens that divide as they must.
void RandomCall::MakeShard() {
  Random& r = random;
  const int64_t tokens = args.tokens += args.tokens % 2;
  const auto scheme_of = [&](int64_t own, int32_t* block) {
    const rope_shard_scheme scheme = r.Pick(ROPE_SHARD_CONTIGUOUS, ROPE_SHARD_HEADS);
    *block = scheme == ROPE_SHARD_STRIPED ? r.Of({0, 1, 2, 3, 4}) : 0;
    if (*block > 1 && own % *block != 0) *block = 0;
    return scheme;
  };
  if (r.Sometimes(3)) {
    shard_.inner_scheme = scheme_of(tokens, &shard_.inner_block);
    shard_.inner_world = r.Pick(1, 8);
    shard_.inner_rank = r.Pick(0, shard_.inner_world - 1);
  }
  shard_.world = 1;  // PartsOf are those of the inner level
  shard_.scheme = scheme_of(tokens * PartsOf(shard_), &shard_.block);
  shard_.world = r.Pick(1, 8);
  shard_.rank = r.Pick(0, shard_.world - 1);
  if (config_.freq_heads > 1) {
    if (shard_.scheme == ROPE_SHARD_HEADS) shard_.scheme = ROPE_SHARD_CONTIGUOUS;
    if (shard_.inner_scheme == ROPE_SHARD_HEADS) shard_.inner_scheme = ROPE_SHARD_CONTIGUOUS;
  }
  shard_.per_document =
      args.batch == 1 && shard_.scheme != ROPE_SHARD_HEADS && r.Sometimes(2) ? 1 : 0;
  args.positions.shard = &shard_;
}

void RandomCall::MakePositions() {
  Random& r = random;
  rope_positions& p = args.positions;
  p.kind = r.Pick(ROPE_POSITIONS_OFFSET, kLastPositionKind);
  if (p.kind <= ROPE_POSITIONS_SEQ_OFFSETS && r.Sometimes(3)) MakeShard();
  if (args.batch == 1 && (shard_.per_document != 0 || r.Sometimes(2))) {  // some of them empty
    p.sequences = r.Sometimes(2) ? r.Pick(1, 5) : r.Pick(1, 40);
    const int64_t all = p.shard != nullptr ? args.tokens * PartsOf(shard_) : args.tokens;
    const int64_t unit = shard_.per_document != 0 ? DocumentUnitOf(shard_) : 1;
    std::vector<int32_t> cuts = {0, static_cast<int32_t>(all)};
    for (int i = 1; i < p.sequences; ++i) {
      cuts.push_back(static_cast<int32_t>(unit * r.Below(all / unit + 1)));
    }
    std::sort(cuts.begin(), cuts.end());
    p.cu_seqlens = Keep(cuts);
  }
  const int64_t sequences = p.sequences != 0 ? p.sequences : args.batch;
  if (sets_ > 1) {
    std::vector<int32_t> chosen;
    for (int64_t i = 0; i < sequences; ++i) chosen.push_back(static_cast<int32_t>(r.Below(sets_)));
    p.freq_sets = Keep(chosen);
  }
  if (p.kind == ROPE_POSITIONS_OFFSET) {
    p.offset = Position();
    return;
  }
  const int axes = std::max(1, config_.axes);
  int64_t count = axes * args.batch * args.tokens;
  if (p.kind == ROPE_POSITIONS_SEQ_OFFSETS) {
    count = sequences;
  } else if (p.kind == ROPE_POSITIONS_IDS_STRIDED) {
    p.stride_token = r.Below(3);
    p.stride_batch = r.Below(20);
    p.stride_axis = r.Below(30);
    count = (args.tokens - 1) * p.stride_token + (args.batch - 1) * p.stride_batch +
            (axes - 1) * p.stride_axis + 1;
  }
  const bool offsets = p.kind == ROPE_POSITIONS_SEQ_OFFSETS;
  const int type = r.Pick(0, offsets ? 1 : 2);
  if (type == 2) {
    std::vector<float> ids;
    for (int64_t i = 0; i < count; ++i) {
      const auto near = static_cast<float>(r.Pick(-1000, 1000)) / 64.0f;
      ids.push_back(range_ == kComputable ? near : near * r.Of({1.0f, 0.37f, 1e-6f, 1e4f, 1e20f}));
    }
    if (range_ == kEverything && r.Sometimes(10)) ids[0] = INFINITY;
    p.ids_f32 = Keep(ids);
    return;
  }
  std::vector<int64_t> wide;
  for (int64_t i = 0; i < count; ++i) wide.push_back(Position());
  const std::vector<int32_t> narrow(wide.begin(), wide.end());
  if (type == 0) {
    (offsets ? p.offsets_i32 : p.ids_i32) = Keep(narrow);
  } else {
    (offsets ? p.offsets_i64 : p.ids_i64) = Keep(wide);
  }
}

void RandomCall::MakeRows(bool written) {
  Random& r = random;
  rows.format = OneOf(written ? Formats() : ReadableFormats());
  rows.dtype = HoldsAngles(rows.format) ? ROPE_DTYPE_F32 : r.Pick(1, kLastDtype);
  rows.pairs = pairs();
  rows.batch = written || r.Sometimes(2) ? args.batch : 1;
  const int64_t width = rope_cos_sin_width(rows.format, rows.pairs);
  rows.heads = !written && r.Sometimes(3) ? r.Pick(1, 4) : 0;
  if (config_.freq_heads > 1) rows.heads = config_.freq_heads;
  const int64_t heads = std::max(1, rows.heads);
  int64_t token_step = width * heads, head_step = width;
  if (rows.heads != 0 && r.Sometimes(2)) {  // [batch, heads, tokens, row]
    token_step = rows.stride_token = width + r.Pick(0, 5);
    head_step = rows.stride_head = args.tokens * token_step + r.Pick(0, 5);
  } else if (r.Sometimes(2)) {
    token_step = rows.stride_token = token_step + r.Pick(0, 5);
  }
  const int64_t batch_step =
      std::max(args.tokens * token_step, rows.stride_head != 0 ? heads * head_step : 0);
  const auto elements = static_cast<size_t>(args.batch * batch_step);
  for (void** data : {&rows.data, &rows.sin}) {
    if (data == &rows.sin && rope_cos_sin_tensors(rows.format) == 1) continue;
    std::vector<char>& bytes =
        NewBuffer(rows.dtype, elements * static_cast<size_t>(SizeOf(rows.dtype)));
    FillWithNumbers(rows.dtype, range_ == kEverything, &r, &bytes);
    *data = bytes.data();
  }
  // Rows with a value for each channel beside such with one for each pair.
  const bool halves = rows.format == ROPE_COS_SIN_FULL_HALVES;
  if (!halves && rows.format != ROPE_COS_SIN_FULL_INTERLEAVED) return;
  if (written || config_.pairing == ROPE_PAIRING_HALVES_PER_AXIS || r.Sometimes(2)) return;
  const auto size = static_cast<size_t>(SizeOf(rows.dtype));
  for (int64_t row = 0; row < rows.batch * args.tokens * heads; ++row) {
    if (r.Sometimes(2)) continue;
    const int64_t token = row / heads, head = row % heads;
    const int64_t at =
        token / args.tokens * batch_step + token % args.tokens * token_step + head * head_step;
    for (void* data : {rows.data, rows.sin}) {
      char* const first = static_cast<char*>(data) + static_cast<size_t>(at) * size;
      for (int i = 0; i < pairs(); ++i) {
        const int from = halves ? i : 2 * i, to = halves ? i + pairs() : 2 * i + 1;
        std::memcpy(first + static_cast<size_t>(to) * size,
                    first + static_cast<size_t>(from) * size, size);
      }
    }
  }
}

// --- Calls ---------------------------------------------------------------------------------------

// A layout whose heads lie apart; what is only read may repeat some.
void RandomCall::MakeTensor(rope_tensor* t, bool only_read) {
  Random& r = random;
  t->head_dim = r.Sometimes(6) ? config_.rotary_dim : r.Of({0, config_.head_dim});
  t->layout = r.Pick(ROPE_LAYOUT_BSHD, ROPE_LAYOUT_STRIDED);
  const int64_t width = WidthOf(*t);
  if (t->layout == ROPE_LAYOUT_STRIDED) {
    std::pair<int64_t*, int64_t> dimensions[] = {{&t->stride_batch, args.batch},
                                                 {&t->stride_token, args.tokens},
                                                 {&t->stride_head, t->heads}};
    for (int d = 2; d > 0; --d) std::swap(dimensions[d], dimensions[r.Below(d + 1)]);
    int64_t next = width;
    for (const auto& [stride, count] : dimensions) {
      *stride = next + grain_ * r.Pick(0, 3);
      next = *stride * count;
      if (only_read && r.Sometimes(4)) *stride = 0;
    }
  }
  const int64_t last =
      HeadOffset(*t, args.batch, args.tokens, width, args.batch - 1, args.tokens - 1, t->heads - 1);
  // From the start of a line, or some elements beside it; memory beside the tensor on both sides.
  const auto size = static_cast<size_t>(SizeOf(t->dtype));
  const size_t shift = static_cast<size_t>(grain_ * r.Pick(0, 3)) * size;
  std::vector<char>& bytes =
      NewBuffer(t->dtype, (static_cast<size_t>(last + width) + 64) * size + 128);
  FillWithNumbers(t->dtype, range_ == kEverything, &r, &bytes);
  t->data = bytes.data() + ToLine(bytes.data()) + shift;
}

void RandomCall::MakeApply() {
  Random& r = random;
  args.batch = r.Of({1, 1, 2, 3});
  args.tokens = r.Of({1, 2, 3, 5, 9, 17, 33});
  if (config_.head_dim > 128) args.tokens = std::min<int64_t>(args.tokens, 5);
  if (single_tokens) {
    args.batch = r.Pick(2, 40);
    args.tokens = 1;
  }
  if (range_ == kEverything && r.Sometimes(4)) {
    MakeRows(false);
    args.cos_sin = &rows;
    args.operation = OneOf(OperationsOf(true, false));
  } else {
    MakePositions();
    const bool distances = args.positions.kind >= ROPE_POSITIONS_IDS_T;
    args.operation = OneOf(OperationsOf(false, distances));
  }
  const int which = r.Of({3, 3, 3, 1, 2}), dtype = r.Pick(1, kLastDtype);
  for (int n = 0; n < 2; ++n) {
    if ((which >> n & 1) == 0) continue;
    CallTensor& t = tensors[n];
    t.present = true;
    t.in_place = r.Sometimes(2);
    t.in->dtype = r.Sometimes(4) ? r.Pick(1, kLastDtype) : dtype;
    if (config_.rounding == ROPE_ROUNDING_NATIVE) t.in->dtype = ROPE_DTYPE_F16;
    if (range_ == kComputable) {
      t.in->heads = r.Of({1, 1, 2, 5});
    } else {
      t.in->heads = n == 0 ? r.Of({1, 3, 8, 14, 32}) : r.Of({1, 2, 8});
    }
    // Each row serves as many heads as the others.
    const int32_t row_heads = std::max({1, rows.heads, config_.freq_heads});
    t.in->heads = (t.in->heads + row_heads - 1) / row_heads * row_heads;
    if (!t.in_place) {
      t.out->dtype = t.in->dtype;
      t.out->heads = t.in->heads;
      MakeTensor(t.out, false);
      t.out_buffer = buffers.size() - 1;
    }
    MakeTensor(t.in, !t.in_place);
    t.in_buffer = buffers.size() - 1;
    if (t.in_place) {
      t.out_buffer = t.in_buffer;
      if (r.Sometimes(3)) *t.out = *t.in;  // the same tensor, described
    }
    t.is_slice =
        WidthOf(*t.in) < config_.head_dim || (!t.in_place && WidthOf(*t.out) < config_.head_dim);
  }
}

void RandomCall::MakeFill() {
  args.batch = random.Of({1, 1, 2});
  args.tokens = random.Of({1, 2, 7, 20});
  MakePositions();
  MakeRows(true);
}

}  // namespace rope::testing
