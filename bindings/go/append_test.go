package rope

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// cacheForm is memory of a cache without its slice, and how long that is.
func cacheForm[T Element](r *rand.Rand, pages, pageSize, heads, dim int) (Tensor[T], int) {
	switch r.IntN(3) {
	case 0:
		return NHD[T](nil, heads), pages * pageSize * heads * dim
	case 1:
		return HND[T](nil, heads), pages * pageSize * heads * dim
	}
	head := dim + r.IntN(5)
	token := heads*head + r.IntN(5)
	page := pageSize*token + 3
	return Strided[T](nil, heads, Strides{Batch: page, Token: token, Head: head}), pages*page + r.IntN(9)
}

// stored is what memory holds after heads [tokens, heads, dim] have gone to these slots.
func stored[T Element](cache Tensor[T], before, heads []T, slots []int, pageSize, dim int) []T {
	after := slices.Clone(before)
	strides := cache.Strides
	switch cache.Layout {
	case LayoutNHD:
		strides = Strides{Batch: pageSize * cache.Heads * dim, Token: cache.Heads * dim, Head: dim}
	case LayoutHND:
		strides = Strides{Batch: pageSize * cache.Heads * dim, Token: dim, Head: pageSize * dim}
	}
	for token, slot := range slots {
		for h := range cache.Heads {
			if slot >= 0 {
				at := slot/pageSize*strides.Batch + slot%pageSize*strides.Token + h*strides.Head
				copy(after[at:at+dim], heads[(token*cache.Heads+h)*dim:])
			}
		}
	}
	return after
}

// randomSlots are slots of a random kind for sequences of these lengths, and the slot of each token: -1 for
// nowhere.
func randomSlots(r *rand.Rand, lengths []int, pages, pageSize int) (given *Slots, want []int) {
	tokens := 0
	for _, length := range lengths {
		tokens += length
	}
	kind, starts := r.IntN(5), make([]int32, len(lengths))
	switch kind {
	case 0, 1:
		want = r.Perm(pages * pageSize)[:tokens]
		for i := range want {
			if r.IntN(5) == 0 {
				want[i] = -1
			}
		}
		numbers := make([]int64, tokens, tokens+1)
		for i := range want {
			numbers[i] = int64(want[i])
		}
		if r.IntN(4) == 0 {
			for i := 1 + r.IntN(tokens); i < tokens; i++ {
				numbers[i], want[i] = -1, -1 // padding
			}
		} else if r.IntN(4) == 0 {
			numbers = append(numbers, math.MaxInt64) // of no token
		}
		if kind == 0 {
			return MappedSlots(numbers), want
		}
		narrow := make([]int32, len(numbers))
		for i, n := range numbers {
			narrow[i] = int32(n)
		}
		return MappedSlots(narrow), want
	case 4:
		for s, length := range lengths {
			starts[s] = int32(r.IntN(pageSize - length + 1))
			for i := range length {
				want = append(want, s*pageSize+int(starts[s])+i)
			}
		}
		return LinearSlots(starts), want
	}
	free, width := r.Perm(pages), 0
	var rows [][]int32
	for s, length := range lengths {
		starts[s] = int32(r.IntN(pageSize + 1))
		end := int(starts[s]) + length
		row := make([]int32, (end+pageSize-1)/pageSize)
		for i := range row {
			row[i], free = int32(free[0]), free[1:]
		}
		if r.IntN(6) == 0 {
			row[int(starts[s])/pageSize] = -1
		}
		for n := int(starts[s]); n < end; n++ {
			slot := -1
			if page := int(row[n/pageSize]); page >= 0 {
				slot = page*pageSize + n%pageSize
			}
			want = append(want, slot)
		}
		rows, width = append(rows, row), max(width, len(row))
	}
	table, pageStarts := []int32{}, []int32{0}
	for _, row := range rows {
		for kind == 2 && len(row) < width {
			row = append(row, math.MaxInt32) // which no token needs
		}
		table = append(table, row...)
		pageStarts = append(pageStarts, int32(len(table)))
	}
	if kind == 2 {
		return PagedSlots(table, width, starts), want
	}
	return RaggedSlots(table, pageStarts, starts), want
}

