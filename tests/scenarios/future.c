/* What later versions may add, tried against today's library: appended fields, reserved fields, new
 * numbers. */
#include "scenario.h"
enum { T = 2, H = 2, D = 64 };
typedef struct {
  const void *q_weight, *k_weight;
  double eps;
} qk_norm; /* QK RMSNorm before the rotation */
typedef struct {
  rope_qk_args now;
  const qk_norm* norm;
} next_args; /* fields appended to rope_qk_args */
int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  float* q = random_floats(T * H * D);
  next_args a = {
      .now = {.struct_size = sizeof a,
              .batch = 1,
              .tokens = T,
              .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
              .positions = {.kind = ROPE_POSITIONS_OFFSET}}};
  const rope_qk_args* args = &a.now;
  must_succeed(rope_apply_qk(rope, args)); /* a newer program that uses nothing new */
  const next_args good = a;
  float* q0 = copy_of(q, T * H * D);
  qk_norm norm = {q, q, 1e-6};
#define must_refuse(change)                                       \
  do {                                                            \
    a = good;                                                     \
    change;                                                       \
    must_fail(ROPE_ERROR_UNSUPPORTED, rope_apply_qk(rope, args)); \
    must_be(!memcmp(q, q0, sizeof(float) * T * H * D));           \
  } while (0)
  must_refuse(a.norm = &norm);
  must_refuse(a.now.positions.kind = 8);
  must_refuse(a.now.positions.reserved[0] = 1);
  const rope_shard balanced = {.scheme = 5, .rank = 0, .world = 2};
  must_refuse(a.now.positions.shard = &balanced); /* another way to share a sequence */
  must_refuse(a.now.q.dtype = 5);                 /* fp8 */
  must_refuse(a.now.q.reserved = 16); /* byte offset into a buffer handle (Metal), group stride */
  must_refuse(a.now.q.layout = 7);
  must_refuse(a.now.operation = 5);
  config.device = 10; /* DLPack: ROCm */
  must_fail(ROPE_ERROR_UNSUPPORTED, rope_context_create(&config, &rope));
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
