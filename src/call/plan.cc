// The checks of a call. Ordered so that a kept decode call pays for comparisons only: no copies of
// the arguments, no division, one overflow test for all products.
#include "call/plan.h"

#include "base/status.h"
#include "base/struct_size.h"
#include "call/check_append.h"
#include "call/check_fused.h"
#include "call/check_fused_addresses.h"
#include "call/check_move.h"
#include "call/check_positions.h"
#include "call/check_rows.h"
#include "call/check_source.h"
#include "call/check_tensors.h"
#include "call/check_token.h"
#include "math/operation.h"

namespace rope {
namespace {

// Runner and stream belong to one device each.
rope_status CheckPlace(const Call& call, const char* name, const rope_runner* runner,
                       const void* stream) {
  const char* const function = call.function;
  const Backend& backend = *call.context.backend;
  if (stream != nullptr && !backend.has_streams) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sstream must be NULL in a %s context", function,
                name, backend.name);
  }
  if (runner != nullptr && !backend.has_runner) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %srunner must be NULL in a %s context", function,
                name, backend.name);
  }
  if (runner != nullptr && runner->parallel_for == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %srunner->parallel_for (NULL) must not be NULL",
                function, name);
  }
  return ROPE_OK;
}

// SHIFT goes by distances, which are no positions; REROTATE from other positions.
rope_status CheckDistances(const char* function, const rope_qk_args& args) {
  const rope_position_kind kind = args.positions.kind;
  if (kOperations[args.operation].has_from()) {
    if (args.fused != nullptr) return ROPE_OK;  // the rest is ReadFused's
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->fused (NULL) is required with REROTATE: its from_positions say where "
                "the keys were before",
                function);
  }
  if (kind >= ROPE_POSITIONS_IDS_T) return ROPE_OK;
  return Fail(
      ROPE_ERROR_INVALID_ARGUMENT,
      "%s: args->positions.kind (ROPE_POSITIONS_%s) must be IDS_* with SHIFT, which moves token i "
      "by ids[i]: OFFSET and SEQ_OFFSETS would move it by offset + i. One distance for all tokens "
      "is IDS_STRIDED with strides 0",
      function, NameOfPositionKind(kind));
}

// Positions or rows: exactly one.
rope_status ReadSource(const Call& call, const rope_qk_args& args, Plan* plan) {
  const char* const function = call.function;
  plan->has_rows = args.cos_sin != nullptr;
  plan->row_heads = call.context.freq_heads;
  plan->batch_repeat = BatchRepeatOf(args.positions);
  if (!plan->has_rows) {
    if (rope_status s =
            CheckPositions(call, "args->positions.", args.positions, &plan->positions)) {
      return s;
    }
    return kOperations[args.operation].positions != Positions::kPlaces
               ? CheckDistances(function, args)
               : ROPE_OK;
  }
  if (!IsZero(args.positions)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->positions must be zero with args->cos_sin: exactly one of them gives "
                "the angles",
                function);
  }
  if (!kOperations[args.operation].takes_rows) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->operation (ROPE_OPERATION_%s) must be FORWARD or BACKWARD with "
                "args->cos_sin, whose rows hold the attention factor",
                function, kOperations[args.operation].name);
  }
  return CheckRows(call, "args->cos_sin", args.cos_sin, RowUse::kRead, &plan->rows,
                   &plan->row_heads);
}

// Rows per head: which one a head has must follow.
rope_status CheckHeads(const char* function, const char* name, const rope_tensor& tensor,
                       bool has_rows, int32_t row_heads) {
  if (tensor.heads % row_heads == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.heads (%d) must be a multiple of %s (%d)",
              function, name, tensor.heads,
              has_rows ? "args->cos_sin->heads" : "the context's freq_heads", row_heads);
}

// q and k, without addresses. `fused` and `beside`: of a call with a FusedPlan; else null.
__attribute__((always_inline)) inline rope_status PlanShapes(const Call& call, const Names& names,
                                                             const rope_qk_args& args,
                                                             DataOf data_of, Plan* plan,
                                                             Shapes* shapes, FusedPlan* fused,
                                                             BesideShape* beside) {
  const char* const function = call.function;
  const rope_status status =
      fused == nullptr
          ? CheckShapes(call, names, args, data_of, shapes, plan->tensors)
          : CheckShapes(call, names, args, data_of, shapes, plan->tensors, fused->outputs, beside);
  if (status != ROPE_OK) return status;
  plan->tensor_count = shapes->count();
  if (plan->row_heads == 1) return ROPE_OK;
  if (rope_status s = CheckHeads(function, names.q, args.q, plan->has_rows, plan->row_heads)) {
    return s;
  }
  return CheckHeads(function, names.k, args.k, plan->has_rows, plan->row_heads);
}

