package rope

// Caches and outputs in blocks of Q8_0 are those of ggml's formula, in calls, prepared calls and moves.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

func ExampleQ80() {
	rope, err := New(Config{HeadDim: 64, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		panic(err)
	}
	defer rope.Close()
	const tokens, heads, pages, pageSize = 1, 2, 4, 16
	k := slices.Repeat([]float32{0.5}, tokens*heads*64)
	keys := make([]Q80, pages*pageSize*heads*64/32)
	cache := KVCache[Q80, Q80]{K: NHD(keys, heads), Pages: pages, PageSize: pageSize}
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(0), Slots: MappedSlots([]int32{0})}
	err = Append(rope, Tensor[float32]{}, BSHD(k, heads), Tensor[float32]{}, cache, step)
	fmt.Println(err, keys[0].Codes[:3], keys[0].D.Float32() > 0.5/128)
	// Output: <nil> [127 127 127] true
}

const blockSize = 32

// blocksOf is quantize_row_q8_0_ref.
func blocksOf(x []float32) (blocks []Q80) {
	for group := range slices.Chunk(x, blockSize) {
		var most, inverse float32
		for _, x := range group {
			most = max(most, x, -x)
		}
		d := most / 127
		if d != 0 {
			inverse = 1 / d
		}
		block := Q80{D: Float16FromFloat32(d)}
		for i, x := range group {
			block.Codes[i] = int8(math.Round(float64(x * inverse)))
		}
		blocks = append(blocks, block)
	}
	return blocks
}

// valuesOf is dequantize_row_q8_0.
func valuesOf(blocks []Q80) (x []float32) {
	for _, block := range blocks {
		for _, code := range block.Codes {
			x = append(x, float32(code)*block.D.Float32())
		}
	}
	return x
}

var untouchedBlock = Q80{D: 1, Codes: [32]int8{99}}

func randomNumbers(r *rand.Rand, n int) (x []float32) {
	for range n {
		x = append(x, 20*r.Float32()-10)
	}
	return x
}

func TestABlockIsThatOfC(t *testing.T) {
	if size, align := unsafe.Sizeof(Q80{}), unsafe.Alignof(Q80{}); size != 34 || align != 2 {
		t.Error(size, align)
	}
}

func TestBlocksAreThoseOfGgml(t *testing.T) {
	const heads, dim, tokens, pages, pageSize = 2, 64, 3, 3, 2
	const row, each = heads * dim, heads * dim / blockSize // blocks of a token
	c, r := mustNew(t, plain(dim)), rand.New(rand.NewPCG(7, 8))
	q, k, v := randomNumbers(r, tokens*row), randomNumbers(r, tokens*row), randomNumbers(r, tokens*row)
	clear(k[:dim])
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(7)}
	turnedQ, turnedK := blocksOf(inFloat32(t, c, q, heads, step)), blocksOf(inFloat32(t, c, k, heads, step))
	slots := []int64{4, -1, 1}
	step.Slots = MappedSlots(slots)
	memory := func(blocks int) []Q80 { return slices.Repeat([]Q80{untouchedBlock}, blocks) }
	stored := func(heads []Q80) []Q80 {
		all := memory(pages * pageSize * each)
		for token, slot := range slots {
			if slot >= 0 {
				copy(all[slot*each:], heads[token*each:][:each])
			}
		}
		return all
	}
	compare := func(what string, got, want []Q80) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s are %v\nand must be %v", what, got, want)
		}
	}
	wantKeys, wantValues := stored(turnedK), stored(blocksOf(v))

	keys, values := memory(len(wantKeys)), memory(len(wantKeys))
	cache := KVCache[Q80, Q80]{K: NHD(keys, heads), V: NHD(values, heads), Pages: pages, PageSize: pageSize}
	if err := Append(c, BSHD(slices.Clone(q), heads), BSHD(k, heads), BSHD(v, heads), cache, step); err != nil {
		t.Fatal(err)
	}
	compare("keys", keys, wantKeys)
	compare("values", values, wantValues)

	// An output whose heads have a block between them, and one that lies heads first.
	apart := Strides{Token: heads * (dim + blockSize), Head: dim + blockSize}
	wantQ, wantRest := memory(tokens*heads*3), memory(tokens*each)
	for head, blocks := 0, blocksOf(v); head < tokens*heads; head++ {
		copy(wantQ[3*head:], turnedQ[2*head:][:2])
		copy(wantRest[(head%heads*tokens+head/heads)*2:], blocks[2*head:][:2])
	}
	call := Call{Q: BSHD(q, heads).Any(), K: BSHD(k, heads).Any(), V: BSHD(v, heads).Any(), Rest: BSHD(v, heads).Any()}
	qOut, restOut := memory(len(wantQ)), memory(len(wantRest))
	keys, values = memory(len(wantKeys)), memory(len(wantKeys))
	call.QOut, call.RestOut = Strided(qOut, heads, apart).Any(), BHSD(restOut, heads).Any()
	call.Cache = &Cache{K: NHD(keys, heads).Any(), V: NHD(values, heads).Any(), Pages: pages, PageSize: pageSize}
	if err := Apply(c, call, step); err != nil {
		t.Fatal(err)
	}
	compare("q of a call", qOut, wantQ)
	compare("rest of a call", restOut, wantRest)
	compare("keys of a call", keys, wantKeys)

	none := BSHD[float32](nil, heads).Any()
	prepared, err := PrepareCall(c, Call{Q: none, K: none, V: none, Rest: none,
		QOut: Strided[Q80](nil, heads, apart).Any(), RestOut: BHSD[Q80](nil, heads).Any(),
		Cache: &Cache{K: NHD[Q80](nil, heads).Any(), V: NHD[Q80](nil, heads).Any(), Pages: pages, PageSize: pageSize},
	}, step)
	if err != nil {
		t.Fatal(err)
	}
	defer prepared.Close()
	qOut, restOut, keys, values = memory(len(wantQ)), memory(len(wantRest)), memory(len(wantKeys)), memory(len(wantKeys))
	layer := Layer{Q: ArrayOf(q), K: ArrayOf(k), V: ArrayOf(v), Rest: ArrayOf(v), QOut: ArrayOf(qOut),
		RestOut: ArrayOf(restOut), CacheK: ArrayOf(keys), CacheV: ArrayOf(values)}
	if err := prepared.Apply(layer); err != nil {
		t.Fatal(err)
	}
	compare("q of a prepared call", qOut, wantQ)
	compare("rest of a prepared call", restOut, wantRest)
	compare("keys of a prepared call", keys, wantKeys)
	compare("values of a prepared call", values, wantValues)
	layer.CacheV = ArrayOf(values[1:])
	refused(t, prepared.Apply(layer), "CacheV has 23 elements, and the prepared call needs 24")
	layer.CacheV = ArrayOf(make([]int8, 24))
	refused(t, prepared.Apply(layer), "CacheV has elements of DTypeI8, and the prepared call needs DTypeQ80")
}

