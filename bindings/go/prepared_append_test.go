package rope

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func mustPrepareAppend[Q, K, V Element](t testing.TB, c *Context, q Tensor[Q], k Tensor[K], v Tensor[V],
	cache KVCache[K, V], step Step) *PreparedAppend[Q, K, V] {
	t.Helper()
	p, err := PrepareAppend(c, q, k, v, cache, step)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// preparedAppendCase is one random step for two layers; its arrays are others once it is prepared.
func preparedAppendCase[Q, K, V Element](t *testing.T, seed uint64, pool *Pool) {
	r := rand.New(rand.NewPCG(seed, 51))
	cfg := plain(32)
	cfg.RotaryDim = 16
	if r.IntN(5) == 0 {
		cfg = Config{HeadDim: 32, Scaling: ScalingNope}
	}
	c := mustNew(t, cfg)
	defer c.Close()
	sequences := 1 + r.IntN(3)
	step, lengths := Step{Batch: sequences, Tokens: 1 + r.IntN(7)}, make([]int, sequences)
	for s := range lengths {
		lengths[s] = step.Tokens
	}
	offsets := make([]int64, sequences)
	for i := range offsets {
		offsets[i] = r.Int64N(1 << 20)
	}
	kept := slices.Clone(offsets)
	step.Positions = SeqOffsets(kept)
	if r.IntN(3) == 0 {
		step.Pool = pool
	}
	const pages, qHeads, kHeads = 20, 4, 2
	pageSize, vHeads, vDim := 9+r.IntN(8), 1+r.IntN(3), []int{32, 1, 5, 128}[r.IntN(4)]
	tokens := step.Batch * step.Tokens
	var want []int
	step.Slots, want = randomSlots(r, lengths, pages, pageSize)
	q, k, v := BSHD[Q](nil, qHeads), BHSD[K](nil, kHeads), SBHD[V](nil, vHeads)
	cache := KVCache[K, V]{Pages: pages, PageSize: pageSize, VHeadDim: vDim}
	var kLen, vLen int
	cache.K, kLen = cacheForm[K](r, pages, pageSize, kHeads, 32)
	cache.V, vLen = cacheForm[V](r, pages, pageSize, vHeads, vDim)
	qOut, kOut, vOut := BHSD[Q](nil, qHeads), BSHD[K](nil, kHeads), BHSD[V](nil, vHeads)
	to := r.IntN(2) == 0

	// The step that is prepared has arrays of its own, which are then overwritten.
	prepared, slots := step, *step.Slots
	prepared.Slots, prepared.Positions = &slots, SeqOffsets(offsets)
	slots.starts = slices.Clone(slots.starts)
	var p *PreparedAppend[Q, K, V]
	var err error
	if to {
		p, err = PrepareAppendTo(c, qOut, kOut, vOut, q, k, v, cache, prepared)
	} else {
		p, err = PrepareAppend(c, q, k, v, cache, prepared)
	}
	if err != nil {
		t.Fatalf("case %d: %v", seed, err)
	}
	defer p.Close()
	for i := range offsets {
		offsets[i] = -offsets[i]
	}
	for i := range slots.starts {
		slots.starts[i] = math.MaxInt32
	}
	for layer := range 2 {
		q.Data, k.Data, v.Data = randomSlice[Q](r, tokens*qHeads*32), randomSlice[K](r, tokens*kHeads*32), randomSlice[V](r, tokens*vHeads*vDim)
		cache.K.Data, cache.V.Data = randomSlice[K](r, kLen), randomSlice[V](r, vLen)
		gotQ, gotKeys, gotValues := slices.Clone(q.Data), slices.Clone(cache.K.Data), slices.Clone(cache.V.Data)
		gotK, gotV, keys, values := slices.Clone(k.Data), slices.Clone(v.Data), slices.Clone(cache.K.Data), slices.Clone(cache.V.Data)
		if to {
			qOut.Data, kOut.Data, vOut.Data = make([]Q, len(gotQ)), make([]K, len(gotK)), make([]V, len(gotV))
			outQ, outK, outV := slices.Clone(qOut.Data), slices.Clone(kOut.Data), slices.Clone(vOut.Data)
			if err := AppendTo(c, qOut, kOut, vOut, q, k, v, cache, step); err != nil {
				t.Fatalf("case %d: %v", seed, err)
			}
			err = p.ApplyTo(outQ, outK, outV, gotQ, gotK, gotV, gotKeys, gotValues)
			if !slices.Equal(outQ, qOut.Data) || !slices.Equal(outK, kOut.Data) || !slices.Equal(outV, vOut.Data) {
				t.Errorf("case %d, layer %d: other bits in outputs than those of AppendTo", seed, layer)
			}
		} else {
			if err := Append(c, q, k, v, cache, step); err != nil {
				t.Fatalf("case %d: %v", seed, err)
			}
			err = p.Apply(gotQ, gotK, gotV, gotKeys, gotValues)
		}
		if err != nil || !slices.Equal(gotQ, q.Data) || !slices.Equal(gotKeys, cache.K.Data) ||
			!slices.Equal(gotValues, cache.V.Data) {
			t.Fatalf("case %d, layer %d: other bits than those of Append, or %v", seed, layer, err)
		}
		if !slices.Equal(gotK, k.Data) || !slices.Equal(gotV, v.Data) {
			t.Fatalf("case %d: k or v was written", seed)
		}
		stored := slices.ContainsFunc(want, func(slot int) bool { return slot >= 0 })
		if stored && slices.Equal(keys, gotKeys) && slices.Equal(values, gotValues) {
			t.Fatalf("case %d: nothing was stored", seed)
		}
	}
}

func TestPreparedAppendGivesTheBitsOfAppend(t *testing.T) {
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for seed := range uint64(100) {
		preparedAppendCase[float32, float32, float32](t, seed, pool)
		preparedAppendCase[BFloat16, BFloat16, BFloat16](t, seed, pool)
		preparedAppendCase[float32, BFloat16, Float16](t, seed, pool)
	}
}

// Keys alone, values alone beside q, packed sequences, a pool that has work, and parts of one buffer.
func TestPreparedAppendTakesEveryStep(t *testing.T) {
	c := mustNew(t, plain(32))
	r := rand.New(rand.NewPCG(52, 53))
	none, head := Tensor[float32]{}, BSHD[float32](nil, 1)
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	paged := NHD[float32](nil, 1)
	const many = 20000
	for name, test := range map[string]struct {
		q, k, v Tensor[float32]
		cache   KVCache[float32, float32]
		step    Step
	}{
		"keys":   {none, head, none, KVCache[float32, float32]{K: paged}, Step{Tokens: 3}},
		"values": {head, none, head, KVCache[float32, float32]{V: paged}, Step{Tokens: 3}},
		"packed": {head, head, head, KVCache[float32, float32]{K: paged, V: paged}, Step{Tokens: 3, CuSeqlens: []int32{0, 1, 3},
			Positions: SeqOffsets([]int32{5, 9}), Slots: LinearSlots([]int32{2, 3})}},
		"pool": {head, head, head, KVCache[float32, float32]{K: paged, V: paged, Pages: many, PageSize: 2}, Step{Tokens: many, Pool: pool}},
		"one page": {none, head, none, KVCache[float32, float32]{K: Strided[float32](nil, 1, Strides{Batch: 1000, Token: 40, Head: 32}),
			Pages: 1}, Step{Tokens: 3}},
	} {
		step, cache := test.step, test.cache
		step.Batch = 1
		if step.Positions == (Positions{}) {
			step.Positions = Offset(7)
		}
		if cache.Pages == 0 {
			cache.Pages = 2
		}
		if cache.PageSize == 0 {
			cache.PageSize = 8
		}
		if step.Slots == nil {
			slots := make([]int32, step.Tokens)
			for i := range slots {
				slots[i] = int32(7 - i)
				if step.Tokens == many {
					slots[i] = int32(2 * (many - 1 - i))
				}
			}
			step.Slots = MappedSlots(slots)
		}
		p := mustPrepareAppend(t, c, test.q, test.k, test.v, cache, step)
		fill := func(tensor Tensor[float32], n int) (Tensor[float32], []float32) {
			if tensor.Heads == 0 {
				return tensor, nil
			}
			tensor.Data = randomSlice[float32](r, n)
			return tensor, slices.Clone(tensor.Data)
		}
		all := cache.Pages * cache.PageSize * 32
		if cache.K.Layout == LayoutStrided {
			all = 7*40 + 32
		}
		q, gotQ := fill(test.q, step.Tokens*32)
		k, gotK := fill(test.k, step.Tokens*32)
		v, gotV := fill(test.v, step.Tokens*32)
		var keys, values []float32
		cache.K, keys = fill(cache.K, all)
		cache.V, values = fill(cache.V, all)
		before := slices.Concat(keys, values)
		if err := Append(c, q, k, v, cache, step); err != nil {
			t.Fatal(name, err)
		}
		err := p.Apply(gotQ, gotK, gotV, keys, values)
		if err != nil || !slices.Equal(gotQ, q.Data) || !slices.Equal(keys, cache.K.Data) || !slices.Equal(values, cache.V.Data) ||
			slices.Equal(slices.Concat(keys, values), before) {
			t.Error(name, err)
		}
	}
}

// What would reach beyond a slice, or use one that is not meant.
func TestPreparedAppendRefusesOtherSlices(t *testing.T) {
	c := mustNew(t, plain(32))
	const pages, pageSize, heads, tokens = 3, 4, 2, 2
	const n, all = tokens * heads * 32, pages * pageSize * heads * 32
	memory := slices.Repeat([]float32{1}, 3*n+2*all+1)
	before := slices.Clone(memory)
	q, k, v := memory[:n], memory[n:2*n], memory[2*n:3*n]
	keys, values := memory[3*n:3*n+all], memory[3*n+all:3*n+2*all]
	head, none := BSHD[float32](nil, heads), Tensor[float32]{}
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(3), Slots: MappedSlots([]int32{11, 0})}
	cache := KVCache[float32, float32]{K: NHD[float32](nil, heads), V: HND[float32](nil, heads), Pages: pages, PageSize: pageSize}
	p := mustPrepareAppend(t, c, head, head, head, cache, step)
	const keysWords = "rope.PreparedAppend.Apply: keys with 3 pages of 4 slots, heads 2, channels 32 and LayoutNHD"
	refused(t, p.Apply(q, k, v, keys[:all-1], values), keysWords)
	refused(t, p.Apply(q, k, v, memory[3*n:3*n+all+1], values), "does not fit its slice of 769 elements, which it must fill")
	refused(t, p.Apply(q, k, v, nil, values), "slice of 0 elements")
	refused(t, p.Apply(q, k, v, keys, nil), "values with 3 pages of 4 slots, heads 2, channels 32 and LayoutHND")
	refused(t, p.Apply(q, k, v, keys, values[32:]), "values with 3 pages")
	refused(t, p.Apply(q, k, v[1:], keys, values), "v with batch 1, tokens 2, heads 2, channels 32 and LayoutBSHD does not fit")
	refused(t, p.Apply(q, k, nil, keys, values), "v with batch 1")
	refused(t, p.Apply(q, nil, v, keys, values), "k with batch 1")
	refused(t, p.Apply(nil, k, v, keys, values), "q with batch 1")
	refused(t, p.ApplyTo(q, nil, nil, q, k, v, keys, values), "rope.PreparedAppend.ApplyTo: qOut (128 elements) must be nil: the "+
		"prepared call has no qOut")
	refused(t, p.ApplyTo(nil, k, nil, q, k, v, keys, values), "kOut (128 elements) must be nil")
	refused(t, p.ApplyTo(nil, nil, v, q, k, v, keys, values), "vOut (128 elements) must be nil")
	refused(t, p.Apply(q, k, v, keys, keys), "rope.PreparedAppend.Apply: values overlaps keys")
	refused(t, p.Apply(q, k, v, keys, memory[3*n+all-1:3*n+2*all-1]), "overlap")
	refused(t, p.Apply(q, q, v, keys, values), "overlap")
	refused(t, p.Apply(q, k, v, memory[2*n:2*n+all], values), "overlap")

	onlyK := cache
	onlyK.V = none
	few := mustPrepareAppend(t, c, none, head, none, onlyK, step)
	refused(t, few.Apply(nil, k, v, keys, nil), "v (128 elements) must be nil: the prepared call has no v")
	refused(t, few.Apply(nil, k, nil, keys, values), "values (768 elements) must be nil: the prepared call has no values")
	refused(t, few.Apply(q, k, nil, keys, nil), "q (128 elements) must be nil")

	row := cache
	row.K = Strided[float32](nil, heads, Strides{Batch: 256, Token: 64, Head: 32})
	loose := mustPrepareAppend(t, c, head, head, head, row, step)
	refused(t, loose.Apply(q, k, v, keys[:all-1], values), "LayoutStrided and strides {Batch:256 Token:64 Head:32} does not fit its slice of 767")

	forgotten := step
	forgotten.Batch, forgotten.Slots = 0, MappedSlots[int32](nil)
	refused(t, mustPrepareAppend(t, c, head, head, head, cache, forgotten).Apply(q, k, v, keys, values), "Step.Batch (0) is required")
	if !slices.Equal(memory, before) {
		t.Error("an error wrote something")
	}
	if err := p.Apply(q, k, v, keys, values); err != nil || slices.Equal(memory, before) {
		t.Error(err)
	}
}

