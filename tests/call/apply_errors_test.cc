// Every call of rope_apply_qk and rope_apply_thd that is refused: its status, its message, and not
// one byte written.
#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <vector>

#include "support/enumerators.h"
#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

constexpr int kDim = 8, kTokens = 4, kHeads = 2;
alignas(64) float memory[4096], before[4096];
float* const kQ = memory + 1024;
float* const kK = memory + 2048;
float* const kOut = memory + 3072;
int32_t ids32[16], offsets32[4], cu[3] = {0, 2, kTokens}, sets[2];
int64_t ids64[16];
float idsf[16];
rope_cos_sin rows;
int32_t RunNothing(void*, rope_task_fn, void*, uint32_t) { return 0; }
const rope_runner kRunnerWithoutFunction = {nullptr, nullptr};
const rope_runner kRunner = {RunNothing, nullptr};
int64_t* Misaligned() { return reinterpret_cast<int64_t*>(reinterpret_cast<char*>(ids64) + 2); }

using A = rope_qk_args;
using Bad = BadInput<A>;

A Good() {
  A args = Args(1, kTokens);
  args.q = Tensor(kQ, ROPE_DTYPE_F32, kHeads);
  args.k = Tensor(kK, ROPE_DTYPE_F32, 1);
  args.positions = Offset(3);
  return args;
}

void GivenIds(A* a) { a->positions = Ids(ROPE_POSITIONS_IDS_T, ids32); }
void Sequences(A* a) {
  a->positions.cu_seqlens = cu;
  a->positions.sequences = 2;
}
void GivenRows(A* a) {
  a->positions = rope_positions{};
  rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, memory);
  a->cos_sin = &rows;
}

