// Norms of prepared calls, whose weights each application is given: what is missing or too much
// names its pointer, and nothing is written.
#include <gtest/gtest.h>

#include <cstddef>

#include "librope/rope.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/normed_call.h"
#include "support/prepared_call.h"

namespace rope::testing {
namespace {

TEST(PreparedNormErrors, PreparedCallsAreGivenWeightsLater) {
  const BadInput<NormedCall> rows[] = {
      {"a weight",
       [](NormedCall* c) { c->norm.weight = c->weight; },
       kInvalid,
       {"args->fused->q_norm->weight (0x", "must be NULL: each rope_prepared_apply is given it"}},
      {"a bias",
       [](NormedCall* c) { c->norm.bias = c->bias; },
       kInvalid,
       {"q_norm->bias (0x", "NULL"}},
      {"r",
       [](NormedCall* c) { c->Given(); },
       kInvalid,
       {"args->fused->q_norm->rstd (0x", "must be NULL: each rope_prepared_apply is given it"}},
      {"gradients",
       [](NormedCall* c) { c->args.operation = ROPE_OPERATION_BACKWARD; },
       kUnsupported,
       {"args->fused->q_norm must be NULL with BACKWARD in a prepared call"}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    NormedCall call;
    call.args.q.data = nullptr;
    call.norm.weight = nullptr;
    row.change(&call);
    rope_prepared* prepared = nullptr;
    const Context context = Create(call.config);
    ExpectParts("rope_prepared_create", row,
                rope_prepared_create(context.get(), &call.args, &prepared));
    EXPECT_EQ(prepared, nullptr);
  }
}

TEST(PreparedNormErrors, OfPreparedDataNameThePointerAndWriteNothing) {
  const BadInput<rope_qk_data> rows[] = {
      {"no weight",
       [](rope_qk_data* d) { d->q_norm_weight = nullptr; },
       kInvalid,
       {"data->q_norm_weight (NULL) must not be NULL: the prepared call has q_norm_weight"}},
      {"a weight that is not aligned",
       [](rope_qk_data* d) { d->q_norm_weight = Odd(d->q_norm_weight); },
       kInvalid,
       {"data->q_norm_weight (0x", "must be aligned to its element (4 bytes)"}},
      {"a bias",
       [](rope_qk_data* d) { d->q_norm_bias = d->q_norm_weight; },
       kInvalid,
       {"data->q_norm_bias (0x", "must be NULL: the prepared call has no q_norm_bias"}},
      {"no r",
       [](rope_qk_data* d) { d->q_norm_rstd = nullptr; },
       kInvalid,
       {"data->q_norm_rstd (NULL) must not be NULL"}},
      {"r that is not aligned",
       [](rope_qk_data* d) { d->q_norm_rstd = static_cast<const float*>(Odd(d->q_norm_rstd)); },
       kInvalid,
       {"data->q_norm_rstd (0x", "must be aligned"}},
      {"the weight of another norm",
       [](rope_qk_data* d) { d->v_norm_weight = d->q_norm_weight; },
       kInvalid,
       {"data->v_norm_weight (0x", "must be NULL: the prepared call has no v_norm_weight"}},
      {"an older program's data",
       [](rope_qk_data* d) { d->struct_size = offsetof(rope_qk_data, q_norm_weight); },
       kInvalid,
       {"data->q_norm_weight (NULL) must not be NULL"}},
  };
  NormedCall call;
  call.Given();
  const PreparedCall description(call.args);
  const Context context = Create(call.config);
  rope_prepared* made = nullptr;
  ASSERT_EQ(rope_prepared_create(context.get(), &description.args(), &made), ROPE_OK)
      << rope_last_error();
  const Prepared prepared(made);
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    rope_qk_data data = description.data;
    row.change(&data);
    ExpectParts("rope_prepared_apply", row, rope_prepared_apply(prepared.get(), &data));
    for (float value : call.q) ASSERT_EQ(value, 1.5f);
  }
  EXPECT_EQ(rope_prepared_apply(prepared.get(), &description.data), ROPE_OK) << rope_last_error();
}

TEST(PreparedNormErrors, PreparedCallsWithoutNormsHaveNoWeights) {
  for (const bool has_v : {false, true}) {
    NormedCall call;
    if (has_v) call.V();
    call.fused.q_norm = nullptr;
    if (!has_v) call.args.fused = nullptr;
    PreparedCall description(call.args);
    const Context context = Create(call.config);
    const Prepared prepared = Prepare(context, description.args());
    description.data.k_norm_rstd = call.rstd;
    EXPECT_EQ(rope_prepared_apply(prepared.get(), &description.data), kInvalid);
    ExpectMessage("rope_prepared_apply", {"data->k_norm_rstd (0x", "has no k_norm_rstd"});
    for (float value : call.q) ASSERT_EQ(value, 1.5f);
  }
}

}  // namespace
}  // namespace rope::testing
