// librope itself, in three forms: from positions, as its users call it; with the rows of cos and
// sin given, which is the work that most peers do; and prepared, as an engine calls it in each
// layer, with checks and rows done before, which is all that the plain loops over a table do.
#include <librope/rope.h>

#include "contender.h"
#include "split.h"

namespace peers {
namespace {

void Check(rope_status status) {
  if (status != ROPE_OK) throw std::runtime_error(rope_last_error());
}

class Librope : public Contender {
 public:
  Librope(const peer_case& c, bool rows_given, bool prepared) : split_(c.threads) {
    rope_config config = ROPE_INIT(rope_config);
    config.head_dim = c.head_dim;
    config.theta = c.theta;
    config.pairing = static_cast<rope_pairing>(c.pairing);
    Check(rope_context_create(&config, &context_));
    args_.batch = 1;
    args_.tokens = c.tokens;
    Describe(c, &args_.q, c.q, c.q_heads);
    Describe(c, &args_.k, c.k, c.k_heads);
    if (!InPlace(c)) {
      Describe(c, &args_.q_out, c.q_out, c.q_heads);
      Describe(c, &args_.k_out, c.k_out, c.k_heads);
    }
    if (rows_given) {
      rows_.format = ROPE_COS_SIN_SPLIT;
      rows_.dtype = ROPE_DTYPE_F32;
      rows_.pairs = c.head_dim / 2;
      rows_.batch = 1;
      rows_.data = const_cast<float*>(c.cos);
      rows_.sin = const_cast<float*>(c.sin);
      args_.cos_sin = &rows_;
    } else {
      args_.positions.kind = ROPE_POSITIONS_IDS_T;
      args_.positions.ids_i64 = c.positions;
    }
    args_.runner = split_.runner();
    if (prepared) Prepare();
  }
  ~Librope() override {
    rope_prepared_destroy(prepared_);
    rope_context_destroy(context_);
  }

  void Run() override {
    status_ |= prepared_ != nullptr ? rope_prepared_apply(prepared_, &data_)
                                    : rope_apply_qk(context_, &args_);
  }

 private:
  static void Describe(const peer_case& c, rope_tensor* tensor, void* data, int32_t heads) {
    tensor->data = data;
    tensor->dtype = static_cast<rope_dtype>(c.dtype);
    tensor->layout = ROPE_LAYOUT_BSHD;
    tensor->heads = heads;
  }

  void Prepare() {
    const auto take = [](rope_tensor* tensor, void** data) {
      *data = tensor->data;
      tensor->data = nullptr;
    };
    take(&args_.q, &data_.q);
    take(&args_.k, &data_.k);
    take(&args_.q_out, &data_.q_out);
    take(&args_.k_out, &data_.k_out);
    Check(rope_prepared_create(context_, &args_, &prepared_));
  }

  Split split_;
  rope_context* context_ = nullptr;
  rope_prepared* prepared_ = nullptr;
  rope_qk_data data_ = ROPE_INIT(rope_qk_data);
  rope_qk_args args_ = ROPE_INIT(rope_qk_args);
  rope_cos_sin rows_ = ROPE_INIT(rope_cos_sin);
  rope_status status_ = ROPE_OK;  // keeps the calls from being dropped
};

}  // namespace

const char* Names() { return "librope librope_rows librope_prepared"; }

std::unique_ptr<Contender> Make(const std::string& name, const peer_case& c) {
  return std::make_unique<Librope>(c, name == "librope_rows", name == "librope_prepared");
}

}  // namespace peers

// The name of the instruction set, for the head of the table.
extern "C" const char* librope_backend() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 128;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* context = nullptr;
  static char name[64] = "?";
  if (rope_context_create(&config, &context) == ROPE_OK) {
    std::snprintf(name, sizeof name, "%s", rope_context_backend(context));
    rope_context_destroy(context);
  }
  return name;
}