func testAppend[Q, K, V Element](t *testing.T, r *rand.Rand, pool *Pool) {
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
	if r.IntN(2) == 0 { // packed
		step.Batch, step.Tokens, step.CuSeqlens = 1, 0, []int32{0}
		for s := range lengths {
			lengths[s] = 1 + r.IntN(9)
			step.Tokens += lengths[s]
			step.CuSeqlens = append(step.CuSeqlens, int32(step.Tokens))
		}
	}
	offsets := make([]int32, sequences)
	for i := range offsets {
		offsets[i] = r.Int32N(1 << 20)
	}
	step.Positions = SeqOffsets(offsets)
	if r.IntN(3) == 0 {
		step.Pool = pool
	}
	pages, pageSize := 20, 9+r.IntN(8)
	qHeads, kHeads, vHeads, vDim := 4, 1+r.IntN(3), 1+r.IntN(3), []int{32, 1, 5, 128}[r.IntN(4)]
	tokens := step.Batch * step.Tokens
	q, k, v := randomSlice[Q](r, tokens*qHeads*32), randomSlice[K](r, tokens*kHeads*32), randomSlice[V](r, tokens*vHeads*vDim)
	wantQ, wantK := slices.Clone(q), slices.Clone(k)
	turned := BSHD(wantK, kHeads)
	err := ApplyQKTo(c, Tensor[Q]{}, turned, BSHD(wantQ, qHeads), BHSD(k, kHeads), step)
	if err != nil {
		t.Fatal(err)
	}

	cacheK, kLen := cacheForm[K](r, pages, pageSize, kHeads, 32)
	cacheV, vLen := cacheForm[V](r, pages, pageSize, vHeads, vDim)
	kBefore, vBefore := randomSlice[K](r, kLen), randomSlice[V](r, vLen)
	cacheK.Data, cacheV.Data = slices.Clone(kBefore), slices.Clone(vBefore)
	cache := KVCache[K, V]{K: cacheK, V: cacheV, Pages: pages, PageSize: pageSize, VHeadDim: vDim}
	slots, want := randomSlots(r, lengths, pages, pageSize)
	step.Slots = slots
	kGiven, vGiven, kOut, vOut := slices.Clone(k), slices.Clone(v), slices.Clone(k), slices.Clone(v)
	if r.IntN(2) == 0 {
		err = Append(c, BSHD(q, qHeads), BHSD(k, kHeads), BSHD(v, vHeads), cache, step)
	} else {
		clear(vOut)
		err = AppendTo(c, Tensor[Q]{}, BSHD(kOut, kHeads), BSHD(vOut, vHeads), BSHD(q, qHeads), BHSD(k, kHeads),
			BSHD(v, vHeads), cache, step)
		if !slices.Equal(kOut, wantK) || !slices.Equal(vOut, v) {
			t.Error("outputs differ")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case !slices.Equal(q, wantQ):
		t.Error("q differs")
	case !slices.Equal(k, kGiven) || !slices.Equal(v, vGiven):
		t.Error("k or v was written")
	case !slices.Equal(cacheK.Data, stored(cacheK, kBefore, wantK, want, pageSize, 32)):
		t.Errorf("k differs: %v in %v", want, cacheK.Layout)
	case !slices.Equal(cacheV.Data, stored(cacheV, vBefore, v, want, pageSize, vDim)):
		t.Errorf("v differs: %v in %v", want, cacheV.Layout)
	}
}

func randomSlice[T Element](r *rand.Rand, n int) []T {
	slice := make([]T, n)
	for i := range slice {
		slice[i] = fromFloat[T](r.Float64()*2 - 1)
	}
	return slice
}

func TestSlotsHaveTheBitsOfApplyAndNothingElseChanges(t *testing.T) {
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 12))
		testAppend[float32, float32, float32](t, r, pool)
		testAppend[BFloat16, BFloat16, BFloat16](t, r, pool)
		testAppend[Float16, Float16, float32](t, r, pool)
		testAppend[float32, BFloat16, Float16](t, r, pool)
		if t.Failed() {
			t.Fatal("seed", seed)
		}
	}
}

