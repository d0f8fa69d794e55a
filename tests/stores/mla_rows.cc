// Rows that MLA's caches share between dtypes and scales, of 656, 584, 576, 528 and 132 bytes
// (support/mla_rows.h tells of each whose it is), and queries and keys for them.
#include <string>
#include <vector>

#include "stores/work.h"

namespace rope::testing::stores {
namespace {

constexpr int kSpan = 64;

// One head of 8 bits or bf16 in each slot of a page: bytes from page to page and from slot to slot.
Heads InRows(char* first, rope_dtype dtype, int width, int64_t page, int64_t slot) {
  const int64_t size = BytesOf(dtype, 1);
  Heads h = {};
  h.tensor = Tensor(first, dtype, 1);
  h.tensor.head_dim = h.width = width;
  h.page = page / size, h.slot = slot / size;
  SetStrides(&h.tensor, h.page, h.slot, 0);
  return h;
}

rope_scale Computed(rope_dtype dtype, int group, void* data, int64_t page, int64_t slot) {
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1;
  scale.dtype = dtype;
  scale.group = group;
  scale.power_of_two = dtype == ROPE_DTYPE_E8M0;
  scale.min_scale = 1e-4;
  scale.data = data;
  const int64_t size = dtype == ROPE_DTYPE_E8M0 ? 1 : 4;
  scale.stride_batch = page / size, scale.stride_token = slot / size;
  return scale;
}

// A call that stores bf16 latents and the keys that turn.
class MlaRows {
 public:
  MlaRows(const std::string& name, int64_t tokens, bool normed)
      : work_(name + (normed ? " normed" : "") + ", " + std::to_string(tokens) + " tokens"),
        tokens_(tokens),
        args_(Args(1, tokens)) {
    args_.positions = Offset(100);
    args_.fused = &fused_;
    norm_.kind = ROPE_NORM_KIND_RMS;
    norm_.eps = 1e-6;
    norm_.rounding = ROPE_NORM_ROUNDING_ROUNDED;
    norm_.weight = work_.Numbers("weight", ROPE_DTYPE_BF16, 512);
    norm_.weight_dtype = ROPE_DTYPE_BF16;
    given_.value = 0.25f;
    given_.round_first = 1;
    if (normed) fused_.v_norm = &norm_;
  }

  void FourGroups(int64_t row, bool apart) {
    const std::vector<Place> places = Put();
    char* const bytes = work_.Bytes("rows", kPages * kPageSize * row);
    rope_scale scale = Computed(ROPE_DTYPE_F32, 128, bytes + 512, kPageSize * row, row);
    Heads v = InRows(bytes, ROPE_DTYPE_F8_E4M3, 512, kPageSize * row, row);
    v.tensor.scale = &scale;
    const int64_t k_row = apart ? 2 * kSpan : row;
    char* const keys = apart ? work_.Bytes("keys", kPages * kPageSize * k_row) : bytes + 528;
    Store(places, v, InRows(keys, ROPE_DTYPE_BF16, kSpan, kPageSize * k_row, k_row));
  }

  void ScalesBehindRows() {
    constexpr int kRow = 576, kCodes = 448, kPage = (kPageSize * 584 + kRow - 1) / kRow * kRow;
    const std::vector<Place> places = Put();
    char* const bytes = work_.Bytes("pages", kPages * kPage);
    rope_scale scale = Computed(ROPE_DTYPE_E8M0, 64, bytes + kPageSize * kRow, kPage, 8);
    Heads v = InRows(bytes, ROPE_DTYPE_F8_E4M3, kCodes, kPage, kRow);
    v.tensor.scale = &scale;
    Store(places, v, InRows(bytes + kCodes, ROPE_DTYPE_BF16, kSpan, kPage, kRow));
  }

  void OneScale() {
    constexpr int kRow = 576;
    const std::vector<Place> places = Put();
    char* const bytes = work_.Bytes("rows", kPages * kPageSize * kRow);
    Heads v = InRows(bytes, ROPE_DTYPE_F8_E4M3, 512, kPageSize * kRow, kRow),
          k = InRows(bytes + 512, ROPE_DTYPE_F8_E4M3, kSpan, kPageSize * kRow, kRow);
    v.tensor.scale = k.tensor.scale = &given_;
    Store(places, v, k);
  }

  // The first half of a key turns; the scales of a page stand behind its rows.
  void Indexer(bool normed) {
    constexpr int kRow = 128, kPage = kPageSize * 132;
    const std::vector<Place> places = Put();
    char* const bytes = work_.Bytes("pages", kPages * kPage);
    rope_scale scale = Computed(ROPE_DTYPE_F32, 0, bytes + kPageSize * kRow, kPage, 4);
    scale.round_first = 1;
    Heads k = InRows(bytes, ROPE_DTYPE_F8_E4M3, kRow, kPage, kRow);
    k.tensor.scale = &scale;
    rope_norm layer = norm_;
    layer.kind = ROPE_NORM_KIND_LAYER_BIAS;
    layer.bias = work_.Numbers("bias", ROPE_DTYPE_BF16, kRow);
    if (normed) fused_.k_norm = &layer;
    cache_.k = k.tensor;
    args_.k = work_.Tensor("k", ROPE_DTYPE_BF16, {1, tokens_, 1, kRow}, ROPE_LAYOUT_BSHD).tensor;
    for (const Place& place : places) work_.Stores(k, place, 0, kRow);
    rope_config config = Config(kRow);
    config.rotary_dim = kSpan;
    work_.Make(ContextOf(config), args_);
  }

