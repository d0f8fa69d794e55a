package extent

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// sizes are numbers at which products of 32 and 64 bits wrap, and small ones.
var sizes = []int{-1, 0, 1, 2, 3, 64, 1<<10 - 1, 1 << 15, 1 << 16, 1<<20 - 1, 1 << 20, 1 << 21, 3 << 20, 1 << 30,
	math.MaxInt32, math.MaxInt/2 + 1, math.MaxInt - 1, math.MaxInt, math.MinInt}

func product(factors ...int) *big.Int {
	p := big.NewInt(1)
	for _, f := range factors {
		p.Mul(p, big.NewInt(int64(f)))
	}
	return p
}

// What wrapped where int has 32 bits: 65536 * 1024 * 64 is 2^32, which looked like an empty slice.
func TestFills(t *testing.T) {
	if Fills(0, 65536, 1024, 64) || Fills(0, 1<<16, 1<<16, 1) || Fills(0, 1<<19, 1<<13, 1) {
		t.Error("an empty slice holds no 2^32 elements")
	}
	for _, a := range sizes {
		for _, b := range sizes {
			for _, c := range sizes {
				exact := product(a, b, c)
				valid := a >= 0 && b >= 0 && c >= 0
				for _, n := range append([]int{a * b * c, int(uint32(a * b * c))}, sizes...) {
					want := valid && n >= 0 && exact.Cmp(big.NewInt(int64(n))) == 0
					if Fills(n, a, b, c) != want {
						t.Fatalf("Fills(%d, %d, %d, %d) is %v", n, a, b, c, !want)
					}
				}
				got, ok := Product(a, b, c)
				if want := valid && exact.IsInt64(); ok != want || ok && got != exact.Uint64() {
					t.Fatalf("Product(%d, %d, %d) is %d, %v", a, b, c, got, ok)
				}
			}
		}
	}
}

func TestVolume(t *testing.T) {
	for _, a := range sizes {
		for _, b := range sizes {
			for _, c := range sizes {
				for _, d := range sizes {
					want, fits := Product(a, b, c, d)
					if got, ok := Volume(a, b, c, d); ok != fits || ok && got != want {
						t.Fatalf("Volume(%d, %d, %d, %d) is %d, %v", a, b, c, d, got, ok)
					}
				}
			}
		}
	}
}

func TestReaches(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func() int { return sizes[r.IntN(len(sizes))] }
	accepted := 0
	for range 200000 {
		n, width := max(0, pick()), max(0, pick())
		var counts [3]uint64
		var strides [3]int
		negative := false
		last := big.NewInt(int64(width))
		for i := range counts {
			counts[i] = uint64(max(1, pick()))
			if r.IntN(2) == 0 {
				counts[i] = 1 + r.Uint64N(3)
			}
			if strides[i] = pick(); r.IntN(2) == 0 {
				strides[i] = r.IntN(100)
			}
			negative = negative || strides[i] < 0
			step := new(big.Int).SetUint64(counts[i] - 1)
			last.Add(last, step.Mul(step, big.NewInt(int64(strides[i]))))
		}
		want := !negative && last.Cmp(big.NewInt(int64(n))) <= 0
		if want {
			accepted++
		}
		if Reaches(n, width, counts, strides) != want {
			t.Fatalf("Reaches(%d, %d, %d, %d) is %v", n, width, counts, strides, !want)
		}
	}
	if accepted < 1000 {
		t.Errorf("only %d cases lie inside", accepted)
	}
}