// q, and k in slots of `source`.
rope_status PlanShapeOfQ(const Call& call, const Names& names, const rope_qk_args& args,
                         const FusedArgs& given, DataOf data_of, Plan* plan, Shapes* shapes,
                         FusedPlan* fused, BesideShape* beside) {
  if (rope_status s = CheckShapeOfQ(call, names, args, data_of, shapes, plan->tensors,
                                    fused->outputs, beside)) {
    return s;
  }
  plan->tensor_count = shapes->count();
  if (plan->row_heads == 1) return ROPE_OK;
  if (rope_status s = CheckHeads(call.function, names.q, args.q, plan->has_rows, plan->row_heads)) {
    return s;
  }
  return CheckHeads(call.function, names.beside[kSourceK], given.source->k, plan->has_rows,
                    plan->row_heads);
}

Addresses AddressesOf(const rope_qk_args& args) {
  return {args.q.data, args.k.data, args.q_out.data, args.k_out.data};
}

// q and k, and where they lie. Of every call: inlined.
__attribute__((always_inline)) inline rope_status PlanTensors(const Call& call, const Names& names,
                                                              const rope_qk_args& args,
                                                              DataOf data_of, Plan* plan,
                                                              Shapes* shapes) {
  if (rope_status s = PlanShapes(call, names, args, data_of, plan, shapes, nullptr, nullptr)) {
    return s;
  }
  if (data_of == DataOf::kApplication) return ROPE_OK;
  return CheckAddresses(call, names, *shapes, AddressesOf(args), plan->tensors);
}

// What a decoding engine calls for each layer: the only token of the call goes to a cache, or moves
// there, or is normed. Apart: its stack is not that of every call.
__attribute__((noinline)) bool PlanOneToken(const Call& call, const Names& names,
                                            const rope_qk_args& args, Plan* plan, Shapes* shapes,
                                            FusedPlan* fused) {
  if (args.fused->struct_size != sizeof(rope_fused)) return false;
  if (args.fused->source != nullptr) {
    if (!ReadMovedPlace(call.context, args, &plan->positions, &fused->from)) return false;
    fused->Clear();
    bool compares;
    if (!CheckMove(call, args, plan->positions, plan->tensors, fused, &compares)) return false;
    plan->tensor_count = 1;
  } else {
    if (!ReadPlace(call.context, args, &plan->positions)) return false;
    fused->Clear();
    if (args.fused->cache != nullptr
            ? !CheckAppend(call, names, args, plan->positions, shapes, plan->tensors, fused)
            : !CheckNormedToken(call, args, shapes, plan->tensors, fused)) {
      return false;
    }
    plan->tensor_count = shapes->count();
  }
  plan->fused = fused;
  return true;
}

// The positions before, of operations that have them.
rope_status ReadFrom(const Call& call, const rope_qk_args& args, const rope_positions* from,
                     const Plan& plan, FusedPlan* fused) {
  if (from == nullptr) return ROPE_OK;
  constexpr char kFields[] = "args->fused->from_positions->",
                 kName[] = "args->fused->from_positions";
  if (rope_status s = CheckPositions(call, kFields, *from, &fused->from)) return s;
  if (rope_status s = CheckBothRuns(call, fused->from, plan.positions)) return s;
  if (BatchRepeatOf(*from) != plan.batch_repeat) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %sbatch_repeat (%lld) must be that of args->positions (%lld)", call.function,
                kFields, static_cast<long long>(from->batch_repeat),
                static_cast<long long>(args.positions.batch_repeat));
  }
  return CheckValidity(call, kName, fused->from, plan.batch_repeat);
}

// Whether some output is not like its input. Which row a repeated head has would be a guess.
rope_status CheckConversions(const Call& call, const Names& names, const Shapes& shapes,
                             const Plan& plan, FusedPlan* fused) {
  const auto check = [&](const char* name, rope_dtype in, const Output& output,
                         bool rows) -> rope_status {
    if (output.IsLike(in)) return ROPE_OK;
    fused->converts = true;
    if (output.repeats == 1 || !rows) return ROPE_OK;
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s.heads must be that of its input where heads have rows or frequencies of "
                "their own in this version, and is a multiple (%d times)",
                call.function, name, output.repeats);
  };
  for (int32_t n = 0; n < plan.tensor_count; ++n) {  // no head is repeated in slots
    const char* const name = shapes.q.present && n == 0 ? names.q_out : names.k_out;
    if (rope_status s =
            check(name, plan.tensors[n].dtype, fused->outputs[n], plan.row_heads != 1)) {
      return s;
    }
  }
  for (int32_t n = 0; n < fused->copies.count; ++n) {
    const Copy& copy = fused->copies.of[n];
    if (rope_status s = check(names.beside[copy.to], copy.dtype, copy.output, false)) return s;
  }
  return ROPE_OK;
}

