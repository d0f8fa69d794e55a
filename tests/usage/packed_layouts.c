/* Seven packed QKV layouts of real code (bs3hd .. bhs3d): q and k of one buffer are recognised as
 * disjoint. */
#include "check.h"
enum { B = 2, T = 3, H = 4, D = 8 };
int main(void) {
  static float x[B * T * H * 3 * D];
  rope_config c = ROPE_INIT(rope_config);
  c.head_dim = D;
  c.theta = 10;
  c.pairing = ROPE_PAIRING_HALVES;
  rope_context* r;
  OK(rope_context_create(&c, &r));
  struct {
    const char* n;
    int64_t sb, st, sh, k;
  } l[] = {{"bs3hd", T * 3 * H * D, 3 * H * D, D, H * D},
           {"sb3hd", 3 * H * D, B * 3 * H * D, D, H * D},
           {"bsh3d (NeoX, Megatron)", T * 3 * H * D, 3 * H * D, 3 * D, D},
           {"sbh3d", 3 * H * D, B * 3 * H * D, 3 * D, D},
           {"b3hsd", 3 * H * T * D, D, T * D, H * T * D},
           {"3bshd", T * H * D, H * D, D, B * T * H * D},
           {"bhs3d", H * T * 3 * D, 3 * D, T * 3 * D, D}};
  for (unsigned i = 0; i < sizeof l / sizeof *l; ++i) {
    rope_qk_args a = {.struct_size = sizeof a,
                      .batch = B,
                      .tokens = T,
                      .positions = {.kind = ROPE_POSITIONS_OFFSET},
                      .q = {.data = x,
                            .dtype = ROPE_DTYPE_F32,
                            .layout = ROPE_LAYOUT_STRIDED,
                            .heads = H,
                            .stride_batch = l[i].sb,
                            .stride_token = l[i].st,
                            .stride_head = l[i].sh}};
    a.k = a.q;
    a.k.data = x + l[i].k;
    OK(rope_apply_qk(r, &a));
    printf("   %s\n", l[i].n);
  }
  rope_context_destroy(r);
  puts("ok");
  return 0;
}
