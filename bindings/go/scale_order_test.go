package rope

// Arrays of scales have the order of their codes: those of every layout against those of NHD or BSHD, permuted, and
// against strides that say the same.

import (
	"math/rand/v2"
	"slices"
	"testing"
)

const (
	orderOuter, orderInner, orderHeads, orderDim = 3, 4, 2, 32 // pages and slots, or batch rows and tokens
	orderGroups                                  = 4
)

// orders say where the first element of a head is, in an array with so many elements for each head.
var orders = map[Layout]func(outer, inner, head int) int{
	LayoutNHD:  func(outer, inner, head int) int { return (outer*orderInner+inner)*orderHeads + head },
	LayoutHND:  func(outer, inner, head int) int { return (outer*orderHeads+head)*orderInner + inner },
	LayoutBSHD: func(outer, inner, head int) int { return (outer*orderInner+inner)*orderHeads + head },
	LayoutBHSD: func(outer, inner, head int) int { return (outer*orderHeads+head)*orderInner + inner },
	LayoutSBHD: func(outer, inner, head int) int { return (inner*orderOuter+outer)*orderHeads + head },
}

// orderStrides are those of an array with n elements for each head.
func orderStrides(layout Layout, n int) *Strides {
	at := orders[layout]
	return &Strides{Batch: at(1, 0, 0) * n, Token: at(0, 1, 0) * n, Head: at(0, 0, 1) * n}
}

// permuted is an array in the order of one layout in that of another.
func permuted[T any](x []T, from, to Layout) []T {
	out := make([]T, len(x))
	n := len(x) / (orderOuter * orderInner * orderHeads)
	for outer := range orderOuter {
		for inner := range orderInner {
			for head := range orderHeads {
				copy(out[orders[to](outer, inner, head)*n:][:n], x[orders[from](outer, inner, head)*n:])
			}
		}
	}
	return out
}

// orderKeys are keys of all slots, or tokens, of sizes that differ from head to head.
func orderKeys() []float32 {
	x := random[float32](rand.New(rand.NewPCG(9, 1)), orderOuter*orderInner*orderHeads*orderDim)
	for i := range x {
		x[i] *= 1 + float32(i/(orderDim/orderGroups)%29)
	}
	return x
}

func TestScalesOfACacheHaveTheOrderOfItsPages(t *testing.T) {
	c, k := mustNew(t, plain(orderDim)), orderKeys()
	const tokens = orderOuter * orderInner
	slots := make([]int32, tokens)
	for i := range slots {
		slots[i] = int32(i)
	}
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(3), Slots: MappedSlots(slots)}
	const scaleLen = tokens * orderHeads * orderGroups
	fill := func(layout Layout, scale Scale) (codes []int8) {
		t.Helper()
		codes, scale.Group = make([]int8, len(k)), orderDim/orderGroups
		cache := KVCache[int8, int8]{K: Tensor[int8]{Data: codes, Layout: layout, Heads: orderHeads}, KScale: &scale,
			Pages: orderOuter, PageSize: orderInner}
		if err := Append(c, Tensor[float32]{}, BSHD(k, orderHeads), Tensor[float32]{}, cache, step); err != nil {
			t.Fatal(err)
		}
		// The same by a call that has been prepared.
		again, floats, exponents := make([]int8, len(k)), slices.Clone(scale.Data), slices.Clone(scale.E8M0)
		if scale.Computed {
			clear(floats)
			clear(exponents)
		}
		described, array := scale, ArrayOf(floats)
		described.Data, described.E8M0 = floats[:0:0], exponents[:0:0]
		if exponents != nil {
			array = ArrayOf(exponents)
		}
		memory := Tensor[int8]{Layout: layout, Heads: orderHeads}.Any().WithScale(&described)
		prepared, err := PrepareCall(c, Call{K: BSHD[float32](nil, orderHeads).Any(),
			Cache: &Cache{K: memory, Pages: orderOuter, PageSize: orderInner}}, step)
		if err != nil {
			t.Fatal(err)
		}
		defer prepared.Close()
		if err := prepared.Apply(Layer{K: ArrayOf(k), CacheK: ArrayOf(again), CacheKScales: array}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again, codes) || !slices.Equal(floats, scale.Data) || !slices.Equal(exponents, scale.E8M0) {
			t.Errorf("%v: a prepared call has other codes or scales", layout)
		}
		return codes
	}
	nhd, nhdBytes := make([]float32, scaleLen), make([]uint8, scaleLen)
	codes := fill(LayoutNHD, Scale{Data: nhd, Computed: true})
	fill(LayoutNHD, Scale{E8M0: nhdBytes, Computed: true, PowerOfTwo: true})

	hnd, byStrides := make([]float32, scaleLen), make([]float32, scaleLen)
	ofHND := fill(LayoutHND, Scale{Data: hnd, Computed: true})
	fill(LayoutHND, Scale{Data: byStrides, Computed: true, Strides: orderStrides(LayoutHND, orderGroups)})
	if !slices.Equal(hnd, permuted(nhd, LayoutNHD, LayoutHND)) || !slices.Equal(hnd, byStrides) {
		t.Error("computed scales beside HND are not [pages, heads, page_size, groups]")
	}
	if !slices.Equal(ofHND, permuted(codes, LayoutNHD, LayoutHND)) {
		t.Error("codes differ by layout")
	}
	hndBytes := make([]uint8, scaleLen)
	fill(LayoutHND, Scale{E8M0: hndBytes, Computed: true, PowerOfTwo: true})
	if !slices.Equal(hndBytes, permuted(nhdBytes, LayoutNHD, LayoutHND)) {
		t.Error("exponents beside HND are not [pages, heads, page_size, groups]")
	}

	// Given scales are read in the same order; and one layout may have the array of another, by strides.
	if !slices.Equal(fill(LayoutHND, Scale{Data: hnd}), ofHND) || !slices.Equal(fill(LayoutNHD, Scale{Data: nhd}), codes) ||
		!slices.Equal(fill(LayoutHND, Scale{Data: nhd, Strides: orderStrides(LayoutNHD, orderGroups)}), ofHND) {
		t.Error("given scales are read in another order than they are computed in")
	}

	// Pages of strides have no order of their own.
	strided := make([]float32, scaleLen)
	cache := KVCache[int8, int8]{K: Strided(make([]int8, len(k)), orderHeads, *orderStrides(LayoutHND, orderDim)),
		KScale: &Scale{Data: strided, Computed: true, Group: orderDim / orderGroups}, Pages: orderOuter, PageSize: orderInner}
	if err := Append(c, Tensor[float32]{}, BSHD(k, orderHeads), Tensor[float32]{}, cache, step); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(strided, nhd) {
		t.Error("scales of strided pages are not [pages, page_size, heads, groups]")
	}

	// A move reads and writes scales in the orders of its caches.
	moved, movedScales := make([]int8, len(k)), make([]float32, scaleLen)
	source := KVCache[int8, int8]{K: HND(ofHND, orderHeads), KScale: &Scale{Data: hnd, Computed: true, Group: 8},
		Pages: orderOuter, PageSize: orderInner}
	to := KVCache[int8, int8]{K: NHD(moved, orderHeads), KScale: &Scale{Data: movedScales, Computed: true, Group: 8},
		Pages: orderOuter, PageSize: orderInner}
	nope := mustNew(t, Config{HeadDim: orderDim, Scaling: ScalingNope})
	if err := MoveBetween(nope, source, to, step); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(moved, codes) || !slices.Equal(movedScales, nhd) {
		t.Error("a move from HND to NHD has other codes or scales")
	}
}

