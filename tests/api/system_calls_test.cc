// "Takes no lock, starts no thread": the first apply of a process makes no system call at all, not
// even in unlucky moments. A child in the kernel's strict mode, where every call but read, write
// and exit ends it, rotates tensors below and above the size from which outputs are written around
// the cache. And what may become one is not called: the C++ library's lock for statics, sysconf.
#include <cxxabi.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "support/handles.h"

namespace {
int questions = 0, locks = 0;
}  // namespace

// These stand before the system's for the whole program.
extern "C" long sysconf(int name) {
  ++questions;
  return reinterpret_cast<decltype(&sysconf)>(dlsym(RTLD_NEXT, "sysconf"))(name);
}
namespace __cxxabiv1 {
extern "C" int __cxa_guard_acquire(__guard* guard) {
  ++locks;
  return reinterpret_cast<decltype(&__cxa_guard_acquire)>(dlsym(RTLD_NEXT, "__cxa_guard_acquire"))(
      guard);
}
}  // namespace __cxxabiv1

namespace rope::testing {
namespace {

// Before the other test: only the first call of a process would ask.
TEST(SystemCalls, TheFirstApplyAsksAndLocksNothing) {
  constexpr int kDim = 128, kTokens = 4000;
  const int locked_before = locks;
  const Context context = Create(Config(kDim));
  std::vector<float> in(size_t{kTokens} * kDim, 1.0f), out(in.size()), row(kDim);
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(in.data(), ROPE_DTYPE_F32, 1);
  args.q_out = Tensor(out.data(), ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, row.data());
  const int asked = questions, locked = locks;
  const rope_status applied = rope_apply_qk(context.get(), &args);
  const rope_status filled =
      rope_cos_sin_fill(context.get(), 1, 1, &args.positions, &rows, nullptr);
  EXPECT_EQ(questions, asked);
  EXPECT_EQ(locks, locked);
  EXPECT_GT(locked, locked_before) << "creating asks once for the caches: it is not heard here";
  EXPECT_EQ(applied, ROPE_OK);
  EXPECT_EQ(filled, ROPE_OK);
}

TEST(SystemCalls, ApplyMakesNone) {
  constexpr int kDim = 128, kHeads = 8, kTokens = 20000;  // 82 MB of f32
  const Context context = Create(Config(kDim));
  std::vector<float> in(size_t{kTokens} * kHeads * kDim, 1.0f), out(in.size(), 0.0f);
  std::vector<float> row(kDim);
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(in.data(), ROPE_DTYPE_F32, kHeads);
  args.q_out = Tensor(out.data(), ROPE_DTYPE_F32, kHeads);
  args.positions = Offset(0);
  const int64_t position = 5;
  const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, row.data());
  const Prepared prepared = Prepare(context, args);
  const rope_qk_data data = DataOf(args);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(77);
    int bad = rope_apply_thd(context.get(), ROPE_DTYPE_F32, 1, &position, in.data(), 1, nullptr, 0);
    bad |= rope_apply_qk(context.get(), &args);
    bad |= rope_prepared_apply(prepared.get(), &data);
    bad |= rope_cos_sin_fill(context.get(), 1, 1, &args.positions, &rows, nullptr);
    syscall(SYS_exit, bad != 0);  // the only way out that the mode allows
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "this system has no seccomp: Debian's own kernel, and CI, have it";
  }
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace rope::testing