// A step without tokens, or without batch rows, needs no pages, and takes those that a layer has.
func TestPreparedAppendOfNoTokensNeedsNoPages(t *testing.T) {
	c, head := mustNew(t, plain(32)), BSHD[float32](nil, 1)
	cache := KVCache[float32, float32]{K: NHD[float32](nil, 1), V: HND[float32](nil, 1), Pages: 2, PageSize: 2}
	keys, none := make([]float32, 2*2*32), []float32{}
	for _, step := range []Step{{Batch: 1}, {Tokens: 1}} {
		step.Positions, step.Slots = Offset(0), MappedSlots([]int32{})
		p := mustPrepareAppend(t, c, head, head, head, cache, step)
		for _, err := range []error{p.Apply(nil, nil, nil, nil, nil), p.Apply(none, none, none, none, none),
			p.Apply(nil, nil, nil, keys, keys)} {
			if err != nil {
				t.Error(err)
			}
		}
		refused(t, p.Apply(nil, nil, nil, keys[1:], nil), "keys with 2 pages of 2 slots")
	}
}

// moved is a refusal to prepare a move.
func moved(t *testing.T, err error, function string) {
	t.Helper()
	if !errors.Is(err, ErrUnsupported) || !strings.HasPrefix(err.Error(), function+"Step.Source and Step.From must be nil") {
		t.Errorf("%v, want that %smoves are not prepared", err, function)
	}
}

