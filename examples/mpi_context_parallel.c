/* Ring attention over MPI: each rank has some tokens of a row of three documents.
 *
 *     mpicc mpi_context_parallel.c $(pkg-config --cflags --libs librope) -lm
 *     mpirun -n 4 ./a.out zigzag-documents     (or others of `schemes`)
 *
 * A rank says who it is, and rotates its q and k: no position ids are made or sent. Keys go around
 * the ring, each with its value and the number of its token for the mask, and the softmax is kept
 * up with what comes by. Rank 0 gathers all: q and k must have the bits that it computes alone; the
 * outputs are sums of doubles in another order, and must agree to 1e-12. */
#include <librope/rope.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 80, DOCUMENTS = 3, Q_HEADS = 4, HEADS = 2, DIM = 64 };
static const int32_t cu_seqlens[DOCUMENTS + 1] = {0, 24, 64, 80}; /* padded to multiples of 8 */

static const struct {
  const char* name;
  rope_shard_scheme scheme;
  int per_document;
} schemes[] = {{"contiguous", ROPE_SHARD_CONTIGUOUS, 0},
               {"striped", ROPE_SHARD_STRIPED, 0},
               {"zigzag", ROPE_SHARD_ZIGZAG, 0},
               {"zigzag-documents", ROPE_SHARD_ZIGZAG, 1}};

/* What stays on a rank, and what goes around. */
typedef struct {
  int64_t number;
  float q[Q_HEADS][DIM];
  double largest[Q_HEADS], total[Q_HEADS], out[Q_HEADS][DIM];
} Query;
typedef struct {
  int64_t number;
  float k[HEADS][DIM], v[HEADS][DIM];
} Key;

static void stop(const char* why) {
  fprintf(stderr, "%s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(rope_status status) {
  if (status != ROPE_OK) stop(rope_last_error());
}

/* Numbers from -1 to 1 that follow from the token. */
static void fill(float* to, int count, int64_t token, uint32_t kind) {
  uint32_t state = (uint32_t)token * 3 + kind;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    to[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
  }
}

/* Loads the tokens of a rank, and rotates them. shard: NULL: all tokens. */
static void load(const rope_context* rope, int tokens, const rope_shard* shard, Query* queries,
                 Key* keys) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = tokens;
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.cu_seqlens = cu_seqlens;
  args.positions.sequences = DOCUMENTS;
  args.positions.shard = shard;
  int64_t numbers[LENGTH];
  for (int t = 0; t < tokens; ++t) numbers[t] = t;
  if (shard != NULL) check(rope_shard_ids(1, tokens, &args.positions, NULL, numbers));
  for (int t = 0; t < tokens; ++t) {
    queries[t].number = keys[t].number = numbers[t];
    fill(queries[t].q[0], Q_HEADS * DIM, numbers[t], 0);
    fill(keys[t].k[0], HEADS * DIM, numbers[t], 1);
    fill(keys[t].v[0], HEADS * DIM, numbers[t], 2);
    for (int h = 0; h < Q_HEADS; ++h) queries[t].largest[h] = -HUGE_VAL;
    memset(queries[t].total, 0, sizeof queries[t].total);
    memset(queries[t].out, 0, sizeof queries[t].out);
  }
  args.q.data = queries[0].q;
  args.q.dtype = ROPE_DTYPE_F32;
  args.q.layout = ROPE_LAYOUT_STRIDED;
  args.q.heads = Q_HEADS;
  args.q.stride_head = DIM;
  args.q.stride_token = sizeof(Query) / sizeof(float);
  args.k = args.q;
  args.k.data = keys[0].k;
  args.k.heads = HEADS;
  args.k.stride_token = sizeof(Key) / sizeof(float);
  check(rope_apply_qk(rope, &args));
}

static int sees(int64_t query, int64_t key) {
  int document = 0;
  while (cu_seqlens[document + 1] <= query) ++document;
  return cu_seqlens[document] <= key && key <= query;
}