// Gradients of repeated heads are added: where it is known how each of them turned, and once.
rope_status CheckSums(const Call& call, const Names& names, const Shapes& shapes, DataOf data_of,
                      const Plan& plan, FusedPlan* fused) {
  const bool prepared = data_of == DataOf::kApplication;
  const auto check = [&](const char* name, int32_t heads, const char* in_name, const Output& output,
                         bool of_own) -> rope_status {
    if (output.sums == 1) return ROPE_OK;
    fused->adds = true;
    if (!prepared && !of_own) return ROPE_OK;
    return Fail(ROPE_ERROR_UNSUPPORTED,
                prepared ? "%s: %s.heads (%d) must be that of %s (%d) in prepared calls in this "
                           "version"
                         : "%s: %s.heads (%d) must be that of %s (%d) where heads have rows or "
                           "frequencies of their own",
                call.function, name, heads, in_name, heads * output.sums);
  };
  for (int32_t n = 0; n < plan.tensor_count; ++n) {
    const bool is_q = shapes.q.present && n == 0;
    if (rope_status s = check(is_q ? names.q_out : names.k_out, plan.tensors[n].heads,
                              is_q ? names.q : names.k, fused->outputs[n], plan.row_heads != 1)) {
      return s;
    }
  }
  for (int32_t n = 0; n < fused->copies.count; ++n) {
    const Copy& copy = fused->copies.of[n];
    if (rope_status s =
            check(names.beside[copy.to], copy.heads, names.beside[copy.from], copy.output, false)) {
      return s;
    }
  }
  return ROPE_OK;
}

// The same, and what else the call does. Apart: its stack is not that of every call.
__attribute__((noinline)) rope_status PlanFused(const Call& call, const Names& names,
                                                const rope_qk_args& args, DataOf data_of,
                                                Plan* plan, Shapes* shapes, FusedPlan* fused,
                                                FusedShapes* fused_shapes) {
  if (plan->has_rows) plan->positions = PositionSource{};  // sequences are the batch rows
  plan->fused = fused;
  fused->Clear();
  if (args.fused != nullptr && data_of == DataOf::kCall && plan->row_heads == 1) {
    bool compares;
    if (CheckAppend(call, names, args, plan->positions, shapes, plan->tensors, fused)) {
      plan->tensor_count = shapes->count();
      return ROPE_OK;
    }
    if (CheckMove(call, args, plan->positions, plan->tensors, fused, &compares)) {
      plan->tensor_count = 1;
      const rope_positions* const from = args.fused->from_positions;
      if (rope_status s = ReadFrom(call, args, from, *plan, fused)) return s;
      return compares
                 ? CheckMoves(call, fused->source, fused->slots, plan->positions, &fused->in_place)
                 : ROPE_OK;
    }
    fused->Clear();
  }
  FusedArgs given;
  FusedShapes own_shapes;
  if (fused_shapes == nullptr) fused_shapes = &own_shapes;
  if (rope_status s = ReadFused(call, args, data_of, &given)) return s;
  shapes->q.cached = false;
  shapes->k.cached = given.caches_k && given.source == nullptr;
  StartShapes(given, fused_shapes);
  if (rope_status s =
          given.source != nullptr
              ? PlanShapeOfQ(call, names, args, given, data_of, plan, shapes, fused,
                             fused_shapes->beside)
              : PlanShapes(call, names, args, data_of, plan, shapes, fused, fused_shapes->beside)) {
    return s;
  }
  if (rope_status s = CheckFusedShapes(call, names, given, args, data_of, *shapes, plan->positions,
                                       plan->row_heads, plan->tensors, &plan->tensor_count,
                                       fused_shapes, fused)) {
    return s;
  }
  if (rope_status s = CheckConversions(call, names, *shapes, *plan, fused)) return s;
  if (rope_status s = CheckSums(call, names, *shapes, data_of, *plan, fused)) return s;
  if (rope_status s = ReadFrom(call, args, given.fused->from_positions, *plan, fused)) return s;
  if (data_of == DataOf::kApplication) return ROPE_OK;
  if (rope_status s =
          CheckAddresses(call, names, *shapes, AddressesOf(args), fused->outputs, plan->tensors)) {
    return s;
  }
  const FusedAddresses addresses = AddressesOf(given, args, fused_shapes->count);
  if (rope_status s = CheckFusedAddresses(call, names, *shapes, *fused_shapes, addresses,
                                          plan->tensors, fused)) {
    return s;
  }
  if (given.source == nullptr || !call.context.backend->host_memory ||
      !IsOneMemory(*fused_shapes, addresses)) {
    return ROPE_OK;
  }
  return CheckMoves(call, fused->source, fused->slots, plan->positions, &fused->in_place);
}

}  // namespace

