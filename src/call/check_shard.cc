#include "call/check_shard.h"

#include <iterator>

#include "base/status.h"

namespace rope {
namespace {

// What the lengths that a scheme divides must be a multiple of, on each rank.
enum class Unit { kToken, kTwoChunks, kBlock };

struct Scheme {
  const char* name;
  Unit unit;
};

// By number.
constexpr Scheme kSchemes[] = {
    {},
    {"CONTIGUOUS", Unit::kToken},
    {"ZIGZAG", Unit::kTwoChunks},
    {"STRIPED", Unit::kBlock},
    {"HEADS", Unit::kToken},
};
static_assert(std::size(kSchemes) == ROPE_SHARD_HEADS + 1);

int64_t UnitOf(const ShardLevel& level) {
  switch (kSchemes[level.scheme].unit) {
    case Unit::kToken: return 1;
    case Unit::kTwoChunks: return 2;
    case Unit::kBlock: break;
  }
  return level.block;
}

// What a unit is, for messages.
const char* UnitNameOf(const ShardLevel& level) {
  return kSchemes[level.scheme].unit == Unit::kBlock ? "a stripe has block tokens"
                                                     : "a rank has two chunks of one length";
}

// `prefix` stands before the names of a level's fields.
rope_status CheckLevel(const Call& call, const char* name, const char* prefix,
                       const ShardLevel& given, ShardLevel* level) {
  const char* const function = call.function;
  if (given.scheme <= 0 || given.scheme >= static_cast<int32_t>(std::size(kSchemes))) {
    return given.scheme == 0 ? Fail(ROPE_ERROR_INVALID_ARGUMENT,
                                    "%s: %sshard->%sscheme (0) is required", function, name, prefix)
                             : Fail(ROPE_ERROR_UNSUPPORTED,
                                    "%s: %sshard->%sscheme (%d) is not known to this version",
                                    function, name, prefix, given.scheme);
  }
  if (given.world < 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %sshard->%sworld (%d) is required, and must be positive: the number of ranks",
                function, name, prefix, given.world);
  }
  if (given.rank < 0 || given.rank >= given.world) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sshard->%srank (%d) must be from 0 to %d",
                function, name, prefix, given.rank, given.world - 1);
  }
  const bool has_blocks = kSchemes[given.scheme].unit == Unit::kBlock;
  if (given.block < 0 || (given.block != 0 && !has_blocks)) {
    return has_blocks
               ? Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sshard->%sblock (%d) must not be negative",
                      function, name, prefix, given.block)
               : Fail(ROPE_ERROR_INVALID_ARGUMENT,
                      "%s: %sshard->%sblock (%d) must be 0: ROPE_SHARD_%s has no stripes", function,
                      name, prefix, given.block, kSchemes[given.scheme].name);
  }
  if (given.scheme == ROPE_SHARD_HEADS && call.context.freq_heads > 1) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %sshard->%sscheme (ROPE_SHARD_HEADS) must not divide heads that have "
                "frequencies of their own (config->freq_heads is %d): make a context of the heads "
                "of this rank",
                function, name, prefix, call.context.freq_heads);
  }
  *level = given;
  if (level->block == 0) level->block = 1;
  level->by_block = SmallDivisorOf(level->block);
  return ROPE_OK;
}

// The tokens of a row that a rank has, or a group of inner ranks.
rope_status CheckTokens(const Call& call, const char* name, const char* prefix, const char* what,
                        const ShardLevel& level, int64_t tokens) {
  if (tokens % UnitOf(level) == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s (%lld) must be a multiple of %lld with %sshard->%sscheme ROPE_SHARD_%s: %s",
              call.function, what, static_cast<long long>(tokens),
              static_cast<long long>(UnitOf(level)), name, prefix, kSchemes[level.scheme].name,
              UnitNameOf(level));
}

}  // namespace