// FlashInfer's [pages, 2, page_size, heads, dim], and DeepSeek's row of latent and key.
func TestOneBufferOfKeysAndValues(t *testing.T) {
	c := mustNew(t, plain(32))
	r := rand.New(rand.NewPCG(1, 2))
	const pages, pageSize, heads, dim = 3, 4, 2, 32
	const half = pageSize * heads * dim
	k, v := randomSlice[float32](r, 2*heads*dim), randomSlice[float32](r, 2*heads*dim)
	turned := slices.Clone(k)
	step := Step{Batch: 1, Tokens: 2, Positions: Offset(5)}
	if err := ApplyQK(c, Tensor[float32]{}, BSHD(turned, heads), step); err != nil {
		t.Fatal(err)
	}
	data, want := make([]float32, pages*2*half), make([]float32, pages*2*half)
	strides := Strides{Batch: 2 * half, Token: heads * dim, Head: dim}
	cache := KVCache[float32, float32]{K: Strided(data, heads, strides), V: Strided(data[half:], heads, strides),
		Pages: pages, PageSize: pageSize}
	step.Slots = MappedSlots([]int32{9, 2})
	if err := Append(c, Tensor[float32]{}, BSHD(k, heads), BSHD(v, heads), cache, step); err != nil {
		t.Fatal(err)
	}
	for token, at := range []int{2*2*half + heads*dim, 2 * heads * dim} {
		copy(want[at:], turned[token*heads*dim:][:heads*dim])
		copy(want[at+half:], v[token*heads*dim:][:heads*dim])
	}
	if !slices.Equal(data, want) {
		t.Error("keys and values are elsewhere")
	}
	cache.V.Data = data
	refused(t, Append(c, Tensor[float32]{}, BSHD(k, heads), BSHD(v, heads), cache, step), "overlap")

	const latent, row = 5, 5 + 32
	rows := make([]float32, 2*row)
	place := Strides{Batch: 2 * row, Token: row, Head: row}
	mla := KVCache[float32, float32]{K: Strided(rows[latent:], 1, place), V: Strided(rows, 1, place), Pages: 1,
		PageSize: 2, VHeadDim: latent}
	mla.K.Span = true
	step.Slots = LinearSlots([]int32{0})
	key := BSHD(k[:2*dim], 1)
	key.Span = true
	if err := Append(c, Tensor[float32]{}, key, BSHD(v[:2*latent], 1), mla, step); err != nil {
		t.Fatal(err)
	}
	one := slices.Clone(k[:2*dim])
	if err := ApplyQK(c, Tensor[float32]{}, BSHD(one, 1), Step{Batch: 1, Tokens: 2, Positions: Offset(5)}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rows, slices.Concat(v[:latent], one[:dim], v[latent:2*latent], one[dim:])) {
		t.Error("rows of latent and key differ")
	}
}

