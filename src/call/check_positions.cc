#include "call/check_positions.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/aligned.h"
#include "base/status.h"
#include "call/check_shard.h"

namespace rope {
namespace {

// The strides of contiguous ids whose dimensions are, outermost first, those of kOrder: A axes,
// B batch rows, T tokens. A dimension that is not among them shares its ids. A stride that does not
// fit is too large for IdsFit().
template <char... kOrder>
void SetStrides(int axes, int64_t batch, int64_t tokens, PositionSource* source) {
  constexpr char order[] = {kOrder...};
  int64_t stride = 1;
  const auto add = [&stride](int64_t count, int64_t* stride_of_dimension) {
    *stride_of_dimension = stride;
    if (__builtin_mul_overflow(stride, count, &stride)) stride = INT64_MAX;
  };
  for (size_t n = sizeof...(kOrder); n-- > 0;) {
    switch (order[n]) {
      case 'A': add(axes, &source->stride_axis); break;
      case 'B': add(batch, &source->stride_batch); break;
      default: add(tokens, &source->stride_token);
    }
  }
}

struct PositionKind {
  const char* name;
  bool has_axes;  // ids of each axis
  void (*set_strides)(int axes, int64_t batch, int64_t tokens, PositionSource* source);
};

// By number. From IDS_T on there are ids.
constexpr PositionKind kPositionKinds[] = {
    {},
    {"OFFSET", false, nullptr},
    {"SEQ_OFFSETS", false, nullptr},
    {"IDS_T", false, SetStrides<'T'>},
    {"IDS_BT", false, SetStrides<'B', 'T'>},
    {"IDS_ABT", true, SetStrides<'A', 'B', 'T'>},
    {"IDS_BTA", true, SetStrides<'B', 'T', 'A'>},
    {"IDS_STRIDED", true, nullptr},  // as the caller's strides say
};
static_assert(std::size(kPositionKinds) == ROPE_POSITIONS_IDS_STRIDED + 1);

// Exactly one array of those that the kind reads, and none of the others.
struct Arrays {
  const void* data = nullptr;
  PositionSource::Type type = PositionSource::kNone;
  int given = 0;

  void Add(const void* array, PositionSource::Type array_type) {
    if (array == nullptr) return;
    data = array;
    type = array_type;
    ++given;
  }
  size_t size() const { return type == PositionSource::kInt64 ? 8 : 4; }
};

rope_status Unused(const char* function, const char* name, const char* field, int32_t kind) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s%s is set, but ROPE_POSITIONS_%s does not use it",
              function, name, field, kPositionKinds[kind].name);
}

rope_status CheckUnused(const char* function, const char* name, const rope_positions& p) {
  const bool ids = p.kind >= ROPE_POSITIONS_IDS_T;
  if (p.kind != ROPE_POSITIONS_OFFSET && p.offset != 0) {
    return Unused(function, name, "offset", p.kind);
  }
  if (p.kind != ROPE_POSITIONS_SEQ_OFFSETS && (p.offsets_i32 || p.offsets_i64)) {
    return Unused(function, name, p.offsets_i32 ? "offsets_i32" : "offsets_i64", p.kind);
  }
  if (!ids && (p.ids_i32 || p.ids_i64 || p.ids_f32)) {
    return Unused(function, name,
                  p.ids_i32   ? "ids_i32"
                  : p.ids_i64 ? "ids_i64"
                              : "ids_f32",
                  p.kind);
  }
  if (p.kind != ROPE_POSITIONS_IDS_STRIDED &&
      (p.stride_axis | p.stride_batch | p.stride_token) != 0) {
    return Unused(function, name, "stride_axis, stride_batch or stride_token", p.kind);
  }
  return ROPE_OK;
}