  // 512 channels of each query that do not turn, and 64 that do.
  void AbsorbedQueries() {
    constexpr int kRow = 576, kHeads = 3;
    char* const bytes = work_.Bytes("queries", tokens_ * kHeads * kRow);
    const auto part = [&](int first, int width) {
      Heads h = InRows(bytes + first, ROPE_DTYPE_F8_E4M3, width, 0, kHeads * kRow);
      h.tensor.heads = kHeads;
      h.head = kRow;
      SetStrides(&h.tensor, 0, h.slot, h.head);
      h.tensor.scale = &given_;
      for (const Place& token : Tokens(1, tokens_)) work_.Stores(h, token, 0, width);
      return h.tensor;
    };
    const auto given = [&](const char* name, int width) {
      rope_tensor t =
          work_.Tensor(name, ROPE_DTYPE_BF16, {1, tokens_, kHeads, width}, ROPE_LAYOUT_BSHD).tensor;
      t.head_dim = width;
      return t;
    };
    fused_.rest = given("rest", 512);
    fused_.rest_out = part(0, 512);
    args_.q = given("q", kSpan);
    args_.q_out = part(512, kSpan);
    work_.Make(ContextOf(OfSpan()), args_);
  }

  // In each head of the keys, 128 channels of its own and the 64 that all share.
  void PrefillKeys() {
    constexpr int kHeads = 5, kOwn = 128, kHead = kOwn + kSpan;
    char* const keys = work_.Numbers("keys", ROPE_DTYPE_BF16, tokens_ * kHeads * kHead);
    const auto part = [&](int first, int width) {
      Heads h = InRows(keys + 2 * first, ROPE_DTYPE_BF16, width, 0, 2 * kHeads * kHead);
      h.tensor.heads = kHeads;
      h.head = kHead;
      SetStrides(&h.tensor, 0, h.slot, h.head);
      for (const Place& token : Tokens(1, tokens_)) work_.Stores(h, token, 0, width);
      return h.tensor;
    };
    fused_.rest =
        work_.Tensor("rest", ROPE_DTYPE_BF16, {1, tokens_, kHeads, kOwn}, ROPE_LAYOUT_BSHD).tensor;
    fused_.rest.head_dim = kOwn;
    fused_.rest_out = part(0, kOwn);
    args_.k = work_.Tensor("k", ROPE_DTYPE_BF16, {1, tokens_, 1, kSpan}, ROPE_LAYOUT_BSHD).tensor;
    args_.k_out = part(kOwn, kSpan);
    work_.Make(ContextOf(OfSpan()), args_);
  }

 private:
  static rope_config OfSpan() { return Config(kSpan, ROPE_PAIRING_INTERLEAVED); }

  std::vector<Place> Put() {
    fused_.cache = &cache_;
    return PutTokens(&work_, ROPE_SLOTS_MAPPED, 1, tokens_, 0, &cache_);
  }
  void Store(const std::vector<Place>& places, const Heads& v, const Heads& k) {
    cache_.v = v.tensor, cache_.k = k.tensor;
    const int row = v.width + kSpan;
    char* const given = work_.Numbers("given", ROPE_DTYPE_BF16, tokens_ * row);
    fused_.v = InRows(given, ROPE_DTYPE_BF16, v.width, 0, 2 * row).tensor;
    args_.k = InRows(given + 2 * v.width, ROPE_DTYPE_BF16, kSpan, 0, 2 * row).tensor;
    for (const Place& place : places) {
      work_.Stores(v, place, 0, v.width);
      work_.Stores(k, place, 0, kSpan);
    }
    work_.Make(ContextOf(OfSpan()), args_);
  }

  Work work_;
  const int64_t tokens_;
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache);
  rope_norm norm_ = ROPE_INIT(rope_norm);
  rope_scale given_ = ROPE_INIT(rope_scale);
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_qk_args args_;
};

}  // namespace

void WatchMlaRows() {
  for (const int64_t tokens : {1, 7}) {
    for (const bool normed : {false, true}) {
      MlaRows("rows of 656 bytes", tokens, normed).FourGroups(656, false);
      MlaRows("rows of 528 bytes and keys", tokens, normed).FourGroups(528, true);
      MlaRows("rows of 584 bytes", tokens, normed).ScalesBehindRows();
      MlaRows("rows of 576 bytes", tokens, normed).OneScale();
      MlaRows(normed ? "rows of 132 bytes behind a norm" : "rows of 132 bytes", tokens, false)
          .Indexer(normed);
    }
    MlaRows("queries of 576 bytes", tokens, false).AbsorbedQueries();
    MlaRows("keys of 192 channels", tokens, false).PrefillKeys();
  }
}

}  // namespace rope::testing::stores
