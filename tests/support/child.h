// A child process that must end by itself: after fork it has the memory of this one, but none of
// its other threads.
#ifndef LIBROPE_TESTS_SUPPORT_CHILD_H_
#define LIBROPE_TESTS_SUPPORT_CHILD_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rope::testing {

// Runs `body`, which ends the process, in a child, and expects status 0 within 20 s.
template <class Body>
void ExpectChildEnds(Body body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // instead of for ever
    body();
    _exit(99);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_CHILD_H_