// What Append refuses, PrepareAppend does, and shapes that no slice has.
func TestPrepareAppendRefusesCalls(t *testing.T) {
	c := mustNew(t, plain(32))
	head, none := BSHD[float32](nil, 2), Tensor[float32]{}
	type cache = KVCache[float32, float32]
	good := cache{K: NHD[float32](nil, 2), V: NHD[float32](nil, 2), Pages: 3, PageSize: 4}
	step := Step{Batch: 2, Tokens: 1, Positions: Offset(0), Slots: MappedSlots([]int32{0, 1})}
	try := func(words string, change func(*cache, *Step)) {
		t.Helper()
		cache, step := good, step
		change(&cache, &step)
		p, err := PrepareAppend(c, head, head, head, cache, step)
		refused(t, err, words)
		if p != nil {
			t.Error("a prepared call beside an error")
		}
	}
	try("rope.PrepareAppend: Step.Slots is required", func(_ *cache, s *Step) { s.Slots = nil })
	try("slots[1] (12)", func(_ *cache, s *Step) { s.Slots = MappedSlots([]int32{0, 12}) })
	try("page table[1] (3)", func(_ *cache, s *Step) { s.Slots = PagedSlots([]int32{0, 3}, 1, []int32{0, 0}) })
	try("1 start, and must", func(_ *cache, s *Step) { s.Slots = LinearSlots([]int32{0}) })
	try("KVCache.K.Data (1 elements) must be nil: slices come with each Apply", func(c *cache, _ *Step) { c.K.Data = make([]float32, 1) })
	try("KVCache.V.Data (1 elements) must be nil", func(c *cache, _ *Step) { c.V.Data = make([]float32, 1) })
	try("KVCache.K with 9223372036854775807 pages of 4 slots, heads 2, channels 32 and LayoutNHD", func(c *cache, _ *Step) { c.Pages = math.MaxInt })
	try("fits no slice", func(c *cache, _ *Step) { c.V.Heads = -1 })
	try("KVCache.Pages (0)", func(c *cache, _ *Step) { c.Pages = 0 })
	try("KVCache.PageSize (9223372036854775807) must be from 1", func(c *cache, _ *Step) { c.PageSize = math.MaxInt })
	try("KVCache.VHeadDim (2147483648) must be from 1", func(c *cache, _ *Step) { c.VHeadDim = math.MaxInt32 + 1 })
	try("Span", func(c *cache, _ *Step) { c.V.Span = true })
	try("k has no place to go", func(c *cache, _ *Step) { c.K = none })
	try("must be LayoutNHD, LayoutHND", func(c *cache, _ *Step) { c.K.Layout = LayoutBSHD })
	try("KVCache.K.Heads (3) must be that of k (2)", func(c *cache, _ *Step) { c.K.Heads = 3 })
	try("overlap", func(c *cache, _ *Step) { c.K = Strided[float32](nil, 2, Strides{Batch: 64, Token: 64, Head: 32}) })
	_, err := PrepareAppend(c, head, head, BSHD(make([]float32, 4), 2), good, step)
	refused(t, err, "v.Data (4 elements) must be nil")
	_, err = PrepareAppendTo(c, none, none, BSHD[float32](nil, 3), head, head, head, good, step)
	refused(t, err, "rope.PrepareAppendTo: vOut.Heads (3)")
	backward := step
	backward.Operation = OperationBackward
	if _, err := PrepareAppend(c, head, head, head, good, backward); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	slots := step.Slots
	step.Slots = nil
	step.From = &step.Positions
	_, err = Prepare(c, head, head, step)
	refused(t, err, "Step.Slots must be nil, and so must Step.From")
	// As the library says.
	step.From, step.Source, step.Slots = nil, slots, slots
	_, err = Prepare(c, head, head, step)
	moved(t, err, "rope.Prepare: ")
	_, err = PrepareAppend(c, head, head, head, good, step)
	moved(t, err, "rope.PrepareAppend: ")
	call := Call{K: head.Any(), Cache: &Cache{K: good.K.Any(), Pages: good.Pages, PageSize: good.PageSize}}
	_, err = PrepareCall(c, call, step)
	moved(t, err, "rope.PrepareCall: ")
}

