package rope

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// testData reads the vectors that all languages share: tests/data of the repository.
func testData(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "tests", "data", name))
	if err != nil {
		t.Fatalf("%v; these tests run in the repository", err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

func mustNew(t testing.TB, cfg Config) *Context {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func plain(headDim int) Config {
	return Config{HeadDim: headDim, Theta: 10000, Pairing: PairingHalves}
}

// The element types with what tests need of them, written without the library.
func toFloat[T Element](x T) float64 {
	switch v := any(x).(type) {
	case Float16:
		sign, exponent, fraction := 1.0, int(v>>10&31), float64(v&1023)
		if v>>15 != 0 {
			sign = -1
		}
		if exponent == 0 {
			return sign * math.Ldexp(fraction, -24)
		}
		return sign * math.Ldexp(1024+fraction, exponent-25)
	case BFloat16:
		return float64(math.Float32frombits(uint32(v) << 16))
	}
	return float64(any(x).(float32))
}

func fromFloat[T Element](x float64) T {
	var zero T
	switch any(zero).(type) {
	case Float16:
		bits := uint16(0)
		if x < 0 {
			bits, x = 1<<15, -x
		}
		// Test values are below 2: round to the spacing of their binade.
		_, exponent := math.Frexp(x)
		exponent = max(exponent, -13)
		fraction := uint16(math.RoundToEven(math.Ldexp(x, 11-exponent)))
		return any(Float16(bits | uint16(max(0, exponent+14-1)<<10) + fraction)).(T)
	case BFloat16:
		b := math.Float32bits(float32(x))
		return any(BFloat16((b + 0x7fff + b>>16&1) >> 16)).(T)
	}
	return any(float32(x)).(T)
}

// halfULP is half a unit in the last place of 1.
func halfULP[T Element]() float64 {
	switch dtypeOf[T]() {
	case DTypeF16:
		return 1.0 / 2048
	case DTypeBF16:
		return 1.0 / 256
	}
	return 1.0 / (1 << 24)
}

func random[T Element](r *rand.Rand, n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = fromFloat[T](2*r.Float64() - 1)
	}
	return x
}

// rotateHead turns channels [offset, offset + 2 * len(angles)) of x in float64, cos and sin times a.
// It returns the result and, per channel, how far rounding may be off.
func rotateHead[T Element](x []T, offset int, pairing Pairing, angles []float64, a float64) (y, bound []float64) {
	y, bound = make([]float64, len(x)), make([]float64, len(x))
	for i := range x {
		y[i] = toFloat(x[i])
	}
	n := len(angles)
	for i, angle := range angles {
		halves, adjacent := [2]int{offset + i, offset + n + i}, [2]int{offset + 2*i, offset + 2*i + 1}
		from, to := halves, halves
		if pairing != PairingHalves {
			from = adjacent
		}
		if pairing == PairingInterleaved {
			to = adjacent
		}
		x0, x1 := toFloat(x[from[0]]), toFloat(x[from[1]])
		cos, sin := math.Cos(angle)*a, math.Sin(angle)*a
		y[to[0]], y[to[1]] = x0*cos-x1*sin, x1*cos+x0*sin
		for _, channel := range to {
			// cos and sin to 1.5e-7, the products in float32, then one rounding to the type.
			f := (1.5e-7 + 4.0/(1<<24)) * a * (math.Abs(x0) + math.Abs(x1))
			bound[channel] = f + halfULP[T]()*(math.Abs(y[channel])+f) + 1e-40
		}
	}
	return y, bound
}

// anglesAt are the angles of one position as AngleFloat32 defines them: a product rounded to float32.
func anglesAt(t testing.TB, c *Context, position int64) []float64 {
	t.Helper()
	angles, err := c.InvFreq(0)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range angles {
		angles[i] = float64(float32(position) * float32(f))
	}
	return angles
}
