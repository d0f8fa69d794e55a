/* A program of the project that librope lies inside of: it links, and says which backend it has. */
#include <librope/rope.h>
#include <stdio.h>

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 64;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  if (rope_context_create(&config, &rope) != ROPE_OK) return puts(rope_last_error()), 1;
  puts(rope_context_backend(rope));
  rope_context_destroy(rope);
  return 0;
}