/* Softmax and sum over the keys that are here now, on top of those that were. */
static void attend(Query* query, int h, const Key* key) {
  const float *q = query->q[h], *k = key->k[h * HEADS / Q_HEADS], *v = key->v[h * HEADS / Q_HEADS];
  double score = 0;
  for (int c = 0; c < DIM; ++c) score += (double)q[c] * k[c];
  score /= sqrt(DIM);
  const double largest = fmax(query->largest[h], score);
  const double before = exp(query->largest[h] - largest), now = exp(score - largest);
  query->largest[h] = largest;
  query->total[h] = query->total[h] * before + now;
  for (int c = 0; c < DIM; ++c) query->out[h][c] = query->out[h][c] * before + now * v[c];
}

static void attend_all(Query* queries, int count, const Key* keys, int key_count) {
  for (int i = 0; i < count; ++i)
    for (int j = 0; j < key_count; ++j)
      for (int h = 0; h < Q_HEADS && sees(queries[i].number, keys[j].number); ++h)
        attend(&queries[i], h, &keys[j]);
}

/* The largest difference of an output from that of one process; stops where q or k differ. */
static double compare(const rope_context* rope, const Query* queries, const Key* keys) {
  static Query whole[LENGTH];
  static Key whole_keys[LENGTH];
  double worst = 0;
  load(rope, LENGTH, NULL, whole, whole_keys);
  attend_all(whole, LENGTH, whole_keys, LENGTH);
  for (int i = 0; i < LENGTH; ++i) {
    const Query* want = &whole[queries[i].number];
    const Key* want_key = &whole_keys[keys[i].number];
    if (memcmp(queries[i].q, want->q, sizeof want->q) != 0) stop("q differs from one process's");
    if (memcmp(keys[i].k, want_key->k, sizeof want_key->k) != 0)
      stop("k differs from one process's");
    for (int h = 0; h < Q_HEADS; ++h)
      for (int c = 0; c < DIM; ++c)
        worst = fmax(worst, fabs(queries[i].out[h][c] / queries[i].total[h] -
                                 want->out[h][c] / want->total[h]));
  }
  return worst;
}

int main(int argc, char** argv) {
  int rank, world;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (argc < 2) stop("usage: mpirun -n RANKS example_mpi_context_parallel SCHEME..");
  const int tokens = LENGTH / world;
  const int last = (rank + world - 1) % world, next = (rank + 1) % world;

  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));

  static Query mine[LENGTH], all[LENGTH];
  static Key my_keys[LENGTH], passing[LENGTH], all_keys[LENGTH];
  for (int a = 1; a < argc; ++a) {
    size_t s = 0;
    while (s < sizeof schemes / sizeof *schemes && strcmp(argv[a], schemes[s].name) != 0) ++s;
    if (s == sizeof schemes / sizeof *schemes) stop("unknown scheme");
    rope_shard shard = {0};
    shard.scheme = schemes[s].scheme;
    shard.per_document = schemes[s].per_document;
    shard.rank = rank;
    shard.world = world;
    load(rope, tokens, &shard, mine, my_keys);
    memcpy(passing, my_keys, sizeof passing);
    attend_all(mine, tokens, passing, tokens);
    for (int step = 1; step < world; ++step) {
      MPI_Sendrecv_replace(passing, tokens * (int)sizeof *passing, MPI_BYTE, last, 0, next, 0,
                           MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      attend_all(mine, tokens, passing, tokens);
    }
    MPI_Gather(mine, tokens * (int)sizeof *mine, MPI_BYTE, all, tokens * (int)sizeof *all, MPI_BYTE,
               0, MPI_COMM_WORLD);
    MPI_Gather(my_keys, tokens * (int)sizeof *my_keys, MPI_BYTE, all_keys,
               tokens * (int)sizeof *all_keys, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) continue;
    const double worst = compare(rope, all, all_keys);
    if (!(worst < 1e-12)) stop("the attention differs from one process's");
    printf("%s: %d ranks, q and k have the bits of one process, outputs are off by %.1e\n",
           schemes[s].name, world, worst);
  }
  rope_context_destroy(rope);
  MPI_Finalize();
  return 0;
}