// Each of these calls would reach beyond a slice, or do something else than what was meant.
func TestWhatDoesNotFitACacheIsRefused(t *testing.T) {
	c := mustNew(t, plain(32))
	const pages, pageSize, heads = 3, 4, 2
	exact := pages * pageSize * heads * 32
	r := rand.New(rand.NewPCG(3, 4))
	k, before := randomSlice[float32](r, 2*heads*32), randomSlice[float32](r, exact+1)
	keys, values := slices.Clone(before), slices.Clone(before)
	good := KVCache[float32, float32]{K: NHD(keys[:exact], heads), V: HND(values[:exact], heads), Pages: pages, PageSize: pageSize}
	try := func(words string, slots *Slots, change ...func(*KVCache[float32, float32])) {
		t.Helper()
		cache := good
		for _, f := range change {
			f(&cache)
		}
		step := Step{Batch: 2, Tokens: 1, Positions: Offset(0), Slots: slots}
		refused(t, Append(c, Tensor[float32]{}, BSHD(k, heads), BSHD(k, heads), cache, step), words)
	}
	try("Step.Slots is required", nil)
	try("slots[1] (12)", MappedSlots([]int32{0, 12}))
	try("slots[0] (1099511627776)", MappedSlots([]int64{1 << 40, 0}))
	try("Step.Slots has 0 slots, and must have one for each of 2 * 1 tokens; padding has -1", MappedSlots[int32](nil))
	try("Step.Slots has 1 slot, and must have", MappedSlots([]int64{0}))
	try("page table[1] (3)", PagedSlots([]int32{0, 3}, 1, []int32{0, 0}))
	try("page table: sequence 1 has 1 pages", PagedSlots([]int32{0, 1}, 1, []int32{0, 4}))
	try("starts[1] (-1)", PagedSlots([]int32{0, 1}, 1, []int32{0, -1}))
	try("3 entries and width 1", PagedSlots([]int32{0, 1, 2}, 1, []int32{0, 0}))
	try("positive width", PagedSlots([]int32{0, 1}, math.MinInt, []int32{0, 0}))
	try("positive width", PagedSlots(nil, 0, []int32{0, 0}))
	try("positive width", PagedSlots([]int32{0, 1}, math.MaxInt, []int32{0, 0}))
	try("1 start, and must have one for each of 2 sequences", PagedSlots([]int32{0, 1}, 1, []int32{0}))
	try("2 pageStarts", RaggedSlots([]int32{0, 1}, []int32{0, 1}, []int32{0, 0}))
	try("pageStarts[2] (3)", RaggedSlots([]int32{0, 1}, []int32{0, 1, 3}, []int32{0, 0}))
	try("pageStarts[1]", RaggedSlots([]int32{0, 1}, []int32{0, 1 << 30, 2}, []int32{math.MaxInt32, 0}))
	try("pageStarts[0] (-1)", RaggedSlots([]int32{0, 1}, []int32{-1, 1, 2}, []int32{0, 0}))
	try("never decreasing", RaggedSlots([]int32{0, 1}, []int32{1, 0, 2}, []int32{0, 0}))
	try("PageSize (4)", LinearSlots([]int32{0, 4}))
	try("3 starts", LinearSlots(make([]int32, 3)))

	slots := MappedSlots([]int32{0, 1})
	type cache = KVCache[float32, float32]
	try("KVCache.K with 3 pages of 4 slots, heads 2, channels 32", slots, func(c *cache) { c.K.Data = keys[:exact-1] })
	try("does not fit its slice", slots, func(c *cache) { c.V.Data = values })
	try("does not fit its slice of 768 elements, which it must fill: it needs 1024", slots, func(c *cache) { c.Pages++ })
	try("rope.Append: KVCache.Pages (0) is required, and must be positive", slots, func(c *cache) { c.Pages = 0 })
	try("rope.Append: KVCache.PageSize (0) is required, and must be from 1", slots, func(c *cache) { c.PageSize = 0 })
	try("rope.Append: KVCache.PageSize (-4) is required", slots, func(c *cache) { c.PageSize = -4 })
	try("does not fit its slice", slots, func(c *cache) { c.PageSize-- })
	try("does not fit its slice", slots, func(c *cache) { c.Pages = math.MaxInt })
	try("rope.Append: KVCache.PageSize (2147483648) must be from 1 to 1073741824", slots, func(c *cache) { c.PageSize = 1 << 31 })
	try("does not fit its slice", slots, func(c *cache) { c.K.Heads = 3 })
	try("does not fit its slice", slots, func(c *cache) { c.VHeadDim = 31 })
	try("rope.Append: KVCache.VHeadDim (-1) must be from 1 to 1024, or 0", slots, func(c *cache) { c.VHeadDim = -1 })
	try("KVCache.VHeadDim (1025) must be", slots, func(c *cache) { c.VHeadDim = 1025 })
	try("Span", slots, func(c *cache) { c.V.Span = true })
	try("KVCache.Pages (0)", slots, func(c *cache) { c.Pages, c.K.Data, c.V.Data = 0, nil, nil })
	try("must be LayoutNHD, LayoutHND", slots, func(c *cache) { c.K.Layout = LayoutBSHD })
	try("k has no place to go", slots, func(c *cache) { c.K = Tensor[float32]{} })
	strides := func(page, slot, head int) func(*cache) {
		return func(c *cache) { c.K = Strided(keys[:exact], heads, Strides{Batch: page, Token: slot, Head: head}) }
	}
	try("does not fit its slice", slots, strides(4*64, 64, 33))
	try("does not fit its slice", slots, strides(math.MaxInt, 64, 32))
	try("does not fit its slice", slots, strides(4*64, -64, 32))
	try("overlap", slots, strides(64, 64, 32))

	step := Step{Batch: 2, Tokens: 1, Positions: Offset(0), Slots: slots}
	refused(t, ApplyQK(c, Tensor[float32]{}, BSHD(k, heads), step), "Step.Slots must be nil")
	_, err := Prepare(c, Tensor[float32]{}, BSHD[float32](nil, heads), step)
	refused(t, err, "Step.Slots must be nil")
	step.Operation = OperationBackward
	if err := Append(c, Tensor[float32]{}, BSHD(k, heads), BSHD(k, heads), good, step); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	if !slices.Equal(keys, before) || !slices.Equal(values, before) {
		t.Error("a refused call has written")
	}
	c.Close()
	if err := Append(c, Tensor[float32]{}, BSHD(k, heads), BSHD(k, heads), good, step); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// A width or a scale of memory that a cache does not have is an error.
func TestWhatACacheHasNotIsRefused(t *testing.T) {
	c := mustNew(t, plain(32))
	x, out, none := make([]float32, 32), make([]float32, 4), Tensor[float32]{}
	k, shape := BSHD(x, 1), BSHD[float32](nil, 1)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: MappedSlots([]int32{1})}
	move := step
	move.Operation, move.Positions = OperationShift, Same(1)
	type coded = KVCache[float32, int8]
	good := coded{K: NHD(make([]float32, 2*32), 1), Pages: 1, PageSize: 2}
	wide, scaled, scaledK := good, good, coded{V: NHD(make([]int8, 2*32), 1), Pages: 1, PageSize: 2}
	wide.VHeadDim, scaled.VScale, scaledK.KScale = 4, &Scale{Value: 1}, &Scale{Value: 1}
	shapes := KVCache[float32, float32]{K: NHD[float32](nil, 1), Pages: 1, PageSize: 2, VHeadDim: 4}
	prepared := func(_ any, err error) error { return err }
	const width, scales = "VHeadDim (4) must be 0 without ", "KVCache.KScale and KVCache.VScale must be nil without KVCache.K and KVCache.V"
	for want, err := range map[string]error{
		"rope.Append: KVCache." + width + "KVCache.V and v": Append(c, none, k, none, wide, step),
		"rope.MoveSlots: KVCache." + width:                  MoveSlots(c, wide, move),
		"rope.MoveBetween: source." + width + "source.V":    MoveBetween(c, wide, good, move),
		"rope.MoveBetween: KVCache." + width:                MoveBetween(c, good, wide, move),
		"rope.PrepareAppend: KVCache." + width:              prepared(PrepareAppend(c, none, shape, none, shapes, step)),
		"rope.Append: " + scales:                            Append(c, none, k, none, scaled, step),
		"rope.AppendTo: " + scales:                          AppendTo(c, none, k, none, none, k, k, scaledK, step),
		"rope.MoveSlots: " + scales:                         MoveSlots(c, scaled, move),
		"rope.MoveBetween: source.KScale and source.VScale": MoveBetween(c, scaled, good, move),
		"rope.MoveBetween: " + scales:                       MoveBetween(c, good, scaled, move),
	} {
		refused(t, err, want)
	}
	// v that goes elsewhere has it.
	if err := AppendTo(c, none, none, BSHD(out, 1), none, k, BSHD([]float32{1, 2, 3, 4}, 1), wide, step); err != nil ||
		!slices.Equal(out, []float32{1, 2, 3, 4}) {
		t.Error(out, err)
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector calls gather what they tell it")
	}
	c := mustNew(t, plain(64))
	q, kv := make([]BFloat16, 2*4*64), make([]BFloat16, 2*2*64)
	keys, values := make([]BFloat16, 3*16*2*64), make([]BFloat16, 3*16*2*64)
	table, lengths := []int32{2, 0}, []int32{5, 15}
	if n := testing.AllocsPerRun(1000, func() {
		step := Step{Batch: 2, Tokens: 1, Positions: SeqOffsets(lengths), Slots: PagedSlots(table, 1, lengths)}
		cache := KVCache[BFloat16, BFloat16]{K: NHD(keys, 2), V: NHD(values, 2), Pages: 3, PageSize: 16}
		if err := Append(c, BSHD(q, 4), BSHD(kv, 2), BSHD(kv, 2), cache, step); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Append allocates %v times", n)
	}
}

// A field that was forgotten is named by every call that has a cache.
func TestForgottenPagesAreNamed(t *testing.T) {
	c, x := mustNew(t, plain(32)), make([]float32, 4*32)
	memory := NHD(x, 1)
	good := KVCache[float32, float32]{K: memory, Pages: 2, PageSize: 2}
	noPages, noSize := good, good
	noPages.Pages, noSize.PageSize = 0, 0
	huge := good
	huge.PageSize = 1 << 31
	scaled := KVCache[int8, int8]{K: NHD([]int8{}, 1), KScale: &Scale{Data: x[:4], Computed: true}, PageSize: 2}
	k, none := BSHD(make([]float32, 32), 1), Tensor[float32]{}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: MappedSlots([]int32{1})}
	moved := step
	moved.Operation, moved.Positions, moved.Slots = OperationShift, Same(1), MappedSlots([]int32{0})
	call := func(pages, size int) error {
		return Apply(c, Call{K: k.Any(), Cache: &Cache{K: memory.Any(), Pages: pages, PageSize: size}}, step)
	}
	prepare := func(size int) error {
		_, err := PrepareCall(c, Call{K: BSHD[float32](nil, 1).Any(), Cache: &Cache{K: NHD[float32](nil, 1).Any(), Pages: 1, PageSize: size}}, step)
		return err
	}
	for want, err := range map[string]error{
		"rope.Append: KVCache.Pages (0) is required, and must be positive":   Append(c, none, k, none, noPages, step),
		"rope.Append: KVCache.PageSize (0) is required, and must be from 1":  Append(c, none, k, none, noSize, step),
		"rope.Append: KVCache.Pages (0) is required":                         Append(c, none, k, none, scaled, step),
		"rope.MoveSlots: KVCache.Pages (0) is required":                      MoveSlots(c, noPages, moved),
		"rope.MoveBetween: source.PageSize (0) is required":                  MoveBetween(c, noSize, good, moved),
		"rope.MoveBetween: source.PageSize (2147483648) must be from 1 to 1": MoveBetween(c, huge, good, moved),
		"rope.MoveBetween: KVCache.PageSize (0) is required":                 MoveBetween(c, good, noSize, moved),
		"rope.Apply: Cache.Pages (0) is required, and must be positive":      call(0, 2),
		"rope.Apply: Cache.PageSize (0) is required, and must be from 1 to ": call(2, 0),
		"rope.Apply: Cache.PageSize (-1) is required, and must be from 1 to": call(2, -1),
		"rope.Apply: Cache.PageSize (2147483648) must be from 1 to 10737418": call(2, 1<<31),
		"rope.PrepareCall: Cache.PageSize (-1) is required, and must be fro": prepare(-1),
		"rope.PrepareCall: Cache.PageSize (2147483648) must be from 1 to 10": prepare(1 << 31),
	} {
		refused(t, err, want)
	}
}
