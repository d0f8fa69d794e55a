package rope_test

// Random material for the fuzzer: numbers, configurations and fenced slices. Most
// of it is right, because a call that is refused early tests little; the rest is wrong in one place.

import (
	"math"
	"math/rand/v2"

	rope "github.com/librope/librope/bindings/go"
)

// source draws numbers from the bytes of a fuzz input, then from a generator.
type source struct {
	data []byte
	r    *rand.Rand
}

func newSource(seed uint64, data []byte) *source {
	return &source{data, rand.New(rand.NewPCG(seed, 0x0909))}
}

// below returns 0 to n - 1.
func (s *source) below(n int) int {
	if len(s.data) > 0 && n <= 256 {
		b := s.data[0]
		s.data = s.data[1:]
		return int(b) % n
	}
	return s.r.IntN(n)
}

func (s *source) oneIn(n int) bool { return s.below(n) == 0 }

func pick[T any](s *source, from ...T) T { return from[s.below(len(from))] }

// hostile is an integer at an edge.
func (s *source) hostile() int {
	return pick(s, 0, 1, -1, 2, 3, 5, 127, 255, 256, 513, 1<<16, 1<<20, 1<<31-1, 1<<31, 1<<32, 1<<32+1, -1<<31, -1<<31-1,
		1<<40, 1<<62, math.MaxInt, math.MinInt, math.MaxInt/2+1)
}

// number is n, or now and then a hostile one.
func (s *source) number(n int) int {
	if s.oneIn(60) {
		return s.hostile()
	}
	return n
}

// length is n, or one in odds times another one, as by one of these differences.
func (s *source) length(odds, n int, differences ...int) int {
	if s.oneIn(odds) {
		return max(0, n+pick(s, append(differences, -1, 1, -n)...))
	}
	return n
}

func (s *source) float() float64 {
	if s.oneIn(8) {
		return pick(s, 0, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e308, -1e308, 5e-324, 1e-30)
	}
	return math.Ldexp(s.r.Float64(), s.below(40)-8)
}

func (s *source) position() int64 {
	switch s.below(4) {
	case 0:
		return s.r.Int64() - s.r.Int64()
	case 1:
		return int64(s.hostile())
	}
	return int64(s.below(200000))
}

// table has n entries, or now and then others.
func (s *source) table(n int) []float64 {
	if s.oneIn(20) {
		n = pick(s, 0, 1, n-1, n+1, 2*n, 513)
	}
	table := make([]float64, max(0, n))
	for i := range table {
		table[i] = 1 + s.r.Float64()
		if s.oneIn(2000) {
			table[i] = s.float()
		}
	}
	return table
}

func (s *source) config() rope.Config {
	dim := 2 * (1 + s.below(40))
	if s.oneIn(2) {
		dim = pick(s, 2, 32, 64, 96, 128, 192, 256, 512, 1022, 1024)
	}
	c := rope.Config{
		HeadDim:  dim,
		Theta:    pick(s, 10000, 500000, 1e6, 2.0),
		Pairing:  pick(s, rope.PairingHalves, rope.PairingInterleaved, rope.PairingInterleavedToHalves),
		Angle:    pick(s, rope.AngleFloat32, rope.AngleFloat32, rope.AngleExact, rope.AngleGGML, rope.AngleDivide),
		Rounding: pick(s, rope.RoundingFloat32, rope.RoundingFloat32, rope.RoundingEager, rope.RoundingCosSin),
	}
	span := dim
	if s.oneIn(3) && dim >= 4 {
		span = 2 * (1 + s.below(dim/2))
		c.RotaryDim = span
		if s.oneIn(2) {
			c.RotaryOffset = s.below(dim - span + 1)
		}
	}
	s.scale(&c, span/2)
	if s.oneIn(3) {
		s.axes(&c, span/2)
	}
	if s.oneIn(6) {
		c.FreqFactors = s.table(span / 2)
	}
	if s.oneIn(10) {
		c.InvFreq, c.Theta, c.Scaling = s.table(span/2), 0, rope.ScalingDefault
	}
	if s.oneIn(8) {
		c.InvFreqDType = pick(s, rope.DTypeF16, rope.DTypeBF16, rope.DTypeF32, rope.DType(9))
	}
	if s.oneIn(6) {
		c.AttentionFactor = s.float()
	}
	if s.oneIn(8) {
		s.frequency(&c, span/2)
	}
	if s.oneIn(4) {
		s.spoil(&c)
	}
	return c
}

func (s *source) scale(c *rope.Config, pairs int) {
	switch s.below(10) {
	case 0:
		c.Scaling, c.Factor = rope.ScalingLinear, 8
	case 1:
		c.Scaling, c.Factor, c.MaxPositionEmbeddings, c.SeqLen = rope.ScalingDynamic, 4, 2048, int64(s.below(9000))
	case 2:
		c.Scaling, c.Factor, c.OriginalMaxPositionEmbeddings = rope.ScalingYarn, 4, 4096
		c.MScale, c.MScaleAllDim, c.YarnNoTruncate = float64(s.below(2)), float64(s.below(2)), s.oneIn(2)
	case 3:
		c.Scaling, c.ShortFactor, c.LongFactor = rope.ScalingLongRope, s.table(pairs), s.table(pairs)
		c.OriginalMaxPositionEmbeddings, c.MaxPositionEmbeddings, c.SeqLen = 4096, 131072, int64(1+s.below(9000))
	case 4:
		c.Scaling, c.Factor, c.LowFreqFactor, c.HighFreqFactor = rope.ScalingLlama3, 8, 1, 4
		c.OriginalMaxPositionEmbeddings = 8192
	case 5:
		c.Scaling = rope.ScalingProportional
	case 6:
		if s.oneIn(3) {
			c.Scaling = rope.ScalingNope
		}
	case 7:
		c.Scaling, c.Factor, c.MaxPositionEmbeddings, c.SeqLen = rope.ScalingDynamicSteps, 1, 2048, int64(1+s.below(9000))
	}
}

