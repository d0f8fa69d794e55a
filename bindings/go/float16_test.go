package rope

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestEvery16BitNumberComesBack(t *testing.T) {
	for i := range 1 << 16 {
		h, b := Float16(i), BFloat16(i)
		if x := h.Float32(); x != x {
			if i&0x7c00 != 0x7c00 || i&0x3ff == 0 || Float16FromFloat32(x)&0x7fff <= 0x7c00 {
				t.Fatalf("%#x is %v, and comes back as %#x", i, x, uint16(Float16FromFloat32(x)))
			}
		} else if (i&0x7fff == 0x7c00) != math.IsInf(float64(x), 0) || i&0x7c00 != 0x7c00 && float64(x) != toFloat(h) ||
			math.Signbit(float64(x)) != (i>>15 != 0) || Float16FromFloat32(x) != h {
			t.Fatalf("%#x is %v, and comes back as %#x", i, x, uint16(Float16FromFloat32(x)))
		}
		if x := b.Float32(); x != x {
			if i&0x7fff <= 0x7f80 || BFloat16FromFloat32(x)&0x7fff <= 0x7f80 {
				t.Fatalf("%#x is %v", i, x)
			}
		} else if math.Float32bits(x) != uint32(i)<<16 || BFloat16FromFloat32(x) != b {
			t.Fatalf("%#x is %v, and comes back as %#x", i, x, uint16(BFloat16FromFloat32(x)))
		}
	}
}

// nearest checks one rounding against the neighbours of the result; beyond is what infinity counts as.
func nearest[T Float16 | BFloat16](t *testing.T, f float32, got T, value func(T) float32, infinity T, beyond float64) {
	t.Helper()
	at := func(magnitude T) float64 {
		if magnitude == infinity {
			return beyond
		}
		return float64(value(magnitude))
	}
	x, magnitude := math.Abs(float64(f)), got&0x7fff
	if (got>>15 != 0) != math.Signbit(float64(f)) || magnitude > infinity {
		t.Fatalf("%v became %#x", f, got)
	}
	off := math.Abs(at(magnitude) - x)
	if math.IsInf(x, 1) {
		off = 0
	}
	for _, other := range []T{magnitude - 1, magnitude + 1} {
		if other > infinity || math.IsInf(x, 1) {
			continue
		}
		if o := math.Abs(at(other) - x); o < off && (magnitude != infinity || x < beyond) || o == off && magnitude&1 != 0 {
			t.Fatalf("%v became %#x (%v), and %#x (%v) is nearer or even", f, got, at(magnitude), other, at(other))
		}
	}
	if math.IsInf(x, 1) && magnitude != infinity {
		t.Fatalf("%v became %#x", f, got)
	}
}

func TestFloatsAreRoundedToNearestEven(t *testing.T) {
	check := func(f float32) {
		if f != f {
			if h, b := Float16FromFloat32(f), BFloat16FromFloat32(f); h.Float32() == h.Float32() || b.Float32() == b.Float32() {
				t.Fatalf("%#x is a NaN, and became %#x and %#x", math.Float32bits(f), uint16(h), uint16(b))
			}
			return
		}
		nearest(t, f, Float16FromFloat32(f), Float16.Float32, 0x7c00, 65536)
		nearest(t, f, BFloat16FromFloat32(f), BFloat16.Float32, 0x7f80, math.Ldexp(1, 128))
	}
	r := rand.New(rand.NewPCG(23, 24))
	for range 200000 {
		check(math.Float32frombits(r.Uint32()))
		check(float32(math.Ldexp(2*r.Float64()-1, r.IntN(44)-27))) // the range of halves
	}
	// Halfway points and their neighbours, of every exponent.
	for i := range uint32(1 << 16) {
		for _, half := range []uint32{i << 16, i<<16 | 0x8000, i<<16 | 0x1000, i<<16 | 0x3000} {
			for _, bits := range []uint32{half - 1, half, half + 1} {
				check(math.Float32frombits(bits))
			}
		}
	}
	if s := fmt.Sprint(BFloat16FromFloat32(1.5), Float16FromFloat32(-0.25), []BFloat16{0x7f80}); s != "1.5 -0.25 [+Inf]" {
		t.Error(s)
	}
}

// One product of f16, and a multiply-add with one rounding; of no other type.
func TestNativeRounding(t *testing.T) {
	const dim, position = 64, 1000
	c := mustNew(t, Config{HeadDim: dim, Theta: 1e4, Pairing: PairingHalves, Rounding: RoundingNative})
	r := rand.New(rand.NewPCG(5, 9))
	q := make([]Float16, dim)
	for i := range q {
		q[i] = Float16FromFloat32(float32(r.NormFloat64()))
	}
	in := slices.Clone(q)
	if err := ApplyTHD(c, []int64{position}, q, 1, nil, 0); err != nil {
		t.Fatal(err)
	}
	frequencies, err := c.InvFreq(0)
	if err != nil {
		t.Fatal(err)
	}
	times := func(a, b Float16) Float16 { return Float16FromFloat32(a.Float32() * b.Float32()) }
	for i := range dim / 2 {
		angle := float64(float32(position) * float32(frequencies[i]))
		cos, sin := Float16FromFloat32(float32(math.Cos(angle))), Float16FromFloat32(float32(math.Sin(angle)))
		x0, x1 := in[i], in[i+dim/2]
		for n, want := range []float64{
			float64(x0.Float32())*float64(cos.Float32()) - float64(times(x1, sin).Float32()),
			float64(x1.Float32())*float64(cos.Float32()) + float64(times(x0, sin).Float32()),
		} {
			if got := q[i+n*dim/2]; got != Float16FromFloat32(float32(want)) {
				t.Errorf("channel %d: %v, not %v", i+n*dim/2, got, want)
			}
		}
	}
	refused(t, ApplyTHD(c, []int64{position}, make([]float32, dim), 1, nil, 0), "DTypeF16")
}
