package rope

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// inFloat32 are what ApplyQK makes of keys, which codes stand for.
func inFloat32(t *testing.T, c *Context, k []float32, heads int, step Step) []float32 {
	t.Helper()
	turned := slices.Clone(k)
	step.Slots = nil
	if err := ApplyQK(c, Tensor[float32]{}, BSHD(turned, heads), step); err != nil {
		t.Fatal(err)
	}
	return turned
}

// int8Of is the code of x by the formula of rope.h.
func int8Of(x, scale float32) int8 {
	return int8(max(-128, min(127, math.RoundToEven(float64(x*(1/scale))))))
}

func TestCodesStandForResultsInFloat32(t *testing.T) {
	const heads, dim, group = 2, 32, 16
	c := mustNew(t, plain(dim))
	k := make([]float32, heads*dim)
	for i := range k {
		k[i] = (float32(i) - 20.3) * 0.37
	}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(3), Slots: MappedSlots([]int32{1})}
	turned := inFloat32(t, c, k, heads, step)
	none := Tensor[float32]{}
	appendTo := func(cache KVCache[int8, int8], k Tensor[float32], v Tensor[float32]) {
		t.Helper()
		cache.Pages, cache.PageSize = 2, 1
		if err := Append(c, none, k, v, cache, step); err != nil {
			t.Fatal(err)
		}
	}
	untouched := slices.Repeat([]int8{99}, heads*dim)

	// One scale that is given.
	codes := slices.Repeat(untouched, 2)
	appendTo(KVCache[int8, int8]{K: NHD(codes, heads), KScale: &Scale{Value: 0.25}}, BSHD(k, heads), none)
	for i, x := range turned {
		if codes[heads*dim+i] != int8Of(x, 0.25) {
			t.Fatalf("%v is %d", x, codes[heads*dim+i])
		}
	}
	if !slices.Equal(codes[:heads*dim], untouched) {
		t.Error("the slot before is written")
	}

	// Computed ones of groups, of keys that turn and values that do not; pages of one slot have one order.
	keys, values := slices.Repeat(untouched, 2), slices.Repeat(untouched, 2)
	kScales, vScales := slices.Repeat([]float32{-1}, 2*heads*dim/group), make([]uint8, 2*heads)
	appendTo(KVCache[int8, int8]{K: HND(keys, heads), KScale: &Scale{Data: kScales, Computed: true, Group: group},
		V: NHD(values, heads), VScale: &Scale{E8M0: vScales, Computed: true, PowerOfTwo: true}},
		BSHD(k, heads), BSHD(k, heads))
	largest := func(group []float32) (most float32) {
		for _, x := range group {
			most = max(most, x, -x)
		}
		return most
	}
	if !slices.Equal(kScales[:heads*dim/group], []float32{-1, -1, -1, -1}) || vScales[0]|vScales[1] != 0 {
		t.Error("scales of the slot before are written")
	}
	for i, x := range turned {
		scale := largest(turned[i/group*group:][:group]) / 127
		if got := kScales[(heads*dim+i)/group]; got != scale || keys[heads*dim+i] != int8Of(x, scale) {
			t.Fatalf("%v is %d with scale %v, not %v", x, keys[heads*dim+i], got, scale)
		}
		power := math.Exp2(math.Ceil(math.Log2(float64(largest(k[i/dim*dim:][:dim]) / 127))))
		if got := math.Exp2(float64(vScales[heads+i/dim]) - 127); got != power ||
			values[heads*dim+i] != int8Of(k[i], float32(power)) {
			t.Fatalf("%v is %d with scale %v, not %v", k[i], values[heads*dim+i], got, power)
		}
	}

	// Scales of an array that are given are read and stay.
	given, again := slices.Clone(kScales), slices.Repeat(untouched, 2)
	appendTo(KVCache[int8, int8]{K: HND(again, heads), KScale: &Scale{Data: given, Group: group}}, BSHD(k, heads), none)
	if !slices.Equal(again, keys) || !slices.Equal(given, kScales) {
		t.Error("given scales have other codes than the same ones computed")
	}
}

