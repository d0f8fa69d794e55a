package rope_test

import (
	"fmt"
	"log"
	"math"
	"slices"

	rope "github.com/librope/librope/bindings/go"
)

// codes are keys or values of a layer in 8 bits, with a scale for each slot and head.
type codes struct {
	data   []rope.F8E4M3
	scales []float32
}

func newCodes(slots int) codes {
	return codes{make([]rope.F8E4M3, slots*row), make([]float32, slots*heads)}
}

// decoded is what attention reads of a slot.
func (c codes) decoded(slot int) (values []float32) {
	for i, code := range c.data[slot*row : (slot+1)*row] {
		values = append(values, float32(e4m3(code))*c.scales[slot*heads+i/dim])
	}
	return values
}

// e4m3 is what a code stands for, but for its scale.
func e4m3(code rope.F8E4M3) float64 {
	size := math.Ldexp(1+float64(code&7)/8, int(code>>3&15)-7)
	if code>>3&15 == 0 {
		size = float64(code&7) / 512
	}
	if code&0x80 != 0 {
		return -size
	}
	return size
}

// A decode step of an engine whose cache has 8 bits, for every layer: q and k are normed, turned, and k and v are coded
// on their way into the pages. The call is prepared once for all layers, each of which lends its weights and pages. It
// has the bits of Append, and what the pages hold, decoded, is what a norm and a rotation give, but for the rounding.
func Example_engineStep() {
	ctx, err := rope.New(rope.Config{HeadDim: dim, Theta: 1e6, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	// One token of each of three sequences, which have 5, 17 and 22 tokens in their pages.
	const pages, width = 9, 6
	lengths := []int32{pageSize + 1, 4*pageSize + 1, 5*pageSize + 2}
	table := []int32{3, 0, -1, -1, -1, -1, 1, 2, 4, 5, 6, -1, 1, 2, 4, 5, 7, 8} // the last two share a prefix
	step := rope.Step{Batch: 3, Tokens: 1, Positions: rope.SeqOffsets(lengths)}
	slots := []int{0*pageSize + 1, 6*pageSize + 1, 8*pageSize + 2}

	// Described by empty arrays; layers lend theirs.
	norm := func(weight []float32) *rope.Norm {
		return &rope.Norm{Kind: rope.NormKindRMS, Eps: 1e-6, Weight: rope.ArrayOf(weight)}
	}
	cache := func(keys, values codes) rope.KVCache[rope.F8E4M3, rope.F8E4M3] {
		return rope.KVCache[rope.F8E4M3, rope.F8E4M3]{
			K: rope.NHD(keys.data, heads), KScale: &rope.Scale{Data: keys.scales, Computed: true},
			V: rope.NHD(values.data, heads), VScale: &rope.Scale{Data: values.scales, Computed: true},
			Pages: pages, PageSize: pageSize,
		}
	}
	stored := step
	stored.Slots = rope.PagedSlots(table, width, lengths)
	described := stored
	described.Norms = &rope.Norms{Q: norm([]float32{}), K: norm([]float32{})}
	ofLayer := rope.NHD([]rope.F8E4M3{}, heads).Any().WithScale(&rope.Scale{Data: []float32{}, Computed: true})
	call, err := rope.PrepareCall(ctx, rope.Call{Q: rope.BSHD[float32](nil, qHeads).Any(),
		K: rope.BSHD[float32](nil, heads).Any(), V: rope.BSHD[float32](nil, heads).Any(),
		Cache: &rope.Cache{K: ofLayer, V: ofLayer, Pages: pages, PageSize: pageSize}}, described)
	if err != nil {
		log.Fatal(err)
	}
	defer call.Close()

	worst := 0.0
	for layer := range layers {
		var q, k, v []float32
		for sequence, length := range lengths {
			q = append(q, projected(layer, sequence, int(length), 0, qHeads)...)
			k = append(k, projected(layer, sequence, int(length), 1, heads)...)
			v = append(v, projected(layer, sequence, int(length), 2, heads)...)
		}
		qWeight, kWeight := projected(layer, 0, 0, 3, 1), projected(layer, 0, 0, 4, 1)
		norms := &rope.Norms{Q: norm(qWeight), K: norm(kWeight)}

		// The same by calls that are not prepared.
		now, alone := step, stored
		now.Norms, alone.Norms = norms, norms
		want, qAlone := slices.Clone(k), slices.Clone(q)
		if err := rope.ApplyQK(ctx, rope.BSHD(slices.Clone(q), qHeads), rope.BSHD(want, heads), now); err != nil {
			log.Fatal(err)
		}
		keysAlone, valuesAlone := newCodes(pages*pageSize), newCodes(pages*pageSize)
		err := rope.Append(ctx, rope.BSHD(qAlone, qHeads), rope.BSHD(k, heads), rope.BSHD(v, heads),
			cache(keysAlone, valuesAlone), alone)
		if err != nil {
			log.Fatal(err)
		}

		// The engine's own call, for each layer.
		keys, values := newCodes(pages*pageSize), newCodes(pages*pageSize)
		err = call.Apply(rope.Layer{Q: rope.ArrayOf(q), K: rope.ArrayOf(k), V: rope.ArrayOf(v),
			CacheK: rope.ArrayOf(keys.data), CacheKScales: rope.ArrayOf(keys.scales),
			CacheV: rope.ArrayOf(values.data), CacheVScales: rope.ArrayOf(values.scales),
			QNormWeight: rope.ArrayOf(qWeight), KNormWeight: rope.ArrayOf(kWeight)})
		if err != nil {
			log.Fatal(err)
		}
		if !slices.Equal(q, qAlone) || !slices.Equal(keys.data, keysAlone.data) ||
			!slices.Equal(keys.scales, keysAlone.scales) || !slices.Equal(values.data, valuesAlone.data) ||
			!slices.Equal(values.scales, valuesAlone.scales) {
			log.Fatal("prepared: other bits")
		}

		for sequence, slot := range slots {
			for i, key := range keys.decoded(slot) {
				x := float64(want[sequence*row+i])
				worst = max(worst, math.Abs(float64(key)-x)/(math.Abs(x)+0.01))
			}
			for i, value := range values.decoded(slot) {
				x := float64(v[sequence*row+i])
				worst = max(worst, math.Abs(float64(value)-x)/(math.Abs(x)+0.01))
			}
		}
	}
	fmt.Println("each code is within 1/16 of its value:", worst < 1.0/16+0.001)
	// Output: each code is within 1/16 of its value: true
}