func TestBlocksMove(t *testing.T) {
	const heads, dim, slots = 2, 64, 4
	const row, each = heads * dim, heads * dim / blockSize
	cfg := plain(dim)
	cfg.Angle = AngleExact
	c, r := mustNew(t, cfg), rand.New(rand.NewPCG(9, 10))
	keys, values := blocksOf(randomNumbers(r, slots*row)), blocksOf(randomNumbers(r, slots*row))
	before, valuesBefore := slices.Clone(keys), slices.Clone(values)
	// The first of two tokens stays at its position.
	step := Step{Batch: 1, Tokens: 2, Positions: TokenIDs([]int64{0, 100}), Operation: OperationShift}
	turned := inFloat32(t, c, valuesOf(before[:2*each]), heads, step)
	want := slices.Concat(before[:each], blocksOf(turned[row:]))

	// To another memory of float32, and back.
	wide, back := make([]float32, slots*row), slices.Repeat([]Q80{untouchedBlock}, slots*each)
	floats := KVCache[float32, float32]{K: NHD(wide, heads), Pages: 1, PageSize: slots}
	only := KVCache[Q80, Q80]{K: NHD(keys, heads), Pages: 2, PageSize: 2}
	there := step
	there.Source, there.Slots = MappedSlots([]int64{0, 1}), MappedSlots([]int64{2, 3})
	if err := MoveBetween(c, only, floats, there); err != nil {
		t.Fatal(err)
	}
	home := Step{Batch: 1, Tokens: 2, Positions: Same(0), Operation: OperationShift, Source: there.Slots,
		Slots: MappedSlots([]int64{1, 0})}
	if err := MoveBetween(c, floats, KVCache[Q80, Q80]{K: HND(back, heads), Pages: 4, PageSize: 1}, home); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(wide[3*row:], turned[row:]) || !slices.Equal(back[:each], want[each:]) ||
		back[2*each] != untouchedBlock {
		t.Error("between caches")
	}

	// Elsewhere in one memory, and then where they are.
	cache := only
	cache.V = NHD(values, heads)
	if err := MoveSlots(c, cache, there); err != nil {
		t.Fatal(err)
	}
	step.Slots = there.Source
	if err := MoveSlots(c, cache, step); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(keys, slices.Concat(want, want)) ||
		!slices.Equal(values, slices.Concat(valuesBefore[:2*each], valuesBefore[:2*each])) {
		t.Error("in one cache")
	}
}