// Codes in floating point, and memory of another type that is rounded to once.
func TestKnownCodes(t *testing.T) {
	c := mustNew(t, Config{HeadDim: 8, Scaling: ScalingNope})
	x := []float32{float32(math.NaN()), 1e9, 1, -1, 0.5, 0, 1.0625, -448}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: MappedSlots([]int32{0})}
	e4m3, e5m2 := make([]F8E4M3, 8), make([]F8E5M2, 8)
	cache := KVCache[F8E4M3, F8E5M2]{K: NHD(e4m3, 1), V: NHD(e5m2, 1), KScale: &Scale{Value: 1},
		VScale: &Scale{Value: 1}, Pages: 1, PageSize: 1}
	if err := Append(c, Tensor[float32]{}, BSHD(x, 1), BSHD(x, 1), cache, step); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e4m3, []F8E4M3{0x7f, 0x7e, 0x38, 0xb8, 0x30, 0, 0x38, 0xfe}) { // 1.0625 is a tie
		t.Errorf("%#x", e4m3)
	}
	if !slices.Equal(e5m2, []F8E5M2{0x7f, 0x7b, 0x3c, 0xbc, 0x38, 0, 0x3c, 0xdf}) {
		t.Errorf("%#x", e5m2)
	}

	turning := mustNew(t, plain(8))
	k := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	step.Positions = Offset(5)
	turned := inFloat32(t, turning, k, 1, step)
	stored := make([]BFloat16, 8)
	narrow := KVCache[BFloat16, float32]{K: NHD(stored, 1), Pages: 1, PageSize: 1}
	if err := Append(turning, Tensor[float32]{}, BSHD(k, 1), Tensor[float32]{}, narrow, step); err != nil {
		t.Fatal(err)
	}
	for i := range turned {
		if stored[i] != BFloat16FromFloat32(turned[i]) {
			t.Errorf("%v is %v", turned[i], stored[i].Float32())
		}
	}
}

func TestScalesThatDoNotFit(t *testing.T) {
	const heads, dim = 2, 32
	c := mustNew(t, plain(dim))
	k, codes := BSHD(make([]float32, heads*dim), heads), slices.Repeat([]int8{99}, 2*heads*dim)
	before := slices.Clone(codes)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(3), Slots: MappedSlots([]int32{1})}
	for words, scale := range map[string]*Scale{
		"KVCache.KScale (nil) is required":                     nil,
		"KVCache.KScale.Value (0) and Data (nil): exactly one": {},
		"KVCache.KScale.Value (-1) must be":                    {Value: -1},
		"KVCache.KScale.Value (1) must be 0":                   {Value: 1, Data: make([]float32, 4)},
		"KVCache.KScale.Data and E8M0: one of them":            {Data: make([]float32, 4), E8M0: make([]uint8, 4)},
		"KVCache.KScale.Data has 3 scales, and must have":      {Data: make([]float32, 3), Computed: true},
		"[pages, page_size, heads, groups] = [2, 1, 2, 4]":     {E8M0: make([]uint8, 15), Group: 8, Computed: true},
		"KVCache.KScale.Group (7) must divide the channels":    {Data: make([]float32, 4), Group: 7},
		"KVCache.KScale.Group (-1) must divide the channels":   {Value: 1, Group: -1},
		"KVCache.KScale.PowerOfTwo (0) must be 1":              {E8M0: make([]uint8, 4), Computed: true},
		"KVCache.KScale.PowerOfTwo (1) must be 0 where scales": {Data: make([]float32, 4), PowerOfTwo: true},
	} {
		cache := KVCache[int8, int8]{K: NHD(codes, heads), KScale: scale, Pages: 2, PageSize: 1}
		refused(t, Append(c, Tensor[float32]{}, k, Tensor[float32]{}, cache, step), words)
	}
	for words, memory := range map[string]Tensor[int8]{
		"[pages, page_size, heads, groups] = [1, 2, 2, 4]": NHD(codes, heads),
		"[pages, heads, page_size, groups] = [1, 2, 2, 4]": HND(codes, heads),
	} {
		short := KVCache[int8, int8]{K: memory, KScale: &Scale{Data: make([]float32, 15), Group: 8}, Pages: 1, PageSize: 2}
		refused(t, Append(c, Tensor[float32]{}, k, Tensor[float32]{}, short, step), words)
		short.KScale.Strides = &Strides{Batch: 16, Token: 8, Head: 4}
		refused(t, Append(c, Tensor[float32]{}, k, Tensor[float32]{}, short, step), "[pages, page_size, heads, groups] = "+
			"[1, 2, 2, 4], by strides {Batch:16 Token:8 Head:4}")
	}
	if !slices.Equal(codes, before) {
		t.Error("a call that was refused has written")
	}
	one := &Scale{Value: 1}
	floats := KVCache[float32, float32]{K: NHD(make([]float32, 2*heads*dim), heads), KScale: one, Pages: 2, PageSize: 1}
	refused(t, Append(c, Tensor[float32]{}, k, Tensor[float32]{}, floats, step), "KVCache.KScale must be nil with DType")
	floats.K.Data = nil
	_, err := PrepareAppend(c, Tensor[float32]{}, BSHD[float32](nil, heads), Tensor[float32]{}, floats, step)
	refused(t, err, "KVCache.KScale and KVCache.VScale must be nil")
	if !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}
