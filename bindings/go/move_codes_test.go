package rope

// Moves of caches in 8 bits, against the definition: codes times their scales turn in float32, and are coded
// again; what does not turn keeps its codes and scales.

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// codesIn8 is a cache of int8 with computed scales for each head, and what it stands for.
type codesIn8 struct {
	k, v             []int8
	kScales, vScales []float32
	heads, dim       int
	pages, pageSize  int
}

func randomCodes(r *rand.Rand, pages, pageSize, heads, dim int) codesIn8 {
	c := codesIn8{heads: heads, dim: dim, pages: pages, pageSize: pageSize}
	for range pages * pageSize * heads {
		c.kScales = append(c.kScales, 0.01+r.Float32())
		c.vScales = append(c.vScales, 0.01+r.Float32())
		for range dim {
			c.k = append(c.k, int8(r.IntN(255)-127))
			c.v = append(c.v, int8(r.IntN(255)-127))
		}
	}
	return c
}

func (c codesIn8) clone() codesIn8 {
	c.k, c.v = slices.Clone(c.k), slices.Clone(c.v)
	c.kScales, c.vScales = slices.Clone(c.kScales), slices.Clone(c.vScales)
	return c
}

func (c codesIn8) cache() KVCache[int8, int8] {
	return KVCache[int8, int8]{K: NHD(c.k, c.heads), V: NHD(c.v, c.heads),
		KScale: &Scale{Data: c.kScales, Computed: true}, VScale: &Scale{Data: c.vScales, Computed: true},
		Pages: c.pages, PageSize: c.pageSize}
}

// values are those of the codes of one slot.
func (c codesIn8) values(codes []int8, scales []float32, slot int64) (x []float32) {
	for h := range c.heads {
		head := int(slot)*c.heads + h
		for _, code := range codes[head*c.dim:][:c.dim] {
			x = append(x, float32(code)*scales[head])
		}
	}
	return x
}

// store codes numbers in a slot of keys by the formula of rope.h.
func (c codesIn8) store(x []float32, slot int64) {
	for h := range c.heads {
		head, most := int(slot)*c.heads+h, float32(0)
		for _, x := range x[h*c.dim:][:c.dim] {
			most = max(most, x, -x)
		}
		c.kScales[head] = most / 127
		for i, x := range x[h*c.dim:][:c.dim] {
			c.k[head*c.dim+i] = int8Of(x, most/127)
		}
	}
}

func TestMovesInEightBits(t *testing.T) {
	const dim, heads, pages, pageSize, tokens = 32, 2, 6, 4, 5
	const row, half = heads * dim, pages * pageSize / 2
	c, nope := mustNew(t, plain(dim)), mustNew(t, Config{HeadDim: dim, Scaling: ScalingNope})
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 100 {
		codes := randomCodes(r, pages, pageSize, heads, dim)
		want := codes.clone()
		var from, to, before, after []int64
		for _, slot := range r.Perm(half)[:tokens] {
			from, to = append(from, int64(slot)), append(to, int64(half+slot))
			before = append(before, r.Int64N(5000))
			after = append(after, r.Int64N(5000))
		}
		after[0] = before[0] // which does not turn
		was := TokenIDs(before)
		step := Step{Batch: 1, Tokens: tokens, Positions: TokenIDs(after), Operation: OperationRerotate, From: &was}
		var keys, values []float32
		for _, slot := range from {
			keys = append(keys, codes.values(codes.k, codes.kScales, slot)...)
			values = append(values, codes.values(codes.v, codes.vScales, slot)...)
		}
		turned := inFloat32(t, c, keys, heads, step)
		turned = append(keys[:row:row], turned[row:]...)
		inPlace := n%3 == 0
		if inPlace {
			to = from
		}
		step.Source, step.Slots = MappedSlots(from), MappedSlots(to)

		// Another memory, of float32 and of one scale that is given.
		floats, coded := make([]float32, pages*pageSize*row), make([]int8, pages*pageSize*row)
		apart := KVCache[float32, int8]{K: NHD(floats, heads), V: HND(coded, heads), VScale: &Scale{Value: 0.5},
			Pages: pages, PageSize: pageSize}
		if err := MoveBetween(c, codes.cache(), apart, step); err != nil {
			t.Fatal(err)
		}
		for i, slot := range to {
			if !slices.Equal(floats[slot*row:][:row], turned[i*row:][:row]) {
				t.Fatal("to float32", n, i)
			}
			for j, x := range values[i*row:][:row] {
				at := (int(slot)/pageSize*heads+j/dim)*pageSize + int(slot)%pageSize
				if coded[at*dim+j%dim] != int8Of(x, 0.5) {
					t.Fatal("by a scale that is given", n, i)
				}
			}
		}

		// The same memory.
		if err := MoveSlots(c, codes.cache(), step); err != nil {
			t.Fatal(err)
		}
		for i, slot := range to {
			if i > 0 {
				want.store(turned[i*row:][:row], slot)
			} else {
				copy(want.k[slot*row:], want.k[from[i]*row:][:row])
				copy(want.kScales[slot*heads:], want.kScales[from[i]*heads:][:heads])
			}
			copy(want.v[slot*row:], want.v[from[i]*row:][:row])
			copy(want.vScales[slot*heads:], want.vScales[from[i]*heads:][:heads])
		}
		if !slices.Equal(codes.k, want.k) || !slices.Equal(codes.v, want.v) ||
			!slices.Equal(codes.kScales, want.kScales) || !slices.Equal(codes.vScales, want.vScales) {
			t.Fatal("in one cache", n)
		}

		// From float32 to codes with scales that are computed.
		step.Source, step.Operation, step.From = MappedSlots(to), OperationForward, nil
		back := randomCodes(r, pages, pageSize, heads, dim)
		wantBack := back.clone()
		for _, slot := range to {
			wantBack.store(floats[slot*row:][:row], slot)
		}
		apart.V, apart.VScale = Tensor[int8]{}, nil
		only := KVCache[int8, int8]{K: back.cache().K, KScale: back.cache().KScale, Pages: pages, PageSize: pageSize}
		if err := MoveBetween(nope, apart, only, step); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(back.k, wantBack.k) || !slices.Equal(back.kScales, wantBack.kScales) {
			t.Fatal("from float32", n)
		}
	}
}