// Makes the place of `source` that of runs, if there are any and its tokens are all of them.
rope_status CheckSequences(const Call& call, const char* name, const rope_positions& p,
                           PositionSource* source) {
  const char* const function = call.function;
  const rope_context& context = call.context;
  const bool sharded = p.shard != nullptr;
  const int64_t batch = call.batch, tokens = sharded ? source->shard.all_tokens : call.tokens;
  if (p.cu_seqlens == nullptr) {
    if (p.sequences != 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %ssequences (%d) must be 0 without cu_seqlens",
                  function, name, p.sequences);
    }
  } else {
    if (p.sequences < 1) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %ssequences (%d) must be positive with cu_seqlens", function, name,
                  p.sequences);
    }
    if (batch != 1) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %scu_seqlens needs batch 1, and batch is %lld",
                  function, name, static_cast<long long>(batch));
    }
    if (!IsAligned(p.cu_seqlens, 4)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %scu_seqlens (%p) must be aligned to 4 bytes",
                  function, name, static_cast<const void*>(p.cu_seqlens));
    }
  }
  if (p.cu_seqlens != nullptr && !sharded) source->place = PositionSource::kRuns;
  const bool several = context.sets.size() > 1;
  if (several != (p.freq_sets != nullptr)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                several ? "%s: %sfreq_sets (NULL) is required: the context has %zu sets"
                        : "%s: %sfreq_sets must be NULL: the context has %zu set",
                function, name, context.sets.size());
  }
  if (!IsAligned(p.freq_sets, 4)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sfreq_sets (%p) must be aligned to 4 bytes",
                function, name, static_cast<const void*>(p.freq_sets));
  }
  if (!context.backend->host_memory) return ROPE_OK;

  for (int64_t i = 0; p.cu_seqlens != nullptr && i <= p.sequences; ++i) {
    const int32_t value = p.cu_seqlens[i];
    const bool good = i == 0 ? value == 0 : value >= p.cu_seqlens[i - 1];
    if (!good || (i == p.sequences && value != tokens)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %scu_seqlens[%lld] (%d) breaks the rule: from 0 to %s (%lld), never "
                  "decreasing",
                  function, name, static_cast<long long>(i), value,
                  sharded ? "the tokens of all ranks" : "tokens", static_cast<long long>(tokens));
    }
  }
  const int64_t sequences = p.cu_seqlens != nullptr ? p.sequences : batch;
  for (int64_t i = 0; p.freq_sets != nullptr && i < sequences; ++i) {
    if (p.freq_sets[i] < 0 || static_cast<size_t>(p.freq_sets[i]) >= context.sets.size()) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sfreq_sets[%lld] (%d) must be from 0 to %zu",
                  function, name, static_cast<long long>(i), p.freq_sets[i],
                  context.sets.size() - 1);
    }
  }
  return sharded ? CheckDocuments(call, name, p, source->shard) : ROPE_OK;
}

// The last id lies within the address space.
bool IdsFit(const PositionSource& s, int axes, int64_t batch, int64_t tokens) {
  const int64_t counts[3] = {axes, batch, tokens};
  const int64_t strides[3] = {s.stride_axis, s.stride_batch, s.stride_token};
  int64_t last = 0, product;
  for (int d = 0; d < 3; ++d) {
    if (__builtin_mul_overflow(counts[d] - 1, strides[d], &product) ||
        __builtin_add_overflow(last, product, &last)) {
      return false;
    }
  }
  return last <= INT64_MAX / 8 - 1;
}

// Fields that are 0 in most calls. Batch rows that share their positions are one row of them.
__attribute__((noinline)) rope_status CheckRare(const Call& call, const char* name,
                                                const rope_positions& p, PositionSource* source) {
  const auto& [function, context, batch, tokens] = call;
  if ((p.reserved[0] | p.reserved[1]) != 0) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %sreserved must be 0 in this version", function, name);
  }
  const int64_t repeat = p.batch_repeat;
  if (repeat < 0 || batch % repeat != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %sbatch_repeat (%lld) must be 0 or a divisor of batch (%lld)", function, name,
                static_cast<long long>(repeat), static_cast<long long>(batch));
  }
  rope_positions of_rows = p;
  of_rows.batch_repeat = 0;
  return CheckPositions({function, context, batch / repeat, tokens}, name, of_rows, source);
}

}  // namespace

const char* NameOfPositionKind(rope_position_kind kind) { return kPositionKinds[kind].name; }