func (s *source) axes(c *rope.Config, pairs int) {
	c.Axes = 1 + s.below(8)
	if s.oneIn(2) {
		c.PairAxis = make([]uint8, max(0, s.number(pairs)&1023))
		for i := range c.PairAxis {
			c.PairAxis[i] = uint8(s.below(c.Axes))
		}
		return
	}
	if s.oneIn(4) {
		c.Pairing = rope.PairingHalvesPerAxis
	}
	c.Axes = 1 + c.Axes%4
	c.MRopeSection = make([]int, c.Axes)
	for rest, i := pairs, 0; i < c.Axes; i++ {
		n := s.below(rest + 1)
		if i == c.Axes-1 {
			n = rest
		}
		c.MRopeSection[i], rest = n, rest-n
	}
	c.MRopeInterleaved = c.Axes <= 3 && s.oneIn(2)
	if s.oneIn(8) {
		c.Axes = 5 + s.below(4) // more than sections can describe
	}
}

// frequency gives each axis, and mostly each of some heads, frequencies of its own, in place of all other ones.
func (s *source) frequency(c *rope.Config, pairs int) {
	heads, axes := s.below(4), s.below(3)
	*c = rope.Config{HeadDim: c.HeadDim, RotaryDim: c.RotaryDim, RotaryOffset: c.RotaryOffset, Pairing: c.Pairing,
		Angle: c.Angle, Rounding: c.Rounding, Axes: axes, FreqHeads: heads,
		Frequency: s.table(max(1, heads) * max(1, axes) * pairs)}
}

// spoil changes one field.
func (s *source) spoil(c *rope.Config) {
	changes := []func(){
		func() { c.HeadDim = s.hostile() }, func() { c.RotaryDim = s.hostile() },
		func() { c.RotaryOffset = s.hostile() }, func() { c.Theta = s.float() },
		func() { c.Pairing = rope.Pairing(s.hostile()) }, func() { c.Pairing = rope.PairingHalvesPerAxis },
		func() { c.Angle = rope.Angle(s.hostile()) }, func() { c.Rounding = rope.Rounding(s.hostile()) },
		func() { c.Scaling = rope.Scaling(s.below(10)) }, func() { c.Factor = s.float() },
		func() { c.AttentionFactor = s.float() }, func() { c.MaxPositionEmbeddings = s.position() },
		func() { c.OriginalMaxPositionEmbeddings = s.position() }, func() { c.SeqLen = s.position() },
		func() { c.BetaFast, c.BetaSlow = s.float(), s.float() }, func() { c.MScale = s.float() },
		func() { c.LowFreqFactor, c.HighFreqFactor = s.float(), s.float() },
		func() { c.Axes = s.hostile() }, func() { c.Axes = s.below(10) },
		func() { c.MRopeSection = []int{s.hostile(), s.hostile()} },
		func() { c.MRopeSection = make([]int, s.below(6)) }, func() { c.MRopeInterleaved = true },
		func() { c.IDsPerAxis = true }, func() { c.FreqHeads = s.hostile() },
		func() { c.Frequency = s.table(s.below(600)) },
		func() { c.ShortFactor = s.table(7) }, func() { c.LongFactor = s.table(c.HeadDim & 1023) },
		func() { c.FreqFactors = s.table(s.below(600)) }, func() { c.InvFreq = s.table(s.below(600)) },
		func() { c.PairAxis = make([]uint8, s.below(600)) },
		func() { c.Device.Index = s.hostile() }, func() { c.Device.CUDA = true },
	}
	changes[s.below(len(changes))]()
}

// item is what the slices of calls hold.
type item interface {
	rope.OutputElement | int32 | int64
}

// region is a slice between fences of its own memory, what all of it held, and what may change.
type region[T item] struct {
	inside        []T
	whole, before []T
	first         int
	mask          []bool
}

// guarded is a region of any type.
type guarded interface {
	// differs finds an element that has changed though it must not: its index in the slice, outside of
	// the slice for a fence. accepted: what the mask allows may change.
	differs(accepted bool) (index int, found bool)
}

// fence makes a region of n elements. Without room around it, the sanitizer's own fences are next to
// it.
func fence[T item](s *source, n int, value func() T) *region[T] {
	room := pick(s, 0, 3, 16, 16, 16, 1100)
	r := &region[T]{whole: make([]T, n+2*room), first: room, mask: make([]bool, n)}
	for i := range r.whole {
		r.whole[i] = value()
	}
	r.before = append([]T(nil), r.whole...)
	r.inside = r.whole[room : room+n : room+n]
	return r
}

func (r *region[T]) allow(first, n int) {
	for i := range n {
		r.mask[first+i] = true
	}
}

func (r *region[T]) differs(accepted bool) (int, bool) {
	for i, x := range r.whole {
		if x == r.before[i] || x != x && r.before[i] != r.before[i] { // NaN is a value like any other
			continue
		}
		at := i - r.first
		if !accepted || at < 0 || at >= len(r.mask) || !r.mask[at] {
			return at, true
		}
	}
	return 0, false
}
