// The plain C loop of bench/baseline.c, built for any CPU (c) and for this one (c_native).
#include "baseline.h"
#include "contender.h"
#include "split.h"

namespace peers {
namespace {

class PlainC : public Contender {
 public:
  PlainC(const peer_case& c, const baseline& builds)
      : c_(c), table_{c.table_cos, c.table_sin, c.head_dim}, split_(c.threads) {
    const int dtype = c.dtype - 1;
    rotate_ = (c.pairing == PEER_HALVES ? builds.halves : builds.interleaved)[dtype];
    copy_ = (c.pairing == PEER_HALVES ? builds.halves_copy : builds.interleaved_copy)[dtype];
    if (rotate_ == nullptr) throw Unable("the compiler knows no such type");
  }

  void Run() override {
    split_.Run(c_.tokens, [this](int64_t first, int64_t count) {
      Part(c_.q, c_.q_out, c_.q_heads, first, count);
      Part(c_.k, c_.k_out, c_.k_heads, first, count);
    });
  }

 private:
  void Part(void* x, void* y, int heads, int64_t first, int64_t count) const {
    const size_t offset =
        static_cast<size_t>(first) * static_cast<size_t>(heads * c_.head_dim) * ElementSize(c_);
    char* const from = static_cast<char*>(x) + offset;
    if (x == y) {
      rotate_(&table_, count, c_.positions + first, from, heads);
    } else {
      copy_(&table_, count, c_.positions + first, from, static_cast<char*>(y) + offset, heads);
    }
  }

  const peer_case c_;
  const baseline_table table_;
  const Split split_;
  baseline_rotate rotate_;
  baseline_copy copy_;
};

}  // namespace

const char* Names() { return "c c_native"; }

std::unique_ptr<Contender> Make(const std::string& name, const peer_case& c) {
  return std::make_unique<PlainC>(c, name == "c_native" ? baseline_native : baseline_generic);
}

}  // namespace peers