rope_status CheckPositions(const Call& call, const char* name, const rope_positions& p,
                           PositionSource* source) {
  const auto& [function, context, batch, tokens] = call;
  if (p.kind <= 0 || p.kind >= static_cast<int32_t>(std::size(kPositionKinds))) {
    return p.kind == 0
               ? Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %skind (0) is required", function, name)
               : Fail(ROPE_ERROR_UNSUPPORTED, "%s: %skind (%d) is not known to this version",
                      function, name, p.kind);
  }
  if ((p.batch_repeat | p.reserved[0] | p.reserved[1]) != 0) {
    return CheckRare(call, name, p, source);
  }
  if (context.ids_per_axis && !kPositionKinds[p.kind].has_axes) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: %skind (ROPE_POSITIONS_%s) gives all %d axes of a token one id, and must be one "
        "that gives each its own: config->ids_per_axis is 1",
        function, name, kPositionKinds[p.kind].name, context.axes);
  }
  if (rope_status s = CheckUnused(function, name, p)) return s;
  static_cast<WholeSource&>(*source) = WholeSource{};
  if (p.shard != nullptr) {
    if (p.kind >= ROPE_POSITIONS_IDS_T) return Unused(function, name, "shard", p.kind);
    if (rope_status s = CheckShard(call, name, p, &source->shard)) return s;
    source->place = PositionSource::kShard;
  }
  if (p.cu_seqlens != nullptr || p.freq_sets != nullptr || p.sequences != 0 ||
      context.sets.size() > 1) {
    if (rope_status s = CheckSequences(call, name, p, source)) return s;
  }
  source->offset = p.offset;
  source->cu_seqlens = p.cu_seqlens;
  source->sequences = p.sequences;
  source->freq_sets = p.freq_sets;
  if (p.kind == ROPE_POSITIONS_OFFSET) return ROPE_OK;

  Arrays arrays;
  const bool per_sequence = p.kind == ROPE_POSITIONS_SEQ_OFFSETS;
  if (per_sequence) {
    arrays.Add(p.offsets_i32, PositionSource::kInt32);
    arrays.Add(p.offsets_i64, PositionSource::kInt64);
  } else {
    arrays.Add(p.ids_i32, PositionSource::kInt32);
    arrays.Add(p.ids_i64, PositionSource::kInt64);
    arrays.Add(p.ids_f32, PositionSource::kFloat);
  }
  if (arrays.given != 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s%s: %d arrays are set, and exactly 1 is required", function, name,
                per_sequence ? "offsets_i32, offsets_i64" : "ids_i32, ids_i64, ids_f32",
                arrays.given);
  }
  if (!IsAligned(arrays.data, arrays.size())) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s%s (%p) must be aligned to %zu bytes", function,
                name, per_sequence ? "offsets" : "ids", arrays.data, arrays.size());
  }
  source->type = arrays.type;
  source->data = arrays.data;
  source->per_sequence = per_sequence;
  if (p.kind == ROPE_POSITIONS_IDS_STRIDED) {
    if ((p.stride_axis | p.stride_batch | p.stride_token) < 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %sstride_axis, stride_batch and stride_token (%lld, %lld, %lld) must not "
                  "be negative",
                  function, name, static_cast<long long>(p.stride_axis),
                  static_cast<long long>(p.stride_batch), static_cast<long long>(p.stride_token));
    }
    source->stride_axis = p.stride_axis;
    source->stride_batch = p.stride_batch;
    source->stride_token = p.stride_token;
  } else if (!per_sequence) {
    kPositionKinds[p.kind].set_strides(context.axes, batch, tokens, source);
  }
  if (!per_sequence && tokens > 0 && !IdsFit(*source, context.axes, batch, tokens)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %sids: strides and sizes reach beyond the "
                "address space",
                function, name);
  }
  return ROPE_OK;
}

// They may have runs of their own, but an offset for each sequence of one, where the other has
// several, was meant for the same sequences: one offset would serve all tokens.
rope_status CheckBothRuns(const Call& call, const PositionSource& from, const PositionSource& to) {
  const bool before = to.sequences > 1;
  const PositionSource &one = before ? from : to, &several = before ? to : from;
  if (several.sequences <= 1 || !one.per_sequence || one.sequences != 0) return ROPE_OK;
  const char* const names[2] = {"args->positions.", "args->fused->from_positions->"};
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %scu_seqlens (NULL) is required with SEQ_OFFSETS, because %ssequences is %d: "
              "without it there is one offset for all tokens",
              call.function, names[before], names[!before], several.sequences);
}

