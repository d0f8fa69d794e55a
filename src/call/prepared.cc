#include "call/prepared.h"

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/status.h"
#include "base/struct_size.h"
#include "call/check_fused_addresses.h"
#include "call/check_norm.h"
#include "call/join_batch.h"

namespace rope {
namespace {

constexpr char kApply[] = "rope_prepared_apply";

// The pointers of rope_qk_data, by the bits of a set of them: those of rope_fused last, in the
// order of Beside. There is no source.
struct Field {
  const char* name;
  void* rope_qk_data::*pointer;
};
constexpr Field kFields[] = {{"q", &rope_qk_data::q},
                             {"k", &rope_qk_data::k},
                             {"q_out", &rope_qk_data::q_out},
                             {"k_out", &rope_qk_data::k_out},
                             {"cache_k", &rope_qk_data::cache_k},
                             {"v", &rope_qk_data::v},
                             {"v_out", &rope_qk_data::v_out},
                             {"cache_v", &rope_qk_data::cache_v},
                             {"rest", &rope_qk_data::rest},
                             {"rest_out", &rope_qk_data::rest_out},
                             {"q_out_scales", &rope_qk_data::q_out_scales},
                             {"k_out_scales", &rope_qk_data::k_out_scales},
                             {"cache_k_scales", &rope_qk_data::cache_k_scales},
                             {"v_out_scales", &rope_qk_data::v_out_scales},
                             {"cache_v_scales", &rope_qk_data::cache_v_scales},
                             {"rest_out_scales", &rope_qk_data::rest_out_scales}};
constexpr int kFirstBeside = 4, kFirstRare = kFirstBeside + kRest;
static_assert(std::size(kFields) == kFirstBeside + kSourceK);

// Those of the tensors that a plan has. `fused` is null without rope_fused.
unsigned FieldsOf(const Shapes& shapes, const FusedShapes* fused) {
  const TensorShape &q = shapes.q, &k = shapes.k;
  unsigned fields = unsigned{q.present} | unsigned{k.present} << 1 |
                    unsigned{q.present && !q.in_place} << 2 |
                    unsigned{k.present && !k.in_place} << 3;
  for (int which = 0; fused != nullptr && which < fused->count; ++which) {
    fields |= unsigned{fused->beside[which].present} << (kFirstBeside + which);
  }
  return fields;
}

// Fields [first, last) that are not null.
unsigned GivenOf(const rope_qk_data& data, size_t first, size_t last) {
  unsigned given = 0;
  for (size_t i = first; i < last; ++i) {
    given |= unsigned{data.*kFields[i].pointer != nullptr} << i;
  }
  return given;
}

// There where the call has it, and only there.
rope_status CheckGiven(const char* name, const void* data, bool needed) {
  if ((data != nullptr) == needed) return ROPE_OK;
  if (needed) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: data->%s (NULL) must not be NULL: the prepared call has %s", kApply, name,
                name);
  }
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: data->%s (%p) must be NULL: the prepared call has no %s", kApply, name, data,
              name);
}

rope_status CheckGiven(const rope_qk_data& data, unsigned fields) {
  unsigned given = GivenOf(data, 0, kFirstRare);
  uintptr_t rare = 0;
  for (size_t i = kFirstRare; i < std::size(kFields); ++i) {
    rare |= reinterpret_cast<uintptr_t>(data.*kFields[i].pointer);
  }
  if (rare != 0) given |= GivenOf(data, kFirstRare, std::size(kFields));
  if (given == fields) return ROPE_OK;
  const auto& [name, pointer] = kFields[__builtin_ctz(given ^ fields)];
  return CheckGiven(name, data.*pointer, data.*pointer == nullptr);
}

// What the norms of q, k and v read.
constexpr NormDataNames kNormNamesOfData[] = {
    {"q_norm_weight", "q_norm_bias", "q_norm_rstd"},
    {"k_norm_weight", "k_norm_bias", "k_norm_rstd"},
    {"v_norm_weight", "v_norm_bias", "v_norm_rstd"},
};

// Gives them that. `fused` is null without norms.
__attribute__((noinline)) rope_status PlaceNorms(const Call& call, const rope_qk_data& d,
                                                 FusedPlan* fused) {
  const NormData data[] = {{d.q_norm_weight, d.q_norm_bias, d.q_norm_rstd},
                           {d.k_norm_weight, d.k_norm_bias, d.k_norm_rstd},
                           {d.v_norm_weight, d.v_norm_bias, d.v_norm_rstd}};
  for (int n = 0; n < 3; ++n) {
    Norm* norm = nullptr;
    if (fused != nullptr) {
      norm = n == 0 ? &fused->q_norm : n == 1 ? &fused->k_norm : &fused->v_norm;
      if (!fused->IsUsed(*norm)) norm = nullptr;
    }
    const auto& [weight, bias, rstd] = kNormNamesOfData[n];
    const NormRule rule = norm != nullptr ? norm->rule : NormRule{};
    const bool is_given = norm != nullptr && norm->span == ROPE_NORM_SPAN_GIVEN;
    if (rope_status s = CheckGiven(weight, data[n].weight, rule.has_weight)) return s;
    if (rope_status s = CheckGiven(bias, data[n].bias, rule.has_bias)) return s;
    if (rope_status s = CheckGiven(rstd, data[n].rstd, is_given)) return s;
    if (norm == nullptr) continue;
    if (rope_status s = PlaceNorm(call, kNormNamesOfData[n], data[n], norm)) return s;
  }
  return ROPE_OK;
}