func TestPreparedAppendClosed(t *testing.T) {
	c := mustNew(t, plain(32))
	head := BSHD[float32](nil, 1)
	x, y, z, keys, values := make([]float32, 32), make([]float32, 32), make([]float32, 32), make([]float32, 32), make([]float32, 32)
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	cache := KVCache[float32, float32]{K: NHD[float32](nil, 1), V: NHD[float32](nil, 1), Pages: 1, PageSize: 1}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: LinearSlots([]int32{0}), Pool: pool}
	p := mustPrepareAppend(t, c, head, head, head, cache, step)
	step.Pool = nil
	other := mustPrepareAppend(t, c, head, head, head, cache, step)
	c.Close() // which they outlive
	runtime.GC()
	if err := errors.Join(p.Apply(x, y, z, keys, values), other.Apply(x, y, z, keys, values)); err != nil {
		t.Error(err)
	}
	pool.Close()
	other.Close()
	other.Close()
	if !c.handle.body.freed.Load() && p.Close() == nil && !c.handle.body.freed.Load() {
		t.Error("the context is not freed with the last of its prepared calls")
	}
	var zero PreparedAppend[float32, float32, float32]
	var missing *PreparedAppend[float32, float32, float32]
	_, unmade := PrepareAppend(c, head, head, head, cache, step)
	for _, err := range []error{p.Apply(x, y, z, keys, values), other.Apply(x, y, z, keys, values),
		zero.Apply(x, y, z, keys, values), missing.Apply(x, y, z, keys, values), unmade} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if zero.Close() != nil || missing.Close() != nil {
		t.Error("closing nothing is nothing")
	}
}

func TestPreparedAppendDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector calls gather what they tell it")
	}
	c := mustNew(t, plain(64))
	head := BSHD[BFloat16](nil, 2)
	q, k, v := make([]BFloat16, 4*64), make([]BFloat16, 2*64), make([]BFloat16, 2*64)
	keys, values := make([]BFloat16, 3*16*2*64), make([]BFloat16, 3*16*2*64)
	cache := KVCache[BFloat16, BFloat16]{K: NHD[BFloat16](nil, 2), V: NHD[BFloat16](nil, 2), Pages: 3, PageSize: 16}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(5), Slots: MappedSlots([]int32{37})}
	p := mustPrepareAppend(t, c, BSHD[BFloat16](nil, 4), head, head, cache, step)
	if n := testing.AllocsPerRun(1000, func() {
		if err := p.Apply(q, k, v, keys, values); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Apply allocates %v times", n)
	}
}