rope_status CheckValidity(const Call& call, const char* name, const PositionSource& source,
                          int64_t batch_repeat) {
  const rope_context& context = call.context;
  if (context.valid_below == INT64_MAX) return ROPE_OK;  // as for most scalings
  // Of a shard, the positions of all ranks: they have the same answer.
  const bool sharded = source.place == PositionSource::kShard;
  const int64_t batch = call.batch / batch_repeat,
                tokens = sharded ? source.shard.all_tokens : call.tokens;
  const auto fail = [&](int64_t position, int64_t token, int64_t batch_row, int64_t valid_below) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: %s: position %lld of token %lld in batch row %lld must be below %lld, because "
        "in a sequence of %lld tokens the scaling has other frequencies than for config->seq_len",
        call.function, name, static_cast<long long>(position), static_cast<long long>(token),
        static_cast<long long>(batch_row * batch_repeat), static_cast<long long>(valid_below - 1),
        static_cast<long long>(valid_below));
  };
  const auto valid_below_of = [&](int64_t sequence) {
    return context.SetOf(source, sequence).valid_below;
  };
  // A position is that of the last token of a sequence with one more.
  if (!context.backend->host_memory) {
    const bool known = source.type == PositionSource::kNone && source.cu_seqlens == nullptr &&
                       source.freq_sets == nullptr;
    const int64_t last = static_cast<int64_t>(static_cast<uint64_t>(source.offset) +
                                              static_cast<uint64_t>(tokens - 1));
    return known && last >= context.valid_below - 1 ? fail(last, tokens - 1, 0, context.valid_below)
                                                    : ROPE_OK;
  }
  if (source.type == PositionSource::kNone || source.per_sequence) {
    // Positions count up, so the first that is too large follows from where the sequence begins.
    const bool packed = source.cu_seqlens != nullptr;
    const bool alike = !packed && !source.per_sequence && source.freq_sets == nullptr;
    const int64_t sequences = packed ? source.sequences : alike ? 1 : batch;
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t first = packed ? source.cu_seqlens[s] : 0;
      const int64_t count = packed ? source.cu_seqlens[s + 1] - first : tokens;
      const int64_t valid_below = valid_below_of(s);
      if (count <= 0 || valid_below == INT64_MAX) continue;
      const int64_t batch_row = packed ? 0 : s, limit = valid_below - 1;
      const int64_t start = IntegerPosition(source, Token{batch_row, first, s, first}, 0);
      if (start >= limit) return fail(start, first, batch_row, valid_below);
      const uint64_t below = static_cast<uint64_t>(limit) - static_cast<uint64_t>(start);
      if (below < static_cast<uint64_t>(count)) {
        return fail(limit, first + static_cast<int64_t>(below), batch_row, valid_below);
      }
    }
    return ROPE_OK;
  }
  // Ids: each that is another one, or has another set.
  const int64_t rows = source.stride_batch != 0 || source.freq_sets != nullptr ? batch : 1;
  const int64_t columns = source.stride_token != 0 || source.freq_sets != nullptr ? tokens : 1;
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t t = 0; t < columns; ++t) {
      const Token token = LocateToken(source, b, t);
      const int64_t valid_below = valid_below_of(token.sequence);
      for (int a = 0; a < context.axes && valid_below != INT64_MAX; ++a) {
        int64_t position;
        if (source.type == PositionSource::kFloat) {
          const float coordinate = FloatPosition(source, token, a);
          position = coordinate > 0 ? static_cast<int64_t>(std::min(coordinate, 0x1p62f)) : 0;
        } else {
          position = IntegerPosition(source, token, a);
        }
        if (position >= valid_below - 1) return fail(position, t, b, valid_below);
      }
    }
  }
  return ROPE_OK;
}

}  // namespace rope