bool GivesNorms(const rope_qk_data& data) {
  return !IsZeroFrom<offsetof(rope_qk_data, q_norm_weight)>(data);
}

constexpr Names kNamesOfData = {
    "",
    "",
    "data->q",
    "data->k",
    "data->q_out",
    "data->k_out",
    "",
    {"data->cache_k", "data->v", "data->v_out", "data->cache_v", "data->rest", "data->rest_out",
     "data->q_out_scales", "data->k_out_scales", "data->cache_k_scales", "data->v_out_scales",
     "data->cache_v_scales", "data->rest_out_scales"}};

Addresses AddressesOf(const rope_qk_data& data) { return {data.q, data.k, data.q_out, data.k_out}; }

// A call with rope_fused. Apart: its stack is not that of every call.
__attribute__((noinline)) rope_status ApplyFused(const rope_prepared& prepared, const Call& call,
                                                 const rope_qk_data& data) {
  const FusedShapes& shapes = prepared.fused->shapes;
  FusedAddresses beside;
  for (int which = 0; which < shapes.count; ++which) {
    beside.beside[which] = data.*kFields[kFirstBeside + which].pointer;
  }
  const Tensor(&kept)[3] = prepared.plan.tensors;
  Tensor tensors[3] = {kept[0], kept[1], kept[2]};
  FusedPlan fused;
  fused.TakeUsed(prepared.fused->plan, prepared.plan.tensor_count);
  const bool has_norms = fused.has_norms();
  if (has_norms || GivesNorms(data)) {
    if (rope_status s = PlaceNorms(call, data, has_norms ? &fused : nullptr)) return s;
  }
  if (rope_status s = CheckAddresses(call, kNamesOfData, prepared.shapes, AddressesOf(data),
                                     fused.outputs, tensors)) {
    return s;
  }
  if (rope_status s = CheckFusedAddresses(call, kNamesOfData, prepared.shapes, shapes, beside,
                                          tensors, &fused)) {
    return s;
  }
  return prepared.call->Apply(prepared.plan, tensors, &fused);
}

// Of a program that knows another rope_qk_data.
__attribute__((noinline)) rope_status ApplyCopy(const rope_prepared* prepared,
                                                const rope_qk_data* data) {
  rope_qk_data copy;
  if (rope_status s = CopyStruct(kApply, "data", data, &copy)) return s;
  copy.struct_size = sizeof(copy);
  return ApplyPrepared(prepared, &copy);
}

}  // namespace

rope_status Prepare(const char* function, const rope_context* context, const rope_qk_args* args,
                    std::unique_ptr<rope_prepared>* out) {
  if (context != nullptr && context->backend->prepare == nullptr) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: context must be a CPU context: there are no prepared calls of %s in this "
                "version",
                function, context->backend->name);
  }
  // Not zeroed; what a call does not have is not looked at.
  std::unique_ptr<rope_prepared> prepared(new rope_prepared);
  PreparedFused fused;
  Plan& plan = prepared->plan;
  if (rope_status s = MakePlan(function, kNamesOfArgs, context, args, DataOf::kApplication, &plan,
                               &prepared->shapes, &fused.plan, &fused.shapes)) {
    return s;
  }
  if (plan.tensor_count != 0) {  // else nothing is looked at
    if (plan.runner != nullptr) {
      prepared->runner = *plan.runner;
      plan.runner = &prepared->runner;
    }
    JoinBatch(&plan, &fused.plan);
    prepared->call = context->backend->prepare(plan);
    prepared->fields = FieldsOf(prepared->shapes, plan.fused != nullptr ? &fused.shapes : nullptr);
  }
  if (plan.fused != nullptr) {
    fused.plan.slots = fused.plan.source = {};
    fused.plan.from = {};
    prepared->fused = std::make_unique<PreparedFused>(fused);
    prepared->fused->plan.TakeNormsFrom(fused.plan);
    plan.fused = &prepared->fused->plan;
  }
  plan.function = kApply;
  static_cast<WholeSource&>(plan.positions) = {};
  plan.rows = {};
  *out = std::move(prepared);
  return ROPE_OK;
}

rope_status ApplyPrepared(const rope_prepared* prepared, const rope_qk_data* data) {
  if (prepared == nullptr || data == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", kApply,
                prepared == nullptr ? "prepared" : "data");
  }
  if (data->struct_size != sizeof(rope_qk_data)) return ApplyCopy(prepared, data);
  if (data->reserved != 0) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: data->reserved must be 0 in this version", kApply);
  }
  const Plan& plan = prepared->plan;
  if (plan.tensor_count == 0) {
    if (plan.tokens == 0 || (data->q == nullptr && data->k == nullptr)) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: data->%s must be NULL: the call was prepared with batch 0", kApply,
                data->q != nullptr ? "q" : "k");
  }
  if (rope_status s = CheckGiven(*data, prepared->fields)) return s;
  const Call call = {kApply, *plan.context, plan.batch, plan.tokens};
  if (plan.fused != nullptr) return ApplyFused(*prepared, call, *data);
  if (GivesNorms(*data)) {
    if (rope_status s = PlaceNorms(call, *data, nullptr)) return s;
  }
  Tensor tensors[2];
  tensors[0] = plan.tensors[0];
  if (plan.tensor_count == 2) tensors[1] = plan.tensors[1];
  if (rope_status s =
          CheckAddresses(call, kNamesOfData, prepared->shapes, AddressesOf(*data), tensors)) {
    return s;
  }
  return prepared->call->Apply(plan, tensors, nullptr);
}

}  // namespace rope