func TestScalesOfOutputsHaveTheirOrder(t *testing.T) {
	c, q := mustNew(t, plain(orderDim)), orderKeys()
	step := Step{Batch: orderOuter, Tokens: orderInner, Positions: Offset(3)}
	const scaleLen = orderOuter * orderInner * orderHeads * orderGroups
	apply := func(layout Layout, scale Scale) (codes []int8) {
		t.Helper()
		codes, scale.Group = make([]int8, len(q)), orderDim/orderGroups
		out := Tensor[int8]{Data: codes, Layout: layout, Heads: orderHeads}.Any().WithScale(&scale)
		if err := Apply(c, Call{Q: BSHD(q, orderHeads).Any(), QOut: out}, step); err != nil {
			t.Fatal(err)
		}
		return codes
	}
	bshd := make([]float32, scaleLen)
	codes := apply(LayoutBSHD, Scale{Data: bshd, Computed: true})
	for _, layout := range []Layout{LayoutBHSD, LayoutSBHD} {
		computed, byStrides := make([]float32, scaleLen), make([]float32, scaleLen)
		others := apply(layout, Scale{Data: computed, Computed: true})
		apply(layout, Scale{Data: byStrides, Computed: true, Strides: orderStrides(layout, orderGroups)})
		if !slices.Equal(computed, permuted(bshd, LayoutBSHD, layout)) || !slices.Equal(computed, byStrides) ||
			!slices.Equal(others, permuted(codes, LayoutBSHD, layout)) {
			t.Errorf("%v: scales are not in the order of the output", layout)
		}
		if !slices.Equal(apply(layout, Scale{Data: computed}), others) {
			t.Errorf("%v: given scales are read in another order than they are computed in", layout)
		}
	}
	for words, layout := range map[string]Layout{
		"[batch, tokens, heads, groups] = [3, 4, 2, 4]": LayoutBSHD,
		"[batch, heads, tokens, groups] = [3, 2, 4, 4]": LayoutBHSD,
		"[tokens, batch, heads, groups] = [4, 3, 2, 4]": LayoutSBHD,
	} {
		out := Tensor[int8]{Data: make([]int8, len(q)), Layout: layout, Heads: orderHeads}.Any().WithScale(
			&Scale{Data: bshd[1:], Group: 8})
		refused(t, Apply(c, Call{Q: BSHD(q, orderHeads).Any(), QOut: out}, step), "qOut.Scale.Data has 95 scales, and must have "+
			words)
	}
}
