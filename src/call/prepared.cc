#include "call/prepared.h"

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

rope_status CheckAllGiven(const Shapes& shapes, const rope_qk_data& data) {
  const TensorShape &q = shapes.q, &k = shapes.k;
  if (rope_status s = CheckGiven("q", data.q, q.present)) return s;
  if (rope_status s = CheckGiven("k", data.k, k.present)) return s;
  if (rope_status s = CheckGiven("q_out", data.q_out, q.present && !q.in_place)) return s;
  return CheckGiven("k_out", data.k_out, k.present && !k.in_place);
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
                               &prepared->shapes, nullptr, nullptr)) {
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
  *out = std::move(prepared);
  return ROPE_OK;
}

rope_status ApplyPrepared(const rope_prepared* prepared, const rope_qk_data* data) {
  static constexpr Names kNames = {"", "", "data->q", "data->k", "data->q_out", "data->k_out",
                                   "", {}};
  if (prepared == nullptr || data == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", kApply,
                prepared == nullptr ? "prepared" : "data");
  }
  if (data->struct_size != sizeof(rope_qk_data)) {
    if (rope_status s = CheckStruct(kApply, "data", data)) return s;
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
  Tensor tensors[2] = {plan.tensors[0], plan.tensors[1]};
  const Addresses addresses = {data->q, data->k, data->q_out, data->k_out};
  const Call call = {kApply, *plan.context, plan.batch, plan.tokens};
  if (rope_status s = CheckAddresses(call, kNames, shapes, addresses, tensors)) return s;
  return prepared->call->Apply(plan, tensors);
}

}  // namespace rope