const Bad kBad[] = {
    {"struct_size", [](A* a) { a->struct_size = 8; }, kInvalid, {"struct_size (8)", "ROPE_INIT"}},
    {"operation",
     [](A* a) { a->operation = std::size(kOperations); },
     kUnsupported,
     {"operation (", "not known to this version"}},
    {"operation negative", [](A* a) { a->operation = -1; }, kUnsupported, {"operation (-1)"}},
    {"stream", [](A* a) { a->stream = memory; }, kInvalid, {"stream", "NULL"}},
    {"runner",
     [](A* a) { a->runner = &kRunnerWithoutFunction; },
     kInvalid,
     {"parallel_for", "NULL"}},
    {"batch negative", [](A* a) { a->batch = -1; }, kInvalid, {"batch (-1)", "negative"}},
    {"tokens negative", [](A* a) { a->tokens = -1; }, kInvalid, {"tokens (-1)", "negative"}},
    {"batch * tokens",
     [](A* a) { a->batch = a->tokens = int64_t{1} << 32; },
     kInvalid,
     {"batch * tokens", "63"}},
    {"batch forgotten", [](A* a) { a->batch = 0; }, kInvalid, {"batch (0)", "required"}},
    {"SHIFT by an offset",
     [](A* a) { a->operation = ROPE_OPERATION_SHIFT, a->positions = Offset(-16); },
     kInvalid,
     {"positions.kind (ROPE_POSITIONS_OFFSET)", "SHIFT", "IDS_STRIDED"}},
    {"SHIFT by offsets",
     [](A* a) {
       static const int32_t offsets[] = {-16};
       a->operation = ROPE_OPERATION_SHIFT, a->positions = rope_positions{};
       a->positions.kind = ROPE_POSITIONS_SEQ_OFFSETS, a->positions.offsets_i32 = offsets;
     },
     kInvalid,
     {"positions.kind (ROPE_POSITIONS_SEQ_OFFSETS)", "SHIFT"}},
    {"no tensor", [](A* a) { a->q = a->k = rope_tensor{}; }, kInvalid, {"args->q", "args->k"}},
    // Tensors.
    {"data NULL", [](A* a) { a->q.data = nullptr; }, kInvalid, {"q.data (NULL)"}},
    {"k.data NULL", [](A* a) { a->k.data = nullptr; }, kInvalid, {"k.data (NULL)"}},
    {"data misaligned",
     [](A* a) { a->q.data = reinterpret_cast<char*>(kQ) + 2; },
     kInvalid,
     {"q.data (0x", "aligned", "4 bytes"}},
    {"16-bit data misaligned",
     [](A* a) { a->q.dtype = ROPE_DTYPE_BF16, a->q.data = reinterpret_cast<char*>(kQ) + 1; },
     kInvalid,
     {"q.data (0x", "2 bytes"}},
    {"dtype missing", [](A* a) { a->q.dtype = 0; }, kInvalid, {"q.dtype (0)", "required"}},
    {"dtype unknown",
     [](A* a) { a->k.dtype = kLastDtype + 1; },
     kUnsupported,
     {"k.dtype (ROPE_DTYPE_F8_E4M3)", "8 bits", "outputs"}},
    {"dtype negative", [](A* a) { a->k.dtype = -4; }, kUnsupported, {"k.dtype (-4)"}},
    {"layout missing", [](A* a) { a->q.layout = 0; }, kInvalid, {"q.layout (0)", "required"}},
    {"layout unknown", [](A* a) { a->q.layout = 7; }, kUnsupported, {"q.layout (7)"}},
    {"heads 0", [](A* a) { a->k.heads = 0; }, kInvalid, {"k.heads (0)", "positive"}},
    {"heads negative", [](A* a) { a->q.heads = -2; }, kInvalid, {"q.heads (-2)", "positive"}},
    {"head_dim of another model",
     [](A* a) { a->q.head_dim = 4; },
     kInvalid,
     {"q.head_dim (4)", "(8)"}},
    {"head_dim above the context's",
     [](A* a) { a->q.head_dim = 16; },
     kInvalid,
     {"q.head_dim (16)", "(8)"}},
    {"reserved of q", [](A* a) { a->q.reserved = 1; }, kUnsupported, {"q.reserved"}},
    {"stride without STRIDED",
     [](A* a) { a->q.stride_head = 8; },
     kInvalid,
     {"q.stride", "8", "STRIDED"}},
    {"stride negative",
     [](A* a) { SetStrides(&a->q, 64, -16, 8); },
     kInvalid,
     {"q.stride", "-16", "negative"}},
    {"an output repeats heads",
     [](A* a) { SetStrides(&a->q, 64, 16, 0); },
     kInvalid,
     {"args->q", "overlap"}},
    {"heads overlap", [](A* a) { SetStrides(&a->q, 64, 16, 4); }, kInvalid, {"args->q", "overlap"}},
    {"tokens overlap", [](A* a) { SetStrides(&a->q, 64, 8, 8); }, kInvalid, {"args->q", "overlap"}},
    {"batch rows overlap",
     [](A* a) { a->batch = 2, SetStrides(&a->q, 8, 16, 8); },
     kInvalid,
     {"overlap"}},
    {"a stride overflows",
     [](A* a) { SetStrides(&a->q, 0, INT64_MAX / 2, 8); },
     kInvalid,
     {"args->q", "address space"}},
    {"an unused stride overflows in bytes",
     [](A* a) { SetStrides(&a->q, INT64_MAX, 16, 8); },
     kInvalid,
     {"address space"}},
    {"extents overflow", [](A* a) { a->tokens = INT64_MAX / 8; }, kInvalid, {"address space"}},
    {"tokens overflow by heads",
     [](A* a) { a->tokens = int64_t{1} << 40, a->q.heads = INT32_MAX, a->k = rope_tensor{}; },
     kInvalid,
     {"args->q", "address space"}},
    {"batch overflows in BHSD",
     [](A* a) { a->batch = int64_t{1} << 59, a->q.layout = ROPE_LAYOUT_BHSD; },
     kInvalid,
     {"address space"}},
    {"strides that together overflow",
     [](A* a) {
       SetStrides(&a->q, 0, INT64_MAX / 16, INT64_MAX / 16);
       a->tokens = 16;
     },
     kInvalid,
     {"address space"}},
    // Outputs.
    {"q_out without q",
     [](A* a) { a->q = rope_tensor{}, a->q_out = Tensor(kOut, ROPE_DTYPE_F32, kHeads); },
     kInvalid,
     {"q_out", "absent"}},
    {"q_out without data",
     [](A* a) { a->q_out = a->q, a->q_out.data = nullptr; },
     kInvalid,
     {"q_out.data (NULL)"}},
    {"another dtype in place",
     [](A* a) { a->q.dtype = ROPE_DTYPE_F16, a->q_out = a->q, a->q_out.dtype = ROPE_DTYPE_BF16; },
     kInvalid,
     {"q_out overlaps args->q"}},
    {"an output of a larger dtype, misaligned",
     [](A* a) {
       a->q.dtype = ROPE_DTYPE_F16;
       a->q_out = Tensor(reinterpret_cast<char*>(kOut) + 2, ROPE_DTYPE_F32, kHeads);
     },
     kInvalid,
     {"q_out.data (0x", "aligned", "(4 bytes)"}},
    {"repeated heads with BACKWARD",
     [](A* a) {
       a->operation = ROPE_OPERATION_BACKWARD;
       a->q_out = Tensor(kOut, ROPE_DTYPE_F32, 2 * kHeads);
     },
     kInvalid,
     {"args->q_out.heads (4) must be that of args->q (2), or divide it"}},
    {"other heads",
     [](A* a) { a->q_out = Tensor(kOut, ROPE_DTYPE_F32, 1); },
     kInvalid,
     {"q_out.heads (1)", "(2)"}},
    {"q_out overlaps q",
     [](A* a) { a->q_out = a->q, a->q_out.data = kQ + 8; },
     kInvalid,
     {"q_out", "overlaps", "args->q"}},
    {"q_out is q in another order",
     [](A* a) { a->q_out = a->q, a->q_out.layout = ROPE_LAYOUT_BHSD; },
     kInvalid,
     {"q_out", "overlaps"}},
    {"k_out overlaps q",
     [](A* a) { a->k_out = Tensor(kQ, ROPE_DTYPE_F32, 1); },
     kInvalid,
     {"overlaps"}},
    {"k_out overlaps q, which goes elsewhere",
     [](A* a) {
       a->q_out = Tensor(kOut, ROPE_DTYPE_F32, kHeads), a->k_out = Tensor(kQ, ROPE_DTYPE_F32, 1);
     },
     kInvalid,
     {"overlaps"}},
    {"q_out overlaps k",
     [](A* a) { a->q_out = Tensor(kK, ROPE_DTYPE_F32, kHeads); },
     kInvalid,
     {"overlaps"}},
    {"q is k", [](A* a) { a->k = a->q; }, kInvalid, {"overlaps", "begin at the same one"}},
    {"k inside q", [](A* a) { a->k.data = kQ + 16; }, kInvalid, {"overlaps"}},
    // Positions.
    {"kind missing",
     [](A* a) { a->positions.kind = 0; },
     kInvalid,
     {"positions.kind (0)", "required"}},
    {"kind unknown",
     [](A* a) { a->positions.kind = kLastPositionKind + 1; },
     kUnsupported,
     {"positions.kind (", "not known to this version"}},
    {"kind negative", [](A* a) { a->positions.kind = -1; }, kUnsupported, {"kind (-1)"}},
    {"ids NULL",
     [](A* a) { GivenIds(a), a->positions.ids_i32 = nullptr; },
     kInvalid,
     {"ids_", "0 arrays"}},
    {"two arrays of ids",
     [](A* a) { GivenIds(a), a->positions.ids_i64 = ids64; },
     kInvalid,
     {"ids_", "2 arrays"}},
    {"offsets NULL",
     [](A* a) { a->positions.kind = 2, a->positions.offset = 0; },
     kInvalid,
     {"offsets_", "0 arrays"}},
    {"offset with ids",
     [](A* a) { GivenIds(a), a->positions.offset = 3; },
     kInvalid,
     {"offset", "ROPE_POSITIONS_IDS_T does not use it"}},
    {"ids with OFFSET",
     [](A* a) { a->positions.ids_f32 = idsf; },
     kInvalid,
     {"ids_f32", "ROPE_POSITIONS_OFFSET does not use it"}},
    {"offsets with ids",
     [](A* a) { GivenIds(a), a->positions.offsets_i32 = offsets32; },
     kInvalid,
     {"offsets_i32", "ROPE_POSITIONS_IDS_T does not use it"}},
    {"strides without IDS_STRIDED",
     [](A* a) { GivenIds(a), a->positions.stride_token = 1; },
     kInvalid,
     {"stride_"}},
    {"ids_i32 misaligned",
     [](A* a) { GivenIds(a), a->positions.ids_i32 = reinterpret_cast<int32_t*>(Misaligned()); },
     kInvalid,
     {"ids", "aligned", "4"}},
    {"ids_i64 misaligned",
     [](A* a) {
       GivenIds(a);
       a->positions.ids_i32 = nullptr;
       a->positions.ids_i64 = reinterpret_cast<int64_t*>(reinterpret_cast<char*>(ids64) + 4);
     },
     kInvalid,
     {"ids", "aligned", "8"}},
    {"ids_f32 misaligned",
     [](A* a) {
       GivenIds(a);
       a->positions.ids_i32 = nullptr;
       a->positions.ids_f32 = reinterpret_cast<float*>(Misaligned());
     },
     kInvalid,
     {"ids", "aligned", "4"}},
    {"offsets_i64 misaligned",
     [](A* a) {
       a->positions = rope_positions{};
       a->positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
       a->positions.offsets_i64 = reinterpret_cast<int64_t*>(reinterpret_cast<char*>(ids64) + 4);
     },
     kInvalid,
     {"offsets", "aligned", "8"}},
    {"ids stride negative",
     [](A* a) {
       GivenIds(a), a->positions.kind = ROPE_POSITIONS_IDS_STRIDED, a->positions.stride_token = -1;
     },
     kInvalid,
     {"stride_token", "-1"}},
    {"ids strides overflow",
     [](A* a) {
       GivenIds(a);
       a->positions.kind = ROPE_POSITIONS_IDS_STRIDED;
       a->positions.stride_token = INT64_MAX / 2;
     },
     kInvalid,
     {"ids", "address space"}},
    {"positions reserved", [](A* a) { a->positions.reserved[1] = 1; }, kUnsupported, {"reserved"}},
    {"sequences without cu_seqlens",
     [](A* a) { a->positions.sequences = 1; },
     kInvalid,
     {"sequences (1)", "cu_seqlens"}},
    {"cu_seqlens without sequences",
     [](A* a) { a->positions.cu_seqlens = cu; },
     kInvalid,
     {"sequences (0)", "positive"}},
    {"cu_seqlens with a batch",
     [](A* a) { Sequences(a), a->batch = 2; },
     kInvalid,
     {"cu_seqlens", "batch 1"}},
    {"cu_seqlens decreases",
     [](A* a) {
       static const int32_t bad[] = {0, 5, 4};
       Sequences(a), a->positions.cu_seqlens = bad;
     },
     kInvalid,
     {"cu_seqlens[2] (4)", "decreasing"}},
    {"cu_seqlens starts late",
     [](A* a) {
       static const int32_t bad[] = {1, 2, 4};
       Sequences(a), a->positions.cu_seqlens = bad;
     },
     kInvalid,
     {"cu_seqlens[0] (1)"}},
    {"cu_seqlens ends early",
     [](A* a) {
       static const int32_t bad[] = {0, 2, 3};
       Sequences(a), a->positions.cu_seqlens = bad;
     },
     kInvalid,
     {"cu_seqlens[2] (3)", "tokens (4)"}},
    {"cu_seqlens is negative",
     [](A* a) {
       static const int32_t bad[] = {0, -1, 4};
       Sequences(a), a->positions.cu_seqlens = bad;
     },
     kInvalid,
     {"cu_seqlens[1] (-1)"}},
    {"cu_seqlens misaligned",
     [](A* a) {
       Sequences(a);
       a->positions.cu_seqlens = reinterpret_cast<int32_t*>(Misaligned());
     },
     kInvalid,
     {"cu_seqlens (0x", "aligned"}},
    {"freq_sets of one set",
     [](A* a) { a->positions.freq_sets = sets; },
     kInvalid,
     {"freq_sets", "1 set"}},
    // Rows.
    {"rows and positions",
     [](A* a) { GivenRows(a), a->positions = Offset(3); },
     kInvalid,
     {"positions", "cos_sin", "exactly one"}},
    {"rows backwards",
     [](A* a) { GivenRows(a), a->operation = ROPE_OPERATION_INVERSE; },
     kInvalid,
     {"operation (ROPE_OPERATION_INVERSE)", "FORWARD or BACKWARD"}},
    {"rows to shift",
     [](A* a) { GivenRows(a), a->operation = ROPE_OPERATION_SHIFT; },
     kInvalid,
     {"operation (ROPE_OPERATION_SHIFT)"}},
    {"rows struct_size",
     [](A* a) { GivenRows(a), rows.struct_size = 12; },
     kInvalid,
     {"cos_sin", "struct_size (12)"}},
    {"rows format missing",
     [](A* a) { GivenRows(a), rows.format = 0; },
     kInvalid,
     {"format (0)", "required"}},
    {"rows format unknown",
     [](A* a) { GivenRows(a), rows.format = Formats().back() + 1; },
     kUnsupported,
     {"format (", "not known to this version"}},
    {"rows of an output format",
     [](A* a) { GivenRows(a), rows.format = ROPE_COS_SIN_SINUSOIDAL; },
     kInvalid,
     {"format (ROPE_COS_SIN_SINUSOIDAL)", "output"}},
    {"rows dtype missing", [](A* a) { GivenRows(a), rows.dtype = 0; }, kInvalid, {"dtype (0)"}},
    {"rows dtype unknown",
     [](A* a) { GivenRows(a), rows.dtype = kLastDtype + 1; },
     kUnsupported,
     {"dtype ("}},
    {"rows of other pairs",
     [](A* a) { GivenRows(a), rows.pairs = 8; },
     kInvalid,
     {"pairs (8)", "(4)"}},
    {"rows of another batch",
     [](A* a) { GivenRows(a), rows.batch = 2; },
     kInvalid,
     {"batch (2)", "(1)"}},
    {"rows of no batch", [](A* a) { GivenRows(a), rows.batch = 0; }, kInvalid, {"batch (0)"}},
    {"rows without data",
     [](A* a) { GivenRows(a), rows.data = nullptr; },
     kInvalid,
     {"data (NULL)"}},
    {"rows with sin in vain",
     [](A* a) { GivenRows(a), rows.sin = memory; },
     kInvalid,
     {"sin", "one tensor"}},
    {"rows lack sin",
     [](A* a) { GivenRows(a), rows.format = ROPE_COS_SIN_SPLIT; },
     kInvalid,
     {"sin (NULL)", "two tensors"}},
    {"rows misaligned",
     [](A* a) { GivenRows(a), rows.data = reinterpret_cast<char*>(memory) + 2; },
     kInvalid,
     {"data", "aligned"}},
    {"sin of rows misaligned",
     [](A* a) {
       GivenRows(a), rows.format = ROPE_COS_SIN_SPLIT;
       rows.sin = reinterpret_cast<char*>(memory) + 2;
     },
     kInvalid,
     {"sin", "aligned"}},
    {"rows overlap themselves",
     [](A* a) { GivenRows(a), rows.stride_token = 7; },
     kInvalid,
     {"stride_token (7)", "(8)"}},
    {"rows stride overflows",
     [](A* a) { GivenRows(a), rows.stride_token = INT64_MAX / 2; },
     kInvalid,
     {"stride_token", "address space"}},
};

class ApplyErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 4096; ++i) memory[i] = static_cast<float>(i) * 0.01f;
    std::memcpy(before, memory, sizeof(memory));
    context_ = Create(Config(kDim));
  }
  void TearDown() override {
    EXPECT_EQ(std::memcmp(memory, before, sizeof(memory)), 0) << "something was written";
  }
  rope_status Apply(const A& args) { return rope_apply_qk(context_.get(), &args); }
  Context context_;
};

TEST_F(ApplyErrors, EachIsRefusedWithItsMessage) {
  for (const Bad& bad : kBad) {
    A args = Good();
    bad.change(&args);
    ExpectParts("rope_apply_qk", bad, Apply(args));
    ASSERT_EQ(std::memcmp(memory, before, sizeof(memory)), 0) << bad.name;
  }
}

TEST_F(ApplyErrors, AreTheSameWithARunner) {
  for (const Bad& bad : kBad) {
    A args = Good();
    args.runner = &kRunner;
    bad.change(&args);
    EXPECT_EQ(Apply(args), bad.status) << bad.name;
  }
}

TEST_F(ApplyErrors, NameArgumentsThatAreNull) {
  const A good = Good();
  EXPECT_EQ(rope_apply_qk(nullptr, &good), kInvalid);
  ExpectMessage("rope_apply_qk", {"context", "NULL"});
  EXPECT_EQ(rope_apply_qk(context_.get(), nullptr), kInvalid);
  ExpectMessage("rope_apply_qk", {"args", "NULL"});
}

