// Small calls of every kind under watch: stores_test.py runs this program in valgrind, for each
// instruction set. Elsewhere it makes the calls, and prints nothing.
#include <cstdio>
#include <cstring>

#include "stores/work.h"

using namespace rope::testing::stores;

int main(int argc, char** argv) {
  constexpr struct {
    const char* name;
    void (*watch)();
  } kGroups[] = {{"rotations", &WatchRotations},
                 {"appends", &WatchAppends},
                 {"moves", &WatchMoves},
                 {"gradients", &WatchGradients},
                 {"mla_rows", &WatchMlaRows}};
  for (const auto& group : kGroups) {
    if (argc == 1 || std::strcmp(argv[1], group.name) == 0) group.watch();
  }
  return 0;
}
