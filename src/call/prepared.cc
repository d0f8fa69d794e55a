#include "call/prepared.h"

#include <algorithm>
#include <iterator>

#include "base/status.h"
#include "base/struct_size.h"

namespace rope {
namespace {

constexpr char kApply[] = "rope_prepared_apply";

// One pointer of rope_qk_data: there where the call has this tensor, and only there.
rope_status CheckGiven(const char* name, const void* data, bool has) {
  if ((data != nullptr) == has) return ROPE_OK;
  if (has) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: data->%s (NULL) must not be NULL: the prepared call has %s", kApply, name,
                name);
  }
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: data->%s (%p) must be NULL: the prepared call has no %s", kApply, name, data,
              name);
}

// Of rope_fused. `data` may be that of an older program, which has none.
FusedAddresses BesideOf(const rope_qk_data& data) {
  if (data.struct_size == kMinimumSize<rope_qk_data>) return {};
  return {{data.cache_k, data.v, data.v_out, data.cache_v}};
}

rope_status CheckBesideGiven(const FusedShapes& shapes, const FusedAddresses& given) {
  static constexpr const char* kFields[kBesides] = {"cache_k", "v", "v_out", "cache_v"};
  for (int which = 0; which < kBesides; ++which) {
    if (rope_status s =
            CheckGiven(kFields[which], given.beside[which], shapes.beside[which].present)) {
      return s;
    }
  }
  return ROPE_OK;
}

rope_status CheckAllGiven(const Shapes& shapes, const rope_qk_data& data) {
  const TensorShape &q = shapes.q, &k = shapes.k;
  if (rope_status s = CheckGiven("q", data.q, q.present)) return s;
  if (rope_status s = CheckGiven("k", data.k, k.present)) return s;
  if (rope_status s = CheckGiven("q_out", data.q_out, q.present && !q.in_place)) return s;
  return CheckGiven("k_out", data.k_out, k.present && !k.in_place);
}

constexpr Names kNamesOfData = {"",
                                "",
                                "data->q",
                                "data->k",
                                "data->q_out",
                                "data->k_out",
                                "",
                                {"data->cache_k", "data->v", "data->v_out", "data->cache_v"}};

Addresses AddressesOf(const rope_qk_data& data) { return {data.q, data.k, data.q_out, data.k_out}; }

// A call with rope_fused. Apart: its stack is not that of every call.
__attribute__((noinline)) rope_status ApplyFused(const rope_prepared& prepared, const Call& call,
                                                 const rope_qk_data& data) {
  const FusedAddresses beside = BesideOf(data);
  const FusedPlan& fused = prepared.fused;
  if (rope_status s = CheckBesideGiven(prepared.fused_shapes, beside)) return s;
  const Tensor(&kept)[3] = prepared.plan.tensors;
  Tensor tensors[3] = {kept[0], kept[1], kept[2]};
  if (rope_status s =
          CheckAddresses(call, kNamesOfData, prepared.shapes, AddressesOf(data), tensors)) {
    return s;
  }
  Copies copies = fused.copies;
  if (rope_status s =
          CheckFusedAddresses(call, kNamesOfData, prepared.shapes, prepared.fused_shapes, beside,
                              fused.cached, tensors, &copies)) {
    return s;
  }
  return prepared.call->Apply(prepared.plan, tensors, &copies);
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
  auto prepared = std::make_unique<rope_prepared>();
  Plan& plan = prepared->plan;
  if (rope_status s = MakePlan(function, kNamesOfArgs, context, args, DataOf::kApplication, &plan,
                               &prepared->shapes, &prepared->fused, &prepared->fused_shapes)) {
    return s;
  }
  if (plan.tensor_count != 0) {  // else nothing is looked at
    if (plan.runner != nullptr) {
      prepared->runner = *plan.runner;
      plan.runner = &prepared->runner;
    }
    prepared->call = context->backend->prepare(plan);
  }
  plan.function = kApply;
  plan.positions = {};
  plan.rows = {};
  prepared->fused.slots = {};
  *out = std::move(prepared);
  return ROPE_OK;
}

rope_status ApplyPrepared(const rope_prepared* prepared, const rope_qk_data* data) {
  if (prepared == nullptr || data == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", kApply,
                prepared == nullptr ? "prepared" : "data");
  }
  rope_qk_data extended;
  if (data->struct_size != sizeof(rope_qk_data)) {
    if (rope_status s = CheckStruct(kApply, "data", data)) return s;
    if (data->struct_size != kMinimumSize<rope_qk_data>) {
      if (rope_status s = CopyStruct(kApply, "data", data, &extended)) return s;
      data = &extended;
    }
  }
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
  const Shapes& shapes = prepared->shapes;
  if (rope_status s = CheckAllGiven(shapes, *data)) return s;
  const Call call = {kApply, *plan.context, plan.batch, plan.tokens};
  if (plan.fused != nullptr) return ApplyFused(*prepared, call, *data);
  const FusedAddresses beside = BesideOf(*data);
  if (std::any_of(std::begin(beside.beside), std::end(beside.beside),
                  [](const void* at) { return at != nullptr; })) {
    return CheckBesideGiven(prepared->fused_shapes, beside);  // which fails
  }
  Tensor tensors[3];
  tensors[0] = plan.tensors[0];
  tensors[1] = plan.tensors[1];
  if (rope_status s = CheckAddresses(call, kNamesOfData, shapes, AddressesOf(*data), tensors)) {
    return s;
  }
  return prepared->call->Apply(plan, tensors, nullptr);
}

}  // namespace rope