TEST_F(ApplyErrors, NameSetsThatAreMissingOrOutOfRange) {
  rope_config a = Config(kDim), b = Config(kDim);
  b.theta = 5;
  const Context context = CreateSets({a, b});
  rope_context* const both = context.get();
  A args = Good();
  EXPECT_EQ(rope_apply_qk(both, &args), kInvalid);
  ExpectMessage("rope_apply_qk", {"freq_sets (NULL)", "2 sets"});
  for (int32_t bad : {-1, 2}) {
    const int32_t chosen[] = {bad};
    args.positions.freq_sets = chosen;
    EXPECT_EQ(rope_apply_qk(both, &args), kInvalid);
    ExpectMessage("rope_apply_qk", {"freq_sets[0]", "from 0 to 1"});
  }
  for (int32_t bad : {-1, 2}) {  // one set for each sequence, which are not the batch rows here
    const int32_t chosen[] = {0, bad};
    Sequences(&args);
    args.positions.freq_sets = chosen;
    EXPECT_EQ(rope_apply_qk(both, &args), kInvalid);
    ExpectMessage("rope_apply_qk", {"freq_sets[1]", "from 0 to 1"});
  }
  args = Good();
  args.positions.freq_sets = reinterpret_cast<int32_t*>(Misaligned());
  EXPECT_EQ(rope_apply_qk(both, &args), kInvalid);
  ExpectMessage("rope_apply_qk", {"freq_sets (0x", "aligned"});
  const int64_t ids[kTokens] = {};
  EXPECT_EQ(rope_apply_thd(both, ROPE_DTYPE_F32, kTokens, ids, kQ, kHeads, nullptr, 0), kInvalid);
  ExpectMessage("rope_apply_thd",
                {"context (of CPU, with 1 axes and 2 frequency sets)", "one frequency set"});
}

