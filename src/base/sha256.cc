#include "base/sha256.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace rope {
namespace {

constexpr size_t kBlock = 64;  // bytes

// The first 32 bits of the fractions of the cube roots of the first 64 primes (4.2.2).
constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

// Of the square roots of the first 8 primes (5.3.3).
constexpr State kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t Turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

void AddBlock(const char* block, State* state) {
  uint32_t schedule[64];
  for (int i = 0; i < 16; ++i) {
    schedule[i] = 0;
    for (int b = 0; b < 4; ++b) {
      schedule[i] = schedule[i] << 8 | static_cast<unsigned char>(block[4 * i + b]);
    }
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t x = schedule[i - 15], y = schedule[i - 2];
    schedule[i] = schedule[i - 16] + (Turned(x, 7) ^ Turned(x, 18) ^ x >> 3) + schedule[i - 7] +
                  (Turned(y, 17) ^ Turned(y, 19) ^ y >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = *state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t first = h + (Turned(e, 6) ^ Turned(e, 11) ^ Turned(e, 25)) +
                           ((e & f) ^ (~e & g)) + kRounds[i] + schedule[i];
    const uint32_t second =
        (Turned(a, 2) ^ Turned(a, 13) ^ Turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < added.size(); ++i) (*state)[i] += added[i];
}

}  // namespace

std::string Sha256(std::string_view text) {
  // What follows the last whole block: its rest, a bit, zeros, and the length in bits.
  std::string end(text.substr(text.size() / kBlock * kBlock));
  end += '\x80';
  end.resize((end.size() + 8 + kBlock - 1) / kBlock * kBlock - 8);
  const uint64_t bits = uint64_t{8} * text.size();
  for (int shift = 56; shift >= 0; shift -= 8) end += static_cast<char>(bits >> shift);

  State state = kStart;
  for (size_t at = 0; at + kBlock <= text.size(); at += kBlock) AddBlock(&text[at], &state);
  for (size_t at = 0; at < end.size(); at += kBlock) AddBlock(&end[at], &state);
  std::string digits;
  for (uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 15];
  }
  return digits;
}

}  // namespace rope