rope_status CheckSizes(const Call& call, const char* names) {
  if (call.batch < 0 || call.tokens < 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s%s (%lld) must not be negative", call.function,
                names, call.batch < 0 ? "batch" : "tokens",
                static_cast<long long>(call.batch < 0 ? call.batch : call.tokens));
  }
  int64_t product;
  if (__builtin_mul_overflow(call.batch, call.tokens, &product)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sbatch * tokens must fit into 63 bits",
                call.function, names);
  }
  return ROPE_OK;
}

rope_status MakePlan(const char* function, const Names& names, const rope_context* context,
                     const rope_qk_args* args, DataOf data_of, Plan* plan, Shapes* shapes,
                     FusedPlan* fused, FusedShapes* fused_shapes) {
  if (context == nullptr || args == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function,
                context == nullptr ? "context" : "args");
  }
  rope_qk_args extended;
  if (args->struct_size != sizeof(rope_qk_args)) {
    if (rope_status s = CopyStruct(function, "args", args, &extended)) return s;
    args = &extended;
  }
  if (!IsOperation(args->operation)) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: args->operation (%d) is not known to this version",
                function, args->operation);
  }
  plan->function = function;
  plan->context = context;
  plan->operation = args->operation;
  plan->batch = args->batch;
  plan->tokens = args->tokens;
  plan->runner = args->runner;
  plan->stream = args->stream;
  plan->fused = nullptr;
  plan->has_rows = false;
  plan->row_heads = 1;
  plan->batch_repeat = 1;
  plan->tensor_count =
      data_of == DataOf::kCall ? CheckToken(*context, *args, &plan->positions, plan->tensors) : 0;
  if (plan->tensor_count != 0) return ROPE_OK;
  const Call call = {function, *context, args->batch, args->tokens};
  if (args->fused != nullptr && data_of == DataOf::kCall &&
      PlanOneToken(call, names, *args, plan, shapes, fused)) {
    return ROPE_OK;
  }
  if (rope_status s = CheckSizes(call, names.args)) return s;
  if (args->tokens == 0) {  // pointers may be NULL
    return args->fused != nullptr ? CheckNoTokens(call, *args) : ROPE_OK;
  }
  if (args->batch == 0) return CheckNoRows(call, *args);
  if (rope_status s = CheckPlace(call, names.args, args->runner, args->stream)) return s;
  if (rope_status s = ReadSource(call, *args, plan)) return s;

  rope_status status = kNeedsFusedPlan;
  if (args->fused == nullptr) {
    shapes->q.cached = shapes->k.cached = false;
    status = PlanTensors(call, names, *args, data_of, plan, shapes);
  }
  if (status != ROPE_OK) {
    if (status != kNeedsFusedPlan) return status;
    if (rope_status s = PlanFused(call, names, *args, data_of, plan, shapes, fused, fused_shapes)) {
      return s;
    }
  }
  // Last, because it may look at every position: how many there are is known to be possible by now.
  if (!plan->has_rows && !kOperations[args->operation].by_distance()) {
    return CheckValidity(call, names.positions, plan->positions, plan->batch_repeat);
  }
  return ROPE_OK;
}

rope_status MakeFillPlan(const char* function, const rope_context* context, int64_t batch,
                         int64_t tokens, const rope_positions* positions, const rope_cos_sin* out,
                         void* stream, FillPlan* plan) {
  if (context == nullptr || positions == nullptr || out == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function,
                context == nullptr     ? "context"
                : positions == nullptr ? "positions"
                                       : "out");
  }
  const Call call = {function, *context, batch, tokens};
  if (rope_status s = CheckSizes(call, "")) return s;
  if (rope_status s = CheckPlace(call, "", nullptr, stream)) return s;
  plan->function = function;
  plan->context = context;
  plan->batch = batch;
  plan->tokens = tokens;
  plan->stream = stream;
  if (batch == 0 || tokens == 0) return ROPE_OK;
  if (rope_status s = CheckPositions(call, "positions->", *positions, &plan->positions)) return s;
  plan->batch_repeat = BatchRepeatOf(*positions);
  if (rope_status s = CheckRows(call, "out", out, RowUse::kWrite, &plan->rows, &plan->row_heads)) {
    return s;
  }
  if (context->nope) plan->positions = PositionSource{};  // 1 and 0, by offset 0
  return CheckValidity(call, "positions", plan->positions, plan->batch_repeat);
}

}  // namespace rope