TEST_F(ApplyErrors, NameFieldsOfNewerStructsAndOlderOnesEndEarly) {
  struct Newer {
    A known;
    const void* later;
  } newer = {Good(), nullptr};
  newer.known.struct_size = sizeof(newer);
  newer.later = memory;
  EXPECT_EQ(rope_apply_qk(context_.get(), &newer.known), kUnsupported);
  ExpectMessage("rope_apply_qk", {"args", "field at byte"});
  newer.later = nullptr;
  EXPECT_OK(rope_apply_qk(context_.get(), &newer.known));
  A older = Good();  // ends before cos_sin: what lies behind is not read
  older.struct_size = offsetof(A, cos_sin);
  older.cos_sin = reinterpret_cast<const rope_cos_sin*>(1);
  older.runner = reinterpret_cast<const rope_runner*>(1);
  older.operation = ROPE_OPERATION_INVERSE;
  EXPECT_OK(rope_apply_qk(context_.get(), &older));
  for (int i = 0; i < 4096; ++i) EXPECT_NEAR(memory[i], before[i], 1e-5 * (1 + before[i]));
  std::memcpy(memory, before, sizeof(memory));
}

// Messages of the short call name its own arguments, not the fields of rope_qk_args.
void ExpectOwnMessage(const char* name, std::initializer_list<const char*> parts) {
  ExpectMessage(name, parts);
  EXPECT_EQ(std::string(rope_last_error()).find("args"), std::string::npos) << rope_last_error();
}