func TestMovesInEightBitsThatDoNotFit(t *testing.T) {
	const dim, heads = 32, 2
	c := mustNew(t, plain(dim))
	codes := randomCodes(rand.New(rand.NewPCG(5, 6)), 2, 2, heads, dim)
	before, was := codes.clone(), Offset(7)
	step := Step{Batch: 1, Tokens: 2, Positions: Offset(0), Operation: OperationRerotate, From: &was,
		Slots: MappedSlots([]int64{2, 3}), Source: MappedSlots([]int64{0, 1})}
	floats := KVCache[float32, float32]{K: NHD(make([]float32, len(codes.k)), heads), Pages: 2, PageSize: 2}
	with := func(change func(*KVCache[int8, int8])) KVCache[int8, int8] {
		cache := codes.cache()
		cache.V, cache.VScale = Tensor[int8]{}, nil
		change(&cache)
		return cache
	}
	none := with(func(cache *KVCache[int8, int8]) { cache.KScale = nil })
	short := with(func(cache *KVCache[int8, int8]) { cache.KScale = &Scale{Data: codes.kScales[1:]} })
	wrong := with(func(cache *KVCache[int8, int8]) { cache.KScale = &Scale{Value: -1} })
	scaled := floats
	scaled.KScale = &Scale{Value: 1}
	const length = "has 7 scales, and must have [pages, page_size, heads, groups] = [2, 2, 2, 1]"
	for _, test := range []struct {
		err   error
		words string
	}{
		{MoveSlots(c, none, step), "rope.MoveSlots: KVCache.KScale (nil) is required"},
		{MoveSlots(c, short, step), "rope.MoveSlots: KVCache.KScale.Data " + length},
		{MoveSlots(c, wrong, step), "rope.MoveSlots: KVCache.KScale.Value (-1) must be"},
		{MoveSlots(c, scaled, step), "KVCache.KScale must be nil with DType"},
		{MoveBetween(c, none, floats, step), "rope.MoveBetween: source.KScale (nil) is required"},
		{MoveBetween(c, short, floats, step), "rope.MoveBetween: source.KScale.Data " + length},
		{MoveBetween(c, wrong, floats, step), "rope.MoveBetween: source.KScale.Value (-1) must be"},
		{MoveBetween(c, floats, none, step), "rope.MoveBetween: KVCache.KScale (nil) is required"},
		{MoveBetween(c, floats, short, step), "rope.MoveBetween: KVCache.KScale.Data " + length},
		{MoveBetween(c, floats, scaled, step), "KVCache.KScale must be nil with DType"},
	} {
		refused(t, test.err, test.words)
	}
	if !slices.Equal(codes.k, before.k) || !slices.Equal(codes.kScales, before.kScales) ||
		slices.ContainsFunc(floats.K.Data, func(x float32) bool { return x != 0 }) {
		t.Error("a move that was refused has written")
	}
}