func TestBlocksThatDoNotFit(t *testing.T) {
	const heads, dim = 2, 64
	c, narrow := mustNew(t, plain(dim)), mustNew(t, plain(48))
	memory := slices.Repeat([]Q80{untouchedBlock}, 12)
	k, step := BSHD(make([]float32, 2*heads*dim), heads), Step{Batch: 1, Tokens: 2, Positions: Offset(0)}
	appending, rotating := step, step
	appending.Slots = MappedSlots([]int64{0, 1})
	appendTo := func(c *Context, memory Tensor[Q80], k Tensor[float32], scale *Scale) error {
		cache := KVCache[Q80, Q80]{K: memory, KScale: scale, Pages: 1, PageSize: 3}
		return Append(c, Tensor[float32]{}, k, Tensor[float32]{}, cache, appending)
	}
	apply := func(out AnyTensor) error { return Apply(c, Call{Q: k.Any(), QOut: out}, rotating) }
	refused(t, appendTo(c, NHD(memory[1:], heads), k, nil), "KVCache.K with 1 pages of 3 slots, heads 2, channels 64 and "+
		"LayoutNHD does not fit its slice of 11 blocks of 32 channels, which it must fill")
	refused(t, appendTo(c, Strided(memory, heads, Strides{Token: 4*blockSize + 1, Head: dim}), k, nil),
		"channels 64, LayoutStrided and strides {Batch:0 Token:129 Head:64} does not fit its slice of 12 blocks of 32 channels")
	refused(t, appendTo(c, Strided(memory, heads, Strides{Token: 4*blockSize - 1, Head: dim}), k, nil),
		"KVCache.K.Strides.Batch")
	refused(t, appendTo(c, NHD(memory, heads), k, &Scale{Value: 1}), "KVCache.KScale must be nil with DType (DTypeQ80)")
	refused(t, appendTo(narrow, NHD(memory[:9], heads), BSHD(make([]float32, 2*heads*48), heads), nil),
		"KVCache.K must have a HeadDim (48) that is a multiple of 32")
	refused(t, apply(BSHD(memory[:9], heads).Any()), "slice of 9 blocks of 32 channels")
	refused(t, apply(BSHD(memory[:8], heads).Any().WithScale(&Scale{Value: 1})), "must be nil with DType (DTypeQ80)")
	none, tokens := BSHD[float32](nil, 1).Any(), Step{Batch: 1, Tokens: 2, Positions: Offset(0)}
	_, err := PrepareCall(narrow, Call{Q: none, QOut: BSHD[Q80](nil, 1).Any()}, tokens)
	refused(t, err, "qOut must have a HeadDim (48) that is a multiple of 32")
	if slices.ContainsFunc(memory, func(block Q80) bool { return block != untouchedBlock }) {
		t.Error("a call that was refused has written")
	}
}

// Slices, shapes and strides at random: a call is refused, or it writes nothing beside its slice; and a prepared
// call takes and refuses the same.
func TestBlocksStayInTheirSlices(t *testing.T) {
	r, taken := rand.New(rand.NewPCG(11, 12)), [2]int{}
	contexts := map[int]*Context{}
	for _, dim := range []int{32, 48, 64, 96} {
		contexts[dim] = mustNew(t, plain(dim))
	}
	for n := range 3000 {
		dim, tokens, heads := []int{32, 32, 64, 64, 96, 48}[r.IntN(6)], 1+r.IntN(4), 1+r.IntN(3)
		length := tokens*heads*dim/blockSize + r.IntN(3) - 1
		out := Tensor[Q80]{Layout: LayoutBSHD, Heads: heads}
		if r.IntN(2) == 0 {
			head := dim + 16*r.IntN(3)
			token := heads*head + 16*r.IntN(5) - 32
			out.Layout, out.Strides = LayoutStrided, Strides{Token: token, Head: head}
			length = ((tokens-1)*token+(heads-1)*head+dim)/blockSize + r.IntN(3) - 1
		}
		length = max(0, length)
		whole := slices.Repeat([]Q80{untouchedBlock}, length+60)
		q := BSHD(randomNumbers(r, tokens*heads*dim), heads).Any()
		step := Step{Batch: 1, Tokens: tokens, Positions: Offset(int64(n))}
		described := Call{Q: BSHD[float32](nil, heads).Any(), QOut: out.Any()}
		out.Data = whole[30 : 30+length]
		err := Apply(contexts[dim], Call{Q: q, QOut: out.Any()}, step)
		prepared, again := PrepareCall(contexts[dim], described, step)
		if again == nil {
			again = prepared.Apply(Layer{Q: q.Array, QOut: ArrayOf(out.Data)})
			prepared.Close()
		}
		if (err == nil) != (again == nil) {
			t.Fatal(n, err, again)
		}
		for _, beside := range [][]Q80{whole[:30], whole[30+length:]} {
			if slices.ContainsFunc(beside, func(block Q80) bool { return block != untouchedBlock }) {
				t.Fatal(n, "has written beside its slice", err)
			}
		}
		if err == nil {
			taken[1]++
		} else {
			taken[0]++
		}
	}
	if min(taken[0], taken[1]) < 500 {
		t.Error(taken)
	}
}