TEST_F(ApplyErrors, OfNativeRoundingNameTheDtype) {
  rope_config config = Config(kDim);
  config.rounding = ROPE_ROUNDING_NATIVE;
  const Context context = Create(config);
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(kQ, ROPE_DTYPE_F16, kHeads);
  args.k = Tensor(kK, ROPE_DTYPE_BF16, kHeads);
  args.positions = Offset(1);
  EXPECT_EQ(rope_apply_qk(context.get(), &args), kInvalid);
  ExpectMessage("rope_apply_qk",
                {"args->k.dtype (ROPE_DTYPE_BF16)", "ROPE_DTYPE_F16,", "ROPE_ROUNDING_NATIVE"});
  rope_prepared* prepared = nullptr;
  args.q.data = args.k.data = nullptr;
  EXPECT_EQ(rope_prepared_create(context.get(), &args, &prepared), kInvalid);
  ExpectMessage("rope_prepared_create", {"args->k.dtype (ROPE_DTYPE_BF16)", "ROPE_DTYPE_F16,"});
  const int64_t ids[kTokens] = {1, 2, 3, 4};
  EXPECT_EQ(rope_apply_thd(context.get(), ROPE_DTYPE_F32, kTokens, ids, kQ, 1, nullptr, 0),
            kInvalid);
  ExpectMessage("rope_apply_thd", {"q.dtype (ROPE_DTYPE_F32)", "ROPE_DTYPE_F16,"});
}

