/* Errors, and structs of other versions. A client of a newer header is tried in
 * future.c. */
#include "scenario.h"
int main(void) {
  rope_context* rope = NULL;
  rope_config config = ROPE_INIT(rope_config);
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&config, &rope)); /* head_dim */
  config.head_dim = 128;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&config, &rope)); /* pairing */
  config.pairing = ROPE_PAIRING_HALVES;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&config, &rope)); /* theta */
  config.theta = 10000;
  config.rotary_dim = 63;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&config, &rope));
  config.rotary_dim = 0;
  config.factor = 8; /* a factor, but no scaling that uses it */
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&config, &rope));
  config.factor = 0;
  config.struct_size = 0;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&config, &rope));
  must_be(rope == NULL);
  config.struct_size = sizeof config;
  must_succeed(rope_context_create(&config, &rope));
  rope_info info = ROPE_INIT(rope_info);
  must_succeed(rope_context_info(rope, 0, &info));
  must_be(info.pairs == 64 && info.softmax_factor == 1);
  float q[2][128] = {{1}}, q0[2][128];
  memcpy(q0, q, sizeof q);
  const rope_qk_args good = {
      .struct_size = sizeof good,
      .batch = 1,
      .tokens = 1,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = 2},
      .positions = {.kind = ROPE_POSITIONS_OFFSET, .offset = 3}};
  rope_qk_args args;
#define must_refuse(change)                                             \
  do {                                                                  \
    args = good;                                                        \
    change;                                                             \
    must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &args)); \
    must_be(!memcmp(q, q0, sizeof q));                                  \
  } while (0)
  must_refuse(args.positions.kind = 0);
  must_refuse(args.positions.kind = ROPE_POSITIONS_IDS_T); /* ids are NULL: never "0, 1, 2" */
  must_refuse(args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS);
  must_refuse(args.batch = -1);
  must_refuse(args.tokens = -1);
  must_refuse(args.q.dtype = 0);
  must_refuse(args.q.layout = 0);
  must_refuse(args.q.heads = 0);
  must_refuse(args.q.head_dim = 64);
  must_refuse(args.q.data = NULL); /* a failed allocation is not "absent" */
  must_refuse((args.k = args.q, args.k.data = NULL));
  must_refuse((args.q_out = args.q, args.q_out.data = NULL)); /* ... nor "in place" */
  must_refuse((args.q_out = args.q, args.q_out.data = q[1])); /* partial overlap */
  must_refuse(args.q.stride_head = 256);                      /* strides without STRIDED */
  must_refuse((args.q.layout = ROPE_LAYOUT_STRIDED, args.q.stride_head = 64)); /* heads overlap */
  must_refuse((args.q.layout = ROPE_LAYOUT_STRIDED,
               args.q.stride_head = 0)); /* as a broadcast output would */
  must_refuse((args.q.layout = ROPE_LAYOUT_STRIDED, args.q.stride_head = INT64_MAX / 2));
  must_refuse(args.q.data = (char*)q + 2);
  must_refuse(args.stream = q);
  must_refuse(memset(&args.q, 0, sizeof args.q));
  must_refuse(args.struct_size = 8);
  args = good;
  args.operation = 17;
  must_fail(ROPE_ERROR_UNSUPPORTED, rope_apply_qk(rope, &args));
  args = good;
  must_succeed(rope_apply_qk(rope, &args));
  must_be(fabsf(q[0][0] - cosf(3)) < 1e-6f);
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