rope_status CheckShard(const Call& call, const char* name, const rope_positions& p, Shard* shard) {
  const char* const function = call.function;
  const rope_shard& s = *p.shard;
  for (const int32_t reserved : s.reserved) {
    if (reserved == 0) continue;
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %sshard->reserved must be 0 in this version", function,
                name);
  }
  if (rope_status status =
          CheckLevel(call, name, "", {s.scheme, s.rank, s.world, s.block, {}}, &shard->outer)) {
    return status;
  }
  shard->inner = {ROPE_SHARD_HEADS, 0, 1, 1, {}};
  const bool two_levels = s.inner_scheme != 0;
  if (two_levels) {
    const ShardLevel inner = {s.inner_scheme, s.inner_rank, s.inner_world, s.inner_block, {}};
    if (rope_status status = CheckLevel(call, name, "inner_", inner, &shard->inner)) return status;
  } else if ((s.inner_rank | s.inner_world | s.inner_block) != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %sshard->inner_rank, inner_world and inner_block (%d, %d, %d) must be 0 "
                "without inner_scheme",
                function, name, s.inner_rank, s.inner_world, s.inner_block);
  }
  if (s.per_document != 0 && s.per_document != 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sshard->per_document (%d) must be 0 or 1",
                function, name, s.per_document);
  }
  shard->per_document = s.per_document != 0;
  shard->by_outer_parts = SmallDivisorOf(TokenParts(shard->outer));
  if (shard->per_document && (p.cu_seqlens == nullptr || shard->outer.scheme == ROPE_SHARD_HEADS)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sshard->per_document (1) needs %s", function,
                name,
                p.cu_seqlens == nullptr
                    ? "cu_seqlens: batch rows are divided each by itself anyway"
                    : "a scheme that divides tokens, and ROPE_SHARD_HEADS divides none");
  }
  int64_t outer_tokens, all_tokens;
  if (__builtin_mul_overflow(call.tokens, int64_t{TokenParts(shard->inner)}, &outer_tokens) ||
      __builtin_mul_overflow(outer_tokens, int64_t{TokenParts(shard->outer)}, &all_tokens) ||
      all_tokens > INT32_MAX) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: the tokens of a row on all ranks (%lld, on %d and %d ranks of %sshard) must be "
        "fewer than 2^31",
        function, static_cast<long long>(call.tokens), TokenParts(shard->outer),
        TokenParts(shard->inner), name);
  }
  shard->tokens = static_cast<int32_t>(call.tokens);
  shard->outer_tokens = static_cast<int32_t>(outer_tokens);
  shard->all_tokens = static_cast<int32_t>(all_tokens);
  if (rope_status status =
          CheckTokens(call, name, "inner_", "tokens", shard->inner, shard->tokens)) {
    return status;
  }
  if (shard->per_document) return ROPE_OK;  // CheckDocuments looks at each
  const char* const what = TokenParts(shard->inner) > 1 ? "tokens * inner_world" : "tokens";
  return CheckTokens(call, name, "", what, shard->outer, shard->outer_tokens);
}

rope_status CheckDocuments(const Call& call, const char* name, const rope_positions& p,
                           const Shard& shard) {
  if (!shard.per_document || !call.context.backend->host_memory) return ROPE_OK;
  const int64_t unit = UnitOf(shard.outer) * TokenParts(shard.outer);
  for (int32_t s = 0; s < p.sequences; ++s) {
    const int64_t length = int64_t{p.cu_seqlens[s + 1]} - p.cu_seqlens[s];
    if (length % unit == 0) continue;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %scu_seqlens[%d] - cu_seqlens[%d] (%lld) must be a multiple of %lld: "
                "shard->per_document divides each document by ROPE_SHARD_%s among %d ranks, and "
                "what does not divide must be padded",
                call.function, name, s + 1, s, static_cast<long long>(length),
                static_cast<long long>(unit), kSchemes[shard.outer.scheme].name, shard.outer.world);
  }
  return ROPE_OK;
}

}  // namespace rope