TEST_F(ApplyErrors, OfTheShortCallNameItsOwnArguments) {
  const int64_t ids[kTokens] = {1, 2, 3, 4};
  rope_context* c = context_.get();
  const char* name = "rope_apply_thd";
  EXPECT_EQ(rope_apply_thd(nullptr, ROPE_DTYPE_F32, kTokens, ids, kQ, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"context", "NULL"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, kTokens, nullptr, kQ, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"positions", "NULL"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, -1, ids, kQ, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"tokens (-1)"});
  EXPECT_EQ(rope_apply_thd(c, 0, kTokens, ids, kQ, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"dtype (0)"});
  EXPECT_EQ(rope_apply_thd(c, kLastDtype + 1, kTokens, ids, kQ, 2, kK, 1), kUnsupported);
  ExpectOwnMessage(name, {"dtype (ROPE_DTYPE_F8_E4M3)", "F32, F16 or BF16"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, kTokens, ids, nullptr, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"q (NULL)", "q_heads (2)"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, kTokens, ids, kQ, 2, kK, 0), kInvalid);
  ExpectOwnMessage(name, {"k (set)", "k_heads (0)"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, kTokens, ids, kQ, -2, nullptr, 0), kInvalid);
  ExpectOwnMessage(name, {"q_heads (-2)", "positive"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, kTokens, ids, nullptr, 0, nullptr, 0), kInvalid);
  ExpectOwnMessage(name, {"q and k must not both be absent"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, INT64_MAX, ids, kQ, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"tokens (9223372036854775807)", "address space"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, int64_t{1} << 59, ids, kQ, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"q (batch 1", "address space"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, kTokens, ids, kQ, 2, kQ, 1), kInvalid);
  ExpectOwnMessage(name, {"overlaps"});
  EXPECT_EQ(rope_apply_thd(c, ROPE_DTYPE_F32, kTokens, Misaligned(), kQ, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"aligned"});
  EXPECT_EQ(
      rope_apply_thd(c, ROPE_DTYPE_F32, kTokens, ids, reinterpret_cast<char*>(kQ) + 1, 2, kK, 1),
      kInvalid);
  ExpectOwnMessage(name, {"q (0x", "aligned to its element (4 bytes)"});
  rope_config config = Config(kDim);
  config.axes = 2;
  config.mrope_section[0] = config.mrope_section[1] = 2;
  EXPECT_EQ(rope_apply_thd(Create(config).get(), ROPE_DTYPE_F32, kTokens, ids, kQ, 2, kK, 1),
            kInvalid);
  ExpectOwnMessage(name, {"one axis", "rope_apply_qk"});
  const Context sets = CreateSets({Config(kDim), Config(kDim)});
  EXPECT_EQ(rope_apply_thd(sets.get(), ROPE_DTYPE_F32, kTokens, ids, kQ, 2, kK, 1), kInvalid);
  ExpectOwnMessage(name, {"one frequency set"});
}

}  // namespace
}  // namespace rope::testing
