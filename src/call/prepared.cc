#include "call/prepared.h"

#include "base/status.h"
#include "base/struct_size.h"

namespace rope {
namespace {

// One pointer of rope_qk_data: there where the call has this tensor, and only there.
rope_status CheckGiven(const char* function, const char* name, const void* data, bool has) {
  if ((data != nullptr) == has) return ROPE_OK;
  if (has) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: data->%s (NULL) must not be NULL: the prepared call has %s", function, name,
                name);
  }
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: data->%s (%p) must be NULL: the prepared call has no %s", function, name, data,
              name);
}

rope_status CheckAllGiven(const char* function, const Shapes& shapes, const rope_qk_data& data) {
  const TensorShape &q = shapes.q, &k = shapes.k;
  if (rope_status s = CheckGiven(function, "q", data.q, q.present)) return s;
  if (rope_status s = CheckGiven(function, "k", data.k, k.present)) return s;
  if (rope_status s = CheckGiven(function, "q_out", data.q_out, q.present && !q.in_place)) return s;
  return CheckGiven(function, "k_out", data.k_out, k.present && !k.in_place);
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
                               &prepared->shapes)) {
    return s;
  }
  if (plan.tensor_count != 0) {  // else nothing is looked at
    if (plan.runner != nullptr) {
      prepared->runner = *plan.runner;
      plan.runner = &prepared->runner;
    }
    prepared->rows = context->backend->prepare(plan);
  }
  plan.prepared_rows = prepared->rows.get();
  plan.positions = {};
  plan.rows = {};
  *out = std::move(prepared);
  return ROPE_OK;
}

rope_status ApplyPrepared(const char* function, const rope_prepared* prepared,
                          const rope_qk_data* data) {
  static constexpr Names kNames = {"", "", "data->q", "data->k", "data->q_out", "data->k_out", ""};
  if (prepared == nullptr || data == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function,
                prepared == nullptr ? "prepared" : "data");
  }
  if (data->struct_size != sizeof(rope_qk_data)) {
    if (rope_status s = CheckStruct(function, "data", data)) return s;
  }
  if (data->reserved != 0) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: data->reserved must be 0 in this version", function);
  }
  if (prepared->plan.tensor_count == 0) {
    if (prepared->plan.tokens == 0 || (data->q == nullptr && data->k == nullptr)) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: data->%s must be NULL: the call was prepared with batch 0", function,
                data->q != nullptr ? "q" : "k");
  }
  const Shapes& shapes = prepared->shapes;
  if (rope_status s = CheckAllGiven(function, shapes, *data)) return s;
  Plan plan = prepared->plan;
  plan.function = function;
  const Addresses addresses = {data->q, data->k, data->q_out, data->k_out};
  const Call call = {function, *plan.context, plan.batch, plan.tokens};
  if (rope_status s = CheckAddresses(call, kNames, shapes, addresses, plan.tensors)) return s;
  return plan.context->backend->apply(plan);
}

}  // namespace rope
